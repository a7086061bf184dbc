"""When do several seeds in one program pay? One iteration of S runs one after another against S vmapped.

python -m benchmarks.seeds [--env point] [--seeds 4] [--widths 32 128 512]

Both are measured in turns in one process, so that a busy machine slows both. Above 1 in the last column, side by side
is faster.
"""

import dataclasses
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
import tyro

from envs.base import SkillEnv
from genda_mjx import sharding
from genda_mjx.build import build, make_env
from genda_mjx.config import Config
from genda_mjx.presets import preset
from genda_mjx.runs import start


@dataclasses.dataclass(frozen=True)
class Options:
    env: str = "point"
    seeds: int = 4  # S
    widths: tuple[int, ...] = (32, 128, 512)
    rounds: int = 5  # measurements of each; the median counts


class Runner:
    """A compiled program and its state."""

    def __init__(self, config: Config, env: SkillEnv):
        self.program = build(config, env).program
        self.state = self.program.init(sharding.seed_keys(config))
        self.iterate()

    def iterate(self) -> float:
        """Seconds of one iteration."""
        start = time.perf_counter()
        self.state, metrics = self.program.run(self.state, np.int32(1))
        jax.block_until_ready((self.state, metrics))
        return time.perf_counter() - start


def main() -> None:
    options = tyro.cli(Options)
    start.keep_compilations(".cache/jax")
    env = make_env(options.env)
    print(f"{jax.default_backend()}, {os.cpu_count()} cores, {options.env}, {options.seeds} seeds\n")
    print("| width | one seed, s | all side by side, s | one after another / side by side |\n|---|---|---|---|")
    for width in options.widths:
        config = dataclasses.replace(preset("", "small"), env=options.env, hidden=width, warmup_episodes=0)
        one = Runner(config, env)
        several = Runner(dataclasses.replace(config, num_seeds=options.seeds), env)
        times = np.median([(one.iterate(), several.iterate()) for _ in range(options.rounds)], axis=0)
        print(f"| {width} | {times[0]:.2f} | {times[1]:.2f} | {options.seeds * times[0] / times[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
