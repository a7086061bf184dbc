"""The same skills in a world that has shifted: from moved starts, and for runs with pixels on floors of other colours.

Part of `python -m experiments.run`. A result is kept with its run (RUN/eval/) and not made again.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from envs.base import SkillEnv
from experiments import workers
from genda_mjx.build import body_class, env_of
from genda_mjx.config import Config
from genda_mjx.runs.evaluate import evaluate
from genda_mjx.runs.folder import seed_folders

FLOORS = {"paper": "original", "unicolor": "unicolor", "gradation": "gradation"}  # floor -> the table's word
EPISODES = 48


def background(out: Path, configs: list[Config], step: int) -> str:
    """Writes background.md into the folder of a grid: the headline on each floor."""
    envs: dict[str, SkillEnv] = {}

    def on_floors(config: Config, run: Path) -> list[float]:
        return [on_floor(run, config, floor, step, envs) for floor in FLOORS]

    return write(out / "background.md", list(FLOORS.values()), by_variant(configs, on_floors))


def on_floor(run: Path, config: Config, floor: str, step: int, envs: dict[str, SkillEnv]) -> float:
    """The headline of 48 skills of a run on a floor. envs: those made so far, by floor."""
    path = run / "eval" / f"result_{step}_{floor}.json"
    if not path.exists():
        if floor not in envs:
            envs[floor] = env_of(config, floor)
        evaluate(run, step, EPISODES, config.seed, compile_cache=config.compile_cache, env=envs[floor], floor=floor)
    return json.loads(path.read_text())[body_class(config.env).headline]


def move_missing(configs: list[Config], step: int, jobs: int = 1, env: SkillEnv | None = None) -> None:
    """Evaluates the runs from moved starts where that is not known, `jobs` of them at a time.

    env: instead of the body that the configs name (one at a time).
    """
    missing = [config for config in configs if any(kept(config, run, step, env) is None for run in runs_of(config))]
    if jobs > 1 and len(missing) > 1:
        work = [workers.job_of(config, partial(move, config, step)) for config in missing]
        workers.run_all(work, workers.cores()[:jobs])
        return
    for config in missing:
        move(config, step, env)


def moved(out: Path, configs: list[Config], step: int, env: SkillEnv | None = None) -> str:
    """Writes moved.md into the folder of a grid, of what is known: headline and consistency from moved starts."""
    body = env or body_class(configs[0].env)
    known = [config for config in configs if all(kept(config, run, step, env) for run in runs_of(config))]

    def from_moved_starts(config: Config, run: Path) -> list[float]:
        rows = kept(config, run, step, env)
        return [value for row in rows for value in (row[body.headline], row["consistency"], row["consistency_min"])]

    names = [
        f"{distance:g} m: {measure}"
        for distance in body.moved_starts
        for measure in (body.headline, "consistency", "worst direction's")
    ]
    return write(out / "moved.md", names, by_variant(known, from_moved_starts))


def kept(config: Config, run: Path, step: int, env: SkillEnv | None = None) -> list[dict[str, float]] | None:
    """What is known of a run from starts moved by each of its body's distances; None if one is missing."""
    path, distances = run / "eval" / f"result_{step}_offsets.json", (env or body_class(config.env)).moved_starts
    if not path.exists():
        return None
    rows = {row["distance"]: row for row in json.loads(path.read_text())["offsets"]}
    return [rows[distance] for distance in distances] if rows.keys() >= set(distances) else None


def move(config: Config, step: int, env: SkillEnv | None = None) -> None:
    """Evaluates every seed of a run from moved starts."""
    env = env or env_of(config)
    for run in runs_of(config):
        distances, cache = env.moved_starts, config.compile_cache
        evaluate(run, step, EPISODES, config.seed, distances=distances, compile_cache=cache, env=env)


def runs_of(config: Config) -> list[Path]:
    """The folder of each seed of a run."""
    return seed_folders(config, Path(config.out))


def by_variant(configs: list[Config], measure: Callable[[Config, Path], list[float]]) -> dict[str, np.ndarray]:
    """Variant -> measure(config, run) of its seeds [seeds, columns]."""
    found: dict[str, list[list[float]]] = {}
    for config in configs:
        name = Path(config.out).name.rsplit("-seed", 1)[0]
        found.setdefault(name, []).extend(measure(config, run) for run in runs_of(config))
    return {name: np.array(rows) for name, rows in found.items()}


def write(path: Path, columns: list[str], variants: dict[str, np.ndarray]) -> str:
    """A table with a row for each variant: mean, spread and the value of each seed."""
    lines = [f"| variant | seeds | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for name, values in variants.items():
        lines.append(f"| {name} | {len(values)} | {' | '.join(map(cell, values.T))} |")
    text = "\n".join(lines)
    path.write_text(text + "\n")
    return text


def cell(values: np.ndarray) -> str:
    """Counts as whole numbers, cosines with two digits."""
    digits = 2 if np.abs(values).max() <= 1 else 0
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{values.mean():.{digits}f} ± {values.std():.{digits}f} ({each})"
