"""Episodes of N vmapped copies of an environment, collected with one skill each."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from brax.envs.base import State
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint

from envs.base import SkillEnv
from genda_mjx import devices, tiles
from genda_mjx.agents import Agent, AgentState

Choose = Callable[[Any, Array], Array]  # observations of N copies, key -> actions [N, A]
Keep = Callable[[State], Any]  # a state -> what is kept of it


@flax.struct.dataclass
class Episode:
    """One episode; with leading axes, M of them, or the [slots, M] in the ring."""

    observations: Any  # [T+1, ...] as `SkillEnv.stored` has them, single frames; s' is the row after s
    actions: Array  # [T, A]
    skill: Array  # [d]


class Steps(NamedTuple):
    """Steps of N copies."""

    kept: Any  # [steps, N, ...] of the states in which the steps begin
    actions: Array  # [steps, N, A]


def collect(
    env: SkillEnv, agent: Agent, state: AgentState, key: Array, n: int, warmup: Array, noise_steps: int = 1
) -> tuple[Episode, Array]:
    """n whole episodes with one random skill each, and which of them are valid [n]; uniform actions in the warm-up.

    noise_steps: for so many steps what is random in an action stays the same.
    """
    key_reset, key_skill, key_act = jax.random.split(key, 3)
    start, z = start_episodes(env, agent, key_reset, key_skill, n)
    choose = explore_or_act(env, agent, state, z, warmup)
    keep = partial(stored_rows, env)
    last, steps = step_envs(env, start, choose, key_act, env.episode_length, keep, noise_steps)
    return join(env, steps, last, z), ~last.info["failed"]


def stored_rows(env: SkillEnv, state: State) -> Any:
    """What is stored of one copy's state, as rows."""
    return jax.tree.map(in_rows, env.stored(state))


def in_rows(leaf: Array) -> Array:
    """[k] of one copy, such that on a TPU those of all copies are rows, as the ring wants them (`sharding.formats`).

    Physics leaves the copies last. Left alone, a TPU stacks a whole rollout in that order and then turns all of it:
    2048 copies of 226 numbers took 1.18 GB instead of 0.42. Narrow rows would be filled up; the ring has them across.
    """
    if leaf.ndim != 1 or tiles.filled(len(leaf), tiles.TILE[1]) >= tiles.MOST_WASTE * len(leaf):
        return leaf

    def turned(leaf: Array) -> Array:
        return with_layout_constraint(leaf, Layout((0,)))

    return jax.lax.platform_dependent(leaf, tpu=turned, default=lambda leaf: leaf)


def start_episodes(env: SkillEnv, agent: Agent, key_reset: Array, key_skill: Array, n: int) -> tuple[State, Array]:
    """Resets n copies and draws their skills [n, d]."""
    z = devices.own_rows(lambda rows: agent.skills.sample(key_skill, rows), n)
    keys = devices.own_rows(lambda rows: jax.random.split(key_reset, rows), n)
    return jax.vmap(env.reset)(keys), z


def explore_or_act(env: SkillEnv, agent: Agent, state: AgentState, z: Array, warmup: Array) -> Choose:
    """The policy with skills z [N, d]; uniform actions in the warm-up."""

    def choose(obs: Any, key: Array) -> Array:
        key_policy, key_uniform = jax.random.split(key)

        def uniform(rows: int) -> Array:
            return jax.random.uniform(key_uniform, (rows, env.action_size), minval=-1.0, maxval=1.0)

        return jnp.where(warmup, devices.own_rows(uniform, len(z)), agent.act(state, obs, z, key_policy))

    return choose


def step_envs(
    env: SkillEnv, start: State, choose: Choose, key: Array, count: int, keep: Keep, noise_steps: int = 1
) -> tuple[State, Steps]:
    """Takes `count` steps of N copies and keeps what `keep` takes of each state before its step.

    noise_steps: for so many steps `choose` gets the same key.
    """

    def step(now: State, key: Array) -> tuple[State, Steps]:
        action = choose(now.obs, key)
        return jax.vmap(env.step)(now, action), Steps(jax.vmap(keep)(now), action)

    keys = jax.random.split(key, -(-count // noise_steps))
    return jax.lax.scan(step, start, keys if noise_steps == 1 else jnp.repeat(keys, noise_steps)[:count])


def join(env: SkillEnv, steps: Steps, last: State, z: Array) -> Episode:
    """The episodes [N, ...] made of T steps and the state after them."""
    observations = whole_episodes(steps.kept, jax.vmap(env.stored)(last))
    return Episode(observations, steps.actions.swapaxes(0, 1), z)


def whole_episodes(rows: Any, final: Any) -> Any:
    """Rows [T, N, ...] and the one after them [N, ...] -> [N, T+1, ...], for every leaf."""
    return jax.tree.map(lambda row, end: jnp.concatenate([row, end[None]]).swapaxes(0, 1), rows, final)
