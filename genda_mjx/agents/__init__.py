"""Agents by name. An agent is one module here with `make(config, spec) -> Agent`; all run on the same program."""

from importlib import import_module

from genda_mjx.agents.base import Agent, AgentState, Batch, Spec
from genda_mjx.config import Config, UserError

__all__ = ["AGENTS", "Agent", "AgentState", "Batch", "Spec", "check_name", "make"]

AGENTS = [  # modules of this package
    "genda",
    "metra",
    "csf",
    "diayn",
    "cic",
]


def check_name(algo: str) -> None:
    if algo not in AGENTS:
        raise UserError(f"unknown --algo {algo!r}; choose one of {', '.join(AGENTS)}")


def make(config: Config, spec: Spec) -> Agent:
    check_name(config.algo)
    return import_module(f"{__name__}.{config.algo}").make(config, spec)
