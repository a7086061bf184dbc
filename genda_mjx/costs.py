"""A low-side estimate of how long a compiled program takes: the compiler's own figures where it has them, else ours."""

import math
import re
from collections import Counter
from typing import NamedTuple

from genda_mjx import hlo
from genda_mjx.hlo import Instruction, Program
from genda_mjx.platform import Chip

LAUNCH = 2.5e-6  # s, our assumption for one kernel of a GPU that does little; graphs of kernels need less
# Cycles of a library's factorisation, for which libtpu gives none, read off its own schedules of n = 22 and 79
# (docs/accelerators.md): Cholesky takes one matrix after the other, the inversion of a triangle 128 at a time.
LIBRARY = {
    hlo.CHOLESKY: lambda copies, n: 162 * n * copies,
    hlo.TRIANGLE: lambda copies, n: 20 * n**2 * math.ceil(copies / 128),
}
SCHEDULERS = 4  # in a core of a GPU; each starts one instruction of a warp in a cycle


def cholesky_cycles(n: int, copies: int) -> int:
    """Of envs/physics/cholesky_kernel.py: cycles that libtpu schedules for a turn of its loops, times their turns.

    `benchmarks.factorisations` reads them off; for 128 copies panels of 8 columns are taken, for each of them those
    left of it, and for each of these the rows below. Bringing the matrix in takes less and happens meanwhile.
    """
    panels = math.ceil(n / 8)
    return math.ceil(copies / 128) * (50 + 270 * panels + 147 * math.comb(panels, 2) + 42 * math.comb(panels, 3))


def cholesky_instructions(n: int) -> int:
    """Of envs/physics/cholesky_cuda.py: what its one warp executes for a copy, in XLA's PTX.

    `benchmarks.factorisations` counts them: so many for a column, for a tile on the diagonal, and for a product of
    tiles, which are as many as pairs and, with repetition, triples of tiles.
    """
    tiles = math.ceil(n / 16)
    return 165 * n + 150 * tiles + 210 * (math.comb(tiles, 2) + math.comb(tiles + 1, 3))


def cycles(op: Instruction) -> int:
    """On a TPU: the compiler's own; ours for what it has none for, a factorisation by the library or our Cholesky."""
    if found := re.search(r'"estimated_cycles":"(\d+)"', op.rest):
        return int(found.group(1))
    if op.is_kernel:
        return cholesky_cycles(*sizes(op))  # [n, N]
    n = sizes(op)[-1] if op.is_factorisation else 0
    return next((LIBRARY[name](hlo.elements(op.shape) // n**2, n) for name in LIBRARY if name in op.rest), 0)


def kernel_seconds(op: Instruction, chip: Chip) -> float:
    """Of our own Cholesky [N, n] on a GPU whose schedulers never wait; 0 for anything else."""
    if not op.is_kernel:
        return 0.0
    copies, n = sizes(op)
    return math.ceil(copies / (SCHEDULERS * chip.gpu.cores)) * cholesky_instructions(n) / chip.clock


def sizes(op: Instruction) -> list[int]:
    """Of its result, of a tuple the first array's."""
    return [int(size) for size in hlo.arrays(op.shape)[0][1].split(",") if size]


class Estimate(NamedTuple):
    """Seconds of one iteration by part, and what they rest on."""

    seconds: dict[str, float]
    basis: str

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def estimate(program: Program, chip: Chip, inside_loops: bool = False) -> Estimate:
    """A low-side guess, of all operations or of those inside loops only.

    TPU: the compiler's own cycles per operation; it has none for asynchronous copies, and those of the library's
    factorisations are `LIBRARY`'s. GPU: each kernel takes its launch, its bytes or, for a library product, its FLOPs,
    for our Cholesky its instructions, whichever is longest.
    """
    seconds: Counter[str] = Counter()
    shapes = {name: program.shapes(name) for name in program.computations}
    for run in program.walk():
        if inside_loops and not run.loops:
            continue
        if chip.platform == "tpu":
            seconds[run.part] += run.times * cycles(run.op) / chip.clock
            continue
        inputs = [shapes[run.computation].get(name, "") for name in run.op.operands]
        moved = sum(map(hlo.nbytes, inputs)) + hlo.nbytes(run.op.shape)
        computing = product_seconds(run.op, inputs, chip) or kernel_seconds(run.op, chip)
        seconds[run.part] += run.times * max(LAUNCH, moved / chip.bandwidth, computing)
    basis = (
        f"the compiler's cycles at {chip.clock / 1e9:g} GHz; none for async copies"
        if chip.platform == "tpu"
        else f"{LAUNCH * 1e6:g} us per kernel, or its bytes at {chip.bandwidth / 1e9:,.0f} GB/s if that is longer"
    )
    return Estimate(dict(seconds.most_common()), basis)


def product_seconds(op: Instruction, inputs: list[str], chip: Chip) -> float:
    """Of a library's matrix product on a GPU, at the data sheet's rate for its inputs and precision; else 0."""
    if "gemm" not in op.rest or len(inputs) < 2:
        return 0.0
    batch = math.prod(sizes(op)[:-2])  # of products [m, k] [k, n] -> [m, n], each the root of its three sizes' product
    flops = 2 * math.sqrt(hlo.elements(inputs[0]) * hlo.elements(inputs[1]) * hlo.elements(op.shape) / batch)
    if inputs[0].startswith("bf16"):
        return flops / chip.bfloat16
    return flops / (chip.float32 if "HIGHEST" in op.rest else chip.bfloat16 / 2)  # TF32: half of bfloat16's
