"""Look at the skills of a run: python eval.py --ckpt runs/dog. Prints one JSON object on the last line."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

# XLA prints a page of harmless CPU tuning flags for every program that it loads from the compilation cache.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tyro

from genda_mjx import entry
from genda_mjx.inspect_run import Inspection


@dataclasses.dataclass(frozen=True)
class Options:
    """Coverage of the skills in a checkpoint, with plots of their trajectories and of phi."""

    ckpt: Path  # run folder
    step: int | None = None  # checkpoint to look at; the newest if not given
    episodes: int = 48  # deterministic episodes, one random skill each
    seed: int = 0  # seeds skills and starts
    offset: tuple[float, float] | None = None  # also start every episode shifted by X Y metres, with the same skills
    compile_cache: str = ".cache/jax"  # folder of compiled programs; empty turns it off


def main() -> None:
    options = tyro.cli(Annotated[Options, tyro.conf.FlagCreatePairsOff])
    inspection = Inspection(options.ckpt, options.step, options.episodes, options.seed, options.compile_cache)
    print(json.dumps(inspection(options.offset)))


if __name__ == "__main__":
    entry.main(main)
