"""Coverage over steps, mean and spread over seeds, from the metrics.csv of many runs: python -m experiments.draw FOLDER

The folder holds <variant>-seed<k>/metrics.csv (as experiments.run makes it, also with seeds side by side) or, to keep
with the docs, <variant>-seed<k>.csv.
"""

import csv
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from genda_mjx.config import UserError


class Curve(NamedTuple):
    steps: list[int]
    coverage: list[int]
    random: int  # a random policy's coverage


def read(path: Path) -> Curve | None:
    """The evaluations in a metrics.csv; None before the first."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["coverage"]]
    if not rows:
        return None
    return Curve([int(r["step"]) for r in rows], [int(r["coverage"]) for r in rows], int(rows[-1]["random_coverage"]))


def collect(folder: Path) -> dict[str, list[Curve]]:
    """Variant -> the curve of each seed."""
    found: dict[str, list[Curve]] = {}
    paths = [
        *folder.glob("*-seed*.csv"),
        *folder.glob("*-seed*/metrics.csv"),
        *folder.glob("*-seed*/seed_*/metrics.csv"),
    ]
    for path in sorted(paths):
        name = re.match(r"(.+)-seed\d+", path.relative_to(folder).parts[0]).group(1)
        if (curve := read(path)) is not None:
            found.setdefault(name, []).append(curve)
    return found


def common(curves: list[Curve]) -> tuple[np.ndarray, np.ndarray]:
    """Steps that every seed has reached, and coverage [seeds, steps] there."""
    steps = sorted(set.intersection(*(set(curve.steps) for curve in curves)))
    return np.array(steps), np.array([[c.coverage[c.steps.index(step)] for step in steps] for c in curves])


def table(found: dict[str, list[Curve]]) -> str:
    """Coverage at the last step that all seeds of a variant have reached, and over its last three evaluations."""
    names = ["variant", "seeds", "steps", "bins, mean", "std", "each seed", "last three evaluations", "random policy"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name, curves in found.items():
        steps, coverage = common(curves)
        if not len(steps):
            continue
        last, recent, random = coverage[:, -1], coverage[:, -3:].mean(), np.mean([curve.random for curve in curves])
        lines.append(
            f"| {name} | {len(curves)} | {steps[-1]:,} | {last.mean():.0f} | {last.std():.0f} | "
            f"{', '.join(map(str, last))} | {recent:.1f} | {random:.0f} |"
        )
    return "\n".join(lines)


def draw(folder: Path, title: str = "", order: list[str] | None = None) -> str:
    """Writes coverage.png and coverage.md into the folder; returns the table."""
    found = collect(folder)
    if not found:
        raise UserError(f"no evaluation in {folder} yet: no <variant>-seed<k>/metrics.csv with a coverage in it")
    found = {name: found[name] for name in order or sorted(found) if name in found}
    figure = Figure(figsize=(7.8, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for index, (name, curves) in enumerate(found.items()):
        steps, coverage = common(curves)
        mean, spread = coverage.mean(0), coverage.std(0)
        axes.plot(steps, mean, color=f"C{index}", marker=".", label=f"{name} ({len(curves)})")
        axes.fill_between(steps, mean - spread, mean + spread, color=f"C{index}", alpha=0.2, linewidth=0)
    random = np.mean([curve.random for curves in found.values() for curve in curves])
    axes.axhline(random, color="grey", linestyle=":", label="random policy")
    axes.set(title=title or folder.name, xlabel="environment steps", ylabel="bins covered by 48 skills")
    figure.legend(title="variant (seeds)", loc="outside right upper")
    figure.savefig(folder / "coverage.png", dpi=120)
    text = table(found)
    (folder / "coverage.md").write_text(text + "\n")
    return text


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
