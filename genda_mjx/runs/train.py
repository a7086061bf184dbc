"""Training as the host sees it: start, dispatch, evaluate, save, report. The learning is in program.py."""

import dataclasses
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np

from envs.base import SkillEnv
from genda_mjx import build as assembly
from genda_mjx import config as configuration
from genda_mjx import devices, evaluate, schedule, sharding
from genda_mjx.build import Built
from genda_mjx.config import Config, UserError
from genda_mjx.evaluate import Episodes
from genda_mjx.runs import processes, start
from genda_mjx.runs.checkpoint import Checkpoints, versions
from genda_mjx.runs.folder import check_folder, seed_folders, without_start, write_text
from genda_mjx.runs.records import Records
from genda_mjx.runs.report import Progress, duration, headline_text, number, rounded
from genda_mjx.runs.signals import StopRequest
from genda_mjx.schedule import Schedule
from genda_mjx.state import TrainState

Summary = dict[str, float]  # of `evaluate.summary`


@dataclasses.dataclass(frozen=True)
class Session:
    """What a run has at hand while it runs."""

    built: Built
    iterate: Any  # compiled: state (donated), n -> state, metrics of n iterations
    evaluate: evaluate.Evaluate  # compiled, of all seeds
    checkpoints: Checkpoints
    progress: Progress
    stop: StopRequest


def train(config: Config, env: SkillEnv | None = None) -> bool:
    """Trains from a config to the last checkpoint; False if a signal stopped it before the last step.

    env: instead of the body that the config names.
    """
    configuration.validate(config)
    processes.start(config)
    start.prepare(config.compile_cache)
    progress = Progress(silent=not processes.is_lead())
    processes.in_lead(lambda: check_folder(config))  # alone: it will write there while the others still look
    assembly.check(config, env)
    with progress.waiting(f"building {config.env}"):
        built = assembly.build(config, env)
    plan, abstract = built.schedule, built.program.abstract
    if found := start.devices_found():
        progress.say(found)
    progress.say(schedule.describe(config, plan, built.agent, abstract, built.mesh.size))
    if processes.is_lead():
        for folder in seed_folders(config, Path(config.out)):
            folder.mkdir(parents=True, exist_ok=True)
        if not config.resume:
            write_config(config)  # first, so that a run killed from here on can be resumed
    processes.wait_for_lead()
    checkpoints = Checkpoints(Path(config.out), config.keep_last, plan.keep_steps)
    with closing(checkpoints):
        state = first_state(built, checkpoints, progress)
        if processes.is_lead():
            write_config(config)
        with StopRequest(progress) as stop, closing(Records(config, Path(config.out), progress)) as records:
            session = compile_session(built, checkpoints, progress, stop)
            return run(session, state, records)


def write_config(config: Config) -> None:
    write_text(Path(config.out) / "config.json", without_start(config).to_json())
    write_text(Path(config.out) / "versions.json", json.dumps(versions(), indent=2))


def first_state(built: Built, checkpoints: Checkpoints, progress: Progress) -> TrainState:
    """The newest checkpoint when resuming (the beginning if there is none yet), else a fresh state."""
    config, newest = built.config, max(checkpoints.steps, default=0)
    if config.resume and newest:
        if newest >= built.schedule.total_steps:
            raise UserError(f"{config.out} is already at step {newest}; raise --total_steps")
        with progress.waiting(f"restoring step {newest:,}"):
            return sharding.in_order(checkpoints.load(None, built.program.abstract), built.program.formats)
    with progress.waiting("initialising networks and replay"):
        keys = keys_everywhere(built, sharding.seed_keys(config))
        return jax.block_until_ready(built.program.init(keys))


def compile_session(built: Built, checkpoints: Checkpoints, progress: Progress, stop: StopRequest) -> Session:
    config, abstract = built.config, built.program.abstract
    with progress.waiting("compiling training"):
        iterate = built.program.run.lower(abstract, np.int32(1)).compile()
    progress.say(schedule.describe_memory(iterate.memory_analysis()))
    with progress.waiting("compiling evaluation"):
        compiled = evaluate.compile(built.env, built.agent, config.eval_episodes, abstract.agent, config.num_seeds)
    return Session(built, iterate, compiled, checkpoints, progress, stop)


