"""Every option of a run: one flat dataclass that is also the command line, and the presets as data.

Letters used in all docstrings: N envs, in G cohorts of M (N = M where there is one), T steps an episode, B batch,
C ring capacity (episodes), d skill dimension.
"""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro


class UserError(ValueError):
    """A mistake that the user can mend; the command line prints it as one line, without a traceback."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Discover skills without reward. Defaults are the paper's; `--preset small` is sized for a CPU, `--preset
    accelerator` for thousands of envs on GPUs or TPUs."""

    env: str = "point"  # body: point, fish, quadruped, humanoid or dog
    algo: str = "genda"  # agent: genda, metra, csf, diayn or cic
    preset: Literal["paper", "small", "accelerator"] = "paper"  # where the defaults come from; flags still win
    seed: int = 0  # seeds everything: networks, resets, skills, batches
    num_seeds: int = 1  # runs with seeds seed, seed + 1, ... vmapped in one program, each with its own folder seed_<k>
    out: str = ""  # run folder; empty means runs/<env>, or runs/<env>_<algo> for a baseline
    resume: bool = False  # continue the run in --out, bit for bit

    # Schedule: one iteration is M = num_envs / cohorts episodes and round(M * T * utd) updates.
    total_steps: int = 10_000_000  # environment steps (agent steps, after action repeat) over all envs
    num_envs: int = 2  # N, episodes collected side by side
    utd: float = 0.5  # gradient steps per environment step
    cohorts: int = 1  # G, groups of envs whose episodes end in turn: an iteration is then T/G steps of all envs
    batch_size: int = 256  # B, transitions per gradient step
    buffer_size: int = 1_000_000  # replay capacity in transitions, rounded down to whole iterations
    warmup_episodes: int = 100  # learning starts after the steps of so many, all random, rounded up to whole iterations
    iterations_per_dispatch: int = 1  # iterations that run on the device before the host looks again

    # Devices: num_envs, batch_size and buffer_size are totals over all of them
    num_devices: int = 0  # of this machine; 0 takes all
    coordinator: str = ""  # HOST:PORT of process 0 where nothing else tells (TPU pods and Slurm do); with the next two
    num_processes: int = 0  # how many there are
    process_id: int = -1  # which of them this is

    # Networks
    hidden: int = 1024  # width of both hidden layers, all networks
    skill_dim: int = 2  # d, dimension of a skill; the number of skills where they are a list
    discrete: bool = False  # metra: skills are a list of one-hots instead of directions, 16 of them by default
    cib_dim: int = 256  # dimension of the CIB embedding that the actor sees
    bf16: bool = False  # bfloat16 matrix products in the networks (parameters and physics stay float32)

    # Optimisation
    learning_rate: float = 1e-4  # Adam, everything but the gate
    discount: float = 0.99  # gamma
    ema_rate: float = 0.005  # step of the moving averages of phi and of the critics
    initial_alpha: float = 0.01  # SAC temperature at the start; learned, but for diayn fixed

    # Representation
    initial_lambda: float = 30.0  # dual multiplier of the step-length constraint at the start; learned
    slack: float = 1e-3  # the constraint term is clipped from above at this value
    beta: float = 1.0  # weight of the uniformity loss, Eq. 6

    # Relabelling
    no_relabel: bool = False  # ablation: z_roll everywhere and no uniformity loss
    relabel: Literal["mix", "roll", "c", "tau", "random"] = "mix"  # skills that the policy learns from
    mix_ratio: float = 0.5  # share of c-step labels among the mixed ones, the rest are whole-episode labels
    keep_threshold: float = 0.4  # a rollout skill is kept where the gate's probability is below this
    max_horizon: int = 5  # c is drawn from 1..max_horizon
    gate_learning_rate: float = 1e-2  # Adam, gate classifier
    gate_planes: int = 8  # random hyperplanes that hash a skill

    # Complementary information bottleneck
    no_cib: bool = False  # ablation: the actor sees the raw observation
    kl_weight: float = 0.1  # weight of the KL term against reconstruction

    # Evaluation, files, logging
    eval_every: int = 100_000  # steps between evaluations, rounded up to whole iterations; 0 evaluates at the end only
    eval_episodes: int = 48  # deterministic episodes with random skills in an evaluation
    checkpoint_every: int = 200_000  # steps between checkpoints, rounded up; 0 saves at the end only
    keep_last: int = 2  # checkpoints kept, newest first
    keep_every: int = 0  # also keep every checkpoint at a multiple of this many steps; 0 keeps none
    wandb: Literal["off", "offline", "online"] = "off"  # Weights & Biases; a missing login falls back to offline
    tensorboard: bool = False  # also write TensorBoard events into the run folder
    compile_cache: str = ".cache/jax"  # folder of compiled programs, kept between runs; empty turns it off

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @staticmethod
    def from_json(text: str) -> "Config":
        values = json.loads(text)
        unknown = set(values) - {field.name for field in dataclasses.fields(Config)}
        if unknown:
            raise UserError(f"config has unknown fields {sorted(unknown)}; it was written by another version")
        return Config(**values)


