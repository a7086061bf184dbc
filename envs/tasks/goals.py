"""Downstream tasks: a body, a start and a goal to reach within a radius and a horizon. docs/downstream.md lists them.

Where the paper and its published code differ, the paper is the default and the code's number is a keyword of `make`.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from brax.envs.base import State

import envs
from envs.body import Body
from envs.tasks import collision
from envs.tasks import layout as mazes
from envs.tasks.layout import Maze

Array = jax.Array
RANGE = 3.5  # m, half side of the square of starts and goals (paper, state observations; 5 for pixels)
SEPARATION = 3.0  # m, least distance from start to goal (paper; its code has 4.0 in mazes, not scaled)
TRIES = 64  # pairs drawn for one separated pair
MOST_APART = 0.6  # largest separation, as a share of the square's side
START_STATES = 512  # states of the bank that are tried as starts in a maze


class Kind(NamedTuple):
    """A task, whatever the body."""

    options: frozenset[str]  # keywords of `make` that mean something in it
    horizon: int | None = None  # agent steps; None: the body's own on the open floor
    layout: str | None = None  # the maze's text; None: the open floor, or a file


KINDS: dict[str, Kind] = {
    "fs_rg": Kind(frozenset({"goal_range", "center"})),
    "rs_rg": Kind(frozenset({"goal_range", "separation", "center"})),
    "maze_easy": Kind(frozenset({"separation"}), 400, mazes.EASY),
    "maze_hard": Kind(frozenset({"separation"}), 500, mazes.HARD),
    "maze": Kind(frozenset({"maze_file", "separation"}), 500),
}
FROM_FILE = "maze"  # the task whose layout is a file
TASKS = tuple(name for name in KINDS if name != FROM_FILE)  # the paper's


class Law(Protocol):
    """Where an episode starts and what it has to reach."""

    def reset(self, env: Body, rng: Array, evaluate: bool) -> tuple[State, Array]:
        """A start state and its goal [g]."""


@dataclasses.dataclass(frozen=True, eq=False)
class GoalTask:
    """A body with goals. Observation and normaliser are those of pre-training; the goal comes beside them."""

    env: Body  # inside the maze, if there is one
    name: str
    horizon: int  # agent steps per episode
    radius: float  # m, success within this distance of the goal
    goal_size: int  # 2 (xy); fish 3 (xyz)
    maze: Maze | None  # its walls, start and goal in metres, for drawing
    law: Law

    def reset(self, rng: Array, evaluate: bool = False) -> tuple[State, Array]:
        """A start state and its goal [goal_size], m, world; `evaluate` chooses the evaluation's law."""
        return self.law.reset(self.env, rng, evaluate)


def place(env: Body, index: Array, xy: Array) -> State:
    """The bank's start state `index` with its root exactly at xy [2]."""
    return env.start_from(index, xy - jnp.asarray(env.bank.qpos)[index, :2])


@dataclasses.dataclass(frozen=True)
class FixedStart:
    """(FS, RG): starts of pre-training at the centre, goals uniform in a square about it."""

    half: float  # m, half side of the square
    center: tuple[float, float] = (0.0, 0.0)  # m

    def reset(self, env: Body, rng: Array, evaluate: bool) -> tuple[State, Array]:
        pose, place = jax.random.split(rng)
        center = jnp.asarray(self.center)
        return env.reset_at(pose, center), center + jax.random.uniform(place, (2,), minval=-self.half, maxval=self.half)


