"""What a config means in iterations, episodes and bytes, worked out and checked before anything is allocated."""

import os
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental.layout import Format

from genda_mjx import sharding
from genda_mjx.agents import Agent
from genda_mjx.config import Config, UserError
from genda_mjx.presets import MANY_ENVS, SCHEDULE_FLAGS, many_envs


@dataclass(frozen=True)
class Schedule:
    episode_length: int  # T
    steps_per_iteration: int  # N * T / G
    episodes_at_once: int  # M = N / G, episodes that end in an iteration
    updates_per_iteration: int
    iterations: int
    warmup_iterations: int
    capacity: int  # C, episodes, a multiple of M
    eval_steps: int  # steps between evaluations, a multiple of steps_per_iteration; 0 for the end only
    checkpoint_steps: int
    keep_steps: int

    @property
    def total_steps(self) -> int:
        return self.iterations * self.steps_per_iteration


def derive(config: Config, episode_length: int, num_devices: int = 1) -> Schedule:
    check_shares(config, episode_length, num_devices)
    at_once = config.num_envs // config.cohorts
    steps = at_once * episode_length  # as many as N envs take in T / G steps
    if config.total_steps < steps:
        raise UserError(
            f"--total_steps {config.total_steps} is less than one iteration: {at_once} episodes x {episode_length} "
            f"steps = {steps}; raise it or lower --num_envs"
        )
    capacity = config.buffer_size // steps * at_once
    if capacity < at_once:
        raise UserError(f"--buffer_size {config.buffer_size} holds less than one iteration of {steps} steps; raise it")
    updates = round(steps * config.utd)
    if updates < 1:
        raise UserError(f"--utd {config.utd} gives no update in an iteration of {steps} steps; raise it")

    def whole(every: int) -> int:
        """Rounds up to whole iterations, so that steps are hit exactly."""
        return -(-every // steps) * steps

    return Schedule(
        episode_length=episode_length,
        steps_per_iteration=steps,
        episodes_at_once=at_once,
        updates_per_iteration=updates,
        iterations=config.total_steps // steps,
        # As many steps with cohorts as without, but not before the first cohort's episodes end.
        warmup_iterations=max(-(-config.warmup_episodes // at_once), config.cohorts - 1),
        capacity=capacity,
        eval_steps=whole(config.eval_every),
        checkpoint_steps=whole(config.checkpoint_every),
        keep_steps=whole(config.keep_every),
    )


def check_shares(config: Config, episode_length: int, num_devices: int) -> None:
    """Refuses a config whose cohorts and devices cannot get equal shares of everything."""
    cohorts, envs, batch = config.cohorts, config.num_envs, config.batch_size
    if episode_length % cohorts:
        fitting = [g for g in range(1, episode_length + 1) if episode_length % g == 0]
        nearest = min(fitting, key=lambda g: abs(g - cohorts))
        raise UserError(f"--cohorts {cohorts} does not divide an episode's {episode_length} steps; try {nearest}")
    share = cohorts * num_devices
    if envs % share:
        parts = " on ".join([f"{cohorts} cohorts"] * (cohorts > 1) + [f"{num_devices} devices"] * (num_devices > 1))
        raise UserError(
            f"--num_envs {envs} cannot be split evenly over {parts}; choose a multiple of {share}, such as "
            f"{-(-envs // share) * share}" + ", or fewer with --num_devices" * (num_devices > 1)
        )
    if batch % num_devices:
        raise UserError(
            f"--batch_size {batch} cannot be split evenly over {num_devices} devices; choose a multiple of it, such as "
            f"{-(-batch // num_devices) * num_devices}"
        )


def nbytes(tree: Any) -> int:
    """Bytes of arrays or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def ring_nbytes(state: Any, platform: str) -> int:
    """Bytes of a state's ring; with what a TPU fills it up with where the order of an array is ours."""
    return filled_nbytes(state.ring, sharding.formats(state, platform).ring)


def filled_nbytes(part: Any, orders: Any) -> int:
    """Bytes of a part of a state, with what fills up the arrays whose order is ours."""
    filled = nbytes(part)
    for leaf, order in zip(jax.tree.leaves(part), jax.tree.leaves(orders), strict=True):
        if isinstance(order, Format):
            filled += sharding.filled_up(leaf, order.layout.major_to_minor) - nbytes(leaf)
    return filled


def second_ring_nbytes(state: Any, platform: str) -> int:
    """Bytes of the ring's arrays that a TPU keeps a second time, in rows, where the order of none of them is ours.

    The point's small preset: 102 MB of the 109 that the compiler counts as scratch. Where only the actions' order is
    not ours, on four v5e, quadruped and humanoid have less scratch than such a copy takes, the dog hardly more.
    """
    orders = jax.tree.leaves(sharding.formats(state, platform).ring.episodes)
    if platform != "tpu" or any(isinstance(order, Format) for order in orders):
        return 0
    return sum(sharding.copied_in_rows(leaf) for leaf in jax.tree.leaves(state.ring.episodes))


def count(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def available_bytes() -> int | None:
    """Free memory of the first device; of the machine for the CPU backend; None where it is unknown."""
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


@dataclass(frozen=True)
class Memory:
    """Bytes on one device."""

    ring: int
    state: int  # all that a run is, ring included
    scratch: int  # beside it while the program runs

    @property
    def total(self) -> int:
        return self.state + self.scratch


# Scratch of an env beside the bytes of its episode, where all are stepped at once: 0.13 fish, 0.26 quadruped,
# 0.36 humanoid, 0.8 dog. A CPU, which steps them in parts, needs less.
PHYSICS = 0.4


# Of the scratch that learning takes on a CPU, what a GPU takes: it keeps no second learner and fuses more. By XLA's
# count of an update of point, quadruped, humanoid and dog for an A100 (`benchmarks.parts --parts update`).
ON_A_GPU = 0.62


# States of a sample whose pictures and convolutions live at once in an update: by XLA's count of GenDa on the CPU,
# 48 x 48 pixels, depth 8, batch 32.
PICTURES = 20


def estimate(
    config: Config, schedule: Schedule, agent: Agent, state: Any, num_devices: int, platform: str = "cpu"
) -> Memory:
    """What a run needs on each device, from the shapes of its TrainState and before anything is compiled.

    On TPUs episodes are counted with what fills them up, and a ring that is kept twice twice; what learning takes is
    the CPU's.
    """
    orders, second_ring = sharding.formats(state, platform), second_ring_nbytes(state, platform)
    ring = ring_nbytes(state, platform) // num_devices
    under_way = filled_nbytes(state.cohorts, orders.cohorts) // num_devices
    learner = nbytes(state.agent)
    # Of all seeds, as rollouts stack it.
    episode = max(filled_nbytes(state.ring.episodes, orders.ring.episodes), second_ring) // schedule.capacity
    collecting = episode * (schedule.episodes_at_once + int(PHYSICS * config.num_envs)) // num_devices
    batch = config.num_seeds * config.batch_size * 4 // num_devices
    per_row = agent.scratch_rows * config.hidden + agent.scratch_pairs * config.batch_size
    per_row += PICTURES * agent.scratch_pictures
    # An iteration collects, then learns, and both use the same scratch; a loop keeps its state twice.
    learning = learner + int(batch * per_row)
    scratch = max(collecting, int(ON_A_GPU * learning) if platform in ("gpu", "cuda") else learning)
    return Memory(ring, ring + under_way + learner, scratch + second_ring // num_devices)


def check_memory(config: Config, needed: int, ring: int, num_devices: int) -> None:
    """Refuses what cannot fit; on the CPU all devices share one memory."""
    free = available_bytes()
    needed *= num_devices if jax.default_backend() == "cpu" else 1
    if free is not None and needed > free:
        raise UserError(
            f"this run needs {gib(needed)} ({gib(ring)} of it replay), {gib(free)} is free; "
            f"lower --buffer_size (now {config.buffer_size}), --num_envs, --batch_size or --hidden"
        )


def describe_memory(analysis: Any) -> str:
    """XLA's own count of the memory, which some backends do not give."""
    if analysis is None:
        return "XLA does not tell how much memory the program takes"
    state, scratch = analysis.argument_size_in_bytes, analysis.temp_size_in_bytes
    return f"by XLA's count {gib(state + scratch)} per device: {gib(state)} of state, {gib(scratch)} of scratch"


CPU_FLOPS = 5e10  # of a core in the networks' products; seen here 4e10 to 7e10


def remarks(config: Config, schedule: Schedule, parameters: int) -> list[str]:
    """What a user should know of the schedule before the run starts."""
    lines = []
    if config.num_envs >= MANY_ENVS and config.preset == "auto":
        advised = many_envs(config.num_envs)
        if all(getattr(config, name) == advised[name] for name in SCHEDULE_FLAGS):
            lines.append(
                f"schedule for {config.num_envs} envs (--preset accelerator); --preset paper keeps the paper's, which "
                f"has batches of 256 and utd 0.5"
            )
    if config.cohorts == 1 and config.num_envs >= MANY_ENVS:
        lines.append(
            f"note: each iteration is {schedule.steps_per_iteration:,} steps on one policy, then "
            f"{schedule.updates_per_iteration:,} updates; --preset accelerator or --cohorts 8 keep the policy fresh"
        )
    if jax.default_backend() == "cpu":
        updates = schedule.updates_per_iteration * schedule.iterations
        products = 6 * parameters * config.batch_size * updates * config.num_seeds  # each parameter there and back once
        days = products / (CPU_FLOPS * (os.cpu_count() or 1)) / 86_400
        if days > 1:
            lines.append(
                f"warning: on this CPU the {updates:,} updates alone take at least {days:,.0f} days; --preset small is "
                "made for a CPU, and --compile_for h100 tells what a GPU would take"
            )
    return lines


def describe(config: Config, schedule: Schedule, agent: Agent, state: Any, num_devices: int = 1) -> str:
    """The schedule and memory of a run, from the shapes of its TrainState; refuses what cannot fit."""
    memory = estimate(config, schedule, agent, state, num_devices, jax.default_backend())
    free = available_bytes()
    check_memory(config, memory.total, memory.ring, num_devices)
    s, cohorts = schedule, config.cohorts
    envs = f"{config.num_envs} envs x {s.episode_length // cohorts}" + f", {cohorts} cohorts" * (cohorts > 1)
    lines = [
        f"{config.algo} on {config.env}: {s.iterations} iterations of {s.steps_per_iteration:,} steps ({envs}) and "
        f"{s.updates_per_iteration:,} updates of batch {config.batch_size} = {s.total_steps:,} steps",
        f"warm-up {s.warmup_iterations} iterations ({s.warmup_iterations * s.steps_per_iteration:,} random steps); "
        f"replay {s.capacity:,} episodes, {gib(nbytes(state.ring))}; "
        f"{config.utd * config.batch_size:g} sampled transitions per step",
        f"{count(state.agent.params):,} parameters; about {gib(memory.total)} of memory"
        + (f" of {gib(free)} free" if free is not None else "")
        + f" on {jax.default_backend()}",
    ]
    if config.num_seeds > 1:
        lines.append(f"{config.num_seeds} seeds side by side: {config.seed} to {config.seed + config.num_seeds - 1}")
    if num_devices > 1:
        pod = f" of {jax.process_count()} processes" * (jax.process_count() > 1)
        lines.append(
            f"{num_devices} devices{pod}, each with {config.num_envs // num_devices} envs, "
            f"{s.capacity // num_devices:,} episodes of replay and {config.batch_size // num_devices} rows of a batch"
        )
    lines += remarks(config, schedule, count(state.agent.params))
    if s.warmup_iterations >= s.iterations:
        lines.append("warning: the warm-up takes the whole run, nothing will be learned; raise --total_steps")
    return "\n".join(lines)
