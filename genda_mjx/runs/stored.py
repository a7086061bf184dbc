"""The skills of a stored run: its learner alone, without the replay."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from envs.base import SkillEnv
from genda_mjx import agents, sharding
from genda_mjx.config import Config, UserError
from genda_mjx.runs.checkpoint import Checkpoints
from genda_mjx.runs.folder import locate, read_config
from genda_mjx.runs.report import Progress
from genda_mjx.state import TrainState


class Skills(NamedTuple):
    """The agent of a checkpoint."""

    config: Config
    step: int
    agent: agents.Agent
    state: agents.AgentState


def read_run(folder: Path) -> Config:
    """The config of a run that has checkpoints; `folder` may be one seed's."""
    if not folder.is_dir():
        raise UserError(f"--ckpt {folder} does not exist; give the run folder that train.py has written")
    run, _ = locate(folder)
    if not (run / "checkpoints").is_dir():
        raise UserError(f"no checkpoint in --ckpt {run} yet")
    return read_config(run)


def load_skills(folder: Path, step: int | None, env: SkillEnv, progress: Progress) -> Skills:
    """The agent at a step (the newest if None), for an env with the body's observations and actions."""
    config, (run, member) = read_run(folder), locate(folder)
    agent = agents.make(config, agents.Spec.of(env))

    def start(key: jax.Array) -> TrainState:
        return TrainState(agent.init(key), None, key, jnp.zeros((), jnp.int32))

    if config.num_seeds > 1:
        start = jax.vmap(start, out_axes=sharding.SEED_AXES.replace(ring=None))
    checkpoints = Checkpoints(run, read_only=True)
    try:
        step = checkpoints.resolve(step)
        with progress.waiting(f"loading step {step:,}"):
            state = checkpoints.load_agent(step, jax.eval_shape(start, sharding.seed_keys(config)))
    finally:
        checkpoints.close()
    if config.num_seeds > 1:
        state = jax.tree.map(lambda leaf: leaf[member], state)
    return Skills(config, step, agent, state)
