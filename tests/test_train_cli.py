"""train.py as a user runs it: mistakes are one line, a tiny run leaves what the README promises."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from genda_mjx import entry
from genda_mjx.config import UserError

ROOT = Path(__file__).parent.parent
TINY = ["--hidden", "16", "--cib_dim", "4", "--batch_size", "8", "--utd", "0.02", "--num_envs", "2",
        "--buffer_size", "2000", "--warmup_episodes", "2", "--eval_episodes", "4"]  # fmt: skip


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(ROOT / script), *arguments], capture_output=True, text=True, timeout=300)


def mistake(result: subprocess.CompletedProcess) -> str:
    """The one line that a mistake gives."""
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert result.returncode == 2 and len(errors) == 1 and "Traceback" not in result.stderr + result.stdout
    return errors[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "cat"], ["'cat'", "point, fish, quadruped, humanoid, dog"]),
        (["--num_envs", "0"], ["--num_envs is 0"]),
        (["--cohorts", "7"], ["--cohorts 7", "200 steps", "try 8"]),
        (["--num_envs", "6", "--cohorts", "4"], ["--num_envs 6", "4 cohorts;", "such as 8"]),
        (["--num_devices", "3"], ["--num_devices 3", "jax sees 1"]),
        (["--total_steps", "399"], ["--total_steps 399", "one iteration", "400"]),
        (["--buffer_size", "100000000000000"], ["--buffer_size", "GiB is free"]),
        (["--algo", "nothing"], ["'nothing'", "genda, metra, csf, diayn, cic"]),
        (["--algo", "cic", "--discrete"], ["--discrete", "--algo metra"]),
        (["--algo", "diayn", "--no_cib"], ["--no_cib", "genda", "diayn"]),
        (["--out", "/proc/nowhere/run"], ["/proc/nowhere", "--out"]),
        (["--resume"], ["nothing to resume"]),
    ],
)
def test_mistakes_are_one_line(tmp_path, arguments, words):
    folder = tmp_path / "run"
    default = [] if "--out" in arguments else ["--out", str(folder)]
    line = mistake(run("train.py", "--env", "point", *TINY, *default, *arguments))
    assert all(word in line for word in words)
    assert not folder.exists()


def test_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    assert "not empty" in mistake(run("train.py", "--env", "point", *TINY, "--out", str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_unreadable_value_and_unknown_flag_exit_with_an_error(tmp_path):
    for arguments in (["--num_envs", "many"], ["--colour", "red"], ["--relabel", "sometimes"]):
        result = run("train.py", *arguments)
        assert result.returncode != 0 and "Traceback" not in result.stderr


def test_jax_010_is_refused_on_cpu(monkeypatch):
    monkeypatch.setattr(entry.jax, "__version__", "0.10.2")
    with pytest.raises(UserError, match=r"0\.10\.2.*requirements\.txt"):
        entry.check_jax()


def test_xla_flags_of_the_user_stay(monkeypatch):
    flag = "--xla_gpu_triton_gemm_any"
    for given, expected in (
        ("", f"{flag}=true"),
        ("--xla_cpu_fast_min_max=true", f"--xla_cpu_fast_min_max=true {flag}=true"),
        (f"{flag}=false", f"{flag}=false"),
    ):
        monkeypatch.setenv("XLA_FLAGS", given)
        entry.tune_xla()
        entry.tune_xla()
        assert os.environ["XLA_FLAGS"] == expected


def test_tiny_run_and_evaluation_of_it(tmp_path):
    folder = tmp_path / "run"
    result = run(
        "train.py", "--env", "point", *TINY, "--total_steps", "1600", "--eval_every", "800", "--out", str(folder)
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.index("4 iterations of 400 steps") < result.stdout.index("compiling training")
    for word in ("random policy covers", "steps/s", "updates/s", "coverage", "phi_dot", "lambda", "alpha", "failed 0"):
        assert word in result.stdout
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["step"] for row in rows] == ["400", "800", "1200", "1600"]
    assert [row["coverage"] != "" for row in rows] == [False, True, False, True]
    assert rows[0]["phi_dot"] == "" and float(rows[1]["phi_dot"]) == float(rows[1]["phi_dot"])
    for name in (
        "plots/trajectories_800.png",
        "plots/phi_1600.png",
        "evaluations/1600.npz",
        "config.json",
        "versions.json",
    ):
        assert (folder / name).stat().st_size > 0
    again = run("train.py", "--env", "point", *TINY, "--out", str(folder))
    assert "already holds a run" in mistake(again)

    result = run("eval.py", "--ckpt", str(folder), "--episodes", "5", "--offset", "3", "-2")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    assert (answer["env"], answer["algo"], answer["step"], answer["episodes"]) == ("point", "genda", 1600, 5)
    assert answer["coverage"] > 0 and answer["offset"] == [3, -2] and -1 <= answer["consistency"] <= 1
    assert json.loads((folder / "eval" / "result_1600_offset_3_-2.json").read_text()) == answer
    assert {path.suffix for path in (folder / "eval").iterdir()} == {".png", ".json", ".npz"}
    assert "no checkpoint at step 7" in mistake(run("eval.py", "--ckpt", str(folder), "--step", "7"))
    assert "--episodes is 0" in mistake(run("eval.py", "--ckpt", str(folder), "--episodes", "0"))


def test_evaluation_of_nothing(tmp_path):
    assert "does not exist" in mistake(run("eval.py", "--ckpt", str(tmp_path / "none")))
    assert "not a run folder" in mistake(run("eval.py", "--ckpt", str(tmp_path)))
