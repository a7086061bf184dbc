"""Agents by name. An agent is one module here with `make(config, sizes) -> Agent`; all run on the same program."""

from importlib import import_module

from genda_mjx.agents.base import Agent, AgentState, Batch, Sizes
from genda_mjx.config import Config, UserError

__all__ = ["AGENTS", "Agent", "AgentState", "Batch", "Sizes", "make"]

AGENTS = [  # modules of this package
    "genda",
    "metra",
    "csf",
    "diayn",
    "cic",
]


def make(config: Config, sizes: Sizes) -> Agent:
    if config.algo not in AGENTS:
        raise UserError(f"unknown --algo {config.algo!r}; choose one of {', '.join(AGENTS)}")
    return import_module(f"{__name__}.{config.algo}").make(config, sizes)
