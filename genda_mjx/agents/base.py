"""What every agent is made of: its spec, its batch, its state and its functions."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import Array

from envs.base import SkillEnv
from genda_mjx import devices
from genda_mjx.agents.skills import SkillSpace

Params = dict[str, Any]
Metrics = dict[str, Array]


class Spec(NamedTuple):
    """What an agent must know of an environment."""

    observation: Any  # shapes and dtypes of one observation, a pytree of jax.ShapeDtypeStruct
    action: int  # A
    withheld: int = 0  # last entries of a vector observation that phi does not see
    turned: Callable[[Any, Array], Any] | None = None  # `SkillEnv.turned`: observations, angles [B] -> observations

    @classmethod
    def of(cls, env: SkillEnv) -> "Spec":
        return cls(env.observation_spec, env.action_size, env.withheld, env.turned)


@flax.struct.dataclass
class Batch:
    """B transitions with the rows of their episodes that relabelling needs.

    Observations are trees of arrays [B, ...] as `Spec.observation` describes them.
    """

    s: Any  # at time t
    a: Array  # [B, A]
    s_next: Any  # at t+1
    s_c: Any  # at t+c
    s_0: Any  # first of the episode
    s_T: Any  # last of the episode
    z_roll: Array  # [B, d] skill that the episode was collected with


@flax.struct.dataclass
class AgentState:
    """Everything that learning changes, by network name; `optimizers` by the group of networks that each one steps."""

    params: Params
    targets: Params  # moving averages of some of the params
    optimizers: dict[str, optax.OptState]
    buffers: dict[str, Any]  # neither learned nor averaged: random planes, running statistics
    updates: Array  # gradient steps so far


class Agent(NamedTuple):
    """Pure functions, and what the host needs to know beside them."""

    init: Callable[[Array], AgentState]  # key -> state
    skills: SkillSpace
    act: Callable[[AgentState, Any, Array, Array | None], Array]  # state, obs, z, key (None: deterministic) -> a
    update: Callable[[AgentState, Batch, Array], tuple[AgentState, Metrics]]
    represent: Callable[[AgentState, Any], Array] | None = None  # state, obs [B, ...] -> phi [B, d], where there is one
    shown: tuple[str, ...] = ("alpha",)  # metrics on the progress line
    # Arrays that live at once in an update, by XLA's memory analysis on the CPU (tests/test_memory.py).
    scratch_rows: float = 36.0  # [B, hidden]; the default is the largest agent's, GenDa's
    scratch_pairs: float = 0.0  # [B, B]
    scratch_pictures: int = 0  # numbers of one observation's pictures on their way through the convolutions


def pick(params: Params, names: Iterable[str]) -> Params:
    """The named parts that exist; ablations have fewer."""
    return {name: params[name] for name in names if name in params}


def begin(
    params: Params,
    averaged: Iterable[str],
    optimizers: dict[str, optax.OptState],
    buffers: dict[str, Any] | None = None,
) -> AgentState:
    """The state before the first update. The moving averages of the `averaged` networks start as copies of them."""
    return AgentState(
        params=params,
        targets={name: jax.tree.map(jnp.copy, params[name]) for name in averaged},
        optimizers=optimizers,
        buffers=buffers or {},
        updates=jnp.zeros((), jnp.int32),
    )


def grad(loss: Callable[..., tuple[Array, Any]], params: Params, *arguments) -> tuple[tuple[Array, Any], Params]:
    """What loss(params, ...) -> (value, more) returns, and its gradient over the whole batch on all devices."""
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
    """Moves the averages a step closer to the parameters and counts one gradient step."""
    targets = optax.incremental_update(pick(state.params, state.targets), state.targets, rate)
    return state.replace(targets=targets, updates=state.updates + 1)