# What the paper's tables and the official scripts change per body.
ENV_PRESETS: dict[str, dict[str, Any]] = {
    "point": {"total_steps": 1_000_000},
    "fish": {"skill_dim": 3},
    "quadruped": {},
    "humanoid": {},
    "dog": {"cib_dim": 512},
}

# What the baselines' own scripts change; the rest is shared, as in the paper.
ALGO_PRESETS: dict[str, dict[str, Any]] = {
    "diayn": {"skill_dim": 50, "initial_alpha": 0.1},
    "cic": {"skill_dim": 64},
}

DISCRETE_SKILLS = 16  # of metra --discrete, as in its HalfCheetah script; a body's own skill_dim would be 2 or 3 skills

# A CPU-sized run: narrower and shorter, with a higher learning rate and a lower initial multiplier than the paper's so
# that something shows within minutes. Not tuned beyond the point body; docs/fidelity.md lists it as our own choice.
SMALL: dict[str, Any] = {
    "hidden": 256,
    "cib_dim": 64,
    "num_envs": 8,
    "learning_rate": 3e-4,
    "initial_lambda": 3.0,
    "total_steps": 400_000,
    "buffer_size": 400_000,
    "eval_every": 40_000,
    "checkpoint_every": 40_000,
}
SMALL_ENV: dict[str, dict[str, Any]] = {
    "point": {
        "hidden": 128, "cib_dim": 32, "utd": 0.125, "learning_rate": 1e-3, "total_steps": 50_000, "eval_every": 8_000,
        "checkpoint_every": 16_000, "buffer_size": 100_000, "warmup_episodes": 16,
    },
}  # fmt: skip

# Thousands of envs. The reasons are in docs/performance.md: sampled transitions per step (utd * batch_size = 64) stay
# near the paper's 128, in fewer and larger updates, and cohorts keep the policy fresh.
ACCELERATOR: dict[str, Any] = {
    "num_envs": 2048,
    "cohorts": 8,
    "batch_size": 4096,
    "utd": 1 / 64,
    "learning_rate": 3e-4,
    "warmup_episodes": 256,
    "buffer_size": 4_096_000,
    "total_steps": 50_000_000,
    "eval_every": 1_024_000,
    "checkpoint_every": 4_096_000,
}

# Fields that may differ from the stored run when it continues; all others decide what is computed.
RESUMABLE = frozenset(
    {"out", "resume", "total_steps", "checkpoint_every", "keep_last", "keep_every", "wandb", "tensorboard",
     "compile_cache", "iterations_per_dispatch", "eval_every", "num_devices", "coordinator", "num_processes",
     "process_id"}
)  # fmt: skip
# Of those, what belongs to one start of a run and not to the run: not stored with it.
OF_A_START = ("resume", "num_devices", "coordinator", "num_processes", "process_id")


def preset(env: str, name: str, algo: str = "genda") -> Config:
    """The defaults of a body and an agent under a preset; an unknown name gets the general ones (making it reports)."""
    values = {"env": env, "algo": algo, "preset": name} | ENV_PRESETS.get(env, {}) | ALGO_PRESETS.get(algo, {})
    if name == "small":
        values |= SMALL | SMALL_ENV.get(env, {})
    if name == "accelerator":
        values |= ACCELERATOR
    return Config(**values)


def run_folder(config: Config) -> Path:
    return Path(config.out or f"runs/{config.env}" + (f"_{config.algo}" if config.algo != "genda" else ""))