def run(session: Session, state: TrainState, records: Records) -> bool:
    """Runs from a state to the last step, or to the iteration in which a signal came; False in that case."""
    built, progress, stop = session.built, session.progress, session.stop
    config, plan, env = built.config, built.schedule, built.env
    iteration = saved = int(state.iteration)
    random = [evaluate.summary(env, built.agent, each) for each in episodes(session, state, 0, random=True)]
    said = "; ".join(headline_text(env, each) for each in random)
    progress.say(f"a random policy: {said} in {config.eval_episodes} episodes")
    records.open(columns(built, random[0]), iteration * plan.steps_per_iteration)
    pace, found = Pace(plan, iteration), []
    while iteration < plan.iterations and not processes.any_of(stop.asked):
        n = min(until_due(plan, iteration), config.iterations_per_dispatch)
        state, metrics = session.iterate(state, devices.everywhere(built.mesh, np.int32(n)))
        rows = rows_of(jax.device_get(metrics), plan, iteration, n, config.num_seeds)
        iteration += n
        step = iteration * plan.steps_per_iteration
        if iteration > plan.warmup_iterations and min(row["valid_episodes"] for row in rows[-1]) == 0:
            raise UserError(f"the physics failed in every episode of {config.env}: nothing to learn from")
        if iteration == plan.iterations or is_due(step, plan.eval_steps):
            played = episodes(session, state, step, random=False)
            found = [evaluate.summary(env, built.agent, each) for each in played]
            records.keep(built, played, found, step)
            for row, measured, beside in zip(rows[-1], found, random, strict=True):
                row |= measured | {f"random_{env.headline}": beside[env.headline]}
        records.write(rows)
        show(session, pace, rows[-1], found, iteration)
        if iteration == plan.iterations or is_due(step, plan.checkpoint_steps):
            session.checkpoints.save(step, state, config)
            saved = iteration
    if saved < iteration:
        session.checkpoints.save(iteration * plan.steps_per_iteration, state, config)
    session.checkpoints.wait()
    say_end(session, iteration, found, random)
    return iteration == plan.iterations


def columns(built: Built, measured: Summary) -> list[str]:
    """The columns of metrics.csv; measured: what an evaluation gives."""
    headline = built.env.headline
    first = ["step", "iteration", "updates", headline, f"random_{headline}", "failed_evaluations"]
    _, metrics = jax.eval_shape(built.program.run, built.program.abstract, np.int32(1))
    return first + [name for name in (*metrics, *measured) if name not in first]


def rows_of(
    metrics: dict[str, np.ndarray], plan: Schedule, iteration: int, n: int, seeds: int
) -> list[list[dict[str, Any]]]:
    """Turns metrics [n_max] or [n_max, S] of the n iterations after `iteration` into one row per iteration and seed."""

    def row(i: int, k: int) -> dict[str, Any]:
        count = iteration + i + 1
        values = {name: column[i].flat[k].item() for name, column in metrics.items()}
        return values | {"step": count * plan.steps_per_iteration, "iteration": count}

    return [[row(i, k) for k in range(seeds)] for i in range(n)]


