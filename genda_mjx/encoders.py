"""How an observation, which may be any tree of arrays, enters and leaves a network.

Vectors pass through as they are. Anything else is refused here, where its encoder belongs.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def join(*inputs: Any) -> Array:
    """Observations, skills, actions, ... with one batch axis -> [B, features]: what a network's first layer sees."""
    return jnp.concatenate([_features(leaf) for leaf in jax.tree.leaves(inputs)], -1)


def _features(leaf: Array) -> Array:
    if leaf.ndim != 2 or not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise TypeError(f"no encoder for {leaf.dtype}{list(leaf.shape)}: observations are float vectors [B, n] so far")
    return leaf


def size(spec: Any) -> int:
    """How many numbers an observation has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(spec))


def split(features: Array, spec: Any) -> Any:
    """[B, size(spec)] -> a batch of observations: what a decoder rebuilds."""
    leaves, structure = jax.tree.flatten(spec)
    ends = [size(leaves[: i + 1]) for i in range(len(leaves) - 1)]
    parts = jnp.split(features, ends, axis=-1)
    return structure.unflatten([part.reshape(-1, *leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])


def blank(spec: Any) -> Any:
    """A batch of one observation, all zero: shapes for a network's initialisation."""
    return jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), spec)


def first(n: int, observations: Any) -> Any:
    """The first n of a batch of observations."""
    return jax.tree.map(lambda leaf: leaf[:n], observations)


def concatenate(*observations: Any) -> Any:
    """Batches of observations, one after the other."""
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *observations)
