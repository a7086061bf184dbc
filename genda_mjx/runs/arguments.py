"""The command line of train.py: every field of Config is a flag, and every option of the chosen agent."""

import dataclasses
import sys
from typing import Annotated

import tyro

from genda_mjx import agents
from genda_mjx.config import Config, UserError
from genda_mjx.presets import SCHEDULE_FLAGS, preset
from genda_mjx.runs.folder import read_config, run_folder


def parse(arguments: list[str] | None = None) -> Config:
    """Turns the command line into a Config. It is parsed twice: the first pass finds the defaults to start from (a
    preset, or the stored run when resuming), the second lets every flag the user gave win over them."""
    given = sys.argv[1:] if arguments is None else arguments
    flags = [word for word in given if word not in ("-h", "--help")]  # help comes last, with the agent's own options
    algo = _parse_over(Config(), flags, partly=True)[0].algo
    first, unknown = _parse_over(Config().replace(algo=algo), flags, partly=True)
    refuse_others(first.algo, unknown)
    if first.resume:
        stored = run_folder(first) / "config.json"
        if not stored.exists():
            raise UserError(f"nothing to resume in {run_folder(first)}: no config.json; start it without --resume")
        base = read_config(stored.parent)
        refuse_others(base.algo, unknown)
    else:
        many = first.num_envs if names(flags).isdisjoint(SCHEDULE_FLAGS) else None
        chosen = dataclasses.asdict(first.agent)
        if "observation" in names(flags):
            chosen["observation"] = first.observation
        base = preset(first.env, first.preset, first.algo, many, pixels=first.pixels, **chosen)
    config, _ = _parse_over(base, given)
    return dataclasses.replace(config, out=str(run_folder(first)))


def names(flags: list[str]) -> set[str]:
    """The options that a command line gives."""
    return {word.removeprefix("--").split("=")[0].replace("-", "_") for word in flags if word.startswith("--")}


def refuse_others(algo: str, unknown: list[str]) -> None:
    """An option of another agent is a mistake with a name; any other unknown flag is left to the parser."""
    for flag in unknown:
        name = flag.removeprefix("--").replace("-", "_").split("=")[0]
        owners = [agent for agent in agents.AGENTS if hasattr(agents.options_class(agent)(), name)]
        if flag.startswith("--") and owners:
            raise UserError(f"--{name} is an option of {' and '.join(owners)}, not of {algo}: drop it")


def _parse_over(base: Config, arguments: list[str], partly: bool = False) -> tuple[Config, list[str]]:
    """The config `base` with the flags applied, and with `partly` the flags that it does not know.

    Switches are parsed as off and joined afterwards: tyro would rename one that is already on.
    """
    switches = [name for name, value in base.flat().items() if isinstance(value, bool)]
    off = base.replace(**dict.fromkeys(switches, False))
    flags = Annotated[Config, tyro.conf.FlagCreatePairsOff]
    if partly:
        found, unknown = tyro.cli(flags, args=arguments, default=off, return_unknown_args=True)
    else:
        found, unknown = tyro.cli(flags, args=arguments, default=off), []
    given = found.flat()
    return found.replace(**{name: base.flat()[name] or given[name] for name in switches}), unknown
