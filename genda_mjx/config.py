"""Every option of a run, which is also the command line, and the presets as data. An agent's own options are with it.

Letters used in all docstrings: N envs, in G cohorts of M (N = M where there is one), T steps per episode, B batch,
C ring capacity (episodes), d skill dimension.
"""

import dataclasses
import json
import math
from typing import Annotated, Any, ClassVar, Literal

import tyro


class UserError(ValueError):
    """A mistake that the user can mend; the command line prints it as one line, without a traceback."""


@dataclasses.dataclass(frozen=True)
class AgentOptions:
    """Options that only one agent has: its module derives `Options` from this. On the command line they stand flat."""

    learns_temperature: ClassVar[bool] = True  # SAC's alpha, so that actions keep an entropy

    def defaults(self) -> dict[str, Any]:
        """Shared options for which this agent has another default."""
        return {}

    def check(self) -> None:
        """Refuses values out of range."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Discover skills without reward. Defaults are the paper's, and from 256 envs on their schedule is that of
    `--preset accelerator`, which is made for GPUs and TPUs; `--preset small` is sized for a CPU."""

    env: str = "point"  # body: point, fish, quadruped, humanoid, dog or kitchen
    algo: str = "genda"  # agent: genda, metra, csf, diayn or cic
    # Where the defaults come from; flags still win. auto: the paper's, with the schedule of many envs where there are.
    preset: Literal["auto", "paper", "small", "accelerator"] = "auto"
    seed: int = 0  # seeds everything: networks, resets, skills, batches
    num_seeds: int = 1  # runs with seeds seed, seed + 1, ... vmapped in one program, each with its own folder seed_<k>
    out: str = ""  # run folder; empty means runs/<env>, or runs/<env>_<algo> for a baseline
    resume: bool = False  # continue the run in --out; bit for bit on the same kind of machine and number of devices

    # Schedule: one iteration is M = num_envs / cohorts episodes and round(M * T * utd) updates.
    total_steps: int = 10_000_000  # environment steps (agent steps, after action repeat) over all envs
    num_envs: int = 2  # N, episodes collected side by side
    utd: float = 0.5  # gradient steps per environment step
    cohorts: int = 1  # G, groups of envs whose episodes end in turn: an iteration is then T/G steps of all envs
    batch_size: int = 256  # B, transitions per gradient step
    buffer_size: int = 1_000_000  # replay capacity in transitions, rounded down to whole iterations
    warmup_episodes: int = 100  # learning starts after the steps of this many random episodes, in whole iterations
    iterations_per_dispatch: int = 1  # iterations that run on the device before the host looks again

    # Devices: num_envs, batch_size and buffer_size are totals over all of them
    num_devices: int = 0  # devices of this machine to use; 0 takes all
    coordinator: str = ""  # HOST:PORT of process 0, with the next two options; not needed on TPU pods and under Slurm
    num_processes: int = 0  # number of processes; only with --coordinator
    process_id: int = -1  # number of this process, from 0; only with --coordinator
    compile_for: str = ""  # compile the run for chips that are not here (v5e:2x2, h100:4) and report; "list" names them

    # Networks
    hidden: int = 1024  # width of both hidden layers, all networks
    skill_dim: int = 2  # d, dimension of a skill; the number of skills where they are a list
    # Of float32 products in the networks on accelerators: in full, in three bfloat16 passes (TPU) or TF32 (GPU), or in
    # one bfloat16 pass (TPU). A CPU and all physics compute in full. docs/accelerators.md compares how they learn.
    precision: Literal["highest", "high", "default"] = "high"
    bf16: bool = False  # bfloat16 matrix products in the networks (parameters and physics stay float32)

    # oriented, beyond the paper: policy and critic also see how the torso is turned, phi does not (docs/fidelity.md)
    observation: Literal["paper", "oriented"] = "paper"

    # standing, beyond the paper: upright and still, as its quadruped does, for bodies that are dropped or thrown
    start: Literal["paper", "standing"] = "paper"

    # Pixels: the agent sees the last three pictures of the body's camera instead of a vector
    pixels: bool = False  # any body with a camera; drawn on the device
    pixel_size: int = 64  # side of a picture: a multiple of 16, 48 or more
    floor: Literal["paper", "unicolor", "gradation"] = "paper"  # colours of the floor; the last two are a shift
    cnn_depth: int = 48  # channels of the first of the four convolutions, each next one has twice as many
    contrast: float = 1.0  # networks see 1/2 + contrast * (value - 1/2), values from 0 to 1; above 1 phi wakes sooner

    # Optimisation
    learning_rate: float = 1e-4  # Adam
    discount: float = 0.99  # gamma
    ema_rate: float = 0.005  # step of the moving averages of phi and of the critics
    initial_alpha: float = 0.01  # SAC temperature at the start; learned, but for diayn fixed

    # Beyond the paper: entropy that actions are kept at, nats per motor (uniform ones have 0.69); the agent's own if
    # not given: -1 for genda, -1/2 for metra, csf and cic.
    entropy_target: float | None = None
    # Beyond the paper: steps for which the noise of actions is held while collecting; 1 draws it anew at every step.
    noise_steps: int = 1

    max_horizon: int = 5  # a batch has the state c steps later, c drawn from 1..max_horizon

    # Evaluation, files, logging
    eval_every: int = 100_000  # steps between evaluations, rounded up to whole iterations; 0 evaluates at the end only
    eval_episodes: int = 48  # deterministic episodes with random skills in an evaluation
    checkpoint_every: int = 200_000  # steps between checkpoints, rounded up; 0 saves at the end only
    keep_last: int = 2  # checkpoints kept, newest first
    keep_every: int = 0  # also keep every checkpoint at a multiple of this many steps; 0 keeps none
    wandb: Literal["off", "offline", "online"] = "off"  # Weights & Biases; a missing login falls back to offline
    tensorboard: bool = False  # also write TensorBoard events into the run folder
    log_video: bool = False  # at evaluations also make a video of some skills, for Weights & Biases
    compile_cache: str = ".cache/jax"  # folder of compiled programs, kept between runs; empty turns it off

    # The agent's own; other agents have others: python train.py --algo NAME --help
    agent: Annotated[AgentOptions, tyro.conf.OmitArgPrefixes] = AgentOptions()

    def flat(self) -> dict[str, Any]:
        """All options by the name of their flag."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "agent"}
        return values | dataclasses.asdict(self.agent)

    def replace(self, **changes: Any) -> "Config":
        """A copy with some options changed, the agent's own among them; with another --algo, those start afresh."""
        from genda_mjx import agents  # it imports this module

        own = agents.options_class(changes.get("algo", self.algo))
        agent = self.agent if type(self.agent) is own else own()
        names = [field.name for field in dataclasses.fields(own)]
        agent = dataclasses.replace(agent, **{name: changes.pop(name) for name in names if name in changes})
        return dataclasses.replace(self, **changes, agent=agent)

    def to_json(self) -> str:
        return json.dumps(self.flat(), indent=2)

    @staticmethod
    def from_json(text: str) -> "Config":
        values = json.loads(text)
        start = Config().replace(algo=values["algo"])
        unknown = set(values) - set(start.flat())
        if unknown:
            raise UserError(f"config has unknown fields {sorted(unknown)}; it was written by another version")
        return start.replace(**values)


