"""TrainState: all that a run is."""

import flax.struct
from jax import Array

from genda_mjx.agents import AgentState
from genda_mjx.cohorts import Cohorts
from genda_mjx.replay import EpisodeRing


@flax.struct.dataclass
class TrainState:
    """The state of a run. Without cohorts it has no env state: every iteration starts with a reset of all envs."""

    agent: AgentState
    ring: EpisodeRing
    key: Array
    iteration: Array
    cohorts: Cohorts | None = None
