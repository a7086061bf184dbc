"""Strided convolutions and their transposes, arranged so that a CPU computes them with its fast routines too.

XLA's CPU backend has a fast routine for a plain convolution only, and inside a loop, where all our updates are, only
for one whose arrays are in the usual order. The gradients that jax derives are not, and take six times as long there.
So gradients are written out here, as plain convolutions and matrix products; a transposed convolution is a plain one of
half the kernel that writes the four pixels of a block as channels; and under `vmap` with one kernel for each copy (twin
critics, seeds) the copies are convolved one after the other. docs/pixels.md has the times.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, custom_batching

STRIDE = 2
LAYOUT = ("NHWC", "HWIO", "NHWC")


def one_after_the_other(fn: Callable) -> Callable:
    """Makes vmap of fn a loop over the copies, written out: there are few, and each is a large piece of work."""

    @custom_batching.custom_vmap
    def one(*args):
        return fn(*args)

    @one.def_vmap
    def loop(size, batched, *args):
        def copy(i: int) -> list[Array]:
            return [arg[i] if has_axis else arg for arg, has_axis in zip(args, batched, strict=True)]

        found = [one(*copy(i)) for i in range(size)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found), jax.tree.map(lambda _: True, found[0])

    return one


def _plain(x: Array, kernel: Array) -> Array:
    strides = (STRIDE, STRIDE)
    return jax.lax.conv_general_dilated(x, kernel, strides, "VALID", dimension_numbers=LAYOUT)


def _plain_back(x: Array, kernel: Array, g: Array) -> tuple[Array, Array]:
    """In blocks of 2 x 2 pixels it is a convolution of stride 1 with half the kernel."""
    half, (batch, height, width, channels), out = len(kernel) // 2, x.shape, g.shape[-1]
    rows, columns = g.shape[1] + half - 1, g.shape[2] + half - 1  # blocks that the kernel touches
    blocks = x[:, : 2 * rows, : 2 * columns].reshape(batch, rows, 2, columns, 2, channels)
    blocks = blocks.swapaxes(2, 3).reshape(batch, rows, columns, 4 * channels)

    def product(i: int, j: int) -> Array:
        part = blocks[:, i : i + g.shape[1], j : j + g.shape[2]]
        return jnp.einsum("bhwc,bhwo->co", part, g).reshape(2, 2, channels, out)

    to_kernel = jnp.stack([jnp.stack([product(i, j) for j in range(half)]) for i in range(half)])
    to_kernel = to_kernel.transpose(0, 2, 1, 3, 4, 5).reshape(kernel.shape)
    to_x = up(g, kernel.swapaxes(2, 3))
    edge = [(0, 0), (0, height - 2 * rows), (0, width - 2 * columns), (0, 0)]
    return jnp.pad(to_x, edge), to_kernel


def _spread(x: Array, kernel: Array) -> Array:
    """A convolution of stride 1 that keeps every place which its window touches."""
    edge = [(size - 1, size - 1) for size in kernel.shape[:2]]
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), edge, dimension_numbers=LAYOUT)


def _spread_back(x: Array, kernel: Array, g: Array) -> tuple[Array, Array]:
    height, width = x.shape[1:3]
    back = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    to_x = jax.lax.conv_general_dilated(g, back, (1, 1), "VALID", dimension_numbers=LAYOUT)
    n, m = kernel.shape[:2]

    def product(i: int, j: int) -> Array:
        part = g[:, n - 1 - i : n - 1 - i + height, m - 1 - j : m - 1 - j + width]
        return jnp.einsum("bhwc,bhwo->co", x, part)

    return to_x, jnp.stack([jnp.stack([product(i, j) for j in range(m)]) for i in range(n)])


def _with_gradient(forward: Callable, back: Callable) -> Callable:
    forward, back = one_after_the_other(forward), one_after_the_other(back)

    @jax.custom_vjp
    def convolve(x: Array, kernel: Array) -> Array:
        return forward(x, kernel)

    convolve.defvjp(lambda x, kernel: (forward(x, kernel), (x, kernel)), lambda saved, g: back(*saved, g))
    return convolve


_convolve, _spread_out = _with_gradient(_plain, _plain_back), _with_gradient(_spread, _spread_back)


def down(x: Array, kernel: Array) -> Array:
    """[B, h, w, c], [k, k, c, o] -> [B, (h - k) // 2 + 1, (w - k) // 2 + 1, o]."""
    return _convolve(x, kernel)


def up(x: Array, kernel: Array) -> Array:
    """The transpose of `down`, for even k: [B, h, w, c], [k, k, c, o] -> [B, 2 h + k - 2, 2 w + k - 2, o]."""
    size, _, channels, out = kernel.shape
    half = size // 2
    blocks = kernel.reshape(half, 2, half, 2, channels, out)[::-1, :, ::-1].transpose(0, 2, 4, 1, 3, 5)
    y = _spread_out(x, blocks.reshape(half, half, channels, 4 * out))
    batch, height, width, _ = y.shape
    return y.reshape(batch, height, width, 2, 2, out).swapaxes(2, 3).reshape(batch, 2 * height, 2 * width, out)
