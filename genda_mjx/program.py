"""The trainer. Read this file first: it is a transition's whole journey, as one program on the device.

    env.step -> episode [M, T+1, obs] -> ring [slots, M, T+1, obs] -> batch (s, a, s', s_c, s_0, s_T, z_roll)
             -> agent.update

One iteration collects M episodes, writes them into the ring, and runs a fixed number of gradient steps, each on a fresh
batch. M is the number of envs N or, with cohorts, of those whose episodes end in this iteration. `run` does any number
of iterations in one dispatch; its state is donated, so the ring is updated in place. Nothing here talks to the host:
files, signals and progress belong to the loop in `loop.py`.

The program runs on all devices of a mesh, be it one: each has its share of the envs, of the ring and of every batch,
and the whole agent. What crosses devices goes through `devices.py`: gradients (in `agents.base.grad`), the batch
where a loss compares its samples with each other, and metrics.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
from brax.envs.base import Env, State
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from genda_mjx import devices, replay
from genda_mjx.agents import Agent, AgentState, Batch
from genda_mjx.agents.base import Metrics
from genda_mjx.config import Config
from genda_mjx.devices import AXIS
from genda_mjx.replay import EpisodeRing, Places
from genda_mjx.schedule import Schedule

Choose = Callable[[Array, Array], Array]  # obs [N, obs], key -> actions [N, A]


@flax.struct.dataclass
class Episode:
    """One episode; with leading axes, N of them, or the [slots, M] in the ring."""

    observations: Array  # [T+1, obs], normalised; s' is the row after s
    actions: Array  # [T, A]
    positions: Array  # [T+1, 2] or [T+1, 3], m
    skill: Array  # [d]
    seed: Array  # [2] uint32, the key of its reset


class Steps(NamedTuple):
    """Steps of N copies, each as it begins."""

    observations: Array  # [steps, N, obs]
    actions: Array  # [steps, N, A]
    positions: Array  # [steps, N, 2 or 3], m


@flax.struct.dataclass
class Flight:
    """With cohorts, the episodes under way: G cohorts of M envs."""

    envs: State  # [G, M, ...]
    skill: Array  # [G, M, d]
    seed: Array  # [G, M, 2] uint32
    past: Steps  # [G, T/G, G, M, ...] what all cohorts did in the last G iterations, in turn


@flax.struct.dataclass
class TrainState:
    """All that a run is. Without cohorts there is no env state: every iteration starts with a reset of all envs."""

    agent: AgentState
    ring: EpisodeRing
    key: Array
    iteration: Array
    flight: Flight | None = None


# With --num_seeds S whole runs are vmapped: every leaf has a leading [S] but these, which are the same in all of them
# and, left alone, keep the warm-up a branch and the insertion a slice.
SEED_AXES = TrainState(
    agent=0, key=0, iteration=None, flight=0,
    ring=EpisodeRing(episodes=0, valid=0, slot=None, inserted=None, rejected=0),
)  # fmt: skip


def split_axes(config: Config) -> TrainState:
    """Which axis of a state is split over the devices: that of the M episodes. The rest is the same on all."""
    lead = () if config.num_seeds == 1 else (None,)
    columns, past = P(*lead, None, AXIS), P(*lead, None, None, None, AXIS)
    counters = P(*lead, AXIS)
    return TrainState(
        agent=P(), key=P(), iteration=P(),
        ring=EpisodeRing(episodes=columns, valid=columns, slot=P(), inserted=P(), rejected=counters),
        flight=None if config.cohorts == 1 else Flight(envs=columns, skill=columns, seed=columns, past=past),
    )  # fmt: skip


class Program(NamedTuple):
    init: Callable[[Array], TrainState]  # key, or [S] keys -> state
    run: Callable[
        [TrainState, Array], tuple[TrainState, Metrics]
    ]  # state (donated), n iterations -> [n_max] or [n_max, S]
    abstract: TrainState  # shapes of the state and their shardings


def make(config: Config, schedule: Schedule, env: Env, agent: Agent, mesh: Mesh | None = None) -> Program:
    """The program on the devices of a mesh, by default the first device alone."""
    mesh = mesh or devices.make_mesh(1)
    at_once = schedule.episodes_at_once

    def init(key: Array) -> TrainState:
        key_agent, key_run = jax.random.split(key)
        agent_state = agent.init(key_agent)
        episodes, _ = jax.eval_shape(lambda: collect(env, agent, agent_state, key, 1, False))
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), episodes)
        ring = replay.empty(one, schedule.capacity, at_once)
        flight = None if config.cohorts == 1 else take_off(env, agent, key_run, config.cohorts, at_once)
        return TrainState(agent_state, ring, key_run, jnp.zeros((), jnp.int32), flight)

    def iterate(state: TrainState) -> tuple[TrainState, Metrics]:
        """One iteration: rollout -> insert -> scan(sample, relabel, update)."""
        key, key_collect, key_learn = jax.random.split(state.key, 3)
        warmup = state.iteration < schedule.warmup_iterations
        flight, whole = None, True
        if config.cohorts == 1:
            episodes, valid = collect(env, agent, state.agent, key_collect, at_once // devices.number(), warmup)
        else:
            flight, episodes, valid, whole = fly(
                env, agent, state.agent, state.flight, key_collect, state.iteration, warmup
            )
        ring = replay.insert(state.ring, episodes, valid, whole)
        places = replay.places(ring)

        def update(agent_state: AgentState, key: Array) -> tuple[AgentState, Metrics]:
            key_batch, key_update = jax.random.split(key)
            batch = sample_batch(ring, places, key_batch, config.batch_size // devices.number(), config.max_horizon)
            return agent.update(agent_state, batch, key_update)

        agent_state, metrics = learn(update, state.agent, key_learn, schedule.updates_per_iteration, warmup)
        # Counts cross devices with the metrics: one exchange, after those of the updates.
        counts = {"valid": places.count, "empty": places.count == 0, "failed": ring.rejected.sum()}
        metrics, counts = devices.average((metrics, jax.tree.map(jnp.float32, counts)))
        total = lambda name: jnp.round(counts[name] * devices.number()).astype(jnp.int32)
        metrics |= {
            "valid_episodes": jnp.where(total("empty") > 0, 0, total("valid")),  # 0: some device has none
            "failed_episodes": total("failed"),
            "updates": agent_state.updates,
        }
        return TrainState(agent_state, ring, key, state.iteration + 1, flight), metrics

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

    specs = split_axes(config)
    abstract = devices.place(mesh, specs, jax.eval_shape(init, seed_keys(config)))
    shardings, same = jax.tree.map(lambda leaf: leaf.sharding, abstract), NamedSharding(mesh, P())
    # check_vma off: the physics has its own batching rule, which does not say what varies between devices.
    everywhere = jax.shard_map(run, mesh=mesh, in_specs=(specs, P()), out_specs=(specs, P()), check_vma=False)
    return Program(
        init=jax.jit(init, out_shardings=shardings),
        run=jax.jit(everywhere, donate_argnums=0, in_shardings=(shardings, same), out_shardings=(shardings, same)),
        abstract=abstract,
    )


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
    start, z, seeds = start_episodes(env, agent, key_reset, key_skill, n)
    return rollout(env, start, z, seeds, explore_or_act(env, agent, state, z, warmup), key_act)


def start_episodes(env: Env, agent: Agent, key_reset: Array, key_skill: Array, n: int) -> tuple[State, Array, Array]:
    """n envs at their start, with their skills [n, d] and the words of their reset keys [n, 2]."""
    z = devices.own_rows(lambda rows: agent.sample_skill(key_skill, rows), n)
    seeds = devices.own_rows(lambda rows: jax.random.split(key_reset, rows), n)
    return jax.vmap(env.reset)(seeds), z, jax.random.key_data(seeds)


def explore_or_act(env: Env, agent: Agent, state: AgentState, z: Array, warmup: Array) -> Choose:
    """The policy with skills z [N, d]; uniform actions in the warm-up."""

    def choose(obs: Array, key: Array) -> Array:
        key_policy, key_uniform = jax.random.split(key)
        draw = lambda rows: jax.random.uniform(key_uniform, (rows, env.action_size), minval=-1.0, maxval=1.0)
        return jnp.where(warmup, devices.own_rows(draw, len(z)), agent.act(state, obs, z, key_policy))

    return choose


def rollout(env: Env, start: State, z: Array, seeds: Array, choose: Choose, key: Array) -> tuple[Episode, Array]:
    """Whole episodes of N vmapped copies from `start`, and which of them are valid [N]."""
    last, steps = step_envs(env, start, choose, key, env.episode_length)
    return join(steps, last, z, seeds), ~last.info["failed"]


def step_envs(env: Env, start: State, choose: Choose, key: Array, count: int) -> tuple[State, Steps]:
    """`count` steps of N vmapped copies."""

    def step(now: State, key: Array) -> tuple[State, Steps]:
        action = choose(now.obs, key)
        return jax.vmap(env.step)(now, action), Steps(now.obs, action, now.info["position"])

    return jax.lax.scan(step, start, jax.random.split(key, count))


def join(steps: Steps, last: State, z: Array, seeds: Array) -> Episode:
    """The episodes [N, ...] made of T steps and the state after them."""
    whole = lambda rows, final: jnp.concatenate([rows, final[None]]).swapaxes(0, 1)  # [T, N, .] -> [N, T+1, .]
    return Episode(
        observations=whole(steps.observations, last.obs),
        actions=steps.actions.swapaxes(0, 1),
        positions=whole(steps.positions, last.info["position"]),
        skill=z,
        seed=seeds,
    )


def take_off(env: Env, agent: Agent, key: Array, cohorts: int, size: int) -> Flight:
    """All envs reset and nothing recorded, before the first iteration; size: M."""
    start = lambda key: start_episodes(env, agent, *jax.random.split(key), size)
    envs, z, seeds = jax.vmap(start)(jax.random.split(key, cohorts))
    actions = jnp.zeros((cohorts, size, env.action_size))
    past = lambda leaf: jnp.zeros((cohorts, env.episode_length // cohorts, *leaf.shape), leaf.dtype)
    return Flight(envs, z, seeds, jax.tree.map(past, Steps(envs.obs, actions, envs.info["position"])))


def fly(
    env: Env, agent: Agent, state: AgentState, flight: Flight, key: Array, iteration: Array, warmup: Array
) -> tuple[Flight, Episode, Array, Array]:
    """T/G steps of all envs: one cohort starts its episodes, one ends them.

        iteration    0   1   2   3   4   5        G = 4, | starts an episode
        cohort 0     |---------------|-------
        cohort 1     ....|---------------|---
        cohort 2     ........|---------------
        cohort 3     ............|-----------

    Returns the M episodes that end, which of them are valid [M], and whether they are whole: what a cohort does before
    its first start (dots) is not.
    """
    cohorts, size = flight.skill.shape[:2]
    starting, ending = iteration % cohorts, (iteration + 1) % cohorts
    put = lambda store, new: jax.lax.dynamic_update_index_in_dim(store, new, starting, axis=0)
    key_reset, key_skill, key_act = jax.random.split(key, 3)
    fresh = start_episodes(env, agent, key_reset, key_skill, size)
    envs, z, seeds = jax.tree.map(put, (flight.envs, flight.skill, flight.seed), fresh)

    join_cohorts = lambda leaf: leaf.reshape(cohorts * size, *leaf.shape[2:])
    part_cohorts = lambda leaf: leaf.reshape(cohorts, size, *leaf.shape[1:])
    choose = explore_or_act(env, agent, state, join_cohorts(z), warmup)
    envs, steps = step_envs(env, jax.tree.map(join_cohorts, envs), choose, key_act, env.episode_length // cohorts)
    envs = jax.tree.map(part_cohorts, envs)
    past = jax.tree.map(lambda store, new: put(store, jax.vmap(part_cohorts)(new)), flight.past, steps)

    oldest_first = (iteration + 1 + jnp.arange(cohorts)) % cohorts
    last = jax.tree.map(lambda leaf: leaf[ending], envs)
    steps = jax.tree.map(lambda leaf: leaf[oldest_first, :, ending].reshape(-1, *leaf.shape[3:]), past)  # [T, M, ...]
    episodes = join(steps, last, z[ending], seeds[ending])
    return Flight(envs, z, seeds, past), episodes, ~last.info["failed"], iteration >= cohorts - 1


def sample_batch(ring: EpisodeRing, places: Places, key: Array, batch: int, max_horizon: int) -> Batch:
    """B transitions from valid episodes: six rows a sample are read, never whole episodes."""
    key_episode, key_time = jax.random.split(key)
    episodes: Episode = ring.episodes
    length = episodes.actions.shape[2]
    place = replay.sample_episodes(places, key_episode, batch)
    t, t_c = replay.sample_times(key_time, batch, length, max_horizon)
    times = jnp.stack([t, t + 1, t_c, jnp.zeros_like(t), jnp.full_like(t, length)])
    s, s_next, s_c, s_0, s_T = replay.rows(episodes.observations, place, times)
    (a,) = replay.rows(episodes.actions, place, t[None])
    return Batch(s=s, a=a, s_next=s_next, s_c=s_c, s_0=s_0, s_T=s_T, z_roll=replay.flat(episodes.skill)[place])
