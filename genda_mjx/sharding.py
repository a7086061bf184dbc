"""Which axis of a run's state is split over devices, and which one belongs to the seeds."""

import math
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from genda_mjx import tiles
from genda_mjx.cohorts import Cohorts
from genda_mjx.config import Config
from genda_mjx.devices import AXIS
from genda_mjx.replay import EpisodeRing
from genda_mjx.state import TrainState

Tree = TypeVar("Tree")

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
    """Where a state lies and, for episodes on TPUs, in which order: shardings, or `Format`s where the order is ours."""
    plain = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    if platform != "tpu":
        return plain
    episodes = jax.tree.map(_episodes_format, abstract.ring.episodes)
    ordered = plain.replace(ring=plain.ring.replace(episodes=episodes))
    if abstract.cohorts is None:
        return ordered
    past = jax.tree.map(_steps_format, abstract.cohorts.past)
    return ordered.replace(cohorts=plain.cohorts.replace(past=past))


def _episodes_format(leaf: jax.ShapeDtypeStruct) -> Format | NamedSharding:
    """The order of a ring array [..., slots, M, T, k] in which rollouts write it: slots, time, then M and k."""
    columns = leaf.sharding.spec.index(AXIS)
    time, entries = columns + 1, columns + 2
    if leaf.ndim != columns + 3:
        return leaf.sharding
    return _format(leaf, (*range(columns), time), (columns, entries))


def _steps_format(leaf: jax.ShapeDtypeStruct) -> Format | NamedSharding:
    """The order of steps [..., M, k] of episodes under way: M and k last."""
    columns = leaf.sharding.spec.index(AXIS)
    if leaf.ndim != columns + 2:
        return leaf.sharding
    return _format(leaf, tuple(range(columns)), (columns, columns + 1))


def _format(leaf: jax.ShapeDtypeStruct, before: tuple[int, ...], last: tuple[int, int]) -> Format | NamedSharding:
    chosen = tiles.order(leaf.sharding.shard_shape(leaf.shape), before, last)
    return leaf.sharding if chosen is None else Format(Layout(chosen), leaf.sharding)


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
    for axis, least in zip(order[-2:], tiles.TILE, strict=True):
        here[axis] = tiles.filled(here[axis], least)
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
