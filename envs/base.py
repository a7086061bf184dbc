"""SkillEnv: the contract between an environment without reward and whatever trains on it. Bodies are in `envs.body`."""

import abc
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from brax.envs.base import Env, State

from envs import measures

Array = jax.Array
Observation = Any  # a pytree of arrays, described by `SkillEnv.observation_spec`


class SkillEnv(Env):
    """One copy of an environment; `jax.vmap` makes it many. Implements `brax.envs.base.Env`.

    `State.obs` is what an agent sees, `State.info["position"]` where the copy is (m), and `State.info["failed"]` tells
    that its physics went non-finite, after which it stays as it was. Rewards and dones are zero: episodes have
    `episode_length` steps and never end early.
    """

    name: str  # as in `envs.make`
    episode_length = 200  # agent steps
    position_size = 2  # coverage is counted in xy; the fish's in xyz
    withheld = 0  # last entries of a vector observation that are for the policy only: no representation sees them
    bin_size = 1.0  # m, side of a coverage bin
    movable = True  # starts can be moved over the floor: `reset_at`
    moved_starts: tuple[float, ...] = (3.0, 10.0)  # m, distances of moved starts that skills are tested from
    history = 1  # rows of the replay that make an observation; more where frames are stacked
    headline, unit = "coverage", "bins"  # the measure that progress, plots and tables lead with, and what it counts

    @property
    @abc.abstractmethod
    def observation_spec(self) -> Any:
        """Shapes and dtypes (a pytree of jax.ShapeDtypeStruct) of one observation, as an agent sees it."""

    @property
    def observation_size(self) -> int:
        """Brax's word for an observation that is one vector."""
        return self.observation_spec.shape[0]

    @abc.abstractmethod
    def reset(self, rng: Array) -> State:
        """A start state."""

    @abc.abstractmethod
    def reset_at(self, rng: Array, xy: Array) -> State:
        """A start state moved by xy [2], m."""

    @abc.abstractmethod
    def step(self, state: State, action: Array) -> State:
        """One agent step with an action [A] in [-1, 1]."""

    @property
    def turned(self) -> Callable[[Observation, Array], Observation] | None:
        """(observations [B, ...], angles [B], rad) -> what would be observed had the whole episode, its start included,
        been turned about the vertical through the origin. None where the world is not the same in all directions, or
        an observation does not say enough.
        """
        return None

    def stored(self, state: State) -> Observation:
        """What the replay keeps of a state: its observation, of which only the newest frame where frames are stacked.

        Frames are stacked along the last axis, the newest last.
        """
        return jax.tree.map(lambda leaf: leaf[..., leaf.shape[-1] - leaf.shape[-1] // self.history :], state.obs)

    def trace(self, state: State) -> dict[str, Array]:
        """What an evaluation keeps of a state, to be measured, drawn and shown later."""
        return {"position": state.info["position"]}

    def measure(self, traces: dict[str, np.ndarray]) -> dict[str, float]:
        """What E episodes amount to, from their traces [E, T+1, ...]. The headline comes first."""
        positions = traces["position"]
        return {
            self.headline: measures.coverage(positions, self.bin_size),
            "mean_distance": measures.mean_distance(positions),
            "directness": measures.directness(positions),
        }
