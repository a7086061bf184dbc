"""Discover skills without reward: python train.py --env dog --num_envs 2048. All options: python train.py --help."""

import os

# XLA prints a page of harmless CPU tuning flags for every program that it loads from the compilation cache.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from genda_mjx import config, entry
from genda_mjx.loop import Training

if __name__ == "__main__":
    entry.main(lambda: Training(config.parse())())
