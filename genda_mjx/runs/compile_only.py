"""--compile_for: what a run would be on accelerators that this computer does not have.

`python -m genda_mjx.runs.compile_only` takes the same flags and prints the report as one JSON object on its last line.
"""

import json
import time
from typing import Any

import jax
import numpy as np

from envs.base import SkillEnv
from genda_mjx import config as configuration
from genda_mjx import costs, hlo, platform, schedule
from genda_mjx.build import Built, build, check
from genda_mjx.config import Config
from genda_mjx.platform import GB, Target
from genda_mjx.runs.report import Progress, duration


def compile_only(config: Config, env: SkillEnv | None = None) -> dict[str, Any] | None:
    """Compiles the run's program for the chips of --compile_for, prints a report and returns it as numbers."""
    if config.compile_for == "list":
        print(platform.describe_all())
        return None
    configuration.validate(config)
    target = platform.parse(config.compile_for)
    platform.prepare(target)
    progress, mesh = Progress(), platform.make_mesh(target)
    check(config, env, mesh)
    with progress.waiting(f"building {config.env}"):
        built = build(config, env, mesh)
    started = time.process_time()
    with progress.waiting(f"compiling {config.algo} on {config.env} for {target}"):
        lowered = lower(built)
        traced = time.process_time()
        compiled, scratch = platform.compile_counted(lowered, target)
    seconds = {"trace_cpu_seconds": traced - started, "compile_cpu_seconds": time.process_time() - started}
    found = measure(built, target, compiled, scratch) | seconds
    progress.say(report(built, target, found))
    return found


def lower(built: Built) -> Any:
    return built.program.run.lower(built.program.abstract, jax.ShapeDtypeStruct((), np.int32))


def measure(built: Built, target: Target, compiled: Any, scratch: int) -> dict[str, Any]:
    """Bytes on one chip by the compiler's count, and estimates of an iteration."""
    memory, program = compiled.memory_analysis(), hlo.parse(compiled.as_text())
    arguments, code = memory.argument_size_in_bytes, memory.generated_code_size_in_bytes  # results take over arguments
    estimate, plan = costs.estimate(program, target.chip), built.schedule
    ring = max(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(built.program.abstract.ring)) // target.count
    runs = list(program.walk())
    guess = schedule.estimate(
        built.config, plan, built.agent, built.program.abstract, target.count, target.chip.platform
    )
    return {
        "estimated_state": guess.state,
        "estimated_memory": guess.total,
        "temp_over_needed": scratch / guess.scratch,
        "arguments": arguments,
        "temp": scratch,
        "code": code,
        "fits": arguments + scratch + code <= target.chip.memory,
        "seconds": estimate.seconds,
        "iteration_seconds": estimate.total,
        "basis": estimate.basis,
        "steps_per_second": plan.steps_per_iteration / max(estimate.total, 1e-12),
        "hours": plan.iterations * estimate.total / 3600,
        "counts": hlo.counts(program),
        "ring_copies_in_loops": sum(run.times for run in hlo.large_copies(program, ring)),
        "float64_operations": sum("f64[" in run.op.shape for run in runs),
        "host_operations": sum(run.op.opcode.startswith(hlo.HOST) for run in runs),
        "steps_per_iteration": plan.steps_per_iteration,
    }


def report(built: Built, target: Target, found: dict[str, Any]) -> str:
    chip, plan = target.chip, built.schedule
    needed = found["arguments"] + found["temp"] + found["code"]
    verdict = "fits" if found["fits"] else "DOES NOT FIT"
    total = max(found["iteration_seconds"], 1e-12)
    split = ", ".join(f"{part} {share / total:.0%}" for part, share in found["seconds"].items())
    counts = ", ".join(f"{number:,} {name}" for name, number in found["counts"].items())
    return "\n".join(
        [
            f"{target}: {verdict}: {needed / GB:.2f} of {chip.memory / GB:.0f} GB per chip, by the compiler's count "
            f"({found['arguments'] / GB:.2f} arguments, {found['temp'] / GB:.2f} temp, {found['code'] / GB:.3f} code)",
            f"before compiling, {found['estimated_memory'] / GB:.2f} GB would have been the estimate of arguments and "
            f"temp; temp is {found['temp_over_needed']:.2f} times what the algorithm needs by that",
            f"compiled in {found['compile_cpu_seconds']:.0f} CPU-seconds, {found['trace_cpu_seconds']:.0f} of them to "
            "trace it",
            f"estimate: {found['iteration_seconds']:.3g} s per iteration of {plan.steps_per_iteration:,} steps and "
            f"{plan.updates_per_iteration:,} updates: {split}",
            f"estimate: {found['steps_per_second']:,.0f} steps/s, {duration(found['hours'] * 3600)} for "
            f"{plan.total_steps:,} steps. Basis: {found['basis']}. Real runs take longer.",
            f"one iteration runs {counts}; copies of a whole ring array in loops: {found['ring_copies_in_loops']:,}",
        ]
    )


if __name__ == "__main__":
    from genda_mjx.runs.arguments import parse
    from genda_mjx.runs.start import main

    main(lambda: print(json.dumps(compile_only(parse()))))
