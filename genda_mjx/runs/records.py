"""What training leaves behind for each seed: rows of metrics.csv, evaluation episodes, pictures and logs."""

from pathlib import Path
from typing import Any

import numpy as np

from genda_mjx.build import Built
from genda_mjx.config import Config
from genda_mjx.evaluate import Episodes
from genda_mjx.runs import plots, processes, video
from genda_mjx.runs.folder import save_episodes, seed_folders
from genda_mjx.runs.loggers import Loggers
from genda_mjx.runs.report import MetricsCsv, Progress, number


class Records:
    """The open files and loggers of a run; in a process that is not the lead nothing is written."""

    def __init__(self, config: Config, run: Path, progress: Progress):
        self._run, self._folders = run, seed_folders(config, run) if processes.is_lead() else []
        self._loggers = Loggers(config, run, progress) if processes.is_lead() else Loggers.none(progress)

    def open(self, columns: list[str], last_step: int) -> None:
        """Opens one csv per seed, which keeps the rows up to `last_step`."""
        self._csvs = [MetricsCsv(folder / "metrics.csv", columns, last_step or None) for folder in self._folders]

    def write(self, rows: list[list[dict[str, Any]]]) -> None:
        """Writes one row per iteration and seed."""
        for of_seeds in rows if self._folders else []:
            for csv, row in zip(self._csvs, of_seeds, strict=True):
                csv.write(row)
            self._loggers.log(self._logged(of_seeds), of_seeds[0]["step"])

    def _logged(self, rows: list[dict[str, Any]]) -> dict[str, float]:
        """Means over the seeds, and each seed's own numbers where there are several."""
        values = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        if len(rows) > 1:
            for folder, row in zip(self._folders, rows, strict=True):
                values |= {f"{folder.name}/{name}": value for name, value in row.items()}
        return values

    def keep(self, built: Built, played: list[Episodes], found: list[dict[str, float]], step: int) -> None:
        """Keeps an evaluation: its episodes and pictures of them, with what was found in the title."""
        env = built.env
        for folder, episodes, measured in zip(self._folders, played, found, strict=bool(self._folders)):
            save_episodes(folder / "evaluations" / f"{step}.npz", episodes)
            title = f"{built.config.env}, {step:,} steps: {number(measured[env.headline])} {env.unit}"
            pictures = plots.draw_episodes(folder / "plots", str(step), title, built.agent.skills, episodes)
            prefix = "" if folder == self._run else f"{folder.name}/"
            for name, path in pictures.items():
                self._loggers.image(prefix + name, path, step)
            if built.config.log_video:
                shown = video.make(env, built.agent.skills, episodes, folder / "plots" / f"skills_{step}")
                self._loggers.video(f"{prefix}skills", shown["mp4"], step)

    def close(self) -> None:
        self._loggers.close()
