"""Speed of the learner: updates/s beside this machine's matrix products, and where an iteration's time goes.

python -m benchmarks.learner [--widths 256 1024] [--env quadruped] [--iteration_width 256]

The peak is measured, not taken from a data sheet: every product that the losses need, alone, at its own shape.
"""

import dataclasses
import os
import time
from collections import Counter
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
import tyro

import envs
from genda_mjx import agents, encoders, program, replay, rollout
from genda_mjx.agents import Spec
from genda_mjx.build import batch_shapes, build
from genda_mjx.config import Config
from genda_mjx.presets import preset
from genda_mjx.state import TrainState

Product = tuple[int, int, int]  # (m, k, n): [m, k] @ [k, n]


@dataclasses.dataclass(frozen=True)
class Options:
    widths: tuple[int, ...] = (256, 1024)  # hidden widths of the update benchmark
    env: str = "quadruped"  # body whose sizes are used, and whose iteration is split
    iteration_width: int = 256  # hidden width of the iteration; 0 leaves it out
    num_envs: int = 8  # envs of the iteration
    seconds: float = 4.0  # measuring time of each number


def products(config: Config, spec: Spec) -> Counter[Product]:
    """Matrix products that one update of GenDa needs, however thin: shape -> how often."""
    b, h, d = config.batch_size, config.hidden, config.skill_dim
    obs, act, cib = encoders.size(spec.observation), spec.action, config.agent.cib_dim
    found: Counter[Product] = Counter()

    def network(rows: int, inside: int, outside: int, times: int, weights: bool, inputs: bool) -> None:
        """Forward, and backward to the weights (and the hidden layers), or to the inputs, as asked for."""
        layers = [(inside, h), (h, h), (h, outside)]
        for i, (k, n) in enumerate(layers):
            found[rows, k, n] += times
            if weights:
                found[k, rows, n] += times
            if (weights and i > 0) or inputs:
                found[rows, n, k] += times

    share = round(b * config.agent.mix_ratio)
    network(2 * b + 2 * share, obs, d, 1, weights=False, inputs=False)  # labels
    network(4 * b, obs, d, 1, weights=True, inputs=False)  # phi
    network(b, obs, 2 * cib, 1, weights=True, inputs=False)  # encoder
    network(b, d + cib, obs, 1, weights=True, inputs=False)  # decoder
    found[b, h, cib] += 1  # the decoder's gradient goes on to the encoder
    network(2 * b, obs, d, 1, weights=False, inputs=False)  # reward
    network(2 * b, obs, 2 * cib, 1, weights=False, inputs=False)  # what the actor sees
    network(b, cib + d, 2 * act, 1, weights=False, inputs=False)  # a'
    network(b, obs + d + act, 1, 2, weights=False, inputs=False)  # target critics
    network(b, obs + d + act, 1, 2, weights=True, inputs=False)  # critics
    network(b, cib + d, 2 * act, 1, weights=True, inputs=False)  # actor
    network(b, obs + d + act, 1, 2, weights=False, inputs=True)  # through the critics to the action
    return found


def seconds_each(call: Callable[[], object], budget: float) -> float:
    """Median time of a call, after one that is not counted."""
    jax.block_until_ready(call())
    times, start = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < budget:
        before = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - before)
    return float(np.median(times))


def product_seconds(shape: Product, budget: float) -> float:
    """Time of one product: several with different left sides in one dispatch, so that none can be shared or hoisted."""
    m, k, n = shape
    repeats = int(np.clip(2e9 / (2 * m * k * n), 4, 64))
    left, right = [jnp.full((m, k), 1.0 + i) for i in range(repeats)], jnp.ones((k, n))
    run = jax.jit(lambda left, right: [a @ right for a in left])
    return seconds_each(lambda: run(left, right), budget) / repeats


def random_batch(config: Config, spec: Spec) -> agents.Batch:
    shapes, structure = jax.tree.flatten(batch_shapes(config, spec))
    keys = jax.random.split(jax.random.key(1), len(shapes))
    return structure.unflatten([jax.random.normal(key, leaf.shape) for key, leaf in zip(keys, shapes, strict=True)])


