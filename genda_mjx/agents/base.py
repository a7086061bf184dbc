"""What every agent is made of: its sizes, its batch, its state and its functions."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import Array

from genda_mjx import devices

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
    """Everything that learning changes. Keys are network names, those of `optimizers` the group each one steps."""

    params: Params
    targets: Params  # moving averages of some of the params
    optimizers: dict[str, optax.OptState]
    buffers: dict[str, Any]  # neither learned nor averaged: random planes, running statistics
    updates: Array  # gradient steps so far


class Agent(NamedTuple):
    """Pure functions. The last two are for evaluation and may be left out."""

    init: Callable[[Array], AgentState]  # key -> state
    sample_skill: Callable[[Array, int], Array]  # key, n -> [n, d]
    act: Callable[[AgentState, Array, Array, Array | None], Array]  # state, obs, z, key (None: deterministic) -> a
    update: Callable[[AgentState, Batch, Array], tuple[AgentState, Metrics]]
    represent: Callable[[AgentState, Array], Array] | None = None  # state, obs [..., obs] -> [..., d], a plot of phi
    list_skills: Callable[[int], Array] | None = None  # n -> [n, d], where skills can be listed: each in turn


def pick(params: Params, names: Iterable[str]) -> Params:
    """The named parts that exist; ablations have fewer."""
    return {name: params[name] for name in names if name in params}


def begin(
    params: Params,
    averaged: Iterable[str],
    optimizers: dict[str, optax.OptState],
    buffers: dict[str, Any] | None = None,
) -> AgentState:
    """Before the first update. The moving averages of the `averaged` networks start as copies of them."""
    return AgentState(
        params=params,
        targets={name: jax.tree.map(jnp.copy, params[name]) for name in averaged},
        optimizers=optimizers,
        buffers=buffers or {},
        updates=jnp.zeros((), jnp.int32),
    )


def grad(loss: Callable[..., tuple[Array, Any]], params: Params, *arguments) -> tuple[tuple[Array, Any], Params]:
    """loss(params, ...) -> (value, more) and its gradient, which is that of the whole batch on all devices."""
    found, grads = jax.value_and_grad(loss, has_aux=True)(params, *arguments)
    return found, devices.average(grads)


def advance(state: AgentState, group: str, optimizer: optax.GradientTransformation, grads: Params) -> AgentState:
    """One step of the optimiser `group` on the networks that `grads` names."""
    params = pick(state.params, grads)
    updates, optimizer_state = optimizer.update(grads, state.optimizers[group], params)
    return state.replace(
        params=state.params | optax.apply_updates(params, updates),
        optimizers=state.optimizers | {group: optimizer_state},
    )


def track(state: AgentState, rate: float) -> AgentState:
    """Moving averages a step closer to the parameters; one gradient step is then over."""
    targets = optax.incremental_update(pick(state.params, state.targets), state.targets, rate)
    return state.replace(targets=targets, updates=state.updates + 1)
