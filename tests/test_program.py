"""One iteration on the device: what it collects, what it learns from, and that it happens in place."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from trainer_helpers import Walk, build, tiny

from genda_mjx import schedule
from genda_mjx.schedule import nbytes

ROOT = Path(__file__).parent.parent


def words(state):
    """Every array of a state, keys as numbers."""
    return jax.tree.leaves(jax.device_get(state.replace(key=jax.random.key_data(state.key))))


@pytest.fixture(scope="module")
def learned():
    """(config, schedule, state after the warm-up and after 3 more iterations) on an env that fails now and then."""
    config = tiny(iterations_per_dispatch=3)
    built = build(config, Walk(fragile=True))
    plan, program = built.schedule, built.program
    warm, warm_metrics = program.run(program.init(jax.random.key(3)), np.int32(1))
    copy = jax.tree.map(lambda x: x.copy(), warm)
    state, metrics = program.run(copy, np.int32(3))
    return plan, program, warm, warm_metrics, state, metrics


def test_warmup_acts_uniformly_and_learns_nothing(learned):
    _, program, warm, metrics, _, _ = learned
    assert int(warm.agent.updates) == 0 and int(warm.ring.inserted) == 4
    fresh = program.init(jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, fresh.agent.params, warm.agent.params)
    assert np.isnan(metrics["phi_dot"][0])
    actions = np.asarray(warm.ring.episodes.actions[:1]).ravel()
    assert actions.min() < -0.8 and actions.max() > 0.8 and abs(actions.mean()) < 0.25


def test_learning_runs_the_scheduled_updates(learned):
    plan, _, warm, _, state, metrics = learned
    assert plan.updates_per_iteration == 4
    assert int(state.agent.updates) == 12 and list(metrics["updates"]) == [4, 8, 12]
    assert int(state.ring.inserted) == 16 and int(state.iteration) == 4
    assert np.isfinite(metrics["phi_dot"]).all()
    before, after = (jax.tree.leaves(s.agent.params["actor"]) for s in (warm, state))
    assert not np.allclose(before[1], after[1])


def test_failed_episodes_are_counted_and_left_out(learned):
    *_, state, metrics = learned
    failed = np.asarray(state.ring.episodes.observations)[..., 0, 0] > 0  # where a fragile copy starts
    assert failed.size == 16 and 0 < failed.sum() < 16
    assert int(state.ring.rejected.sum()) == failed.sum() == metrics["failed_episodes"][-1]
    np.testing.assert_array_equal(np.asarray(state.ring.valid), ~failed)


def test_one_dispatch_of_three_equals_three_of_one(learned):
    _, program, warm, _, together, _ = learned
    state = jax.tree.map(lambda x: x.copy(), warm)
    for _ in range(3):
        state, _ = program.run(state, np.int32(1))
    for one, other in zip(words(state), words(together), strict=True):
        np.testing.assert_array_equal(one, other)
    assert program.run._cache_size() == 1  # the number of iterations is not compiled in


def test_nothing_but_the_count_and_the_metrics_crosses_to_the_host(learned):
    _, program, warm, *_ = learned
    state = jax.tree.map(lambda x: x.copy(), warm)
    count = jax.device_put(np.int32(2))
    with jax.transfer_guard("disallow"):
        state, metrics = program.run(state, count)
        state, metrics = jax.block_until_ready(program.run(state, count))
    assert int(state.agent.updates) == 16
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"), jax.transfer_guard("disallow"):
        program.run(state, np.int32(1))  # the guard sees even four bytes
    assert sum(value.nbytes for value in metrics.values()) < 1000


def test_seed_decides_everything(learned):
    _, program, warm, *_ = learned
    again, _ = program.run(program.init(jax.random.key(3)), np.int32(1))
    other, _ = program.run(program.init(jax.random.key(4)), np.int32(1))
    for one, two in zip(words(warm), words(again), strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(again.ring.episodes.skill, other.ring.episodes.skill)


def test_ring_is_updated_in_place():
    """A ring a hundred times larger needs no more scratch memory, and its buffers are reused for the result."""
    scratch = []
    for buffer_size in (1600, 160_000):
        program = build(tiny(buffer_size=buffer_size, no_cib=True, no_relabel=True)).program
        abstract = jax.eval_shape(program.init, jax.random.key(0))
        memory = program.run.lower(abstract, np.int32(1)).compile().memory_analysis()
        assert memory.alias_size_in_bytes >= nbytes(abstract.ring)
        scratch.append(memory.temp_size_in_bytes)
    index = 2 * 4 * 160_000 // 10  # the table of valid episodes, the only thing that is rebuilt
    assert scratch[1] - scratch[0] <= 3 * index


RSS = """
import sys, tempfile
from pathlib import Path
import jax, numpy as np
from genda_mjx.runs.checkpoint import Checkpoints
from trainer_helpers import Walk, build, tiny
config = tiny(buffer_size=int(sys.argv[1]), total_steps=10_000, utd=0.005, no_cib=True)
program = build(config, Walk(episode_length=200)).program
state = program.init(jax.random.key(0))
for _ in range(3):
    state, metrics = program.run(state, np.int32(1))
with tempfile.TemporaryDirectory() as folder:
    checkpoints = Checkpoints(Path(folder))
    checkpoints.save(1, state, tiny())
    state, metrics = program.run(state, np.int32(1))
    checkpoints.close()
# Not ru_maxrss: it survives exec, so in a large test process it would tell that one's size.
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak, sum(x.nbytes for x in jax.tree.leaves(state.ring)))
"""


@pytest.mark.slow
def test_host_memory_grows_with_the_ring_not_with_a_copy_of_it():
    """Peak of a process that trains, saves a checkpoint and trains on."""
    peak, ring = zip(*(measure(size) for size in (800_000, 16_000_000)), strict=True)
    grown = (peak[1] - peak[0]) / (ring[1] - ring[0])
    assert ring[1] > 300e6
    assert 0.8 < grown < 1.25


def measure(buffer_size: int) -> list[int]:
    run = subprocess.run(
        [sys.executable, "-c", RSS, str(buffer_size)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=300,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"},
    )
    return [int(word) for word in run.stdout.split()[-2:]]


def test_describe_counts_and_refuses(monkeypatch):
    built = build(tiny())
    abstract = built.program.abstract
    parts = built.config, built.schedule, built.agent, abstract
    text = schedule.describe(*parts)
    assert "10 iterations of 40 steps" in text and "4 updates of batch 8" in text and "16 episodes" in text
    monkeypatch.setattr(schedule, "available_bytes", lambda: nbytes(abstract.ring))
    with pytest.raises(schedule.UserError, match="--buffer_size"):
        schedule.describe(*parts)
