"""The background-shift table: the skills of runs that see pixels, shown on floors which they never saw.

Part of `python -m experiments.run background`. A result is kept with its run (RUN/eval/) and not made again.
"""

import json
from pathlib import Path

import numpy as np

from genda_mjx.build import env_of
from genda_mjx.config import Config
from genda_mjx.runs.evaluate import evaluate
from genda_mjx.runs.folder import seed_folders

FLOORS = {"paper": "original", "unicolor": "unicolor", "gradation": "gradation"}  # floor -> the table's word
EPISODES = 48


def result(run: Path, config: Config, floor: str, step: int, envs: dict) -> float:
    """The headline of 48 skills of a run on a floor. envs: those made so far, by floor."""
    path = run / "eval" / f"result_{step}_{floor}.json"
    if not path.exists():
        if floor not in envs:
            envs[floor] = env_of(config, floor)
        evaluate(run, step, EPISODES, config.seed, compile_cache=config.compile_cache, env=envs[floor], floor=floor)
    found = json.loads(path.read_text())
    return found[envs[floor].headline if floor in envs else "coverage"]


def table(out: Path, configs: list[Config], step: int) -> str:
    """Writes background.md into the folder of the grid: a row for each variant, mean and spread over its seeds."""
    envs: dict = {}
    variants: dict[str, list[list[float]]] = {}
    for config in configs:
        name = Path(config.out).name.rsplit("-seed", 1)[0]
        for run in seed_folders(config, Path(config.out)):
            variants.setdefault(name, []).append([result(run, config, floor, step, envs) for floor in FLOORS])
    lines = [f"| variant | seeds | {' | '.join(FLOORS.values())} |", "|---" * (2 + len(FLOORS)) + "|"]
    for name, rows in variants.items():
        values = np.array(rows)  # [seeds, floors]
        cells = [
            f"{mean:.0f} ± {spread:.0f} ({', '.join(f'{v:g}' for v in each)})"
            for mean, spread, each in zip(values.mean(0), values.std(0), values.T, strict=True)
        ]
        lines.append(f"| {name} | {len(rows)} | {' | '.join(cells)} |")
    text = "\n".join(lines)
    (out / "background.md").write_text(text + "\n")
    return text
