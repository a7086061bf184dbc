"""Turns a function of N copies at once into one of a single copy, which `vmap` turns back into all copies at once.

Physics that is written for the copies in the last axis of every array (`envs.physics`) stays so under `vmap`: JAX's
own rule would add the copies as a first axis to every operation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import custom_batching

Array = jax.Array
PART = 128  # copies that a CPU steps at a time


def copies_last(fn: Callable) -> Callable:
    """Makes a function of N copies (last axis of every leaf) one of a single copy, to which vmap hands all at once.

    A second vmap, over whole runs, multiplies the copies: the function only ever sees one axis of them, the last.
    """
    run = _axes_joined(fn)

    @custom_batching.custom_vmap
    def one(*args):
        out = run(*jax.tree.map(lambda x: x[..., None], args))
        return jax.tree.map(lambda x: x[..., 0], out)

    @one.def_vmap
    def all_copies(size, batched, *args):
        out = run(*_spread(size, batched, args, axis=-1))
        return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), out), jax.tree.map(lambda _: True, out)

    return one


def _axes_joined(fn: Callable) -> Callable:
    """Returns fn of N copies (last axis) such that vmap over S of them is one call of S * N copies."""

    @custom_batching.custom_vmap
    def copies(*args):
        return _in_parts_on_a_cpu(fn)(*args)

    @copies.def_vmap
    def more_copies(size, batched, *args):
        def join(x: Array) -> Array:
            return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])

        def split(x: Array) -> Array:
            return jnp.moveaxis(x.reshape(*x.shape[:-1], size, x.shape[-1] // size), -2, 0)

        out = _axes_joined(fn)(*jax.tree.map(join, _spread(size, batched, args, axis=-2)))
        return jax.tree.map(split, out), jax.tree.map(lambda _: True, out)

    return copies


def _in_parts_on_a_cpu(fn: Callable) -> Callable:
    """Returns fn of N copies (last axis) such that a CPU runs PART of them at a time (docs/performance.md says why).

    The platform is known when the program is lowered, not when it is traced: a program for another chip than this
    computer's does not contain the parts. The price is that fn is traced twice, for a part and for all copies.
    """

    def run(*args):
        count = jax.tree.leaves(args)[0].shape[-1]
        if count <= PART or count % PART:
            return fn(*args)

        def split(x: Array) -> Array:
            return jnp.moveaxis(x.reshape(*x.shape[:-1], count // PART, PART), -2, 0)

        def join(x: Array) -> Array:
            return jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], count)

        def parts(*args):
            return jax.tree.map(join, jax.lax.map(lambda part: fn(*part), jax.tree.map(split, args)))

        return jax.lax.platform_dependent(*args, cpu=parts, default=fn)

    return run


def _spread(size: int, batched: Sequence[Any], args: tuple, axis: int) -> Any:
    """Every leaf with its batch axis, which is the first or missing, at `axis`."""

    def place(leaf: Array, has_axis: bool) -> Array:
        whole = leaf if has_axis else jnp.broadcast_to(leaf, (size, *leaf.shape))
        return jnp.moveaxis(whole, 0, axis)

    return jax.tree.map(place, args, tuple(batched))
