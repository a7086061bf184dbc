"""Cholesky solutions of many small systems at once, with the copies last: for TPUs and CPUs.

The library's factorisation takes one matrix after the other and waits for each column: 12,800 cycles for each dog on a
v5e by the compiler's own schedule. With the copies along the lanes, or along a CPU's vectors, every operation works on
all of them (docs/accelerators.md).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

Array = jax.Array
BLOCK = 8  # columns of a panel, and rows that a TPU keeps in one register
LANES = 128  # copies in one register of a TPU; with fewer of them its library is faster


@jax.jit
def solve(matrix: Array, vector: Array) -> Array:
    """matrix^-1 vector for symmetric positive definite matrices [n, n, N] and vectors [n, N].

    Panels of BLOCK columns are taken from left to right. The right-hand side is one more row below the matrix, so that
    the factorisation also substitutes forwards; below each panel stands an identity, which becomes the inverse of its
    triangle, so that substituting backwards is two sums a panel.
    """
    n, copies = vector.shape
    filler = jnp.zeros((n, -(n + 1) % BLOCK, copies), vector.dtype)
    work = _row_major(jnp.concatenate([matrix, vector[:, None], filler], axis=1))  # [n columns, rows, N]
    starts, inverses = range(0, n, BLOCK), []
    for start in starts:
        panel, inverse = _factor(work[:, start:], start, min(BLOCK, n - start))
        work = _row_major(lax.dynamic_update_slice(work, panel, (start, start, 0)))
        inverses.append(inverse)
    x = jnp.zeros((work.shape[1] - n, copies), vector.dtype).at[0].set(-1.0)  # takes the right-hand side's row
    for start, inverse in zip(reversed(starts), reversed(inverses), strict=True):
        width = len(inverse)
        rest = -jnp.sum(work[start : start + width, start + width :] * x, axis=1)
        x = jnp.concatenate([jnp.sum(inverse * rest[:, None], axis=0)[:width], x])
    return x[:n]


def _factor(work: Array, start: int, width: int) -> tuple[Array, Array]:
    """The panel [width, rows, N] of L whose first column is `start`, and [width, BLOCK, N] the transposed inverse of
    its triangle. `work` [n, rows, N] holds L left of the panel and the matrix from there on, without the rows above."""
    panel = work[start : start + width]
    for k in range(start):  # sums of products one by one: a TPU makes one operation of many
        column = lax.slice_in_dim(work, k, k + 1)  # [1, rows, N]
        panel = panel - column * lax.slice_in_dim(column, 0, width, axis=1).reshape(width, 1, -1)
    identity = jnp.broadcast_to(np.eye(width, BLOCK, dtype=np.float32)[..., None], (width, BLOCK, panel.shape[-1]))
    panel, columns = _row_major(jnp.concatenate([panel, identity], axis=1)), []
    for c in range(width):
        column = panel[c]
        for left in columns:
            column = column - left * left[c]
        columns.append(column * lax.rsqrt(column[c]))
    done = _row_major(jnp.stack(columns))
    return done[:, :-BLOCK], done[:, -BLOCK:]


def _row_major(x: Array) -> Array:
    """x with its last two axes in the tiles of a TPU, which would choose another order for panels."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
