"""Discover skills without reward: python train.py --env dog --num_envs 2048. All options: python train.py --help."""

import os

# XLA prints a page of harmless CPU tuning flags for every program that it loads from the compilation cache.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from genda_mjx.config import Config
from genda_mjx.runs.arguments import parse
from genda_mjx.runs.compile_only import compile_only
from genda_mjx.runs.start import main
from genda_mjx.runs.train import train


def run(config: Config) -> None:
    if config.compile_for:
        compile_only(config)
    else:
        train(config)


if __name__ == "__main__":
    main(lambda: run(parse()))
