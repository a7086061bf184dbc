"""Look at the skills of a run: python eval.py --ckpt runs/dog. Prints one JSON object on the last line."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated, Literal

# XLA prints a page of harmless CPU tuning flags for every program that it loads from the compilation cache.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tyro

from genda_mjx.config import UserError
from genda_mjx.downstream.controller import PRESETS, ControllerConfig, matching_preset
from genda_mjx.runs import start
from genda_mjx.runs.evaluate import evaluate
from genda_mjx.runs.stored import read_run
from genda_mjx.runs.task import run_task
from genda_mjx.runs.task_files import TaskOptions
from genda_mjx.runs.video import VideoOptions, show


@dataclasses.dataclass(frozen=True)
class Options:
    """What the skills in a checkpoint do, in numbers and plots of their trajectories and of phi; or, with --task, what
    a controller that is trained over the frozen skills achieves."""

    ckpt: Path  # run folder
    step: int | None = None  # checkpoint to look at; the newest if not given
    seed: int = 0  # seeds skills and starts; with --task the first of the seeds
    compile_cache: str = ".cache/jax"  # folder of compiled programs; empty turns it off
    explore: bool = False  # also write a page in which the skills, or with --task the controller, run live

    # Skills
    episodes: int = 48  # deterministic episodes, one random skill each
    floor: Literal["paper", "unicolor", "gradation"] | None = None  # colours of the floor, for a run with --pixels
    start: Literal["paper", "standing"] | None = None  # how bodies start, if not as in the run
    offset: tuple[float, float] | None = None  # also start every episode shifted by X Y metres, with the same skills
    offsets: tuple[float, ...] = ()  # distances in metres: the same in eight directions each, as a table

    # Pictures
    film: Annotated[VideoOptions, tyro.conf.OmitArgPrefixes] = dataclasses.field(default_factory=VideoOptions)

    # Downstream task
    goal: Annotated[TaskOptions, tyro.conf.OmitArgPrefixes] = dataclasses.field(default_factory=TaskOptions)
    seeds: int = 4  # controllers to train, one after another
    controller_preset: Literal["paper", "small"] | None = None  # None: small for a run made with --preset small
    controller: ControllerConfig = dataclasses.field(default_factory=ControllerConfig)


def parse(arguments: list[str] | None = None) -> Options:
    """Parsed twice, as for training: the first pass finds the preset, the second lets every flag win over it."""
    flags = Annotated[Options, tyro.conf.FlagCreatePairsOff]
    first = tyro.cli(flags, args=arguments)
    if first.film.video and (first.goal.task or first.explore or first.offset or first.offsets or first.start):
        raise UserError(
            "--video shows an evaluation that is recorded: give --explore, --start, --offset or --task without it"
        )
    if first.goal.task is None:
        given = [field.name for field in dataclasses.fields(TaskOptions) if getattr(first.goal, field.name) is not None]
        if given:
            raise UserError(f"--{given[0]} belongs to a task; choose one with --task")
        return first
    if first.offset is not None or first.offsets:
        raise UserError("--offset and --offsets move the starts of skills; move a task with --goal_center X Y")
    if first.start is not None:
        raise UserError("--start shows skills from another start; a task keeps the start of the run")
    if first.floor is not None:
        raise UserError("--floor shows skills on another floor; a task keeps the floor of the run")
    preset = first.controller_preset or matching_preset(read_run(first.ckpt).preset)
    # Switched off again: tyro would rename a switch that is already on.
    start = dataclasses.replace(first, controller_preset=preset, controller=PRESETS[preset], explore=False)
    return tyro.cli(flags, args=arguments, default=start)


def main() -> None:
    options = parse()
    folder, step, cache = options.ckpt, options.step, options.compile_cache
    if options.film.video:
        result = show(folder, step, options.film, cache)
    elif options.goal.task is None:
        skills = (options.episodes, options.seed, options.offset, options.offsets, cache)
        result = evaluate(folder, step, *skills, explore=options.explore, floor=options.floor, starts=options.start)
    else:
        seeds = range(options.seed, options.seed + options.seeds)
        result = run_task(folder, step, options.goal, options.controller, seeds, cache, explore=options.explore)
    print(json.dumps(result))


if __name__ == "__main__":
    start.main(main, flag="--ckpt")
