"""How a TPU keeps arrays: the last two axes, in an order of its choice, are filled up to tiles of 8 x 128.

Episodes are kept in an order of ours, as arguments (`sharding.formats`) and in the program (`kept`): a TPU would lay
arguments out as compactly as it can, the loop would want another order, and both would exist.
"""

import math

import jax
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint

TILE = 8, 128
MOST_WASTE = 2  # bytes of a filled-up array over its own


def order(shape: tuple[int, ...], before: tuple[int, ...], last: tuple[int, int]) -> tuple[int, ...] | None:
    """The axes `before`, then the two of `last`: as they come, so that the second is read at once, or the other way
    round where that fills up too much. None, for the TPU's own order, where both do."""
    for axes in (last, last[::-1]):
        if (
            math.prod(filled(shape[axis], least) / shape[axis] for axis, least in zip(axes, TILE, strict=True))
            < MOST_WASTE
        ):
            return (*before, *axes)
    return None


def filled(size: int, least: int) -> int:
    return math.ceil(size / least) * least


def kept(leaf: Array) -> Array:
    """leaf [..., M, k] in the order in which a TPU is to keep it; elsewhere just the leaf."""
    axes = tuple(range(leaf.ndim))
    chosen = order(leaf.shape, axes[:-2], axes[-2:]) if leaf.ndim > 1 else None
    if chosen is None:
        return leaf

    def ordered(leaf: Array) -> Array:
        return with_layout_constraint(leaf, Layout(chosen))

    return jax.lax.platform_dependent(leaf, tpu=ordered, default=lambda leaf: leaf)
