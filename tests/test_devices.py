"""Many devices and processes. Virtual devices must be asked for before jax starts, so they have their own processes."""

import csv
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def with_devices(count: int) -> dict[str, str]:
    """The environment of a process with so many CPU devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}


@pytest.mark.parametrize("mark", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_four_devices(mark):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-m", mark, "tests/four_devices.py"]
    run = subprocess.run(command, cwd=ROOT, env=with_devices(4), capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]


TINY = [
    *("--env=point", "--algo=diayn", "--skill_dim=4", "--hidden=16", "--batch_size=16", "--utd=0.1", "--num_envs=8"),
    *("--cohorts=2", "--warmup_episodes=4", "--buffer_size=400", "--eval_episodes=6", "--eval_every=0"),
    *("--checkpoint_every=0", "--learning_rate=1e-3"),
]


class Member:
    """One process of a pod of `count`, with two devices."""

    def __init__(self, run: Path, count: int, number: int, port: int, *flags: str):
        pod = ["--coordinator", f"localhost:{port}", "--num_processes", str(count), "--process_id", str(number)]
        command = [sys.executable, "tests/pod_member.py", *TINY, "--out", str(run), *(pod if count > 1 else []), *flags]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=with_devices(2), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def finish(self) -> str:
        output, errors = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, output[-3000:] + errors[-3000:]
        return output


def start(run: Path, count: int, *flags: str) -> list[Member]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return [Member(run, count, number, port, *flags) for number in range(count)]


def steps_of(run: Path) -> list[int]:
    """Of metrics.csv, as far as it is written."""
    path = run / "metrics.csv"
    lines = path.read_text().split("\n")[1:-1] if path.exists() else []
    return [int(line.split(",")[0]) for line in lines]


def saved(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir())


def test_two_processes_stop_together_and_go_on_as_one_and_as_two(tmp_path):
    """SIGTERM on the process that is not the lead saves on both; then 1 process for a while, then 2 to the end."""
    run = tmp_path / "run"
    pod = start(run, 2, "--total_steps", "4000000")
    while len(steps_of(run)) < 8:
        assert all(member.process.poll() is None for member in pod), [m.process.communicate() for m in pod]
        time.sleep(0.1)
    pod[1].process.send_signal(signal.SIGTERM)
    outputs = [member.finish() for member in pod]
    (stopped,) = saved(run)
    assert f"stopped at step {stopped:,}" in outputs[0] and "step" not in outputs[1]
    assert steps_of(run) == list(range(40, stopped + 1, 40))
    assert "4 devices" in outputs[0] and "2 processes" in outputs[0]

    end = stopped + 80
    (alone,) = start(run, 1, "--resume", "--total_steps", str(end))
    assert "2 devices" in alone.finish()
    again = start(run, 2, "--resume", "--total_steps", str(end + 80))
    assert [f"finished at step {end + 80:,}" in member.finish() for member in again] == [True, False]
    assert steps_of(run) == list(range(40, end + 81, 40))
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    updates = [int(row["updates"]) for row in rows]
    assert updates[2:] == list(range(updates[2], updates[2] + 4 * len(updates[2:]), 4))  # none lost, none twice


def test_a_mistake_stops_every_process(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    pod = start(tmp_path, 2)
    errors = [member.process.communicate(timeout=120)[1] for member in pod]
    assert [member.process.returncode for member in pod] == [2, 2]
    assert "not empty and not a run" in errors[0] and "process 0 cannot start" in errors[1]


def test_half_a_pod_is_refused(tmp_path):
    for flags, words in ((["--process_id", "1"], "need --coordinator"), (["--coordinator", "a:1"], "--num_processes")):
        (member,) = start(tmp_path / "run", 1, *flags)
        _, errors = member.process.communicate(timeout=120)
        assert member.process.returncode == 2 and words in errors


def free_job() -> int:
    """A job number whose port, which jax derives from it, is free."""
    for job in range(1000, 5000):
        with socket.socket() as port:
            if port.connect_ex(("localhost", 61440 + job % 4096)):
                return job
    raise RuntimeError("no free port")


@pytest.mark.parametrize(("nodes", "gpus"), [(2, ["all", "all"]), (1, ["0", "1"])])
def test_two_tasks_under_slurm(nodes, gpus):
    """Found by Slurm's variables alone. One task a node has all its GPUs, of several on a node each has its own."""
    code = (
        "import jax; from genda_mjx.config import Config; from genda_mjx.runs import processes\n"
        "processes.start(Config())\n"
        "print(jax.process_index(), jax.device_count(), jax.config.values['jax_cuda_visible_devices'])"
    )
    job, tasks = str(free_job()), []
    for i in range(2):
        slurm = {"JOB_ID": job, "STEP_NODELIST": "localhost", "NTASKS": "2", "PROCID": str(i)}
        slurm |= {"LOCALID": str(0 if nodes == 2 else i), "STEP_NUM_NODES": str(nodes)}
        environment = with_devices(2) | {f"SLURM_{name}": value for name, value in slurm.items()}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        tasks.append(subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment, **pipes))
    for i, task in enumerate(tasks):
        output, errors = task.communicate(timeout=120)
        assert task.returncode == 0, errors[-3000:]
        assert output.split() == [str(i), "4", gpus[i]]
