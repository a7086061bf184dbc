"""Many runs on the cores of one machine: each in a process of its own on one core.

Threads that share one run's small products wait for each other; runs on their own cores do not (docs/performance.md).
"""

import csv
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from genda_mjx.config import Config, UserError
from genda_mjx.runs import start
from genda_mjx.runs import train as training

STOPPED = 3  # exit code of a run that saved and stopped before its end
REPORT_SECONDS = 60.0


def cores() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class Job:
    """A run under way."""

    config: Config
    process: BaseProcess

    @property
    def log(self) -> Path:
        return log_of(self.config)

    def progress(self) -> str:
        rows = read_rows(Path(self.config.out) / "metrics.csv")
        step = int(rows[-1]["step"]) if rows else 0
        return f"{Path(self.config.out).name} {step:,} of {self.config.total_steps:,}"


def log_of(config: Config) -> Path:
    return Path(f"{config.out}.log")  # not with_suffix: a variant's name may have a point in it


def read_rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open() as file:
        return [row for row in csv.DictReader(file) if (row["step"] or "").isdigit()]


def work(config: Config, core: int) -> None:
    """In the new process: the whole run on one core."""
    on_core(config, core, lambda: sys.exit(0 if training.train(config) else STOPPED))


def on_core(config: Config, core: int, job: Callable[[], None]) -> None:
    """In a new process: a job for a run, on one core. The terminal's Ctrl-C goes to the parent, which passes it on."""
    os.setsid()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    log_of(config).parent.mkdir(parents=True, exist_ok=True)
    with log_of(config).open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        start.main(job)


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def run_all(configs: list[Config], on: list[int], target: Callable[[Config, int], None] = work) -> None:
    """Runs target(config, core) for all configs, one on each of the cores `on` at a time.

    A stop is passed on once, so that every run saves; the first one that fails stops the others in the same way.
    """
    context, waiting, running = multiprocessing.get_context("spawn"), list(configs), dict[int, Job]()
    previous, reported = signal.signal(signal.SIGTERM, interrupt), time.monotonic()
    try:
        while waiting or running:
            for core in on:
                if core not in running and waiting:
                    config = waiting.pop(0)
                    process = context.Process(target=target, args=(config, core))
                    process.start()
                    running[core] = Job(config, process)
                    print(f"core {core}: {config.out}, output in {log_of(config)}", flush=True)
            time.sleep(0.5)
            for core, job in list(running.items()):
                if job.process.exitcode is not None:
                    del running[core]
                    finish(job)
            if time.monotonic() - reported > REPORT_SECONDS and running:
                reported = time.monotonic()
                print("; ".join(job.progress() for job in running.values()) + f"; {len(waiting)} to come", flush=True)
    finally:
        for job in running.values():
            job.process.terminate()
        for job in running.values():
            job.process.join()
        signal.signal(signal.SIGTERM, previous)


def finish(job: Job) -> None:
    """Reports a run that has ended; raises if it did not reach its end."""
    code = job.process.exitcode
    if code in (STOPPED, 130):
        raise KeyboardInterrupt
    if code:
        last = (job.log.read_text().strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{job.config.out} ended with code {code}: {last.removeprefix('error: ')}; see {job.log}")
    print(f"done: {job.config.out}", flush=True)
