"""How far a body goes by the noise of its actions alone: python -m experiments.noise humanoid --start standing

Random actions in C MuJoCo, kept at an entropy (`--entropy_target` of train.py) and held for some steps
(`--noise_steps`): what a policy that does not know yet where to go will see of its world.
"""

import dataclasses
import itertools
from typing import Literal

import mujoco
import numpy as np
import tyro

from envs import resets
from envs.body import Body
from genda_mjx.build import body_class
from genda_mjx.config import MOST_ENTROPY, UserError
from genda_mjx.runs import start

FIRST = 40  # steps that are left out: falling, or being pushed, is not the noise's doing
WINDOW = 20  # steps of a way


@dataclasses.dataclass(frozen=True)
class Options:
    env: tyro.conf.Positional[str]  # body
    start: Literal["paper", "standing"] = "paper"  # as in train.py
    entropies: tuple[float, ...] = (-1.0, -0.5, 0.0, 0.3)  # nats per motor, each below that of uniform actions
    held: tuple[int, ...] = (1, 5, 10)  # steps
    episodes: int = 16


def entropy(spread: float) -> float:
    """Of tanh(u), u normal with this standard deviation: log density of u and of the squashing, by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(99)
    squash = 2 * (np.log(2) - np.logaddexp(spread * nodes, -spread * nodes))  # log(1 - tanh^2)
    return 0.5 * np.log(2 * np.pi * np.e * spread**2) + (weights @ squash) / weights.sum()


def spread_of(target: float) -> float:
    """Standard deviation of u for which tanh(u) has this entropy; it has most of it near 0.87."""
    low, high = 1e-3, 0.87
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy(middle) < target else (low, middle)
    return low


def way(cls: type[Body], model: mujoco.MjModel, options: Options, spread: float, held: int) -> float:
    """Metres in WINDOW steps, mean over the episodes after their FIRST steps."""
    data, rng = mujoco.MjData(model), np.random.default_rng(0)
    low, high = model.actuator_ctrlrange.T
    draw_start = resets.stand if options.start == "standing" else cls.draw_start
    substeps = round(cls.action_repeat * cls.control_timestep / model.opt.timestep)
    ways = []
    for _ in range(options.episodes):
        mujoco.mj_resetData(model, data)
        draw_start(model, data, rng)
        places = []
        for step in range(cls.episode_length):
            if step % held == 0:
                action = np.tanh(spread * rng.standard_normal(model.nu))
                data.ctrl[:] = low + (high - low) * (action + 1) / 2
            mujoco.mj_step(model, data, substeps)
            places.append(data.qpos[: cls.position_size].copy())
        ways.append(np.linalg.norm(np.diff(places[FIRST::WINDOW], axis=0), axis=1).mean())
    return float(np.mean(ways))


def table(options: Options) -> str:
    cls = body_class(options.env)
    if not cls.movable:
        raise UserError(f"{options.env} stays where it is")
    if options.start == "standing" and not cls.stands:
        raise UserError(f"--start standing: {options.env} does not stand")
    if any(not target < MOST_ENTROPY for target in options.entropies):
        raise UserError(f"--entropies must be below {MOST_ENTROPY:.2f}, that of uniform actions")
    model = cls.edited_spec().compile()
    cells = itertools.product(options.entropies, options.held)
    ways = [way(cls, model, options, spread_of(target), held) for target, held in cells]
    rows = np.reshape(ways, (len(options.entropies), -1))
    head = ["entropy per motor", *(f"held for {held}" for held in options.held)]
    lines = [head, ["---"] * len(head)]
    lines += [[f"{target:g}", *(f"{x:.3f}" for x in row)] for target, row in zip(options.entropies, rows, strict=True)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    options = tyro.cli(Options)
    print(f"{options.env}: metres in {WINDOW} steps by noise alone, {options.episodes} episodes\n\n{table(options)}")


if __name__ == "__main__":
    start.main(main)
