"""Where the time of an update goes, by kind of operation, from jax's own profiler.

    python -m benchmarks.operations                       plain SAC as in benchmarks.peers
    python -m benchmarks.operations --algo genda --width 1024

This works on the CPU, whose trace has every operation of the program by its XLA name. Tracing itself costs a little:
the time without it is printed beside the sum.
"""

import dataclasses
import gzip
import json
import os
import re
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from benchmarks.learner import random_batch
from benchmarks.peers import plain_sac
from genda_mjx import agents
from genda_mjx.agents import Spec
from genda_mjx.build import make_env
from genda_mjx.presets import preset

KINDS = {"dot": "matrix products", "reduce": "sums and means"}  # by the first word of an operation
MOVES = ("copy", "transpose", "concatenate", "slice", "bitcast", "pad", "gather")


@dataclasses.dataclass(frozen=True)
class Options:
    algo: str = "sac"  # sac, the plain one of benchmarks.peers, or an agent of train.py
    env: str = "fish"  # body whose sizes are used
    width: int = 256
    batch_size: int = 256
    updates: int = 100  # traced


def kind(name: str) -> str:
    """The kind of an operation, from XLA's name: dot_general.3, copy_multiply_fusion.1, wrapped_reduce-window."""
    words = re.split(r"[_.\-]", name.removeprefix("wrapped_"))
    if words[0] in KINDS:
        return KINDS[words[0]]
    if all(word in MOVES or word in ("fusion", "general") or word.isdigit() for word in words):
        return "copies"
    return "element by element (activations, gradients, Adam, noise)"


def traced(folder: Path) -> list[dict]:
    """The events of the one trace in a folder."""
    (path,) = folder.rglob("*.trace.json.gz")
    with gzip.open(path) as file:
        return json.load(file)["traceEvents"]


def main() -> None:
    options = tyro.cli(Options)
    spec = Spec.of(make_env(options.env))
    plain = options.algo == "sac"
    config = preset(options.env, "paper", "genda" if plain else options.algo)
    config = dataclasses.replace(config, hidden=options.width, batch_size=options.batch_size)
    agent, batch = (plain_sac if plain else agents.make)(config, spec), random_batch(config, spec)
    skill = agent.skills.sample(jax.random.key(0), options.batch_size)
    batch = batch.replace(a=jnp.tanh(batch.a), z_roll=skill)

    def many(state: agents.AgentState, key: jax.Array) -> agents.AgentState:
        def step(state: agents.AgentState, key: jax.Array) -> tuple[agents.AgentState, None]:
            return agent.update(state, batch, key)[0], None

        with jax.default_matmul_precision("highest"):
            return jax.lax.scan(step, state, jax.random.split(key, options.updates))[0]

    state, key = jax.jit(agent.init)(jax.random.key(0)), jax.random.key(2)
    run = jax.jit(many).lower(state, key).compile()
    operations = set(re.findall(r"^ *(?:ROOT )?%?([\w.\-]+) = ", run.as_text(), re.MULTILINE))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        jax.block_until_ready(run(state, key))
        times.append(time.perf_counter() - start)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run(state, key))
        events = traced(Path(folder))

    spent, count = Counter(), Counter()
    for event in events:
        # Loops span what is inside of them.
        if event.get("ph") == "X" and event["name"] in operations and not event["name"].startswith("while"):
            spent[kind(event["name"])] += event["dur"] / 1e3 / options.updates
            count[kind(event["name"])] += 1 / options.updates
    total = sum(spent.values())
    print(
        f"{options.algo}, sizes of {options.env}, width {options.width}, batch {options.batch_size}: "
        f"{1e3 * np.median(times[1:]) / options.updates:.2f} ms per update, {total:.2f} ms in traced operations"
    )
    print("\n| kind | ms per update | share | operations |\n|---|---|---|---|")
    for name, value in spent.most_common():
        print(f"| {name} | {value:.2f} | {value / total:.0%} | {count[name]:.0f} |")


if __name__ == "__main__":
    main()
