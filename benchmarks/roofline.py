"""What an accelerator could do at best, on paper: counted FLOPs and bytes of an iteration against data sheets.

    python -m benchmarks.roofline [--env quadruped] [--preset accelerator]

An estimate, not a measurement: the operations of one update and of one env step are counted in what jax traces, and
each takes the longer of its FLOPs at peak rate and its bytes at peak bandwidth. Real programs reach a part of either;
kernels' launch times are not in it, and they will dominate the physics of few envs.
"""

import dataclasses
import math
import os
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import tyro
from jax.extend.core import ClosedJaxpr, Jaxpr

from genda_mjx import agents
from genda_mjx.agents import Spec
from genda_mjx.build import batch_shapes, check, make_env
from genda_mjx.platform import CHIPS
from genda_mjx.presets import preset
from genda_mjx.runs import start


@dataclasses.dataclass(frozen=True)
class Options:
    env: str = "quadruped"
    preset: str = "accelerator"
    copies: int = 64  # envs that the step is counted with


MOVERS = {
    *("dot_general", "gather", "scatter", "scatter-add", "reduce_sum", "reduce_max", "argmax", "sort", "top_k"),
    *("concatenate", "cumsum", "dynamic_update_slice"),
}


class Cost(NamedTuple):
    flops: float
    bytes: float

    def seconds(self, rate: float, bandwidth: float) -> float:
        return max(self.flops / rate, self.bytes / bandwidth)


def cost_of(function, *arguments) -> Cost:
    return count(jax.make_jaxpr(function)(*arguments).jaxpr)


def count(jaxpr: Jaxpr) -> Cost:
    """FLOPs of every operation, loops as often as they run (XLA's own analysis counts a loop once).

    Bytes: what matrix products, gathers, reductions and the like read and write; the operations between them work
    element by element, and a compiler fuses those.
    """
    flops = moved = 0.0
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        inner = [
            part for part in jax.tree.leaves(list(equation.params.values()), is_leaf=is_program) if is_program(part)
        ]
        if inner:
            parts = [count(getattr(part, "jaxpr", part)) for part in inner]
            heaviest = max(parts, key=lambda part: part.flops)  # of the branches of a condition
            flops, moved = flops + times * heaviest.flops, moved + times * heaviest.bytes
            continue
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            depth = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            flops += 2 * depth * equation.outvars[0].aval.size
        else:
            flops += sum(v.aval.size for v in equation.outvars)
        if equation.primitive.name in MOVERS:
            moved += sum(v.aval.size * v.aval.dtype.itemsize for v in (*equation.invars, *equation.outvars))
    return Cost(flops, moved)


def is_program(value) -> bool:
    return isinstance(value, Jaxpr | ClosedJaxpr)


def main() -> None:
    options = tyro.cli(Options)
    start.keep_compilations(".cache/jax")
    config, env = preset(options.env, options.preset), make_env(options.env)
    agent, (_, plan) = agents.make(config, Spec.of(env)), check(config, env)
    state, key = jax.eval_shape(agent.init, jax.random.key(0)), jax.eval_shape(jax.random.key, 0)
    update = cost_of(agent.update, state, batch_shapes(config, Spec.of(env)), key)
    keys = jax.random.split(jax.random.key(0), options.copies)
    copies = jax.eval_shape(jax.vmap(env.reset), keys)
    actions = jax.ShapeDtypeStruct((options.copies, env.action_size), jnp.float32)
    many = cost_of(jax.vmap(env.step), copies, actions)
    step = Cost(many.flops / options.copies, many.bytes / options.copies)

    updates, steps = plan.updates_per_iteration, plan.steps_per_iteration
    print(
        f"{options.env}, --preset {options.preset}: {updates} updates of batch {config.batch_size}, {steps:,} env steps"
    )
    print(f"one update {update.flops / 1e9:.1f} GFLOP, {update.bytes / 2**30:.2f} GiB moved")
    print(f"one env step {step.flops / 1e6:.2f} MFLOP, {step.bytes / 1e6:.2f} MB moved at most\n")
    print(
        "| chip, estimate | updates, s | with --bf16 | env steps, s | steps/s at most | with --bf16 |\n"
        + "|---" * 6
        + "|"
    )
    for name, chip in CHIPS.items():
        learning = [updates * update.seconds(rate, chip.bandwidth) for rate in (chip.float32, chip.bfloat16)]
        physics = steps * step.seconds(chip.vector, chip.bandwidth)
        speed = [steps / (physics + each) for each in learning]
        print(f"| {name} | {learning[0]:.2f} | {learning[1]:.2f} | {physics:.2f} | {speed[0]:,.0f} | {speed[1]:,.0f} |")


if __name__ == "__main__":
    main()
