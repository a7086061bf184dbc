"""Fish: dm_control's swimmer. Gravity off, constraints off, drag of inertia boxes; covers three dimensions."""

import jax.numpy as jnp
import mujoco
import numpy as np

from envs import suite
from envs.body import Body
from envs.physics.vectors import Vec, mat_vec, transpose


class Fish(Body):
    name = "fish"
    control_timestep = 0.04
    world_vectors = (0, 14)  # place, velocity of the torso
    position_size = 3
    bin_size = 0.01
    moved_starts = (0.5, 1.0)  # m: it swims half a metre in an episode
    normalizer_episodes = 1024
    tasks = ("fs_rg",)
    goal_ahead = 0.5  # m, along its +y axis, towards the mouth
    goal_radius = 0.1  # m; no source: the general 1.5 would hold at once
    camera = "tracking_top"
    floor_size, floor_height = 2.0, -2.0  # m: the stock floor hides a fish that dives

    @classmethod
    def stock_spec(cls) -> mujoco.MjSpec:
        return suite.load("fish")

    @classmethod
    def edited_spec(cls) -> mujoco.MjSpec:
        spec = cls.stock_spec()
        suite.tune(spec, iterations=1, ls_iterations=1)
        for geom in spec.geoms:  # constraints are off in the stock model: contacts would be found and never used
            geom.contype = geom.conaffinity = 0
        return spec

    @classmethod
    def draw_start(cls, model, data, rng) -> np.ndarray:
        """Any orientation, fins and tail near rest, a target nearby that the observation points to."""
        quat = rng.standard_normal(4)
        data.qpos[3:7] = quat / np.linalg.norm(quat)
        data.qpos[7:] = rng.uniform(-0.2, 0.2, model.nq - 7)
        return rng.uniform([-0.4, -0.4, 0.1], [0.4, 0.4, 0.3])

    def observe(self, quantities):
        """[27] torso xyz, hinges, upright, mouth-to-target in the mouth's axes, all velocities."""
        mouth, turn = quantities.geom("mouth")
        to_target = mat_vec(transpose(turn), Vec(quantities.drawn) - mouth)
        return [
            quantities.position("torso"),
            quantities.qpos[7:],
            quantities.vertical("torso")[2:],
            jnp.stack(to_target),
            quantities.qvel,
        ]
