"""The host side of training: folders, dispatch, evaluation, checkpoints, signals. The learning is in program.py."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from genda_mjx import agents, checkpoint, devices, evaluate, plots, processes, program, schedule
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

    def __init__(self, config: Config):
        configuration.validate(config)
        processes.start(config)
        check_jax()
        keep_compilations(config.compile_cache)
        self.lead = processes.is_lead()
        self.config, self.progress = config, Progress(silent=not self.lead)
        self.run = Path(config.out)
        self._check_folder()
        self.mesh = devices.make_mesh(config.num_devices)
        with self.progress.waiting(f"building {config.env}"):
            self.env = make_env(config.env)
        self.schedule = schedule.derive(config, self.env.episode_length, self.mesh.size)
        self.agent = agents.make(config, agents.Sizes(self.env.observation_size, self.env.action_size))
        self.program = program.make(config, self.schedule, self.env, self.agent, self.mesh)
        self.abstract = self.program.abstract
        self.progress.say(schedule.describe(config, self.schedule, self.abstract, self.mesh.size))
        self.seeds = [config.seed + member for member in range(config.num_seeds)]
        self.folders = [configuration.seed_folder(config, self.run, member) for member in range(config.num_seeds)]
        self.coverage: list[int] = []  # of each seed, at the last evaluation
        self.random_coverage: list[int] = []

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
            self._open_csvs(columns, checkpoints.steps[-1])
            return state
        self._open_csvs(columns)
        with self.progress.waiting("initialising networks and replay"):
            keys = self._everywhere(program.seed_keys(self.config))
            return jax.block_until_ready(self.program.init(keys))

    def _open_csvs(self, columns: list[str], last_step: int | None = None) -> None:
        if self.lead:
            self.csvs = [MetricsCsv(folder / "metrics.csv", columns, last_step) for folder in self.folders]

    def _everywhere(self, keys: jax.Array) -> jax.Array:
        """Keys on all devices."""
        return jax.random.wrap_key_data(devices.everywhere(self.mesh, np.asarray(jax.random.key_data(keys))))

    def _loop(
        self, state: program.TrainState, compiled: Any, checkpoints: checkpoint.Checkpoints, loggers: Loggers,
        stop: StopRequest,
    ) -> bool:  # fmt: skip
        s = self.schedule
        iteration = first = int(state.iteration)
        seeds = len(self.seeds)
        self._measure_random(state)
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
        for folder, coverage, random in zip(self.folders, self.coverage, self.random_coverage, strict=True):
            beside = f"{coverage / max(random, 1):.1f} times a random policy's {random}"
            say(f"finished at step {step:,}: the skills cover {coverage} bins, {beside}")
            say(f"pictures in {folder}/plots ({pictures}), numbers in {folder}/metrics.csv")
        say(f"next: python eval.py --ckpt {self.folders[0]} --offset 10 5")

    def _until_due(self, iteration: int) -> int:
        """Iterations until the next evaluation, checkpoint or the end."""
        s = self.schedule
        periods = [every // s.steps_per_iteration for every in (s.eval_steps, s.checkpoint_steps) if every]
        return min([s.iterations - iteration] + [period - iteration % period for period in periods])

    def _episodes(self, state: program.TrainState, step: int, random: bool) -> list[evaluate.Episodes]:
        """The evaluation episodes of each seed."""
        keys = [evaluate.evaluation_key(seed, step) for seed in self.seeds]
        several = len(keys) > 1
        key = self._everywhere(jax.numpy.stack(keys) if several else keys[0])
        offset, random = (devices.everywhere(self.mesh, x) for x in (np.zeros(2, np.float32), np.bool_(random)))
        found = jax.device_get(self.evaluate(state.agent, key, offset, random))
        of_seed = lambda k: jax.tree.map(lambda leaf: leaf[k], found)
        return [of_seed(k) for k in range(len(keys))] if several else [found]

    def _measure_random(self, state: program.TrainState) -> None:
        """The random policy's coverage, to hold the skills against."""
        episodes = self._episodes(state, 0, random=True)
        self.random_coverage = [evaluate.coverage(each.positions, self.env.bin_size) for each in episodes]
        found = ", ".join(map(str, self.random_coverage))
        self.progress.say(f"a random policy covers {found} bins in {self.config.eval_episodes} episodes")

    def _evaluate(self, state: program.TrainState, step: int, loggers: Loggers) -> list[dict[str, Any]]:
        """Coverage of each seed's deterministic skills; trajectories and plots go to its folder."""
        found = self._episodes(state, step, random=False)
        self.coverage = [evaluate.coverage(episodes.positions, self.env.bin_size) for episodes in found]
        if self.lead:
            self._draw(found, step, loggers)
        return [
            {"coverage": coverage, "random_coverage": random, "failed_evaluations": int((~episodes.valid).sum())}
            for coverage, random, episodes in zip(self.coverage, self.random_coverage, found, strict=True)
        ]

    def _draw(self, found: list[evaluate.Episodes], step: int, loggers: Loggers) -> None:
        for folder, coverage, episodes in zip(self.folders, self.coverage, found, strict=True):
            save_episodes(folder / "evaluations" / f"{step}.npz", episodes)
            title = f"{self.config.env}, {step:,} steps: {coverage} bins"
            for name, path in draw(folder / "plots", str(step), title, episodes).items():
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
        mean = {name: np.mean([row[name] for row in rows]) for name in SHOWN if name in rows[0]}
        shown = " ".join(f"{name} {value:.3g}" for name, value in mean.items() if value == value)
        self.progress.show(
            f"step {iteration * s.steps_per_iteration:,}/{s.total_steps:,} | {pace} | "
            f"coverage {' '.join(map(str, self.coverage)) or '-'} | {shown} | "
            f"failed {sum(row['failed_episodes'] for row in rows)}",
            now=iteration == s.iterations or "coverage" in rows[0],
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
