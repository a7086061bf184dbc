"""When in an episode skills go where z says, and what the body does then: python -m experiments.control RUN [STEP ...]

From the evaluations that a run keeps (RUN/evaluations); all of them if no step is given. Up to three tables a step:
over time, cosine of z with the way of phi, speed and, for bodies that stand, the share upright and the turn since the
start; by that turn, this cosine, so that it shows whether a body that has turned still knows where to go; by the
direction on the floor that z asks for, how far skills go and how far off, so that gaps show.
"""

import itertools
import sys
from pathlib import Path

import jax
import numpy as np

from genda_mjx import agents
from genda_mjx.build import body_class
from genda_mjx.config import UserError
from genda_mjx.runs import start
from genda_mjx.runs.folder import read_config

WINDOWS = 10  # equal parts of an episode
TURNS = np.radians([0, 20, 45, 90, 135, 181])
SECTORS = 12  # of the direction that is asked for


def cosines(wanted: np.ndarray, latents: np.ndarray, times: np.ndarray) -> np.ndarray:
    """[E, windows] cosine of wanted [E, d] with the way of latents [E, T+1, d] between neighbouring times."""
    way = np.diff(latents[:, times], axis=1)
    norms = np.linalg.norm(way, axis=-1) * np.linalg.norm(wanted, axis=-1)[:, None]
    return (way * wanted[:, None]).sum(-1) / np.maximum(norms, 1e-8)


def torso(quaternions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of orientations [..., 4]: is the z axis above the horizon, and the heading of the x axis, rad."""
    w, x, y, z = np.moveaxis(quaternions.astype(np.float64), -1, 0)
    return w * w + z * z > x * x + y * y, np.arctan2(2 * (x * y + w * z), 1 - 2 * (y * y + z * z))


def displacement_in_phi(positions: np.ndarray, latents: np.ndarray) -> np.ndarray:
    """[g, d] maps a displacement, m, to that of phi: least squares over episodes [E, T+1, ...]."""
    return np.linalg.lstsq(positions[:, -1] - positions[:, 0], latents[:, -1] - latents[:, 0], rcond=None)[0]


def explained(latents: np.ndarray, positions: np.ndarray) -> float:
    """Share of the variance of phi(s_T) - phi(s_0) that a linear map of the displacement explains."""
    moved, way = positions[:, -1] - positions[:, 0], latents[:, -1] - latents[:, 0]
    rest = way - moved @ displacement_in_phi(positions, latents)
    return 1 - (rest**2).sum() / ((way - way.mean(0)) ** 2).sum()


def by_direction(wanted: np.ndarray, latents: np.ndarray, positions: np.ndarray) -> str:
    """A table of skills by the direction on the floor that z asks for, through the map of `displacement_in_phi`."""
    asked = wanted @ np.linalg.pinv(displacement_in_phi(positions, latents))
    moved = positions[:, -1] - positions[:, 0]
    angles = [np.arctan2(way[:, 1], way[:, 0]) for way in (asked, moved)]
    off = np.degrees(np.abs(np.angle(np.exp(1j * (angles[1] - angles[0])))))
    sector = np.floor(angles[0] / (2 * np.pi / SECTORS)).astype(int) % SECTORS
    inside = [sector == k for k in range(SECTORS)]
    rows = {
        "skills": [int(mine.sum()) for mine in inside],
        "net metres": [f"{np.linalg.norm(moved[mine], axis=-1).mean():.1f}" if mine.any() else "" for mine in inside],
        "off, degrees": [f"{off[mine].mean():.0f}" if mine.any() else "" for mine in inside],
    }
    width = 360 // SECTORS
    header = ["asked for, degrees", *(f"{width * k}-{width * (k + 1)}" for k in range(SECTORS))]
    return table(header, [[name, *cells] for name, cells in rows.items()])


def table(header: list[str], rows: list[list[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def describe(wanted: np.ndarray, stored: dict[str, np.ndarray], stands: bool) -> str:
    """The tables of one evaluation."""
    latents, positions = stored["latents"].astype(np.float64), stored["position"].astype(np.float64)
    times = np.linspace(0, latents.shape[1] - 1, WINDOWS + 1).astype(int)
    cosine = cosines(wanted, latents, times)
    metres = np.linalg.norm(np.diff(positions[:, times], axis=1), axis=-1)
    columns = {"steps": [f"{a}-{b}" for a, b in itertools.pairwise(times)]}
    columns |= {"cosine": cosine.mean(0).round(2), "metres": metres.mean(0).round(2)}
    parts = [f"phi explained by displacement: {explained(latents, positions):.2f}"]
    if stands:
        upright, heading = torso(stored["qpos"][:, times[:-1], 3:7])
        turn = np.abs(np.angle(np.exp(1j * (heading - heading[:, :1]))))
        columns |= {"upright": upright.mean(0).round(2), "turned, rad": turn.mean(0).round(2)}
    rows = [[name, *values] for name, values in list(columns.items())[1:]]
    parts.append(table(["steps", *columns["steps"]], rows))
    if stands:
        inside = [(turn >= low) & (turn < high) for low, high in itertools.pairwise(TURNS)]
        degrees = np.degrees(TURNS).round().astype(int)
        names = [f"{a}-{b}" for a, b in itertools.pairwise(degrees)]
        by_turn = [f"{np.average(cosine[m], weights=metres[m] + 1e-9):.2f}" if m.any() else "" for m in inside]
        parts.append(table(["turned, degrees", *names], [["cosine, weighted by metres", *by_turn]]))
    if positions.shape[-1] == 2:
        parts.append(by_direction(wanted, latents, positions))
    return "\n\n".join(parts)


def main() -> None:
    if len(sys.argv) < 2:
        raise UserError("which run? python -m experiments.control RUN [STEP ...]")
    run = Path(sys.argv[1])
    config = read_config(run)
    skills = agents.make(config, agents.Spec(jax.ShapeDtypeStruct((1,), np.float32), 1)).skills  # of any body
    stands = body_class(config.env).stands
    steps = sorted(int(path.stem) for path in (run / "evaluations").glob("*.npz"))
    for step in [int(word) for word in sys.argv[2:]] or steps:
        if step not in steps:
            raise UserError(f"no evaluation at step {step} in {run}; there are {', '.join(map(str, steps)) or 'none'}")
        with np.load(run / "evaluations" / f"{step}.npz") as stored:
            if "latents" not in stored:
                raise UserError(f"{config.algo} has no phi, so nothing says where its skills should go")
            wanted = np.asarray(skills.target(stored["skills"]))
            print(f"\n{run} at step {step:,}\n\n{describe(wanted, stored, stands)}")


if __name__ == "__main__":
    start.main(main)
