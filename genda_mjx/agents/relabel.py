"""Which skill does the policy learn a transition with: the one rolled out, or the one the transition shows?"""

import jax
import jax.numpy as jnp
import optax
from jax import Array


def draw_planes(key: Array, planes: int, dim: int) -> Array:
    """[planes, d] unit normals of random hyperplanes through the origin."""
    normals = jax.random.normal(key, (planes, dim))
    return normals / jnp.linalg.norm(normals, axis=-1, keepdims=True)


def skill_code(z: Array, planes: Array) -> Array:
    """[B, d] -> [B] in 0..2^planes-1: on which side of each plane a skill lies (a locality-sensitive hash)."""
    bits = (z @ planes.T > 0).astype(jnp.int32)
    return bits @ (2 ** jnp.arange(len(planes)))


def keep_rollout(logit: Array, threshold: float) -> Array:
    """[B] bool: keep z_roll where relabelled directions are rare beside the prior, i.e. the gate says p < threshold."""
    return jnp.clip(jax.nn.sigmoid(logit), 1e-6, 1 - 1e-6) < threshold


def gate_loss(logit_relabelled: Array, logit_prior: Array, counted: Array | None = None) -> Array:
    """Tell this batch's relabelled directions (label 1, logits [B]) from fresh prior skills (label 0, logits [B]).

    counted [B]: of both, the rows that are learnt from; all unless given.
    """
    logits = jnp.concatenate([logit_relabelled, logit_prior])
    labels = jnp.concatenate([jnp.ones_like(logit_relabelled), jnp.zeros_like(logit_prior)])
    losses = optax.sigmoid_binary_cross_entropy(logits, labels)
    if counted is None:
        return losses.mean()
    return (losses * jnp.concatenate([counted, counted])).sum() / jnp.maximum(2 * counted.sum(), 1)


def mix(z_c: Array, z_tau: Array) -> Array:
    """Mix(c, tau): the first len(z_c) of the batch take the c-step label, the others the whole-episode one [B, d].

    The official code picks that share by a random permutation; here the batch's own order is already random.
    """
    return jnp.concatenate([z_c, z_tau[len(z_c) :]])
