"""phi: latent steps that are long along the skill but no longer than the constraint allows. Also METRA's and CSF's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient
from jax.nn import logsumexp

from genda_mjx import devices, encoders, networks
from genda_mjx.agents.base import Spec
from genda_mjx.agents.skills import unit
from genda_mjx.config import AgentOptions, Config, check_not_negative, check_positive

__all__ = [
    "latent_step",
    "multiplier_loss",
    "network",
    "representation_loss",
    "reward",
    "step_constraint",
    "uniformity_loss",
    "unit",
]


@dataclass(frozen=True)
class ConstraintOptions(AgentOptions):
    """Options of a phi whose latent steps are kept short by a learned multiplier."""

    initial_lambda: float = 30.0  # dual multiplier of the step-length constraint at the start; learned
    slack: float = 1e-3  # the constraint term is clipped from above at this value

    def check(self) -> None:
        check_positive(self, "initial_lambda")
        check_not_negative(self, "slack")


def network(config: Config, spec: Spec) -> networks.MLP:
    """phi: what it is shown of an observation [B, ...] -> [B, d]."""
    dtype, eye = networks.precision(config.bf16), encoders.Eye.of(config)
    return networks.MLP(config.hidden, config.skill_dim, dtype, eye=eye, withheld=spec.withheld)


def latent_step(phi: Callable[[Any], Array], s: Any, s_next: Any) -> Array:
    """[B, d] phi(s') - phi(s), in one forward."""
    now, following = jnp.split(phi(encoders.concatenate(s, s_next)), 2)
    return following - now


def reward(step: Array, z: Array) -> Array:
    """Eq. 7: progress [B] of the latent step phi(s') - phi(s) [B, d] along the skill z [B, d]."""
    return (step * z).sum(-1)


def step_constraint(step: Array, slack: float) -> Array:
    """[B], negative where a latent step [B, d] is longer than sqrt(d); at most `slack`, where it stops pushing.

    The mean over dimensions, not the sum, is the official reading of the constraint in Eq. 1 and 3.
    """
    return jnp.minimum(1 - (step**2).mean(-1), slack)


def representation_loss(step: Array, z: Array, constraint: Array, multiplier: Array) -> Array:
    """Eq. 3 as a Lagrangian: align steps [B, d] with their labels [B, d] under the dual-weighted constraint [B]."""
    return -(reward(step, stop_gradient(z)) + stop_gradient(multiplier) * constraint).mean()


def multiplier_loss(weight: Array, constraint: Array) -> Array:
    """Dual descent: the multiplier grows while the mean constraint [B] is violated (negative).

    weight: the multiplier itself (GenDa) or its logarithm (METRA).
    """
    return weight * stop_gradient(constraint).mean()


def uniformity_loss(v: Array) -> Array:
    """Eq. 5: push episode directions v [B, d] apart on the sphere, so that relabelling cannot collapse."""
    everyone = devices.gather(v)  # [B, d] also where v is one device's share of the batch
    similarity = v @ everyone.T
    others = jnp.arange(len(everyone)) != devices.own_places(len(v))[:, None]
    return logsumexp(similarity, axis=-1, where=others).mean()
