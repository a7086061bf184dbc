"""What a skill can be: a direction, a Gaussian vector, or one of a list."""

import jax
import jax.numpy as jnp
from jax import Array


def directions(key: Array, n: int, dim: int) -> Array:
    """[n, d] uniform on the sphere: the prior of GenDa, METRA and CSF."""
    x = jax.random.normal(key, (n, dim))
    return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-8)


def normals(key: Array, n: int, dim: int) -> Array:
    """[n, d] standard normal, of any length: the prior of CIC."""
    return jax.random.normal(key, (n, dim))


def one_hots(key: Array, n: int, dim: int) -> Array:
    """[n, d] uniform over d skills: the prior of DIAYN and of discrete METRA."""
    return jax.nn.one_hot(jax.random.randint(key, (n,), 0, dim), dim)


def each_in_turn(n: int, dim: int) -> Array:
    """[n, d] skills 0, 1, ... as evenly as n allows."""
    return jax.nn.one_hot(jnp.arange(n) % dim, dim)


def centred(z: Array) -> Array:
    """One-hot [B, d] -> 1 on the chosen dimension, -1/(d-1) elsewhere: discrete skills then push apart."""
    dim = z.shape[-1]
    return (z - z.mean(-1, keepdims=True)) * dim / max(dim - 1, 1)
