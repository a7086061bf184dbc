"""The skill explorer of a stored run: RUN/eval/explore_<step>.html, in which its skills run live."""

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import mujoco
import numpy as np
from brax.envs.base import State

from envs.base import SkillEnv
from envs.body import Body
from envs.tasks.layout import Maze
from genda_mjx import evaluate as evaluation
from genda_mjx.build import env_of
from genda_mjx.config import UserError
from genda_mjx.evaluate import Episodes
from genda_mjx.explorer import body, page
from genda_mjx.explorer.tracing import Program, Untraceable, trace
from genda_mjx.runs.folder import locate, write_text
from genda_mjx.runs.report import Progress, number
from genda_mjx.runs.stored import Skills, load_skills, read_run

FULL_WIDTH = 256  # wider networks are kept as float16: half the size, actions to three digits
POINTS = 100  # of an evaluated path, at most
DRAWN_BY_THE_PAGE = ("target", "wall_", "feeler")  # geoms: what a reset puts elsewhere, a maze and what meets it
NAMES = {"genda": "GenDa"}  # how algorithms are written, where not in capitals


class Draft(NamedTuple):
    """What of a page is known before the evaluation: body and policy, in the browser's terms."""

    env: Body
    skills: Skills
    body: body.PageBody
    act: Program
    phi: Program | None


def draft(env: SkillEnv, skills: Skills, maze: Maze | None = None) -> Draft:
    """Traces body and policy; refuses what a browser cannot run before anything is written. maze: around the body."""
    if not isinstance(env, Body):
        raise UserError("--explore shows policies that see a MuJoCo body's coordinates; this run sees something else")
    (size,), dim = env.observation_spec.shape, skills.agent.skills.dim
    agent, state = skills.agent, skills.state
    try:
        exported = body.export(env, maze)
        act = trace(lambda obs, z: agent.act(state, obs, z, None), {"obs": (1, size), "z": (1, dim)})
        phi = trace(lambda obs: agent.represent(state, obs), {"obs": (1, size)}) if agent.represent else None
    except Untraceable as error:
        raise UserError(f"--explore cannot show this run in a browser: {error}") from error
    return Draft(env, skills, exported, act, phi)


def write(path: Path, made: Draft, key: jax.Array, episodes: Episodes, found: dict[str, float]) -> Path:
    """Writes the page of an evaluation that was run with `key`."""
    count = len(episodes.skills)

    def reset(key: jax.Array) -> Any:
        return evaluation.start_states(made.env, key, count, np.zeros(2, np.float32))

    tables = starts(reset, key) | shown(episodes)
    return write_page(path, made, tables, {"facts": facts(made.env, count, found)})


def write_page(
    path: Path, made: Draft, tables: dict[str, np.ndarray], more: dict[str, Any], **programs: Program
) -> Path:
    """Writes a page, whole or not at all. tables: arrays [E, ...] by name; more: what else it tells; programs: beside
    those of body and policy."""
    env, skills = made.env, made.skills
    config, model, arrays = skills.config, env.model, page.Arrays()
    half = config.hidden > FULL_WIDTH
    programs = {"observe": made.body.observe, "sense": made.body.sense, "act": made.act, "phi": made.phi, **programs}
    algo = NAMES.get(config.algo, config.algo.upper())
    names = [model.geom(i).name for i in range(model.ngeom)]
    run = {
        "name": f"{config.env}_{skills.step}",
        "about": f"{algo} discovered these skills in {skills.step:,} steps without any reward. Its policy runs live "
        "in this page, on MuJoCo: nothing here is a recording.",
        "xml": made.body.xml,
        "timestep": model.opt.timestep,
        "physics_steps": env.physics_steps,
        "position_size": env.position_size,
        "free": bool(model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE),
        "floor": has_floor(model),
        "hidden": [i for i, name in enumerate(names) if name.startswith(DRAWN_BY_THE_PAGE)],
        "skills": {"kind": skills.agent.skills.kind, "dim": skills.agent.skills.dim},
        "programs": {name: made and page.program_json(made, arrays, half) for name, made in programs.items()},
        "tables": {name: {"array": arrays.add(table), "shape": table.shape} for name, table in tables.items()},
    }
    title = f"{config.env}: skills learned without reward"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page.render(title, run | more, arrays))
    return path


def starts(reset: Callable[[jax.Array], State], key: jax.Array) -> dict[str, np.ndarray]:
    """The states that reset(key) returns, as arrays [E, ...]; only what they are made of is computed."""
    state = jax.device_get(jax.jit(lambda key: reset(key).pipeline_state)(key))
    physics = {name: getattr(state.physics, name) for name in ("qpos", "qvel", "act")}
    return physics | {"sensors": state.sensors, "drawn": state.drawn}


def shown(episodes: Episodes) -> dict[str, np.ndarray]:
    """Skills, paths and latents of the evaluation, thinned out."""
    positions = np.asarray(episodes.traces["position"])
    every = max(1, positions.shape[1] // POINTS)
    found = {"skills": np.asarray(episodes.skills), "positions": positions[:, ::every]}
    return found if episodes.latents is None else found | {"latents": np.asarray(episodes.latents)[:, ::every]}


def facts(env: Body, episodes: int, found: dict[str, float]) -> str:
    """The evaluation in a sentence, the headline first."""
    shown = {name: value for name, value in found.items() if name != "failed_evaluations" or value}
    words = [f"{name.replace('_', ' ')} {number(value)}" for name, value in shown.items()]
    words[0] += f" {env.unit}"
    return f"Evaluation of {episodes} skills: {', '.join(words)}."


def has_floor(model: mujoco.MjModel) -> bool:
    plane = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    return bool((plane & ((model.geom_contype | model.geom_conaffinity) != 0)).any())


class Page:
    """A page that shows itself in a notebook; elsewhere it is a path."""

    def __init__(self, path: Path, height: int = 760):
        self.path, self.height = path, height

    def __repr__(self) -> str:
        return f"open {self.path} in a browser"

    def _repr_html_(self) -> str:
        text = html.escape(self.path.read_text(), quote=True)
        return f'<iframe srcdoc="{text}" style="width:100%;height:{self.height}px;border:0"></iframe>'


def explore(folder: str | Path, step: int | None = None) -> Page:
    """The page of a run, made of the evaluation that training has recorded at that step; the newest if None."""
    folder, progress = Path(folder), Progress()
    config, (_, member) = read_run(folder), locate(folder)
    with progress.waiting(f"building {config.env}"):
        env = env_of(config)
    skills = load_skills(folder, step, env, progress)
    episodes = recorded(folder, skills.step)
    key = evaluation.evaluation_key(config.seed + member, skills.step)
    found = evaluation.summary(env, skills.agent, episodes)
    path = folder / "eval" / f"explore_{skills.step}.html"
    return Page(write(path, draft(env, skills), key, episodes, found))


def recorded(folder: Path, step: int) -> Episodes:
    """The episodes that training has kept of its evaluation at a step."""
    path = folder / "evaluations" / f"{step}.npz"
    if not path.exists():
        raise UserError(f"{path} is missing: no evaluation was recorded at step {step}; `eval.py --explore` makes one")
    with np.load(path) as stored:
        arrays = dict(stored)
    others = {name: arrays.pop(name, None) for name in ("latents", "skills", "valid")}
    return Episodes(arrays, **others)
