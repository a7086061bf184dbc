"""A physics substep, its collisions, or an update alone on the accelerators' own compilers: kernels, copies, sorts.

    .venv-compilers/bin/python -m benchmarks.parts --bodies fish dog --parts substep update --targets v5e a100

A part stands in a loop, as in the program, and only the loop's body is counted. A row is a process of its own. Whole
programs are in `benchmarks.accelerators`; a part compiles in a tenth of the time, so a change can be judged sooner.
"""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import tyro

import envs
from envs import physics
from envs.physics import contacts
from envs.physics.tree import kinematics
from genda_mjx import agents, costs, hlo, platform
from genda_mjx.agents import Spec
from genda_mjx.build import batch_shapes
from genda_mjx.presets import preset
from genda_mjx.runs.start import tune_xla

COLUMNS = {
    "compile, CPU s": "{compile:.0f}",
    "temp, MB": "{temp:.1f}",
    "code, MB": "{code:.1f}",
    "operations": "{operations:,}",
    "copies": "{copies:,}",
    "sorts": "{sorts:,}",
    "library calls": "{custom calls:,}",
    "us, estimate": "{microseconds:,.0f}",
    "of it": "{split}",
}


@dataclasses.dataclass(frozen=True)
class Options:
    bodies: tuple[str, ...] = ("point", "fish", "quadruped", "humanoid", "dog")
    parts: tuple[str, ...] = ("substep", "update")
    targets: tuple[str, ...] = ("v5e", "a100")
    copies: int = 2048
    preset: str = "accelerator"  # of the update
    precision: str = "high"  # of the update
    bf16: bool = False
    text: str = ""  # file for the compiled program's text
    one: bool = False  # in this process, as JSON


def substep(env: envs.Body, options: Options) -> tuple[Callable, Any]:
    """One physics step of all copies, and the shapes of what it carries and takes."""

    def run(state: physics.PhysicsState, ctrl: jax.Array) -> physics.PhysicsState:
        with jax.default_matmul_precision("highest"), jax.named_scope("physics"):
            return physics.step(env.physics_model, state, ctrl)[0]

    model = env.model
    rows = (model.nq, model.nv, model.na, model.nv)
    shapes = [jax.ShapeDtypeStruct((size, options.copies), jnp.float32) for size in (*rows, model.nu)]
    return run, (physics.PhysicsState(*shapes[:4]), shapes[4])


def collide(env: envs.Body, options: Options) -> tuple[Callable, Any]:
    """Poses and contacts of all copies. The state moves by what they sum up to, or they would be left out."""
    if not len(env.physics_model.contact_dims):
        sys.exit(f"{env.name} has no contacts")

    def run(qpos: jax.Array, _: jax.Array) -> jax.Array:
        with jax.default_matmul_precision("highest"), jax.named_scope("physics"):
            found = contacts.collide(env.physics_model, kinematics(env.physics_model.tree, qpos))
            return qpos + sum(leaf.sum(dtype=jnp.float32) for leaf in jax.tree.leaves(found))

    return run, (jax.ShapeDtypeStruct((env.model.nq, options.copies), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))


def update(env: envs.Body, options: Options) -> tuple[Callable, Any]:
    """One gradient step on a given batch."""
    config = preset(env.name, options.preset).replace(precision=options.precision, bf16=options.bf16)
    spec = Spec.of(env)
    agent = agents.make(config, spec)

    def run(state: agents.AgentState, batch: agents.Batch) -> agents.AgentState:
        key = jax.random.fold_in(jax.random.key(0), state.updates)
        with jax.default_matmul_precision(config.precision), jax.named_scope("update"):
            return agent.update(state, batch, key)[0]

    return run, (jax.eval_shape(agent.init, jax.random.key(0)), batch_shapes(config, spec))


def measure(options: Options) -> dict[str, Any]:
    """What the compiler makes of the first part of the first body on the first target."""
    target = platform.parse(options.targets[0])
    platform.prepare(target)
    sharding = jax.sharding.NamedSharding(platform.make_mesh(target), jax.sharding.PartitionSpec())
    env = envs.make(options.bodies[0], normalize=False)
    run, arguments = {"substep": substep, "collide": collide, "update": update}[options.parts[0]](env, options)

    def loop(n: jax.Array, state: Any, other: Any) -> Any:
        return jax.lax.fori_loop(0, n, lambda _, state: run(state, other), state)

    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        (jax.ShapeDtypeStruct((), jnp.int32), *arguments),
    )
    started = time.process_time()
    compiled, scratch = platform.compile_counted(jax.jit(loop, donate_argnums=1).lower(*placed), target)
    seconds, text = time.process_time() - started, compiled.as_text()
    if options.text:
        with open(options.text, "w") as file:
            file.write(text)
    program = hlo.parse(text)
    estimate = costs.estimate(program, target.chip, inside_loops=True)
    total = max(estimate.total, 1e-12)
    return hlo.counts(program, inside_loops=True) | {
        "compile": seconds,
        "temp": scratch / 1e6,
        "code": compiled.memory_analysis().generated_code_size_in_bytes / 1e6,
        "microseconds": 1e6 * estimate.total,
        "split": ", ".join(f"{part} {share / total:.0%}" for part, share in estimate.seconds.items()),
    }


def main() -> None:
    options = tyro.cli(Options)
    if options.one:
        tune_xla()
        print(json.dumps(measure(options)))
        return
    print(f"| part | {' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 1)}|", flush=True)
    for target in options.targets:
        for part in options.parts:
            for body in options.bodies:
                chosen = ["--bodies", body, "--parts", part, "--targets", target, "--one"]
                command = [sys.executable, "-m", "benchmarks.parts", *sys.argv[1:], *chosen]
                run = subprocess.run(command, capture_output=True, text=True, timeout=3600)
                cells = [run.stderr.strip()[-120:]]
                if run.returncode == 0:
                    found = json.loads(run.stdout.splitlines()[-1])
                    cells = [pattern.format(**found) for pattern in COLUMNS.values()]
                print(f"| {body} {part}, {target} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
