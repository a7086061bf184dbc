"""Cholesky solutions on a TPU: the library's and our kernel's by the compiler's schedule, our panels by its estimate.

    .venv-compilers/bin/python -m benchmarks.factorisations --sizes 22 27 79

libtpu writes no estimate of cycles for its Cholesky nor for a kernel, but it can write down every instruction that it
schedules. A schedule has one line per cycle, empty ones while a result is waited for. The library's runs once per
matrix; of ours each loop's lines are counted, and how often it turns is known.
"""

import dataclasses
import glob
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import tyro

from envs.physics import cholesky, cholesky_kernel, solver
from genda_mjx import hlo, platform

WAYS = {"library": jax.vmap(solver.solve_spd), "panels": cholesky.solve, "kernel": cholesky_kernel.solve}


@dataclasses.dataclass(frozen=True)
class Options:
    sizes: tuple[int, ...] = (22, 27, 79)  # dofs of quadruped, humanoid and dog
    copies: int = 2048
    one: str = ""  # one of WAYS: in this process, of the first size, as JSON


def compile_one(options: Options) -> dict[str, float]:
    """Estimated microseconds, operations and CPU-seconds of compilation."""
    target = platform.parse("v5e")
    platform.prepare(target)
    sharding = jax.sharding.NamedSharding(platform.make_mesh(target), jax.sharding.PartitionSpec())
    n, copies = options.sizes[0], options.copies
    shapes = ((copies, n, n), (copies, n)) if options.one == "library" else ((n, n, copies), (n, copies))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape in shapes]
    started = time.process_time()
    compiled = jax.jit(WAYS[options.one]).lower(*arguments).compile()
    seconds, program = time.process_time() - started, hlo.parse(compiled.as_text())
    return {
        "microseconds": 1e6 * hlo.estimate(program, target.chip).total,
        "operations": hlo.counts(program)["operations"],
        "copies": hlo.counts(program)["copies"],
        "compile": seconds,
    }


def measure(which: str, size: int, copies: int) -> dict[str, float]:
    """The same in a process of its own, and the scheduled cycles: per matrix of the library's Cholesky, of our kernel
    for all copies."""
    with tempfile.TemporaryDirectory() as folder:
        dump = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true" if which != "panels" else ""
        command = [sys.executable, "-m", "benchmarks.factorisations", "--one", which]
        run = subprocess.run(
            [*command, "--sizes", str(size), "--copies", str(copies)],
            capture_output=True,
            text=True,
            env=os.environ | {"LIBTPU_INIT_ARGS": dump},
        )
        if run.returncode:
            raise RuntimeError(run.stderr[-2000:])
        found = json.loads(run.stdout.splitlines()[-1])
        for path in glob.glob(f"{folder}/*-custom-call*schedule-analysis_packed-bundles-post-ra.txt"):
            with open(path) as file:
                text = file.read()
            if 'custom_call_target="Cholesky"' in text:
                bundles = int(re.search(r"total scheduled bundles:\s*(\d+)", text).group(1))
                found["scheduled"] = max(bundles, found.get("scheduled", 0))
        for path in glob.glob(f"{folder}/*-cholesky*[0-9]-final_bundles.txt"):
            with open(path) as file:
                found["scheduled"] = kernel_cycles(file.read(), size, copies)
        return found


def kernel_cycles(schedule: str, size: int, copies: int) -> int:
    """The lines of every loop times its turns: copies; panels; of the diagonal block, of the rows below it and of the
    right-hand side the panels to the left, the rows below with their own; backwards panels and the rows below."""
    panels = math.ceil(size / 8)
    pairs = math.comb(panels, 2)
    turns = [1, panels, pairs, pairs, math.comb(panels, 3), pairs, panels, pairs]
    return copies // 128 * sum(a * b for a, b in zip(lines_of_loops(schedule), turns, strict=True))


def lines_of_loops(schedule: str) -> list[int]:
    """Cycles of every loop's body without those of loops inside. LB begins a loop; as many > as loops are around."""
    lines: list[int] = []
    around: list[int] = []  # loops that the line is in
    for line in schedule.splitlines():
        found = re.match(r"\s*0x[0-9a-f]+\s+(\w\w)?\s*:\s*(>*)\s*\{(.?)", line)
        if not found:
            continue
        kind, depth, empty = found.group(1), len(found.group(2)), found.group(3) == "}"
        if kind == "LB":
            around = [*around[: depth - 1], len(lines)]
            lines.append(0)
        elif depth or not empty:
            around = around[:depth]
        if around:
            lines[around[-1]] += 1
    return lines


def main() -> None:
    options = tyro.cli(Options)
    if options.one:
        print(json.dumps(compile_one(options)))
        return
    print("| dofs | library, cycles per Cholesky | library, us | panels, us | compile | kernel, us | compile, CPU s |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for size in options.sizes:
        library, panels, kernel = (measure(which, size, options.copies) for which in WAYS)
        print(
            f"| {size} | {library['scheduled']:,} | {library['microseconds']:,.0f} | {panels['microseconds']:,.0f} | "
            f"{panels['compile']:.0f} | {1e6 * kernel['scheduled'] / platform.CHIPS['v5e'].clock:,.0f} | "
            f"{kernel['compile']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
