"""Complementary information bottleneck: an embedding of the state that holds what phi(s) does not."""

import jax.numpy as jnp
from jax import Array


def reconstruction_loss(decoded: Array, s: Array) -> Array:
    """Squared error summed over the observation [B, obs], mean over the batch: the bound on I(l; s) in Eq. 9."""
    return ((decoded - s) ** 2).sum(-1).mean()


def kl_loss(mean: Array, log_std: Array) -> Array:
    """KL(N(mean, std) || N(0, 1)) of the embedding [B, l]: what phi(s) already tells is not worth sending."""
    return 0.5 * (jnp.exp(2 * log_std) + mean**2 - 1 - 2 * log_std).sum(-1).mean()
