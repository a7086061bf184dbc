"""The Cholesky solution of one system as one kernel for NVIDIA's GPUs (Pallas, by way of Triton).

The library takes three calls for it, and each of them passes all matrices through memory. Here one warp takes one copy
from matrix to solution and keeps it in registers, as tiles of 16 x 16 numbers; a dog's do not quite fit. 2048 copies
are enough to fill a GPU, and a warp waits for no other. `vmap` makes the copies the kernel's grid
(docs/accelerators.md).
"""

import os
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

Array = jax.Array
BLOCK = 16  # rows and columns of a tile, the smallest that Triton multiplies
CHOICE = "GENDA_CUDA_SOLVER"  # environment variable; "library": never the kernel
MOST_DOFS = 80  # fifteen tiles are half of the registers that a warp may have; more has not been compiled


def fits(size: int) -> bool:
    """Whether the kernel takes so many dofs, and nobody asked for the library.

    Triton knows Ampere and newer GPUs (compute capability 8.0); on older ones `GENDA_CUDA_SOLVER=library` must be set,
    which `genda_mjx.runs.start` does by itself. The GPU is not asked here: a program may be traced for another one.
    """
    return size <= MOST_DOFS and os.environ.get(CHOICE) != "library"


@partial(jax.jit, static_argnames="interpret")
def solve(matrix: Array, vector: Array, interpret: bool = False) -> Array:
    """matrix^-1 vector for a symmetric positive definite matrix [n, n]; see `fits`."""
    n = len(vector)
    rows = n + -n % BLOCK
    return pl.pallas_call(
        partial(_kernel, n=n),
        in_specs=[pl.BlockSpec((rows, rows), lambda: (0, 0)), pl.BlockSpec((rows,), lambda: (0,))],
        out_specs=pl.BlockSpec((rows,), lambda: (0,)),
        out_shape=jax.ShapeDtypeStruct((n,), vector.dtype),
        compiler_params=plgpu.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
        name="cholesky",
    )(matrix, vector)


def _kernel(matrix, vector, x, *, n: int):
    """Tiles by the places of their first row and column; what is beyond n counts as zero.

    Columns of tiles are taken from left to right, each less the products of what stands left of it in L, so that tiles
    are loaded as late as they can be. Triangles on the diagonal are kept as their inverses, which makes products of
    all substitutions.
    """
    starts = range(0, n, BLOCK)
    place = lax.broadcasted_iota(jnp.int32, (BLOCK,), 0)
    product = partial(jnp.dot, precision=lax.Precision.HIGHEST)  # no TF32

    def load(ref, *corner: int) -> Array:
        inside = [start + place < n for start in corner]
        mask = inside[0] if len(inside) == 1 else inside[0][:, None] & inside[1][None]
        return plgpu.load(ref.at[*(pl.ds(start, BLOCK) for start in corner)], mask=mask, other=0.0)

    lower: dict[tuple[int, int], Array] = {}  # tiles of L below the diagonal
    inverse: dict[int, Array] = {}  # of its tiles on the diagonal
    half: dict[int, Array] = {}  # L^-1 vector
    found: dict[int, Array] = {}  # matrix^-1 vector
    for k in starts:
        left, below = range(0, k, BLOCK), range(k + BLOCK, n, BLOCK)
        column, rest = {i: load(matrix, i, k) for i in (k, *below)}, load(vector, k)
        for j in left:
            column = {i: tile - product(lower[i, j], lower[k, j].T) for i, tile in column.items()}
            rest = rest - jnp.sum(lower[k, j] * half[j][None], axis=1)
        inverse[k] = _inverse_root(column[k], min(BLOCK, n - k))
        half[k] = jnp.sum(inverse[k] * rest[None], axis=1)
        lower |= {(i, k): product(column[i], inverse[k].T) for i in below}
    for k in reversed(starts):
        rest = half[k]
        for i in found:
            rest = rest - jnp.sum(lower[i, k] * found[i][:, None], axis=0)
        found[k] = jnp.sum(inverse[k] * rest[:, None], axis=0)
        plgpu.store(x.at[pl.ds(k, BLOCK)], found[k], mask=k + place < n)


def _inverse_root(matrix: Array, width: int) -> Array:
    """L^-1 of a tile LL' whose first `width` rows and columns count; the identity's rows remain below.

    Elimination makes L' of the matrix and L^-1 of an identity beside it. Triton cannot index what is in registers: row
    and column j are sums over all but themselves masked out.
    """
    place = lax.broadcasted_iota(jnp.int32, (BLOCK,), 0)

    def eliminate(j: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        matrix, inverse = state
        this = (place == j)[:, None]
        row = jnp.sum(jnp.where(this, matrix, 0.0), axis=0)
        done = jnp.sum(jnp.where(this, inverse, 0.0), axis=0)
        column = jnp.sum(jnp.where((place == j)[None], matrix, 0.0), axis=1)
        scale = lax.rsqrt(jnp.sum(jnp.where(place == j, row, 0.0)))
        row, done, column = row * scale, done * scale, column * scale
        matrix = matrix - column[:, None] * row[None]
        later = inverse - jnp.where(place > j, column, 0.0)[:, None] * done[None]
        return matrix, jnp.where(this, done[None], later)

    identity = jnp.where(place[:, None] == place[None], 1.0, 0.0)
    return lax.fori_loop(0, width, eliminate, (matrix, identity))[1]
