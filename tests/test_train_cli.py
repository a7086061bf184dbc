"""train.py and eval.py as a user runs them: mistakes are one line, a tiny run leaves what the README promises."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from conftest import raw_env

import eval as eval_command
from genda_mjx import build as assembly
from genda_mjx.config import UserError
from genda_mjx.runs import start
from genda_mjx.runs.arguments import parse
from genda_mjx.runs.evaluate import evaluate
from genda_mjx.runs.task_files import TaskOptions
from genda_mjx.runs.train import train

ROOT = Path(__file__).parent.parent
CACHE = str(ROOT / ".cache" / "jax")  # of compiled programs, as in conftest
TINY = (
    "--hidden 16 --cib_dim 4 --batch_size 8 --utd 0.02 --num_envs 2 --buffer_size 2000 --warmup_episodes 2 "
    f"--eval_episodes 4 --compile_cache {CACHE}"
).split()


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """In a process of its own, as from a shell."""
    command = [sys.executable, str(ROOT / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})


def mistake(result: subprocess.CompletedProcess) -> str:
    """The one line that a mistake gives."""
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and "Traceback" not in result.stdout
    assert result.stderr.startswith("error: ")
    return result.stderr


def call(capsys, flag: str, work) -> str:
    """The one line that a mistake gives, in this process."""
    with pytest.raises(SystemExit) as stop:
        start.main(work, flag)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and error.count("\n") == 1 and error.startswith("error: ")
    return error


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_help_may_be_cut_short(script):
    """As in `python train.py --help | head -1`."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / script), "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (start.UNREAD, "")


@pytest.fixture
def nothing_is_built(monkeypatch):
    """Fails if a mistake is noticed only after a body was built."""
    monkeypatch.setattr(assembly.envs, "make", lambda name, **_: pytest.fail(f"built {name}"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--env", "cat"], ["'cat'", "point, fish, quadruped, humanoid, dog"]),
        (["--num_envs", "0"], ["--num_envs is 0"]),
        (["--env", "dog", "--cohorts", "7"], ["--cohorts 7", "200 steps", "try 8"]),
        (["--env", "dog", "--num_envs", "6", "--cohorts", "4"], ["--num_envs 6", "4 cohorts;", "such as 8"]),
        (["--num_devices", "3"], ["--num_devices 3", "jax sees 1"]),
        (["--total_steps", "399"], ["--total_steps 399", "one iteration", "400"]),
        (["--env", "dog", "--algo", "nothing"], ["'nothing'", "genda, metra, csf, diayn, cic"]),
        (["--algo", "cic", "--discrete"], ["--discrete", "metra", "cic"]),
        (["--algo", "diayn", "--no_cib"], ["--no_cib", "genda", "diayn"]),
        (["--resume"], ["nothing to resume"]),
    ],
)
def test_mistakes_are_one_line_and_noticed_before_anything_is_built(
    tmp_path, capsys, nothing_is_built, arguments, words
):
    folder = tmp_path / "run"
    flags = ["--env", "point", *(TINY if "--algo" not in arguments else []), "--out", str(folder), *arguments]
    line = call(capsys, "--out", lambda: train(parse(flags)))
    assert all(word in line for word in words), line
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--buffer_size", "100000000000000"], ["--buffer_size", "GiB is free"]),
        (["--out", "/proc/nowhere/run"], ["/proc/nowhere", "--out"]),
    ],
)
def test_mistakes_that_need_the_body(tmp_path, capsys, arguments, words):
    folder = tmp_path / "run"
    flags = ["--env", "point", *TINY, "--out", str(folder), *arguments]
    line = call(capsys, "--out", lambda: train(parse(flags), raw_env("point")))
    assert all(word in line for word in words), line
    assert not folder.exists()


