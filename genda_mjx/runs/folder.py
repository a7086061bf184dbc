"""What a run folder is: its names, its config.json, and what may be started in it.

RUN/config.json versions.json        what was asked for, and with which packages
RUN/checkpoints/<step>/              the newest two, and those that --keep_every keeps
RUN/metrics.csv                      one row per iteration
RUN/evaluations/<step>.npz           traces, skills and latents of the evaluation episodes
RUN/plots/                           pictures of them
RUN/seed_<k>/                        the last three for each seed, where a run has several
RUN/eval/  RUN/downstream/           what eval.py adds
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from genda_mjx.config import OF_A_START, RESUMABLE, Config, UserError


def run_folder(config: Config) -> Path:
    name = "_".join([config.env] + ["pixels"] * config.pixels + [config.algo] * (config.algo != "genda"))
    return Path(config.out or f"runs/{name}")


def seed_folder(config: Config, run: Path, member: int) -> Path:
    """Where the metrics, evaluations and plots of the member-th seed go: the run itself if it is the only one."""
    return run if config.num_seeds == 1 else run / f"seed_{config.seed + member}"


def seed_folders(config: Config, run: Path) -> list[Path]:
    return [seed_folder(config, run, member) for member in range(config.num_seeds)]


def locate(folder: Path) -> tuple[Path, int]:
    """(run, member) of a run folder, or of one seed's folder in a run of several."""
    if folder.name.startswith("seed_") and not (folder / "config.json").exists() and folder.is_dir():
        members = seed_folders(read_config(folder.parent), folder.parent)
        if folder in members:
            return folder.parent, members.index(folder)
    config = read_config(folder)
    if config.num_seeds > 1:
        names = ", ".join(map(str, seed_folders(config, folder)))
        raise UserError(f"{folder} holds {config.num_seeds} seeds; choose one of {names}")
    return folder, 0


def without_start(config: Config) -> Config:
    """The config without what belongs to one start: what is stored with a run."""
    return dataclasses.replace(config, **{name: getattr(Config, name) for name in OF_A_START})


def read_config(run: Path) -> Config:
    """The config that a run folder was made with."""
    path = run / "config.json"
    if not path.exists():
        raise UserError(f"{run} is not a run folder: it has no config.json")
    try:
        return Config.from_json(path.read_text())
    except (json.JSONDecodeError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it or start a new run") from error


def differences(stored: Config, asked: Config) -> list[str]:
    """What stops `asked` from continuing `stored`, one line per field."""
    old, new = stored.flat(), asked.flat()
    return [
        f"{name} is {old[name]!r} in the run, {new.get(name)!r} asked"
        for name in old
        if name not in RESUMABLE and old[name] != new.get(name)
    ]


def check_folder(config: Config) -> None:
    """Checks the run folder against what is already there; nothing is written yet."""
    run = Path(config.out)
    if config.resume:
        differing = differences(read_config(run), config)
        if differing:
            raise UserError(f"cannot resume {run}: {'; '.join(differing)}; drop these flags or choose another --out")
    elif (run / "config.json").exists():
        raise UserError(f"{run} already holds a run; continue it with --resume or choose another --out")
    elif run.is_dir() and any(path.name != "config.json.part" for path in run.iterdir()):
        raise UserError(f"{run} is not empty and not a run; choose another --out")
    elif run.exists() and not run.is_dir():
        raise UserError(f"{run} is a file; choose another --out")


def write_text(path: Path, text: str) -> None:
    """Writes all or nothing: a reader never sees half a file."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text)
    os.replace(partial, path)


def save_episodes(path: Path, episodes: Any) -> None:
    """Stores the arrays of a NamedTuple by name, those of a dict `traces` by its own names, and leaves out None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.stem + ".part.npz")
    fields = episodes._asdict()
    fields |= fields.pop("traces", {})
    np.savez_compressed(partial, **{name: value for name, value in fields.items() if value is not None})
    partial.replace(path)
