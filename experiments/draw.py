"""What runs reach over their steps, mean and spread over seeds: python -m experiments.draw FOLDER

The folder holds <variant>-seed<k>/metrics.csv (as experiments.run makes it, also with seeds side by side) or, to keep
with the docs, <variant>-seed<k>.csv. What is drawn is the environment's headline, which a csv itself names: it is the
column that a random policy has too.
"""

import csv
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from genda_mjx.config import UserError

# Columns of the table, where any csv has them.
BESIDE = ("alignment", "upright_share", "mean_distance", "directness", "late_alignment")
RANDOM = "random_"  # before the headline's name: a random policy's


class Curve(NamedTuple):
    """The evaluations of one seed."""

    headline: str  # its name
    steps: list[int]
    values: list[float]  # of the headline
    random: float  # a random policy's
    beside: dict[str, list[float]]  # other measures, those of BESIDE that there are


def read(path: Path) -> Curve | None:
    """The evaluations in a metrics.csv; None before the first."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        twins = [name for name in reader.fieldnames or () if RANDOM + name in reader.fieldnames]
        rows = [row for row in reader if twins and row[twins[0]]]
    if not rows:
        return None
    (headline,) = twins
    beside = {name: [float(row[name]) for row in rows] for name in BESIDE if rows[0].get(name)}
    return Curve(
        headline,
        [int(row["step"]) for row in rows],
        [float(row[headline]) for row in rows],
        float(rows[-1][RANDOM + headline]),
        beside,
    )


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
    """Steps that every seed has reached, and the headline [seeds, steps] there."""
    steps = sorted(set.intersection(*(set(curve.steps) for curve in curves)))
    return np.array(steps), np.array([[c.values[c.steps.index(step)] for step in steps] for c in curves])


def beside_at(curves: list[Curve], name: str, step: int) -> str:
    """The mean of another measure over the seeds at a step; empty where a seed does not have it."""
    if not all(name in curve.beside for curve in curves):
        return ""
    return f"{np.mean([curve.beside[name][curve.steps.index(step)] for curve in curves]):.3g}"


def table(found: dict[str, list[Curve]]) -> str:
    """Measures at the last step that all seeds of a variant have reached, the headline also over its last three."""
    headline = next(iter(found.values()))[0].headline
    beside = [name for name in BESIDE if any(name in curve.beside for curves in found.values() for curve in curves)]
    names = ["variant", "seeds", "steps", f"{headline}, mean", "std", "each seed", "last three evaluations"]
    names += ["random policy", *(name.replace("_", " ") for name in beside)]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name, curves in found.items():
        steps, values = common(curves)
        if not len(steps):
            continue
        last, recent, random = values[:, -1], values[:, -3:].mean(), np.mean([curve.random for curve in curves])
        digits = 0 if headline == "coverage" else 1  # of hundreds of bins or of a few tasks
        cells = [name, str(len(curves)), f"{steps[-1]:,}", f"{last.mean():.{digits}f}", f"{last.std():.{digits}f}"]
        cells += [", ".join(f"{value:g}" for value in last), f"{recent:.1f}", f"{random:.0f}"]
        cells += [beside_at(curves, other, steps[-1]) for other in beside]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(folder: Path, title: str = "", order: list[str] | None = None, unit: str = "") -> str:
    """Writes <headline>.png and <headline>.md into the folder; returns the table. unit: what the headline counts."""
    found = collect(folder)
    if not found:
        raise UserError(f"no evaluation in {folder} yet: no <variant>-seed<k>/metrics.csv with one in it")
    found = {name: found[name] for name in order or sorted(found) if name in found}
    headline = next(iter(found.values()))[0].headline
    figure = Figure(figsize=(7.8, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for index, (name, curves) in enumerate(found.items()):
        steps, values = common(curves)
        mean, spread = values.mean(0), values.std(0)
        axes.plot(steps, mean, color=f"C{index}", marker=".", label=f"{name} ({len(curves)})")
        axes.fill_between(steps, mean - spread, mean + spread, color=f"C{index}", alpha=0.2, linewidth=0)
    random = [curve.random for curves in found.values() for curve in curves]  # differs with the start of an episode
    axes.axhspan(min(random), max(random), facecolor="lightgrey", edgecolor="grey", zorder=0, label="random policy")
    axes.set_title(textwrap.fill(title or folder.name, 56))  # no wider than the axes: the legend is beside them
    axes.set(xlabel="environment steps", ylabel=headline + (f" ({unit})" if unit else ""))
    figure.legend(title="variant (seeds)", loc="outside right upper")
    figure.savefig(folder / f"{headline}.png", dpi=120)
    text = table(found)
    (folder / f"{headline}.md").write_text(text + "\n")
    return text


if __name__ == "__main__":
    print(draw(Path(sys.argv[1])))
