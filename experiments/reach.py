"""Which goals do skills reach by themselves, without a controller that learns?

    python -m experiments.reach RUN rs_rg
    python -m experiments.reach RUN maze --maze corridors.txt

Every 25 steps the skill is taken that points from the body to its goal, in a maze to the next cell of a shortest way.
Where that is in phi, a linear map says, fitted to the displacements of the run's evaluation. Success by the goal's
direction shows where skills are missing; beside a controller's success it shows what learning to choose is worth.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jax import Array

from envs.tasks.layout import Maze
from experiments.control import displacement_in_phi, table
from genda_mjx.agents.skills import unit
from genda_mjx.config import UserError
from genda_mjx.downstream import controller
from genda_mjx.downstream import program as downstream
from genda_mjx.runs import start
from genda_mjx.runs.report import Progress
from genda_mjx.runs.stored import Skills, load_skills, read_run
from genda_mjx.runs.task import make_task
from genda_mjx.runs.task_files import TaskOptions

SECTORS = 8  # of the goal's direction


@dataclass(frozen=True)
class Options:
    run: Annotated[Path, tyro.conf.Positional]  # folder of a run
    task: Annotated[str, tyro.conf.Positional]  # fs_rg, rs_rg, maze_easy, maze_hard or maze
    maze: Path | None = None  # a text grid for the task maze
    step: int | None = None  # checkpoint; None: the newest
    episodes: int = 288
    skill_steps: int = 25  # environment steps that a skill is held
    seed: int = 0
    compile_cache: str = ".cache/jax"


def aims(maze: Maze | None) -> Callable[[Array, Array], Array]:
    """Positions and goals [N, g] -> the points to go to next."""
    if maze is None:
        return lambda position, goal: goal
    way = jnp.asarray(maze.centre(maze.way()), jnp.float32)

    def next_cell(position: Array, goal: Array) -> Array:
        cell = jnp.clip(jnp.round(position / maze.side).astype(int), 0, jnp.array(maze.free.shape) - 1)
        return way[cell[:, 0], cell[:, 1]]

    return next_cell


def reach(task: downstream.GoalTask, skills: Skills, to_phi: np.ndarray, options: Options) -> downstream.Played:
    """Plays the task's evaluation with the skills that point to the goal."""
    config = replace(controller.ControllerConfig(), eval_episodes=options.episodes, skill_steps=options.skill_steps)
    plan, aim = downstream.schedule(config, task.horizon), aims(task.maze)

    def choose(mark: downstream.Mark, goal: Array, _: Array) -> Array:
        return unit((aim(mark.position, goal) - mark.position) @ jnp.asarray(to_phi, jnp.float32))

    @jax.jit
    def play(state, key: Array) -> downstream.Played:
        with jax.default_matmul_precision("highest"):
            episodes, path, failed = downstream.play(
                task, skills.agent, state, lambda z: z, choose, key, config, plan, evaluate=True
            )
        return downstream.Played(path, episodes.goal, episodes.success, failed)

    return jax.device_get(play(skills.state, jax.random.key(options.seed)))


def describe(played: downstream.Played, skill_steps: int) -> str:
    """Success in all and by the direction of the goal, with how far the first skill went."""
    towards = (played.goal - played.path[:, 0])[:, :2]
    sector = np.floor(np.arctan2(towards[:, 1], towards[:, 0]) / (2 * np.pi / SECTORS)).astype(int) % SECTORS
    first = np.linalg.norm(played.path[:, skill_steps] - played.path[:, 0], axis=-1)
    rows = [["goals"], ["success"], ["metres of the first skill"]]
    for k in range(SECTORS):
        mine = sector == k
        rows[0].append(int(mine.sum()))
        rows[1].append(f"{played.success[mine].mean():.2f}" if mine.any() else "")
        rows[2].append(f"{first[mine].mean():.2f}" if mine.any() else "")
    width = 360 // SECTORS
    header = ["direction of the goal, degrees", *(f"{width * k}-{width * (k + 1)}" for k in range(SECTORS))]
    return f"success {played.success.mean():.3f} in {len(played.success)} episodes\n\n{table(header, rows)}"


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    run = read_run(options.run)
    start.prepare(options.compile_cache)
    task = make_task(run, TaskOptions(task=options.task, maze=options.maze))
    skills = load_skills(options.run, options.step, task.env, Progress())
    if skills.agent.represent is None or skills.agent.skills.is_list:
        raise UserError(f"{options.run}: skills must be directions in phi to point to a goal; {run.algo}'s are not")
    stored = options.run / "evaluations" / f"{skills.step}.npz"
    if not stored.exists():
        raise UserError(f"no evaluation at step {skills.step:,} in {options.run}: choose another with --step")
    with np.load(stored) as evaluation:
        to_phi = displacement_in_phi(evaluation["position"].astype(float), evaluation["latents"].astype(float))
    print(describe(reach(task, skills, to_phi, options), options.skill_steps))


if __name__ == "__main__":
    start.main(main)
