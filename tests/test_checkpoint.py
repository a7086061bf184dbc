"""Exact resume: in process on a toy env, and through kill -9 on the real command line."""

import csv
import dataclasses
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from trainer_helpers import Walk, build, tiny

from genda_mjx.build import make_env
from genda_mjx.config import UserError
from genda_mjx.runs import checkpoint
from genda_mjx.runs.folder import read_config
from genda_mjx.runs.train import train

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "jax"  # of compiled programs, as in conftest
SMALL = (  # with cohorts, so that every checkpoint is taken in the middle of episodes
    "--env point --hidden 16 --cib_dim 4 --batch_size 8 --utd 0.02 --num_envs 2 --cohorts 2 --warmup_episodes 2 "
    "--buffer_size 2000 --eval_episodes 4 --checkpoint_every 400 --eval_every 1200 --total_steps 3200 "
    f"--compile_cache {CACHE}"
).split()


def train_command(out: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "train.py"), "--out", str(out), *arguments]


def final_state(run: Path, env=None):
    """All arrays of the newest checkpoint."""
    config = read_config(run)
    abstract = build(config, env or make_env(config.env)).program.abstract
    checkpoints = checkpoint.Checkpoints(run, read_only=True)
    state = checkpoints.load(None, abstract)
    checkpoints.close()
    return jax.tree.leaves(jax.device_get(checkpoint.split(state)))


def assert_same_run(one: Path, other: Path, env=None) -> None:
    for left, right in zip(final_state(one, env), final_state(other, env), strict=True):
        np.testing.assert_array_equal(left, right)
    assert (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()


@pytest.fixture
def toy(tmp_path):
    """Training on the toy env: toy(name, **changes) runs it and returns the folder."""

    def run(name: str, env=None, **changes) -> Path:
        folder = tmp_path / name
        train(tiny(out=str(folder), **changes), env or Walk(fragile=True))
        return folder

    return run


@pytest.mark.parametrize(  # tests/test_baselines.py resumes the program of every agent; this is the whole loop
    "algo", ["genda", *(pytest.param(name, marks=pytest.mark.slow) for name in ("metra", "csf", "diayn", "cic"))]
)
def test_resumed_run_equals_a_straight_one(toy, algo):
    straight = toy("straight", eval_every=120, algo=algo)
    parts = toy("parts", total_steps=120, eval_every=120, algo=algo)
    toy("parts", total_steps=320, eval_every=120, resume=True, algo=algo)
    toy("parts", total_steps=400, eval_every=120, resume=True, checkpoint_every=40, algo=algo)
    # The shorter runs evaluate at their own ends too; those are the only rows that may differ.
    rows = [list(csv.DictReader((run / "metrics.csv").open())) for run in (straight, parts)]
    assert len(rows[0]) == len(rows[1]) == 10
    for one, other in zip(*rows, strict=True):
        if one["step"] != "320":
            assert one == other
    for left, right in zip(final_state(straight, Walk()), final_state(parts, Walk()), strict=True):
        np.testing.assert_array_equal(left, right)


def test_rows_after_the_checkpoint_are_taken_back(toy):
    straight = toy("straight")
    run = toy("run", total_steps=200)
    with (run / "metrics.csv").open("a") as file:
        file.write("240,6,1,,,,9,9,9\n280,7,4")  # what a kill leaves: rows without a checkpoint, the last cut off
    toy("run", resume=True)
    rows = [list(csv.DictReader((path / "metrics.csv").open())) for path in (straight, run)]
    assert [row["phi_dot"] for row in rows[0]] == [row["phi_dot"] for row in rows[1]]
    assert [row["step"] for row in rows[1]] == [str(40 * i) for i in range(1, 11)]


def test_kept_checkpoints(toy):
    run = toy("run", checkpoint_every=40, keep_last=2, keep_every=160)
    checkpoints = checkpoint.Checkpoints(run, read_only=True)
    assert checkpoints.steps == [160, 320, 360, 400]
    with pytest.raises(UserError, match="160, 320, 360, 400"):
        checkpoints.resolve(7)
    checkpoints.close()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_refusals_say_what_differs_and_touch_nothing(toy):
    run = toy("run", total_steps=80)
    before = snapshot(run)
    with pytest.raises(UserError, match="hidden is 16 in the run, 17 asked; skill_dim is 2 in the run, 3 asked"):
        toy("run", resume=True, hidden=17, skill_dim=3)
    with pytest.raises(UserError, match="already holds a run"):
        toy("run")
    with pytest.raises(UserError, match="already at step 80"):
        toy("run", resume=True, total_steps=80)
    with pytest.raises(
        UserError, match=r"observations: float32\[4, 4, 11, 3\] stored, float32\[2, 4, 21, 3\] expected"
    ):
        toy("run", env=Walk(episode_length=20), resume=True)  # the code changed, not the flags
    assert snapshot(run) == before


def test_damaged_checkpoint_is_reported_and_an_older_one_still_works(toy, tmp_path):
    run = toy("run", total_steps=160, checkpoint_every=80)
    for number, damage in enumerate(("truncate", "flip", "remove")):
        hurt = tmp_path / f"hurt{number}"
        shutil.copytree(run, hurt)
        newest = hurt / "checkpoints" / "160"
        files = sorted((p for p in (newest / "learner").rglob("d/*") if p.is_file()), key=lambda p: -p.stat().st_size)
        data = bytearray(files[0].read_bytes())
        if damage == "truncate":
            files[0].write_bytes(data[: len(data) // 2])
        elif damage == "flip":
            data[len(data) // 2] ^= 0xFF
            files[0].write_bytes(data)
        else:
            (newest / "learner" / "manifest.ocdbt").unlink()
        before = snapshot(hurt)
        with pytest.raises(UserError, match=r"160 is damaged; move the damaged one away to continue from step 80$"):
            toy(hurt.name, resume=True, total_steps=200, checkpoint_every=80)
        assert snapshot(hurt) == before
    shutil.rmtree(newest)
    toy(hurt.name, resume=True, total_steps=200, checkpoint_every=80)


def test_all_episodes_failing_ends_the_run_with_a_reason(toy):
    class Broken(Walk):
        def step(self, state, action):
            after = super().step(state, action)
            return after.replace(info={**after.info, "failed": jax.numpy.ones((), bool)})

    with pytest.raises(UserError, match="failed in every episode"):
        toy("run", env=Broken())


def test_metadata_tells_where_a_checkpoint_comes_from(toy):
    run = toy("run", total_steps=80)
    checkpoints = checkpoint.Checkpoints(run, read_only=True)
    metadata = checkpoints._orbax.checkpointables_metadata(80).custom_metadata
    assert metadata["schema"] == checkpoint.SCHEMA and metadata["versions"]["jax"] == jax.__version__
    assert '"hidden": 16' in metadata["config"]
    checkpoints.close()


def test_replay_is_not_read_for_the_agent(toy):
    run = toy("run", total_steps=80)
    shutil.rmtree(run / "checkpoints" / "80" / "replay")
    abstract = build(read_config(run), Walk()).program.abstract
    checkpoints = checkpoint.Checkpoints(run, read_only=True)
    agent = checkpoints.load_agent(None, abstract)
    assert int(agent.updates) == 4
    checkpoints.close()


def kill_and_resume(tmp_path: Path, kills: int, seed: int) -> None:
    """Kills a run some moments after it has saved, so often, and compares it in the end with one that never was."""
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    subprocess.run(train_command(straight, *SMALL), check=True, capture_output=True, timeout=300)
    rng, seen = random.Random(seed), 0
    for kill in range(kills):
        resume = ["--resume"] if (killed / "config.json").exists() else []
        process = subprocess.Popen(train_command(killed, *SMALL, *resume), stdout=subprocess.DEVNULL)
        while newest_step(killed) <= seen and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.wait()
        seen = newest_step(killed)
        assert seen < 3200 or kill > 0  # the first kill always hits
        if seen == 3200:
            break
    if seen < 3200:
        subprocess.run(train_command(killed, *SMALL, "--resume"), check=True, capture_output=True, timeout=300)
    assert_same_run(straight, killed)


def newest_step(run: Path) -> int:
    """Of the checkpoints that are whole; those under way have other names."""
    folder = run / "checkpoints"
    return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=0)


def test_kill_nine_loses_nothing_that_was_saved(tmp_path):
    kill_and_resume(tmp_path, kills=1, seed=0)


@pytest.mark.slow
def test_ten_kills_at_random_moments(tmp_path):
    for round_ in range(3):
        kill_and_resume(tmp_path / str(round_), kills=10, seed=round_ + 1)


BUSY = """
import signal, time
from genda_mjx.runs import start

def work():
    signal.signal(signal.SIGINT, lambda *_: None)  # as if the main thread never came to handling it
    print("busy", flush=True)
    while True:
        time.sleep(1)

start.main(work)
"""


def test_a_second_signal_ends_a_command_that_python_cannot_interrupt():
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout.readline() == "busy\n"
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        process.kill()


@pytest.mark.usefixtures("in_a_terminal")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGHUP))]
)
def test_signal_saves_and_exits_cleanly(tmp_path, number):
    run = tmp_path / "run"
    command = [word if word != "3200" else "400000" for word in train_command(run, *SMALL)]
    command[command.index("--checkpoint_every") + 1] = "0"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    metrics = run / "metrics.csv"
    while not (metrics.exists() and metrics.read_text().count("\n") > 3):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "continue with: python train.py --resume" in output
    rows = metrics.read_text().count("\n") - 1
    assert [path.name for path in (run / "checkpoints").iterdir()] == [str(200 * rows)]


