"""The host side of a downstream task: for every seed train a controller over a run's frozen skills, then report.

Seeds run one after another: they share one compilation, each is finished (and kept) on its own, and on a CPU nothing is
gained by running them side by side. Files go to RUN/downstream/<task>/<checkpoint step>/.
"""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from genda_mjx import checkpoint, controller, downstream, evaluate, plots
from genda_mjx.config import UserError
from genda_mjx.controller import ControllerConfig
from genda_mjx.entry import check_jax, keep_compilations, make_task, write_text
from genda_mjx.inspect_run import Skills, load_skills, read_run
from genda_mjx.loop import StopRequest, save_episodes
from genda_mjx.report import MetricsCsv, Progress, duration
from genda_mjx.state import TrainState


@dataclasses.dataclass(frozen=True)
class TaskOptions:
    """Which task, and where it departs from the paper's."""

    task: str | None = None  # train a controller over the skills: fs_rg, rs_rg, maze_easy or maze_hard
    maze: Path | None = None  # a text grid instead of the maze task's own layout (envs/maze.py)
    goal_center: tuple[float, float] | None = None  # m, shift start and goals of an open-floor task to X Y
    radius: float | None = None  # m, a goal is reached within; None: 1.5, fish 0.1 (official quadruped maze: 3.0)
    separation: float | None = None  # m, least start-goal distance; None: 3 (official mazes: 4)
    goal_range: float | None = None  # m, half side of the square of goals; None: 3.5
    horizon: int | None = None  # environment steps an episode; None: the paper's

    @property
    def label(self) -> str:
        """Names the folder."""
        parts = [self.task]
        if self.maze is not None:
            parts.append(self.maze.stem)
        if self.goal_center is not None:
            parts.append("at_{:g}_{:g}".format(*self.goal_center))
        return "_".join(parts)

    def for_goals(self) -> dict[str, Any]:
        """As keywords of envs.goals.make."""
        renamed = {"maze": "maze_file", "goal_center": "center"}
        values = dataclasses.asdict(self)
        return {renamed.get(name, name): value for name, value in values.items() if value is not None}

    def recorded(self) -> dict[str, Any]:
        """For options.json; a maze file by its text, so that an edited one is noticed."""
        values = dataclasses.asdict(self)
        if self.maze is not None:
            values["maze"] = self.maze.read_text().splitlines()
        if self.goal_center is not None:
            values["goal_center"] = list(self.goal_center)
        return values


class SeedResult(NamedTuple):
    """The last evaluation of one seed."""

    success: float
    failed: int  # episodes whose physics went non-finite
    macro_steps: int


def folder_of(run: Path, step: int, options: TaskOptions) -> Path:
    return run / "downstream" / options.label / str(step)


def record(options: TaskOptions, config: ControllerConfig) -> dict[str, Any]:
    """All that decides what a controller learns, for options.json."""
    return {"controller": dataclasses.asdict(config), "task": options.recorded()}


def check_same(folder: Path, asked: dict[str, Any]) -> None:
    """What is already in a folder must come from the same options."""
    path = folder / "options.json"
    if not path.exists():
        return
    try:
        stored = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}); move {folder} away") from error
    differing = [
        f"{name} is {stored.get(group, {}).get(name)!r} there, {value!r} asked"
        for group, values in asked.items()
        for name, value in values.items()
        if stored.get(group, {}).get(name) != value
    ]
    if differing:
        raise UserError(
            f"{folder} holds another controller: {'; '.join(differing)}; give the same options or move it away"
        )


def stored_result(run: Path, step: int, options: TaskOptions, config: ControllerConfig, seed: int) -> SeedResult | None:
    """Of a seed that is finished."""
    folder = folder_of(run, step, options)
    check_same(folder, record(options, config))
    path = folder / f"seed{seed}" / "result.json"
    return SeedResult(**json.loads(path.read_text())) if path.exists() else None


