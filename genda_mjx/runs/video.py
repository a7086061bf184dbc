"""Skills side by side as a GIF and an mp4, drawn by `envs.render` from the coordinates that an evaluation has recorded.

Nothing is run again, and no display, OpenGL or system ffmpeg is needed: the encoder is in the imageio-ffmpeg package.
"""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import jax
import numpy as np
from matplotlib.colors import hsv_to_rgb
from PIL import Image

from envs import render
from envs.base import SkillEnv
from genda_mjx import agents
from genda_mjx.agents.skills import SkillSpace
from genda_mjx.build import env_of
from genda_mjx.config import UserError
from genda_mjx.evaluate import Episodes
from genda_mjx.runs import start
from genda_mjx.runs.folder import locate, read_config
from genda_mjx.runs.report import Progress

SHOWN = 6  # skills side by side if none are chosen
SIZE = 256  # pixels, of one skill
MP4_RATE, GIF_RATE = 25, 10  # frames a second, at most
GIF_COLORS = 96
STRIPE = 6  # rows on top in the colour that the plots give the skill


@dataclasses.dataclass(frozen=True)
class VideoOptions:
    video: bool = False  # a GIF and an mp4 of skills side by side, from the run's newest evaluation (or that of --step)
    video_skills: tuple[int, ...] = ()  # which of its episodes, from 0; some that are far apart if not given
    video_size: int = SIZE  # pixels, of one skill
    video_seconds: float = 0.0  # how much of the episodes; 0 shows all


def show(folder: Path, step: int | None, options: VideoOptions, compile_cache: str) -> dict[str, Any]:
    """Writes RUN/eval/skills_<step>.gif and .mp4; returns what the last line of eval.py says."""
    if not folder.is_dir():
        raise UserError(f"--ckpt {folder} does not exist; give the run folder that train.py has written")
    if options.video_size < 16 or options.video_size % 2:
        raise UserError(f"--video_size is {options.video_size}; it must be an even number of pixels, 16 or more")
    run, _ = locate(folder)
    config, progress = read_config(run), Progress()
    record, step = find_record(folder, step)
    episodes = load_record(record)
    start.prepare(compile_cache)
    with progress.waiting(f"building {config.env}"):
        env = env_of(config)
        skills = agents.make(config, agents.Spec.of(env)).skills
    with progress.waiting("drawing"):
        written = make(env, skills, episodes, folder / "eval" / f"skills_{step}", options)
    progress.say(f"wrote {written['gif']}, {written['mp4']}")
    return {
        "env": config.env,
        "step": step,
        "record": str(record),
        "skills": written["skills"],
        "gif": str(written["gif"]),
        "mp4": str(written["mp4"]),
    }


def find_record(folder: Path, step: int | None) -> tuple[Path, int]:
    """The newest evaluation record of a run, or that of a step: training's own, else one that eval.py has written."""
    found = {int(path.stem[9:]): path for path in (folder / "eval").glob("episodes_*.npz") if path.stem[9:].isdigit()}
    found |= {int(path.stem): path for path in (folder / "evaluations").glob("*.npz") if path.stem.isdigit()}
    if not found:
        raise UserError(f"{folder} has no evaluation record yet; make one with: python eval.py --ckpt {folder}")
    step = max(found) if step is None else step
    if step not in found:
        known = ", ".join(map(str, sorted(found)))
        raise UserError(f"{folder} has no evaluation record at --step {step}; there are {known}")
    return found[step], step


def load_record(path: Path) -> Episodes:
    with np.load(path) as stored:
        traces = {name: stored[name] for name in stored.files if name not in Episodes._fields}
        fields = {name: stored[name] for name in stored.files if name in Episodes._fields}
    return Episodes(traces=traces, **{"latents": None} | fields)


