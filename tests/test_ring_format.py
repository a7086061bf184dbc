"""The ring in the order that a TPU wants: the same numbers, and checkpoints that fit both orders.

A CPU can keep an array in any order, so the TPU's is tried here.
"""

from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format
from jax.sharding import NamedSharding, PartitionSpec
from trainer_helpers import build, tiny

from genda_mjx import devices, schedule, sharding, tiles
from genda_mjx.build import Built
from genda_mjx.runs.checkpoint import Checkpoints, split
from genda_mjx.runs.report import Progress
from genda_mjx.runs.train import first_state
from genda_mjx.state import TrainState

RUN = tiny(num_envs=8, buffer_size=320, algo="diayn", skill_dim=4)  # the agent that compiles fastest


def order_of(shape: tuple[int, ...], *lead: None) -> tuple[int, ...] | None:
    place = NamedSharding(devices.make_mesh(1), PartitionSpec(*lead, None, devices.AXIS))
    found = sharding._episodes_format(jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place))
    return found.layout.major_to_minor if isinstance(found, Format) else None


def test_rows_are_whole_unless_they_waste_too_much():
    assert order_of((2, 2048, 201, 223)) == (0, 2, 1, 3)  # 223 filled up to 256
    assert order_of((80, 256, 201, 81)) == (0, 2, 1, 3)
    assert order_of((2, 2048, 200, 38)) == (0, 2, 3, 1)  # 38 would be filled up to 128, or to 40
    assert order_of((3, 2, 2048, 200, 38), None) == (0, 1, 3, 4, 2)  # of three seeds
    assert order_of((250, 8, 201, 4)) is None  # 32 times its bytes in either order
    assert order_of((2, 2048, 2)) is None  # a skill per episode


def test_steps_under_way_are_kept_as_the_program_wants_them():
    """Of 8 cohorts of 256: in the order of the arguments as in the program."""
    place = NamedSharding(devices.make_mesh(1), PartitionSpec(None, None, None, devices.AXIS))
    for entries, filled, order in ((226, 256, (0, 1, 2, 3, 4)), (38, 40, (0, 1, 2, 4, 3))):
        leaf = jax.ShapeDtypeStruct((8, 25, 8, 256, entries), jnp.float32, sharding=place)
        assert sharding._steps_format(leaf).layout.major_to_minor == order
        assert schedule.filled_nbytes(leaf, sharding._steps_format(leaf)) == 4 * 8 * 25 * 8 * 256 * filled
        text = jax.jit(tiles.kept).trace(leaf).lower(lowering_platforms=("tpu",)).as_text()
        assert ("LayoutConstraint" in text) and str(list(reversed(order)))[1:-1] in text


def advanced(built: Built, state: TrainState, iterations: int) -> TrainState:
    for _ in range(iterations):
        state, _ = built.program.run(state, np.int32(1))
    return state


@pytest.mark.parametrize("run", [RUN, RUN.replace(num_envs=16, cohorts=2)], ids=["whole episodes", "cohorts"])
def test_a_run_in_that_order_is_the_same_run(tmp_path, monkeypatch, run):
    """Through a checkpoint as well. The toy env's three numbers fill the tiles of this test."""
    usual, plain = build(run), sharding.formats
    monkeypatch.setattr(tiles, "TILE", (8, 3))
    monkeypatch.setattr(sharding, "formats", lambda abstract, platform: plain(abstract, "tpu"))
    moved = build(run.replace(resume=True, out=str(tmp_path)))
    state = advanced(moved, moved.program.init(jax.random.key(0)), 3)
    assert state.ring.episodes.observations.format.layout.major_to_minor == (0, 2, 1, 3)
    assert run.cohorts == 1 or isinstance(moved.program.formats.cohorts.past.kept, Format)
    with closing(Checkpoints(tmp_path, 1, 0)) as checkpoints:
        checkpoints.save(3 * moved.schedule.steps_per_iteration, state, run)
        checkpoints.wait()
        resumed = advanced(moved, first_state(moved, checkpoints, Progress(silent=True)), 2)
    expected = advanced(usual, usual.program.init(jax.random.key(0)), 5)
    assert int(expected.agent.updates) > 0
    for left, right in zip(*(jax.tree.leaves(split(each)) for each in (expected, resumed)), strict=True):
        np.testing.assert_array_equal(left, right)
