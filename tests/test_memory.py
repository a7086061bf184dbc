"""The memory estimate against XLA's own analysis of the compiled program."""

import numpy as np
import pytest
from trainer_helpers import Walk, build, tiny

from genda_mjx import config as configuration
from genda_mjx import schedule


@pytest.mark.parametrize(
    ("algo", "changes"),
    [
        ("genda", {"hidden": 256, "batch_size": 2048, "cib_dim": 128}),
        ("genda", {"hidden": 32, "batch_size": 64, "num_envs": 512, "cohorts": 2, "buffer_size": 20_480}),
        *(pytest.param(algo, {"hidden": 256, "batch_size": 1024}, marks=pytest.mark.slow)
          for algo in ("metra", "csf", "diayn", "cic")),
    ],
)  # fmt: skip
def test_estimate_is_within_a_fifth(algo, changes):
    """One run in which scratch weighs most, one in which the state does."""
    skill_dim = configuration.preset("point", "paper", algo).skill_dim
    config = tiny(algo=algo, skill_dim=skill_dim, utd=0.1, **({"total_steps": 40_960} | changes))
    plan, _, program = build(config, Walk())
    estimate = schedule.estimate(config, plan, program.abstract, 1)
    memory = program.run.lower(program.abstract, np.int32(1)).compile().memory_analysis()
    assert estimate.state == pytest.approx(memory.argument_size_in_bytes, rel=0.01)
    assert estimate.total == pytest.approx(memory.argument_size_in_bytes + memory.temp_size_in_bytes, rel=0.2)


def test_a_device_needs_its_share(monkeypatch):
    config = tiny(num_envs=8, buffer_size=8000, batch_size=16)
    plan, _, program = build(config)
    whole, half = (schedule.estimate(config, plan, program.abstract, count) for count in (1, 2))
    agent = schedule.nbytes(program.abstract.agent)
    assert half.ring == whole.ring // 2 and half.state == half.ring + agent and half.total < whole.total
    for count in (1, 2):  # on the CPU devices share the memory
        monkeypatch.setattr(schedule, "available_bytes", lambda count=count: count * half.total)
        if count == 2:
            schedule.describe(config, plan, program.abstract, 2)
        else:
            with pytest.raises(schedule.UserError, match="--buffer_size"):
                schedule.describe(config, plan, program.abstract, 2)


def test_seeds_multiply_what_is_needed():
    needed = []
    for config in (tiny(num_seeds=3), tiny()):
        plan, _, program = build(config)
        needed.append(schedule.estimate(config, plan, program.abstract, 1).total)
    assert needed[0] == pytest.approx(3 * needed[1], rel=0.01)
