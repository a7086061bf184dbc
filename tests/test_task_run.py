"""eval.py --task and --offsets: what they write and print, how they resume, how they complain."""

import csv
import dataclasses
import json
import os
import signal
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from conftest import raw_env
from goal_helpers import CACHE, QUICK, RUN, ToyTask, perfect_skills
from trainer_helpers import Walk, vector_spec

import eval as command_line
from envs.tasks import layout as maze
from genda_mjx import agents
from genda_mjx.config import UserError
from genda_mjx.downstream.controller import PRESETS
from genda_mjx.runs import plots, start, task
from genda_mjx.runs.checkpoint import Checkpoints
from genda_mjx.runs.evaluate import evaluate
from genda_mjx.runs.stored import Skills
from genda_mjx.runs.task_files import TaskOptions
from genda_mjx.state import TrainState

OPTIONS = TaskOptions("toy", radius=0.5)


@pytest.fixture
def toy(tmp_path):
    """toy(name, seeds, ...): a controller for the toy task in a folder, over skills that already work."""

    def run(
        name: str = "run", seeds: range = range(3, 4), discrete: bool = False, updates: int = 1, **changes
    ) -> dict[str, Any]:
        agent = perfect_skills(discrete)
        state = agent.init(None).replace(updates=jnp.int32(updates))
        skills = Skills(RUN.replace(algo="diayn" if discrete else "genda"), 77, agent, state)
        config = dataclasses.replace(QUICK, **changes)
        return task.run_task(
            tmp_path / name, None, OPTIONS, config, seeds, str(CACHE), ToyTask(Walk(), radius=OPTIONS.radius), skills
        )

    return run


