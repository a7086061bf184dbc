"""Runs of a grid side by side, one process a core."""

import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import workers
from genda_mjx.config import Config, UserError

ROOT = Path(__file__).parent.parent


def configs(folder: Path, *names: str) -> list[Config]:
    return [dataclasses.replace(Config(), out=str(folder / name)) for name in names]


def pretend(config: Config, core: int) -> None:
    """Instead of a run: notes when it had its core; "bad" ends with an error, "long" waits for a stop."""
    os.sched_setaffinity(0, {core})
    out = Path(config.out)
    if out.name == "bad":
        workers.log_of(config).write_text("compiling\nerror: no room\n")
        sys.exit(2)
    if out.name == "long":
        signal.signal(signal.SIGTERM, lambda *_: (out.write_text("saved"), sys.exit(workers.STOPPED)))
        (out.parent / "started").touch()
        time.sleep(60)
    begin = time.monotonic()
    time.sleep(1.0)
    out.write_text(f"{sorted(os.sched_getaffinity(0))} {begin} {time.monotonic()}")


def test_each_run_has_a_core_of_its_own(tmp_path):
    cores = workers.cores()[:2]
    made = configs(tmp_path, "a", "b", "c")
    workers.run_all(made, cores, pretend)
    rows = [Path(config.out).read_text().rsplit(" ", 2) for config in made]
    spans = {core: sorted((float(a), float(b)) for on, a, b in rows if on == str([core])) for core in cores}
    assert sum(len(span) for span in spans.values()) == 3
    for span in spans.values():
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(span))


def test_a_run_that_fails_stops_the_others_and_tells_why(tmp_path):
    with pytest.raises(UserError, match=r"bad ended with code 2: no room; see .*bad\.log"):
        workers.run_all(configs(tmp_path, "bad", "never"), workers.cores()[:1], pretend)
    assert not (tmp_path / "never").exists()


def test_a_stop_reaches_every_run(tmp_path):
    code = (
        "import sys; from pathlib import Path; from experiments import workers; import test_workers as t\n"
        "if __name__ == '__main__':\n"
        f"    workers.run_all(t.configs(Path({str(tmp_path)!r}), 'long'), workers.cores()[:1], t.pretend)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL)
    while not (tmp_path / "started").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) != 0
    assert (tmp_path / "long").read_text() == "saved"
