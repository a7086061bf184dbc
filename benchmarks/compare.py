"""This working tree against an earlier commit on one core, in one run: physics, an update, and Brax's SAC trainer.

    taskset -c 0 python -m benchmarks.compare 90d958a --physics fish:128 quadruped:128 humanoid:128 dog:16

The commit is checked out into a folder of its own, and the two take turns: before, after, before, after. Every
measurement is a process of the benchmark that each tree has. A figure is the median of its rounds, and so is the ratio
of the rounds, so that a slow minute of the machine is slow for both.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

HERE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Options:
    commit: Annotated[str, tyro.conf.Positional]  # the one before
    physics: tuple[str, ...] = ("fish:128", "quadruped:128", "humanoid:128", "dog:16")  # BODY:COPIES, x one C thread
    widths: tuple[int, ...] = (256,)  # updates/s at these widths, sizes of the quadruped
    peers: bool = False  # also steps/s over Brax's while the replay fills: minutes each
    rounds: int = 3
    limit: float = 900.0  # seconds that a measurement may take


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with the commit's files, removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["git", "worktree", "add", "--detach", folder, commit], cwd=HERE, check=True, capture_output=True
        )
        try:
            yield Path(folder)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=HERE, check=True)


def output(tree: Path, limit: float, *command: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", *command], cwd=tree, capture_output=True, text=True, timeout=limit, check=False
    )
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} failed in {tree}:\n{run.stderr[-2000:]}")
    return run.stdout


def physics(tree: Path, body: str, limit: float) -> float:
    """Physics steps/s over those of one thread of C MuJoCo."""
    name, copies = body.split(":")
    text = output(tree, limit, "benchmarks.physics", name, "--one", "ours", "--copies", copies)
    return json.loads(text.splitlines()[-1])["ratio"]


def updates(tree: Path, width: int, limit: float) -> float:
    """Updates/s."""
    text = output(tree, limit, "benchmarks.learner", "--widths", str(width), "--iteration_width", "0")
    rows = [line.split("|") for line in text.splitlines() if line.startswith(f"| {width} ")]
    return float(rows[0][4])


def peers(tree: Path, limit: float) -> float:
    """Our steps/s over Brax's."""
    return float(re.search(r"ratio ([\d.]+)", output(tree, limit, "benchmarks.peers", "--filling")).group(1))


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    tasks = [(f"{body.replace(':', ', ')} copies, x one C thread", physics, body) for body in options.physics]
    tasks += [(f"updates/s at width {width}", updates, width) for width in options.widths]
    tasks += [("steps/s over Brax's, replay filling", peers)] * options.peers
    print(f"| | {options.commit} | now | now / then, each round |\n|---|---|---|---|", flush=True)
    with checked_out(options.commit) as before:
        for name, measure, *arguments in tasks:
            rounds = np.array(
                [[measure(tree, *arguments, options.limit) for tree in (before, HERE)] for _ in range(options.rounds)]
            )
            then, now = np.median(rounds, axis=0)
            ratios = rounds[:, 1] / rounds[:, 0]
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"| {name} | {then:.2f} | {now:.2f} | {np.median(ratios):.2f} ({each}) |", flush=True)


if __name__ == "__main__":
    main()
