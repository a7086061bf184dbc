"""How an iteration grows: with the number of envs, with cohorts, and over virtual devices.

    python -m benchmarks.scaling                                    fish, 1 to 4096 envs, then 1, 2 and 4 devices
    python -m benchmarks.scaling --env point --envs 128 1024        a part of it
    python -m benchmarks.scaling --envs --devices 1 2 4             devices alone

Every iteration makes the same few updates, so that what grows is the collection. A row with 1.00 in the last column
takes as much time for an env as the row with 128 envs. Virtual devices share this machine's cores: they show what the
splitting costs, not what more hardware gains.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
import tyro

from genda_mjx import devices, sharding
from genda_mjx.build import build, make_env
from genda_mjx.presets import preset

UPDATES = 8  # per iteration
REFERENCE = 128  # envs of the row that the others are held against


@dataclasses.dataclass(frozen=True)
class Options:
    env: str = "fish"
    envs: tuple[int, ...] = (1, 16, 128, 256, 512, 1024, 2048, 4096)
    devices: tuple[int, ...] = (1, 2, 4)
    cohorts: int = 1  # that the envs are in
    device_envs: int = 256  # envs of the rows with devices
    width: int = 64  # of the networks
    rounds: int = 3  # iterations timed; the median counts
    one_row: bool = False  # print one row, of the first of --envs on all devices, as JSON


class Row:
    """The program for one number of envs and devices: seconds to trace and compile it, and of its iterations."""

    def __init__(self, options: Options, num_envs: int, num_devices: int):
        env = make_env(options.env)
        length = env.episode_length
        config = dataclasses.replace(
            preset(options.env, "small"),
            num_envs=num_envs,
            hidden=options.width,
            warmup_episodes=0,
            cohorts=options.cohorts,
            utd=UPDATES * options.cohorts / (num_envs * length),
            buffer_size=num_envs * length,
            total_steps=num_envs * length,
        )
        built = build(config, env, devices.make_mesh(num_devices))
        program = built.program
        start = time.perf_counter()
        self._run = program.run.lower(program.abstract, np.int32(1)).compile()
        self.compiling = time.perf_counter() - start
        self._state, self._times = program.init(sharding.seed_keys(config)), []
        self.steps = built.schedule.steps_per_iteration

    def iterate(self) -> None:
        start = time.perf_counter()
        self._state, metrics = self._run(self._state, np.int32(1))
        jax.block_until_ready((self._state, metrics))
        self._times.append(time.perf_counter() - start)

    def result(self) -> dict[str, float]:
        """The measurement, without the first iteration, which also loads and allocates."""
        return {"compile": self.compiling, "seconds": float(np.median(self._times[1:])), "steps": self.steps}


def measure(options: Options, envs: tuple[int, ...], num_devices: int) -> dict[int, dict[str, float]]:
    """A row for each number of envs. Their iterations take turns, so that a slow minute is slow for all."""
    rows = {n: Row(options, n, num_devices) for n in envs}
    for _ in range(options.rounds + 1):
        for row in rows.values():
            row.iterate()
    return {n: row.result() for n, row in rows.items()}


def measure_apart(options: Options, num_devices: int) -> dict[str, float]:
    """Measures in a process of its own, which starts with that many virtual devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={num_devices}"
    command = [sys.executable, "-m", "benchmarks.scaling", "--one_row", "--env", options.env]
    command += ["--envs", str(options.device_envs), "--cohorts", str(options.cohorts)]
    command += ["--width", str(options.width), "--rounds", str(options.rounds)]
    done = subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options = tyro.cli(Options)
    if options.one_row:
        print(json.dumps(measure(options, options.envs[:1], len(jax.devices()))[options.envs[0]]))
        return
    print(f"{options.env}, {os.cpu_count()} cores, width {options.width}, {options.cohorts} cohorts, {UPDATES} updates")
    if options.envs:
        rows = measure(options, options.envs, 1)
        print("\n| envs | compile, s | iteration, s | steps/s | time per env / that at 128 |\n|---|---|---|---|---|")
        each = {n: row["seconds"] / n for n, row in rows.items()}
        for n, row in rows.items():
            share = f"{each[n] / each[REFERENCE]:.2f}" if REFERENCE in rows else "-"
            speed = row["steps"] / row["seconds"]
            print(f"| {n} | {row['compile']:.1f} | {row['seconds']:.2f} | {speed:,.0f} | {share} |", flush=True)
    if options.devices:
        print(f"\n{options.device_envs} envs over virtual devices:\n")
        print("| devices | compile, s | iteration, s | steps/s | time / that on the first |\n|---|---|---|---|---|")
        first = None
        for count in options.devices:
            row = measure_apart(options, count)
            first = first or row["seconds"]
            speed = row["steps"] / row["seconds"]
            print(
                f"| {count} | {row['compile']:.1f} | {row['seconds']:.2f} | {speed:,.0f} | "
                f"{row['seconds'] / first:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
