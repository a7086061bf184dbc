"""Random rollouts in our physics and of the unedited model in dm_control, from equal starts with equal actions.

PYTHONPATH=. python tests/random_rollouts.py [body ...]      prints the spreads side by side
"""

import jax
import jax.numpy as jnp
import numpy as np
import suite_reference as reference
from conftest import COPIES, batched, raw_env

GROUPS = {  # sizes of the observation's parts, in order
    "fish": {"position": 3, "hinges": 7, "upright": 1, "target": 3, "root velocity": 6, "hinge rates": 7},
    "quadruped": {
        "position": 3,
        "hinges": 16,
        "hinge rates": 16,
        "activations": 12,
        "velocity": 3,
        "upright": 1,
        "accelerometer": 3,
        "gyro": 3,
        "toe forces": 12,
        "toe torques": 12,
    },
    "humanoid": {
        "position": 3,
        "hinges": 21,
        "head height": 1,
        "extremities": 12,
        "vertical": 3,
        "velocity": 3,
        "root velocity": 6,
        "hinge rates": 21,
    },
    "dog": {
        "position": 3,
        "hinges": 73,
        "hinge rates": 73,
        "heights": 2,
        "verticals": 9,
        "velocity": 3,
        "accelerometer": 3,
        "velocimeter": 3,
        "gyro": 3,
        "foot forces": 12,
        "touch": 4,
        "activations": 38,
    },
}


def actions(name: str, episodes: int, steps: int) -> np.ndarray:
    """[steps, episodes, action] uniform in [-1, 1]."""
    return np.random.default_rng(1).uniform(-1, 1, (steps, episodes, raw_env(name).action_size)).astype(np.float32)


def in_ours(name: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Raw observations [steps, COPIES, obs] and failures [COPIES] of our physics, from the first starts of the bank."""
    start, step = batched(name)
    state, rows = start(jax.random.split(jax.random.key(0), COPIES), jnp.zeros(())), []
    for action in actions(name, COPIES, steps):
        state = step(state, action)
        rows.append(np.asarray(state.obs))
    return np.array(rows), np.asarray(state.info["failed"])


def in_suite(name: str, steps: int, episodes: int = COPIES) -> np.ndarray:
    """The same in the real dm_control environment: unedited model, C MuJoCo."""
    env, ours = reference.load(name), raw_env(name)
    act, low, high = actions(name, episodes, steps), *ours.model.actuator_ctrlrange.T
    rows = np.zeros((steps, episodes, ours.observation_size))
    for e in range(episodes):
        reference.place(env, ours.bank.qpos[e], ours.bank.qvel[e], ours.bank.act[e], ours.bank.drawn[e])
        for t in range(steps):
            env.physics.set_control(low + (high - low) * (act[t, e] + 1) / 2)
            env.physics.step(ours.physics_steps)
            rows[t, e] = reference.observation(env)
    return rows


def spreads(name: str, obs: np.ndarray) -> dict[str, float]:
    """Root-mean-square standard deviation of each observation group."""
    flat = obs.reshape(-1, obs.shape[-1])
    ends = np.cumsum(list(GROUPS[name].values()))
    assert ends[-1] == flat.shape[1]
    variance = np.split(flat.var(0), ends[:-1])
    return {group: float(np.sqrt(v.mean())) for group, v in zip(GROUPS[name], variance, strict=True)}


def shifted_entries(name: str, ours: np.ndarray, theirs: np.ndarray, count: int = 5) -> list[str]:
    """Single entries whose means differ most, in units of dm_control's spread; hinges by their joint."""
    ours, theirs = (rows.reshape(-1, rows.shape[-1]) for rows in (ours, theirs))
    shift = np.abs(ours.mean(0) - theirs.mean(0)) / (theirs.std(0) + 1e-6)
    model, groups = raw_env(name).model, GROUPS[name]
    names = [f"{group} {i}" for group, size in groups.items() for i in range(size)]
    for i in range(groups.get("hinges", 0)):
        names[3 + i] = f"hinge {model.joint(i + 1).name}"
    return [
        f"{names[k]}: ours {ours[:, k].mean():.3f} +- {ours[:, k].std():.3f}, "
        f"suite {theirs[:, k].mean():.3f} +- {theirs[:, k].std():.3f}"
        for k in np.argsort(-shift)[:count]
    ]


if __name__ == "__main__":
    import sys

    for body in sys.argv[1:] or GROUPS:
        ours, failed = in_ours(body, 200)
        theirs = in_suite(body, 200)
        a, b = spreads(body, ours), spreads(body, theirs)
        print(body, "failed", int(failed.sum()), "max |value|", np.abs(ours).max())
        for group in a:
            print(f"  {group:14s} ours {a[group]:9.4f}  suite {b[group]:9.4f}  ratio {a[group] / b[group]:.3f}")
        print("  entries whose means differ most:", *shifted_entries(body, ours, theirs), sep="\n    ")
