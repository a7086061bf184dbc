"""The networks, all with two hidden layers of width `hidden`. Initialisers follow the official code (docs/fidelity.md).

Each takes what it sees as separate inputs, the observation first, and joins them itself (`encoders.Join`): vectors as
they are, pictures through convolutions of its own, as its `eye` says.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient
from jax.typing import DTypeLike

from genda_mjx import devices, encoders
from genda_mjx.encoders import PAPER, Eye

XAVIER = nn.initializers.xavier_uniform()
LECUN = nn.initializers.lecun_normal()
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


def precision(bf16: bool) -> DTypeLike:
    """The dtype of matrix products; parameters and outputs are float32 either way."""
    return jnp.bfloat16 if bf16 else jnp.float32


class Trunk(nn.Module):
    """Inputs [B, ...] -> [B, hidden]: two layers of Dense and ReLU, then LayerNorm if asked for."""

    hidden: int
    layer_norm: bool = False
    kernel_init: nn.initializers.Initializer = XAVIER
    dtype: DTypeLike = jnp.float32
    eye: Eye = PAPER

    @nn.compact
    def __call__(self, *inputs: Any) -> Array:
        x = encoders.Join(self.eye, self.dtype)(*inputs)
        for _ in range(2):
            x = nn.relu(nn.Dense(self.hidden, kernel_init=self.kernel_init, dtype=self.dtype)(x))
            if self.layer_norm:  # after the activation, as the official critics
                x = nn.LayerNorm(dtype=self.dtype)(x)
        return x


class MLP(nn.Module):
    """Inputs [B, ...] -> [B, out]: phi, classifiers, embeddings."""

    hidden: int
    out: int
    dtype: DTypeLike = jnp.float32
    kernel_init: nn.initializers.Initializer = XAVIER  # of the hidden layers
    eye: Eye = PAPER
    withheld: int = 0  # last entries of the first input that it does not see

    @nn.compact
    def __call__(self, *inputs: Any) -> Array:
        if self.withheld:
            inputs = inputs[0][..., : -self.withheld], *inputs[1:]
        h = Trunk(self.hidden, kernel_init=self.kernel_init, dtype=self.dtype, eye=self.eye)(*inputs)
        return nn.Dense(self.out, kernel_init=LECUN, dtype=self.dtype)(h).astype(jnp.float32)


class Decoder(nn.Module):
    """Inputs [B, n] -> a batch of observations as `leaves` (a tree's, flat) describe them.

    Vectors come from one layer, each picture from transposed convolutions.
    """

    hidden: int
    leaves: tuple[jax.ShapeDtypeStruct, ...]
    dtype: DTypeLike = jnp.float32
    eye: Eye = PAPER

    @nn.compact
    def __call__(self, *inputs: Any) -> list[Array]:
        h = Trunk(self.hidden, kernel_init=LECUN, dtype=self.dtype)(*inputs)
        found = [None] * len(self.leaves)
        for i, leaf in enumerate(self.leaves):
            if encoders.is_picture(leaf):
                found[i] = encoders.TransposedConvolutions(self.eye.depth, leaf.shape, self.dtype)(h)
        vectors = [leaf for leaf in self.leaves if not encoders.is_picture(leaf)]
        if vectors:
            numbers = nn.Dense(encoders.size(vectors), kernel_init=LECUN, dtype=self.dtype)(h).astype(jnp.float32)
            parts = iter(encoders.split(numbers, vectors))
            found = [next(parts) if each is None else each for each in found]
        return found


class Gaussian(nn.Module):
    """Inputs [B, ...] -> (mean, log std) [B, out]; the log std is squashed smoothly into [-5, 2]."""

    hidden: int
    out: int
    kernel_init: nn.initializers.Initializer = XAVIER
    dtype: DTypeLike = jnp.float32
    eye: Eye = PAPER

    @nn.compact
    def __call__(self, *inputs: Any) -> tuple[Array, Array]:
        h = Trunk(self.hidden, kernel_init=self.kernel_init, dtype=self.dtype, eye=self.eye)(*inputs)
        # One product for both heads. LeCun's scale depends on the fan-in only, so this equals two separate heads.
        heads = nn.Dense(2 * self.out, kernel_init=LECUN, dtype=self.dtype)(h).astype(jnp.float32)
        mean, raw = jnp.split(heads, 2, axis=-1)
        return mean, LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (jnp.tanh(raw) + 1)


class Critic(nn.Module):
    """Inputs [B, ...] -> [B, out]."""

    hidden: int
    out: int = 1
    dtype: DTypeLike = jnp.float32
    eye: Eye = PAPER

    @nn.compact
    def __call__(self, *inputs: Any) -> Array:
        h = Trunk(self.hidden, layer_norm=True, dtype=self.dtype, eye=self.eye)(*inputs)
        return nn.Dense(self.out, kernel_init=LECUN, dtype=self.dtype)(h).astype(jnp.float32)


def twin_critic(hidden: int, out: int = 1, dtype: DTypeLike = jnp.float32, eye: Eye = PAPER) -> nn.Module:
    """Inputs [B, ...] -> [2, B, out]: two independent critics, stacked, so that a layer is one batched product."""
    ensemble = nn.vmap(Critic, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=2)
    return ensemble(hidden, out, dtype, eye)


class Gate(nn.Module):
    """Logits [codes]: is a skill with this code a relabelled direction (1) or a prior sample (0)?

    Its input is a one-hot code, so all answers together are a table; the first layer is then its kernel, with no
    product, and the table serves the gate's use and its training.
    """

    codes: int

    @nn.compact
    def __call__(self) -> Array:
        rows = self.param("rows", LECUN, (self.codes, 64)) + self.param("bias", nn.initializers.zeros, (64,))
        h = nn.silu(nn.Dense(64)(nn.silu(rows)))
        return nn.Dense(1)(h)[..., 0]


def sample_tanh_gaussian(mean: Array, log_std: Array, key: Array) -> tuple[Array, Array]:
    """Action tanh(u) [B, A] with u ~ N(mean, std), and its log-probability [B]."""
    noise = devices.own_rows(lambda rows: jax.random.normal(key, (rows, *mean.shape[1:])), len(mean))
    action = jnp.tanh(mean + jnp.exp(log_std) * noise)
    log_normal = -0.5 * (noise**2 + jnp.log(2 * jnp.pi)) - log_std
    return action, (log_normal - jnp.log(1 - action**2 + 1e-6)).sum(-1)


def spectral_vectors(key: Array, params: Any) -> list[Array]:
    """A random direction [out] for every kernel [in, out] of a network, where its power iteration starts."""
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
    keys = jax.random.split(key, len(kernels))
    return [unit_vector(jax.random.normal(k, kernel.shape[1:])) for k, kernel in zip(keys, kernels, strict=True)]


def spectral_normalised(params: Any, vectors: list[Array]) -> tuple[Any, list[Array]]:
    """A network with every kernel divided by its largest singular value, and the vectors to start from next time.

    One power iteration per call: the estimate follows the kernel as it learns. Vectors are constants to the gradient.
    """
    leaves, tree = jax.tree.flatten(params)
    starts, found = iter(vectors), []
    for i, leaf in enumerate(leaves):
        if leaf.ndim == 2:
            fixed = stop_gradient(leaf)
            left = unit_vector(fixed @ next(starts))  # [in]
            right = unit_vector(left @ fixed)  # [out]
            leaves[i] = leaf / (left @ leaf @ right)
            found.append(right)
    return tree.unflatten(leaves), found


def unit_vector(x: Array) -> Array:
    return x / jnp.maximum(jnp.linalg.norm(x), 1e-12)
