"""Pixels: a body seen through its camera. A wrapper around any body; the picture is drawn on the device.

An agent sees the last three frames, stacked on channels and the oldest first, and nothing else: uint8 [S, S, 9]. A
reset repeats its first frame. The replay keeps single frames (`SkillEnv.stored`) and stacks them when it is sampled.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from brax.envs.base import State

from envs import render
from envs.base import SkillEnv
from envs.body import Body
from envs.tasks.goals import GoalTask, Law

Array = jax.Array
FRAMES = 3  # in an observation


class Pixels(SkillEnv):
    """A body whose observation is what its camera sees; all else (physics, traces, measures) is the body's own.

    The body's own state rides along whole in `State.pipeline_state`.
    """

    history = FRAMES

    def __init__(self, body: Body, size: int = 64, floor: str = "paper"):
        """size: side of the picture, pixels. floor: one of `envs.render.FLOORS`."""
        self.body, self.size, self.floor = body, size, floor
        self.name, self.episode_length = body.name, body.episode_length
        self.position_size, self.bin_size = body.position_size, body.bin_size
        self.headline, self.unit = body.headline, body.unit
        self.scene = render.scene_of(body, (size, size), floor=floor)

    @property
    def observation_spec(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.size, self.size, 3 * FRAMES), jnp.uint8)

    @property
    def observation_size(self) -> tuple[int, ...]:
        return self.observation_spec.shape

    @property
    def action_size(self) -> int:
        return self.body.action_size

    @property
    def backend(self) -> str:
        return self.body.backend

    @property
    def dt(self) -> float:
        return self.body.dt

    def reset(self, rng: Array) -> State:
        return self.film(self.body.reset(rng))

    def reset_at(self, rng: Array, xy: Array) -> State:
        return self.film(self.body.reset_at(rng, xy))

    def step(self, state: State, action: Array) -> State:
        after = self.body.step(state.pipeline_state, action)
        past = state.obs[..., 3:]
        return self._state(after, jnp.concatenate([past, self.frame(after)], -1))

    def film(self, start: State) -> State:
        """A start state of the body, seen through its camera."""
        return self._state(start, jnp.tile(self.frame(start), FRAMES))

    def frame(self, state: State) -> Array:
        """uint8 [S, S, 3] of a state of the body."""
        with jax.named_scope("render"):
            poses = render.poses(self.body, state.pipeline_state.physics.qpos)
            return render.draw(self.scene, *poses)

    def trace(self, state: State) -> dict[str, Array]:
        return self.body.trace(state.pipeline_state)

    def measure(self, traces: dict[str, np.ndarray]) -> dict[str, float]:
        return self.body.measure(traces)

    def _state(self, body: State, obs: Array) -> State:
        return State(
            pipeline_state=body,
            obs=obs,
            reward=body.reward,
            done=body.done,
            metrics={},
            info={name: body.info[name] for name in ("position", "failed")},
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Filmed:
    """The starts and goals of a body's task, seen through its camera."""

    law: Law

    def reset(self, env: Pixels, rng: Array, evaluate: bool) -> tuple[State, Array]:
        start, goal = self.law.reset(env.body, rng, evaluate)
        return env.film(start), goal


def filmed(task: GoalTask, size: int = 64, floor: str = "paper") -> GoalTask:
    """The same task for skills that see pixels; the goal stays a position."""
    return dataclasses.replace(task, env=Pixels(task.env, size, floor), law=Filmed(task.law))
