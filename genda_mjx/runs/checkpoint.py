"""Checkpoints of a run: the learner and the replay as separate Orbax items, so that evaluation can skip the replay.

A checkpoint appears under its final name only when it is complete (Orbax renames it), so a run that is killed at any
moment keeps the previous one. The layout of every array is kept beside it and compared before anything is loaded.
"""

import errno
import logging
import os
import platform
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

from genda_mjx.config import Config, UserError
from genda_mjx.state import TrainState

SCHEMA = 4  # raise when old checkpoints can no longer be read
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "brax", "mujoco", "mujoco-mjx", "dm_control")
NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class NotWritten(UserError):
    """A checkpoint could not be written; older ones are as they were."""


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def layout(tree: Any) -> dict[str, str]:
    """Path of every array -> its type, like "float32[256,81]"."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def checksums(tree: Any) -> dict[str, int]:
    """Path of every array -> a sum over its bits; Orbax notices a missing or short file, but not a flipped bit.

    Each device adds up what it holds, and the host the devices, so a sum does not depend on how the array is split.
    """
    paths, leaves = zip(*jax.tree_util.tree_leaves_with_path(tree), strict=True)
    held: dict[jax.Device, dict[int, tuple[jax.Array, np.ndarray]]] = {}
    for number, leaf in enumerate(leaves):
        for shard in leaf.addressable_shards:
            if shard.replica_id == 0:
                first = np.array([part.start or 0 for part in shard.index], np.uint32)
                held.setdefault(shard.device, {})[number] = shard.data, first
    totals = np.zeros(len(leaves), np.uint32)
    for found in jax.device_get([_checksums(parts) for parts in held.values()]):
        for number, value in found.items():
            totals[number] += value
    if jax.process_count() > 1:
        totals = multihost_utils.process_allgather(totals).sum(0, dtype=np.uint32)
    return {jax.tree_util.keystr(path): int(value) for path, value in zip(paths, totals, strict=True)}


@jax.jit
def _checksums(parts: dict[int, tuple[jax.Array, jax.Array]]) -> dict[int, jax.Array]:
    return {number: checksum(*part) for number, part in parts.items()}


@jax.jit  # traced once for each shape
def checksum(x: jax.Array, first: jax.Array) -> jax.Array:
    """uint32 of a part of an array, which begins at the indices `first` [dimensions] of the whole: the sum modulo 2^32
    of one scrambled number per element, made of its bits and its indices."""
    if x.dtype == bool:
        x = x.astype(jnp.uint8)
    if x.ndim == 0:
        x, first = x[None], jnp.zeros(1, jnp.uint32)
    index = [jnp.arange(size, dtype=jnp.uint32) + start for size, start in zip(x.shape, first, strict=True)]

    def add(total: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        place, values = scramble(row[0]), row[1]
        for more in index[1:]:
            place = scramble(place[..., None] + more)
        bits = jax.lax.bitcast_convert_type(values, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
        return total + scramble(bits + place).sum(dtype=jnp.uint32), None

    # Row by row: XLA would write out the numbers of the whole array before it adds them.
    return jax.lax.scan(add, jnp.uint32(0), (index[0], x))[0]


def scramble(x: jax.Array) -> jax.Array:
    """A bijection of uint32 in which every bit depends on all (the lowbias32 hash of C. Wellons)."""
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def split(state: TrainState) -> dict[str, Any]:
    """TrainState -> items of a checkpoint. Keys are stored as their words, which any version can read."""
    key = jax.random.key_data(state.key) if isinstance(state.key, jax.Array) else abstract_key_data(state.key)
    items = {"learner": {"agent": state.agent, "key": key, "iteration": state.iteration}, "replay": state.ring}
    return items if state.cohorts is None else items | {"cohorts": filled(state.cohorts)}


def filled(tree: Any) -> dict[str, Any]:
    """A tree's arrays by path, without those of size 0 (a body without activations has one), which Orbax refuses."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if leaf.size}


def abstract_key_data(key: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    data = jax.eval_shape(jax.random.key_data, key)
    return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=key.sharding)


def join(items: dict[str, Any], abstract: TrainState) -> TrainState:
    learner = items["learner"]

    def find(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        stored = items["cohorts"].get(jax.tree_util.keystr(path))
        return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding) if stored is None else stored

    under_way = jax.tree_util.tree_map_with_path(find, abstract.cohorts)
    key = jax.random.wrap_key_data(learner["key"])
    return TrainState(learner["agent"], items["replay"], key, learner["iteration"], under_way)


