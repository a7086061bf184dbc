"""The paper's figures that are made of one or two runs rather than of a grid.

    python -m experiments.figures drift RUN             one skill over the checkpoints of a run: does z stay the same?
    python -m experiments.figures spread RUN RUN ...    phi of runs beside each other, with and without uniformity

drift needs a run with several checkpoints: python train.py ... --checkpoint_every K --keep_every K. All of them get the
same skills and the same starts. spread reads the newest evaluation record of each run; the ablation of the figure is
`python train.py ... --beta 0` beside the default. Both write a picture (`--out`) and print the numbers behind it.
"""

import dataclasses
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import numpy as np
import tyro
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from envs import measures
from genda_mjx import agents
from genda_mjx import evaluate as evaluation
from genda_mjx.build import env_of
from genda_mjx.config import UserError
from genda_mjx.evaluate import Episodes
from genda_mjx.runs import plots, start
from genda_mjx.runs.checkpoint import Checkpoints
from genda_mjx.runs.folder import locate, read_config
from genda_mjx.runs.report import Progress
from genda_mjx.runs.stored import load_skills, read_run
from genda_mjx.runs.video import find_record, load_record


@dataclasses.dataclass(frozen=True)
class Options:
    figure: tyro.conf.Positional[str]  # drift or spread
    runs: tyro.conf.Positional[tuple[Path, ...]]  # run folders
    out: Path | None = None  # the picture; drift.png or spread.png in the first run's folder if not given
    skills: int = 4  # drift: how many, a panel each
    episodes: int = 4  # drift: episodes of each skill, from different starts
    seed: int = 0  # drift: of skills and starts
    compile_cache: str = ".cache/jax"  # folder of compiled programs; empty turns it off


def main() -> None:
    options = tyro.cli(Options)
    figures = {"drift": drift, "spread": spread}
    if options.figure not in figures:
        raise UserError(f"unknown figure {options.figure!r}: choose one of {', '.join(figures)}")
    if not options.runs:
        raise UserError(f"{options.figure} needs a run folder")
    path = options.out or options.runs[0] / f"{options.figure}.png"
    for line in figures[options.figure](options, path):
        print(line)
    print(f"wrote {path}")


def drift(options: Options, path: Path) -> list[str]:
    """Paths of the same skills at every checkpoint, one panel a skill, late checkpoints darker."""
    folder, progress = options.runs[0], Progress()
    config, (run, _) = read_run(folder), locate(folder)
    checkpoints = Checkpoints(run, read_only=True)
    steps = checkpoints.steps
    checkpoints.close()
    if len(steps) < 2:
        raise UserError(f"{folder} has one checkpoint; keep more of them with --checkpoint_every K --keep_every K")
    start.prepare(options.compile_cache)
    env = env_of(config)
    compiled, paths, z = None, [], None
    for step in steps:
        skills = load_skills(folder, step, env, progress)
        agent = same_skills(skills.agent, options.skills)
        if compiled is None:
            with progress.waiting("compiling evaluation"):
                compiled = evaluation.compile(env, agent, options.skills * options.episodes, skills.state)
        key = evaluation.evaluation_key(options.seed, 0)
        episodes = jax.device_get(compiled(skills.state, key, np.zeros(2, np.float32), np.False_))
        paths.append(np.asarray(episodes.traces["position"], np.float32))
        z = episodes.skills[: options.skills]
    paths = np.array(paths).reshape(len(steps), options.episodes, options.skills, *paths[0].shape[1:])
    draw_drift(path, steps, z, paths)
    return [
        f"step {step:>10,}: cosine with the last checkpoint {c:.3f}"
        for step, c in zip(steps, cosines(paths), strict=True)
    ]


