"""MJX environments without reward: `envs.make("quadruped")`. Usable by any Brax-style trainer."""

import contextlib
import importlib
import io

with contextlib.redirect_stdout(io.StringIO()):  # mjx prints that its optional Warp backend is missing
    from mujoco import mjx as _  # noqa: F401

from envs.base import SkillEnv
from envs.body import Body

__all__ = ["NAMES", "Body", "SkillEnv", "body_class", "make"]

NAMES = ("point", "fish", "quadruped", "humanoid", "dog", "kitchen")


def body_class(name: str) -> type[Body]:
    """The class of a body, imported when asked for."""
    if name not in NAMES:
        raise ValueError(f"unknown env {name!r}: choose one of {', '.join(NAMES)}")
    module = importlib.import_module(f"envs.{name}")
    return getattr(module, name.capitalize())


def make(name: str, **options) -> Body:
    """A body by name; options as in `Body.__init__`."""
    cls = body_class(name)
    known = list(Body.__init__.__kwdefaults__)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"unknown option {', '.join(unknown)} for env {name}: known are {', '.join(known)}")
    return cls(**options)