class Checkpoints:
    """The checkpoints of one run folder, by environment step."""

    def __init__(self, run: Path, keep_last: int = 1, keep_steps: int = 0, read_only: bool = False):
        self.folder = (run / "checkpoints").resolve()
        quiet_failed_saves()
        policies = ocp.training.preservation_policies
        keep = [policies.LatestN(keep_last)] + ([policies.EveryNSteps(keep_steps)] if keep_steps else [])
        self._orbax = ocp.training.Checkpointer(
            self.folder,
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),  # the loop decides
            preservation_policy=policies.AnyPreservationPolicy(keep) if not read_only else policies.PreserveAll(),
            cleanup_tmp_directories=not read_only,  # what a killed run left half-written
        )
        self._read_only, self._pending = read_only, None
        self._broken = False

    @property
    def steps(self) -> list[int]:
        return [checkpoint.step for checkpoint in self._orbax.checkpoints]

    def save(self, step: int, state: TrainState, config: Config) -> None:
        """Writes in the background. On the CPU backend the writer reads the live buffers, so there we wait for it:
        running on would make XLA copy the donated state, and the ring with it."""
        self.wait()
        items = split(state)
        metadata = {
            "schema": SCHEMA,
            "versions": versions(),
            "config": config.to_json(),
            "layout": layout(items),
            "checksums": checksums(items),
        }
        try:
            pending = self._orbax.save_checkpointables_async(step, items, force=True, custom_metadata=metadata)
        except Exception as error:
            raise self._not_written(step, error) from error
        self._pending = step, pending
        if jax.default_backend() == "cpu":
            self.wait()

    def wait(self) -> None:
        if self._pending is not None:
            (step, pending), self._pending = self._pending, None
            try:
                pending.result()
            except Exception as error:
                raise self._not_written(step, error) from error

    def close(self) -> None:
        """Closes the manager, but not after a failed save, whose threads Orbax would wait for."""
        self.wait()
        if not self._broken:
            self._orbax.close()

    def _not_written(self, step: int, error: Exception) -> NotWritten:
        self._broken = True
        older = [other for other in self.steps if other != step]
        for partial in self.folder.glob(f"{step}.*"):
            shutil.rmtree(partial, ignore_errors=True)
        kept = f"step {older[-1]} is kept: continue from it" if older else "there is no older one: start again"
        reason = system_reason(error)
        return NotWritten(f"cannot write checkpoint {self.folder / str(step)} ({reason}); make room; {kept}")

    def load(self, step: int | None, abstract: TrainState) -> TrainState:
        """The whole state, as `abstract` (shapes) says it must be, on the devices that it names (else on the first)."""
        return join(self._load(step, split(abstract)), abstract)

    def load_agent(self, step: int | None, abstract: TrainState) -> Any:
        """The agent alone; the replay is not read."""
        return self._load(step, {"learner": split(abstract)["learner"]})["learner"]["agent"]

    def resolve(self, step: int | None) -> int:
        """The asked step, or the newest; refuses one that is not there."""
        steps = self.steps
        if not steps:
            raise UserError(f"no checkpoint in {self.folder}")
        if step is not None and step not in steps:
            raise UserError(f"no checkpoint at step {step} in {self.folder}; there are {', '.join(map(str, steps))}")
        return steps[-1] if step is None else step

    def _load(self, step: int | None, abstract: dict[str, Any]) -> dict[str, Any]:
        step = self.resolve(step)
        path = self.folder / str(step)
        try:
            metadata = self._orbax.checkpointables_metadata(step).custom_metadata
            stored, sums, schema = metadata["layout"], metadata["checksums"], metadata["schema"]
        except Exception as error:
            raise self._damaged(path, step) from error
        if schema != SCHEMA:
            raise UserError(f"{path} has checkpoint schema {schema}, this version reads {SCHEMA}")
        wanted = layout(abstract)
        items = tuple(f"['{name}']" for name in abstract)
        stored = {name: shape for name, shape in stored.items() if name.startswith(items)}
        if stored != wanted:
            differing = [
                f"{name}: {stored.get(name, 'absent')} stored, {wanted.get(name, 'absent')} expected"
                for name in sorted(stored.keys() | wanted.keys())
                if stored.get(name) != wanted.get(name)
            ]
            more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise UserError(f"{path} does not fit this run: {'; '.join(differing[:3])}{more}")
        here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

        def placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding or here)

        try:
            loaded = self._orbax.load_checkpointables(step, jax.tree.map(placed, abstract))
        except Exception as error:
            raise self._damaged(path, step) from error
        if any(found != sums[name] for name, found in checksums(loaded).items()):
            raise self._damaged(path, step)
        return loaded

    def _damaged(self, path: Path, step: int) -> UserError:
        older = [other for other in self.steps if other < step]
        offer = "take it with --step {}" if self._read_only else "move the damaged one away to continue from step {}"
        return UserError(
            f"checkpoint {path} is damaged; " + (offer.format(older[-1]) if older else "there is no older one")
        )


def quiet_failed_saves() -> None:
    """Silences Orbax after a failed save: every thread of it logs a traceback, and later files find its event loop
    closed; what is wrong is in the exception that reaches us."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _unless_loop_is_closed


def _unless_loop_is_closed(unraisable: Any) -> None:
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def system_reason(error: BaseException | None) -> str:
    """The operating system's words, if it is at the root of an error: file too large, no space left, ..."""
    text = str(error)
    while error is not None:
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        error = error.__cause__ or error.__context__
    reasons = (os.strerror(number) for number in (*NO_ROOM, errno.EACCES, errno.EROFS, errno.EIO))
    return next((reason for reason in reasons if reason in text), "the file system refuses it")
