"""A look at the skills of a stored run: numbers, plots and one JSON object."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from envs import measures
from envs.base import SkillEnv
from genda_mjx import evaluate as evaluation
from genda_mjx.build import body_class, env_of
from genda_mjx.config import UserError
from genda_mjx.evaluate import Episodes
from genda_mjx.runs import explore as explorer
from genda_mjx.runs import plots, start
from genda_mjx.runs.folder import save_episodes, write_text
from genda_mjx.runs.report import Progress, number
from genda_mjx.runs.stored import Skills, load_skills, read_run

DIRECTIONS = 8  # starts on a circle, for each distance of `--offsets`
Offset = tuple[float, float]  # m, of every start


@dataclasses.dataclass(frozen=True)
class Session:
    """The skills of one checkpoint with their compiled evaluation."""

    folder: Path  # of the run, or of one seed in a run of several
    env: SkillEnv
    skills: Skills
    compiled: evaluation.Evaluate
    seed: int  # of skills and starts

    @property
    def key(self) -> jax.Array:
        return evaluation.evaluation_key(self.seed, self.skills.step)

    def episodes(self, offset: Offset = (0.0, 0.0)) -> Episodes:
        """Evaluation episodes from moved starts, with the same skills and start draws for every offset."""
        return jax.device_get(self.compiled(self.skills.state, self.key, np.asarray(offset, np.float32), np.False_))

    def summary(self, episodes: Episodes) -> dict[str, float]:
        return evaluation.summary(self.env, self.skills.agent, episodes)

    def file(self, name: str) -> Path:
        return self.folder / "eval" / name


def evaluate(
    folder: Path,
    step: int | None = None,
    episodes: int = 48,
    seed: int = 0,
    offset: Offset | None = None,
    distances: tuple[float, ...] = (),
    compile_cache: str = "",
    env: SkillEnv | None = None,
    explore: bool = False,
    floor: str | None = None,
    starts: str | None = None,
) -> dict[str, Any]:
    """Returns what the last line of eval.py says, and writes it to the run folder, beside the plots.

    step: the newest checkpoint if None. offset, distances: `--offset` and `--offsets`. env: instead of the run's body.
    explore: also write a page in which the skills run live.
    floor: instead of the run's, for one that sees pixels. starts: instead of the run's `--start`.
    """
    if episodes < 1:
        raise UserError(f"--episodes is {episodes}; it must be greater than 0")
    if any(distance < 0 for distance in distances):
        raise UserError(f"--offsets are distances in metres, got {' '.join(f'{d:g}' for d in distances)}")
    config, progress = read_run(folder), Progress()
    if (offset is not None or distances) and not (env or body_class(config.env)).movable:
        raise UserError(f"--offset, --offsets: the starts of {config.env} cannot be moved")
    if floor is not None and not config.pixels:
        raise UserError(f"--floor {floor}: the run in {folder} sees no floor; train one with --pixels")
    start.prepare(compile_cache)
    with progress.waiting(f"building {config.env}"):
        env = env or env_of(config if starts is None else config.replace(start=starts), floor)
    skills = load_skills(folder, step, env, progress)
    draft = explorer.draft(env, skills) if explore else None
    with progress.waiting("compiling evaluation"):
        compiled = evaluation.compile(env, skills.agent, episodes, skills.state)
    session = Session(folder, env, skills, compiled, seed)
    with progress.waiting(f"running {episodes} skills"):
        origin = session.episodes()
    asked = {"env": config.env, "algo": config.algo, "step": skills.step, "episodes": episodes, "seed": seed}
    found = session.summary(origin)
    result = asked | found
    title = f"{config.env}, {skills.step:,} steps: {number(result[env.headline])} {env.unit}"
    label = f"{skills.step}" + "".join(f"_{other}" for other in (floor, starts and f"start_{starts}") if other)
    if starts is not None:
        result["start"] = starts
    if config.pixels:
        result["floor"] = floor or config.floor
    written = list(plots.draw_episodes(folder / "eval", label, title, skills.agent.skills, origin).values())
    if offset is not None:
        label += f"_offset_{offset[0]:g}_{offset[1]:g}"
        written.append(session.file(f"offset_{label}.png"))
        result |= from_offset(session, origin, offset, written[-1])
    if distances:
        result["offsets"] = [from_circle(session, origin, distance, written) for distance in distances]
        progress.say(table(result["offsets"]))
        label += "_offsets"
    if draft:
        page = explorer.write(session.file(f"explore_{skills.step}.html"), draft, session.key, origin, found)
        progress.say(f"open {page} in a browser ({page.stat().st_size / 1e6:.1f} MB, everything inside)")
        result["page"] = str(page)
    save_episodes(session.file(f"episodes_{label}.npz"), origin)
    write_text(session.file(f"result_{label}.json"), json.dumps(result, indent=2))
    progress.say("wrote " + ", ".join(map(str, written)))
    return result


def from_offset(session: Session, origin: Episodes, offset: Offset, picture: Path) -> dict[str, Any]:
    """How the same skills do from a moved start."""
    shifted, headline = session.episodes(offset), session.env.headline
    draw_offset(session, picture, origin, shifted, offset)
    return {
        "offset": list(offset),
        f"offset_{headline}": session.summary(shifted)[headline],
        "consistency": consistency(origin, shifted),
    }


def from_circle(session: Session, origin: Episodes, distance: float, written: list[Path]) -> dict[str, float]:
    """Headline and consistency of the same skills from starts on a circle about the origin; draws one of them."""
    headline, found, cosines = session.env.headline, [], []
    for angle in np.arange(DIRECTIONS if distance else 1) * 2 * np.pi / DIRECTIONS:
        shifted = session.episodes((distance * np.cos(angle), distance * np.sin(angle)))
        found.append(session.summary(shifted)[headline])
        cosines.append(consistency(origin, shifted))
        if distance and angle == 0:
            written.append(session.file(f"offset_{session.skills.step}_distance_{distance:g}.png"))
            draw_offset(session, written[-1], origin, shifted, (distance, 0))
    return {
        "distance": distance,
        headline: float(np.mean(found)),
        f"{headline}_std": float(np.std(found)),
        "consistency": float(np.mean(cosines)),
        "consistency_min": float(np.min(cosines)),
    }


def draw_offset(session: Session, path: Path, origin: Episodes, shifted: Episodes, offset: Offset) -> None:
    x, y = offset
    groups = [("start at (0, 0)", origin), (f"start at ({x:g}, {y:g})", shifted)]
    paths = [(title, episodes.traces["position"]) for title, episodes in groups]
    plots.offsets(path, paths, session.skills.agent.skills.colors(origin.skills))


def consistency(origin: Episodes, shifted: Episodes) -> float:
    return measures.consistency(origin.traces["position"], shifted.traces["position"])


def table(rows: list[dict[str, float]]) -> str:
    """The rows as a text with aligned columns."""
    lines = [list(rows[0])] + [[f"{value:.4g}" for value in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
