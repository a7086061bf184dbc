"""Scratch of a rollout and its ring alone on a v5e, for 2048 copies of a toy body as wide as the dog.

    .venv-compilers/bin/python -m benchmarks.rollouts

Physics leaves the copies last and the ring wants rows; what that costs in memory shows without the dog's physics.
"""

import json
import types

import jax
import jax.numpy as jnp
from brax.envs.base import State
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from envs.base import SkillEnv
from envs.batching import copies_last
from genda_mjx import cohorts, platform, replay, rollout, sharding
from genda_mjx.agents.skills import SkillSpace
from genda_mjx.config import Config
from genda_mjx.state import TrainState

COPIES, LENGTH, NUMBERS, ACTIONS, SLOTS = 2048, 200, 226, 38, 2


class Wide(SkillEnv):
    """A body with the dog's numbers of observations and actions and next to no physics, copies last."""

    name, dt, action_size, backend, episode_length = "wide", 0.05, ACTIONS, "toy", LENGTH
    observation_spec = jax.ShapeDtypeStruct((NUMBERS,), jnp.float32)

    def reset(self, rng: Array) -> State:
        return self.reset_at(rng, jnp.zeros(2))

    def reset_at(self, rng: Array, xy: Array) -> State:
        obs = jax.random.uniform(rng, (NUMBERS,)).at[:2].add(xy)
        return State(None, obs, jnp.zeros(()), jnp.zeros(()), {}, {"position": obs[:2], "failed": jnp.zeros((), bool)})

    def step(self, state: State, action: Array) -> State:
        obs = copies_last(lambda x, a: jnp.concatenate([jnp.tanh(x[:ACTIONS] + a), jnp.sin(x[ACTIONS:]) * x[1:2]]))(
            state.obs, action
        )
        return state.replace(obs=obs, info={**state.info, "position": obs[:2]})


def act(state: Array, obs: Array, z: Array, key: Array) -> Array:
    return jnp.tanh(obs[:, :ACTIONS] * z[:, :1] * state)


def measure(groups: int) -> dict[str, float]:
    """MB of arguments and temp of iterations that collect, insert and sample."""
    target = platform.parse("v5e")
    platform.prepare(target)
    mesh, env = platform.make_mesh(target), Wide()
    agent = types.SimpleNamespace(skills=SkillSpace("directions", 2), act=act)
    at_once = COPIES // groups

    def begin(key: Array) -> TrainState:
        episodes, _ = jax.eval_shape(lambda: rollout.collect(env, agent, jnp.zeros(()), key, 1, False))
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), episodes)
        under_way = cohorts.begin(env, agent, key, groups, at_once) if groups > 1 else None
        ring = replay.empty(one, SLOTS * COPIES, at_once)
        return TrainState(jnp.zeros(()), ring, key, jnp.zeros((), jnp.int32), under_way)

    def iterate(_, state: TrainState) -> TrainState:
        key, key_collect, key_sample = jax.random.split(state.key, 3)
        under_way, whole = None, True
        if groups > 1:
            under_way, episodes, valid, whole = cohorts.advance(
                env, agent, state.agent, state.cohorts, key_collect, state.iteration, False
            )
        else:
            episodes, valid = rollout.collect(env, agent, state.agent, key_collect, COPIES, False)
        ring = replay.insert(state.ring, episodes, valid, whole)
        places = replay.places(ring)

        def sample(total: Array, key: Array) -> tuple[Array, None]:
            place = replay.sample_episodes(places, key, 256)
            times = jnp.stack(replay.sample_times(key, 256, LENGTH, 20))
            seen = replay.observations(ring.episodes.observations, place, times, 1)
            (actions,) = replay.rows(ring.episodes.actions, place, times[:1])
            return total + 1e-6 * (sum(leaf.sum() for leaf in seen) + actions.sum()), None

        total, _ = jax.lax.scan(sample, state.agent, jax.random.split(key_sample, 50))
        return TrainState(total, ring, key, state.iteration + 1, under_way)

    specs = sharding.split_axes(Config(cohorts=groups))
    abstract = sharding.place(mesh, specs, jax.eval_shape(begin, jax.random.key(0)))
    formats, same = sharding.formats(abstract, "tpu"), NamedSharding(mesh, P())
    run = jax.shard_map(
        lambda state, n: jax.lax.fori_loop(0, n, iterate, state),
        mesh=mesh,
        in_specs=(specs, P()),
        out_specs=specs,
        check_vma=False,
    )
    placed = jax.jit(run, donate_argnums=0, in_shardings=(formats, same), out_shardings=formats)
    compiled, scratch = platform.compile_counted(placed.lower(abstract, jax.ShapeDtypeStruct((), jnp.int32)), target)
    return {
        "cohorts": groups,
        "arguments": compiled.memory_analysis().argument_size_in_bytes / 1e6,
        "temp": scratch / 1e6,
    }


if __name__ == "__main__":
    print(json.dumps([measure(1), measure(8)]))
