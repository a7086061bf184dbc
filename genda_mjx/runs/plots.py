"""Pictures of an evaluation, drawn as in the paper: one line per episode, coloured by its skill."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import hsv_to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from genda_mjx.agents.skills import SkillSpace
from genda_mjx.evaluate import Episodes


def draw_lines(path: Path, groups: list[tuple[str, np.ndarray]], colors: np.ndarray, labels: tuple[str, str]) -> None:
    """Draws a panel per (title, curves [E, T+1, >=1]) in colours [E, 3] (hue, saturation, value), all in one scale."""
    figure = Figure(figsize=(5.5 * len(groups), 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(groups), squeeze=False)[0]
    everything = np.concatenate([np.asarray(curves).reshape(-1, curves.shape[-1]) for _, curves in groups])
    reach = 1.05 * max(np.abs(everything[:, :2]).max(), 1e-3)
    for panel, (title, curves) in zip(panels, groups, strict=True):
        curves = np.asarray(curves)
        x = curves[..., 0]
        y = curves[..., 1] if curves.shape[-1] > 1 else np.broadcast_to(np.arange(curves.shape[1]), x.shape)
        for i, color in enumerate(hsv_to_rgb(colors)):
            panel.plot(x[i], y[i], color=color, linewidth=1.0)
        panel.set(title=title, xlabel=labels[0], ylabel=labels[1], xlim=(-reach, reach))
        if curves.shape[-1] > 1:
            panel.set(ylim=(-reach, reach), aspect="equal")
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Writes the whole picture, then renames it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.stem + ".part" + path.suffix)
    figure.savefig(partial, dpi=100)
    partial.replace(path)


def draw_episodes(folder: Path, label: str, title: str, skills: SkillSpace, episodes: Episodes) -> dict[str, Path]:
    """The trajectories plot, and the phi plot where the agent has phi: name -> path."""
    paths = {"trajectories": folder / f"trajectories_{label}.png"}
    colors = skills.colors(episodes.skills)
    trajectories(paths["trajectories"], title, episodes.traces["position"], colors)
    if episodes.latents is not None:
        paths["phi"] = folder / f"phi_{label}.png"
        latents(paths["phi"], title, episodes.latents, colors)
    return paths


def trajectories(path: Path, title: str, positions: np.ndarray, colors: np.ndarray) -> None:
    draw_lines(path, [(title, positions)], colors, ("x (m)", "y (m)"))


def latents(path: Path, title: str, phi: np.ndarray, colors: np.ndarray) -> None:
    draw_lines(path, [(title, phi)], colors, ("phi 1", "phi 2"))


def offsets(path: Path, groups: list[tuple[str, np.ndarray]], colors: np.ndarray) -> None:
    """The same skills from several starts, each drawn relative to its own start so that they can be laid over."""
    moved = [(title, np.asarray(positions) - np.asarray(positions)[:, :1]) for title, positions in groups]
    draw_lines(path, moved, colors, ("x from the start (m)", "y from the start (m)"))


def goal_trajectories(
    path: Path,
    title: str,
    positions: np.ndarray,
    goals: np.ndarray,
    success: np.ndarray,
    radius: float,
    walls: Sequence[tuple[float, float, float, float]] = (),
) -> None:
    """Paths [E, T+1, g] to goals [E, g] in the plane, over walls (x, y, width, height); failures are drawn on top."""
    figure = Figure(figsize=(6.5, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for x, y, width, height in walls:
        panel.add_patch(Rectangle((x, y), width, height, facecolor="0.6", edgecolor="none"))
    for goal in np.unique(goals[:, :2], axis=0):
        panel.add_patch(Circle(goal, radius, facecolor="tab:green", alpha=max(0.25 / len(goals), 0.02)))
    panel.plot(goals[:, 0], goals[:, 1], "*", color="tab:green", markersize=9, label="goal")
    for reached, color, label in ((True, "tab:blue", "reached"), (False, "tab:red", "missed")):
        for i, line in enumerate(positions[success == reached]):
            panel.plot(line[:, 0], line[:, 1], color=color, linewidth=0.9, label=label if i == 0 else None)
    panel.plot(positions[:, 0, 0], positions[:, 0, 1], "o", color="black", markersize=4, label="start")
    panel.set(title=title, xlabel="x (m)", ylabel="y (m)", aspect="equal")
    panel.legend(loc="upper right", fontsize="small")
    save(figure, path)