class TaskRun:
    """One task on one checkpoint."""

    def __init__(
        self, folder: Path, step: int | None, options: TaskOptions, config: ControllerConfig, compile_cache: str
    ):
        controller.validate(config)
        self.progress, self.options, self.config = Progress(), options, config
        env = read_run(folder).env
        check_jax()
        keep_compilations(compile_cache)
        with self.progress.waiting(f"building {env} for {options.task}"):
            self.task = make_task(env, **options.for_goals())
        self.plan = downstream.schedule(config, self.task.horizon)
        self.skills: Skills = load_skills(folder, step, self.task.env, self.progress)
        if int(self.skills.state.updates) == 0:
            raise UserError(f"step {self.skills.step} of {folder} is from the warm-up: no skills yet; train on")
        self.run, self.folder = folder, folder_of(folder, self.skills.step, options)
        agent = self.skills.agent
        goal = jax.ShapeDtypeStruct((self.task.goal_size,), jax.numpy.float32)
        pi = controller.make(config, agent, (self.task.env.observation_spec, goal))
        self.program = downstream.make(config, self.plan, self.task, agent, pi)
        self.abstract = jax.eval_shape(self.program.init, jax.random.key(0))
        self.steps_per_iteration = self.plan.macro_length * config.num_episodes

    def __call__(self, seeds: range) -> dict[str, Any]:
        """What the last line of eval.py says; also written to the folder, beside each seed's files."""
        if len(seeds) < 1:
            raise UserError(f"--seeds is {len(seeds)}; it must be greater than 0")
        asked = record(self.options, self.config)
        check_same(self.folder, asked)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "options.json", json.dumps(asked, indent=2))
        waiting = [seed for seed in seeds if self._stored_result(seed) is None]
        if waiting:
            self._train(waiting)
        results = [self._stored_result(seed) for seed in seeds]
        success = [result.success for result in results]
        skills, task = self.skills, self.task
        result = {
            "env": skills.config.env,
            "algo": skills.config.algo,
            "step": skills.step,
            "task": task.name,
            "seeds": len(seeds),
            "success": float(np.mean(success)),
            "success_std": float(np.std(success)),
            "per_seed": success,
            "first_seed": seeds.start,
            "macro_steps": results[0].macro_steps,
            "episodes": self.config.eval_episodes,
            "horizon": task.horizon,
            "radius": task.radius,
            "maze": None if self.options.maze is None else str(self.options.maze),
            "goal_center": self.options.goal_center,
            "failed": sum(result.failed for result in results),
        }
        write_text(self.folder / "result.json", json.dumps(result, indent=2))
        self.progress.say(
            f"{self.options.label}: success {result['success']:.3f} (std {result['success_std']:.3f} over {len(seeds)} "
            f"seeds: {', '.join(f'{s:.2f}' for s in success)}); wrote {self.folder}"
        )
        return result

    def _stored_result(self, seed: int) -> SeedResult | None:
        return stored_result(self.run, self.skills.step, self.options, self.config, seed)

    def _train(self, seeds: list[int]) -> None:
        stop = StopRequest(self.progress)
        try:
            with self.progress.waiting("compiling the controller's training"):
                self.iterate = self.program.iterate.lower(self.abstract, self.skills.state).compile()
            with self.progress.waiting("compiling its evaluation"):
                key = jax.eval_shape(jax.random.key, 0)
                self.evaluate = self.program.evaluate.lower(self.abstract.agent, self.skills.state, key).compile()
            for number, seed in enumerate(seeds):
                self._train_seed(seed, len(seeds) - number - 1, stop)
                if stop.asked:
                    raise KeyboardInterrupt
        finally:
            stop.restore()

    def _train_seed(self, seed: int, seeds_left: int, stop: StopRequest) -> None:
        folder, plan = self.folder / f"seed{seed}", self.plan
        checkpoints = checkpoint.Checkpoints(folder, keep_last=1)
        try:
            state = self._start(seed, folder, checkpoints)
            iteration = first = saved = int(state.iteration)
            started = time.monotonic()
            success: float | None = None
            while iteration < plan.iterations and not stop.asked:
                state, metrics = self.iterate(state, self.skills.state)
                iteration += 1
                row = {name: value.item() for name, value in jax.device_get(metrics).items()}
                row |= {"step": iteration * self.steps_per_iteration, "episodes": iteration * self.config.num_episodes}
                if row["valid_episodes"] == 0:
                    raise UserError(f"the physics failed in every episode of {self.options.label}")
                last = iteration == plan.iterations
                if last or iteration % plan.eval_iterations == 0:
                    played = self._play(state, seed, row["step"])
                    success = row["success"] = float(played.success.mean())
                self.csv.write(row)
                left = (plan.iterations - iteration + seeds_left * plan.iterations) / (iteration - first)
                self._show(seed, row, success, left * (time.monotonic() - started), last)
                if "success" in row or stop.asked:
                    checkpoints.save(row["step"], state, self.config)
                    saved = iteration
            if iteration < plan.iterations:
                self.progress.say(f"stopped at macro step {saved * self.steps_per_iteration:,} of seed {seed}")
                self.progress.say("the same command continues from there")
                return
            if iteration == first:  # killed between its last checkpoint and its result
                played = self._play(state, seed, iteration * self.steps_per_iteration)
            self._finish(seed, folder, played)
        finally:
            checkpoints.close()

    def _start(self, seed: int, folder: Path, checkpoints: checkpoint.Checkpoints) -> TrainState:
        columns = ["step", "episodes", "success", "train_success", "updates"]
        metrics = jax.eval_shape(self.program.iterate, self.abstract, self.skills.state)[1]
        columns += [name for name in metrics if name not in columns]
        done = checkpoints.steps[-1] if checkpoints.steps else None
        if done is not None:
            with self.progress.waiting(f"restoring seed {seed} at macro step {done:,}"):
                state = checkpoints.load(None, self.abstract)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            state = self.program.init(jax.random.key(seed))
        self.csv = MetricsCsv(folder / "metrics.csv", columns, done)
        return state

    def _play(self, state: TrainState, seed: int, step: int) -> downstream.Played:
        key = evaluate.evaluation_key(seed, step)
        return jax.device_get(self.evaluate(state.agent, self.skills.state, key))

    def _show(self, seed: int, row: dict[str, Any], success: float | None, left: float, now: bool) -> None:
        total = self.plan.iterations * self.steps_per_iteration
        self.progress.show(
            f"{self.options.label} seed {seed} | macro step {row['step']:,}/{total:,} | left {duration(left)} | "
            f"success {'-' if success is None else f'{success:.2f}'} (training {row['train_success']:.2f}) | "
            f"updates {row['updates']:,} | failed {row['failed_episodes']}",
            now=now or "success" in row,
        )

    def _finish(self, seed: int, folder: Path, played: downstream.Played) -> None:
        """Pictures first: the result marks the seed as finished."""
        success = float(played.success.mean())
        skills = self.skills
        title = f"{skills.config.env}, {self.options.label}, seed {seed}: success {success:.2f}"
        save_episodes(folder / "trajectories.npz", played)
        plots.goal_trajectories(
            folder / "trajectories.png", title, played.path, played.goal, played.success, self.task.radius,
            self.task.maze.walls if self.task.maze else (),
        )  # fmt: skip
        result = SeedResult(success, int(played.failed.sum()), self.plan.iterations * self.steps_per_iteration)
        write_text(folder / "result.json", json.dumps(result._asdict(), indent=2))