def same_skills(agent: agents.Agent, count: int) -> agents.Agent:
    """The agent with an evaluation that shows `count` skills over and over, each time from another start."""

    class Repeated(type(agent.skills)):
        def show(self, key: jax.Array, n: int) -> jax.Array:
            return jax.numpy.tile(agent.skills.show(key, count), (n // count, 1))

    return agent._replace(skills=Repeated(agent.skills.kind, agent.skills.dim))


def cosines(paths: np.ndarray) -> list[float]:
    """Mean cosine between where a skill went at each checkpoint and at the last; paths [C, E, K, T+1, p]."""
    last = paths[-1].reshape(-1, *paths.shape[3:])
    return [measures.consistency(one.reshape(last.shape), last) for one in paths]


def draw_drift(path: Path, steps: list[int], z: np.ndarray, paths: np.ndarray) -> None:
    """A panel for each skill; paths [C, E, K, T+1, p]."""
    figure = Figure(figsize=(4 * len(z), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    paths = paths - paths[:, :, :, :1]
    reach = 1.05 * max(np.abs(paths[..., :2]).max(), 1e-3)
    for k, panel in enumerate(figure.subplots(1, len(z), squeeze=False)[0]):
        for c, step in enumerate(steps):
            color = colormaps["viridis_r"](c / (len(steps) - 1))
            for e, line in enumerate(paths[c, :, k]):
                label = f"{step:,}" if e == 0 and k == 0 else None
                panel.plot(line[:, 0], line[:, 1], color=color, linewidth=1.0, label=label)
        title = "z = (" + ", ".join(f"{value:.2f}" for value in z[k][:3]) + (", ...)" if z.shape[1] > 3 else ")")
        panel.set(title=title, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="x, m", ylabel="y, m")
    figure.axes[0].legend(title="steps", fontsize="x-small", loc="best")
    plots.save(figure, path)


def spread(options: Options, path: Path) -> list[str]:
    """phi of each run's newest evaluation, and how evenly its episodes point in all directions."""
    lines, panels = [], []
    for folder in options.runs:
        if not folder.is_dir():
            raise UserError(f"{folder} does not exist; give run folders that train.py has written")
        config = read_config(locate(folder)[0])
        record, step = find_record(folder, None)
        episodes = load_record(record)
        if episodes.latents is None:
            raise UserError(f"{folder} is a run of {config.algo}, which has no phi")
        beta = getattr(config.agent, "beta", None)
        name = folder.name if beta is None else f"{folder.name}, beta {beta:g}"
        resultant, share = evenness(episodes)
        panels.append((f"{name}: mean direction {resultant:.2f}", episodes))
        lines.append(
            f"{folder}, step {step:,}: mean direction {resultant:.3f}, {share:.0%} of phi's variance in one axis"
        )
    draw_spread(path, panels)
    return lines


def evenness(episodes: Episodes) -> tuple[float, float]:
    """Length of the mean of the unit vectors phi(s_T) - phi(s_0), 0 where they point everywhere alike and 1 where all
    are the same; and the largest share of their second moment along one axis, 1/d where they spread evenly."""
    latents = np.asarray(episodes.latents, np.float64)
    gone = latents[:, -1] - latents[:, 0]
    unit = gone / np.maximum(np.linalg.norm(gone, axis=-1, keepdims=True), 1e-8)
    moments = np.linalg.eigvalsh(unit.T @ unit / len(unit))
    return float(np.linalg.norm(unit.mean(0))), float(moments[-1] / moments.sum())


def draw_spread(path: Path, panels: list[tuple[str, Episodes]]) -> None:
    """phi's first two dimensions, each run in its own scale; colour is the skill's angle, a dot where phi ends."""
    figure = Figure(figsize=(5 * len(panels), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, (title, episodes) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        curves = episodes.latents - episodes.latents[:, :1]
        z = np.asarray(episodes.skills)
        hue = np.arctan2(z[:, min(1, z.shape[1] - 1)], z[:, 0]) / (2 * np.pi) % 1.0
        second = min(1, curves.shape[-1] - 1)
        for line, color in zip(curves, colormaps["hsv"](hue), strict=True):
            panel.plot(line[:, 0], line[:, second], color=color, linewidth=0.8)
            panel.plot(line[-1, 0], line[-1, second], "o", color=color, markersize=3)
        reach = 1.05 * max(np.abs(curves[..., [0, second]]).max(), 1e-3)
        panel.set(
            title=title, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="phi 1", ylabel="phi 2"
        )
    plots.save(figure, path)


if __name__ == "__main__":
    start.main(main, flag="--out")