def parse(arguments: list[str] | None = None) -> Config:
    """Command line -> Config. Parsed twice: the first pass finds the defaults to start from (a preset, or the stored
    run when resuming), the second lets every flag the user gave win over them."""
    first = _parse_over(Config(), arguments)
    base = preset(first.env, first.preset, first.algo)
    if first.discrete:
        base = dataclasses.replace(base, skill_dim=DISCRETE_SKILLS)
    if first.resume:
        stored = run_folder(first) / "config.json"
        if not stored.exists():
            raise UserError(f"nothing to resume in {run_folder(first)}: no config.json; start it without --resume")
        base = read_config(stored.parent)
    return dataclasses.replace(_parse_over(base, arguments), out=str(run_folder(first)))


def _parse_over(base: Config, arguments: list[str] | None) -> Config:
    """Flags over `base`. Switches are parsed as off and joined afterwards: tyro would rename one that is already on."""
    switches = [field.name for field in dataclasses.fields(Config) if field.type is bool]
    off = dataclasses.replace(base, **dict.fromkeys(switches, False))
    config = tyro.cli(Annotated[Config, tyro.conf.FlagCreatePairsOff], args=arguments, default=off)
    return dataclasses.replace(config, **{name: getattr(base, name) or getattr(config, name) for name in switches})


def seed_folder(config: Config, run: Path, member: int) -> Path:
    """Where the metrics, evaluations and plots of the member-th seed go: the run itself if it is the only one."""
    return run if config.num_seeds == 1 else run / f"seed_{config.seed + member}"


def locate(folder: Path) -> tuple[Path, int]:
    """(run, member) of a run folder, or of one seed's folder in a run of several."""
    if folder.name.startswith("seed_") and not (folder / "config.json").exists() and folder.is_dir():
        config = read_config(folder.parent)
        members = [seed_folder(config, folder.parent, k) for k in range(config.num_seeds)]
        if folder in members:
            return folder.parent, members.index(folder)
    config = read_config(folder)
    if config.num_seeds > 1:
        names = ", ".join(str(seed_folder(config, folder, k)) for k in range(config.num_seeds))
        raise UserError(f"{folder} holds {config.num_seeds} seeds; choose one of {names}")
    return folder, 0


def without_start(config: Config) -> Config:
    """What is stored with a run."""
    return dataclasses.replace(config, **{name: getattr(Config, name) for name in OF_A_START})


def read_config(run: Path) -> Config:
    """The config that a run folder was made with."""
    path = run / "config.json"
    if not path.exists():
        raise UserError(f"{run} is not a run folder: it has no config.json")
    try:
        return Config.from_json(path.read_text())
    except (json.JSONDecodeError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); restore it or start a new run") from error


def differences(stored: Config, asked: Config) -> list[str]:
    """What stops `asked` from continuing `stored`, one line a field."""
    old, new = dataclasses.asdict(stored), dataclasses.asdict(asked)
    return [
        f"{name} is {old[name]!r} in the run, {new[name]!r} asked"
        for name in old
        if name not in RESUMABLE and old[name] != new[name]
    ]


def validate(config: Config) -> None:
    """Ranges that can be checked without an environment."""
    positive = ("num_envs", "cohorts", "num_seeds", "total_steps", "batch_size", "hidden", "skill_dim", "cib_dim",
                "buffer_size", "utd", "learning_rate", "eval_episodes", "max_horizon", "iterations_per_dispatch",
                "keep_last", "gate_planes", "initial_lambda", "initial_alpha", "gate_learning_rate")  # fmt: skip
    for name in positive:
        if not getattr(config, name) > 0:
            raise UserError(f"--{name} is {getattr(config, name)}; it must be greater than 0")
    for name in ("eval_every", "checkpoint_every", "keep_every", "warmup_episodes", "seed", "beta", "kl_weight"):
        if getattr(config, name) < 0:
            raise UserError(f"--{name} is {getattr(config, name)}; it must not be negative")
    for name in ("mix_ratio", "keep_threshold", "discount", "ema_rate"):
        if not 0 <= getattr(config, name) <= 1:
            raise UserError(f"--{name} is {getattr(config, name)}; it must lie in [0, 1]")
    if config.discrete and config.algo != "metra":
        raise UserError(f"--discrete is a switch of metra, not of {config.algo}; drop it or choose --algo metra")
    parts = [name for name in ("no_relabel", "no_cib", "relabel") if getattr(config, name) != getattr(Config, name)]
    if parts and config.algo != "genda":
        raise UserError(f"--{parts[0]} is a switch of genda; {config.algo} has no such part: drop it")
    if config.batch_size < 2:
        raise UserError("--batch_size is 1; the uniformity loss compares pairs, so it needs at least 2")
