"""The trainer. Read this file first: it is a transition's whole journey, as one program on the device.

    env.step -> episode [M, T+1, obs] -> ring [slots, M, T+1, obs] -> batch (s, a, s', s_c, s_0, s_T, z_roll)
             -> agent.update

One iteration collects M episodes, writes them into the ring, and runs a fixed number of gradient steps, each on a fresh
batch. M is the number of envs N or, with cohorts, of those whose episodes end in this iteration. `Program.run` does any
number of iterations in one dispatch; its state is donated, so the ring is updated in place. Nothing here talks to the
host: files, signals and progress are in `runs/`.

The program runs on all devices of a mesh, even of one: each has its share of the envs, of the ring and of every batch,
and the whole agent. What crosses devices goes through `devices.py`: gradients (in `agents.base.grad`), the batch
where a loss compares its samples with each other, and metrics.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from envs.base import SkillEnv
from genda_mjx import cohorts, devices, replay, rollout, sharding
from genda_mjx.agents import Agent, AgentState, Batch
from genda_mjx.agents.base import Metrics
from genda_mjx.config import Config
from genda_mjx.replay import EpisodeRing, Places
from genda_mjx.rollout import Episode
from genda_mjx.schedule import Schedule
from genda_mjx.state import TrainState


class Parts(NamedTuple):
    """What a program is made of."""

    config: Config
    schedule: Schedule
    env: SkillEnv
    agent: Agent


def iterate(parts: Parts, state: TrainState) -> tuple[TrainState, Metrics]:
    """One iteration: rollout -> insert -> scan(sample, relabel, update)."""
    schedule, agent = parts.schedule, parts.agent
    key, key_collect, key_learn = jax.random.split(state.key, 3)
    warmup = state.iteration < schedule.warmup_iterations

    with jax.named_scope("rollout"):  # scopes name the parts in what a compiler says (hlo.py)
        under_way, episodes, valid, whole = collect(parts, state, key_collect, warmup)
    with jax.named_scope("replay"):
        ring = replay.insert(state.ring, episodes, valid, whole)
        places = replay.places(ring)

    def update(agent_state: AgentState, key: Array) -> tuple[AgentState, Metrics]:
        key_batch, key_update = jax.random.split(key)
        with jax.named_scope("replay"):
            batch = sample_batch(parts, ring, places, key_batch)
        with jax.named_scope("update"):
            return agent.update(agent_state, batch, key_update)

    agent_state, metrics = learn(update, state.agent, key_learn, schedule.updates_per_iteration, warmup)
    metrics = total_metrics(metrics, ring, places) | {"updates": agent_state.updates}
    return TrainState(agent_state, ring, key, state.iteration + 1, under_way), metrics


def collect(
    parts: Parts, state: TrainState, key: Array, warmup: Array
) -> tuple[cohorts.Cohorts | None, Episode, Array, Array | bool]:
    """The episodes under way, this device's share of the M that end, which of them are valid, and if they are whole."""
    config, schedule, env, agent = parts
    if config.cohorts > 1:
        under_way, iteration = state.cohorts, state.iteration
        return cohorts.advance(env, agent, state.agent, under_way, key, iteration, warmup, config.noise_steps)
    share = schedule.episodes_at_once // devices.number()
    return None, *rollout.collect(env, agent, state.agent, key, share, warmup, config.noise_steps), True


def sample_batch(parts: Parts, ring: EpisodeRing, places: Places, key: Array) -> Batch:
    """This device's share of B transitions of valid episodes: six rows per sample are read, never whole episodes."""
    size = parts.config.batch_size // devices.number()
    key_episode, key_time = jax.random.split(key)
    episodes: Episode = ring.episodes
    length = episodes.actions.shape[2]
    place = replay.sample_episodes(places, key_episode, size)
    t, t_c = replay.sample_times(key_time, size, length, parts.config.max_horizon)
    times = jnp.stack([t, t + 1, t_c, jnp.zeros_like(t), jnp.full_like(t, length)])
    s, s_next, s_c, s_0, s_T = replay.observations(episodes.observations, place, times, parts.env.history)
    (a,) = replay.rows(episodes.actions, place, t[None])
    return Batch(s=s, a=a, s_next=s_next, s_c=s_c, s_0=s_0, s_T=s_T, z_roll=replay.entries(episodes.skill, place))


