"""Cholesky solutions on a TPU: the library's and our kernel's by the compiler's schedule, our panels by its estimate;
and our kernel on a GPU by its instructions.

    .venv-compilers/bin/python -m benchmarks.factorisations --sizes 22 27 79
    .venv-compilers/bin/python -m benchmarks.factorisations --sizes 2 13 22 24 27 79 --gpu a100

libtpu writes no estimate of cycles for its Cholesky nor for a kernel, but it can write down every instruction that it
schedules. A schedule has one line per cycle, empty ones while a result is waited for. The library's runs once per
matrix; of ours each loop's lines are counted, and how often it turns is known. XLA writes down a GPU kernel's PTX, and
NVIDIA's assembler tells the registers it takes and what it spills from them.
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
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import tyro

from envs.physics import cholesky, cholesky_cuda, cholesky_kernel, solver
from genda_mjx import costs, hlo, platform

WAYS = {"library": jax.vmap(solver.library_spd), "panels": cholesky.solve, "kernel": cholesky_kernel.solve}
ARCHITECTURES = {"a100": "sm_80", "h100": "sm_90a"}


@dataclasses.dataclass(frozen=True)
class Options:
    sizes: tuple[int, ...] = (22, 27, 79)  # dofs of quadruped, humanoid and dog
    copies: int = 2048
    gpu: str = ""  # a100 or h100: our kernel there instead
    one: str = ""  # one of WAYS, or gpu: in this process, of the first size, as JSON


def compile_one(options: Options) -> dict[str, float]:
    """Estimated microseconds, operations and CPU-seconds of compilation."""
    target = platform.parse(options.gpu or "v5e")
    platform.prepare(target)
    sharding = jax.sharding.NamedSharding(platform.make_mesh(target), jax.sharding.PartitionSpec())
    n, copies = options.sizes[0], options.copies
    copies_first = options.one in ("library", "gpu")
    shapes = ((copies, n, n), (copies, n)) if copies_first else ((n, n, copies), (n, copies))
    way = jax.vmap(cholesky_cuda.solve) if options.gpu else WAYS[options.one]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape in shapes]
    started = time.process_time()
    compiled = jax.jit(way).lower(*arguments).compile()
    seconds, program = time.process_time() - started, hlo.parse(compiled.as_text())
    return {
        "microseconds": 1e6 * costs.estimate(program, target.chip).total,
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


def measure_on_a_gpu(gpu: str, size: int, copies: int) -> dict[str, float]:
    """Our kernel for so many copies in a process of its own: microseconds by `hlo`, instructions for one copy, its
    registers and the bytes that it spills from them, each for one thread."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.factorisations", "--one", "gpu", "--gpu", gpu]
        run = subprocess.run(
            [*command, "--sizes", str(size), "--copies", str(copies)],
            capture_output=True,
            text=True,
            env=os.environ | {"XLA_FLAGS": f"--xla_dump_to={folder}"},
        )
        if run.returncode:
            raise RuntimeError(run.stderr[-2000:])
        (path,) = glob.glob(f"{folder}/*.ptx")
        with open(path) as file:
            instructions = warp_instructions(file.read(), size)
        (place,) = find_spec("nvidia.cuda_nvcc").submodule_search_locations
        assembler = [f"{place}/bin/ptxas", "-v", f"-arch={ARCHITECTURES[gpu]}", path, "-o", f"{folder}/kernel.cubin"]
        told = subprocess.run(assembler, capture_output=True, text=True, check=True).stderr
    return json.loads(run.stdout.splitlines()[-1]) | {
        "instructions": instructions,
        "registers": int(re.search(r"Used (\d+) registers", told).group(1)),
        "spilled": int(re.search(r"(\d+) bytes spill stores", told).group(1)),
    }


def warp_instructions(ptx: str, size: int) -> int:
    """Instructions of a kernel that takes tiles of 16 columns, each in a loop over them; short loops are unrolled."""
    total, labels, loops = 0, {}, []
    for line in map(str.strip, ptx[ptx.index("{") :].splitlines()):
        label = re.match(r"(\$\w+):", line)
        if label:
            labels[label.group(1)] = total
        elif line and not line.startswith((".", "//", "{", "}")):
            total += 1
            back = re.search(r"\bbra\S*\s+(\$\w+)", line)
            if back and back.group(1) in labels:
                loops.append(total - labels[back.group(1)])
    turns = [min(16, size - start) for start in range(0, size, 16)]
    return total + sum(lines * (times - 1) for lines, times in zip(loops, turns, strict=False))


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
    if options.gpu:
        print("| dofs | instructions | by our formula | registers | spilled, bytes | us, estimate | compile, CPU s |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for size in options.sizes:
            found, told = measure_on_a_gpu(options.gpu, size, options.copies), costs.cholesky_instructions(size)
            print(
                f"| {size} | {found['instructions']:,} | {told:,} | {found['registers']} | "
                f"{found['spilled']:,} | {found['microseconds']:,.0f} | {found['compile']:.1f} |",
                flush=True,
            )
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
