"""Discover skills without reward: python train.py --env dog --num_envs 2048. All options: python train.py --help."""

from genda_mjx import config, entry
from genda_mjx.loop import Training

if __name__ == "__main__":
    entry.main(lambda: Training(config.parse())())
