"""What walls cost: physics steps of a body in a maze against the same body on the open floor, in turns in one process.

    python -m benchmarks.mazes                          point, quadruped, humanoid and dog, both mazes
    python -m benchmarks.mazes quadruped --copies 16    one body

Both start from the same states and take the same random actions; the maze starts at the centre of its free cells, so
that bodies run into walls. Timings are noisy: the ratio is the median over pairs of runs, its quartiles beside it.
"""

import argparse
import time

import jax
import numpy as np

import envs
from envs.tasks import goals

AGENT_STEPS = 10  # length of the timed scan
WARM_UP = 6  # runs of that scan before timing, so that bodies have fallen and touch floor and walls
PAIRS = 15


def runner(env: envs.SkillEnv, state, actions):
    """A function that advances the copies by one scan and returns its seconds."""

    @jax.jit
    def scan(state, actions):
        return jax.lax.scan(lambda s, a: (jax.vmap(env.step)(s, a), None), state, actions)[0]

    now = [state]

    def run() -> float:
        begin = time.perf_counter()
        now[0] = jax.block_until_ready(scan(now[0], actions))
        return time.perf_counter() - begin

    return run


def ratios(body: str, task: str, copies: int) -> tuple[np.ndarray, float]:
    """Seconds in the maze over those on the open floor for each pair of runs, and physics steps/s on the open floor."""
    maze, floor = goals.make(body, task), envs.make(body)
    keys = jax.random.split(jax.random.key(0), copies)
    actions = jax.random.uniform(jax.random.key(1), (AGENT_STEPS, copies, floor.action_size), minval=-1)
    inside = runner(maze.env, jax.jit(jax.vmap(lambda k: maze.reset(k, evaluate=False)[0]))(keys), actions)
    outside = runner(floor, jax.jit(jax.vmap(floor.reset))(keys), actions)
    for _ in range(WARM_UP):
        inside(), outside()
    seconds = np.array([(inside(), outside()) for _ in range(PAIRS)])
    speed = AGENT_STEPS * floor.physics_steps * copies / np.median(seconds[:, 1])
    return seconds[:, 0] / seconds[:, 1], speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bodies", nargs="*", default=["point", "quadruped", "humanoid", "dog"])
    parser.add_argument("--tasks", nargs="+", default=["maze_easy", "maze_hard"])
    parser.add_argument("--copies", type=int, default=128)
    args = parser.parse_args()
    print(f"{'body':10s} {'maze':10s} {'copies':>6s} {'open floor, physics/s':>22s} {'maze takes':>10s}   quartiles")
    for body in args.bodies:
        for task in args.tasks:
            ratio, speed = ratios(body, task, args.copies)
            low, middle, high = np.percentile(ratio, [25, 50, 75])
            line = f"{body:10s} {task:10s} {args.copies:6d} {speed:22,.0f} {middle:9.2f}x   {low:.2f} .. {high:.2f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
