"""Fixed observation statistics of each body, from our own random rollouts: real reset law, real action repeat.

Stored in `envs/data/normalizer.json`. To make them again:  python -m envs.normalizer [body ...]
"""

import json
import pathlib
import sys

import jax
import numpy as np

FILE = pathlib.Path(__file__).resolve().parent / "data" / "normalizer.json"


def load(name: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation [obs] of a body's raw observations."""
    stored = json.loads(FILE.read_text()).get(name) if FILE.exists() else None
    if stored is None or len(stored["mean"]) != size:
        raise ValueError(
            f"no statistics for {name} with {size} observations in {FILE.name}: run `python -m envs.normalizer {name}` "
            "or make the env with normalize=False"
        )
    return np.array(stored["mean"]), np.array(stored["std"])


def measure(name: str, episodes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean and std [obs] of observations under uniform random actions, and how many copies failed and were left out."""
    import envs  # it imports this module

    env = envs.make(name, normalize=False)

    def rollout(key):
        state = env.reset(key)

        def step(state, key):
            state = env.step(state, jax.random.uniform(key, (env.action_size,), minval=-1, maxval=1))
            return state, state.obs

        state, obs = jax.lax.scan(step, state, jax.random.split(key, env.episode_length))
        return obs, state.info["failed"]

    run, copies = jax.jit(jax.vmap(rollout)), min(episodes, 128)
    rows, failures = [], 0
    for start in range(0, episodes, copies):
        obs, failed = run(jax.random.split(jax.random.key(seed + start), copies))
        rows.append(np.asarray(obs, np.float64)[~np.asarray(failed)])
        failures += int(failed.sum())
        print(f"\r{name}: {start + copies}/{episodes} episodes", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    flat = np.concatenate(rows).reshape(-1, env.observation_size)
    return flat.mean(0), flat.std(0), failures


def digits(values: np.ndarray) -> list[float]:
    """Values with six digits: more would be noise."""
    return [float(f"{value:.6g}") for value in values]


def main(names: list[str]) -> None:
    """Measures the bodies and adds them to the file."""
    import envs  # it imports this module

    table = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in names or envs.NAMES:
        body = envs.body_class(name)
        mean, std, failures = measure(name, body.normalizer_episodes)
        for entry, value in body.fixed_std.items():
            std[entry] = value
        row = {"episodes": body.normalizer_episodes, "failed": failures, "mean": digits(mean), "std": digits(std)}
        table[name] = row
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text("{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in sorted(table.items())) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
