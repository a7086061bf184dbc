"""A toy environment and tiny configs, so that trainer tests compile in seconds."""

import dataclasses

import jax
import jax.numpy as jnp
from brax.envs.base import Env, State
from jax.sharding import Mesh

from genda_mjx import agents, program, schedule
from genda_mjx.config import Config


class Walk(Env):
    """A point that moves by its action; obs is (x, y, time). Copies whose reset key is odd fail if `fragile`."""

    position_size, bin_size, dt = 2, 1.0, 0.05
    observation_size, action_size, backend = 3, 2, "toy"

    def __init__(self, episode_length: int = 10, fragile: bool = False):
        self.episode_length, self.fragile = episode_length, fragile

    def reset(self, rng):
        return self.reset_at(rng, jnp.zeros(2))

    def reset_at(self, rng, xy):
        position = jax.random.uniform(rng, (2,), minval=-0.1, maxval=0.1) + xy
        bad = self.fragile & (jax.random.key_data(rng)[-1] % 2 == 1)
        return State(
            None,
            jnp.append(position, 0.0),
            jnp.zeros(()),
            jnp.zeros(()),
            {},
            {"position": position, "failed": bad & False, "bad": bad},
        )

    def step(self, state, action):
        position = state.info["position"] + action
        obs = jnp.append(position, state.obs[2] + 1)
        return state.replace(obs=obs, info={**state.info, "position": position, "failed": state.info["bad"]})


TINY = Config(
    hidden=16,
    cib_dim=4,
    num_envs=4,
    batch_size=8,
    utd=0.1,
    buffer_size=160,
    total_steps=400,
    warmup_episodes=4,
    eval_episodes=6,
    eval_every=0,
    checkpoint_every=0,
    learning_rate=1e-3,
    compile_cache="",
)


def tiny(**changes) -> Config:
    return dataclasses.replace(TINY, **changes)


def build(config: Config, env: Env | None = None, mesh: Mesh | None = None):
    """(schedule, agent, program) of a config on the toy env."""
    env = env or Walk()
    plan = schedule.derive(config, env.episode_length, mesh.size if mesh else 1)
    agent = agents.make(config, agents.Sizes(env.observation_size, env.action_size))
    return plan, agent, program.make(config, plan, env, agent, mesh)
