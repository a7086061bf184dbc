"""What every agent is made of: its sizes, its batch, its state and its functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import optax
from jax import Array

Params = dict[str, Any]
Metrics = dict[str, Array]


class Sizes(NamedTuple):
    """What an agent must know of an environment."""

    observation: int
    action: int


@flax.struct.dataclass
class Batch:
    """B transitions with the rows of their episodes that relabelling needs; observations are normalised."""

    s: Array  # [B, obs] at time t
    a: Array  # [B, A]
    s_next: Array  # [B, obs] at t+1
    s_c: Array  # [B, obs] at t+c
    s_0: Array  # [B, obs] first of the episode
    s_T: Array  # [B, obs] last of the episode
    z_roll: Array  # [B, d] skill that the episode was collected with


@flax.struct.dataclass
class AgentState:
    """Everything that learning changes, and the constants drawn at the start. Keys are network names."""

    params: Params
    targets: Params  # moving averages
    optimizers: dict[str, optax.OptState]
    constants: dict[str, Array]
    updates: Array  # gradient steps so far


class Agent(NamedTuple):
    """Pure functions; `represent` is only for plots, None where an agent has no skill space to look at."""

    init: Callable[[Array], AgentState]  # key -> state
    sample_skill: Callable[[Array, int], Array]  # key, n -> [n, d]
    act: Callable[[AgentState, Array, Array, Array | None], Array]  # state, obs, z, key (None: deterministic) -> a
    update: Callable[[AgentState, Batch, Array], tuple[AgentState, Metrics]]
    represent: Callable[[AgentState, Array], Array] | None = None  # state, obs [..., obs] -> [..., d]


def descend(optimizer: optax.GradientTransformation, grads: Any, opt_state: Any, params: Any) -> tuple[Any, Any]:
    """One optimiser step: (new params, new optimiser state)."""
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def sphere(key: Array, n: int, dim: int) -> Array:
    """[n, d] uniform directions, the skill prior of GenDa, METRA and CSF."""
    x = jax.random.normal(key, (n, dim))
    return x / (jax.numpy.linalg.norm(x, axis=-1, keepdims=True) + 1e-8)
