"""Runs of a grid side by side, one process a core."""

import itertools
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from experiments import workers
from genda_mjx.config import UserError

ROOT = Path(__file__).parent.parent


def jobs(folder: Path, *names: str) -> list[workers.Job]:
    return [
        workers.Job(str(folder / name), partial(pretend, folder / name), folder / "metrics.csv", 1) for name in names
    ]


def pretend(out: Path) -> None:
    """Instead of a run: notes when it had its core; "bad" ends with an error, "long" waits for a stop."""
    if out.name == "bad":
        print("compiling", flush=True)
        raise UserError("no room")
    if out.name == "long":
        signal.signal(signal.SIGTERM, lambda *_: (out.write_text("saved"), sys.exit(workers.STOPPED)))
        (out.parent / "started").touch()
        time.sleep(60)
    begin = time.monotonic()
    time.sleep(1.0)
    out.write_text(f"{sorted(os.sched_getaffinity(0))} {begin} {time.monotonic()}")


def test_each_run_has_a_core_of_its_own(tmp_path):
    cores = workers.cores()[:2]
    made = jobs(tmp_path, "a", "b", "c")
    workers.run_all(made, cores)
    rows = [Path(job.name).read_text().rsplit(" ", 2) for job in made]
    spans = {core: sorted((float(a), float(b)) for on, a, b in rows if on == str([core])) for core in cores}
    assert sum(len(span) for span in spans.values()) == 3
    for span in spans.values():
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(span))


def test_a_run_that_fails_stops_the_others_and_tells_why(tmp_path):
    with pytest.raises(UserError, match=r"bad ended with code 2: no room; see .*bad\.log"):
        workers.run_all(jobs(tmp_path, "bad", "never"), workers.cores()[:1])
    assert not (tmp_path / "never").exists()


def test_a_stop_reaches_every_run(tmp_path):
    code = (
        "import sys; from pathlib import Path; from experiments import workers; import test_workers as t\n"
        "if __name__ == '__main__':\n"
        f"    workers.run_all(t.jobs(Path({str(tmp_path)!r}), 'long'), workers.cores()[:1])\n"
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