def rows_of(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_controller_learns_reports_and_resumes(toy, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(task, "LOW", 1.1)  # the report then says what it says where few goals are reached
    result = toy("straight")
    twice = f"--controller.macro_steps {2 * QUICK.macro_steps} --controller.gradient_steps {2 * QUICK.gradient_steps}"
    assert (
        f"{result['train_success']:.2f} of the last training goals" in (said := capsys.readouterr().out)
        and twice in said
    )
    assert result["success"] >= 0.9 and result["success_std"] == 0 and result["per_seed"] == [result["success"]]
    expected = {"env": "point", "algo": "genda", "step": 77, "task": "toy", "seeds": 1, "first_seed": 3, "radius": 0.5}
    assert {name: result[name] for name in expected} == expected
    folder = tmp_path / "straight" / "downstream" / "toy" / "77"
    assert json.loads((folder / "result.json").read_text()) == result
    assert {"metrics.csv", "result.json", "trajectories.png", "trajectories.npz", "checkpoints"} == {
        path.name for path in (folder / "seed3").iterdir()
    }
    rows = rows_of(folder / "seed3" / "metrics.csv")
    curve = [float(row["success"]) for row in rows if row["success"]]
    warmup = np.mean([float(row["train_success"]) for row in rows[:4]])
    assert len(rows) == 70 and len(curve) == 3 and curve[-1] == result["success"]
    assert warmup < 0.6 < 0.9 <= curve[-1]
    assert result["train_success"] == pytest.approx(np.mean([float(row["train_success"]) for row in rows[-20:]]))

    # Ctrl-C in the middle, then the same command again: the same rows, byte for byte.
    write = task.MetricsCsv.write

    def interrupt(self, row):
        write(self, row)
        if row["episodes"] == 240:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(task.MetricsCsv, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        toy("parts")
    parts = tmp_path / "parts" / "downstream" / "toy" / "77"
    assert len(rows_of(parts / "seed3" / "metrics.csv")) == 30 and not (parts / "result.json").exists()
    monkeypatch.setattr(task.MetricsCsv, "write", write)
    assert toy("parts") == result
    assert (parts / "seed3" / "metrics.csv").read_bytes() == (folder / "seed3" / "metrics.csv").read_bytes()

    # A finished seed is not trained again; other options are refused with what differs.
    monkeypatch.setattr(task, "train_seeds", lambda *_: pytest.fail("trained again"))
    assert toy("parts") == result
    with pytest.raises(UserError, match="hidden is 64 there, 32 asked"):
        toy("parts", hidden=32)


def test_flags_of_the_controller_win_over_its_preset(point_run):
    flags = [f"--controller.{name}={value}" for name, value in dataclasses.asdict(QUICK).items()]
    ckpt = ["--ckpt", str(point_run), "--task", "fs_rg", "--radius", "0.5"]
    options = command_line.parse([*ckpt, "--controller_preset", "small", *flags])
    assert options.controller == QUICK and options.goal == TaskOptions("fs_rg", radius=0.5)
    assert command_line.parse(ckpt).controller == PRESETS["paper"]  # as the run's


def test_mistakes(toy):
    with pytest.raises(UserError, match="from the warm-up: no skills yet"):
        toy(updates=0)
    with pytest.raises(UserError, match=r"--controller.batch_size is 0; it must be greater than 0"):
        toy(batch_size=0)
    with pytest.raises(UserError, match=r"--controller.her_ratio is 1.5; it must lie in \[0, 1\]"):
        toy(her_ratio=1.5)
    with pytest.raises(UserError, match="--seeds is 0"):
        toy(seeds=range(0))


MAZE = """\
.G.
##.
.S.
"""


@pytest.fixture(scope="module")
def point_run(tmp_path_factory):
    """A run of the point body as if it had learned: a fresh agent with one update, and no replay."""
    folder = tmp_path_factory.mktemp("point") / "run"
    folder.mkdir()
    agent = agents.make(RUN, vector_spec(4, 2))
    state = jax.jit(agent.init)(jax.random.key(0)).replace(updates=jnp.int32(1))
    (folder / "config.json").write_text(RUN.to_json())
    checkpoints = Checkpoints(folder)
    checkpoints.save(1200, TrainState(state, {"none": jnp.zeros(1)}, jax.random.key(1), jnp.int32(3)), RUN)
    checkpoints.close()
    return folder


def call(monkeypatch, *arguments: str) -> None:
    """eval.py in this process."""
    monkeypatch.setattr("sys.argv", ["eval.py", "--compile_cache", str(CACHE), *arguments])
    start.main(command_line.main, "--ckpt")


@pytest.mark.parametrize("other", [["--explore"], ["--task", "rs_rg"], ["--offset", "1", "2"]])
def test_a_video_of_what_is_recorded_takes_nothing_else(other):
    with pytest.raises(UserError, match="--video shows an evaluation that is recorded"):
        command_line.parse(["--ckpt", "runs/x", "--video", *other])


@pytest.mark.slow
def test_command_line_on_a_maze_file(point_run, tmp_path, monkeypatch, capsys):
    (tmp_path / "corner.txt").write_text(MAZE)
    sizes = {"macro_steps": 600, "hidden": 16, "gradient_steps": 2, "warmup_episodes": 8}
    small = ["--controller_preset", "small", *(f"--controller.{name}={value}" for name, value in sizes.items())]
    asked = ["--ckpt", str(point_run), "--task", "maze", "--maze", str(tmp_path / "corner.txt"), "--separation", "1"]
    call(monkeypatch, *asked, "--seeds", "2", *small)
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (answer["env"], answer["algo"], answer["task"], answer["seeds"]) == ("point", "genda", "maze", 2)
    assert answer["success"] == np.mean(answer["per_seed"]) and answer["success_std"] == np.std(answer["per_seed"])
    folder = point_run / "downstream" / "maze_corner" / "1200"
    played = np.load(folder / "seed1" / "trajectories.npz")
    assert played["path"].shape == (48, 501, 2) and played["success"].mean() == answer["per_seed"][1]
    np.testing.assert_array_equal(played["goal"], [[1.0, 2.0]] * 48)
    assert (folder / "seed1" / "trajectories.png").stat().st_size > 5000
    (tmp_path / "corner.txt").write_text(MAZE.replace("##.", "#.."))
    with pytest.raises(SystemExit):
        call(monkeypatch, *asked, "--seeds", "2", *small)
    assert "holds another controller: maze is" in capsys.readouterr().err


def test_mistakes_on_the_command_line(point_run, tmp_path, monkeypatch, capsys):
    (tmp_path / "bad.txt").write_text("S.x\n..G\n")
    ckpt = ["--ckpt", str(point_run)]
    for arguments, complaint in {
        ("--task", "fly", *ckpt): "point has no task 'fly'",
        ("--task", "maze", "--maze", str(tmp_path / "bad.txt"), *ckpt): "line 1, column 3: unknown character 'x'",
        ("--task", "maze", "--maze", str(tmp_path / "none.txt"), *ckpt): "cannot read the maze",
        ("--task", "maze_easy", "--goal_center", "9", "9", *ckpt): "center means nothing in task maze_easy",
        ("--task", "fs_rg", "--ckpt", str(tmp_path / "none")): "does not exist",
        ("--task", "fs_rg", "--ckpt", str(tmp_path)): "not a run folder",
        ("--task", "fs_rg", "--offset", "1", "2", *ckpt): "--goal_center X Y",
        ("--radius", "2", *ckpt): "--radius belongs to a task",
        ("--offsets", "-3", *ckpt): "distances in metres",
        ("--task", "fs_rg", "--start", "paper", *ckpt): "a task keeps the start of the run",
        ("--start", "standing", *ckpt): "point has no feet to stand on",
    }.items():
        with pytest.raises(SystemExit) as stop:
            call(monkeypatch, *arguments)
        error = capsys.readouterr().err
        assert stop.value.code == 2 and complaint in error and error.count("\n") == 1, error


def test_offsets_table(point_run):
    result = evaluate(point_run, episodes=6, distances=(0.0, 20.0), compile_cache=str(CACHE), env=raw_env("point"))
    none, far = result["offsets"]
    assert none["consistency"] == pytest.approx(1) and none["coverage"] == result["coverage"]
    assert far["distance"] == 20 and far["consistency_min"] <= far["consistency"] <= 1 and far["coverage"] > 0
    assert json.loads((point_run / "eval" / "result_1200_offsets.json").read_text()) == result


def test_trajectories_are_drawn_over_the_walls(tmp_path):
    layout = maze.parse(MAZE, 1.0, "corner")
    line = np.linspace(layout.start_xy, layout.goal_xy, 9)[None]
    inside = {}
    for name, walls in (("open", ()), ("walled", layout.walls)):
        path = tmp_path / f"{name}.png"
        plots.goal_trajectories(path, "", line, layout.goal_xy[None], np.array([True]), 0.3, walls)
        pixels = matplotlib.image.imread(tmp_path / f"{name}.png")
        inside[name] = (np.abs(pixels[..., :3] - 0.6).max(-1) < 0.01).sum()
    assert inside["open"] < 1000 < 20_000 < inside["walled"]  # grey area
