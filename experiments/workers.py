"""Much work on the cores of one machine: each run, or controller, in a process of its own on one core.

Threads that share one run's small products wait for each other; runs on their own cores do not.
"""

import csv
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from genda_mjx.config import Config, UserError
from genda_mjx.runs import signals, start
from genda_mjx.runs import train as training

STOPPED = 3  # exit code of a run that saved and stopped before its end
REPORT_SECONDS = 60.0


def cores() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class Job:
    """Work for a process of its own."""

    name: str  # the folder that it makes, or a name beside it; output goes to <name>.log
    work: Callable[[], None]  # can be pickled
    metrics: Path  # csv that grows while it works
    total_steps: int

    @property
    def log(self) -> Path:
        return Path(f"{self.name}.log")  # not with_suffix: a variant's name may have a point in it

    def progress(self) -> str:
        rows = read_rows(self.metrics)
        step = int(rows[-1]["step"]) if rows else 0
        return f"{Path(self.name).name} {step:,} of {self.total_steps:,}"


class Running(NamedTuple):
    job: Job
    process: BaseProcess


def job_of(config: Config, work: Callable[[], None] | None = None) -> Job:
    """A run on one core: its training, or other work for it."""
    return Job(config.out, work or partial(train, config), Path(config.out) / "metrics.csv", config.total_steps)


def train(config: Config) -> None:
    sys.exit(0 if training.train(config) else STOPPED)


def read_rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open() as file:
        return [row for row in csv.DictReader(file) if (row["step"] or "").isdigit()]


def on_core(job: Job, core: int) -> None:
    """In the new process: the job, on one core. The terminal's Ctrl-C goes to the parent, which passes it on."""
    os.setsid()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        start.main(job.work)


def interrupt(number: int, frame: Any) -> None:
    if number not in signals.STOPS:
        signal.signal(number, signal.SIG_IGN)  # a closed terminal may say so twice
    raise KeyboardInterrupt


def run_all(jobs: list[Job], on: list[int]) -> None:
    """Does all jobs, one on each of the cores `on` at a time.

    A stop is passed on once, so that every job saves; the first one that fails stops the others in the same way.
    """
    context, waiting, running = multiprocessing.get_context("spawn"), list(jobs), dict[int, Running]()
    stops = (signal.SIGTERM, *signals.hang_ups())
    previous, reported = {number: signal.signal(number, interrupt) for number in stops}, time.monotonic()
    try:
        while waiting or running:
            for core in on:
                if core not in running and waiting:
                    job = waiting.pop(0)
                    process = context.Process(target=on_core, args=(job, core))
                    process.start()
                    running[core] = Running(job, process)
                    print(f"core {core}: {job.name}, output in {job.log}", flush=True)
            time.sleep(0.5)
            for core, (job, process) in list(running.items()):
                if process.exitcode is not None:
                    del running[core]
                    finish(job, process.exitcode)
            if time.monotonic() - reported > REPORT_SECONDS and running:
                reported = time.monotonic()
                progress = "; ".join(job.progress() for job, _ in running.values())
                print(f"{progress}; {len(waiting)} to come", flush=True)
    except KeyboardInterrupt:
        print("stopping, and saving what is under way; the same command goes on from there", flush=True)
        raise
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()
        for number, handler in previous.items():
            signal.signal(number, handler)


def finish(job: Job, code: int) -> None:
    """Reports a job that has ended; raises if it did not reach its end."""
    if code in (STOPPED, signals.QUIT):
        raise KeyboardInterrupt
    if code:
        last = (job.log.read_text().strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{job.name} ended with code {code}: {last.removeprefix('error: ')}; see {job.log}")
    print(f"done: {job.name}", flush=True)
