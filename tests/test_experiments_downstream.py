"""The grid of the downstream tables and what it prints, without training anything."""

from pathlib import Path

import pytest

from experiments import downstream
from experiments.downstream import Options
from genda_mjx.config import UserError
from genda_mjx.downstream import controller

SMALL = controller.PRESETS["small"]


def grid(options: Options, *flags: str) -> list[downstream.Cell]:
    return downstream.cells(options, downstream.select(options), list(flags))


def test_grid_is_bodies_by_seeds_by_variants_by_tasks():
    cells = grid(Options("methods", envs=("point", "fish"), seeds=2, preset="small"), "--total_steps", "9600")
    assert len(cells) == 2 * 3 * 4 + 2 * 3  # the fish has one task
    assert {cell.task for cell in cells if cell.config.env == "fish"} == {"fs_rg"}
    assert {cell.config.total_steps for cell in cells} == {9600}
    assert [Path(cell.config.out) for cell in cells[:12:4]] == [
        Path("runs/experiments/methods-point") / f"{name}-seed0" for name in ("csf", "metra", "genda")
    ]
    ablation = grid(Options("methods", envs=("point",), seeds=1, variants=("genda", "no_cib"), tasks=("rs_rg",)))
    assert [(cell.variant, cell.config.agent.no_cib, cell.task) for cell in ablation] == [
        ("genda", False, "rs_rg"),
        ("no_cib", True, "rs_rg"),
    ]


def test_two_checkpoints_of_one_run_are_compared(monkeypatch, tmp_path):
    cells = grid(Options("data", envs=("point",), seeds=1, preset="small", tasks=("fs_rg",), out=str(tmp_path)))
    early, late = cells
    assert early.config == late.config and early.config.keep_every == early.config.checkpoint_every == 10_000
    assert downstream.step_of(early) is None  # not there yet

    class Stored:
        steps = (11_200, 22_400, 33_600, 44_800, 49_600)  # 10,000 rounded up to whole iterations, and the end

        def __init__(self, run, read_only):
            assert run == tmp_path / "point" / "genda-seed0"

        def close(self):
            pass

    monkeypatch.setattr(downstream, "Checkpoints", Stored)
    (tmp_path / "point" / "genda-seed0" / "checkpoints").mkdir(parents=True)
    assert (downstream.step_of(early), downstream.step_of(late)) == (11_200, 49_600)


def test_table_is_mean_and_spread_over_the_seeds_that_are_done(monkeypatch):
    cells = grid(Options("methods", envs=("point",), seeds=2, variants=("metra", "genda"), tasks=("fs_rg", "rs_rg")))
    done = {("metra", "fs_rg", 0): 0.5, ("metra", "fs_rg", 1): 0.7, ("genda", "rs_rg", 0): 1.0}
    monkeypatch.setattr(downstream, "success_of", lambda cell, _: done.get((cell.variant, cell.task, cell.config.seed)))
    assert downstream.markdown(cells, SMALL).splitlines() == [
        "| body | task | metra | genda |",
        "|---|---|---|---|",
        "| point | fs_rg | 0.60 ± 0.10 (2) | - |",
        "| point | rs_rg | - | 1.00 ± 0.00 (1) |",
    ]


def test_missing_controllers_are_trained_side_by_side(monkeypatch):
    cells = grid(
        Options("methods", envs=("point",), seeds=1, variants=("genda",), tasks=("fs_rg", "rs_rg", "maze_easy"))
    )
    monkeypatch.setattr(downstream, "success_of", lambda cell, _: 1.0 if cell.task == "rs_rg" else None)
    monkeypatch.setattr(downstream, "step_of", lambda cell: 9600)
    given, trained = [], []
    monkeypatch.setattr(downstream.workers, "cores", lambda: [3, 5, 7])
    monkeypatch.setattr(downstream.workers, "run_all", lambda jobs, on: given.append((jobs, on)))
    monkeypatch.setattr(downstream, "run_task", lambda run, step, task, *_: trained.append((run.name, step, task.task)))
    downstream.control(cells, SMALL, jobs=2)
    ((jobs, on),) = given
    assert on == [3, 5] and not trained
    assert [job.log.name for job in jobs] == ["genda-seed0-fs_rg-9600.log", "genda-seed0-maze_easy-9600.log"]
    assert jobs[0].metrics == Path(cells[0].config.out) / "downstream" / "fs_rg" / "9600" / "seed0" / "metrics.csv"
    for job in jobs:
        job.work()
    assert trained == [("genda-seed0", 9600, "fs_rg"), ("genda-seed0", 9600, "maze_easy")]


def test_cost_is_that_of_the_body_as_the_runs_see_it(capsys):
    options = Options("methods", envs=("fish",), seeds=1, preset="small", variants=("genda",))
    downstream.print_cost(grid(options, "--turned_share", "0.5", "--hidden", "16"), SMALL)  # --observation oriented
    printed = capsys.readouterr().out
    assert "| genda-seed0 | new | 819,200 |" in printed and "1 of 1 controllers left" in printed


def test_mistakes():
    for options, complaint in {
        Options("speed"): "unknown table 'speed'; choose one of methods, data, components",
        Options("methods", variants=("gendo",)): "unknown variant 'gendo'",
        Options("methods", envs=("fish",), tasks=("maze_easy",)): "fish has none of the tasks maze_easy",
        Options("methods", envs=("cat",)): "cat",
    }.items():
        with pytest.raises(UserError, match=complaint):
            downstream.select(options)
