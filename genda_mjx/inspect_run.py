"""Evaluation of a stored run: loads the learner alone, runs skills, writes plots and one JSON object."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from genda_mjx import agents, checkpoint, evaluate, plots, program, schedule
from genda_mjx.config import UserError, read_config
from genda_mjx.entry import check_jax, keep_compilations, make_env, write_text
from genda_mjx.loop import draw, save_episodes
from genda_mjx.report import Progress


class Inspection:
    """One checkpoint of a run, ready to be evaluated."""

    def __init__(self, run: Path, step: int | None, episodes: int, seed: int, compile_cache: str):
        if episodes < 1:
            raise UserError(f"--episodes is {episodes}; it must be greater than 0")
        if not run.is_dir():
            raise UserError(f"--ckpt {run} does not exist; give the folder that train.py wrote with --out")
        self.config = read_config(run)
        if not (run / "checkpoints").is_dir():
            raise UserError(f"no checkpoint in {run} yet")
        check_jax()
        keep_compilations(compile_cache)
        self.run, self.episodes, self.seed, self.progress = run, episodes, seed, Progress()
        checkpoints = checkpoint.Checkpoints(run, read_only=True)
        self.step = checkpoints.resolve(step)
        with self.progress.waiting(f"building {self.config.env}"):
            self.env = make_env(self.config.env)
        sizes = agents.Sizes(self.env.observation_size, self.env.action_size)
        self.agent = agents.make(self.config, sizes)
        plan = schedule.derive(self.config, self.env.episode_length)
        abstract = jax.eval_shape(program.make(self.config, plan, self.env, self.agent).init, jax.random.key(0))
        with self.progress.waiting(f"loading step {self.step:,}"):
            self.state = checkpoints.load_agent(self.step, abstract)
        checkpoints.close()
        with self.progress.waiting("compiling evaluation"):
            self._evaluate = evaluate.compile(self.env, self.agent, episodes, abstract.agent)

    def episodes_from(self, offset: tuple[float, float]) -> evaluate.Episodes:
        """The same skills and start draws for every offset."""
        key = evaluate.evaluation_key(self.seed, self.step)
        return jax.device_get(self._evaluate(self.state, key, np.asarray(offset, np.float32), np.False_))

    def __call__(self, offset: tuple[float, float] | None = None) -> dict[str, Any]:
        """What the last line of eval.py says; also written to the run folder, beside the plots."""
        with self.progress.waiting(f"running {self.episodes} skills"):
            origin = self.episodes_from((0.0, 0.0))
        result = {
            "env": self.config.env,
            "algo": self.config.algo,
            "step": self.step,
            "episodes": self.episodes,
            "seed": self.seed,
            "coverage": evaluate.coverage(origin.positions, self.env.bin_size),
            "mean_distance": float(np.linalg.norm(evaluate.displacement(origin.positions), axis=-1).mean()),
            "failed": int((~origin.valid).sum()),
        }
        folder = self.run / "eval"
        label = f"{self.step}"
        title = f"{self.config.env}, {self.step:,} steps: {result['coverage']} bins"
        written = list(draw(folder, label, title, origin).values())
        if offset is not None:
            shifted = self.episodes_from(offset)
            result["offset"] = list(offset)
            result["offset_coverage"] = evaluate.coverage(shifted.positions, self.env.bin_size)
            result["consistency"] = evaluate.consistency(origin.positions, shifted.positions)
            x, y = offset
            label = f"{self.step}_offset_{x:g}_{y:g}"
            written.append(folder / f"offset_{label}.png")
            groups = [("start at (0, 0)", origin.positions), (f"start at ({x:g}, {y:g})", shifted.positions)]
            plots.offsets(written[-1], groups, origin.skills)
        save_episodes(folder / f"episodes_{label}.npz", origin)
        write_text(folder / f"result_{label}.json", json.dumps(result, indent=2))
        self.progress.say("wrote " + ", ".join(str(path) for path in written))
        return result