@dataclasses.dataclass(frozen=True)
class RandomStart:
    """(RS, RG): start and goal uniform in a square about the centre, given that they are apart."""

    half: float  # m, half side of the square
    separation: float  # m, least distance
    center: tuple[float, float] = (0.0, 0.0)  # m

    def reset(self, env: Body, rng: Array, evaluate: bool) -> tuple[State, Array]:
        pose, pair = jax.random.split(rng)
        start, goal = self.pair(pair)
        return place(env, jax.random.randint(pose, (), 0, len(env.bank.qpos)), start), goal

    def pair(self, rng: Array) -> tuple[Array, Array]:
        """Start and goal [2] each: the first of TRIES uniform pairs that is far enough apart.

        At MOST_APART of the side 62 % of the pairs are too near (38 % at the paper's 3 of 7 m), so all TRIES are too
        near less often than once in 10^13 resets; opposite corners of the square then stand in.
        """
        pairs = jax.random.uniform(rng, (TRIES, 2, 2), minval=-self.half, maxval=self.half)
        apart = jnp.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=-1) >= self.separation
        corner = jnp.full(2, self.half)
        pair = jnp.where(apart.any(), pairs[jnp.argmax(apart)], jnp.stack([-corner, corner]))
        start, goal = pair + jnp.asarray(self.center)
        return start, goal


@dataclasses.dataclass(frozen=True)
class Ahead:
    """The fish: starts of pre-training, in any orientation, and a goal along its +y axis, towards the mouth."""

    distance: float  # m
    center: tuple[float, float] = (0.0, 0.0)  # m, of the starts

    def reset(self, env: Body, rng: Array, evaluate: bool) -> tuple[State, Array]:
        state = env.reset_at(rng, jnp.asarray(self.center))
        return state, state.info["position"] + self.distance * forward(state.pipeline_state.physics.qpos[3:7])


def forward(quat: Array) -> Array:
    """World direction [3] of the body's y axis for the root's orientation quat [4]."""
    w, x, y, z = quat
    return jnp.stack([2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)])


@dataclasses.dataclass(frozen=True, eq=False)
class InMaze:
    """Training: start and goal are centres of free cells, uniform over the pairs that are apart and connected, in a
    uniform one of the start states that touch no wall there. Evaluation: the maze's own start and goal."""

    centres: np.ndarray  # [c, 2] m, of the cells
    pairs: np.ndarray  # [p, 2] start and goal cell
    states: np.ndarray  # [c, k] bank indices that fit into a cell; the first `fitting` of a row count
    fitting: np.ndarray  # [c]
    start: np.ndarray  # [2] m
    goal: np.ndarray  # [2] m
    start_states: np.ndarray  # [k] bank indices that fit at the start

    @classmethod
    def of(cls, env: Body, maze: Maze, separation: float) -> "InMaze":
        cells = maze.reachable()
        centres = maze.centre(cells)
        roots = env.bank.qpos[:START_STATES, :2]
        fits = collision.clear_starts(env.model, env.bank.qpos[:START_STATES], centres[:, None] - roots)  # [c, k]
        at_start = collision.clear_starts(env.model, env.bank.qpos[:START_STATES], maze.start_xy + 0 * roots[None])[0]
        if not at_start.any():
            raise ValueError(f"{env.name} does not fit at the start of the maze, cell {maze.start}: it touches a wall")
        distance = np.linalg.norm(centres[:, None] - centres, axis=-1)
        pairs = np.argwhere((distance >= separation - 1e-6) & fits.any(1)[:, None])
        if len(pairs) == 0:
            raise ValueError(f"no two connected free cells of the maze are {separation} m apart: lower the separation")
        states = np.argsort(~fits, axis=1, kind="stable")
        return cls(centres, pairs, states, fits.sum(1), maze.start_xy, maze.goal_xy, np.flatnonzero(at_start))

    def reset(self, env: Body, rng: Array, evaluate: bool) -> tuple[State, Array]:
        which, pose = jax.random.split(rng)
        if evaluate:
            index = jax.random.choice(pose, jnp.asarray(self.start_states))
            return env.start_from(index, jnp.asarray(self.start, jnp.float32)), jnp.asarray(self.goal, jnp.float32)
        centres = jnp.asarray(self.centres, jnp.float32)
        start, goal = jnp.asarray(self.pairs)[jax.random.randint(which, (), 0, len(self.pairs))]
        state = jnp.asarray(self.states)[start, jax.random.randint(pose, (), 0, jnp.asarray(self.fitting)[start])]
        return place(env, state, centres[start]), centres[goal]


