"""Downstream tasks: a body, a start and a goal to reach. Which starts and goals, for how long, how near is near enough.

Where the paper and its published code differ, the paper is the default and the code's number is a keyword of `make`.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
from brax.envs.base import State

import envs
from envs.base import SkillEnv

Array = jax.Array
TASKS = ("fs_rg", "rs_rg")
BODY_TASKS = {"fish": ("fs_rg",)}  # all other bodies have every task
SCALE = {"quadruped": 1.5}  # lengths of its tasks, for its larger body; others 1
RANGE = 3.5  # m, half side of the square of starts and goals (paper, state observations; 5 for pixels)
SEPARATION = 3.0  # m, least distance from start to goal (paper; its code has 4.0 in mazes, not scaled)
RADIUS = 1.5  # m, a goal is reached within this distance (code; the paper gives none)
FISH_AHEAD = 0.5  # m, from the fish to its goal
FISH_RADIUS = 0.1  # m; no source: the general 1.5 would hold at once
HORIZON = {"fs_rg": 200, "rs_rg": 200}  # agent steps
DOG_HORIZON = 400  # agent steps of the dog's open-floor tasks (paper; its script has 200)
TRIES = 64  # pairs drawn for one separated pair
MOST_APART = 0.6  # of the square's side: largest separation


class Law(Protocol):
    """Where an episode starts and what it has to reach."""

    def reset(self, env: SkillEnv, rng: Array, evaluate: bool) -> tuple[State, Array]:
        """A start state and its goal [g]."""


@dataclasses.dataclass(frozen=True, eq=False)
class GoalTask:
    """A body with goals. Observation and normaliser are those of pre-training; the goal comes beside them."""

    env: SkillEnv  # inside the maze, if there is one
    name: str
    horizon: int  # agent steps an episode
    radius: float  # m, success within this distance of the goal
    goal_size: int  # 2 (xy); fish 3 (xyz)
    law: Law
    maze: None = None

    def reset(self, rng: Array, evaluate: bool = False) -> tuple[State, Array]:
        """A start state and its goal [goal_size], m, world; `evaluate` chooses the evaluation's law."""
        return self.law.reset(self.env, rng, evaluate)


@dataclasses.dataclass(frozen=True)
class OpenFloor:
    """Goals uniform in a square about the origin; starts at the origin, or uniform in the square and apart."""

    half: float  # m, half side of the square
    separation: float | None  # m, least start-goal distance of random starts; None: start at the origin

    def reset(self, env: SkillEnv, rng: Array, evaluate: bool) -> tuple[State, Array]:
        pair, pose = jax.random.split(rng)
        start, goal = self.origin_pair(pair) if self.separation is None else self.separated_pair(pair)
        return env.reset_at(pose, start), goal

    def origin_pair(self, rng: Array) -> tuple[Array, Array]:
        """The origin, and a goal [2]."""
        return jnp.zeros(2), jax.random.uniform(rng, (2,), minval=-self.half, maxval=self.half)

    def separated_pair(self, rng: Array) -> tuple[Array, Array]:
        """Start and goal [2] each: the first of TRIES uniform pairs that is far enough apart.

        At MOST_APART of the side 62 % of the pairs are too near (38 % at the paper's 3 of 7 m), so that all TRIES are
        less often than once in 10^13 resets; opposite corners of the square then stand in.
        """
        pairs = jax.random.uniform(rng, (TRIES, 2, 2), minval=-self.half, maxval=self.half)
        apart = jnp.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=-1) >= self.separation
        corner = jnp.full(2, self.half)
        start, goal = jnp.where(apart.any(), pairs[jnp.argmax(apart)], jnp.stack([-corner, corner]))
        return start, goal


@dataclasses.dataclass(frozen=True)
class Ahead:
    """Start at the origin in any orientation, goal straight ahead: along the fish's +y axis, towards its mouth."""

    distance: float  # m

    def reset(self, env: SkillEnv, rng: Array, evaluate: bool) -> tuple[State, Array]:
        state = env.reset_at(rng, jnp.zeros(2))
        return state, state.info["position"] + self.distance * forward(state.pipeline_state.physics.qpos[3:7])


def forward(quat: Array) -> Array:
    """World direction [3] of the body's y axis for the root's orientation quat [4]."""
    w, x, y, z = quat
    return jnp.stack([2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)])


def make(
    body: str,
    task: str,
    *,
    separation: float | None = None,
    goal_range: float | None = None,
    radius: float | None = None,
    horizon: int | None = None,
) -> GoalTask:
    """A body's task. None takes the paper's value, which grows with the body's scale (quadruped 1.5).

    separation: m, least start-goal distance (paper 3; code 4.0 in mazes, not scaled). goal_range: m, half side of the
    open floor's square (paper 3.5; 5 for pixels). radius: m, a goal is reached within (code 1.5, quadruped maze 3.0).
    horizon: agent steps (dog on the open floor: paper 400, code 200).
    """
    if task not in tasks_of(body):
        raise ValueError(f"{body} has no task {task!r}: choose one of {', '.join(tasks_of(body))}")
    fish = body == "fish"
    return GoalTask(
        env=envs.make(body),
        name=task,
        horizon=_positive("horizon", horizon, DOG_HORIZON if body == "dog" else HORIZON[task]),
        radius=_positive("radius", radius, FISH_RADIUS if fish else RADIUS),
        goal_size=3 if fish else 2,
        law=_law(body, task, separation=separation, goal_range=goal_range),
    )


def tasks_of(body: str) -> tuple[str, ...]:
    """The tasks that a body has."""
    envs.body_class(body)
    return BODY_TASKS.get(body, TASKS)


def _law(body: str, task: str, **flags: float | None) -> Law:
    scale = SCALE.get(body, 1.0)
    if body == "fish":
        _refuse_unused(flags, body, task, ())
        return Ahead(FISH_AHEAD)
    half = _positive("goal_range", flags["goal_range"], RANGE * scale)
    if task == "fs_rg":
        _refuse_unused(flags, body, task, ("goal_range",))
        return OpenFloor(half, None)
    separation = _positive("separation", flags["separation"], SEPARATION * scale)
    if separation > MOST_APART * 2 * half:
        raise ValueError(f"separation {separation} m is above {MOST_APART} of the side of the square, {2 * half} m")
    return OpenFloor(half, separation)


def _refuse_unused(flags: dict[str, float | None], body: str, task: str, used: tuple[str, ...]) -> None:
    unused = [name for name, value in flags.items() if value is not None and name not in used]
    if unused:
        raise ValueError(f"{', '.join(unused)} means nothing in task {task} of {body}")


def _positive(name: str, given: float | None, default: float) -> float:
    value = default if given is None else given
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return value