def test_mistakes_from_a_shell(tmp_path):
    """The same through real processes; an unknown agent of the dog is told before the dog is built."""
    result = run("train.py", "--env", "dog", "--algo", "nothing", "--out", str(tmp_path / "run"))
    assert "'nothing'" in mistake(result) and "building" not in result.stdout and not (tmp_path / "run").exists()
    (tmp_path / "thesis.tex").write_text("mine")
    assert "not empty" in mistake(run("train.py", "--env", "point", *TINY, "--out", str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    for arguments in (["--num_envs", "many"], ["--colour", "red"], ["--relabel", "sometimes"]):
        with pytest.raises(SystemExit) as stop:
            parse(arguments)
        assert stop.value.code != 0


def test_a_chip_that_jax_does_not_see_is_mentioned(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    for there, words in (("/dev/nvidia[0-9]*", "GPU.*cuda12"), ("/dev/accel*", "TPU.*tpu"), ("", None)):
        monkeypatch.setattr(start.glob, "glob", lambda pattern, there=there: ["x"] if pattern == there else [])
        found = start.devices_found()
        assert found is None if words is None else re.search(words, found)
    monkeypatch.setattr(start.glob, "glob", lambda pattern: ["x"])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # a CPU that was asked for is no surprise
    assert start.devices_found() is None


@pytest.mark.parametrize(("platform", "extra"), [("cuda", "cuda12"), ("tpu", "tpu")])
def test_accelerator_that_is_not_installed(tmp_path, platform, extra):
    if any(device.platform in (platform, "gpu") for device in jax.devices()):
        pytest.skip(f"this machine has {platform}")
    line = mistake(run("train.py", "--env", "point", "--out", str(tmp_path / "run"), JAX_PLATFORMS=platform))
    assert f"JAX_PLATFORMS asks for {platform}" in line and f'pip install "jax[{extra}]=={jax.__version__}"' in line


def test_jax_010_is_refused_on_cpu(monkeypatch):
    monkeypatch.setattr(start.jax, "__version__", "0.10.2")
    with pytest.raises(UserError, match=r"0\.10\.2.*requirements\.txt"):
        start.check_jax()


def test_xla_flags_of_the_user_stay(monkeypatch):
    flag = "--xla_gpu_triton_gemm_any"
    for given, expected in (
        ("", f"{flag}=true"),
        ("--xla_cpu_fast_min_max=true", f"--xla_cpu_fast_min_max=true {flag}=true"),
        (f"{flag}=false", f"{flag}=false"),
    ):
        monkeypatch.setenv("XLA_FLAGS", given)
        start.tune_xla()
        start.tune_xla()
        assert os.environ["XLA_FLAGS"] == expected


def test_tiny_run_and_evaluation_of_it(tmp_path, capsys):
    """Both from a shell; what they refuse afterwards is asked for in this process, which starts faster."""
    folder = tmp_path / "run"
    flags = ["--env", "point", *TINY, "--total_steps", "1600", "--eval_every", "800", "--out", str(folder)]
    result = run("train.py", *flags)
    assert result.returncode == 0, result.stderr
    said = result.stdout
    assert said.index("building point") < said.index("4 iterations of 400 steps") < said.index("compiling training")
    for word in ("a random policy: coverage", "bins, alignment", "steps/s", "updates/s", "phi_dot", "lambda", "alpha"):
        assert word in said
    assert "failed 0" in said and "times a random policy's" in said and "--offset" in said.splitlines()[-1]
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["step"] for row in rows] == ["400", "800", "1200", "1600"]
    for name in ("coverage", "random_coverage", "mean_distance", "directness", "alignment"):
        assert [row[name] != "" for row in rows] == [False, True, False, True]
    assert rows[0]["phi_dot"] == "" and float(rows[1]["phi_dot"]) == float(rows[1]["phi_dot"])
    files = ["plots/trajectories_800.png", "plots/phi_1600.png", "evaluations/1600.npz", "config.json", "versions.json"]
    for name in files:
        assert (folder / name).stat().st_size > 0
    assert "already holds a run" in call(capsys, "--out", lambda: train(parse(flags), raw_env("point")))

    ckpt = ["--ckpt", str(folder), "--compile_cache", CACHE]
    result = run("eval.py", *ckpt, "--episodes", "5", "--offset", "3", "-2")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    assert (answer["env"], answer["algo"], answer["step"], answer["episodes"]) == ("point", "genda", 1600, 5)
    assert answer["coverage"] > 0 and answer["offset"] == [3, -2] and -1 <= answer["consistency"] <= 1
    assert {"mean_distance", "directness", "alignment", "failed_evaluations", "offset_coverage"} <= set(answer)
    assert json.loads((folder / "eval" / "result_1600_offset_3_-2.json").read_text()) == answer
    assert {path.suffix for path in (folder / "eval").iterdir()} == {".png", ".json", ".npz"}
    env = raw_env("point")
    assert "no checkpoint at step 7" in call(capsys, "--ckpt", lambda: evaluate(folder, step=7, env=env))
    assert "--episodes is 0" in call(capsys, "--ckpt", lambda: evaluate(folder, episodes=0, env=env))


def test_evaluation_speaks_of_its_own_flags(tmp_path, capsys, monkeypatch):
    missing = mistake(run("eval.py", "--ckpt", str(tmp_path / "none")))
    assert "--ckpt" in missing and "does not exist" in missing and "--out" not in missing
    assert "not a run folder" in call(capsys, "--ckpt", lambda: evaluate(tmp_path))

    def locked(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "eval"))

    monkeypatch.setattr(eval_command, "evaluate", locked)
    monkeypatch.setattr("sys.argv", ["eval.py", "--ckpt", str(tmp_path)])
    line = call(capsys, "--ckpt", eval_command.main)
    assert "Permission denied" in line and "--ckpt" in line and "--out" not in line


def test_help_tells_the_radius_of_every_task(capsys):
    assert TaskOptions().radius is None
    with pytest.raises(SystemExit):
        eval_command.parse(["--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "1.5, quadruped in mazes 3.0, fish 0.1" in said


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py")))
def test_benchmarks_name_commands_that_work(name):
    text = (ROOT / "benchmarks" / f"{name}.py").read_text()
    assert f"python -m benchmarks.{name}" in text and f"python benchmarks/{name}" not in text
    __import__(f"benchmarks.{name}")
