"""The explorer of a downstream task: a trained controller chooses skills towards a goal that the user taps."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from envs.tasks.goals import GoalTask
from genda_mjx.config import UserError
from genda_mjx.downstream.controller import Controller, ControllerConfig
from genda_mjx.explorer.tracing import Program, Untraceable, trace
from genda_mjx.runs import explore
from genda_mjx.runs.stored import Skills

STARTS = 8  # start states of the task that a page offers
WALL_HEIGHT = 0.35  # of the walls that a page draws, as a share of a cell; the simulated ones are higher


def trace_controller(task: GoalTask, controller: Controller, state: Any) -> Program:
    """Observation, position and goal -> the skill z that the controller would hold next."""
    (size,) = task.env.observation_spec.shape

    def control(obs: jax.Array, position: jax.Array, goal: jax.Array) -> jax.Array:
        return controller.skill(controller.act(state, controller.see(obs, position, goal), None))

    try:
        return trace(control, {"obs": (1, size), "position": (1, task.goal_size), "goal": (1, task.goal_size)})
    except Untraceable as error:
        raise UserError(f"--explore cannot show this controller in a browser: {error}") from error


def write(
    path: Path,
    task: GoalTask,
    skills: Skills,
    config: ControllerConfig,
    controller: Controller,
    state: Any,
    played: dict[str, np.ndarray],
) -> Path:
    """Writes the page of a controller. played: its evaluation, `path` [E, T+1, g], `goal` [E, g], `success` [E]."""
    made = explore.draft(task.env, skills, task.maze)._replace(phi=None)
    control = trace_controller(task, controller, state)
    keys = jax.random.split(jax.random.key(0), STARTS)

    def reset(keys: jax.Array) -> Any:
        return jax.vmap(lambda key: task.reset(key, evaluate=True)[0])(keys)

    count, every = len(played["path"]), max(1, played["path"].shape[1] // explore.POINTS)
    tables = explore.starts(reset, keys) | {
        "skills": np.asarray(skills.agent.skills.show(jax.random.key(0), count)),
        "positions": played["path"][:, ::every],
    }
    maze = task.maze
    walls = [wall._asdict() | {"tall": WALL_HEIGHT * maze.side} for wall in maze.walls] if maze else []
    facts = f"Evaluation of {count} episodes: {np.mean(played['success']):.0%} reached their goal."
    goal = {
        "name": task.name,
        "skill_steps": config.skill_steps,
        "radius": task.radius,
        "goal": played["goal"][0].tolist(),
        "walls": walls,
    }
    return explore.write_page(path, made, tables, {"facts": facts, "task": goal}, control=control)
