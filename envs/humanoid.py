"""Humanoid: dm_control's 21-motor humanoid. Starts in a random pose in the air and falls."""

import jax.numpy as jnp
import mujoco
import numpy as np

from envs import suite
from envs.body import Body

START_HEIGHT = 1.5  # m


class Humanoid(Body):
    name = "humanoid"
    control_timestep = 0.025
    world_vectors = (0, 40, 43)  # place, velocity of the whole body, velocity of the torso
    stands = True
    upright_cosine = 0.7  # a trunk lies with its axis level, often a little above it
    camera = "back"  # (code)

    @classmethod
    def stock_spec(cls) -> mujoco.MjSpec:
        return suite.load("humanoid")

    @classmethod
    def edited_spec(cls) -> mujoco.MjSpec:
        spec = cls.stock_spec()
        suite.tune(spec, iterations=8, ls_iterations=6)
        suite.cap_contacts(spec, points=10, pairs=32)
        return spec

    @classmethod
    def draw_start(cls, model, data, rng) -> np.ndarray:
        """Hinges uniform in range, quaternion from four uniform numbers (dm_control's law), until nothing touches."""
        hinges = model.jnt_range[1:]
        while True:
            data.qpos[:3] = 0, 0, START_HEIGHT
            quat = rng.uniform(size=4)
            data.qpos[3:7] = quat / np.linalg.norm(quat)
            data.qpos[7:] = rng.uniform(*hinges.T)
            mujoco.mj_fwdPosition(model, data)
            if data.ncon == 0:
                return np.zeros(0)

    def observe(self, quantities):
        """[70] torso xyz, hinges, head height, hands and feet, torso vertical, whole-body and dof velocities."""
        torso = quantities.position("torso")
        limbs = [f"{side}_{limb}" for side in ("left", "right") for limb in ("hand", "foot")]
        return [
            torso,
            quantities.qpos[7:],
            quantities.position("head")[2:],
            jnp.concatenate([quantities.in_frame("torso", quantities.position(limb) - torso) for limb in limbs]),
            quantities.vertical("torso"),
            quantities.subtree_velocity("torso"),
            quantities.qvel,
        ]
