"""Does the policy look at where it is? python -m experiments.place RUN

States of its own episodes are shown to the policy once more as they would be observed elsewhere, all else the same. How
much its action changes by that, beside how much it changes with another skill, says how much of it hangs on the place:
what the information bottleneck is meant to keep from the policy.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array

from envs.base import SkillEnv
from experiments.control import table
from genda_mjx import evaluate, rollout
from genda_mjx.build import body_class, env_of
from genda_mjx.config import UserError
from genda_mjx.runs import start
from genda_mjx.runs.evaluate import DIRECTIONS
from genda_mjx.runs.report import Progress
from genda_mjx.runs.stored import Skills, load_skills, read_run


@dataclass(frozen=True)
class Options:
    run: Annotated[Path, tyro.conf.Positional]  # folder of a run
    distances: tuple[float, ...] = ()  # m; those of the body's moved starts if not given
    step: int | None = None  # checkpoint; None: the newest
    episodes: int = 48
    seed: int = 0
    compile_cache: str = ".cache/jax"


def seen_elsewhere(env: SkillEnv, key: Array, way: Array) -> Array:
    """[o] what a way [2], m, adds to an observation: of a start, and so of any state, as places are linear in it."""
    return env.reset_at(key, way).obs - env.reset_at(key, jnp.zeros(2)).obs


def changes(env: SkillEnv, skills: Skills, options: Options, distances: tuple[float, ...]) -> tuple[float, np.ndarray]:
    """Mean length of the change of an action: with another skill, and at each distance, mean over directions."""
    agent, state = skills.agent, skills.state

    @jax.jit
    def measure(key: Array, ways: Array) -> tuple[Array, Array]:
        key_start, key_skill, key_other = jax.random.split(key, 3)
        z = agent.skills.show(key_skill, options.episodes)
        first = evaluate.start_states(env, key_start, options.episodes, jnp.zeros(2))
        with jax.default_matmul_precision("highest"):
            _, steps = rollout.step_envs(
                env,
                first,
                lambda obs, _: agent.act(state, obs, z, None),
                key_start,
                env.episode_length,
                lambda now: now.obs,
            )
            rows, z = jnp.concatenate(steps.kept), jnp.tile(z, (env.episode_length, 1))
            usual = agent.act(state, rows, z, None)

            def moved(way: Array) -> Array:
                elsewhere = agent.act(state, rows + seen_elsewhere(env, key_start, way), z, None)
                return jnp.linalg.norm(elsewhere - usual, axis=-1).mean()

            other = agent.act(state, rows, agent.skills.sample(key_other, len(z)), None)
            return jnp.linalg.norm(other - usual, axis=-1).mean(), jax.lax.map(moved, ways)

    angles = np.arange(DIRECTIONS) * 2 * np.pi / DIRECTIONS
    circle = np.stack([np.cos(angles), np.sin(angles)], -1)
    ways = np.concatenate([distance * circle for distance in distances]).astype(np.float32)
    other, elsewhere = jax.device_get(measure(jax.random.key(options.seed), ways))
    return float(other), elsewhere.reshape(len(distances), DIRECTIONS).mean(1)


def describe(distances: tuple[float, ...], other: float, elsewhere: np.ndarray) -> str:
    head = ["", *(f"{distance:g} m away" for distance in distances), "another skill"]
    lengths = [*elsewhere, other]
    shares = [f"{length / other:.2f}" for length in lengths]
    return table(
        head, [["action changes by", *(f"{length:.3f}" for length in lengths)], ["beside another skill", *shares]]
    )


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    config = read_run(options.run)
    body = body_class(config.env)
    if config.pixels or not body.movable:
        reason = (
            "sees pictures, which cannot be moved" if config.pixels else f"is of {config.env}, which stays in place"
        )
        raise UserError(f"the run in {options.run} {reason}")
    distances = options.distances or body.moved_starts
    start.prepare(options.compile_cache)
    env = env_of(config)
    skills = load_skills(options.run, options.step, env, Progress())
    print(f"{options.run} at step {skills.step:,}, {options.episodes} episodes\n")
    print(describe(distances, *changes(env, skills, options, distances)))


if __name__ == "__main__":
    start.main(main)
