"""Presets: the defaults of a body and an agent, as in the paper, for a CPU, and for many copies on accelerators."""

import math
from typing import Any

from genda_mjx.config import Config

# What the paper's tables and the official scripts change per body.
ENV_PRESETS: dict[str, dict[str, Any]] = {
    "point": {"total_steps": 1_000_000},
    "fish": {"skill_dim": 3},
    "quadruped": {},
    "humanoid": {},
    "dog": {"cib_dim": 512},
    # Eight episodes of 50 steps, then 50 updates.
    "kitchen": {"num_envs": 8, "utd": 0.125, "skill_dim": 10, "cib_dim": 2048, "buffer_size": 300_000},
}
# What it changes for one agent on one body.
ENV_AGENT: dict[tuple[str, str], dict[str, Any]] = {
    ("kitchen", algo): {"discrete": True, "skill_dim": 24} for algo in ("metra", "csf")
}

# A CPU-sized run: narrower and shorter, with a higher learning rate and a lower initial multiplier than the paper's so
# that something shows soon. Bodies of the repository have their own below; docs/fidelity.md lists it as our own choice.
SMALL: dict[str, Any] = {
    "hidden": 256,
    "cib_dim": 64,
    "num_envs": 8,
    "utd": 0.5,
    "learning_rate": 3e-4,
    "initial_lambda": 3.0,
    "total_steps": 400_000,
    "buffer_size": 400_000,
    "eval_every": 40_000,
    "checkpoint_every": 40_000,
}
# docs/results ("The quadruped goes where z says") has what was compared on the quadruped: skills come from updates more
# than from steps, and those that travel stay under control where the policy knows which way the body faces. The dog has
# the same, untuned.
WALKING: dict[str, Any] = {
    "hidden": 128,
    "num_envs": 64,
    "cohorts": 8,
    "utd": 0.2,
    "learning_rate": 5e-4,
    "total_steps": 640_000,
    "buffer_size": 1_638_400,
    "warmup_episodes": 64,
    "eval_every": 64_000,
    "checkpoint_every": 128_000,
    "observation": "oriented",
}
# From 640,000 steps on, when it travels: half of a batch with its own skills, half turned. Earlier they hold it back.
TRAVELLED: dict[str, Any] = {
    "keep_floor": 1.0,
    "keep_floor_after": 125_440,
    "turned_share": 0.5,
    "turned_after": 125_440,
}
QUADRUPED = WALKING | TRAVELLED | {"noise_steps": 5, "total_steps": 960_000}
# Dropped in a random pose, a humanoid probably goes where it falls, and hindsight labels say how it was dropped. Lying,
# it hardly moves by noise of the size that the paper has (docs/results, "Humanoid").
HUMANOID = WALKING | {"noise_steps": 5, "start": "standing", "entropy_target": 0.0}
# The fish starts in any orientation and swims ahead: a label made in hindsight is nearly its heading. From 300,000
# steps on, when it swims, half of a batch has its own skills and teaches it to turn ("The fish swims where z says").
FISH: dict[str, Any] = {
    "hidden": 128,
    "num_envs": 256,
    "cohorts": 8,
    "utd": 0.2,
    "learning_rate": 5e-4,
    "total_steps": 819_200,
    "buffer_size": 1_638_400,
    "warmup_episodes": 256,
    "eval_every": 102_400,
    "checkpoint_every": 409_600,
    "observation": "oriented",
    "noise_steps": 4,
    "keep_floor": 0.5,
    "keep_floor_after": 50_000,
}
SMALL_ENV: dict[str, dict[str, Any]] = {
    "point": {
        "hidden": 128,
        "cib_dim": 32,
        "utd": 0.125,
        "learning_rate": 1e-3,
        "total_steps": 50_000,
        "eval_every": 8_000,
        "checkpoint_every": 16_000,
        "buffer_size": 100_000,
        "warmup_episodes": 16,
    },
    "fish": FISH,
    "quadruped": QUADRUPED,
    "humanoid": HUMANOID,
    "dog": WALKING,
    # Episodes are short and physics is dear: 2,000 physics steps each. Updates are cheap beside them.
    "kitchen": {
        "hidden": 128,
        "num_envs": 32,
        "cohorts": 2,
        "utd": 0.5,
        "learning_rate": 5e-4,
        "total_steps": 32_000,
        "buffer_size": 64_000,
        "warmup_episodes": 64,
        "eval_every": 8_000,
        "checkpoint_every": 16_000,
    },
}
SMALL_AGENT: dict[tuple[str, str], dict[str, Any]] = {("kitchen", "genda"): {"skill_dim": 4}}

MANY_ENVS = 256  # from here on the paper's schedule would act for very long on one policy, then learn for very long


