"""A bank of start states, drawn once by the body's reset law in C MuJoCo and indexed on the device.

Rejection and height search then cost nothing in the program, and a reset is one gather.
"""

import dataclasses
import hashlib
import inspect
import os
import pathlib
import sys
import tempfile
from importlib.metadata import version

import jax
import mujoco
import numpy as np

SEED = 0
TILT = 0.02  # standard deviation of each quaternion component of a body that stands
RAISE = 0.01  # m, step of the height search
CACHE = pathlib.Path(__file__).resolve().parent.parent / ".cache" / "banks"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bank:
    """Start states, one per row."""

    qpos: np.ndarray
    qvel: np.ndarray
    act: np.ndarray
    sensors: np.ndarray
    drawn: np.ndarray


def bank(env, size: int) -> Bank:
    """The body's bank, from the cache if it is there."""
    if size < 1:
        raise ValueError(f"bank_size must be at least 1, got {size}")
    try:
        path = CACHE / f"{env.name}-{cache_key(env, size)}.npz"
    except (OSError, TypeError):  # a body that was typed into a session has no file: nothing tells when it changes
        return _draw(env, size)
    if path.exists():
        with np.load(path) as stored:
            return Bank(**stored)
    made = _draw(env, size)
    _store(path, made)
    return made


def cache_key(env, size: int) -> str:
    """Changes with all that decides which states a bank has: the body's file with its reset law, this file, and the
    packages that the model and its physics come from."""
    law = [inspect.getsource(sys.modules[name]) for name in (type(env).__module__, __name__)]
    packages = [version(name) for name in ("mujoco", "dm_control", "numpy")]
    return hashlib.sha256(repr((env.name, env.standing, size, SEED, law, packages)).encode()).hexdigest()[:16]


def _draw(env, size: int) -> Bank:
    model = env.start_spec().compile()
    data, rng, rows = mujoco.MjData(model), np.random.default_rng(SEED), []
    draw_start = stand if env.standing else env.draw_start
    for _ in range(size):
        mujoco.mj_resetData(model, data)
        drawn = draw_start(model, data, rng)
        with_actuation = model.opt.disableflags
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)  # as dm_control's reset
        mujoco.mj_forward(model, data)
        model.opt.disableflags = with_actuation
        rows.append((data.qpos.copy(), data.qvel.copy(), data.act.copy(), env.stock_sensors(model, data), drawn))
    return Bank(*(np.array(column, np.float32) for column in zip(*rows, strict=True)))


def stand(model: mujoco.MjModel, data: mujoco.MjData, rng: np.random.Generator) -> np.ndarray:
    """Puts data (just reset) in the default pose, at rest, near upright and facing +x, raised in 1 cm steps until
    nothing touches the floor: how METRA and GenDa start the quadruped."""
    quat = np.array([1.0, 0, 0, 0]) + TILT * rng.standard_normal(4)
    data.qpos[3:7] = quat / np.linalg.norm(quat)
    data.qpos[:3] = 0
    while True:
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        if not (model.geom_bodyid[data.contact.geom] == 0).any():
            return np.zeros(0)
        data.qpos[2] += RAISE


def _store(path: pathlib.Path, made: Bank) -> None:
    """Writes whole or not at all; a read-only checkout just draws again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
            np.savez(file, **{f.name: getattr(made, f.name) for f in dataclasses.fields(Bank)})
        os.replace(file.name, path)
    except OSError:
        pass
