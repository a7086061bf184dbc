"""Coverage over steps from the csv files in this folder, one line a file: python docs/results/plot.py point"""

import csv
import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLORS = {"genda": "C0", "no_relabel": "C1", "no_cib": "C2"}


def draw(env: str, folder: Path) -> None:
    """Files are named <env>-<variant>-seed<k>.csv, as metrics.csv of that run."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for path in sorted(folder.glob(f"{env}-*.csv")):
        _, variant, seed = path.stem.split("-")
        with path.open() as file:
            rows = [row for row in csv.DictReader(file) if row["coverage"]]
        steps, coverage = ([int(row[name]) for row in rows] for name in ("step", "coverage"))
        axes.plot(steps, coverage, color=COLORS[variant], marker=".", label=f"{variant} {seed}")
        random = int(rows[-1]["random_coverage"])
    axes.axhline(random, color="grey", linestyle=":", label="random policy")
    axes.set(title=env, xlabel="environment steps", ylabel="bins covered by 48 skills")
    axes.legend()
    figure.savefig(folder / f"{env}.png", dpi=120)


if __name__ == "__main__":
    draw(sys.argv[1], Path(__file__).parent)
