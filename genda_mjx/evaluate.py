"""What the skills do: deterministic episodes with random skills, and how much space they cover."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from envs.base import SkillEnv
from genda_mjx import program
from genda_mjx.agents import Agent, AgentState


class Episodes(NamedTuple):
    """E evaluation episodes."""

    positions: Array  # [E, T+1, 2] or [E, T+1, 3], m
    latents: Array | None  # [E, T+1, d] phi of every state; None for agents without phi
    skills: Array  # [E, d]
    valid: Array  # [E] bool, False where the physics went non-finite


Evaluate = Callable[[AgentState, Array, Array, Array], Episodes]


def compile(env: SkillEnv, agent: Agent, episodes: int, abstract: AgentState, num_seeds: int = 1) -> Evaluate:
    """evaluate(agent state, key, offset [2], random): one compilation serves every offset and the random policy.

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
        key_reset, key_skill, key_act = jax.random.split(key, 3)
        seeds = jax.random.split(key_reset, episodes)
        z = agent.list_skills(episodes) if agent.list_skills else agent.sample_skill(key_skill, episodes)
        start = jax.vmap(env.reset_at, in_axes=(0, None))(seeds, offset)

        def choose(obs: Array, key: Array) -> Array:
            uniform = jax.random.uniform(key, (episodes, env.action_size), minval=-1.0, maxval=1.0)
            return jnp.where(random, uniform, agent.act(state, obs, z, None))

        with jax.default_matmul_precision("highest"):
            episode, valid = program.rollout(env, start, z, jax.random.key_data(seeds), choose, key_act)
            latents = None if agent.represent is None else agent.represent(state, episode.observations)
        return Episodes(episode.positions, latents, z, valid)

    return evaluate


def evaluation_key(seed: int, step: int) -> Array:
    """Apart from the training keys, so that evaluating more or less often changes nothing that is learned."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 0x65766C), step)


def coverage(positions: np.ndarray, bin_size: float) -> int:
    """Distinct bins that the positions [E, T+1, 2 or 3] visit; the last position is left out, as officially.

    Not clipped to a 140 m square as the official grid is (docs/fidelity.md).
    """
    visited = np.asarray(positions)[:, :-1].reshape(-1, positions.shape[-1])
    return len(np.unique(np.floor(visited / bin_size).astype(np.int64), axis=0))


def displacement(positions: np.ndarray) -> np.ndarray:
    """[E, 2 or 3] from the first to the last position of each episode."""
    positions = np.asarray(positions)
    return positions[:, -1] - positions[:, 0]


def consistency(origin: np.ndarray, shifted: np.ndarray) -> float:
    """Mean cosine between the displacements of the same skills from two starts; 1 is the same behaviour."""
    a, b = displacement(origin), displacement(shifted)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return float(np.mean((a * b).sum(-1) / np.maximum(norms, 1e-8)))
