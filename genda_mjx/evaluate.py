"""What the skills do: deterministic episodes with random skills on the device, and the numbers that sum them up."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from brax.envs.base import State
from jax import Array

from envs import measures
from envs.base import SkillEnv
from genda_mjx import replay, rollout
from genda_mjx.agents import Agent, AgentState


class Episodes(NamedTuple):
    """E evaluation episodes."""

    traces: dict[str, Array]  # [E, T+1, ...] what the environment records: position, qpos, ...
    latents: Array | None  # [E, T+1, d] phi of every state; None for agents without phi
    skills: Array  # [E, d]
    valid: Array  # [E] bool, False where the physics went non-finite


Evaluate = Callable[[AgentState, Array, Array, Array], Episodes]


def compile(env: SkillEnv, agent: Agent, episodes: int, abstract: AgentState, num_seeds: int = 1) -> Evaluate:
    """Compiles evaluate(agent state, key, offset [2], random), which serves every offset and the random policy.

    With several seeds the state, the key and the episodes have a leading [S].
    """
    offset, random = jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct((), bool)
    evaluate, key = make(env, agent, episodes), jax.eval_shape(jax.random.key, 0)
    if num_seeds > 1:
        evaluate = jax.vmap(evaluate, in_axes=(0, 0, None, None))
        key = jax.ShapeDtypeStruct((num_seeds,), key.dtype)
    return jax.jit(evaluate).lower(abstract, key, offset, random).compile()


def make(env: SkillEnv, agent: Agent, episodes: int) -> Evaluate:
    def evaluate(state: AgentState, key: Array, offset: Array, random: Array) -> Episodes:
        _, key_skill, key_act = jax.random.split(key, 3)
        z = agent.skills.show(key_skill, episodes)
        start = start_states(env, key, episodes, offset)

        def choose(obs: Any, key: Array) -> Array:
            uniform = jax.random.uniform(key, (episodes, env.action_size), minval=-1.0, maxval=1.0)
            return jnp.where(random, uniform, agent.act(state, obs, z, None))

        def keep(state: Any) -> tuple[Any, dict[str, Array]]:
            return env.stored(state), env.trace(state)

        with jax.default_matmul_precision("highest"):
            last, steps = rollout.step_envs(env, start, choose, key_act, env.episode_length, keep)
            frames, traces = rollout.whole_episodes(steps.kept, jax.vmap(keep)(last))
            latents = None if agent.represent is None else latents_of(agent, state, frames, env.history)
        return Episodes(traces, latents, z, ~last.info["failed"])

    return evaluate


def start_states(env: SkillEnv, key: Array, episodes: int, offset: Array) -> State:
    """The states [E] that the episodes of an evaluation with this key start from, moved by offset [2]."""
    key_reset, _, _ = jax.random.split(key, 3)
    return jax.vmap(env.reset_at, in_axes=(0, None))(jax.random.split(key_reset, episodes), offset)


def latents_of(agent: Agent, state: AgentState, frames: Any, history: int) -> Array:
    """phi [E, T+1, d] of what was seen in E episodes, from their stored frames [E, T+1, ...].

    Where frames are stacked, one episode after another: pictures of all at once would fill the memory.
    """
    if history > 1:

        def one(episode: Any) -> Array:
            stacked = replay.stack(jax.tree.map(lambda leaf: leaf[None], episode), history)
            return agent.represent(state, jax.tree.map(lambda leaf: leaf[0], stacked))

        return jax.lax.map(one, frames)
    observations = frames
    lead = jax.tree.leaves(observations)[0].shape[:2]
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observations)
    return agent.represent(state, flat).reshape(*lead, -1)


def evaluation_key(seed: int, step: int) -> Array:
    """A key apart from those of training, so that evaluating more or less often changes nothing that is learned."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0x65766C), step)


def summary(env: SkillEnv, agent: Agent, episodes: Episodes) -> dict[str, float]:
    """Every number that an evaluation has, by name: csv, progress, plots, experiments and JSON take theirs from here.

    The environment's headline comes first. `alignment` is the mean cosine between a skill and the way that phi went in
    its episode: coverage may rise while skills no longer go where they are told. `late_alignment` is that of the second
    half alone: a skill may throw itself where it is told, fall, and lie there.
    """
    found = env.measure(episodes.traces)
    if episodes.latents is not None:
        latents, wanted = np.asarray(episodes.latents), agent.skills.target(np.asarray(episodes.skills))
        end, half = latents[:, -1], latents[:, latents.shape[1] // 2]
        found["alignment"] = measures.mean_cosine(wanted, end - latents[:, 0])
        found["late_alignment"] = measures.mean_cosine(wanted, end - half)
    return found | {"failed_evaluations": int((~np.asarray(episodes.valid)).sum())}
