"""Cholesky solutions on a TPU: the library's by the compiler's own schedule, ours by its estimate.

    .venv-compilers/bin/python -m benchmarks.factorisations --sizes 22 27 79

libtpu writes no estimate of cycles for its Cholesky, but it can write down every instruction that it schedules. A
schedule has one line per cycle, empty ones while a result is waited for; the factorisation runs it once per matrix.
"""

import dataclasses
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import tyro

from envs.physics import cholesky, solver
from genda_mjx import hlo, platform


@dataclasses.dataclass(frozen=True)
class Options:
    sizes: tuple[int, ...] = (22, 27, 79)  # dofs of quadruped, humanoid and dog
    copies: int = 2048
    one: str = ""  # library or ours: in this process, of the first size, as JSON


def compile_one(options: Options) -> dict[str, float]:
    """Estimated microseconds, operations and CPU-seconds of compilation."""
    target = platform.parse("v5e")
    platform.prepare(target)
    sharding = jax.sharding.NamedSharding(platform.make_mesh(target), jax.sharding.PartitionSpec())
    n, copies = options.sizes[0], options.copies
    solve = {"library": jax.vmap(solver.solve_spd), "ours": cholesky.solve}[options.one]
    shapes = {"library": ((copies, n, n), (copies, n)), "ours": ((n, n, copies), (n, copies))}[options.one]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape in shapes]
    started = time.process_time()
    compiled = jax.jit(solve).lower(*arguments).compile()
    seconds, program = time.process_time() - started, hlo.parse(compiled.as_text())
    return {
        "microseconds": 1e6 * hlo.estimate(program, target.chip).total,
        "operations": hlo.counts(program)["operations"],
        "copies": hlo.counts(program)["copies"],
        "compile": seconds,
    }


def measure(which: str, size: int, copies: int) -> dict[str, float]:
    """The same in a process of its own, and the scheduled cycles per matrix of the library's Cholesky."""
    with tempfile.TemporaryDirectory() as folder:
        dump = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true" if which == "library" else ""
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
        return found


def main() -> None:
    options = tyro.cli(Options)
    if options.one:
        print(json.dumps(compile_one(options)))
        return
    print("| dofs | library, cycles per Cholesky | library, us | ours, us | ours, operations | ours, compile CPU s |")
    print("|---|---|---|---|---|---|", flush=True)
    for size in options.sizes:
        library, ours = (measure(which, size, options.copies) for which in ("library", "ours"))
        print(
            f"| {size} | {library['scheduled']:,} | {library['microseconds']:,.0f} | {ours['microseconds']:,.0f} | "
            f"{ours['operations']:,} | {ours['compile']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
