"""The paper's downstream tables: python -m experiments.downstream methods --envs point --preset small --seeds 3

Pre-trains what is missing of the grid (the runs are those of experiments.run, so they are shared with its figures),
trains a controller for every task on every run, each on a core of its own, and prints success as markdown. What is done
is kept, what was stopped goes on. Flags that this command does not know go to every pre-training run, as in `train.py`.
"""

import dataclasses
import os
import sys
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from envs.tasks import goals
from experiments import run, workers
from experiments.grids import EXPERIMENTS, METHODS, Experiment, Variants
from genda_mjx import agents, schedule
from genda_mjx.agents import Spec
from genda_mjx.build import body_class, env_of
from genda_mjx.config import Config, UserError
from genda_mjx.downstream import controller
from genda_mjx.downstream import program as downstream
from genda_mjx.downstream.controller import PRESETS, ControllerConfig, MacroBatch
from genda_mjx.runs import start
from genda_mjx.runs.checkpoint import Checkpoints
from genda_mjx.runs.folder import write_text
from genda_mjx.runs.task import run_task
from genda_mjx.runs.task_files import TaskOptions, folder_of, stored_result

VARIANTS: Variants = METHODS | EXPERIMENTS["components"].variants


class Table(NamedTuple):
    shows: str  # what the paper shows there
    bodies: tuple[str, ...]
    tasks: tuple[str, ...]  # of those that a body has
    seeds: int
    variants: tuple[str, ...]
    shares: tuple[float, ...] = (1.0,)  # of the pre-training steps: which checkpoints are compared


TABLES: dict[str, Table] = {
    "methods": Table(
        "success of CSF, METRA and GenDa on states",
        ("humanoid", "quadruped", "dog", "fish"),
        goals.TASKS,
        4,
        ("csf", "metra", "genda"),
    ),
    "data": Table("GenDa after 2M and after 10M steps", ("humanoid",), goals.TASKS, 4, ("genda",), (0.2, 1.0)),
    "components": Table(
        "component ablation on (RS, RG)",
        ("quadruped",),
        ("rs_rg",),
        4,
        ("genda", "no_relabel", "no_cib", "neither"),
    ),
}


@dataclasses.dataclass(frozen=True)
class Options:
    table: tyro.conf.Positional[str]  # methods, data or components
    envs: tuple[str, ...] = ()  # bodies; the paper's if not given
    tasks: tuple[str, ...] = ()  # the paper's if not given
    variants: tuple[str, ...] = ()  # the paper's if not given; also diayn, cic, no_cib, ...
    seeds: int = 0  # how many, each its own pre-training and controller; the paper's number if not given
    preset: str = "paper"  # of the pre-training, as in train.py; small is for a CPU
    controller_preset: Literal["paper", "small"] | None = None  # as in eval.py; None: as --preset
    macro_steps: int = 0  # the controllers' budget; 0: the preset's
    jobs: int = 0  # runs and controllers at once, as in experiments.run
    out: str = ""  # folder of the grid; empty means runs/experiments/<table>-<env> for each body
    dry_run: bool = False  # print the runs and their cost, train nothing
    draw_only: bool = False  # print the table of what there is


class Cell(NamedTuple):
    """One controller: a task on a checkpoint of a run."""

    config: Config  # of the run
    variant: str
    share: float
    task: str

    @property
    def column(self) -> str:
        return self.variant if self.share == 1 else f"{self.variant} at {self.share:.0%} of its steps"


def select(options: Options) -> Table:
    """The table with the user's choices in it."""
    if options.table not in TABLES:
        raise UserError(f"unknown table {options.table!r}; choose one of {', '.join(TABLES)}")
    table = TABLES[options.table]
    unknown = [name for name in options.variants if name not in VARIANTS]
    if unknown:
        raise UserError(f"unknown variant {unknown[0]!r}; choose from {', '.join(VARIANTS)}")
    table = table._replace(
        bodies=options.envs or table.bodies,
        tasks=options.tasks or table.tasks,
        seeds=options.seeds or table.seeds,
        variants=options.variants or table.variants,
    )
    for body in table.bodies:
        try:
            known = goals.tasks_of(body)
        except ValueError as error:
            raise UserError(str(error)) from error
        if not set(known) & set(table.tasks):
            raise UserError(f"{body} has none of the tasks {', '.join(table.tasks)}; it has {', '.join(known)}")
    return table


def cells(options: Options, table: Table, flags: list[str]) -> list[Cell]:
    """All cells: bodies, then seeds, variants, tasks, so that a grid cut short compares the variants on some seeds."""
    found = []
    for body in table.bodies:
        out = options.out and str(Path(options.out) / body)
        chosen = run.Options(options.table, body, preset=options.preset, seeds=table.seeds, out=out)
        grid = Experiment(table.shows, table.bodies, table.seeds, {name: VARIANTS[name] for name in table.variants})
        for config in run.grid(chosen, grid, flags):
            if len(table.shares) > 1:
                every = round(min(table.shares) * config.total_steps)
                config = dataclasses.replace(config, checkpoint_every=every, keep_every=every)
            variant = Path(config.out).name.rsplit("-seed", 1)[0]
            tasks = [task for task in table.tasks if task in goals.tasks_of(body)]
            found += [Cell(config, variant, share, task) for share in table.shares for task in tasks]
    return found


def step_of(cell: Cell) -> int | None:
    """The first checkpoint at or after the cell's share of the steps, or None before it is there."""
    if not (Path(cell.config.out) / "checkpoints").is_dir():
        return None
    checkpoints = Checkpoints(Path(cell.config.out), read_only=True)
    steps = checkpoints.steps
    checkpoints.close()
    total = schedule.derive(cell.config, body_class(cell.config.env).episode_length).total_steps
    return next((step for step in steps if step >= min(cell.share * cell.config.total_steps, total)), None)