def many_envs(num_envs: int) -> dict[str, Any]:
    """The schedule for so many envs, with reasons in docs/performance.md: 64 sampled transitions per step (utd *
    batch_size; the paper has 128) in fewer and larger updates, and cohorts to keep the policy fresh."""
    batch = min(4096, 2 * num_envs)
    return {
        "num_envs": num_envs,
        "cohorts": math.gcd(8, num_envs),
        "batch_size": batch,
        "utd": 64 / batch,
        "learning_rate": min(3e-4, 1e-4 * math.sqrt(batch / 256)),
        "warmup_episodes": max(100, num_envs // 8),
        "buffer_size": max(1_000_000, 2_000 * num_envs),
        "total_steps": max(10_000_000, min(50_000_000, 25_000 * num_envs)),
        "eval_every": 500 * num_envs,
        "checkpoint_every": 2_000 * num_envs,
    }


ACCELERATOR: dict[str, Any] = many_envs(2048)
SCHEDULE_FLAGS = frozenset({"cohorts", "batch_size", "utd"})  # who gives one of these has a schedule in mind

# What the paper changes for pixels: four episodes, then 200 updates; a smaller replay, a larger embedding.
PICTURES_KEPT: dict[str, Any] = {"buffer_size": 300_000}  # 3.4 GiB of 64 x 64 pixels, whatever the number of envs
PIXELS: dict[str, Any] = {"num_envs": 4, "utd": 0.25, "cib_dim": 2048} | PICTURES_KEPT
PIXELS_ENV: dict[str, dict[str, Any]] = {"kitchen": ENV_PRESETS["kitchen"]}  # the paper's kitchen is pixels only
PIXELS_AGENT: dict[tuple[str, str], dict[str, Any]] = {("quadruped", "metra"): {"skill_dim": 4}}
# For one CPU core and the point. Contrast and the official code's beta: without them phi's ways are so short that the
# uniformity loss drowns their growth (docs/pixels.md). Other bodies have not been tried with it.
PIXELS_SMALL: dict[str, Any] = {
    "observation": "paper",  # what the small presets of walking bodies change is no picture
    "pixel_size": 48,
    "cnn_depth": 8,
    "contrast": 30.0,
    "beta": 0.1,
    "hidden": 128,
    "cib_dim": 32,
    "num_envs": 8,
    "cohorts": 1,
    "batch_size": 32,
    "utd": 1 / 16,
    "learning_rate": 1e-3,
    "total_steps": 16_000,
    "buffer_size": 32_000,
    "warmup_episodes": 16,
    "eval_every": 4_000,
    "checkpoint_every": 16_000,
}
# The floor's faint ramps need contrast, a kitchen does not.
PIXELS_SMALL_ENV: dict[str, dict[str, Any]] = {"kitchen": {"contrast": 1.0}}
PIXELS_ACCELERATOR: dict[str, Any] = many_envs(512) | PICTURES_KEPT


def may_turn(config: Config, observation: str | None) -> bool:
    """Whether labels and observations turn with an episode."""
    return getattr(config.agent, "labels_turn", False) and observation == "oriented"


def preset(
    env: str, name: str, algo: str = "genda", num_envs: int | None = None, *, pixels: bool = False, **chosen: Any
) -> Config:
    """The defaults of a body and an agent under a preset; an unknown body gets the general ones (making it reports).

    num_envs: where it was given without a schedule, for "auto". pixels: the agent sees pictures. chosen: other options
    that decide about defaults.
    """
    start = Config().replace(algo=algo, **chosen)
    values = ENV_PRESETS.get(env, {}) | start.agent.defaults() | ENV_AGENT.get((env, algo), {})
    if pixels:
        values |= PIXELS | PIXELS_ENV.get(env, {}) | ENV_AGENT.get((env, algo), {}) | PIXELS_AGENT.get((env, algo), {})
    if name == "small":
        values |= SMALL | SMALL_ENV.get(env, {}) | SMALL_AGENT.get((env, algo), {})
        values |= PIXELS_SMALL | PIXELS_SMALL_ENV.get(env, {}) if pixels else {}
    if name == "accelerator":
        values |= PIXELS_ACCELERATOR if pixels else ACCELERATOR
    if name == "auto" and (num_envs or 0) >= MANY_ENVS:
        values |= many_envs(num_envs) | (PICTURES_KEPT if pixels else {})
    if not may_turn(start, chosen.get("observation", values.get("observation"))):
        values = {option: value for option, value in values.items() if option not in TRAVELLED}
    if not start.agent.learns_temperature:
        values.pop("entropy_target", None)
    known = start.flat()  # presets name options of several agents
    own = {option: value for option, value in values.items() if option in known}
    return start.replace(env=env, preset=name, pixels=pixels, **own)
