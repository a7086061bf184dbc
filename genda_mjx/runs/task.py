"""A downstream task as the host sees it: for every seed train a controller over a run's frozen skills, then report.

Seeds run one after another: they share one compilation, each is finished (and kept) on its own, and on a CPU nothing is
gained by running them side by side.
"""

import dataclasses
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from envs import pixels
from envs.tasks import goals
from genda_mjx import evaluate
from genda_mjx.build import body_options
from genda_mjx.config import Config, UserError
from genda_mjx.downstream import controller
from genda_mjx.downstream import program as downstream
from genda_mjx.downstream.controller import ControllerConfig
from genda_mjx.runs import explore_task, plots, start
from genda_mjx.runs.checkpoint import Checkpoints
from genda_mjx.runs.folder import save_episodes, write_text
from genda_mjx.runs.report import MetricsCsv, Progress, duration
from genda_mjx.runs.signals import StopRequest
from genda_mjx.runs.stored import Skills, load_skills, read_run
from genda_mjx.runs.task_files import SeedResult, TaskOptions, check_same, folder_of, record, stored_result
from genda_mjx.state import TrainState

LOW = 0.5  # success below which the report says what to try
RECENT = 20  # iterations of training whose success is reported beside the last evaluation's


@dataclasses.dataclass(frozen=True)
class Trial:
    """One task on one checkpoint."""

    folder: Path
    options: TaskOptions
    config: ControllerConfig
    task: goals.GoalTask
    skills: Skills
    progress: Progress

    @property
    def plan(self) -> downstream.Schedule:
        return downstream.schedule(self.config, self.task.horizon)

    @property
    def steps_per_iteration(self) -> int:
        return self.plan.macro_length * self.config.num_episodes


class Compiled(NamedTuple):
    """The controller's program, compiled for all seeds."""

    init: Any  # key -> state
    iterate: Any  # state (donated), skills -> state, metrics
    evaluate: Any  # controller's state, skills, key -> Played
    abstract: TrainState  # shapes
    metrics: list[str]  # names


def run_task(
    folder: Path,
    step: int | None,
    options: TaskOptions,
    config: ControllerConfig,
    seeds: range,
    compile_cache: str = "",
    task: goals.GoalTask | None = None,
    skills: Skills | None = None,
    explore: bool = False,
) -> dict[str, Any]:
    """Returns what the last line of eval.py says, and writes it to the folder, beside each seed's files.

    task, skills: instead of the task that the options name, and of the checkpoint's skills. explore: also write a page
    in which the first seed's controller chooses skills live.
    """
    controller.validate(config)
    if len(seeds) < 1:
        raise UserError(f"--seeds is {len(seeds)}; it must be greater than 0")
    run, progress = skills.config if skills else read_run(folder), Progress()
    start.prepare(compile_cache)
    if task is None:
        with progress.waiting(f"building {run.env} for {options.task}"):
            task = make_task(run, options)
    skills = skills or load_skills(folder, step, task.env, progress)
    if int(skills.state.updates) == 0:
        raise UserError(f"step {skills.step} of {folder} is from the warm-up: no skills yet; train on")
    trial = Trial(folder_of(folder, skills.step, options), options, config, task, skills, progress)
    asked = record(options, config)
    check_same(trial.folder, asked)
    trial.folder.mkdir(parents=True, exist_ok=True)
    write_text(trial.folder / "options.json", json.dumps(asked, indent=2))

    def stored(seed: int) -> SeedResult | None:
        return stored_result(folder, skills.step, options, config, seed)

    waiting = [seed for seed in seeds if stored(seed) is None]
    if waiting:
        train_seeds(trial, waiting)
    result = report(trial, seeds, [stored(seed) for seed in seeds])
    return result | {"page": str(write_page(trial, seeds[0]))} if explore else result


