"""Evaluation of a stored run: loads the learner alone, runs skills, writes plots and one JSON object."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from brax.envs.base import Env

from envs import measures
from genda_mjx import agents, checkpoint, evaluate, plots, sharding
from genda_mjx.build import make_env
from genda_mjx.config import Config, UserError, locate, read_config
from genda_mjx.entry import check_jax, keep_compilations, write_text
from genda_mjx.loop import draw, save_episodes
from genda_mjx.report import Progress
from genda_mjx.state import TrainState

DIRECTIONS = 8  # starts on a circle, for each distance of `--offsets`


class Skills(NamedTuple):
    """The agent of a checkpoint, without its replay."""

    config: Config
    step: int
    agent: agents.Agent
    state: agents.AgentState


def read_run(folder: Path) -> Config:
    """The config of a run that has checkpoints; `folder` may be one seed's."""
    if not folder.is_dir():
        raise UserError(f"--ckpt {folder} does not exist; give the folder that train.py wrote with --out")
    run, _ = locate(folder)
    if not (run / "checkpoints").is_dir():
        raise UserError(f"no checkpoint in {run} yet")
    return read_config(run)


def load_skills(folder: Path, step: int | None, env: Env, progress: Progress) -> Skills:
    """The agent at a step (the newest if None), for an env with the body's observations and actions."""
    config, (run, member) = read_run(folder), locate(folder)
    agent = agents.make(config, agents.Spec.of(env))
    start = lambda key: TrainState(agent.init(key), None, key, jnp.zeros((), jnp.int32))
    if config.num_seeds > 1:
        start = jax.vmap(start, out_axes=sharding.SEED_AXES.replace(ring=None))
    checkpoints = checkpoint.Checkpoints(run, read_only=True)
    try:
        step = checkpoints.resolve(step)
        with progress.waiting(f"loading step {step:,}"):
            state = checkpoints.load_agent(step, jax.eval_shape(start, sharding.seed_keys(config)))
    finally:
        checkpoints.close()
    if config.num_seeds > 1:
        state = jax.tree.map(lambda leaf: leaf[member], state)
    return Skills(config, step, agent, state)


class Inspection:
    """One checkpoint of a run, or of one seed in a run of several, ready to be evaluated."""

    def __init__(self, folder: Path, step: int | None, episodes: int, seed: int, compile_cache: str):
        if episodes < 1:
            raise UserError(f"--episodes is {episodes}; it must be greater than 0")
        self.config = read_run(folder)
        check_jax()
        keep_compilations(compile_cache)
        self.run, self.episodes, self.seed, self.progress = folder, episodes, seed, Progress()
        with self.progress.waiting(f"building {self.config.env}"):
            self.env = make_env(self.config.env)
        _, self.step, self.agent, self.state = load_skills(folder, step, self.env, self.progress)
        with self.progress.waiting("compiling evaluation"):
            self._evaluate = evaluate.compile(self.env, self.agent, episodes, self.state)

    def episodes_from(self, offset: tuple[float, float]) -> evaluate.Episodes:
        """The same skills and start draws for every offset."""
        key = evaluate.evaluation_key(self.seed, self.step)
        return jax.device_get(self._evaluate(self.state, key, np.asarray(offset, np.float32), np.False_))

    def __call__(self, offset: tuple[float, float] | None = None, distances: tuple[float, ...] = ()) -> dict[str, Any]:
        """What the last line of eval.py says; also written to the run folder, beside the plots."""
        if any(distance < 0 for distance in distances):
            raise UserError(f"--offsets are distances in metres, got {' '.join(f'{d:g}' for d in distances)}")
        with self.progress.waiting(f"running {self.episodes} skills"):
            origin = self.episodes_from((0.0, 0.0))
        result = {
            "env": self.config.env,
            "algo": self.config.algo,
            "step": self.step,
            "episodes": self.episodes,
            "seed": self.seed,
        } | evaluate.summary(self.env, self.agent, origin)
        folder = self.run / "eval"
        label = f"{self.step}"
        title = f"{self.config.env}, {self.step:,} steps: {result[self.env.headline]} {self.env.unit}"
        written = list(draw(folder, label, title, self.agent.skills, origin).values())
        if offset is not None:
            shifted = self.episodes_from(offset)
            result["offset"] = list(offset)
            result[f"offset_{self.env.headline}"] = evaluate.summary(self.env, self.agent, shifted)[self.env.headline]
            result["consistency"] = consistency(origin, shifted)
            x, y = offset
            label = f"{self.step}_offset_{x:g}_{y:g}"
            written.append(folder / f"offset_{label}.png")
            self._draw_offset(written[-1], origin, shifted, (x, y))
        if distances:
            result["offsets"] = [self._from_circle(origin, distance, written) for distance in distances]
            self.progress.say(table(result["offsets"]))
            label += "_offsets"
        save_episodes(folder / f"episodes_{label}.npz", origin)
        write_text(folder / f"result_{label}.json", json.dumps(result, indent=2))
        self.progress.say("wrote " + ", ".join(str(path) for path in written))
        return result

    def _from_circle(self, origin: evaluate.Episodes, distance: float, written: list[Path]) -> dict[str, float]:
        """Coverage and consistency of the same skills from starts on a circle about the origin; draws one of them."""
        headline, cosines = [], []
        for angle in np.arange(DIRECTIONS if distance else 1) * 2 * np.pi / DIRECTIONS:
            offset = (distance * np.cos(angle), distance * np.sin(angle))
            shifted = self.episodes_from(offset)
            headline.append(evaluate.summary(self.env, self.agent, shifted)[self.env.headline])
            cosines.append(consistency(origin, shifted))
            if distance and angle == 0:
                written.append(self.run / "eval" / f"offset_{self.step}_distance_{distance:g}.png")
                self._draw_offset(written[-1], origin, shifted, (distance, 0))
        return {
            "distance": distance,
            self.env.headline: float(np.mean(headline)),
            f"{self.env.headline}_std": float(np.std(headline)),
            "consistency": float(np.mean(cosines)),
            "consistency_min": float(np.min(cosines)),
        }

    def _draw_offset(
        self, path: Path, origin: evaluate.Episodes, shifted: evaluate.Episodes, offset: tuple[float, float]
    ) -> None:
        x, y = offset
        groups = [("start at (0, 0)", origin), (f"start at ({x:g}, {y:g})", shifted)]
        paths = [(title, episodes.traces["position"]) for title, episodes in groups]
        plots.offsets(path, paths, self.agent.skills.colors(origin.skills))


def consistency(origin: evaluate.Episodes, shifted: evaluate.Episodes) -> float:
    return measures.consistency(origin.traces["position"], shifted.traces["position"])


def table(rows: list[dict[str, float]]) -> str:
    """Aligned columns for reading."""
    lines = [list(rows[0])] + [[f"{value:.4g}" for value in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
