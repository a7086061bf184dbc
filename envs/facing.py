"""Which way a torso faces: its axes as an observation of the policy's, and episodes turned about the vertical."""

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
SIZE = 6  # entries of the torso's x and y axes


def axes(quaternion: Array) -> Array:
    """[6, N] x and y axis in the world of the rotation [4, N]: its first two columns."""
    w, x, y, z = quaternion
    return jnp.stack(
        [
            *(1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)),
            *(2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)),
        ]
    )


def turn(observations: Array, angles: Array, starts: tuple[int, ...], mean: np.ndarray, std: np.ndarray) -> Array:
    """Observations [B, obs], standardised by mean and std, as they would be had the world been turned by angles [B].

    starts: where the vectors in world axes (x, y, z) begin.
    """
    first, size = np.array(starts), observations.shape[1]
    other, sign = np.arange(size), np.zeros(size, np.float32)  # x turns with -y, y with x
    other[first], other[first + 1] = first + 1, first
    sign[first], sign[first + 1] = -1, 1
    raw = observations * std + mean
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    return jnp.where(sign == 0, observations, (cos * raw + sin * sign * raw[:, other] - mean) / std)
