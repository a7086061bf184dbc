"""Complementary information bottleneck: an embedding of the state that holds what phi(s) does not."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def reconstruction_loss(decoded: Any, s: Any) -> Array:
    """Squared error summed over the observation, mean over the batch: the bound on I(l; s) in Eq. 9."""
    errors = jax.tree.map(
        lambda rebuilt, seen: ((rebuilt - seen) ** 2).sum(tuple(range(1, seen.ndim))).mean(), decoded, s
    )
    return sum(jax.tree.leaves(errors))


def kl_loss(mean: Array, log_std: Array) -> Array:
    """KL(N(mean, std) || N(0, 1)) of the embedding [B, l]: what phi(s) already tells is not worth sending."""
    return 0.5 * (jnp.exp(2 * log_std) + mean**2 - 1 - 2 * log_std).sum(-1).mean()
