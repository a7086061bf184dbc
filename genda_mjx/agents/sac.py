"""Soft actor-critic, the part that every agent shares. Losses take network outputs; [2, B] is the twin critic."""

import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient


def critic_target(reward: Array, q_next: Array, log_prob_next: Array, alpha: Array, discount: float) -> Array:
    """Soft Bellman target [B] from q_next [2, B]. Episodes are cut, never ended, so it always bootstraps."""
    return stop_gradient(reward + discount * (q_next.min(0) - alpha * log_prob_next))


def critic_loss(q: Array, target: Array) -> Array:
    """Half the squared Bellman error of q [2, B], mean over both critics and the batch."""
    return 0.5 * ((q - target) ** 2).mean()


def actor_loss(q: Array, log_prob: Array, alpha: Array) -> Array:
    """Prefer actions that the pessimistic critic of q [2, B] values, and keep entropy."""
    return (stop_gradient(alpha) * log_prob - q.min(0)).mean()


def temperature_loss(log_alpha: Array, log_prob: Array, target_entropy: float) -> Array:
    """alpha rises while the policy's entropy is below the target."""
    return -jnp.exp(log_alpha) * (stop_gradient(log_prob).mean() + target_entropy)
