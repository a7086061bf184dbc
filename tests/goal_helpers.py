"""A goal task on the toy env and skills that already work, so that controller tests take seconds."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
from trainer_helpers import Walk, tiny

from genda_mjx.agents import Agent, AgentState
from genda_mjx.agents.skills import SkillSpace
from genda_mjx.downstream import controller
from genda_mjx.downstream import program as downstream

COMPASS = 8  # skills in the list
CACHE = Path(__file__).parent.parent / ".cache" / "jax"  # of compiled programs, as in conftest
RUN = tiny(env="point")  # the config of the run that the skills come from


@dataclasses.dataclass(frozen=True)
class ToyTask:
    """Goals uniform in a square around the start; an episode of 40 steps of up to 0.2 m."""

    env: Walk
    name: str = "toy"
    horizon: int = 40
    radius: float = 0.5
    goal_size: int = 2
    half: float = 3.0
    maze: None = None

    def reset(self, rng, evaluate=False):
        key_pose, key_goal = jax.random.split(rng)
        return self.env.reset(key_pose), jax.random.uniform(key_goal, (2,), minval=-self.half, maxval=self.half)


def vector(size: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((size,), jnp.float32)


def perfect_skills(discrete: bool = False) -> Agent:
    """An agent that walks 0.2 m a step along its skill, or along the compass point that its one-hot names."""
    angles = jnp.arange(COMPASS) * 2 * jnp.pi / COMPASS
    compass = jnp.stack([jnp.cos(angles), jnp.sin(angles)], -1)
    nothing = AgentState(params={}, targets={}, optimizers={}, buffers={}, updates=jnp.ones((), jnp.int32))
    return Agent(
        init=lambda key: nothing,
        skills=SkillSpace("list", COMPASS) if discrete else SkillSpace("directions", 2),
        act=lambda state, obs, z, key: 0.2 * (z @ compass if discrete else z),
        update=lambda state, batch, key: (state, {}),
    )


QUICK = controller.ControllerConfig(
    macro_steps=4_480,
    skill_steps=5,
    hidden=64,
    actor_rate=1e-3,
    critic_rate=1e-3,
    gradient_steps=25,
    batch_size=128,
    warmup_episodes=32,
)


def build(config=QUICK, discrete=False, task=None):
    """(plan, agent, controller, program) for the toy task."""
    task, agent = task or ToyTask(Walk()), perfect_skills(discrete)
    plan = downstream.schedule(config, task.horizon)
    pi = controller.make(config, agent, (task.env.observation_spec, vector(task.goal_size)))
    return plan, agent, pi, downstream.make(config, plan, task, agent, pi)
