"""The host side of training: folders, dispatch, evaluation, checkpoints, signals. The learning is in program.py."""

import dataclasses
import json
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from genda_mjx import agents, checkpoint, evaluate, plots, program, schedule
from genda_mjx import config as configuration
from genda_mjx.config import Config, UserError
from genda_mjx.entry import check_jax, keep_compilations, make_env, write_text
from genda_mjx.report import Loggers, MetricsCsv, Progress, duration

SHOWN = ("phi_dot", "lambda", "accuracy", "contrastive_loss", "alpha")  # on the progress line, where the agent has them


class StopRequest:
    """SIGTERM and Ctrl-C ask the loop to end after the iteration; a second one ends at once."""

    def __init__(self, progress: Progress):
        self.asked = False
        self._progress = progress
        self._previous = {s: signal.signal(s, self._handle) for s in (signal.SIGINT, signal.SIGTERM)}

    def _handle(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._progress.say(f"{signal.Signals(number).name}: finishing the iteration, then saving (again: quit at once)")

    def restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def open_folder(config: Config) -> Path:
    """The run folder, checked against what is already there; nothing is written yet."""
    run = Path(config.out)
    if config.resume:
        differing = configuration.differences(configuration.read_config(run), config)
        if differing:
            raise UserError(f"cannot resume {run}: {'; '.join(differing)}; drop these flags or choose another --out")
    elif (run / "config.json").exists():
        raise UserError(f"{run} already holds a run; continue it with --resume or choose another --out")
    elif run.is_dir() and any(path.name != "config.json.part" for path in run.iterdir()):
        raise UserError(f"{run} is not empty and not a run; choose another --out")
    elif run.exists() and not run.is_dir():
        raise UserError(f"{run} is a file; choose another --out")
    return run


class Training:
    """One run from its config to its last checkpoint."""

    def __init__(self, config: Config):
        configuration.validate(config)
        check_jax()
        keep_compilations(config.compile_cache)
        self.config, self.progress = config, Progress()
        self.run = open_folder(config)
        with self.progress.waiting(f"building {config.env}"):
            self.env = make_env(config.env)
        self.schedule = schedule.derive(config, self.env.episode_length)
        self.agent = agents.make(config, agents.Sizes(self.env.observation_size, self.env.action_size))
        self.program = program.make(config, self.schedule, self.env, self.agent)
        self.abstract = jax.eval_shape(self.program.init, jax.random.key(0))
        self.progress.say(schedule.describe(config, self.schedule, self.abstract))
        self.coverage: int | None = None
        self.random_coverage: int | None = None

    def __call__(self) -> None:
        self.run.mkdir(parents=True, exist_ok=True)
        if not self.config.resume:
            self._write_config()  # first, so that a run killed from here on can be resumed
        checkpoints = checkpoint.Checkpoints(self.run, self.config.keep_last, self.schedule.keep_steps)
        state = self._start(checkpoints)
        self._write_config()
        stop = StopRequest(self.progress)
        loggers = Loggers(self.config, self.run, self.progress)
        try:
            with self.progress.waiting("compiling training"):
                compiled = self.program.run.lower(self.abstract, np.int32(1)).compile()
            with self.progress.waiting("compiling evaluation"):
                self.evaluate = evaluate.compile(self.env, self.agent, self.config.eval_episodes, self.abstract.agent)
            self._loop(state, compiled, checkpoints, loggers, stop)
        finally:
            stop.restore()
            loggers.close()
            checkpoints.close()

    def _write_config(self) -> None:
        write_text(self.run / "config.json", dataclasses.replace(self.config, resume=False).to_json())
        write_text(self.run / "versions.json", json.dumps(checkpoint.versions(), indent=2))

    def _start(self, checkpoints: checkpoint.Checkpoints) -> program.TrainState:
        """The newest checkpoint when resuming (the beginning if there is none yet), else a fresh state."""
        columns = ["step", "iteration", "updates", "coverage", "random_coverage", "failed_evaluations"]
        _, metrics = jax.eval_shape(self.program.run, self.abstract, np.int32(1))
        columns += [name for name in metrics if name not in columns]
        if self.config.resume and checkpoints.steps:
            if checkpoints.steps[-1] >= self.schedule.total_steps:
                raise UserError(f"{self.run} is already at step {checkpoints.steps[-1]}; raise --total_steps")
            with self.progress.waiting(f"restoring step {checkpoints.steps[-1]:,}"):
                state = checkpoints.load(None, self.abstract)
            self.csv = MetricsCsv(self.run / "metrics.csv", columns, checkpoints.steps[-1])
            return state
        self.csv = MetricsCsv(self.run / "metrics.csv", columns)
        with self.progress.waiting("initialising networks and replay"):
            return jax.block_until_ready(self.program.init(jax.random.key(self.config.seed)))

    def _loop(
        self, state: program.TrainState, compiled: Any, checkpoints: checkpoint.Checkpoints, loggers: Loggers,
        stop: StopRequest,
    ) -> None:  # fmt: skip
        s = self.schedule
        iteration = first = int(state.iteration)
        self._measure_random(state)
        started, saved, updates = time.monotonic(), iteration, 0
        while iteration < s.iterations and not stop.asked:
            n = min(self._until_due(iteration), self.config.iterations_per_dispatch)
            state, metrics = compiled(state, np.int32(n))
            rows = jax.device_get(metrics)
            for i in range(n):
                iteration += 1
                row = {name: values[i].item() for name, values in rows.items()}
                row |= {"step": iteration * s.steps_per_iteration, "iteration": iteration}
                updates += s.updates_per_iteration * (iteration > s.warmup_iterations)
                if row["valid_episodes"] == 0:
                    raise UserError(f"the physics failed in every episode of {self.config.env}: nothing to learn from")
                if i == n - 1 and (iteration == s.iterations or is_due(row["step"], s.eval_steps)):
                    row |= self._evaluate(state, row["step"], loggers)
                self.csv.write(row)
                loggers.log(row, row["step"])
            self._show(row, iteration, iteration - first, updates, time.monotonic() - started)
            if iteration == s.iterations or is_due(row["step"], s.checkpoint_steps):
                checkpoints.save(row["step"], state, self.config)
                saved = iteration
        if saved < iteration:
            checkpoints.save(iteration * s.steps_per_iteration, state, self.config)
        checkpoints.wait()
        self._say_end(iteration)

    def _say_end(self, iteration: int) -> None:
        step, say = iteration * self.schedule.steps_per_iteration, self.progress.say
        if iteration < self.schedule.iterations:
            say(f"stopped at step {step:,}; continue with: python train.py --resume --out {self.run}")
            return
        times = self.coverage / max(self.random_coverage, 1)
        beside = f"{times:.1f} times a random policy's {self.random_coverage}"
        say(f"finished at step {step:,}: the skills cover {self.coverage} bins, {beside}")
        pictures = f"trajectories_{step}.png" + (f", phi_{step}.png" if self.agent.represent else "")
        say(f"pictures in {self.run}/plots ({pictures}), numbers in {self.run}/metrics.csv")
        say(f"next: python eval.py --ckpt {self.run} --offset 10 5")

    def _until_due(self, iteration: int) -> int:
        """Iterations until the next evaluation, checkpoint or the end."""
        s = self.schedule
        periods = [every // s.steps_per_iteration for every in (s.eval_steps, s.checkpoint_steps) if every]
        return min([s.iterations - iteration] + [period - iteration % period for period in periods])

    def _measure_random(self, state: program.TrainState) -> None:
        """The random policy's coverage, to hold the skills against."""
        key = evaluate.evaluation_key(self.config.seed, 0)
        episodes = self.evaluate(state.agent, key, np.zeros(2, np.float32), np.True_)
        self.random_coverage = evaluate.coverage(jax.device_get(episodes.positions), self.env.bin_size)
        self.progress.say(f"a random policy covers {self.random_coverage} bins in {self.config.eval_episodes} episodes")

    def _evaluate(self, state: program.TrainState, step: int, loggers: Loggers) -> dict[str, Any]:
        """Coverage of the deterministic skills; trajectories and plots go to the run folder."""
        key = evaluate.evaluation_key(self.config.seed, step)
        episodes = jax.device_get(self.evaluate(state.agent, key, np.zeros(2, np.float32), np.False_))
        self.coverage = evaluate.coverage(episodes.positions, self.env.bin_size)
        save_episodes(self.run / "evaluations" / f"{step}.npz", episodes)
        title = f"{self.config.env}, {step:,} steps: {self.coverage} bins"
        for name, path in draw(self.run / "plots", str(step), title, episodes).items():
            loggers.image(name, path, step)
        return {
            "coverage": self.coverage,
            "random_coverage": self.random_coverage,
            "failed_evaluations": int((~episodes.valid).sum()),
        }

    def _show(self, row: dict[str, Any], iteration: int, run_now: int, updates: int, elapsed: float) -> None:
        s = self.schedule
        rate = run_now * s.steps_per_iteration / elapsed
        shown = " ".join(f"{name} {row[name]:.3g}" for name in SHOWN if name in row and row[name] == row[name])
        remaining = (s.iterations - iteration) * elapsed / run_now
        self.progress.show(
            f"step {row['step']:,}/{s.total_steps:,} | {rate:,.0f} steps/s {updates / elapsed:,.1f} updates/s | "
            f"left {duration(remaining)} | coverage {'-' if self.coverage is None else self.coverage} | {shown} | "
            f"failed {row['failed_episodes']}",
            now=iteration == s.iterations or "coverage" in row,
        )


def is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def save_episodes(path: Path, episodes: evaluate.Episodes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.stem + ".part.npz")
    np.savez_compressed(partial, **{name: value for name, value in episodes._asdict().items() if value is not None})
    partial.replace(path)


def draw(folder: Path, label: str, title: str, episodes: evaluate.Episodes) -> dict[str, Path]:
    """The trajectories plot, and the phi plot where the agent has phi."""
    paths = {"trajectories": folder / f"trajectories_{label}.png"}
    plots.trajectories(paths["trajectories"], title, episodes.positions, episodes.skills)
    if episodes.latents is not None:
        paths["phi"] = folder / f"phi_{label}.png"
        plots.latents(paths["phi"], title, episodes.latents, episodes.skills)
    return paths
