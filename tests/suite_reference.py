"""dm_control's own environments, as the reference our bodies are compared with."""

import os

os.environ.setdefault("MUJOCO_GL", "disable")

import numpy as np
from dm_control import suite

TASKS = {"fish": "swim", "quadruped": "run", "humanoid": "run", "dog": "run"}


def load(name: str, seed: int = 0):
    """The suite environment a body is ported from."""
    return suite.load(name, TASKS[name], task_kwargs={"random": seed})


def observation(env) -> np.ndarray:
    """The suite's observation with the torso's world position in front, as GenDa uses it."""
    parts = env.task.get_observation(env.physics).values()
    return np.concatenate([env.physics.named.data.xpos["torso"], *(np.ravel(p) for p in parts)])


def place(env, qpos, qvel, act, drawn) -> None:
    """Puts the suite environment in a start state of ours."""
    data = env.physics.data
    with env.physics.reset_context():
        data.qpos[:], data.qvel[:], data.act[:] = qpos, qvel, act
        if len(drawn):
            env.physics.named.model.geom_pos["target"] = drawn
