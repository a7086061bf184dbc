"""The host side of training: folders, dispatch, evaluation, checkpoints, signals. The learning is in program.py."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from envs.base import SkillEnv
from genda_mjx import checkpoint, devices, evaluate, plots, processes, schedule, sharding
from genda_mjx import config as configuration
from genda_mjx.agents.skills import SkillSpace
from genda_mjx.build import build
from genda_mjx.config import Config, UserError
from genda_mjx.entry import check_jax, keep_compilations, write_text
from genda_mjx.report import Loggers, MetricsCsv, Progress, duration
from genda_mjx.state import TrainState


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


def check_folder(config: Config) -> None:
    """Checks the run folder against what is already there; nothing is written yet."""
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


class Training:
    """One run from its config to its last checkpoint."""

    def __init__(self, config: Config, env: SkillEnv | None = None):
        configuration.validate(config)
        processes.start(config)
        check_jax()
        keep_compilations(config.compile_cache)
        self.lead = processes.is_lead()
        self.config, self.progress = config, Progress(silent=not self.lead)
        self.run = Path(config.out)
        self._check_folder()
        with self.progress.waiting(f"building {config.env}"):
            built = build(config, env)
        self.env, self.agent, self.schedule = built.env, built.agent, built.schedule
        self.mesh, self.program, self.abstract = built.mesh, built.program, built.program.abstract
        self.progress.say(schedule.describe(config, self.schedule, self.agent, self.abstract, self.mesh.size))
        self.seeds = [config.seed + member for member in range(config.num_seeds)]
        self.folders = [configuration.seed_folder(config, self.run, member) for member in range(config.num_seeds)]
        self.found: list[dict[str, float]] = []  # of each seed, at the last evaluation
        self.random: list[float] = []  # the headline of a random policy

    def __call__(self) -> bool:
        """Train; False if a signal stopped it before the last step."""
        if self.lead:
            for folder in self.folders:
                folder.mkdir(parents=True, exist_ok=True)
            if not self.config.resume:
                self._write_config()  # first, so that a run killed from here on can be resumed
        processes.wait_for_lead()
        checkpoints = checkpoint.Checkpoints(self.run, self.config.keep_last, self.schedule.keep_steps)
        state = self._start(checkpoints)
        if self.lead:
            self._write_config()
        stop = StopRequest(self.progress)
        loggers = Loggers(self.config, self.run, self.progress) if self.lead else Loggers.none(self.progress)
        try:
            with self.progress.waiting("compiling training"):
                compiled = self.program.run.lower(self.abstract, np.int32(1)).compile()
            self.progress.say(schedule.describe_memory(compiled.memory_analysis()))
            with self.progress.waiting("compiling evaluation"):
                self.evaluate = evaluate.compile(
                    self.env, self.agent, self.config.eval_episodes, self.abstract.agent, self.config.num_seeds
                )
            return self._loop(state, compiled, checkpoints, loggers, stop)
        finally:
            stop.restore()
            loggers.close()
            checkpoints.close()

    def _check_folder(self) -> None:
        """In the lead alone: it will write there while the others still look."""
        error = None
        if self.lead:
            try:
                check_folder(self.config)
            except UserError as found:
                error = found
        processes.wait_for_lead(error)

    def _write_config(self) -> None:
        write_text(self.run / "config.json", configuration.without_start(self.config).to_json())
        write_text(self.run / "versions.json", json.dumps(checkpoint.versions(), indent=2))

    def _start(self, checkpoints: checkpoint.Checkpoints) -> TrainState:
        """The newest checkpoint when resuming (the beginning if there is none yet), else a fresh state."""
        if self.config.resume and checkpoints.steps:
            if checkpoints.steps[-1] >= self.schedule.total_steps:
                raise UserError(f"{self.run} is already at step {checkpoints.steps[-1]}; raise --total_steps")
            with self.progress.waiting(f"restoring step {checkpoints.steps[-1]:,}"):
                return checkpoints.load(None, self.abstract)
        with self.progress.waiting("initialising networks and replay"):
            keys = self._everywhere(sharding.seed_keys(self.config))
            return jax.block_until_ready(self.program.init(keys))

    def _open_csvs(self, measured: list[str], first: int) -> None:
        """One for each seed, with the rows up to the iteration `first`; measured: names of what an evaluation gives."""
        headline = self.env.headline
        columns = ["step", "iteration", "updates", headline, f"random_{headline}", "failed_evaluations"]
        _, metrics = jax.eval_shape(self.program.run, self.abstract, np.int32(1))
        columns += [name for name in (*metrics, *measured) if name not in columns]
        last_step = first * self.schedule.steps_per_iteration if first else None
        if self.lead:
            self.csvs = [MetricsCsv(folder / "metrics.csv", columns, last_step) for folder in self.folders]

    def _everywhere(self, keys: jax.Array) -> jax.Array:
        """Keys on all devices."""
        return jax.random.wrap_key_data(devices.everywhere(self.mesh, np.asarray(jax.random.key_data(keys))))

    def _loop(
        self, state: TrainState, compiled: Any, checkpoints: checkpoint.Checkpoints, loggers: Loggers,
        stop: StopRequest,
    ) -> bool:  # fmt: skip
        s = self.schedule
        iteration = first = int(state.iteration)
        seeds = len(self.seeds)
        self._open_csvs(self._measure_random(state), first)
        started, saved, updates = time.monotonic(), iteration, 0
        while iteration < s.iterations and not processes.any_of(stop.asked):
            n = min(self._until_due(iteration), self.config.iterations_per_dispatch)
            state, metrics = compiled(state, devices.everywhere(self.mesh, np.int32(n)))
            table = jax.device_get(metrics)
            for i in range(n):
                iteration += 1
                step = iteration * s.steps_per_iteration
                rows = [{name: values[i].flat[k].item() for name, values in table.items()} for k in range(seeds)]
                updates += s.updates_per_iteration * (iteration > s.warmup_iterations)
                if iteration > s.warmup_iterations and min(row["valid_episodes"] for row in rows) == 0:
                    raise UserError(f"the physics failed in every episode of {self.config.env}: nothing to learn from")
                found = [{}] * seeds
                if i == n - 1 and (iteration == s.iterations or is_due(step, s.eval_steps)):
                    found = self._evaluate(state, step, loggers)
                for row, more in zip(rows, found, strict=True):
                    row |= more | {"step": step, "iteration": iteration}
                if self.lead:
                    for csv, row in zip(self.csvs, rows, strict=True):
                        csv.write(row)
                    self._log(loggers, rows, step)
            if iteration <= s.warmup_iterations:  # much faster than what follows: no measure of the time left
                first, started = iteration, time.monotonic()
            self._show(rows, iteration, iteration - first, updates, time.monotonic() - started)
            if iteration == s.iterations or is_due(step, s.checkpoint_steps):
                checkpoints.save(step, state, self.config)
                saved = iteration
        if saved < iteration:
            checkpoints.save(iteration * s.steps_per_iteration, state, self.config)
        checkpoints.wait()
        self._say_end(iteration)
        return iteration == s.iterations

    def _say_end(self, iteration: int) -> None:
        step, say = iteration * self.schedule.steps_per_iteration, self.progress.say
        if iteration < self.schedule.iterations:
            say(f"stopped at step {step:,}; continue with: python train.py --resume --out {self.run}")
            return
        pictures = f"trajectories_{step}.png" + (f", phi_{step}.png" if self.agent.represent else "")
        for folder, found, random in zip(self.folders, self.found, self.random, strict=True):
            reached = found[self.env.headline]
            beside = f"{reached / max(random, 1):.1f} times a random policy's {random}"
            say(f"finished at step {step:,}: {self.env.headline} {reached} {self.env.unit}, {beside}")
            say(f"pictures in {folder}/plots ({pictures}), numbers in {folder}/metrics.csv")
        say(f"next: python eval.py --ckpt {self.folders[0]} --offset 10 5")

    def _until_due(self, iteration: int) -> int:
        """Iterations until the next evaluation, checkpoint or the end."""
        s = self.schedule
        periods = [every // s.steps_per_iteration for every in (s.eval_steps, s.checkpoint_steps) if every]
        return min([s.iterations - iteration] + [period - iteration % period for period in periods])

    def _episodes(self, state: TrainState, step: int, random: bool) -> list[evaluate.Episodes]:
        """The evaluation episodes of each seed."""
        keys = [evaluate.evaluation_key(seed, step) for seed in self.seeds]
        several = len(keys) > 1
        key = self._everywhere(jax.numpy.stack(keys) if several else keys[0])
        offset, random = (devices.everywhere(self.mesh, x) for x in (np.zeros(2, np.float32), np.bool_(random)))
        found = jax.device_get(self.evaluate(state.agent, key, offset, random))
        of_seed = lambda k: jax.tree.map(lambda leaf: leaf[k], found)
        return [of_seed(k) for k in range(len(keys))] if several else [found]

    def _measure_random(self, state: TrainState) -> list[str]:
        """The random policy's headline, to hold the skills against; returns the names of all that is measured."""
        found = [evaluate.summary(self.env, self.agent, each) for each in self._episodes(state, 0, random=True)]
        self.random = [each[self.env.headline] for each in found]
        values = ", ".join(map(str, self.random))
        episodes = self.config.eval_episodes
        self.progress.say(f"a random policy: {self.env.headline} {values} {self.env.unit} in {episodes} episodes")
        return list(found[0])

    def _evaluate(self, state: TrainState, step: int, loggers: Loggers) -> list[dict[str, Any]]:
        """Coverage of each seed's deterministic skills; trajectories and plots go to its folder."""
        found = self._episodes(state, step, random=False)
        self.found = [evaluate.summary(self.env, self.agent, episodes) for episodes in found]
        if self.lead:
            self._draw(found, step, loggers)
        return [
            measured | {f"random_{self.env.headline}": random}
            for measured, random in zip(self.found, self.random, strict=True)
        ]

    def _draw(self, found: list[evaluate.Episodes], step: int, loggers: Loggers) -> None:
        for folder, measured, episodes in zip(self.folders, self.found, found, strict=True):
            save_episodes(folder / "evaluations" / f"{step}.npz", episodes)
            title = f"{self.config.env}, {step:,} steps: {measured[self.env.headline]} {self.env.unit}"
            for name, path in draw(folder / "plots", str(step), title, self.agent.skills, episodes).items():
                loggers.image(name if folder == self.run else f"{folder.name}/{name}", path, step)

    def _log(self, loggers: Loggers, rows: list[dict[str, Any]], step: int) -> None:
        """Means over the seeds, and each seed's own numbers where there are several."""
        values = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        if len(rows) > 1:
            for folder, row in zip(self.folders, rows, strict=True):
                values |= {f"{folder.name}/{name}": value for name, value in row.items()}
        loggers.log(values, step)

    def _show(self, rows: list[dict[str, Any]], iteration: int, run_now: int, updates: int, elapsed: float) -> None:
        """The progress line; numbers are means over the seeds, coverage is each one's."""
        s = self.schedule
        pace = "warm-up"
        if run_now:
            remaining = duration((s.iterations - iteration) * elapsed / run_now)
            rates = f"{run_now * s.steps_per_iteration / elapsed:,.0f} steps/s {updates / elapsed:,.1f} updates/s"
            pace = f"{rates}{f' x {len(rows)} seeds' if len(rows) > 1 else ''} | left {remaining}"
        mean = {name: np.mean([row[name] for row in rows]) for name in self.agent.shown if name in rows[0]}
        shown = " ".join(f"{name} {value:.3g}" for name, value in mean.items() if value == value)
        self.progress.show(
            f"step {iteration * s.steps_per_iteration:,}/{s.total_steps:,} | {pace} | "
            f"{self.env.headline} {' '.join(str(found[self.env.headline]) for found in self.found) or '-'} | {shown} | "
            f"failed {sum(row['failed_episodes'] for row in rows)}",
            now=iteration == s.iterations or self.env.headline in rows[0],
        )


def is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def save_episodes(path: Path, episodes: evaluate.Episodes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.stem + ".part.npz")
    fields = episodes._asdict()
    fields |= fields.pop("traces", {})
    np.savez_compressed(partial, **{name: value for name, value in fields.items() if value is not None})
    partial.replace(path)


def draw(folder: Path, label: str, title: str, skills: SkillSpace, episodes: evaluate.Episodes) -> dict[str, Path]:
    """The trajectories plot, and the phi plot where the agent has phi."""
    paths = {"trajectories": folder / f"trajectories_{label}.png"}
    colors = skills.colors(episodes.skills)
    plots.trajectories(paths["trajectories"], title, episodes.traces["position"], colors)
    if episodes.latents is not None:
        paths["phi"] = folder / f"phi_{label}.png"
        plots.latents(paths["phi"], title, episodes.latents, colors)
    return paths
