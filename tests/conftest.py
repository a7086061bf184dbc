"""Shared bodies: each is made once per test run, and its batched step is compiled once."""

import os

os.environ.setdefault("MUJOCO_GL", "disable")

import functools
import pathlib

import jax
import pytest

import envs

jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(__file__).parent.parent / ".cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)


@functools.cache
def raw_env(name: str) -> envs.SkillEnv:
    """A body with raw observations."""
    return envs.make(name, normalize=False)


@pytest.fixture(params=envs.NAMES)
def any_env(request) -> envs.SkillEnv:
    return raw_env(request.param)