def make(
    env: SkillEnv, skills: SkillSpace, episodes: Episodes, path: Path, options: VideoOptions | None = None
) -> dict[str, Any]:
    """Writes path.gif and path.mp4; returns both and the indices of the episodes that they show."""
    options, env = options or VideoOptions(), getattr(env, "body", env)  # of an agent that sees pixels, the body
    if "qpos" not in episodes.traces:
        raise UserError(f"the evaluation record of {env.name} has no qpos, so its skills cannot be drawn")
    chosen = choose(episodes, options.video_skills)
    colors = (hsv_to_rgb(skills.colors(episodes.skills)[chosen]) * 255).astype(np.uint8)
    steps = episodes.traces["qpos"].shape[1]
    if options.video_seconds:
        steps = min(steps, 1 + round(options.video_seconds / env.dt))
    stride = max(1, round(1 / env.dt / MP4_RATE))
    qpos = np.asarray(episodes.traces["qpos"][chosen, :steps:stride], np.float32)
    panels = draw(env, qpos, options.video_size)
    panels[:, :, :STRIPE] = colors[:, None, None, None]
    frames = np.concatenate(list(panels), axis=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = 1 / (env.dt * stride)
    written = {"gif": path.with_suffix(".gif"), "mp4": path.with_suffix(".mp4"), "skills": chosen}
    write_mp4(written["mp4"], frames, rate)
    slower = max(1, round(rate / GIF_RATE))
    write_gif(written["gif"], frames[::slower], rate / slower)
    return written


def choose(episodes: Episodes, asked: tuple[int, ...]) -> list[int]:
    """Which episodes to show: those asked for, or the one that goes farthest and then always the skill that is the
    farthest from all that are shown. Episodes in which the physics failed are left out."""
    count = len(episodes.skills)
    unknown = [i for i in asked if not 0 <= i < count]
    if unknown:
        raise UserError(f"--video_skills {unknown[0]} is not in the record: it has the episodes 0 to {count - 1}")
    if asked:
        return list(asked)
    position, z = np.asarray(episodes.traces["position"], np.float32), np.asarray(episodes.skills)
    gone = np.where(episodes.valid, np.linalg.norm(position[:, -1] - position[:, 0], axis=-1), -1)
    chosen = [int(gone.argmax())]
    while len(chosen) < min(SHOWN, int(np.sum(episodes.valid))):
        apart = np.linalg.norm(z[:, None] - z[chosen], axis=-1).min(1)
        chosen.append(int(np.where(episodes.valid, apart, -1).argmax()))
    return sorted(chosen, key=lambda i: np.arctan2(z[i, min(1, z.shape[1] - 1)], z[i, 0]))


def draw(env: SkillEnv, qpos: np.ndarray, size: int) -> np.ndarray:
    """uint8 [k, T, size, size, 3] from coordinates [k, T, nq], with shadows, smooth edges and a grid on the floor."""
    try:
        scene = render.scene_of(env, (size, size), floor="grid", shadow=True, subsamples=2)
    except (AttributeError, ValueError) as error:
        raise UserError(f"no pictures of {env.name}: {error}") from error

    @jax.jit
    @jax.vmap
    def pictures(qpos: jax.Array) -> jax.Array:
        return render.draw(scene, *render.poses(env, qpos))

    return np.stack([np.asarray(pictures(episode)) for episode in qpos])


def write_mp4(path: Path, frames: np.ndarray, rate: float) -> None:
    """frames uint8 [T, H, W, 3] at `rate` a second, H.264."""
    size = (frames.shape[2], frames.shape[1])
    writer = imageio_ffmpeg.write_frames(str(path), size, fps=rate, macro_block_size=2, ffmpeg_log_level="error")
    with warnings.catch_warnings():  # Python warns of forks beside JAX's threads; this child only runs the encoder
        warnings.simplefilter("ignore", RuntimeWarning)
        writer.send(None)
    for frame in frames:
        writer.send(np.ascontiguousarray(frame))
    writer.close()


def write_gif(path: Path, frames: np.ndarray, rate: float) -> None:
    """The same as an endless GIF of few colours, without dithering, so that the file stays small."""
    some = np.concatenate(list(frames[:: max(1, len(frames) // 4)]))
    palette = Image.fromarray(some).quantize(GIF_COLORS, method=Image.Quantize.MAXCOVERAGE)
    images = [Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 / rate), loop=0, optimize=True)