def write_page(trial: Trial, seed: int) -> Path:
    """The explorer page of a seed's controller."""
    folder, pi = trial.folder / f"seed{seed}", make_controller(trial)
    abstract = jax.eval_shape(
        lambda key: TrainState(pi.init(key), None, key, jax.numpy.zeros((), int)), jax.random.key(0)
    )
    with closing(Checkpoints(folder, read_only=True)) as checkpoints:
        state = checkpoints.load_agent(None, abstract)
    with np.load(folder / "trajectories.npz") as stored:
        played = dict(stored)
    page = explore_task.write(folder / "explore.html", trial.task, trial.skills, trial.config, pi, state, played)
    trial.progress.say(f"open {page} in a browser ({page.stat().st_size / 1e6:.1f} MB, everything inside)")
    return page


def make_task(run: Config, options: TaskOptions) -> goals.GoalTask:
    """The task for the skills of a run, which may see pixels."""
    try:
        task = goals.make(run.env, **body_options(run), **options.for_goals())
        return pixels.filmed(task, run.pixel_size, run.floor) if run.pixels else task
    except ValueError as error:
        raise UserError(str(error)) from error


def report(trial: Trial, seeds: range, results: list[SeedResult]) -> dict[str, Any]:
    """Reports all seeds together, in result.json and in a line."""
    skills, task, options = trial.skills, trial.task, trial.options
    success = [result.success for result in results]
    result = {
        "env": skills.config.env,
        "algo": skills.config.algo,
        "step": skills.step,
        "task": task.name,
        "seeds": len(seeds),
        "success": float(np.mean(success)),
        "success_std": float(np.std(success)),
        "per_seed": success,
        "train_success": known_mean([result.train_success for result in results]),
        "first_seed": seeds.start,
        "macro_steps": results[0].macro_steps,
        "episodes": trial.config.eval_episodes,
        "horizon": task.horizon,
        "radius": task.radius,
        "maze": None if options.maze is None else str(options.maze),
        "goal_center": options.goal_center,
        "failed": sum(result.failed for result in results),
    }
    write_text(trial.folder / "result.json", json.dumps(result, indent=2))
    trial.progress.say(
        f"{options.label}: success {result['success']:.3f} (std {result['success_std']:.3f} over {len(seeds)} "
        f"seeds: {', '.join(f'{s:.2f}' for s in success)}); wrote {trial.folder}"
    )
    if result["success"] < LOW:
        trial.progress.say(advice(trial, result["train_success"]))
    return result


def known_mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def advice(trial: Trial, train_success: float | None) -> str:
    """What to try when few goals are reached: a longer training is what helped where skills were good enough."""
    steps, updates = 2 * trial.config.macro_steps, 2 * trial.config.gradient_steps
    reached = "" if train_success is None else f"{train_success:.2f} of the last training goals were reached; "
    longer = f"--controller.macro_steps {steps} --controller.gradient_steps {updates}"
    return f"{reached}to train longer, move {trial.folder} away and give {longer}"


def train_seeds(trial: Trial, seeds: list[int]) -> None:
    """Trains the missing controllers, one after another; a signal stops after the iteration under way."""
    with StopRequest(trial.progress) as stop:
        compiled = compile_program(trial)
        for number, seed in enumerate(seeds):
            train_seed(trial, compiled, seed, len(seeds) - number - 1, stop)
            if stop.asked:
                raise KeyboardInterrupt


def make_controller(trial: Trial) -> controller.Controller:
    goal = jax.ShapeDtypeStruct((trial.task.goal_size,), jax.numpy.float32)
    return controller.make(trial.config, trial.skills.agent, (trial.task.env.observation_spec, goal))


def compile_program(trial: Trial) -> Compiled:
    skills = trial.skills.state
    program = downstream.make(trial.config, trial.plan, trial.task, trial.skills.agent, make_controller(trial))
    key = jax.eval_shape(jax.random.key, 0)
    abstract = jax.eval_shape(program.init, key)
    with trial.progress.waiting("compiling the controller's training"):
        iterate = program.iterate.lower(abstract, skills).compile()
    with trial.progress.waiting("compiling its evaluation"):
        compiled = program.evaluate.lower(abstract.agent, skills, key).compile()
    metrics = list(jax.eval_shape(program.iterate, abstract, skills)[1])
    return Compiled(program.init, iterate, compiled, abstract, metrics)


