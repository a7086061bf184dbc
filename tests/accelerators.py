"""The run's program on the accelerators' own compilers, without a chip: `make test-accelerators`.

Needs libtpu and the CUDA plugin, in an environment of their own. Each case is a process, because a compiler is set up
before jax starts.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import factorisations
from genda_mjx import costs, hlo

ROOT = Path(__file__).parent.parent
POINT = ["--env", "point", "--preset", "small"]


def compile_for(target: str, *flags: str) -> dict:
    command = [sys.executable, "-m", "genda_mjx.runs.compile_only", "--compile_for", target, *flags]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=3000)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def check(found: dict, scratch: float) -> None:
    """What must stay true of every program on every target; scratch: bytes."""
    assert found["fits"] and found["float64_operations"] == 0 and found["host_operations"] == 0
    assert found["ring_copies_in_loops"] == 0
    assert found["temp"] < scratch
    assert {"updates", "physics"} <= set(found["seconds"]) and found["iteration_seconds"] > 0


@pytest.mark.parametrize("target", ["v5e:1x1", "v5e:2x2", "a100"])
def test_point(target):
    found = compile_for(target, *POINT)
    check(found, scratch=150e6)
    assert (found["counts"]["collectives"] > 0) == (target == "v5e:2x2")
    assert target != "v5e:1x1" or within_a_fifth(found)


def within_a_fifth(found: dict) -> bool:
    """Our estimate of memory against the compiler's count."""
    return found["estimated_memory"] == pytest.approx(found["arguments"] + found["temp"], rel=0.2)


def test_the_estimate_of_memory_on_a_gpu_is_within_a_fifth():
    found = compile_for("a100", "--env", "point", "--preset", "accelerator")
    assert found["estimated_state"] == pytest.approx(found["arguments"], rel=0.01)
    assert within_a_fifth(found)


@pytest.mark.parametrize("target", ["v5e", "a100"])
def test_bf16(target):
    check(compile_for(target, *POINT, "--bf16"), scratch=150e6)


@pytest.mark.parametrize("algo", ["metra", "csf", "diayn", "cic"])
def test_every_agent(algo):
    check(compile_for("v5e", *POINT, "--algo", algo), scratch=150e6)


@pytest.mark.parametrize("size", [22, 79])
def test_the_library_s_cholesky_takes_as_long_as_we_say(size):
    """`costs.LIBRARY` against the schedule that libtpu writes down."""
    scheduled = factorisations.measure("library", size, 2048)["scheduled"]
    told = costs.LIBRARY[hlo.CHOLESKY](1, size)
    assert abs(told / scheduled - 1) < 0.1


@pytest.mark.parametrize("size", [22, 79])
def test_our_cholesky_takes_as_long_as_we_say(size):
    """`costs.cholesky_cycles` against the schedule."""
    scheduled = factorisations.measure("kernel", size, 2048)["scheduled"]
    assert abs(costs.cholesky_cycles(size, 2048) / scheduled - 1) < 0.1


@pytest.mark.parametrize("size", [13, 22, 27, 79])
def test_our_cholesky_on_a_gpu_takes_as_many_instructions_as_we_say(size):
    """`costs.cholesky_instructions` against the PTX; and what is spilled from registers stays a small part of it."""
    found = factorisations.measure_on_a_gpu("a100", size, 2048)
    assert abs(costs.cholesky_instructions(size) / found["instructions"] - 1) < 0.15
    assert found["spilled"] / 4 < 0.03 * found["instructions"] and (size > 32 or found["spilled"] == 0)


def substep(target: str, *flags: str) -> dict:
    """A physics step of 2048 quadrupeds."""
    command = [sys.executable, "-m", "benchmarks.parts", "--bodies", "quadruped", "--parts", "substep", "--one"]
    command += ["--targets", target, *flags]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=3000)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_the_solver_on_a_gpu_uses_no_library(tmp_path):
    """Only the products of matrices are a library's; a solve is one kernel: one a Newton step, one to integrate."""
    substep("a100", "--text", str(tmp_path / "program.txt"))
    text = (tmp_path / "program.txt").read_text()
    assert not re.search("cusolver|trsm|triangular", text)
    assert "cublas" in text
    assert sum(run.times for run in hlo.parse(text).walk() if run.op.is_kernel) == 6


def test_newton_on_a_tpu_uses_no_library():
    found = substep("v5e")
    assert "library factorisation" not in found["split"]
    assert found["temp"] < 100 and found["microseconds"] < 4391 + 6 * 5047  # without it, and with six of the library's


def test_a_rollout_is_kept_once():
    """A rollout of 2048 copies of 226 numbers is 421 MB in rows; stacked in another order, it would be there twice.

    With 8 cohorts it is part of the state, and only the episodes that end, 53 MB, are taken out of it."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.rollouts"], capture_output=True, text=True, cwd=ROOT, timeout=3000
    )
    assert run.returncode == 0, run.stderr[-3000:]
    whole, cohorts = json.loads(run.stdout.splitlines()[-1])
    assert 300 < whole["temp"] < 500 and cohorts["temp"] < 150


@pytest.mark.slow
@pytest.mark.parametrize(("env", "scratch"), [("fish", 0.7e9), ("quadruped", 3e9), ("humanoid", 4e9), ("dog", 6e9)])
def test_heavier_bodies(env, scratch):
    check(compile_for("v5e", "--env", env, "--preset", "accelerator"), scratch)
