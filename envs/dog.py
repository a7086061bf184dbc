"""Dog: dm_control's 38-muscle dog, 79 degrees of freedom, trotting off in a random direction."""

from typing import ClassVar

import mujoco
import numpy as np

from envs import suite
from envs.body import Body

FORCE_SITES = ["foot_anchor_L", "foot_anchor_R", "hand_anchor_L", "hand_anchor_R"]
FORCE_SENSORS = ["foot_L", "foot_R", "hand_L", "hand_R"]
TOUCH_SITES = ["palm_L", "palm_R", "sole_L", "sole_R"]
START_SPEED = 2.0  # m/s and rad/s, standard deviation of the root's horizontal velocity and yaw rate
TAIL = "Ca_"  # tail links touch the floor only
SELF_COLLIDING = (mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_SPHERE)  # shapes that MJX collides cheaply
TEETH_CONDIM = 6  # only the teeth have torsional and rolling friction


def _collides_with_limbs(geom: mujoco.MjsGeom) -> bool:
    return geom.type in SELF_COLLIDING and not geom.name.startswith(TAIL) and "corner" not in geom.name


class Dog(Body):
    name = "dog"
    control_timestep = 0.015
    world_vectors = (0,)
    stands = True
    upright_cosine = 0.7  # on its side the axis is level, often a little above it
    normalizer_episodes = 256
    # Random rollouts of the dog spread over a metre, because it starts at 2 m/s; GenDa's preset has 0.2 m, as for a dog
    # that starts at rest. The spread sets how fast far-away positions saturate the networks: the preset's is kept.
    fixed_std: ClassVar = {0: 0.2, 1: 0.2}
    floor_horizon = 400  # agent steps (paper; its script has 200)
    wall_tolerance = 0.03  # m: it has 210 ends, most of them within centimetres of another
    camera = "y-axis"
    drawn_groups = (3,)  # simple shapes under the skin, which a picture cannot show

    @classmethod
    def stock_spec(cls) -> mujoco.MjSpec:
        """The suite's run task: no ball, target or walls."""
        spec = suite.load("dog")
        spec.meshdir = "dog_assets"
        suite.drop(spec, [spec.body("ball"), spec.geom("target"), spec.camera("ball"), spec.camera("head")])
        suite.drop(spec, [g for g in spec.geoms if g.name.startswith("wall_")])
        return spec

    @classmethod
    def edited_spec(cls) -> mujoco.MjSpec:
        spec = cls.stock_spec()
        suite.tune(spec, iterations=10, ls_iterations=6)
        spec.compiler.discardvisual = True
        spec.option.noslip_iterations = 0
        for geom in spec.geoms:
            if geom.condim == TEETH_CONDIM:
                geom.contype = geom.conaffinity = 0
        suite.corners_for_boxes(spec)
        suite.floor_and_self(spec, _collides_with_limbs)
        suite.cap_contacts(spec, points=20, pairs=64)
        return spec

    @classmethod
    def draw_start(cls, model, data, rng) -> np.ndarray:
        """Default pose, any heading, moving and turning in the plane, muscles at random activations."""
        yaw = rng.uniform(0, 2 * np.pi)
        data.qpos[3:7] = np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)
        data.qvel[[0, 1, 5]] = START_SPEED * rng.standard_normal(3)
        data.act[:] = rng.uniform(*model.actuator_ctrlrange.T)
        return np.zeros(0)

    def observe(self, quantities):
        """[226] torso xyz, hinges, rates, heights, verticals, velocity, head IMU, foot forces, touch, activations."""
        return [
            quantities.position("torso"),
            quantities.qpos[7:],
            quantities.qvel[6:],
            quantities.position("torso")[2:],
            quantities.position("pelvis")[2:],
            quantities.vertical("skull"),
            quantities.vertical("torso"),
            quantities.vertical("pelvis"),
            quantities.in_frame("torso", quantities.subtree_velocity("torso")),
            quantities.sensors[:3],  # accelerometer, m/s^2
            quantities.velocimeter("head"),
            quantities.gyro("head"),
            quantities.sensors[3:],  # forces and touch, N
            quantities.act,
        ]

    def sense(self, sensors):
        return [sensors.accelerometer("head"), sensors.forces(FORCE_SITES), sensors.touch(TOUCH_SITES)]

    def stock_sensors(self, model, data) -> np.ndarray:
        names = ["accelerometer", *FORCE_SENSORS, *TOUCH_SITES]
        return np.concatenate([data.sensor(name).data for name in names])