def until_due(plan: Schedule, iteration: int) -> int:
    """Iterations until the next evaluation, checkpoint or the end."""
    periods = [every // plan.steps_per_iteration for every in (plan.eval_steps, plan.checkpoint_steps) if every]
    return min([plan.iterations - iteration] + [period - iteration % period for period in periods])


def is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def keys_everywhere(built: Built, keys: jax.Array) -> jax.Array:
    """Keys on all devices."""
    return jax.random.wrap_key_data(devices.everywhere(built.mesh, np.asarray(jax.random.key_data(keys))))


def episodes(session: Session, state: TrainState, step: int, random: bool) -> list[Episodes]:
    """The evaluation episodes of each seed: deterministic skills, or a random policy."""
    config, mesh = session.built.config, session.built.mesh
    keys = [evaluate.evaluation_key(config.seed + member, step) for member in range(config.num_seeds)]
    several = len(keys) > 1
    key = keys_everywhere(session.built, jax.numpy.stack(keys) if several else keys[0])
    offset, chance = devices.everywhere(mesh, np.zeros(2, np.float32)), devices.everywhere(mesh, np.bool_(random))
    found = jax.device_get(session.evaluate(state.agent, key, offset, chance))
    if not several:
        return [found]
    return [jax.tree.map(lambda leaf, k=k: leaf[k], found) for k in range(len(keys))]


class Pace:
    """How fast a run goes, measured from the end of the warm-up, which is much faster than what follows."""

    def __init__(self, plan: Schedule, iteration: int):
        self._plan, self._first, self._started = plan, iteration, time.monotonic()

    def text(self, iteration: int, seeds: int) -> str:
        """Rates and the time left; in the warm-up the clock starts anew."""
        plan = self._plan
        if iteration <= plan.warmup_iterations:
            self._first, self._started = iteration, time.monotonic()
            return "warm-up"
        elapsed, done = time.monotonic() - self._started, iteration - self._first
        updates = plan.updates_per_iteration * (iteration - max(self._first, plan.warmup_iterations))
        steps = f"{done * plan.steps_per_iteration / elapsed:,.0f} steps/s {updates / elapsed:,.1f} updates/s"
        together = f" x {seeds} seeds" if seeds > 1 else ""
        return f"{steps}{together} | left {duration((plan.iterations - iteration) * elapsed / done)}"


def show(session: Session, pace: Pace, rows: list[dict[str, Any]], found: list[Summary], iteration: int) -> None:
    """Shows the progress line: metrics as means over the seeds, the last measures for each seed."""
    built, plan = session.built, session.built.schedule
    measured = [built.env.headline, *(["alignment"] if found and "alignment" in found[0] else [])]
    last = [f"{name} {' '.join(number(each[name]) for each in found) or '-'}" for name in measured]
    mean = {name: np.mean([row[name] for row in rows]) for name in built.agent.shown if name in rows[0]}
    shown = " ".join(f"{name} {value:.3g}" for name, value in mean.items() if value == value)
    session.progress.show(
        f"step {iteration * plan.steps_per_iteration:,}/{plan.total_steps:,} | {pace.text(iteration, len(rows))} | "
        f"{' '.join(last)} | {shown} | failed {sum(row['failed_episodes'] for row in rows)}",
        now=iteration == plan.iterations or built.env.headline in rows[0],
    )


def say_end(session: Session, iteration: int, found: list[Summary], random: list[Summary]) -> None:
    built, say = session.built, session.progress.say
    env, config, step = built.env, built.config, iteration * built.schedule.steps_per_iteration
    if iteration < built.schedule.iterations:
        say(f"stopped at step {step:,}; continue with: python train.py --resume --out {config.out}")
        return
    pictures = f"trajectories_{step}.png" + (f", phi_{step}.png" if built.agent.represent else "")
    folders = seed_folders(config, Path(config.out))
    for folder, reached, beside in zip(folders, found, random, strict=True):
        chance = beside[env.headline]
        times = f"{reached[env.headline] / chance:.1f} times a random policy's {number(chance)}" if chance else ""
        say(f"finished at step {step:,}: {headline_text(env, reached)}; {times or 'a random policy reaches 0'}")
        say(f"pictures in {folder}/plots ({pictures}), numbers in {folder}/metrics.csv")
    say(f"next: python eval.py --ckpt {folders[0]}{offset_hint(found[0])}")


def offset_hint(found: Summary) -> str:
    """Suggests a start as far away as the skills go, which differs between a dog and a fish."""
    far = rounded(found.get("mean_distance", 0.0))
    return f" --offset {far:g} {rounded(far / 2):g}" if far else ""
