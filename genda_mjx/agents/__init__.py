"""Agents by name. An agent is one file with `make(config, sizes) -> Agent`; all run on the same program."""

from collections.abc import Callable

from genda_mjx.agents import cic, csf, diayn, genda, metra
from genda_mjx.agents.base import Agent, AgentState, Batch, Sizes
from genda_mjx.config import Config, UserError

__all__ = ["AGENTS", "Agent", "AgentState", "Batch", "Sizes", "make"]

AGENTS: dict[str, Callable[[Config, Sizes], Agent]] = {
    "genda": genda.make,
    "metra": metra.make,
    "csf": csf.make,
    "diayn": diayn.make,
    "cic": cic.make,
}


def make(config: Config, sizes: Sizes) -> Agent:
    if config.algo not in AGENTS:
        raise UserError(f"unknown --algo {config.algo!r}; choose one of {', '.join(AGENTS)}")
    return AGENTS[config.algo](config, sizes)
