"""A toy environment and tiny configs, so that trainer tests compile in seconds."""

import jax
import jax.numpy as jnp
from brax.envs.base import State
from jax.sharding import Mesh

from envs.base import SkillEnv
from genda_mjx import build as assembly
from genda_mjx import devices
from genda_mjx.agents import Spec
from genda_mjx.config import Config


def vector_spec(observation: int, action: int) -> Spec:
    """Of an environment whose observation is one vector."""
    return Spec(jax.ShapeDtypeStruct((observation,), jnp.float32), action)


class Walk(SkillEnv):
    """A point that moves by its action; obs is (x, y, time). If `fragile`, copies that start at x > 0 fail."""

    name, dt, action_size, backend = "walk", 0.05, 2, "toy"
    observation_spec = jax.ShapeDtypeStruct((3,), jnp.float32)

    def __init__(self, episode_length: int = 10, fragile: bool = False):
        self.episode_length, self.fragile = episode_length, fragile

    def reset(self, rng):
        return self.reset_at(rng, jnp.zeros(2))

    def reset_at(self, rng, xy):
        position = jax.random.uniform(rng, (2,), minval=-0.1, maxval=0.1) + xy
        bad = self.fragile & (position[0] > xy[0])
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
).replace(cib_dim=4)


def tiny(**changes) -> Config:
    """A small run; options of an agent go to it."""
    return TINY.replace(**changes)


def build(config: Config, env: SkillEnv | None = None, mesh: Mesh | None = None) -> assembly.Built:
    """The parts of a run on the toy env and one device, unless told otherwise."""
    return assembly.build(config, env or Walk(), mesh or devices.make_mesh(1))