@pytest.mark.slow
def test_checkpoint_that_cannot_be_written_ends_the_run_at_once(tmp_path):
    """A file size limit, as a full disk: one line, the older checkpoint stays, nobody has to kill the process."""
    run = tmp_path / "run"
    started = [word if word != "3200" else "400" for word in train_command(run, *SMALL)]
    subprocess.run(started, check=True, capture_output=True, timeout=300)
    before = snapshot(run / "checkpoints")
    limited = train_command(run, "--total_steps", "1200", "--resume")
    failed = subprocess.run(
        ["bash", "-c", 'ulimit -f 8 && exec "$@"', "limited", *limited], capture_output=True, text=True, timeout=300
    )
    assert failed.returncode == 1 and failed.stderr.count("\n") == 1, failed.stderr[-3000:]
    assert re.match(r"error: cannot write checkpoint .*/800 \(File too large\).*step 400 is kept", failed.stderr)
    assert snapshot(run / "checkpoints") == before
    subprocess.run(limited, check=True, capture_output=True, timeout=300)
    assert (run / "checkpoints" / "1200").is_dir()


def test_reason_of_the_operating_system():
    deep = ValueError("OUT_OF_RANGE: Failed to write 9 bytes to file 4: No space left on device [os_error_code='28']")
    assert checkpoint.system_reason(deep) == "No space left on device"
    try:
        try:
            raise OSError(27, "File too large")
        except OSError as error:
            raise RuntimeError("save failed") from error
    except RuntimeError as error:
        assert checkpoint.system_reason(error) == "File too large"
    assert checkpoint.system_reason(ValueError("?")) == "the file system refuses it"


def test_config_of_a_finished_run_is_not_a_resume(toy):
    run = toy("run", total_steps=80)
    assert read_config(run) == dataclasses.replace(tiny(total_steps=80), out=str(run))
