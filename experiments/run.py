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

from envs.base import SkillEnv
from experiments import draw, shifts, twins, workers
from experiments.grids import EXPERIMENTS, Experiment
from genda_mjx import agents, schedule
from genda_mjx import config as configuration
from genda_mjx.agents import Spec
from genda_mjx.build import batch_shapes, body_class, env_of
from genda_mjx.config import Config, UserError
from genda_mjx.runs import start
from genda_mjx.runs import train as training
from genda_mjx.runs.arguments import parse

REACHED = 0.6  # share of the matrix-product rate that an update gets, `python -m benchmarks.learner`


@dataclasses.dataclass(frozen=True)
class Options:
    # methods, components, utd, beta, relabel, mixture, background or kitchen of the paper; claims, utd_small or metra
    # of ours
    experiment: tyro.conf.Positional[str]
    env: str = ""  # body; the paper's first for this experiment if not given
    variants: tuple[str, ...] = ()  # some of the experiment's; all if not given
    preset: str = "paper"  # as in train.py; small is for a CPU
    seeds: int = 0  # how many; the paper's number if not given
    together: bool = False  # the seeds of a variant side by side in one program (pays at small widths)
    # Runs at once, each on a core of its own; 1: one after another, each on all cores. 0: one a core on a CPU, else 1.
    jobs: int = 0
    out: str = ""  # folder of the grid; empty means runs/experiments/<experiment>-<env>
    dry_run: bool = False  # print the runs and their cost, train nothing
    draw_only: bool = False  # draw what there is


def select(options: Options) -> Experiment:
    """The experiment with the user's choice of variants."""
    if options.experiment not in EXPERIMENTS:
        raise UserError(f"unknown experiment {options.experiment!r}; choose one of {', '.join(EXPERIMENTS)}")
    experiment = EXPERIMENTS[options.experiment]
    chosen = options.variants or tuple(experiment.variants)
    unknown = [name for name in chosen if name not in experiment.variants]
    if unknown:
        known = ", ".join(experiment.variants)
        raise UserError(f"unknown variant {unknown[0]!r}; {options.experiment} has {known}")
    return experiment._replace(variants={name: experiment.variants[name] for name in chosen})


def grid(options: Options, experiment: Experiment, flags: list[str]) -> list[Config]:
    """The config of every run. Seeds vary slowest, so that a grid cut short compares all variants on some seeds."""
    out, count = folder(options, experiment), options.seeds or experiment.seeds
    shared = ["--env", options.env or experiment.bodies[0], "--preset", options.preset]
    configs = []
    for seed, number in [(0, count)] if options.together else [(seed, 1) for seed in range(count)]:
        for name, own in experiment.variants.items():
            place = ["--seed", str(seed), "--num_seeds", str(number), "--out", str(out / f"{name}-seed{seed}")]
            configs.append(parse([*shared, *own, *flags, *place]))
    return configs


def folder(options: Options, experiment: Experiment) -> Path:
    env = options.env or experiment.bodies[0]
    return Path(options.out or f"runs/experiments/{options.experiment}-{env}")


def state_of(config: Config, total_steps: int) -> str:
    """The state of a run: new, stopped, done, or done elsewhere: in another grid."""
    run = Path(config.out)
    if not (run / "config.json").exists():
        return "done elsewhere" if twins.find(config, total_steps) else "new"
    return "done" if twins.is_done(run, total_steps) else "stopped"


def flops_per_update(config: Config, spec: Spec) -> float:
    """FLOPs of one gradient step, counted by XLA without compiling it (nor tracing the physics, as `build` would)."""
    agent = agents.make(config, spec)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    lowered = jax.jit(agent.update).lower(state, batch_shapes(config, spec), jax.random.key(0))
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


def print_cost(configs: list[Config], env: SkillEnv | None = None) -> None:
    """Prints every run with its state, steps and the time of its updates. env: instead of the configs' body."""
    env = env or env_of(configs[0])
    rate, total = product_rate(), 0.0
    print("| run | state | steps | updates | hours of updates |\n|---|---|---|---|---|")
    for config in configs:
        plan = schedule.derive(config, env.episode_length)
        updates = plan.updates_per_iteration * max(plan.iterations - plan.warmup_iterations, 0)
        hours = updates * flops_per_update(config, Spec.of(env)) / (REACHED * rate) / 3600
        state = state_of(config, plan.total_steps)
        total += hours * (state in ("new", "stopped"))
        print(f"| {Path(config.out).name} | {state} | {plan.total_steps:,} | {updates:,} | {hours:.2f} |")
    print(
        f"\n{len(configs)} runs, about {total:.1f} hours of updates left, counted in FLOPs at {REACHED:.0%} of this "
        f"machine's {rate / 1e9:.0f} GFLOP/s; physics, compilation and evaluation come on top."
    )


def train(configs: list[Config], env: SkillEnv | None = None, jobs: int = 1) -> None:
    """Trains what is missing, `jobs` runs at a time. env: instead of the body that the configs name (one at a time)."""
    length = (env or body_class(configs[0].env)).episode_length
    missing = []
    for number, config in enumerate(configs, 1):
        total_steps = schedule.derive(config, length).total_steps
        state = state_of(config, total_steps)
        print(f"[{number}/{len(configs)}] {config.out}: {state}", flush=True)
        if state in ("new", "stopped"):
            missing.append(dataclasses.replace(config, resume=state == "stopped"))
        elif state == "done elsewhere":
            print(f"  copied from {twins.copy(config, total_steps)}", flush=True)
    if jobs > 1 and len(missing) > 1:
        workers.run_all([workers.job_of(config) for config in missing], workers.cores()[:jobs])
        return
    for config in missing:
        if not training.train(config, env):
            raise KeyboardInterrupt


def jobs_here(asked: int) -> int:
    """How many runs at once: as asked, else one a core, or one where an accelerator does the work."""
    if asked:
        return min(asked, len(workers.cores()))
    return len(workers.cores()) if jax.default_backend() == "cpu" else 1


def main() -> None:
    options, flags = tyro.cli(Options, return_unknown_args=True)
    experiment = select(options)
    configs = grid(options, experiment, flags)
    for config in configs:
        configuration.validate(config)
    if options.dry_run:
        print(f"{options.experiment}: {experiment.shows}")
        print_cost(configs)
        return
    out, body = folder(options, experiment), body_class(configs[0].env)
    step = schedule.derive(configs[0], body.episode_length).total_steps
    if not options.draw_only:
        jobs = jobs_here(options.jobs)
        train(configs, jobs=jobs)
        if body.movable:
            shifts.move_missing(configs, step, jobs)
    title = f"{experiment.shows} ({configs[0].env})"
    print(draw.draw(out, title, list(experiment.variants), body.unit))
    done = [config for config in configs if state_of(config, step) == "done"]
    if done and body.movable:
        print(shifts.moved(out, done, step))
    if experiment.on_floors:
        print(shifts.background(out, done, step))
    print(f"wrote {out}/{body.headline}.png and .md; command: python -m experiments.run {' '.join(sys.argv[1:])}")


if __name__ == "__main__":
    start.main(main)
