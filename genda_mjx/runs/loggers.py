"""Weights & Biases and TensorBoard, if asked for. Logging never stops a run."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from genda_mjx.config import Config
from genda_mjx.runs.folder import write_text
from genda_mjx.runs.report import Progress


class Logger(Protocol):
    """A place that a run reports its numbers and pictures to."""

    def log(self, values: dict[str, Any], step: int) -> None: ...
    def image(self, name: str, path: Path, step: int) -> None: ...
    def video(self, name: str, path: Path, step: int) -> None: ...
    def close(self) -> None: ...


class WandbLogger:
    def __init__(self, run: Any, module: Any):
        self.run, self.module = run, module

    def log(self, values: dict[str, Any], step: int) -> None:
        self.run.log(values, step=step)

    def image(self, name: str, path: Path, step: int) -> None:
        self.run.log({name: self.module.Image(str(path))}, step=step)

    def video(self, name: str, path: Path, step: int) -> None:
        self.run.log({name: self.module.Video(str(path), format=path.suffix[1:])}, step=step)

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

    def video(self, name: str, path: Path, step: int) -> None:
        """TensorBoard gets none: the file is in the run folder."""

    def close(self) -> None:
        self.writer.close()


def wandb_id(config: Config, folder: Path) -> str:
    """A random id, kept in the run folder so that a resumed run goes on under it, and no other run does."""
    path = folder / "wandb_id.txt"
    if config.resume and path.exists():
        return path.read_text().strip()
    write_text(path, secrets.token_hex(8))
    return path.read_text()


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
            id=wandb_id(config, folder),
            resume="allow",
            dir=str(folder),
            config=config.flat(),
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
            self._try(lambda: self.active.append(TensorboardLogger(folder / "tensorboard")))

    @classmethod
    def none(cls, progress: Progress) -> "Loggers":
        return cls(Config(wandb="off", tensorboard=False), Path(), progress)

    def log(self, values: dict[str, Any], step: int) -> None:
        numbers = {name: value for name, value in values.items() if value is not None and value == value}
        self._tell(lambda logger: logger.log(numbers, step))

    def image(self, name: str, path: Path, step: int) -> None:
        self._tell(lambda logger: logger.image(name, path, step))

    def video(self, name: str, path: Path, step: int) -> None:
        self._tell(lambda logger: logger.video(name, path, step))

    def close(self) -> None:
        self._tell(lambda logger: logger.close())

    def _tell(self, what: Callable[[Logger], None]) -> None:
        """Tells every logger, and drops those that fail."""
        self.active = [logger for logger in self.active if self._try(lambda logger=logger: what(logger))]

    def _try(self, action: Callable[[], None]) -> bool:
        """Runs the action; returns False, with a line that says why, if it fails."""
        try:
            action()
            return True
        except Exception as error:
            self.progress.say(f"logging failed ({type(error).__name__}: {error}); going on without it")
            return False
