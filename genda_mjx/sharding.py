"""Which axis of a run's state is split over devices, and which one belongs to the seeds."""

import math
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from genda_mjx.cohorts import Cohorts
from genda_mjx.config import Config
from genda_mjx.devices import AXIS
from genda_mjx.replay import EpisodeRing
from genda_mjx.state import TrainState

Tree = TypeVar("Tree")
TILE = 8, 128  # to which a TPU fills up the last two axes of an array
MOST_WASTE = 2  # bytes of a filled-up array over its own

# With --num_seeds S whole runs are vmapped: every leaf has a leading [S] but these, which are the same in all of them
# and, left alone, keep the warm-up a branch and the insertion a slice.
SEED_AXES = TrainState(
    agent=0,
    ring=EpisodeRing(episodes=0, valid=0, slot=None, inserted=None, rejected=0),
    key=0,
    iteration=None,
    cohorts=0,
)


def split_axes(config: Config) -> TrainState:
    """What of a state is split over the devices: the axis of the M episodes. The rest is the same on all."""
    lead = () if config.num_seeds == 1 else (None,)
    columns, past, counters = P(*lead, None, AXIS), P(*lead, None, None, None, AXIS), P(*lead, AXIS)
    return TrainState(
        agent=P(),
        ring=EpisodeRing(episodes=columns, valid=columns, slot=P(), inserted=P(), rejected=counters),
        key=P(),
        iteration=P(),
        cohorts=None if config.cohorts == 1 else Cohorts(envs=columns, skill=columns, past=past),
    )


def place(mesh: Mesh, specs: Tree, shapes: Tree) -> Tree:
    """Shapes with their shardings; `specs` may be a prefix of the tree."""

    def within(spec: P, part: Tree) -> Tree:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part)

    return jax.tree.map(within, specs, shapes, is_leaf=lambda x: isinstance(x, P))


def formats(abstract: TrainState, platform: str) -> TrainState:
    """Where a state lies and, for a ring on TPUs, in which order: shardings, or `Format`s where the order is ours."""
    plain = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    if platform != "tpu":
        return plain
    episodes = jax.tree.map(_episodes_format, abstract.ring.episodes)
    return plain.replace(ring=plain.ring.replace(episodes=episodes))


def _episodes_format(leaf: jax.ShapeDtypeStruct) -> Format | NamedSharding:
    """The order of a ring array [..., slots, M, T, k] in which rollouts write it: slots, time, then M and k.

    A TPU lays an argument out as compactly as it can, which is another order; the ring would be copied to that of the
    loop and back in every dispatch, and exist twice meanwhile. The last two axes are filled up to tiles of 8 x 128: k
    comes last, so that a row is read at once, unless that takes as much as a second ring; then M, or the TPU's choice.
    """
    columns = leaf.sharding.spec.index(AXIS)
    time, entries = columns + 1, columns + 2
    here = leaf.sharding.shard_shape(leaf.shape)
    if len(here) != columns + 3:
        return leaf.sharding

    def waste(last: tuple[int, int]) -> float:
        return math.prod(
            math.ceil(here[axis] / least) * least / here[axis] for axis, least in zip(last, TILE, strict=True)
        )

    for last in ((columns, entries), (entries, columns)):
        if waste(last) < MOST_WASTE:
            return Format(Layout((*range(columns), time, *last)), leaf.sharding)
    return leaf.sharding


def copied_in_rows(leaf: jax.ShapeDtypeStruct) -> int:
    """Bytes, over all devices, of the copy that a TPU's loop keeps of a ring array whose order is left to it.

    The loop reads rows, so k comes last and is filled up; before it M or T, whichever is less.
    """
    columns = leaf.sharding.spec.index(AXIS)
    time, entries = columns + 1, columns + 2
    if leaf.ndim != columns + 3:
        return 0
    return min(filled_up(leaf, (axis, entries)) for axis in (columns, time))


def filled_up(leaf: jax.ShapeDtypeStruct, order: tuple[int, ...]) -> int:
    """Bytes of an array, over all devices, whose last two axes in `order` are filled up to tiles on each device."""
    here = list(leaf.sharding.shard_shape(leaf.shape))
    shards = leaf.size // math.prod(here)
    for axis, least in zip(order[-2:], TILE, strict=True):
        here[axis] = math.ceil(here[axis] / least) * least
    return shards * math.prod(here) * leaf.dtype.itemsize


def in_order(state: TrainState, formats: TrainState) -> TrainState:
    """The same state (donated) in the order of `formats`; a program does it, since no process of a pod has it whole."""
    if not any(isinstance(leaf, Format) for leaf in jax.tree.leaves(formats)):
        return state
    return jax.jit(lambda state: state, out_shardings=formats, donate_argnums=0)(state)


def seed_keys(config: Config) -> Array:
    """The key of --seed; with --num_seeds S the [S] keys of seed, seed + 1, ..., as separate runs would have."""
    if config.num_seeds == 1:
        return jax.random.key(config.seed)
    return jax.vmap(jax.random.key)(config.seed + jnp.arange(config.num_seeds))
