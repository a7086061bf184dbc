"""Our program against Brax's SAC trainer on the same work: env steps per second, in one process.

    python -m benchmarks.peers [--env fish] [--num_envs 64] [--width 256] [--batch_size 256] [--updates 4] [--filling]

Both have the same body (ours, through the Brax API), actor and twin critic of the same sizes with LayerNorm in the
critics, batch, gradient steps per env step, env steps per measurement, and replay. Both fill the replay with
random steps first, since a run of ten million steps with the paper's replay of one million spends nine tenths of its
time with a full one; --filling measures before it is full. Brax's figure is its own training/sps; its first epoch
compiles and is left out. Ours runs plain SAC on the same losses as our agents, with the env's reward of zero, as an
agent of the program. Brax steps all envs once, then learns; we collect episodes, then learn: the work is the same, its
order is not.
"""

import dataclasses
import functools
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from brax.training.agents.sac import networks as brax_networks
from brax.training.agents.sac import train as brax_sac
from jax import Array

from genda_mjx import program
from genda_mjx.agents import Agent, AgentState, Batch, Spec, sac
from genda_mjx.agents.base import Metrics, begin, track
from genda_mjx.agents.skills import SkillSpace
from genda_mjx.build import check, make_env
from genda_mjx.config import Config
from genda_mjx.runs import start


@dataclasses.dataclass(frozen=True)
class Options:
    env: str = "fish"
    num_envs: int = 64
    width: int = 256  # both hidden layers of every network
    batch_size: int = 256
    updates: int = 4  # gradient steps for each step of all envs; utd is updates / num_envs
    buffer_size: int = 1_000_000  # transitions in the replay
    filling: bool = False  # measure while the replay fills instead of when it is full
    iterations: int = 4  # measured, each one episode of all envs; the median counts


def plain_sac(config: Config, spec: Spec) -> Agent:
    """SAC without skills: nothing beside what Brax's learner computes."""
    policy = sac.baseline(config, spec)

    def init(key: Array) -> AgentState:
        params = policy.init(*jax.random.split(key), spec.observation, spec.observation, 0)
        return begin(params, ["critic"], policy.init_optimizers(params))

    def update(state: AgentState, batch: Batch, key: Array) -> tuple[AgentState, Metrics]:
        reward = jnp.zeros(len(batch.a))
        state, metrics = policy.step(state, sac.Rows.of(batch), batch.z_roll, reward, *jax.random.split(key))
        return track(state, config.ema_rate), metrics

    return Agent(init, SkillSpace("normals", 0), policy.act_on_state, update)


def ours(options: Options) -> list[float]:
    """Env steps per second of each iteration."""
    env = make_env(options.env)
    config = Config(
        env=options.env,
        num_envs=options.num_envs,
        hidden=options.width,
        batch_size=options.batch_size,
        utd=options.updates / options.num_envs,
        buffer_size=options.buffer_size,
        warmup_episodes=1 if options.filling else options.buffer_size // env.episode_length,
    )
    mesh, plan = check(config, env)
    agent = plain_sac(config, Spec.of(env))  # not an agent of train.py, so `build` does not know it
    built = program.make(program.Parts(config, plan, env, agent), mesh)
    state, speeds = built.init(jax.random.key(0)), []
    for _ in range(plan.warmup_iterations + 1 + options.iterations):
        start = time.perf_counter()
        state, metrics = built.run(state, np.int32(1))
        jax.block_until_ready((state, metrics))
        speeds.append(plan.steps_per_iteration / (time.perf_counter() - start))
    assert int(state.agent.updates) == (options.iterations + 1) * env.episode_length * options.updates
    return speeds[-options.iterations :]


def braxs(options: Options) -> list[float]:
    """Env steps per second of each epoch, which is an episode of all envs."""
    env = make_env(options.env)
    steps, speeds = options.num_envs * env.episode_length, []
    before = steps if options.filling else options.buffer_size
    brax_sac.train(
        env,
        num_timesteps=before + steps * (options.iterations + 1),
        episode_length=env.episode_length,
        num_envs=options.num_envs,
        batch_size=options.batch_size,
        grad_updates_per_step=options.updates,
        num_evals=options.iterations + 2,
        num_eval_envs=1,
        min_replay_size=before,
        max_replay_size=options.buffer_size,
        max_devices_per_host=1,
        network_factory=functools.partial(
            brax_networks.make_sac_networks, hidden_layer_sizes=(options.width,) * 2, q_network_layer_norm=True
        ),
        progress_fn=lambda step, metrics: speeds.append(metrics.get("training/sps")),
    )
    return [float(speed) for speed in speeds if speed is not None][1:]


def main() -> None:
    options = tyro.cli(Options)
    start.keep_compilations(".cache/jax")
    print(
        f"{options.env}, {options.num_envs} envs, width {options.width}, batch {options.batch_size}, "
        f"{options.updates} updates for each step of all envs, a replay of {options.buffer_size:,} "
        f"{'filling' if options.filling else 'full'}; {jax.default_backend()}, {os.cpu_count()} cores"
    )
    rows = {"genda-mjx program": ours(options), "brax sac": braxs(options), "genda-mjx program, again": ours(options)}
    print("\n| trainer | steps/s, median | lowest | highest |\n|---|---|---|---|")
    for name, speeds in rows.items():
        print(f"| {name} | {np.median(speeds):,.0f} | {min(speeds):,.0f} | {max(speeds):,.0f} |")
    mine = np.median(rows["genda-mjx program"] + rows["genda-mjx program, again"])
    print(f"\nratio {mine / np.median(rows['brax sac']):.2f} (above 1: ours is faster)")


if __name__ == "__main__":
    main()
