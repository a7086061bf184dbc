"""Many devices: one mesh axis, over which envs, replay and batches are split and along which gradients are averaged.

The training program runs inside `jax.shard_map` over this axis, on one device too. Outside of it (losses in a test, a
controller over frozen skills) everything here sees one device and changes nothing.

What crosses devices is one chain: each exchange needs the result of the one before. Two that do not could be started in
a different order by two devices, and on virtual CPU devices they would then wait for each other for ever.

What is drawn does not depend on the number of devices: each draws for all of them and takes its own rows. Row j on
device d of D is row j * D + d of all. What those extra draws cost on many devices has not been measured.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from genda_mjx.config import UserError

AXIS = "data"
Tree = TypeVar("Tree")


def make_mesh(count: int = 0) -> Mesh:
    """The first `count` devices of all processes; 0: all of them."""
    devices = jax.devices()
    if count > len(devices):
        raise UserError(f"--num_devices {count}, but jax sees {len(devices)} ({jax.default_backend()})")
    if count and count < len(devices) and jax.process_count() > 1:
        raise UserError("--num_devices does not work with several processes, whose devices are all used; drop it")
    chosen = devices[: count or None]
    return jax.make_mesh((len(chosen),), (AXIS,), (AxisType.Auto,), devices=chosen)


def everywhere(mesh: Mesh, x: np.ndarray | np.generic) -> Array:
    """A host value that every process has, on all devices."""
    return jax.device_put(x, NamedSharding(mesh, P()))


def number() -> int:
    """Devices that share the work being traced; 1 outside of the mesh."""
    try:
        return jax.lax.axis_size(AXIS)
    except NameError:
        return 1


def own_rows(draw: Callable[[int], Array], n: int) -> Array:
    """This device's n rows of draw(n * D)."""
    count = number()
    everything = draw(n * count)
    if count == 1:
        return everything
    return everything.reshape(n, count, *everything.shape[1:])[:, jax.lax.axis_index(AXIS)]


def own_places(n: int) -> Array:
    """[n] where this device's rows stand in what `gather` returns."""
    return jnp.arange(n) + (jax.lax.axis_index(AXIS) * n if number() > 1 else 0)


def gather(x: Array) -> Array:
    """[n, ...] of every device -> [n * D, ...] on every device; gradients flow back to where a row came from."""
    return jax.lax.all_gather(x, AXIS, tiled=True) if number() > 1 else x


def average(tree: Tree) -> Tree:
    """Mean over devices: with equal shares, the mean over the whole batch of what is a mean over a share."""
    return jax.lax.pmean(tree, AXIS) if number() > 1 else tree
