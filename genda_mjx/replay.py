"""A ring of whole episodes on the device, generic over the pytree that an episode is.

Observations are stored once: an episode has T+1 rows and s' is the row after s. Hand-written because existing buffers
either copy themselves on every insert (`jnp.roll`) or gather whole sequences where GenDa needs six rows.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array


@flax.struct.dataclass
class EpisodeRing:
    """C episodes, of which the first `filled` places hold data. Sampling only ever sees valid episodes."""

    episodes: Any  # pytree, leaves [C, ...] of any dtype
    valid: Array  # [C] bool, False for empty places and for episodes whose physics failed
    sampleable: Array  # [C] int32, places of the valid episodes first
    count: Array  # number of valid episodes
    cursor: Array  # place that the next insert writes first
    inserted: Array  # episodes ever inserted
    rejected: Array  # episodes ever inserted as invalid


def empty(episode: Any, capacity: int) -> EpisodeRing:
    """A ring for `capacity` episodes shaped like `episode` (arrays or ShapeDtypeStructs, no leading axis)."""
    zero = lambda: jnp.zeros((), jnp.int32)  # a buffer each: one that is shared cannot be donated
    return EpisodeRing(
        episodes=jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), episode),
        valid=jnp.zeros(capacity, bool),
        sampleable=jnp.zeros(capacity, jnp.int32),
        count=zero(),
        cursor=zero(),
        inserted=zero(),
        rejected=zero(),
    )


def insert(ring: EpisodeRing, episodes: Any, valid: Array) -> EpisodeRing:
    """Write N episodes (leaves [N, ...], valid [N]) over the oldest ones. N must divide C, so no write wraps."""
    capacity, n = len(ring.valid), len(valid)
    if capacity % n:
        raise ValueError(f"capacity {capacity} is not a multiple of the {n} episodes inserted at once")
    write = lambda store, new: jax.lax.dynamic_update_slice_in_dim(store, new, ring.cursor, axis=0)
    flags = write(ring.valid, valid)
    return ring.replace(
        episodes=jax.tree.map(write, ring.episodes, episodes),
        valid=flags,
        sampleable=jnp.nonzero(flags, size=capacity, fill_value=0)[0].astype(jnp.int32),
        count=flags.sum(dtype=jnp.int32),
        cursor=(ring.cursor + n) % capacity,
        inserted=ring.inserted + n,
        rejected=ring.rejected + (~valid).sum(dtype=jnp.int32),
    )


def sample_episodes(ring: EpisodeRing, key: Array, batch: int) -> Array:
    """[B] places, uniform with replacement over the valid episodes (there must be one)."""
    return ring.sampleable[jax.random.randint(key, (batch,), 0, jnp.maximum(ring.count, 1))]


def sample_times(key: Array, batch: int, length: int, max_horizon: int) -> tuple[Array, Array]:
    """([B] t in 0..T-1, [B] t+c): c uniform in 1..min(max_horizon, T-1-t), and 1 at the last step."""
    key_t, key_c = jax.random.split(key)
    t = jax.random.randint(key_t, (batch,), 0, length)
    longest = jnp.maximum(jnp.minimum(max_horizon, length - 1 - t), 1)
    return t, t + jax.random.randint(key_c, (batch,), 1, longest + 1)


def rows(leaf: Array, places: Array, times: Array) -> Array:
    """leaf [C, T+1, ...] -> [K, B, ...], row times[K, B] of episode places[B]; nothing else is read."""
    return leaf.at[places[None, :], times].get(mode="promise_in_bounds")
