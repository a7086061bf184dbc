"""Staggered episodes: the N copies are G cohorts of M, and in every iteration the episodes of one cohort end.

    iteration    0   1   2   3   4   5        G = 4, | starts an episode
    cohort 0     |---------------|-------
    cohort 1     ....|---------------|---
    cohort 2     ........|---------------
    cohort 3     ............|-----------

An iteration is then T/G steps of all copies, so that the policy acts for T/G steps before it learns again. What a
cohort does before its first start (dots) is not stored.
"""

from functools import partial

import flax.struct
import jax
import jax.numpy as jnp
from brax.envs.base import State
from jax import Array

from envs.base import SkillEnv
from genda_mjx import rollout, tiles
from genda_mjx.agents import Agent, AgentState
from genda_mjx.rollout import Episode, Steps


@flax.struct.dataclass
class Cohorts:
    """The episodes under way."""

    envs: State  # [G, M, ...]
    skill: Array  # [G, M, d]
    past: Steps  # [G, T/G, G, M, ...] what all cohorts did in the last G iterations, in turn


def begin(env: SkillEnv, agent: Agent, key: Array, count: int, size: int) -> Cohorts:
    """All G = count cohorts of M = size copies reset and nothing recorded, before the first iteration."""

    def start(key: Array) -> tuple[State, Array]:
        return rollout.start_episodes(env, agent, *jax.random.split(key), size)

    def nothing(leaf: Array) -> Array:
        return jnp.zeros((count, env.episode_length // count, *leaf.shape), leaf.dtype)

    envs, z = jax.vmap(start)(jax.random.split(key, count))
    first = Steps(jax.vmap(jax.vmap(env.stored))(envs), jnp.zeros((count, size, env.action_size)))
    return Cohorts(envs, z, jax.tree.map(nothing, first))


def advance(
    env: SkillEnv,
    agent: Agent,
    state: AgentState,
    cohorts: Cohorts,
    key: Array,
    iteration: Array,
    warmup: Array,
    noise_steps: int = 1,
) -> tuple[Cohorts, Episode, Array, Array]:
    """T/G steps of all copies: one cohort starts its episodes, one ends them. noise_steps: as in `rollout.collect`.

    Returns the M episodes that end, which of them are valid [M], and whether they are whole.
    """
    count, size = cohorts.skill.shape[:2]
    starting, ending = iteration % count, (iteration + 1) % count

    def put(store: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(store, new, starting, axis=0)

    def joined(leaf: Array) -> Array:
        return leaf.reshape(count * size, *leaf.shape[2:])

    def parted(leaf: Array) -> Array:
        return leaf.reshape(count, size, *leaf.shape[1:])

    key_reset, key_skill, key_act = jax.random.split(key, 3)
    fresh = rollout.start_episodes(env, agent, key_reset, key_skill, size)
    envs, z = jax.tree.map(put, (cohorts.envs, cohorts.skill), fresh)
    choose = rollout.explore_or_act(env, agent, state, joined(z), warmup)
    length, keep = env.episode_length // count, partial(rollout.stored_rows, env)
    envs, steps = rollout.step_envs(env, jax.tree.map(joined, envs), choose, key_act, length, keep, noise_steps)
    envs = jax.tree.map(parted, envs)

    def record(store: Array, new: Array) -> Array:
        past = put(store, jax.vmap(parted)(new))
        return tiles.kept(past) if past.ndim == 5 else past  # [G, T/G, G, M, k], not pictures

    past = jax.tree.map(record, cohorts.past, steps)

    def steps_of_ending(leaf: Array) -> Array:
        """[G, T/G, G, M, ...] -> [T, M, ...], oldest first. In one gather a TPU would copy the steps of all cohorts."""
        own = jax.lax.dynamic_index_in_dim(leaf, ending, axis=2, keepdims=False)
        return own[(iteration + 1 + jnp.arange(count)) % count].reshape(-1, *leaf.shape[3:])

    last = jax.tree.map(lambda leaf: leaf[ending], envs)
    steps = jax.tree.map(steps_of_ending, past)
    episodes = rollout.join(env, steps, last, z[ending])
    return Cohorts(envs, z, past), episodes, ~last.info["failed"], iteration >= count - 1
