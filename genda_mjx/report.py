"""What a run tells: a live line from the first second, metrics.csv always, wandb and TensorBoard if asked for."""

import csv
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from genda_mjx.config import Config


class Progress:
    """One line that is rewritten on a terminal; elsewhere a line now and then."""

    QUIET_SECONDS = 10.0  # between lines when the output is not a terminal

    def __init__(self, out: Any = None, silent: bool = False):
        """silent: says nothing, in a process that is not the lead."""
        self.out, self.silent = out or sys.stdout, silent
        self.live = self.out.isatty() and not silent
        self._last = 0.0
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.silent:
            return
        with self._lock:
            self.out.write(("\r\x1b[K" if self.live else "") + text + "\n")
            self.out.flush()

    def show(self, text: str, now: bool = False) -> None:
        """The current state, replaced by the next."""
        if self.live:
            with self._lock:
                width = max(os.get_terminal_size(self.out.fileno()).columns - 1, 20)
                self.out.write("\r\x1b[K" + text[:width])
                self.out.flush()
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
    """metrics.csv: one row an iteration, only what the seed determines, so that a resumed run has the same rows."""

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
        """Numbers that are not there (warm-up, no evaluation) stay empty."""
        clean = {name: "" if value is None or value != value else value for name, value in row.items()}
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(clean)


class Logger(Protocol):
    def log(self, values: dict[str, Any], step: int) -> None: ...
    def image(self, name: str, path: Path, step: int) -> None: ...
    def close(self) -> None: ...


class WandbLogger:
    def __init__(self, run: Any, module: Any):
        self.run, self.module = run, module

    def log(self, values: dict[str, Any], step: int) -> None:
        self.run.log(values, step=step)

    def image(self, name: str, path: Path, step: int) -> None:
        self.run.log({name: self.module.Image(str(path))}, step=step)

    def close(self) -> None:
        self.run.finish()


class TensorboardLogger:
    def __init__(self, folder: Path):
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(str(folder))

    def log(self, values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def image(self, name: str, path: Path, step: int) -> None:
        import matplotlib.image

        self.writer.add_image(name, matplotlib.image.imread(path)[..., :3], step, dataformats="HWC")

    def close(self) -> None:
        self.writer.close()


def start_wandb(config: Config, folder: Path, progress: Progress) -> Logger | None:
    """A wandb run, offline when there is no login; None, with a line that says why, when it does not start."""
    try:
        import wandb

        mode = config.wandb
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            progress.say("wandb: no login found, logging offline (`wandb login`, then `wandb sync` uploads it)")
            mode = "offline"
        run = wandb.init(
            project="genda-mjx",
            name=folder.name,
            id=f"{folder.name}-{config.env}-{config.seed}",
            resume="allow",
            dir=str(folder),
            config=vars(config),
            mode=mode,
            settings=wandb.Settings(silent=True, init_timeout=30),
        )
        return WandbLogger(run, wandb)
    except Exception as error:  # logging must never stop a run
        progress.say(f"wandb did not start ({type(error).__name__}: {error}); going on without it")
        return None


class Loggers:
    """All optional loggers; one that fails is dropped with a line, the run goes on."""

    def __init__(self, config: Config, folder: Path, progress: Progress):
        self.progress = progress
        self.active: list[Logger] = []
        if config.wandb != "off" and (logger := start_wandb(config, folder, progress)):
            self.active.append(logger)
        if config.tensorboard:
            self._guard(lambda: self.active.append(TensorboardLogger(folder / "tensorboard")), None)

    @classmethod
    def none(cls, progress: Progress) -> "Loggers":
        return cls(Config(wandb="off", tensorboard=False), Path(), progress)

    def _guard(self, action: Any, logger: Logger | None) -> None:
        try:
            action()
        except Exception as error:
            self.progress.say(f"logging failed ({type(error).__name__}: {error}); going on without it")
            if logger is not None:
                self.active.remove(logger)

    def log(self, values: dict[str, Any], step: int) -> None:
        numbers = {name: value for name, value in values.items() if value is not None and value == value}
        for logger in list(self.active):
            self._guard(lambda logger=logger: logger.log(numbers, step), logger)

    def image(self, name: str, path: Path, step: int) -> None:
        for logger in list(self.active):
            self._guard(lambda logger=logger: logger.image(name, path, step), logger)

    def close(self) -> None:
        for logger in list(self.active):
            self._guard(logger.close, logger)
