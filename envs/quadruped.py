"""Quadruped: dm_control's four-legged runner, starting near upright just above the floor."""

import jax.numpy as jnp
import mujoco
import numpy as np

from envs import resets, suite
from envs.body import Body

TOES = ["toe_front_left", "toe_front_right", "toe_back_right", "toe_back_left"]  # sites of the force and torque sensors


class Quadruped(Body):
    name = "quadruped"
    control_timestep = 0.02
    world_vectors = (0,)
    stands = True
    task_scale = 1.5  # for its larger body
    maze_goal_radius = 3.0  # m (code)
    camera = "y"  # (code)

    @classmethod
    def stock_spec(cls) -> mujoco.MjSpec:
        """The suite's run task: no walls, ball, target, terrain or rangefinders."""
        spec = suite.load("quadruped")
        suite.drop(spec, [g for g in spec.geoms if g.name.startswith("wall") or g.name == "terrain"])
        suite.drop(spec, [spec.body("ball"), spec.site("target")])
        suite.drop(spec, [s for s in spec.sensors if s.type == mujoco.mjtSensor.mjSENS_RANGEFINDER])
        return spec

    @classmethod
    def edited_spec(cls) -> mujoco.MjSpec:
        spec = cls.stock_spec()
        suite.tune(spec, iterations=5, ls_iterations=6)
        suite.drop(spec, spec.hfields)
        for geom in spec.geoms:
            if geom.type == mujoco.mjtGeom.mjGEOM_CYLINDER:  # the two eyes
                geom.contype = geom.conaffinity = 0
        suite.floor_and_self(spec)
        suite.cap_contacts(spec, points=12)
        return spec

    @classmethod
    def draw_start(cls, model, data, rng) -> np.ndarray:
        """Standing (METRA's and GenDa's law)."""
        return resets.stand(model, data, rng)

    def observe(self, quantities):
        """[81] torso xyz, hinges, rates, activations, torso velocity, upright, IMU, toe forces and torques."""
        return [
            quantities.position("torso"),
            quantities.qpos[7:],
            quantities.qvel[6:],
            quantities.act,
            quantities.velocimeter("torso"),
            quantities.vertical("torso")[2:],
            quantities.sensors[:3],  # accelerometer, m/s^2
            quantities.gyro("torso"),
            quantities.sensors[3:],  # toe forces, then toe torques, arcsinh
        ]

    def sense(self, sensors):
        toes = jnp.concatenate([sensors.forces(TOES), sensors.torques(TOES)])
        return [sensors.accelerometer("torso"), jnp.arcsinh(toes)]

    def stock_sensors(self, model, data) -> np.ndarray:
        kinds = mujoco.mjtSensor

        def read(kind: mujoco.mjtSensor) -> np.ndarray:
            return np.concatenate([data.sensor(i).data for i in np.flatnonzero(model.sensor_type == kind)])

        toes = np.concatenate([read(kinds.mjSENS_FORCE), read(kinds.mjSENS_TORQUE)])
        return np.concatenate([read(kinds.mjSENS_ACCELEROMETER), np.arcsinh(toes)])
