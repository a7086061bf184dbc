"""What the user sees and keeps: progress lines, csv rows, optional loggers that never stop a run, plots."""

import io
import os
import pty
import signal
import sys
import time
import types

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import hsv_to_rgb
from trainer_helpers import Walk, tiny

from genda_mjx.agents.skills import SkillSpace
from genda_mjx.runs import plots
from genda_mjx.runs.loggers import Loggers, wandb_id
from genda_mjx.runs.report import MetricsCsv, Progress, duration, headline_text, rounded
from genda_mjx.runs.signals import StopRequest
from genda_mjx.runs.train import offset_hint


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def fileno(self):
        raise OSError


def test_waiting_shows_elapsed_time_while_the_work_blocks(monkeypatch):
    out = io.StringIO()
    progress = Progress(out)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.5)
    with progress.waiting("compiling"):
        assert out.getvalue() == "compiling ...\n"  # at once, not when it is over
        time.sleep(1.3)
    lines = out.getvalue().splitlines()
    assert lines[1].startswith("compiling 1 s") and lines[-1].startswith("compiling took 1.")


def test_lines_are_rare_when_nobody_watches():
    out = io.StringIO()
    progress = Progress(out)
    for i in range(100):
        progress.show(f"step {i}")
    assert out.getvalue() == "step 0\n"
    progress.show("last", now=True)
    assert out.getvalue() == "step 0\nlast\n"


def test_live_line_is_rewritten_on_a_terminal(monkeypatch):
    monkeypatch.setattr("os.get_terminal_size", lambda fd: types.SimpleNamespace(columns=31))
    out = Terminal()
    out.fileno = lambda: 1
    progress = Progress(out)
    progress.show("x" * 100)
    progress.say("stays")
    assert out.getvalue() == "\r\x1b[K" + "x" * 30 + "\r\x1b[Kstays\n"


@pytest.mark.parametrize("pair", [os.pipe, pty.openpty])
def test_output_that_nobody_reads_asks_the_run_to_save_and_end(pair):
    """As when the `head` or `tee` of a pipe has ended, or a terminal was closed: no error, and not lost work."""
    reader, writer = pair()
    with os.fdopen(writer, "w") as out:
        progress = Progress(out)
        assert progress.live == (pair is pty.openpty)
        with StopRequest(progress) as stop:
            progress.say("read")
            assert not stop.asked
            os.close(reader)
            progress.show("step 1", now=True)
            assert stop.asked
            progress.say("nobody hears it")


@pytest.mark.usefixtures("in_a_terminal")
def test_a_closed_terminal_asks_once_however_often_it_says_so():
    with StopRequest(Progress(io.StringIO())) as stop:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)  # the kernel and the shell both send it
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("in_a_terminal")
def test_a_run_under_nohup_outlives_its_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopRequest(Progress(io.StringIO())) as stop:
        signal.raise_signal(signal.SIGHUP)
        assert not stop.asked


def test_a_signal_in_the_middle_of_a_line_does_not_wait_for_it():
    out = io.StringIO()
    progress = Progress(out)
    with StopRequest(progress) as stop, progress._lock:  # as the main thread has it while it writes
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked and not out.getvalue()
    deadline = time.monotonic() + 10
    while "saving" not in out.getvalue():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_duration():
    assert duration(3723.9) == "1:02:03"


def test_csv_leaves_missing_numbers_empty_and_keeps_floats_exact(tmp_path):
    table = MetricsCsv(tmp_path / "m.csv", ["step", "loss", "coverage"])
    value = float(np.float32(0.1))
    table.write({"step": 40, "loss": float("nan"), "coverage": None})
    table.write({"step": 80, "loss": value, "coverage": 7})
    lines = (tmp_path / "m.csv").read_text().split()
    assert lines == ["step,loss,coverage", "40,,", f"80,{value!r},7"] and np.float32(
        lines[2].split(",")[1]
    ) == np.float32(0.1)
    MetricsCsv(tmp_path / "m.csv", ["step", "loss", "coverage"], last_step=40)
    assert (tmp_path / "m.csv").read_text().split() == ["step,loss,coverage", "40,,"]
    MetricsCsv(tmp_path / "m.csv", ["step"])
    assert (tmp_path / "m.csv").read_text().split() == ["step"]