# Fields that may differ from the stored run when it continues; all others decide what is computed.
RESUMABLE = frozenset(
    {
        *("out", "resume", "total_steps", "checkpoint_every", "keep_last", "keep_every", "wandb", "tensorboard"),
        "log_video",
        *("compile_cache", "iterations_per_dispatch", "eval_every", "num_devices", "coordinator", "num_processes"),
        *("process_id", "compile_for"),
    }
)
# Of those, what belongs to one start of a run and not to the run: not stored with it.
OF_A_START = ("resume", "num_devices", "coordinator", "num_processes", "process_id", "compile_for")


PIXEL_STEP = 16  # pixels: four convolutions of stride 2
MOST_ENTROPY = math.log(2)  # nats of one motor's uniform action in [-1, 1]


def validate(config: Config) -> None:
    """Checks ranges that need no environment, and that the agent's options are those of --algo."""
    if config.replace().agent != config.agent and type(config.agent) is not AgentOptions:
        raise TypeError(f"{config.algo} with the {type(config.agent).__module__} of another agent: use Config.replace")
    check_positive(
        config,
        *("num_envs", "cohorts", "num_seeds", "total_steps", "batch_size", "hidden", "skill_dim", "buffer_size", "utd"),
        *("learning_rate", "eval_episodes", "max_horizon", "iterations_per_dispatch", "keep_last", "initial_alpha"),
        "noise_steps",
    )
    check_not_negative(config, "eval_every", "checkpoint_every", "keep_every", "warmup_episodes", "seed")
    check_shares(config, "discount", "ema_rate")
    if config.entropy_target is not None and not config.agent.learns_temperature:
        raise UserError(f"--entropy_target: {config.algo} keeps its temperature as it is (--initial_alpha); drop it")
    if config.entropy_target is not None and not config.entropy_target < MOST_ENTROPY:
        raise UserError(
            f"--entropy_target is {config.entropy_target}; it must be below {MOST_ENTROPY:.2f}, that of uniform actions"
        )
    config.agent.check()
    check_pixels(config)
    if config.batch_size < 2:
        raise UserError("--batch_size is 1; the uniformity loss compares pairs, so it needs at least 2")


def check_pixels(config: Config) -> None:
    """Refuses options of pictures where there are none, and a size that the convolutions cannot take."""
    if not config.pixels:
        for name in ("pixel_size", "floor", "cnn_depth", "contrast"):
            if getattr(config, name) != getattr(Config, name):
                raise UserError(f"--{name} {getattr(config, name)} is an option of pictures; add --pixels or drop it")
        return
    if config.observation != "paper":
        raise UserError(f"--observation {config.observation} is for bodies that see numbers; drop it or --pixels")
    check_positive(config, "cnn_depth", "contrast")
    side, least = config.pixel_size, 3 * PIXEL_STEP
    if side < least or side % PIXEL_STEP:
        nearest = max(round(side / PIXEL_STEP) * PIXEL_STEP, least)
        raise UserError(
            f"--pixel_size {side} does not fit the four convolutions; it must be a multiple of {PIXEL_STEP} and at "
            f"least {least}, such as {nearest}"
        )


def check_positive(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not (value > 0 and math.isfinite(value)):
            raise UserError(f"--{name} is {value}; it must be {'finite' if value > 0 else 'greater than 0'}")


def check_not_negative(options: Any, *names: str) -> None:
    for name in names:
        value = getattr(options, name)
        if not (value >= 0 and math.isfinite(value)):
            raise UserError(f"--{name} is {value}; it must {'be finite' if value > 0 else 'not be negative'}")


def check_shares(options: Any, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(options, name) <= 1:
            raise UserError(f"--{name} is {getattr(options, name)}; it must lie in [0, 1]")
