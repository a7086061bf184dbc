"""Which axis of a run's state is split over devices, and which one belongs to the seeds."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

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


def seed_keys(config: Config) -> Array:
    """The key of --seed; with --num_seeds S the [S] keys of seed, seed + 1, ..., as separate runs would have."""
    if config.num_seeds == 1:
        return jax.random.key(config.seed)
    return jax.vmap(jax.random.key)(config.seed + jnp.arange(config.num_seeds))