def test_words_of_an_evaluation():
    found = {"coverage": 1347, "mean_distance": 0.237, "alignment": 0.876}
    assert headline_text(Walk(), found) == "coverage 1347 bins, alignment 0.88"
    assert headline_text(Walk(), {"coverage": 7}) == "coverage 7 bins"  # an agent without phi


def test_hint_is_as_far_as_the_skills_go():
    assert offset_hint({"mean_distance": 0.237}) == " --offset 0.2 0.1"  # a fish
    assert offset_hint({"mean_distance": 46.3}) == " --offset 50 20"
    assert offset_hint({"mean_distance": 0.0}) == offset_hint({}) == ""
    assert rounded(0.0) == 0 and rounded(96.0) == 100


def test_wandb_id_belongs_to_one_run_and_its_continuation(tmp_path):
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]  # of the same name
    for folder in folders:
        folder.mkdir(parents=True)
    first, second = (wandb_id(tiny(), folder) for folder in folders)
    assert first != second and (folders[0] / "wandb_id.txt").read_text() == first
    assert wandb_id(tiny(resume=True), folders[0]) == first
    assert wandb_id(tiny(), folders[0]) != first


def test_wandb_without_login_goes_offline_and_errors_never_stop_a_run(tmp_path, monkeypatch):
    calls = []

    def init(**settings):
        calls.append(settings["mode"])
        raise RuntimeError("no network")

    fake = types.SimpleNamespace(login=lambda **_: False, init=init, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    out = io.StringIO()
    loggers = Loggers(tiny(wandb="online"), tmp_path, Progress(out))
    loggers.log({"x": 1.0}, 1)
    loggers.close()
    assert calls == ["offline"] and loggers.active == []
    assert "no login" in out.getvalue() and "no network" in out.getvalue()


def test_logger_that_breaks_is_dropped(tmp_path):
    class Broken:
        def log(self, values, step):
            raise OSError("disk full")

    out = io.StringIO()
    loggers = Loggers(tiny(), tmp_path, Progress(out))
    loggers.active.append(Broken())
    loggers.log({"x": 1.0}, 1)
    loggers.log({"x": 1.0}, 2)
    assert loggers.active == [] and out.getvalue().count("disk full") == 1


def test_tensorboard_writes_events_without_missing_numbers(tmp_path):
    loggers = Loggers(tiny(tensorboard=True), tmp_path, Progress(io.StringIO()))
    loggers.log({"x": 1.5, "missing": float("nan"), "none": None}, 3)
    loggers.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    data = events.read_bytes()
    assert b"x" in data and b"missing" not in data and b"none" not in data


def test_colours_follow_the_direction_of_the_skill():
    angles = np.deg2rad([0, 120, 240])
    directions = SkillSpace("directions", 2).colors(np.stack([np.cos(angles), np.sin(angles)], -1))
    red, green, blue = hsv_to_rgb(directions)
    assert red.argmax() == 0 and green.argmax() == 1 and blue.argmax() == 2
    up, down = hsv_to_rgb(SkillSpace("directions", 3).colors(np.array([[0.1, 0, 0.99], [0.1, 0, -0.99]])))
    assert up.max() > down.max()


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_plots_show_the_lines(tmp_path, dim):
    curves = np.cumsum(np.random.default_rng(0).normal(size=(5, 20, dim)), axis=1)
    plots.draw_lines(tmp_path / "a" / "p.png", [("t", curves), ("u", curves + 3)], np.full((5, 3), 0.9), ("x", "y"))
    picture = matplotlib.image.imread(tmp_path / "a" / "p.png")[..., :3]
    coloured = (picture.max(-1) - picture.min(-1)) > 0.3
    halves = np.array_split(coloured, 2, axis=1)
    assert all(half.sum() > 100 for half in halves)  # both panels have coloured lines
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["p.png"]