def success_of(cell: Cell, config: ControllerConfig) -> float | None:
    step = step_of(cell)
    if step is None:
        return None
    result = stored_result(Path(cell.config.out), step, TaskOptions(cell.task), config, cell.config.seed)
    return None if result is None else result.success


def control(grid: list[Cell], config: ControllerConfig, jobs: int = 1) -> None:
    """Trains every missing controller, `jobs` of them at a time."""
    missing = []
    for number, cell in enumerate(grid, 1):
        done = success_of(cell, config)
        print(f"[{number}/{len(grid)}] {cell.task} on {cell.config.out}: {'new' if done is None else done}", flush=True)
        if done is None:
            missing.append(cell)
    if jobs > 1 and len(missing) > 1:
        workers.run_all([job_of(cell, config) for cell in missing], workers.cores()[:jobs])
        return
    for cell in missing:
        train(cell, config)


def train(cell: Cell, config: ControllerConfig) -> None:
    seed, cache = cell.config.seed, cell.config.compile_cache
    run_task(Path(cell.config.out), step_of(cell), TaskOptions(cell.task), config, range(seed, seed + 1), cache)


def job_of(cell: Cell, config: ControllerConfig) -> workers.Job:
    """The training of a controller on one core."""
    run, step = Path(cell.config.out), step_of(cell)
    metrics = folder_of(run, step, TaskOptions(cell.task)) / f"seed{cell.config.seed}" / "metrics.csv"
    return workers.Job(f"{run}-{cell.task}-{step}", partial(train, cell, config), metrics, config.macro_steps)


def mean_and_spread(values: list[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values):.2f} ({len(values)})" if values else "-"


def markdown(grid: list[Cell], config: ControllerConfig) -> str:
    """Mean and population standard deviation over the seeds that are there, by task and variant."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for cell in grid:
        row = found.setdefault((cell.config.env, cell.task), {})
        success = success_of(cell, config)
        row.setdefault(cell.column, []).extend([] if success is None else [success])
    columns = list(dict.fromkeys(cell.column for cell in grid))
    lines = [f"| body | task | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    lines += [
        f"| {body} | {task} | {' | '.join(mean_and_spread(row.get(column, [])) for column in columns)} |"
        for (body, task), row in found.items()
    ]
    return "\n".join(lines)


def flops_per_update(config: ControllerConfig, cell: Cell, spec: Spec, goal_size: int) -> float:
    """FLOPs of one gradient step of a controller, counted by XLA without compiling it."""
    seen = spec.observation, jax.ShapeDtypeStruct((goal_size,), jnp.float32)
    pi = controller.make(config, agents.make(cell.config, spec), seen)
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((config.batch_size, *leaf.shape), leaf.dtype), seen)
    flag = jax.ShapeDtypeStruct((config.batch_size,), jnp.float32)
    action = jax.eval_shape(lambda key: pi.explore(key, config.batch_size), jax.random.key(0))
    state = jax.eval_shape(pi.init, jax.random.key(0))
    batch = MacroBatch(rows, action, rows, flag, flag)
    return jax.jit(pi.update).lower(state, batch, jax.random.key(0)).cost_analysis()["flops"]


def print_cost(grid: list[Cell], config: ControllerConfig) -> None:
    """Prints the cost of pre-training body by body, then of the controllers: hours of updates, environment steps."""
    rate, hours, steps, waiting = run.product_rate(), 0.0, 0, 0
    for body in dict.fromkeys(cell.config.env for cell in grid):
        mine = [cell for cell in grid if cell.config.env == body]
        env = env_of(mine[0].config)
        run.print_cost(list({cell.config.out: cell.config for cell in mine}.values()), env)
        for cell in mine:
            if success_of(cell, config) is not None:
                continue
            plan = downstream.schedule(config, goals.horizon_of(body, cell.task))
            updates = config.gradient_steps * max(plan.iterations - plan.warmup_iterations, 0)
            flops = flops_per_update(config, cell, Spec.of(env), env.position_size)
            hours += updates * flops / (run.REACHED * rate) / 3600
            steps += plan.capacity * plan.macro_length * config.skill_steps
            waiting += 1
    print(
        f"\n{waiting} of {len(grid)} controllers left: about {hours:.1f} hours of updates, counted as above, and "
        f"{steps:,} environment steps; physics, compilation and evaluation come on top."
    )


def main() -> None:
    options, flags = tyro.cli(Options, return_unknown_args=True)
    table = select(options)
    config = PRESETS[options.controller_preset or controller.matching_preset(options.preset)]
    if options.macro_steps:
        config = dataclasses.replace(config, macro_steps=options.macro_steps)
    controller.validate(config)
    grid = cells(options, table, flags)
    if options.dry_run:
        print(f"{options.table}: {table.shows}")
        print_cost(grid, config)
        return
    if not options.draw_only:
        jobs = run.jobs_here(options.jobs)
        for body in table.bodies:
            runs = {cell.config.out: cell.config for cell in grid if cell.config.env == body}
            run.train(list(runs.values()), jobs=jobs)
        control(grid, config, jobs)
    text = markdown(grid, config)
    path = Path(options.out or "runs/experiments") / f"downstream-{options.table}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text + "\n")
    print(text)
    print(f"wrote {path}; command: python -m experiments.downstream {' '.join(sys.argv[1:])}")


if __name__ == "__main__":
    start.main(main)
