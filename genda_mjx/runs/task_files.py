"""Which downstream task is asked for, where its files go, and what is already there.

Files go to RUN/downstream/<task>/<checkpoint step>/, those of a seed to seed<k>/ in it.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

from genda_mjx.config import UserError
from genda_mjx.downstream.controller import ControllerConfig


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """Which task is asked for, and where it departs from the paper's."""

    task: str | None = None  # train a controller over the skills: fs_rg, rs_rg, maze_easy, maze_hard or maze
    maze: Path | None = None  # a text grid for the task maze (envs/tasks/layout.py)
    goal_center: tuple[float, float] | None = None  # m, shift start and goals of an open-floor task to X Y
    radius: float | None = None  # m, a goal is reached within; None: 1.5, quadruped in mazes 3.0, fish 0.1
    separation: float | None = None  # m, least start-goal distance; None: 3 (official mazes: 4)
    goal_range: float | None = None  # m, half side of the square of goals; None: 3.5
    horizon: int | None = None  # environment steps per episode; None: the paper's

    @property
    def label(self) -> str:
        """The task's name, also of its folder."""
        parts = [self.task]
        if self.maze is not None:
            parts.append(self.maze.stem)
        if self.goal_center is not None:
            parts.append("at_{:g}_{:g}".format(*self.goal_center))
        return "_".join(parts)

    def for_goals(self) -> dict[str, Any]:
        """The options as keywords of envs.tasks.goals.make."""
        renamed = {"maze": "maze_file", "goal_center": "center"}
        values = dataclasses.asdict(self)
        return {renamed.get(name, name): value for name, value in values.items() if value is not None}

    def recorded(self) -> dict[str, Any]:
        """The options for options.json; a maze file by its text, so that an edited one is noticed."""
        values = dataclasses.asdict(self)
        if self.maze is not None:
            values["maze"] = self.maze.read_text().splitlines()
        if self.goal_center is not None:
            values["goal_center"] = list(self.goal_center)
        return values


class SeedResult(NamedTuple):
    """The last evaluation of one seed."""

    success: float
    failed: int  # episodes whose physics went non-finite
    macro_steps: int
    train_success: float | None = None  # of the last episodes of training; None: of an older version


def folder_of(run: Path, step: int, options: TaskOptions) -> Path:
    return run / "downstream" / options.label / str(step)


def record(options: TaskOptions, config: ControllerConfig) -> dict[str, Any]:
    """All that decides what a controller learns, for options.json."""
    return {"controller": dataclasses.asdict(config), "task": options.recorded()}


def check_same(folder: Path, asked: dict[str, Any]) -> None:
    """Refuses a folder whose content comes from other options."""
    path = folder / "options.json"
    if not path.exists():
        return
    try:
        stored = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}); move {folder} away") from error
    stored["controller"] = dataclasses.asdict(ControllerConfig()) | stored.get("controller", {})  # of an older version
    differing = [
        f"{name} is {stored.get(group, {}).get(name)!r} there, {value!r} asked"
        for group, values in asked.items()
        for name, value in values.items()
        if stored.get(group, {}).get(name) != value
    ]
    if differing:
        raise UserError(
            f"{folder} holds another controller: {'; '.join(differing)}; give the same options or move it away"
        )


def stored_result(run: Path, step: int, options: TaskOptions, config: ControllerConfig, seed: int) -> SeedResult | None:
    """The result of a finished seed; None if it is not finished."""
    folder = folder_of(run, step, options)
    check_same(folder, record(options, config))
    path = folder / f"seed{seed}" / "result.json"
    return SeedResult(**json.loads(path.read_text())) if path.exists() else None
