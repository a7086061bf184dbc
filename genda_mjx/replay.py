"""A ring of whole episodes on the device, generic over the pytree that an episode is.

Observations are stored once: an episode has T+1 rows and s' is the row after s. Hand-written because existing buffers
either copy themselves on every insert (`jnp.roll`) or gather whole sequences where GenDa needs six rows.

The C episodes stand as [slots, M]: an insert fills one slot with the M episodes that an iteration ends. With several
devices the second axis is split, each writes and reads its own columns, and a slot stays a slot on any number of them.
"""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from genda_mjx import devices


@flax.struct.dataclass
class EpisodeRing:
    """The stored episodes, of which sampling only ever sees the valid ones."""

    episodes: Any  # pytree, leaves [slots, M, ...] of any dtype
    valid: Array  # [slots, M] bool, False for empty places and for episodes whose physics failed
    slot: Array  # the slot that the next insert fills
    inserted: Array  # episodes ever inserted, on all devices
    rejected: Array  # [M] those of them that were invalid, by column


class Places(NamedTuple):
    """Where a ring (or this device's columns of it) can be read, as flat places slot * M + column."""

    valid: Array  # [slots * M] int32, the valid places first
    count: Array  # how many they are


def empty(episode: Any, capacity: int, at_once: int) -> EpisodeRing:
    """A ring for `capacity` episodes shaped like `episode` (arrays or ShapeDtypeStructs), M = at_once per insert."""
    if capacity % at_once:
        raise ValueError(f"capacity {capacity} is not a multiple of the {at_once} episodes inserted at once")
    shape = capacity // at_once, at_once
    return EpisodeRing(
        episodes=jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), episode),
        valid=jnp.zeros(shape, bool),
        slot=jnp.zeros((), jnp.int32),  # each its own buffer: one that is shared cannot be donated
        inserted=jnp.zeros((), jnp.int32),
        rejected=jnp.zeros(at_once, jnp.int32),
    )


def insert(ring: EpisodeRing, episodes: Any, valid: Array, whole: Array | bool = True) -> EpisodeRing:
    """Writes M episodes (leaves [M, ...], valid [M]) over the oldest ones. If they are not `whole`, all are invalid,
    uncounted, and overwritten by the next."""

    def write(store: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(store, new, ring.slot, axis=0)

    return ring.replace(
        episodes=jax.tree.map(write, ring.episodes, episodes),
        valid=write(ring.valid, valid & whole),
        slot=(ring.slot + whole) % len(ring.valid),
        inserted=ring.inserted + len(valid) * devices.number() * jnp.int32(whole),
        rejected=ring.rejected + (~valid & whole),
    )


def places(ring: EpisodeRing) -> Places:
    """Where the ring can be read; looked up once per insert, then used by every batch."""
    valid = ring.valid.reshape(-1)
    found = jnp.nonzero(valid, size=len(valid), fill_value=0)[0].astype(jnp.int32)
    return Places(found, valid.sum(dtype=jnp.int32))


def sample_episodes(places: Places, key: Array, batch: int) -> Array:
    """[B] places, uniform with replacement over the valid episodes (there must be one)."""

    def draw(rows: int) -> Array:
        return jax.random.randint(key, (rows,), 0, jnp.maximum(places.count, 1))

    return places.valid[devices.own_rows(draw, batch)]


def sample_times(key: Array, batch: int, length: int, max_horizon: int) -> tuple[Array, Array]:
    """([B] t in 0..T-1, [B] t+c): c uniform in 1..min(max_horizon, T-1-t), and 1 at the last step."""

    def draw(rows: int) -> Array:
        key_t, key_c = jax.random.split(key)
        t = jax.random.randint(key_t, (rows,), 0, length)
        longest = jnp.maximum(jnp.minimum(max_horizon, length - 1 - t), 1)
        return jnp.stack([t, t + jax.random.randint(key_c, (rows,), 1, longest + 1)], -1)

    t, t_c = devices.own_rows(draw, batch).T
    return t, t_c


def rows(leaf: Array, places: Array, times: Array) -> Array:
    """leaf [slots, M, T+1, ...] -> [K, B, ...], row times[K, B] of episode places[B]; nothing else is read.

    Slot and column stay two indices: joined into one axis, a TPU copies the whole ring at every update.
    """
    slot, column = jnp.divmod(places, leaf.shape[1])
    return leaf.at[slot[None, :], column[None, :], times].get(mode="promise_in_bounds")


def entries(leaf: Array, places: Array) -> Array:
    """leaf [slots, M, ...] -> [B, ...]: what an episode has once."""
    return leaf.at[jnp.divmod(places, leaf.shape[1])].get(mode="promise_in_bounds")


def observations(stored: Any, places: Array, times: Array, history: int) -> list[Any]:
    """K batches of observations at times[K, B], each made of the `history` frames that end there, the newest last."""

    def frames(leaf: Array) -> Array:
        past = [rows(leaf, places, jnp.maximum(times - age, 0)) for age in reversed(range(history))]
        return jnp.concatenate(past, -1) if history > 1 else past[0]

    joined = jax.tree.map(frames, stored)
    return [jax.tree.map(lambda leaf, k=k: leaf[k], joined) for k in range(len(times))]


def stack(stored: Any, history: int) -> Any:
    """Observations [E, T+1, ...] of whole episodes from their frames [E, T+1, ...]; the first frame repeats."""
    if history == 1:
        return stored

    def of(leaf: Array) -> Array:
        past = [leaf[:, np.maximum(np.arange(leaf.shape[1]) - age, 0)] for age in reversed(range(history))]
        return jnp.concatenate(past, -1)

    return jax.tree.map(of, stored)
