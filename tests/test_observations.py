"""Our observations against dm_control's, from the same states, through the real dm_control package."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import suite_reference as reference
from conftest import raw_env

from envs import physics
from envs.body import BodyState
from envs.physics import PhysicsState, SensorQuantities

STATES = 200
SIZES = {"fish": (27, 5), "quadruped": (81, 12), "humanoid": (70, 21), "dog": (226, 38)}
# Observation entries that are read in the acceleration stage: accelerometer, forces, torques, touch.
SENSED = {"quadruped": np.r_[51:54, 57:81], "dog": np.r_[163:166, 172:188]}


def collect(name: str, lift: float = 0.0) -> dict[str, np.ndarray]:
    """STATES states of the suite environment: our reset law (raised by `lift` m), then random actions.

    Each comes with the state one physics step before it, which is where acceleration-stage sensors belong.
    """
    env, ours, rng = reference.load(name), raw_env(name), np.random.default_rng(0)
    rows = []
    for episode in range(STATES // 10):
        start = jax.tree.map(lambda leaf, e=episode: leaf[e], ours.bank)
        reference.place(env, start.qpos + np.eye(len(start.qpos))[2] * lift, start.qvel, start.act, start.drawn)
        data, spec = env.physics.data, env.action_spec()
        for _ in range(10):
            env.physics.set_control(rng.uniform(spec.minimum, spec.maximum))
            env.physics.step(rng.integers(1, 8))
            before = [x.copy() for x in (data.qpos, data.qvel, data.act, data.ctrl, data.qacc_warmstart)]
            touching = data.ncon > 0  # contacts of the state that the sensors belong to
            env.physics.step()
            now = [x.copy() for x in (data.qpos, data.qvel, data.act)]
            rows.append((*before, *now, start.drawn, reference.observation(env), touching))
    names = ["qpos0", "qvel0", "act0", "ctrl", "warmstart", "qpos", "qvel", "act", "drawn", "observation", "touching"]
    return {key: np.array(column) for key, column in zip(names, zip(*rows, strict=True), strict=True)}


def ours(name: str, s: dict[str, np.ndarray]) -> np.ndarray:
    """Our observation [states, obs] of the same states, sensors from one step of our physics."""
    env = raw_env(name)
    last = lambda x: jnp.asarray(x.T, jnp.float32)

    @jax.jit
    def observe():
        before = PhysicsState(last(s["qpos0"]), last(s["qvel0"]), last(s["act0"]), last(s["warmstart"]))
        _, record = physics.step(env.physics_model, before, last(s["ctrl"]))
        sensors = env.sense(SensorQuantities(env.physics_model, record))
        sensors = jnp.concatenate(sensors) if sensors else jnp.zeros((0, len(s["qpos"])))
        now = PhysicsState(last(s["qpos"]), last(s["qvel"]), last(s["act"]), last(s["warmstart"]))
        return env._observation(BodyState(now, sensors, last(s["drawn"]), jnp.zeros(len(s["qpos"]), bool)))

    with jax.default_matmul_precision("highest"):
        return np.asarray(observe()).T


def relative_error(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Error relative to the value, or to the entry's spread where the value is near zero."""
    return np.abs(found - expected) / np.maximum(np.abs(expected), expected.std(0) + 1e-6)


@pytest.mark.parametrize("name", SIZES)
def test_observation_equals_dm_control(name):
    states = collect(name)
    expected, found = states["observation"], ours(name, states)
    assert found.shape[1] == SIZES[name][0] == raw_env(name).observation_size
    assert raw_env(name).action_size == SIZES[name][1]
    entries = np.setdiff1d(np.arange(found.shape[1]), SENSED.get(name, []))
    assert relative_error(found, expected)[:, entries].max() < 1e-3


@pytest.mark.parametrize("name", SENSED)
def test_acceleration_sensors_equal_dm_control_in_flight(name):
    states = collect(name, lift=2.0)
    free = ~states["touching"]
    assert (
        free.sum() >= 50
    )  # the dog, which collides with itself in C MuJoCo, is free in fewer states than the quadruped
    expected, found = states["observation"][free], ours(name, states)[free]
    assert np.abs(expected[:, SENSED[name]]).max() > 1.0  # the sensors do read something
    assert relative_error(found, expected)[:, SENSED[name]].max() < 1e-3
