"""How an observation, which may be any tree of arrays, enters and leaves a network.

Float vectors [B, n] pass through as they are. Pictures, uint8 [B, S, S, c], go through four convolutions on the way in,
and come out of four transposed ones as values from 0 to 1. Anything else is refused here, where its encoder belongs.
"""

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from genda_mjx import convolutions

KERNEL = 4  # side of the kernels of the four convolutions, whose stride is 2
LAYERS = 4
LAST_KERNEL = 6  # of the last transposed convolution: 64 pixels become 31, 14, 6, 2 and then 6, 14, 30, 64
SIDE = 16  # pictures whose side is a multiple of this come back with as many pixels
SMALLEST = 48  # pixels, of which the last layer has one


def is_picture(leaf: Any) -> bool:
    """Whether an array (or its shape) is a picture, with or without a batch axis."""
    return leaf.dtype == jnp.uint8 and leaf.ndim >= 3


@dataclasses.dataclass(frozen=True)
class Eye:
    """How a network's convolutions look at a picture. The defaults are the paper's."""

    depth: int = 48  # channels of the first; each of the next three has twice as many
    contrast: float = 1.0  # how far values are spread around grey before the first

    @staticmethod
    def of(options: Any) -> "Eye":
        """The eye that the options --cnn_depth and --contrast describe."""
        return Eye(options.cnn_depth, options.contrast)


PAPER = Eye()


class Join(nn.Module):
    """Observations, skills, actions, ... with one batch axis -> [B, features]: what a network's first layer sees."""

    eye: Eye = PAPER
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, *inputs: Any) -> Array:
        return jnp.concatenate([self.features(leaf) for leaf in jax.tree.leaves(inputs)], -1)

    def features(self, leaf: Array) -> Array:
        if is_picture(leaf) and leaf.ndim == 4:
            return Convolutions(self.eye, self.dtype)(leaf)
        if leaf.ndim == 2 and jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        raise TypeError(
            f"no encoder for {leaf.dtype}{list(leaf.shape)}: observations are float vectors [B, n] and uint8 pictures "
            "[B, side, side, channels]"
        )


class Convolutions(nn.Module):
    """A picture [B, S, S, c] -> [B, features]: four convolutions with ELU, as the official code's encoder."""

    eye: Eye
    dtype: DTypeLike

    @nn.compact
    def __call__(self, picture: Array) -> Array:
        contrast = self.eye.contrast
        x = (values(picture) * contrast + (1 - contrast) / 2).astype(self.dtype)
        for layer in range(LAYERS):
            x = nn.elu(Convolution(self.eye.depth * 2**layer, KERNEL, dtype=self.dtype)(x))
        return x.reshape(len(x), -1).astype(jnp.float32)


class TransposedConvolutions(nn.Module):
    """[B, hidden] -> [B, S, S, c]: a picture with values from 0 to 1, not clipped."""

    depth: int
    shape: tuple[int, int, int]
    dtype: DTypeLike

    @nn.compact
    def __call__(self, h: Array) -> Array:
        start, channels = grid(self.shape[0]), self.depth * 2 ** (LAYERS - 1)
        h = nn.elu(nn.Dense(start * start * channels, dtype=self.dtype)(h))
        x = h.reshape(-1, start, start, channels)
        for layer in reversed(range(LAYERS - 1)):
            x = nn.elu(Convolution(self.depth * 2**layer, KERNEL, transposed=True, dtype=self.dtype)(x))
        x = Convolution(self.shape[-1], LAST_KERNEL, transposed=True, dtype=self.dtype)(x)
        return x.astype(jnp.float32)


class Convolution(nn.Module):
    """One convolution of stride 2 without padding, or the transpose of one."""

    out: int
    size: int
    transposed: bool = False
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (self.size, self.size, x.shape[-1], self.out)
        kernel = self.param("kernel", _as_a_matrix, shape).astype(self.dtype)
        bias = self.param("bias", nn.initializers.zeros, (self.out,)).astype(self.dtype)
        convolve = convolutions.up if self.transposed else convolutions.down
        return convolve(x, kernel) + bias


def _as_a_matrix(key: Array, shape: tuple[int, ...]) -> Array:
    """LeCun's normal initialisation, drawn as [inputs, out]: in four dimensions the draw takes seconds to compile."""
    return nn.initializers.lecun_normal()(key, (math.prod(shape[:-1]), shape[-1])).reshape(shape)


def grid(side: int) -> int:
    """Side of what the four convolutions leave of a picture."""
    for _ in range(LAYERS):
        side = (side - KERNEL) // convolutions.STRIDE + 1
    return side


def values(observation: Any) -> Any:
    """The numbers that networks see and decoders rebuild: pictures as floats from 0 to 1, vectors as they are."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) / 255 if is_picture(leaf) else leaf, observation)


def scratch(spec: Any, depth: int) -> int:
    """Numbers that the convolutions of one observation keep at once, beside what its vectors need."""
    total = 0
    for leaf in jax.tree.leaves(spec):
        if is_picture(leaf):
            side, numbers = leaf.shape[0], math.prod(leaf.shape)
            for layer in range(LAYERS):
                side = (side - KERNEL) // convolutions.STRIDE + 1
                numbers += side * side * depth * 2**layer
            total += numbers
    return total


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
