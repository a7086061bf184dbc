"""What a run tells: a live line from the first second, and metrics.csv."""

import csv
import errno
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envs.base import SkillEnv

NOBODY_READS = (errno.EPIPE, errno.EIO)  # the reader of a pipe has ended; the terminal was closed


def let_go(out: Any) -> None:
    """Sends what is still written to a stream nowhere, so that nothing fails by it."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), out.fileno())


class Progress:
    """One line that is rewritten on a terminal; elsewhere a line now and then."""

    QUIET_SECONDS = 10.0  # between lines when the output is not a terminal

    def __init__(self, out: Any = None, silent: bool = False):
        """silent: says nothing, in a process that is not the lead."""
        self.out, self.silent = out or sys.stdout, silent
        self.live = self.out.isatty() and not silent
        self.cut_off = False  # nobody reads it any more
        self._last = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
                self.out.flush()
            except OSError as error:
                if error.errno not in NOBODY_READS:
                    raise
                let_go(self.out)
                self.live, self.cut_off = False, True

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        if self.silent:
            return
        with self._writing():
            self.out.write(("\r\x1b[K" if self.live else "") + text + "\n")

    def show(self, text: str, now: bool = False) -> None:
        """Shows the current state, until the next replaces it."""
        if self.live:
            with self._writing():
                width = max(os.get_terminal_size(self.out.fileno()).columns - 1, 20)
                self.out.write("\r\x1b[K" + text[:width])
        elif now or time.monotonic() - self._last >= self.QUIET_SECONDS:
            self._last = time.monotonic()
            self.say(text)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Shows `what` with the elapsed seconds while the body blocks (a compilation, a restore)."""
        started, done = time.monotonic(), threading.Event()

        def tick() -> None:
            while not done.wait(1.0):
                self.show(f"{what} {time.monotonic() - started:.0f} s")

        self.show(f"{what} ...", now=True)
        self._last = time.monotonic()
        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        self.say(f"{what} took {time.monotonic() - started:.1f} s")


def duration(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


class MetricsCsv:
    """metrics.csv: one row per iteration, of what the seed alone determines, so that a resumed run has the same."""

    def __init__(self, path: Path, columns: list[str], last_step: int | None = None):
        """last_step: keep the rows up to this step (a resumed run); None starts afresh."""
        self.path, self.columns = path, columns
        kept = self._rows_until(last_step) if last_step is not None and path.exists() else []
        partial = path.with_suffix(".csv.part")
        with partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(kept)
        partial.replace(path)

    def _rows_until(self, last_step: int) -> list[dict[str, str]]:
        rows = []
        with self.path.open(newline="") as file:
            for row in csv.DictReader(file):
                if None in row or None in row.values() or not row["step"].isdigit() or int(row["step"]) > last_step:
                    break  # later than the checkpoint, or cut off by a kill
                rows.append({name: row.get(name, "") for name in self.columns})
        return rows

    def write(self, row: dict[str, Any]) -> None:
        """Adds a row; numbers that are not there (warm-up, no evaluation) stay empty."""
        clean = {name: "" if value is None or value != value else value for name, value in row.items()}
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(clean)

    def recent(self, column: str, rows: int) -> float:
        """The mean of a column over the last rows."""
        with self.path.open(newline="") as file:
            values = [float(row[column]) for row in csv.DictReader(file)]
        return sum(values[-rows:]) / len(values[-rows:])


def number(value: float) -> str:
    """The text of a number: counts in full, other measures to three digits."""
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def headline_text(env: SkillEnv, found: dict[str, float]) -> str:
    """The environment's headline in words, and alignment beside it where the agent has one."""
    aligned = f", alignment {found['alignment']:.2f}" if "alignment" in found else ""
    return f"{env.headline} {number(found[env.headline])} {env.unit}{aligned}"


def rounded(value: float) -> float:
    """The value to one significant digit."""
    return float(f"{value:.0e}")
