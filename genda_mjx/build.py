"""From a config to a program: the one place where environment, agent, schedule and program are put together."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

import envs
from envs.base import SkillEnv
from envs.pixels import Pixels
from genda_mjx import agents, devices, program, schedule
from genda_mjx.agents import Agent, Batch, Spec
from genda_mjx.config import Config, UserError
from genda_mjx.program import Program
from genda_mjx.schedule import Schedule


class Built(NamedTuple):
    """All parts of a run on the device; nothing is allocated or compiled yet."""

    config: Config
    env: SkillEnv
    spec: Spec
    agent: Agent
    schedule: Schedule
    mesh: Mesh
    program: Program


def check(config: Config, env: SkillEnv | None = None, mesh: Mesh | None = None) -> tuple[Mesh, Schedule]:
    """Devices and schedule: all that can be wrong with a config is found here, before the body is built, which takes
    the dog 13 s."""
    agents.options_class(config.algo)
    if config.pixels and env is None:
        check_camera(config.env)
    mesh = mesh or devices.make_mesh(config.num_devices)
    return mesh, schedule.derive(config, (env or body_class(config.env)).episode_length, mesh.size)


def build(config: Config, env: SkillEnv | None = None, mesh: Mesh | None = None) -> Built:
    """The parts of a run. `env`: instead of the body that the config names; `mesh`: instead of its devices."""
    mesh, plan = check(config, env, mesh)
    env = env or env_of(config)
    spec = Spec.of(env)
    agent = agents.make(config, spec)
    return Built(config, env, spec, agent, plan, mesh, program.make(program.Parts(config, plan, env, agent), mesh))


def batch_shapes(config: Config, spec: Spec) -> Batch:
    """Shapes of the batch that an agent learns from."""

    def rows(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((config.batch_size, *leaf.shape), leaf.dtype)

    s = jax.tree.map(rows, spec.observation)
    a, z = (rows(jax.ShapeDtypeStruct((size,), jnp.float32)) for size in (spec.action, config.skill_dim))
    return Batch(s, a, s, s, s, s, z)


def body_class(name: str) -> type[envs.Body]:
    try:
        return envs.body_class(name)
    except ValueError as error:
        raise UserError(str(error)) from error


def check_camera(name: str) -> None:
    if body_class(name).camera is None:
        seen = [other for other in envs.NAMES if body_class(other).camera is not None]
        raise UserError(f"--pixels: {name} has no camera (`camera` in its class); choose one of {', '.join(seen)}")


def env_of(config: Config, floor: str | None = None) -> SkillEnv:
    """The environment that a run trains on. floor: instead of the run's, for one that sees pixels."""
    body = make_env(config.env, **body_options(config))
    if not config.pixels:
        return body
    try:
        return Pixels(body, config.pixel_size, floor or config.floor)
    except ValueError as error:
        raise UserError(f"--pixels: {error}") from error


def body_options(config: Config) -> dict[str, bool]:
    """What a run changes about its body, in the words of `Body`."""
    return {"orientation": config.observation == "oriented", "standing": config.start == "standing"}


def make_env(name: str, **options) -> envs.Body:
    """A body; a mistake in its name or options becomes a UserError."""
    try:
        return envs.make(name, **options)
    except ValueError as error:
        raise UserError(str(error)) from error