def tasks_of(body: str) -> tuple[str, ...]:
    """The tasks that a body has."""
    return tuple(name for name in KINDS if name in envs.body_class(body).tasks)


def make(
    body: str,
    task: str,
    *,
    maze_file: Path | None = None,
    separation: float | None = None,
    goal_range: float | None = None,
    center: tuple[float, float] | None = None,
    radius: float | None = None,
    horizon: int | None = None,
    orientation: bool = False,
    standing: bool = False,
) -> GoalTask:
    """A body's task. None takes the paper's value, whose lengths grow with the body's `task_scale`.

    maze_file: layout of task "maze", see `envs.tasks.layout`. separation: m, least start-goal distance (paper 3; code
    4.0 in mazes, not scaled). goal_range: m, half side of the open floor's square (paper 3.5; 5 for pixels). center: m,
    where start and goals of the open floor lie. radius: m, a goal is reached within. horizon: agent steps. orientation,
    standing: as in `Body`, for skills that were trained with them.
    """
    if task not in tasks_of(body):
        raise ValueError(f"{body} has no task {task!r}: choose one of {', '.join(tasks_of(body))}")
    of_body = envs.body_class(body)
    _refuse_unused(of_body, task, maze_file=maze_file, separation=separation, goal_range=goal_range, center=center)
    scale = of_body.task_scale
    maze = _layout(task, maze_file, scale)
    walls = {} if maze is None else {"maze": maze, "offset": tuple(maze.start_xy)}
    env = envs.make(body, orientation=orientation, standing=standing, **walls)
    return GoalTask(
        env=env,
        name=task,
        horizon=_positive("horizon", horizon, horizon_of(body, task)),
        radius=_positive("radius", radius, of_body.goal_radius if maze is None else of_body.maze_goal_radius),
        goal_size=env.position_size,
        maze=maze,
        law=_law(
            env,
            task,
            maze,
            half=_positive("goal_range", goal_range, RANGE * scale),
            separation=_positive("separation", separation, SEPARATION * scale),
            center=center or (0.0, 0.0),
        ),
    )


def _refuse_unused(body: type[Body], task: str, **flags: object) -> None:
    known = {"center"} if body.goal_ahead else KINDS[task].options
    unused = [name for name, value in flags.items() if value is not None and name not in known]
    if unused:
        raise ValueError(f"{', '.join(unused)} means nothing in task {task} of {body.name}")


def _layout(task: str, maze_file: Path | None, side: float) -> Maze | None:
    if KINDS[task].layout is not None:
        return mazes.parse(KINDS[task].layout, side, task)
    if task != FROM_FILE:
        return None
    if maze_file is None:
        built_in = ", ".join(name for name, kind in KINDS.items() if kind.layout is not None)
        raise ValueError(f"task {FROM_FILE!r} needs a maze file; the built-in mazes are {built_in}")
    return mazes.read(Path(maze_file), side)


def horizon_of(body: str, task: str) -> int:
    """Agent steps of an episode, as in the paper."""
    return KINDS[task].horizon or envs.body_class(body).floor_horizon


def _law(env: Body, task: str, maze: Maze | None, half: float, separation: float, center: tuple[float, float]) -> Law:
    if env.goal_ahead:
        return Ahead(env.goal_ahead, center)
    if maze is not None:
        return InMaze.of(env, maze, separation)
    if task == "fs_rg":
        return FixedStart(half, center)
    if separation > MOST_APART * 2 * half:
        raise ValueError(f"separation {separation} m is above {MOST_APART} of the side of the square, {2 * half} m")
    return RandomStart(half, separation, center)


def _positive(name: str, given: float | None, default: float) -> float:
    value = default if given is None else given
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return value
