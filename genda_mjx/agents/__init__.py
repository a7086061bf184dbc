"""Agents by name; all run on the same program.

An agent is one module here with `make(config, spec) -> Agent` and, where it has options of its own, `Options`, which
`config.agent` is then an instance of.
"""

from importlib import import_module
from types import ModuleType

from genda_mjx import encoders
from genda_mjx.agents.base import Agent, AgentState, Batch, Spec
from genda_mjx.config import AgentOptions, Config, UserError

__all__ = ["AGENTS", "Agent", "AgentState", "Batch", "Spec", "make", "options_class"]

AGENTS = [  # modules of this package
    "genda",
    "metra",
    "csf",
    "diayn",
    "cic",
]


def module_of(algo: str) -> ModuleType:
    if algo not in AGENTS:
        raise UserError(f"unknown --algo {algo!r}; choose one of {', '.join(AGENTS)}")
    return import_module(f"{__name__}.{algo}")


def options_class(algo: str) -> type[AgentOptions]:
    """The class of an agent's own options; most agents have none."""
    return getattr(module_of(algo), "Options", AgentOptions)


def make(config: Config, spec: Spec) -> Agent:
    agent = module_of(config.algo).make(config.replace(), spec)
    return agent._replace(scratch_pictures=encoders.scratch(spec.observation, config.cnn_depth))
