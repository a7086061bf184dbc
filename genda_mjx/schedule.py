"""What a config means in iterations, episodes and bytes, worked out and checked before anything is allocated."""

import os
from dataclasses import dataclass
from typing import Any

import jax

from genda_mjx.config import Config, UserError


@dataclass(frozen=True)
class Schedule:
    episode_length: int  # T
    steps_per_iteration: int  # N * T
    updates_per_iteration: int
    iterations: int
    warmup_iterations: int
    capacity: int  # C, episodes, a multiple of N
    eval_steps: int  # steps between evaluations, a multiple of steps_per_iteration; 0 for the end only
    checkpoint_steps: int
    keep_steps: int

    @property
    def total_steps(self) -> int:
        return self.iterations * self.steps_per_iteration


def derive(config: Config, episode_length: int) -> Schedule:
    steps = config.num_envs * episode_length
    if config.total_steps < steps:
        raise UserError(
            f"--total_steps {config.total_steps} is less than one iteration: {config.num_envs} envs x {episode_length} "
            f"steps = {steps}; raise it or lower --num_envs"
        )
    capacity = config.buffer_size // steps * config.num_envs
    if capacity < config.num_envs:
        raise UserError(f"--buffer_size {config.buffer_size} holds less than one iteration of {steps} steps; raise it")
    updates = round(steps * config.utd)
    if updates < 1:
        raise UserError(f"--utd {config.utd} gives no update in an iteration of {steps} steps; raise it")
    whole = lambda every: -(-every // steps) * steps  # rounded up, so that steps are hit exactly
    return Schedule(
        episode_length=episode_length,
        steps_per_iteration=steps,
        updates_per_iteration=updates,
        iterations=config.total_steps // steps,
        warmup_iterations=-(-config.warmup_episodes // config.num_envs),
        capacity=capacity,
        eval_steps=whole(config.eval_every),
        checkpoint_steps=whole(config.checkpoint_every),
        keep_steps=whole(config.keep_every),
    )


def nbytes(tree: Any) -> int:
    """Bytes of arrays or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def count(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def available_bytes() -> int | None:
    """Free memory of the first device; of the machine for the CPU backend; None where nobody tells."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        try:
            with open("/proc/meminfo") as meminfo:
                return next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemAvailable"))
        except (OSError, StopIteration):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    stats = device.memory_stats() or {}
    return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def describe(config: Config, schedule: Schedule, state: Any) -> str:
    """The schedule and memory of a run, from the shapes of its TrainState; refuses what cannot fit."""
    ring, agent = nbytes(state.ring), nbytes(state.agent)
    fresh = nbytes(state.ring.episodes) // schedule.capacity * config.num_envs  # of all seeds
    # Beside the state: gradients, as large as the parameters, and an iteration's episodes before and after transposing.
    needed = ring + agent + nbytes(state.agent.params) + 2 * fresh
    free = available_bytes()
    if free is not None and needed > free:
        raise UserError(
            f"this run needs {gib(needed)} ({gib(ring)} of it replay), {gib(free)} is free; "
            f"lower --buffer_size (now {config.buffer_size}), --num_envs or --hidden"
        )
    s = schedule
    lines = [
        f"{config.algo} on {config.env}: {s.iterations} iterations of {s.steps_per_iteration:,} steps "
        f"({config.num_envs} envs x {s.episode_length}) and {s.updates_per_iteration:,} updates of batch "
        f"{config.batch_size} = {s.total_steps:,} steps",
        f"warm-up {s.warmup_iterations} iterations ({s.warmup_iterations * config.num_envs} random episodes); "
        f"replay {s.capacity:,} episodes, {gib(ring)}",
        *(
            [f"{config.num_seeds} seeds side by side: {config.seed} to {config.seed + config.num_seeds - 1}"]
            if config.num_seeds > 1
            else []
        ),
        f"{count(state.agent.params):,} parameters; about {gib(needed)} of memory"
        + (f" of {gib(free)} free" if free is not None else "")
        + f" on {jax.default_backend()}",
    ]
    if s.warmup_iterations >= s.iterations:
        lines.append("warning: the warm-up takes the whole run, nothing will be learned; raise --total_steps")
    return "\n".join(lines)
