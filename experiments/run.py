"""One of the paper's coverage figures or tables: python -m experiments.run methods --env quadruped --preset small

Trains what is missing of the grid (what is done is kept, what was stopped goes on), then draws mean and spread over
seeds. Flags that this command does not know go to every run, as in `train.py`.
"""

import dataclasses
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import tyro

from experiments import draw
from experiments.grids import EXPERIMENTS, Experiment
from genda_mjx import agents, checkpoint, entry, schedule
from genda_mjx import config as configuration
from genda_mjx.config import Config, UserError
from genda_mjx.loop import Training

REACHED = 0.6  # share of the matrix-product rate that an update gets, `python -m benchmarks.learner`


@dataclasses.dataclass(frozen=True)
class Options:
    experiment: tyro.conf.Positional[str]  # methods, components, utd, beta, relabel or mixture
    env: str = ""  # body; the paper's first for this experiment if not given
    preset: str = "paper"  # as in train.py; small is for a CPU
    seeds: int = 0  # how many; the paper's number if not given
    together: bool = False  # the seeds of a variant side by side in one program (pays at small widths)
    out: str = ""  # folder of the grid; empty means runs/experiments/<experiment>-<env>
    dry_run: bool = False  # print the runs and their cost, train nothing
    draw_only: bool = False  # draw what there is


def grid(options: Options, experiment: Experiment, flags: list[str]) -> list[Config]:
    """The config of every run. Seeds vary slowest, so that a grid cut short compares all variants on some seeds."""
    env, out, count = (
        options.env or experiment.bodies[0],
        folder(options, experiment),
        options.seeds or experiment.seeds,
    )
    runs = [(0, count)] if options.together else [(seed, 1) for seed in range(count)]
    return [
        configuration.parse(
            ["--env", env, "--preset", options.preset, *own, *flags, "--seed", str(seed), "--num_seeds", str(number),
             "--out", str(out / f"{name}-seed{seed}")]
        )
        for seed, number in runs
        for name, own in experiment.variants.items()
    ]  # fmt: skip


def folder(options: Options, experiment: Experiment) -> Path:
    env = options.env or experiment.bodies[0]
    return Path(options.out or f"runs/experiments/{options.experiment}-{env}")


def state_of(config: Config, total_steps: int) -> str:
    """new, stopped or done."""
    if not (Path(config.out) / "config.json").exists():
        return "new"
    if not (Path(config.out) / "checkpoints").is_dir():
        return "stopped"
    checkpoints = checkpoint.Checkpoints(Path(config.out), read_only=True)
    steps = checkpoints.steps
    checkpoints.close()
    return "done" if steps and steps[-1] >= total_steps else "stopped"


def flops_per_update(config: Config, sizes: agents.Sizes) -> float:
    """Counted by XLA in one gradient step, without compiling it."""
    agent = agents.make(config, sizes)
    row = lambda size: jax.ShapeDtypeStruct((config.batch_size, size), jnp.float32)
    s, a, z = row(sizes.observation), row(sizes.action), row(config.skill_dim)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    lowered = jax.jit(agent.update).lower(state, agents.Batch(s, a, s, s, s, s, z), jax.random.key(0))
    return config.num_seeds * lowered.cost_analysis()["flops"]


def product_rate(size: int = 1024, seconds: float = 0.5) -> float:
    """FLOP/s of a square matrix product on this machine, now."""
    x = jnp.ones((size, size))
    multiply = jax.jit(jnp.matmul)
    multiply(x, x).block_until_ready()
    count, start = 0, time.monotonic()
    while time.monotonic() - start < seconds:
        multiply(x, x).block_until_ready()
        count += 1
    return 2 * size**3 * count / (time.monotonic() - start)


def print_cost(configs: list[Config]) -> None:
    """Every run with its state, steps and the time of its updates."""
    env = entry.make_env(configs[0].env)
    sizes, rate, total = agents.Sizes(env.observation_size, env.action_size), product_rate(), 0.0
    print("| run | state | steps | updates | hours of updates |\n|---|---|---|---|---|")
    for config in configs:
        plan = schedule.derive(config, env.episode_length)
        updates = plan.updates_per_iteration * max(plan.iterations - plan.warmup_iterations, 0)
        hours = updates * flops_per_update(config, sizes) / (REACHED * rate) / 3600
        state = state_of(config, plan.total_steps)
        total += hours * (state != "done")
        print(f"| {Path(config.out).name} | {state} | {plan.total_steps:,} | {updates:,} | {hours:.2f} |")
    print(
        f"\n{len(configs)} runs, about {total:.1f} hours of updates left, counted in FLOPs at {REACHED:.0%} of this "
        f"machine's {rate / 1e9:.0f} GFLOP/s; physics, compilation and evaluation come on top."
    )


def train(configs: list[Config]) -> None:
    """Whatever is missing, one run after another."""
    length = entry.make_env(configs[0].env).episode_length
    for number, config in enumerate(configs, 1):
        state = state_of(config, schedule.derive(config, length).total_steps)
        print(f"[{number}/{len(configs)}] {config.out}: {state}", flush=True)
        if state == "done":
            continue
        if not Training(dataclasses.replace(config, resume=state == "stopped"))():
            raise KeyboardInterrupt


def main() -> None:
    options, flags = tyro.cli(Options, return_unknown_args=True)
    if options.experiment not in EXPERIMENTS:
        raise UserError(f"unknown experiment {options.experiment!r}; choose one of {', '.join(EXPERIMENTS)}")
    experiment = EXPERIMENTS[options.experiment]
    configs = grid(options, experiment, flags)
    for config in configs:
        configuration.validate(config)
    if options.dry_run:
        print(f"{options.experiment}: {experiment.shows}")
        print_cost(configs)
        return
    if not options.draw_only:
        train(configs)
    out = folder(options, experiment)
    title = f"{experiment.shows} ({configs[0].env})"
    print(draw.draw(out, title, list(experiment.variants)))
    print(f"wrote {out}/coverage.png and {out}/coverage.md; command: {' '.join(sys.argv[1:])}")


if __name__ == "__main__":
    entry.main(main)
