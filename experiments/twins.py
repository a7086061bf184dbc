"""Runs that several grids have in common: the default of one ablation is the default of the next. Each is trained once.

A run's twin has the same config, but for the folder, and the same packages, and has reached its end in another grid
beside this one.
"""

import dataclasses
import json
import os
import shutil
from pathlib import Path

from genda_mjx.config import Config, UserError
from genda_mjx.runs.checkpoint import Checkpoints, versions
from genda_mjx.runs.folder import read_config, without_start, write_text


def is_done(run: Path, total_steps: int) -> bool:
    """Whether the run has a checkpoint at its end."""
    if not (run / "checkpoints").is_dir():
        return False
    checkpoints = Checkpoints(run, read_only=True)
    steps = checkpoints.steps
    checkpoints.close()
    return bool(steps) and steps[-1] >= total_steps


def find(config: Config, total_steps: int) -> Path | None:
    """The folder of a twin; None if there is none."""
    run = Path(config.out)
    for path in sorted(run.parent.parent.glob("*/*-seed*/config.json")):
        if path.parent != run and same(path.parent, config) and is_done(path.parent, total_steps):
            return path.parent
    return None


def same(run: Path, config: Config) -> bool:
    """Whether a run's files would be those of the config, but for their place."""
    try:
        stored, packages = read_config(run), json.loads((run / "versions.json").read_text())
    except (UserError, OSError, json.JSONDecodeError):  # of another version, or damaged: not ours to mend
        return False
    elsewhere = {"out": config.out, "compile_cache": config.compile_cache}
    return packages == versions() and dataclasses.replace(stored, **elsewhere) == without_start(config)


def copy(config: Config, total_steps: int) -> Path:
    """Makes the run of a config from its twin, all or nothing; either may be resumed or deleted without the other."""
    run, twin = Path(config.out), find(config, total_steps)
    partial = run.parent / "copying"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(twin, partial, ignore=shutil.ignore_patterns("checkpoints"))
    # Files of a checkpoint are written once: both runs may have them.
    shutil.copytree(twin / "checkpoints", partial / "checkpoints", copy_function=link)
    write_text(partial / "config.json", without_start(config).to_json())
    partial.rename(run)
    return twin


def link(source: str, target: str) -> None:
    """A second name for a file, or a copy where the file system has no such thing."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