def updates(width: int, spec: Spec, budget: float) -> None:
    config = Config().replace(algo="genda", hidden=width)  # with its own options
    agent, batch = agents.make(config, spec), random_batch(config, spec)
    k = max(2, 4096 // width)

    def many(state: agents.AgentState, key: jax.Array) -> agents.AgentState:
        return jax.lax.scan(lambda s, key: (agent.update(s, batch, key)[0], None), state, jax.random.split(key, k))[0]

    run = jax.jit(many, donate_argnums=0)
    state = jax.jit(agent.init)(jax.random.key(0))

    def call() -> agents.AgentState:
        nonlocal state
        state = run(state, jax.random.key(2))
        return state

    each = seconds_each(call, budget) / k
    shapes = products(config, spec)
    flops = sum(2 * m * k * n * times for (m, k, n), times in shapes.items())
    alone = sum(product_seconds(shape, budget / 40) * times for shape, times in shapes.items())
    square = 2 * 1024 * width * width / product_seconds((1024, width, width), budget / 4) / 1e9
    print(
        f"| {width} | {flops / 1e9:.2f} | {1e3 * each:.1f} | {1 / each:.1f} | {flops / each / 1e9:.0f} | "
        f"{flops / alone / 1e9:.0f} | {alone / each:.0%} | {square:.0f} | {flops / each / 1e9 / square:.0%} |"
    )


def iteration(options: Options) -> None:
    """One whole iteration, and its parts compiled alone."""
    config = dataclasses.replace(
        preset("", "small"),  # the general one, whatever suits the body
        env=options.env,
        hidden=options.iteration_width,
        num_envs=options.num_envs,
        warmup_episodes=0,
    )
    env = envs.make(options.env, normalize=False)  # speed does not depend on the scale
    built = build(config, env)
    agent, plan, whole = built.agent, built.schedule, built.program
    state = whole.init(jax.random.key(0))
    collect = jax.jit(lambda s, key: rollout.collect(env, agent, s, key, config.num_envs, False))
    episodes, valid = collect(state.agent, jax.random.key(1))
    physics = seconds_each(lambda: collect(state.agent, jax.random.key(1)), options.seconds)

    ring = jax.tree.map(jnp.copy, state.ring)
    insert = jax.jit(replay.insert, donate_argnums=0)

    def put() -> replay.EpisodeRing:
        nonlocal ring
        ring = insert(ring, episodes, valid)
        return ring

    inserting = seconds_each(put, options.seconds / 4)
    full = put()
    places, parts = replay.places(full), program.Parts(config, plan, env, agent)

    def learn(state: agents.AgentState, key: jax.Array) -> agents.AgentState:
        def step(s: agents.AgentState, key: jax.Array) -> tuple[agents.AgentState, None]:
            return agent.update(s, program.sample_batch(parts, full, places, key), key)[0], None

        return jax.lax.scan(step, state, jax.random.split(key, plan.updates_per_iteration))[0]

    agent_state = jax.tree.map(jnp.copy, state.agent)
    run_updates = jax.jit(learn, donate_argnums=0)

    def update_all() -> agents.AgentState:
        nonlocal agent_state
        agent_state = run_updates(agent_state, jax.random.key(3))
        return agent_state

    updating = seconds_each(update_all, options.seconds)

    def iterate() -> TrainState:
        nonlocal state
        state, _ = whole.run(state, np.int32(1))
        return state

    total = seconds_each(iterate, options.seconds)
    rest = total - physics - inserting - updating
    print(
        f"\n{options.env}, {config.num_envs} envs, width {config.hidden}: one iteration of "
        f"{plan.steps_per_iteration} steps and {plan.updates_per_iteration} updates takes {total:.2f} s"
    )
    print("| part | s | share |\n|---|---|---|")
    for name, value in (
        ("physics and acting", physics),
        ("insert", inserting),
        ("sampling and updates", updating),
        ("rest", rest),
    ):
        print(f"| {name} | {value:.3f} | {value / total:.1%} |")


def main() -> None:
    options = tyro.cli(Options)
    env = envs.make(options.env, normalize=False)  # speed does not depend on the scale
    print(f"{jax.default_backend()}, {os.cpu_count()} cores, jax {jax.__version__}, sizes of {options.env}\n")
    print("| width | GFLOP per update | ms | updates/s | GFLOP/s | its products alone | share | 1024 x w x w | share |")
    print("|---|---|---|---|---|---|---|---|---|")
    for width in options.widths:
        updates(width, Spec.of(env), options.seconds)
    if options.iteration_width:
        iteration(options)


if __name__ == "__main__":
    main()