def learn(
    update: Callable[[AgentState, Array], tuple[AgentState, Metrics]],
    state: AgentState,
    key: Array,
    count: int,
    warmup: Array,
) -> tuple[AgentState, Metrics]:
    """`count` gradient steps update(state, key), each on its own batch, and the means of their metrics.

    In the warm-up there are no gradient steps, and the metrics are NaN.
    """

    def steps(state: AgentState, key: Array) -> tuple[AgentState, Metrics]:
        state, metrics = jax.lax.scan(update, state, jax.random.split(key, count))
        return state, jax.tree.map(jnp.mean, metrics)

    def wait(state: AgentState, key: Array) -> tuple[AgentState, Metrics]:
        metrics = jax.eval_shape(steps, state, key)[1]
        return state, jax.tree.map(lambda m: jnp.full(m.shape, jnp.nan, m.dtype), metrics)

    return jax.lax.cond(warmup, wait, steps, state, key)


def total_metrics(metrics: Metrics, ring: EpisodeRing, places: Places) -> Metrics:
    """Metrics over all devices, with counts of the ring's episodes: one exchange, after those of the updates."""
    counts = {"valid": places.count, "empty": places.count == 0, "failed": ring.rejected.sum()}
    metrics, means = devices.average((metrics, jax.tree.map(jnp.float32, counts)))
    total = {name: jnp.round(mean * devices.number()).astype(jnp.int32) for name, mean in means.items()}
    return metrics | {
        "valid_episodes": jnp.where(total["empty"] > 0, 0, total["valid"]),  # 0: some device has none
        "failed_episodes": total["failed"],
    }


def begin(parts: Parts, key: Array) -> TrainState:
    """The state before the first iteration: fresh networks, an empty ring and, with cohorts, all envs reset."""
    config, schedule, env, agent = parts
    key_agent, key_run = jax.random.split(key)
    agent_state = agent.init(key_agent)
    episodes, _ = jax.eval_shape(lambda: rollout.collect(env, agent, agent_state, key, 1, False))
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), episodes)
    ring = replay.empty(one, schedule.capacity, schedule.episodes_at_once)
    under_way = None
    if config.cohorts > 1:
        under_way = cohorts.begin(env, agent, key_run, config.cohorts, schedule.episodes_at_once)
    return TrainState(agent_state, ring, key_run, jnp.zeros((), jnp.int32), under_way)


def product_precision(config: Config, platform: str) -> str:
    """Of the networks' products; physics asks for "highest" itself (envs/body.py).

    A CPU computes in full whatever it is asked for; asked for the same, its program stays the same to the letter.
    """
    return "highest" if platform == "cpu" else config.precision


class Program(NamedTuple):
    """The program's functions, jitted."""

    init: Callable[[Array], TrainState]  # key, or [S] keys -> state
    run: Callable[
        [TrainState, Array], tuple[TrainState, Metrics]
    ]  # state (donated), n -> metrics [n_max] or [n_max, S]
    abstract: TrainState  # shapes of the state and their shardings
    formats: TrainState  # shardings and, where it is not the default, the order in memory


def make(parts: Parts, mesh: Mesh) -> Program:
    """The program on the devices of a mesh."""
    config, platform = parts.config, mesh.devices.flat[0].platform

    def init(key: Array) -> TrainState:
        return begin(parts, key)

    def one(state: TrainState) -> tuple[TrainState, Metrics]:
        return iterate(parts, state)

    if config.num_seeds > 1:
        axes = sharding.SEED_AXES
        init, one = jax.vmap(init, out_axes=axes), jax.vmap(one, in_axes=(axes,), out_axes=(axes, 0))

    one = jax.jit(one, inline=True)  # traced once for both uses

    def run(state: TrainState, n: Array) -> tuple[TrainState, Metrics]:
        """Runs n <= iterations_per_dispatch iterations; n is a run-time value, so there is one compilation."""

        def body(i: Array, carry: tuple[TrainState, Metrics]) -> tuple[TrainState, Metrics]:
            state, metrics = one(carry[0])
            return state, jax.tree.map(lambda row, m: row.at[i].set(m), carry[1], metrics)

        with jax.default_matmul_precision(product_precision(config, platform)):
            shapes = jax.eval_shape(one, state)[1]
            rows = jax.tree.map(lambda m: jnp.zeros((config.iterations_per_dispatch, *m.shape), m.dtype), shapes)
            return jax.lax.fori_loop(0, n, body, (state, rows))

    specs = sharding.split_axes(config)
    abstract = sharding.place(mesh, specs, jax.eval_shape(init, sharding.seed_keys(config)))
    formats, same = sharding.formats(abstract, platform), NamedSharding(mesh, P())
    # check_vma off: the physics has its own batching rule, which does not say what varies between devices.
    everywhere = jax.shard_map(run, mesh=mesh, in_specs=(specs, P()), out_specs=(specs, P()), check_vma=False)
    return Program(
        init=jax.jit(init, out_shardings=formats),
        run=jax.jit(everywhere, donate_argnums=0, in_shardings=(formats, same), out_shardings=(formats, same)),
        abstract=abstract,
        formats=formats,
    )
