"""Shared bodies: each is made once per test run, and its batched step is compiled once."""

import os

os.environ.setdefault("MUJOCO_GL", "disable")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's cache messages would drown a failure

import dataclasses
import functools
import pathlib
import signal
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import envs

jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(__file__).parent.parent / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


@functools.cache
def raw_env(name: str) -> envs.SkillEnv:
    """A body with raw observations."""
    return envs.make(name, normalize=False)


COPIES = 64
FAST = {"xla_backend_optimization_level": 3}  # for programs that run for long; `make test` compiles in a hurry


@functools.cache
def batched(name: str) -> tuple[Callable, Callable]:
    """Jitted start (first COPIES states of the bank) and step of COPIES copies; one compilation for all tests."""
    env = raw_env(name)

    def start(keys, shift):
        state = jax.vmap(env.reset)(keys)
        body = jax.vmap(env._start, in_axes=(0, None))(jnp.arange(COPIES), jnp.zeros(2))
        qpos = body.physics.qpos + shift
        body = dataclasses.replace(body, physics=dataclasses.replace(body.physics, qpos=qpos))
        return state.replace(pipeline_state=body)

    return jax.jit(start), jax.jit(jax.vmap(env.step), compiler_options=FAST)


BODIES = tuple(name for name in envs.NAMES if name != "kitchen")  # which has a file of its own


@pytest.fixture(params=BODIES)
def any_env(request) -> envs.SkillEnv:
    return raw_env(request.param)


@pytest.fixture
def in_a_terminal():
    """Makes a hang-up end this process and those that it starts, as in a terminal, also where tests run under nohup."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)
