"""The memory estimate against XLA's own analysis of the compiled program."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from trainer_helpers import Walk, build, tiny

from genda_mjx import presets, schedule
from genda_mjx.build import Built


@pytest.mark.parametrize(
    ("algo", "changes"),
    [
        ("genda", {"hidden": 256, "batch_size": 2048, "cib_dim": 128}),
        ("genda", {"hidden": 32, "batch_size": 64, "num_envs": 512, "cohorts": 2, "buffer_size": 20_480}),
        *(
            pytest.param(algo, {"hidden": 256, "batch_size": 1024}, marks=pytest.mark.slow)
            for algo in ("metra", "csf", "diayn", "cic")
        ),
    ],
)
def test_estimate_is_within_a_fifth(algo, changes):
    """One run in which scratch weighs most, one in which the state does."""
    skill_dim = presets.preset("point", "paper", algo).skill_dim
    config = tiny(algo=algo, skill_dim=skill_dim, utd=0.1, **({"total_steps": 40_960} | changes))
    built = build(config, Walk())
    program, estimate = built.program, estimate_of(built)
    memory = program.run.lower(program.abstract, np.int32(1)).compile().memory_analysis()
    assert estimate.state == pytest.approx(memory.argument_size_in_bytes, rel=0.01)
    assert estimate.total == pytest.approx(memory.argument_size_in_bytes + memory.temp_size_in_bytes, rel=0.2)


def estimate_of(built: Built, devices: int = 1) -> schedule.Memory:
    return schedule.estimate(built.config, built.schedule, built.agent, built.program.abstract, devices)


def test_a_device_needs_its_share(monkeypatch):
    built = build(tiny(num_envs=8, buffer_size=8000, batch_size=16))
    whole, half = (estimate_of(built, count) for count in (1, 2))
    agent = schedule.nbytes(built.program.abstract.agent)
    parts = built.config, built.schedule, built.agent, built.program.abstract
    assert half.ring == whole.ring // 2 and half.state == half.ring + agent and half.total < whole.total
    for count in (1, 2):  # on the CPU devices share the memory
        monkeypatch.setattr(schedule, "available_bytes", lambda count=count: count * half.total)
        if count == 2:
            schedule.describe(*parts, 2)
        else:
            with pytest.raises(schedule.UserError, match="--buffer_size"):
                schedule.describe(*parts, 2)


def test_a_tpu_fills_up_the_ring_or_keeps_it_twice_and_a_gpu_learns_in_less():
    built = build(tiny(num_envs=8, buffer_size=8000, batch_size=16, hidden=64))
    leaf = jax.ShapeDtypeStruct((3, 200, 11, 70), np.float32, sharding=NamedSharding(built.mesh, P(None, "data")))
    state = built.program.abstract
    state = state.replace(ring=state.ring.replace(episodes=leaf))
    others = schedule.nbytes(state.ring) - schedule.nbytes(leaf)
    assert schedule.ring_nbytes(state, "cpu") == others + 4 * 3 * 200 * 11 * 70
    assert schedule.ring_nbytes(state, "tpu") == others + 4 * 3 * 11 * 200 * 128  # entries last, 70 take 128
    narrow = jax.ShapeDtypeStruct((62, 8, 201, 4), np.float32, sharding=leaf.sharding)  # left to the TPU: kept twice
    state = state.replace(ring=state.ring.replace(episodes=narrow))
    assert schedule.second_ring_nbytes(state, "tpu") == 4 * 62 * 201 * 8 * 128  # and not 62 * 8 * 208 * 128
    assert schedule.second_ring_nbytes(state, "cpu") == 0
    state = state.replace(ring=state.ring.replace(episodes=(leaf, narrow)))  # the order of one is ours
    assert schedule.second_ring_nbytes(state, "tpu") == 0
    parts = built.config, built.schedule, built.agent, built.program.abstract, 1
    cpu, gpu = (schedule.estimate(*parts, platform) for platform in ("cpu", "gpu"))
    assert gpu.state == cpu.state and gpu.scratch < cpu.scratch


def test_seeds_multiply_what_is_needed():
    needed = []
    for config in (tiny(num_seeds=3), tiny()):
        needed.append(estimate_of(build(config)).total)
    assert needed[0] == pytest.approx(3 * needed[1], rel=0.01)
