"""The trainer. Read this file first: it is a transition's whole journey, as one program on the device.

    env.step -> episode [N, T+1, obs] -> ring [C, T+1, obs] -> batch (s, a, s', s_c, s_0, s_T, z_roll) -> agent.update

One iteration collects one episode in each of N envs, writes them into the ring, and runs a fixed number of gradient
steps, each on a fresh batch. `run` does any number of iterations in one dispatch; its state is donated, so the ring is
updated in place. Nothing here talks to the host: files, signals and progress belong to the loop in `train.py`.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from brax.envs.base import Env, State
from jax import Array

from genda_mjx import replay
from genda_mjx.agents import Agent, AgentState, Batch
from genda_mjx.agents.base import Metrics
from genda_mjx.config import Config
from genda_mjx.replay import EpisodeRing
from genda_mjx.schedule import Schedule


@flax.struct.dataclass
class Episode:
    """One episode; with a leading axis, N of them, or the C in the ring."""

    observations: Array  # [T+1, obs], normalised; s' is the row after s
    actions: Array  # [T, A]
    positions: Array  # [T+1, 2] or [T+1, 3], m
    skill: Array  # [d]
    seed: Array  # [2] uint32, the key of its reset


@flax.struct.dataclass
class TrainState:
    """All that a run is. No env state: every iteration starts with a reset of all envs."""

    agent: AgentState
    ring: EpisodeRing
    key: Array
    iteration: Array


# With --num_seeds S whole runs are vmapped: every leaf has a leading [S] but these, which are the same in all of them
# and, left alone, keep the warm-up a branch and the insertion a slice.
SEED_AXES = TrainState(
    agent=0, key=0, iteration=None,
    ring=EpisodeRing(episodes=0, valid=0, sampleable=0, count=0, rejected=0, cursor=None, inserted=None),
)  # fmt: skip


class Program(NamedTuple):
    init: Callable[[Array], TrainState]  # key, or [S] keys -> state
    run: Callable[
        [TrainState, Array], tuple[TrainState, Metrics]
    ]  # state (donated), n iterations -> [n_max] or [n_max, S]


def make(config: Config, schedule: Schedule, env: Env, agent: Agent) -> Program:
    def init(key: Array) -> TrainState:
        key_agent, key_run = jax.random.split(key)
        agent_state = agent.init(key_agent)
        episodes, _ = jax.eval_shape(lambda: collect(env, agent, agent_state, key, 1, False))
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), episodes)
        return TrainState(agent_state, replay.empty(one, schedule.capacity), key_run, jnp.zeros((), jnp.int32))

    def iterate(state: TrainState) -> tuple[TrainState, Metrics]:
        """One iteration: rollout -> insert -> scan(sample, relabel, update)."""
        key, key_collect, key_learn = jax.random.split(state.key, 3)
        warmup = state.iteration < schedule.warmup_iterations
        episodes, valid = collect(env, agent, state.agent, key_collect, config.num_envs, warmup)
        ring = replay.insert(state.ring, episodes, valid)

        def update(agent_state: AgentState, key: Array) -> tuple[AgentState, Metrics]:
            key_batch, key_update = jax.random.split(key)
            batch = sample_batch(ring, key_batch, config.batch_size, config.max_horizon)
            return agent.update(agent_state, batch, key_update)

        agent_state, metrics = learn(update, state.agent, key_learn, schedule.updates_per_iteration, warmup)
        metrics |= {"valid_episodes": ring.count, "failed_episodes": ring.rejected, "updates": agent_state.updates}
        return TrainState(agent_state, ring, key, state.iteration + 1), metrics

    if config.num_seeds > 1:
        init = jax.vmap(init, out_axes=SEED_AXES)
        iterate = jax.vmap(iterate, in_axes=(SEED_AXES,), out_axes=(SEED_AXES, 0))

    def run(state: TrainState, n: Array) -> tuple[TrainState, Metrics]:
        """n <= iterations_per_dispatch iterations; the count is a run-time value, so there is one compilation."""
        rows = jax.tree.map(
            lambda m: jnp.zeros((config.iterations_per_dispatch, *m.shape), m.dtype), jax.eval_shape(iterate, state)[1]
        )

        def body(i: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, metrics = iterate(carry[0])
            return state, jax.tree.map(lambda row, m: row.at[i].set(m), carry[1], metrics)

        # Products in full float32 everywhere; bf16, if asked for, is the networks' own dtype.
        with jax.default_matmul_precision("highest"):
            return jax.lax.fori_loop(0, n, body, (state, rows))

    return Program(jax.jit(init), jax.jit(run, donate_argnums=0))


def learn(
    update: Callable[[AgentState, Array], tuple[AgentState, Metrics]], state: AgentState, key: Array, count: int,
    warmup: Array,
) -> tuple[AgentState, Metrics]:  # fmt: skip
    """`count` gradient steps update(state, key), each on its own batch, and the means of their metrics.

    None of them in the warm-up, where metrics are NaN.
    """

    def steps(state: AgentState, key: Array) -> tuple[AgentState, Metrics]:
        state, metrics = jax.lax.scan(update, state, jax.random.split(key, count))
        return state, jax.tree.map(jnp.mean, metrics)

    def wait(state: AgentState, key: Array) -> tuple[AgentState, Metrics]:
        metrics = jax.eval_shape(steps, state, key)[1]
        return state, jax.tree.map(lambda m: jnp.full(m.shape, jnp.nan, m.dtype), metrics)

    return jax.lax.cond(warmup, wait, steps, state, key)


def seed_keys(config: Config) -> Array:
    """The key of --seed; with --num_seeds S the [S] keys of seed, seed + 1, ..., as separate runs would have."""
    if config.num_seeds == 1:
        return jax.random.key(config.seed)
    return jax.vmap(jax.random.key)(config.seed + jnp.arange(config.num_seeds))


def collect(env: Env, agent: Agent, state: AgentState, key: Array, n: int, warmup: Array) -> tuple[Episode, Array]:
    """n whole episodes with one random skill each, and which of them are valid [n]; uniform actions in the warm-up."""
    key_reset, key_skill, key_act = jax.random.split(key, 3)
    z = agent.sample_skill(key_skill, n)
    seeds = jax.random.split(key_reset, n)

    def choose(obs: Array, key: Array) -> Array:
        key_policy, key_uniform = jax.random.split(key)
        uniform = jax.random.uniform(key_uniform, (n, env.action_size), minval=-1.0, maxval=1.0)
        return jnp.where(warmup, uniform, agent.act(state, obs, z, key_policy))

    return rollout(env, jax.vmap(env.reset)(seeds), z, jax.random.key_data(seeds), choose, key_act)


def rollout(
    env: Env, start: State, z: Array, seeds: Array, choose: Callable[[Array, Array], Array], key: Array
) -> tuple[Episode, Array]:
    """Episodes of N vmapped copies from `start`, with actions choose(obs [N, obs], key) -> [N, A]."""

    def step(now: State, key: Array) -> tuple[State, tuple[Array, Array, Array]]:
        action = choose(now.obs, key)
        return jax.vmap(env.step)(now, action), (now.obs, action, now.info["position"])

    last, (obs, actions, positions) = jax.lax.scan(step, start, jax.random.split(key, env.episode_length))
    whole = lambda rows, final: jnp.concatenate([rows, final[None]]).swapaxes(0, 1)  # [T, N, .] -> [N, T+1, .]
    episode = Episode(
        observations=whole(obs, last.obs),
        actions=actions.swapaxes(0, 1),
        positions=whole(positions, last.info["position"]),
        skill=z,
        seed=seeds,
    )
    return episode, ~last.info["failed"]


def sample_batch(ring: EpisodeRing, key: Array, batch: int, max_horizon: int) -> Batch:
    """B transitions from valid episodes: six rows a sample are read, never whole episodes."""
    key_episode, key_time = jax.random.split(key)
    episodes: Episode = ring.episodes
    length = episodes.actions.shape[1]
    place = replay.sample_episodes(ring, key_episode, batch)
    t, t_c = replay.sample_times(key_time, batch, length, max_horizon)
    times = jnp.stack([t, t + 1, t_c, jnp.zeros_like(t), jnp.full_like(t, length)])
    s, s_next, s_c, s_0, s_T = replay.rows(episodes.observations, place, times)
    (a,) = replay.rows(episodes.actions, place, t[None])
    return Batch(s=s, a=a, s_next=s_next, s_c=s_c, s_0=s_0, s_T=s_T, z_roll=episodes.skill[place])
