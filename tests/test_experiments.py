"""Grids of runs: every variant is a valid command, what is done is kept, what was stopped goes on."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from trainer_helpers import Walk

from experiments import draw, run, shifts, workers
from experiments.grids import EXPERIMENTS, Experiment
from genda_mjx import agents
from genda_mjx import config as configuration
from genda_mjx.config import UserError
from genda_mjx.runs.folder import read_config

RESULTS = Path(__file__).parent.parent / "docs" / "results"
TINY_FLAGS = [
    *("--hidden=16", "--num_envs=4", "--batch_size=8", "--utd=0.1", "--buffer_size=160"),
    *("--warmup_episodes=4", "--eval_episodes=6", "--eval_every=40", "--checkpoint_every=40", "--compile_cache="),
]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_variant_is_a_run_that_train_accepts(name, tmp_path):
    experiment = EXPERIMENTS[name]
    options = run.Options(name, out=str(tmp_path), seeds=2)
    configs = run.grid(options, experiment, [])
    assert len({config.out for config in configs}) == len(configs) == 2 * len(experiment.variants)
    first = configs[: len(experiment.variants)]
    assert len({config.to_json().replace(config.out, "") for config in first}) == len(first)  # no two are the same run
    for config in configs:
        configuration.validate(config)
        assert config.algo in agents.AGENTS and config.env == experiment.bodies[0]
    (together,) = {c.num_seeds for c in run.grid(run.Options(name, together=True, seeds=3), experiment, [])}
    assert together == 3


def test_some_variants_are_chosen_by_name():
    options = run.Options("claims", variants=("no_cib", "genda"), seeds=2)
    configs = run.grid(options, run.select(options), [])
    assert [Path(config.out).name for config in configs] == [
        "no_cib-seed0",
        "genda-seed0",
        "no_cib-seed1",
        "genda-seed1",
    ]
    for options, complaint in {
        run.Options("claims", variants=("cic",)): "unknown variant 'cic'; claims has genda, no_relabel",
        run.Options("claim"): "unknown experiment 'claim'; choose one of methods",
    }.items():
        with pytest.raises(UserError, match=complaint):
            run.select(options)


def test_grid_trains_what_is_missing(tmp_path, capsys):
    experiment = Experiment("toy", ("point",), 1, {"a": ("--algo", "metra"), "b": ("--algo", "csf")})

    def configs(steps: str) -> list[configuration.Config]:
        return run.grid(run.Options("toy", out=str(tmp_path)), experiment, [*TINY_FLAGS, "--total_steps", steps])

    run.train(configs("80")[:1], Walk())
    run.train(configs("120"), Walk())
    said = capsys.readouterr().out
    assert "[1/2]" in said and said.count(": stopped") == 1 and said.count(": new") == 2
    written = (tmp_path / "a-seed0" / "metrics.csv").read_text()
    run.train(configs("120"), Walk())
    assert capsys.readouterr().out.count(": done") == 2
    assert (tmp_path / "a-seed0" / "metrics.csv").read_text() == written
    run.print_cost(configs("120"), Walk())
    assert "2 runs, about 0.0 hours" in capsys.readouterr().out
    text = draw.draw(tmp_path, "toy", ["a", "b"], "bins")
    assert text.count("| 120 |") == 2 and (tmp_path / "coverage.png").stat().st_size > 1000
    header, _, row, _ = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines())
    found = dict(zip(header, row, strict=True))
    assert "upright share" not in found and -1 <= float(found["alignment"]) <= 1 and float(found["mean distance"]) > 0

    # From moved starts: "a" is evaluated, "b" only afterwards, and what is known is not made again.
    a, b = configs("120")
    shifts.move_missing([a], 120, env=Walk())
    result = tmp_path / "a-seed0" / "eval" / "result_120_offsets.json"
    (near, far), written = json.loads(result.read_text())["offsets"], result.stat().st_mtime_ns
    assert [near["distance"], far["distance"]] == [3.0, 10.0]
    text = shifts.moved(tmp_path, [a, b], 120, Walk())
    (row,) = text.splitlines()[2:]
    bins = f"{near['coverage']:.0f}"
    assert row.startswith(f"| a | 1 | {bins} ± 0 ({bins}) | {near['consistency']:.2f} ± 0.00 (")
    assert f"| {far['consistency_min']:.2f} ± 0.00 (" in row and (tmp_path / "moved.md").read_text() == text + "\n"
    shifts.move_missing([a, b], 120, env=Walk())
    assert result.stat().st_mtime_ns == written and len(shifts.moved(tmp_path, [a, b], 120, Walk()).splitlines()) == 4


def test_a_run_that_another_grid_has_made_is_not_trained_again(tmp_path, capsys):
    toy = Experiment("toy", ("point",), 1, {"a": ("--algo", "metra"), "b": ("--algo", "csf")})
    other = Experiment("other", ("point",), 1, {"rate1e-3": ("--algo", "metra"), "rate0.5": ("--learning_rate", "0.5")})

    def configs(experiment: Experiment, steps: str = "80") -> list[configuration.Config]:
        out = str(tmp_path / experiment.shows)
        return run.grid(run.Options("toy", out=out), experiment, [*TINY_FLAGS, "--total_steps", steps])

    run.train(configs(toy)[:1], Walk())
    capsys.readouterr()
    (tmp_path / "other" / "copying" / "half").mkdir(parents=True)  # as a copy that was interrupted leaves it
    run.print_cost(configs(other), Walk())
    assert "| rate1e-3-seed0 | done elsewhere | 80 |" in (said := capsys.readouterr().out)
    assert "| rate0.5-seed0 | new | 80 |" in said
    same, original = tmp_path / "other" / "rate1e-3-seed0", tmp_path / "toy" / "a-seed0"
    packages = (original / "versions.json").read_text()
    (original / "versions.json").write_text(packages.replace('"jax": "', '"jax": "1'))  # would round differently
    assert run.state_of(configs(other)[0], 80) == "new"
    (original / "versions.json").write_text(packages)
    run.train(configs(other)[:1], Walk())
    assert f"copied from {original}" in capsys.readouterr().out
    files = lambda folder: {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files(same) == files(original) and [path.name for path in same.parent.iterdir()] == [same.name]
    assert (same / "metrics.csv").read_text() == (original / "metrics.csv").read_text()
    assert read_config(same).out == str(same)

    # It goes on by itself, to what it would have reached; the first one stays as it is.
    before = {name: (original / name).read_bytes() for name in files(original)}
    longer = configs(other, "120")[:1]
    run.train(longer, Walk())
    assert capsys.readouterr().out.count(": stopped") == 1
    assert before == {name: (original / name).read_bytes() for name in files(original)}
    run.train(configs(toy, "120")[:1], Walk())
    assert (same / "metrics.csv").read_text() == (original / "metrics.csv").read_text()


def test_logs_of_runs_whose_names_have_points_are_their_own():
    assert workers.job_of(configuration.Config(out="runs/utd0.05-seed0")).log.name == "utd0.05-seed0.log"


def test_table_is_mean_and_spread_at_the_last_common_step(tmp_path):
    def write(name, coverage):
        rows = [f"{step},{value},5" for step, value in zip((100, 150, 200, 300), coverage, strict=False)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["step,coverage,random_coverage", *rows]))

    write("genda-seed0", [10, "", 20, 90])
    write("genda-seed1", [12, "", 30])
    (tmp_path / "metra-seed0" / "seed_4").mkdir(parents=True)
    write("metra-seed0/seed_4/metrics", [7])
    found = draw.collect(tmp_path)
    steps, coverage = draw.common(found["genda"])
    np.testing.assert_array_equal(steps, [100, 200])
    np.testing.assert_array_equal(coverage, [[10, 20], [12, 30]])
    assert "| genda | 2 | 200 | 25 | 5 | 20, 30 | 18.0 | 5 |\n" in draw.table(found)  # files without others
    assert "| metra | 1 | 100 | 7 | 0 | 7 | 7.0 | 5 |" in draw.table(found)
    with pytest.raises(UserError, match="no evaluation"):
        draw.draw(tmp_path / "metra-seed0" / "seed_4")


def test_headline_and_other_measures_are_named_by_the_csv(tmp_path):
    header = "step,tasks_done,random_tasks_done,loss,alignment,upright_share,directness"
    (tmp_path / "genda-seed0.csv").write_text(f"{header}\n10,3,1,0.5,0.25,1.0,0.5\n20,,,0.5,,,\n30,5,1,0.5,0.75,0.5,1")
    (tmp_path / "metra-seed0.csv").write_text("step,tasks_done,random_tasks_done,alignment\n10,2,1,0.5")
    text = draw.draw(tmp_path)
    assert "| tasks_done, mean |" in text and "mean distance" not in text  # which none of them has
    assert "| 30 | 5.0 | 0.0 | 5 | 4.0 | 1 | 0.75 | 0.5 | 1 |" in text
    assert "| 10 | 2.0 | 0.0 | 2 | 2.0 | 1 | 0.5 |  |  |" in text
    assert {path.name for path in tmp_path.iterdir()} == {
        "genda-seed0.csv",
        "metra-seed0.csv",
        "tasks_done.png",
        "tasks_done.md",
    }


@pytest.mark.parametrize("name", sorted({path.parent.name for path in RESULTS.glob("*/*-seed*.csv")}))
def test_results_in_the_docs_still_draw(tmp_path, name):
    shutil.copytree(RESULTS / name, tmp_path / name)
    text = draw.draw(tmp_path / name)
    (kept,) = (path for path in (RESULTS / name).glob("*.md") if path.stem not in ("background", "moved"))
    numbers = [line.split("|")[1:9] for line in kept.read_text().splitlines()[2:]]
    assert [line.split("|")[1:9] for line in text.splitlines()[2:]] == numbers
