"""Point: a puck on an endless plane, driven along x and y. The quick body for demos and tests."""

import mujoco
import numpy as np

from envs import suite
from envs.body import Body

RADIUS = 0.2  # m
MASS = 1.0  # kg
DAMPING = 1.0  # N s/m: time constant 1 s
THRUST = 5.0  # N: top speed 5 m/s along each axis, 50 m per episode
TIMESTEP = 0.025  # s


class Point(Body):
    name = "point"
    control_timestep = 0.025
    normalizer_episodes = 1024
    moved_starts = (10.0, 50.0)  # m
    wall_condim = 1  # a puck glides along walls
    camera = "above"
    floor_size = 60.0  # m: as far as it gets

    @classmethod
    def stock_spec(cls) -> mujoco.MjSpec:
        spec = mujoco.MjSpec()
        spec.modelname = "point"
        spec.option.timestep = TIMESTEP
        body = spec.worldbody.add_body(name="torso", pos=[0, 0, RADIUS])
        sphere = body.add_geom(name="torso", type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[RADIUS, 0, 0], mass=MASS)
        sphere.condim = 1  # a contact has the larger one of its two geoms'
        for axis, direction in (("x", [1, 0, 0]), ("y", [0, 1, 0])):
            body.add_joint(name=axis, type=mujoco.mjtJoint.mjJNT_SLIDE, axis=direction, damping=DAMPING)
            motor = spec.add_actuator(
                name=axis, target=axis, trntype=mujoco.mjtTrn.mjTRN_JOINT, gear=[THRUST] + [0] * 5
            )
            motor.ctrllimited, motor.ctrlrange = True, [-1, 1]
        _add_view(spec, body)
        return spec

    @classmethod
    def edited_spec(cls) -> mujoco.MjSpec:
        spec = cls.stock_spec()
        suite.tune(spec, iterations=2, ls_iterations=2)  # for walls; on the open floor nothing is solved
        spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
        return spec

    @classmethod
    def draw_start(cls, model, data, rng) -> np.ndarray:
        data.qpos[:] = rng.uniform(-0.1, 0.1, 2)
        return np.zeros(0)

    def observe(self, quantities):
        """[4] x, y (m), and their rates (m/s)."""
        return [quantities.qpos, quantities.qvel]


def _add_view(spec: mujoco.MjSpec, body: mujoco.MjsBody) -> None:
    """A camera, light and a sky as dm_control's bodies have them."""
    tracking = mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM
    body.add_camera(name="above", mode=tracking, pos=[0, -4, 2], xyaxes=[1, 0, 0, 0, 1, 2])
    lamp = body.add_light(mode=tracking, pos=[0, 0, 4], dir=[0, 0, -1], cutoff=45, exponent=10)
    lamp.diffuse, lamp.specular = [0.7] * 3, [0.3] * 3
    head = spec.visual.headlight
    head.ambient, head.diffuse, head.specular = [0.4] * 3, [0.8] * 3, [0.1] * 3
    gradient = mujoco.mjtBuiltin.mjBUILTIN_GRADIENT
    spec.add_texture(
        name="sky",
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=gradient,
        rgb1=[0.4, 0.6, 0.8],
        rgb2=[0, 0, 0],
        width=64,
        height=64 * 6,
    )
