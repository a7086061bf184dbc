"""What phi and what l know of a picture: python -m experiments.reconstructions RUN

Draws states of a run's own skills as its decoder rebuilds them from both, from phi alone and from l alone; the other
input is then its mean over all states that are shown. (The official code trains two more decoders for this figure; an
input that is held still needs none.) Writes RUN/eval/reconstructions_<step>.png.
"""

import dataclasses
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from envs.pixels import Pixels
from genda_mjx import encoders, replay, rollout
from genda_mjx.agents import Spec, genda
from genda_mjx.build import env_of
from genda_mjx.config import UserError
from genda_mjx.evaluate import evaluation_key
from genda_mjx.runs import start
from genda_mjx.runs.report import Progress
from genda_mjx.runs.stored import Skills, load_skills, read_run

TIMES = np.array([0.005, 0.3, 0.6, 1.0])  # of the states shown, in episode lengths
ROWS = ("seen", "phi and l", "phi alone", "l alone")


@dataclasses.dataclass(frozen=True)
class Options:
    run: tyro.conf.Positional[Path]  # run folder of GenDa with --pixels
    step: int | None = None  # checkpoint; the newest if not given
    skills: int = 3  # how many are shown
    floor: str | None = None  # instead of the run's
    compile_cache: str = ".cache/jax"


def shown_states(env: Pixels, skills: Skills, count: int) -> jax.Array:
    """Observations [count * times, S, S, 9] of random skills."""
    key_reset, key_skill, key_act = jax.random.split(evaluation_key(0, skills.step), 3)
    agent, state = skills.agent, skills.state

    def play() -> jax.Array:
        first, z = rollout.start_episodes(env, agent, key_reset, key_skill, count)
        choose = lambda obs, _: agent.act(state, obs, z, None)  # noqa: E731
        last, steps = rollout.step_envs(env, first, choose, key_act, env.episode_length, env.stored)
        frames = rollout.whole_episodes(steps.kept, jax.vmap(env.stored)(last))
        times = np.maximum(np.round(TIMES * env.episode_length), 1).astype(int)
        return replay.stack(frames, env.history)[:, times]

    found = jax.jit(play)()
    return found.reshape(-1, *found.shape[2:])


def rebuilt(env: Pixels, skills: Skills, seen: jax.Array) -> dict[str, np.ndarray]:
    """ROWS -> pictures [n, S, S, 9] with values from 0 to 1."""
    net = genda.Networks(skills.config, Spec.of(env))
    params = skills.state.params
    phi, local = net.phi(params["phi"], seen)[0], net.encoder(params["encoder"], seen)[0]
    still_phi, still_local = (jnp.broadcast_to(x.mean(0), x.shape) for x in (phi, local))
    pairs = ((phi, local), (phi, still_local), (still_phi, local))
    pictures = [encoders.values(seen), *(net.decoder(params["decoder"], *pair) for pair in pairs)]
    return dict(zip(ROWS, map(np.asarray, pictures), strict=True))


def draw(path: Path, title: str, pictures: dict[str, np.ndarray]) -> None:
    """The newest frame of every state, a row for each of ROWS."""
    count = len(pictures[ROWS[0]])
    figure = Figure(figsize=(1.1 * count + 1, 1.25 * len(ROWS) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(ROWS), count, squeeze=False)
    for axes, (name, row) in zip(grid, pictures.items(), strict=True):
        for axis, picture in zip(axes, row, strict=True):
            axis.imshow(np.clip(picture[..., -3:], 0, 1), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
        axes[0].set_ylabel(name)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def reconstruct(options: Options, env: Pixels | None = None) -> dict[str, float]:
    """Draws the figure; returns the mean squared error of a value (0 to 1) for each row but the first."""
    config, progress = read_run(options.run), Progress()
    if config.algo != "genda" or not config.pixels or config.agent.no_cib:
        raise UserError(f"{options.run} has no decoder of pictures: it takes --pixels, --algo genda and the CIB")
    start.prepare(options.compile_cache)
    env = env or env_of(config, options.floor)
    skills = load_skills(options.run, options.step, env, progress)
    with progress.waiting("drawing"):
        pictures = rebuilt(env, skills, shown_states(env, skills, options.skills))
    name = f"reconstructions_{skills.step}" + (f"_{options.floor}" if options.floor else "")
    path = options.run / "eval" / f"{name}.png"
    draw(path, f"{config.env}, {skills.step:,} steps", pictures)
    errors = {row: float(((pictures[row] - pictures["seen"]) ** 2).mean()) for row in ROWS[1:]}
    progress.say(f"mean squared error: {', '.join(f'{row} {error:.5f}' for row, error in errors.items())}")
    progress.say(f"wrote {path}")
    return errors


if __name__ == "__main__":
    start.main(lambda: reconstruct(tyro.cli(Options)), flag="RUN")