def train_seed(trial: Trial, compiled: Compiled, seed: int, seeds_left: int, stop: StopRequest) -> None:
    """Trains one controller, from where it was left to its result."""
    folder, plan, config, macro = trial.folder / f"seed{seed}", trial.plan, trial.config, trial.steps_per_iteration
    with closing(Checkpoints(folder, keep_last=1)) as checkpoints:
        state, csv = begin(trial, compiled, seed, folder, checkpoints)
        iteration = first = saved = int(state.iteration)
        started, success = time.monotonic(), None
        while iteration < plan.iterations and not stop.asked:
            state, metrics = compiled.iterate(state, trial.skills.state)
            iteration += 1
            row = {name: value.item() for name, value in jax.device_get(metrics).items()}
            row |= {"step": iteration * macro, "episodes": iteration * config.num_episodes}
            if row["valid_episodes"] == 0:
                raise UserError(f"the physics failed in every episode of {trial.options.label}")
            last = iteration == plan.iterations
            if last or iteration % plan.eval_iterations == 0:
                played = play(trial, compiled, state, seed, row["step"])
                success = row["success"] = float(played.success.mean())
            csv.write(row)
            left = (plan.iterations - iteration + seeds_left * plan.iterations) / (iteration - first)
            show(trial, seed, row, success, left * (time.monotonic() - started), last)
            if "success" in row or stop.asked:
                checkpoints.save(row["step"], state, config)
                saved = iteration
        if iteration < plan.iterations:
            trial.progress.say(f"stopped at macro step {saved * macro:,} of seed {seed}")
            trial.progress.say("the same command continues from there")
            return
        if iteration == first:  # killed between its last checkpoint and its result
            played = play(trial, compiled, state, seed, iteration * macro)
        finish(trial, seed, folder, played, csv.recent("train_success", RECENT))


def begin(
    trial: Trial, compiled: Compiled, seed: int, folder: Path, checkpoints: Checkpoints
) -> tuple[TrainState, MetricsCsv]:
    """The newest checkpoint of a seed, or a fresh controller; and its csv up to there."""
    columns = ["step", "episodes", "success", "train_success", "updates"]
    columns += [name for name in compiled.metrics if name not in columns]
    done = checkpoints.steps[-1] if checkpoints.steps else None
    if done is not None:
        with trial.progress.waiting(f"restoring seed {seed} at macro step {done:,}"):
            state = checkpoints.load(None, compiled.abstract)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        state = compiled.init(jax.random.key(seed))
    return state, MetricsCsv(folder / "metrics.csv", columns, done)


def play(trial: Trial, compiled: Compiled, state: TrainState, seed: int, step: int) -> downstream.Played:
    key = evaluate.evaluation_key(seed, step)
    return jax.device_get(compiled.evaluate(state.agent, trial.skills.state, key))


def show(trial: Trial, seed: int, row: dict[str, Any], success: float | None, left: float, now: bool) -> None:
    total = trial.plan.iterations * trial.steps_per_iteration
    trial.progress.show(
        f"{trial.options.label} seed {seed} | macro step {row['step']:,}/{total:,} | left {duration(left)} | "
        f"success {'-' if success is None else f'{success:.2f}'} (training {row['train_success']:.2f}) | "
        f"updates {row['updates']:,} | failed {row['failed_episodes']}",
        now=now or "success" in row,
    )


def finish(trial: Trial, seed: int, folder: Path, played: downstream.Played, train_success: float) -> None:
    """Writes the pictures, then the result, which marks the seed as finished."""
    success, task = float(played.success.mean()), trial.task
    title = f"{trial.skills.config.env}, {trial.options.label}, seed {seed}: success {success:.2f}"
    save_episodes(folder / "trajectories.npz", played)
    walls = task.maze.walls if task.maze else ()
    plots.goal_trajectories(
        folder / "trajectories.png", title, played.path, played.goal, played.success, task.radius, walls
    )
    steps = trial.plan.iterations * trial.steps_per_iteration
    result = SeedResult(success, int(played.failed.sum()), steps, train_success)
    write_text(folder / "result.json", json.dumps(result._asdict(), indent=2))
