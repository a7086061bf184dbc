"""What a compiled program says of itself: its operations, how often each runs, and a low-side estimate of their time.

XLA's text (HLO) names every operation that is left after optimisation. A loop's body stands there once; how often it
runs is read from its condition. `jax.named_scope`s of the program tell which part an operation belongs to.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from genda_mjx.platform import Chip

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
BYTES |= {"f64": 8, "s64": 8, "u64": 8}
FREE = {  # opcodes that do nothing at run time
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"),
    *("copy-done", "all-reduce-done", "all-gather-done", "async-done", "partition-id", "opt-barrier", "async-update"),
}
COPIES = {"copy", "copy-start", "transpose"}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
HOST = ("infeed", "outfeed", "send", "recv")  # opcodes that talk to the host
LAUNCH = 2.5e-6  # s, our assumption for one kernel of a GPU that does little; graphs of kernels need less
# Cycles of what libtpu gives no estimate for, of shape [..., N, ..., n, n], read off its own schedules of n = 22 and 79
# (docs/accelerators.md): Cholesky takes one matrix after the other, the inversion of a triangle 128 at a time.
LIBRARY = {
    'custom_call_target="Cholesky"': lambda copies, n: 162 * n * copies,
    'custom_call_target="InvertDiagBlocks': lambda copies, n: 20 * n**2 * math.ceil(copies / 128),
}
KERNEL = "cholesky/pallas_call"  # scope of envs/physics/cholesky_kernel.py and of cholesky_cuda.py
SCHEDULERS = 4  # in a core of a GPU; each starts one instruction of a warp in a cycle
SCOPES = {"solver": "solver", "physics": "physics", "replay": "replay", "update": "updates", "rollout": "policy"}


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


class Instruction(NamedTuple):
    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str  # attributes as text

    @property
    def scope(self) -> str:
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found.group(1) if found else ""

    @property
    def cycles(self) -> int:
        found = re.search(r'"estimated_cycles":"(\d+)"', self.rest)
        return int(found.group(1)) if found else self.library_cycles or self.kernel_cycles

    @property
    def library_cycles(self) -> int:
        """Of a factorisation by the library; 0 for anything else."""
        for name, cycles in LIBRARY.items():
            if name in self.rest:
                n = int(_arrays(self.shape)[0][1].split(",")[-1])
                return cycles(elements(self.shape) // n**2, n)
        return 0

    @property
    def is_kernel(self) -> bool:
        """Whether it is our own Cholesky, which is a call but none of a library's."""
        return self.opcode == "custom-call" and KERNEL in self.scope

    @property
    def kernel_cycles(self) -> int:
        """Of our own Cholesky [n, N] on a TPU; 0 for anything else."""
        return cholesky_cycles(*map(int, _arrays(self.shape)[0][1].split(","))) if self.is_kernel else 0

    def kernel_seconds(self, chip: Chip) -> float:
        """Of our own Cholesky [N, n] on a GPU whose schedulers never wait; 0 for anything else."""
        if not self.is_kernel:
            return 0.0
        copies, n = map(int, _arrays(self.shape)[0][1].split(","))
        return math.ceil(copies / (SCHEDULERS * chip.gpu.cores)) * cholesky_instructions(n) / chip.clock

    def called(self, attribute: str) -> list[str]:
        """Computations that an attribute like body= or branch_computations= names."""
        found = re.search(attribute + r"=\{?((?:%[\w.\-]+(?:, )?)+)", self.rest)
        return re.findall(r"%([\w.\-]+)", found.group(1)) if found else []


@dataclass(frozen=True)
class Program:
    """Computations by name."""

    computations: dict[str, list[Instruction]]
    entry: str

    def walk(self, computation: str | None = None, times: int = 1, loops: tuple[str, ...] = ()) -> Iterator["Executed"]:
        """Every operation that runs, and how often: a branch by its longer side, a loop of unknown length once."""
        for op in self.computations[computation or self.entry]:
            if op.opcode == "while":
                (body,), (condition,) = op.called("body"), op.called("condition")
                yield from self.walk(body, times * self.trips(condition), (*loops, op.scope))
            elif op.opcode == "conditional":
                sides = (op.called(name) for name in ("branch_computations", "true_computation", "false_computation"))
                branches = [name for side in sides for name in side]
                yield from max((list(self.walk(b, times, loops)) for b in branches), key=len)
            elif op.opcode in ("call", "async-start"):
                for called in op.called("to_apply") or op.called("calls"):
                    yield from self.walk(called, times, loops)
            elif op.opcode not in FREE:
                yield Executed(op, times, loops, computation or self.entry)

    def trips(self, condition: str) -> int:
        """Turns of a loop whose condition compares a counter with a constant; 1 where it does not."""
        constants = [
            int(value)
            for op in self.computations[condition]
            for value in re.findall(r"^\((\d+)\)", op.rest)
            if op.opcode == "constant" and op.shape.startswith("s32")
        ]
        inner = [self.trips(name) for op in self.computations[condition] for name in op.called("calls")]
        return max([*constants, *inner, 1])

    def shapes(self, computation: str) -> dict[str, str]:
        return {op.name: op.shape for op in self.computations[computation]}


class Executed(NamedTuple):
    op: Instruction
    times: int
    loops: tuple[str, ...]  # scopes of the loops around it
    computation: str

    @property
    def part(self) -> str:
        """Of the report: what the time goes into."""
        if self.op.opcode.startswith(COLLECTIVES):
            return "collectives"
        if self.op.opcode in COPIES:
            return "copies"
        if self.op.library_cycles:
            return "library factorisation"
        words = self.op.scope.split("/") + [word for scope in self.loops for word in scope.split("/")]
        return next((part for scope, part in SCOPES.items() if scope in words), "other")

    @property
    def in_update_loop(self) -> bool:
        """In the scan of `program.learn`, which is a branch; branches of the physics choose by platform."""
        return any(re.search(r"branch_[01]_fun", scope) and "physics" not in scope for scope in self.loops)


def parse(text: str) -> Program:
    """XLA's text of a compiled module."""
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        header = re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line)
        if header and not line.startswith((" ", "HloModule")):
            current = computations.setdefault(header.group(2), [])
            entry = header.group(2) if header.group(1) else entry
        elif current is not None and " = " in line:
            current.append(_instruction(line))
    return Program(computations, entry)


def _instruction(line: str) -> Instruction:
    name, _, right = line.strip().removeprefix("ROOT ").partition(" = ")
    end = _closing(right) + 1 if right.startswith("(") else right.index(" ")
    shape, tail = right[:end], right[end:].strip()
    opcode, _, rest = tail.partition("(")
    arguments = rest[: _closing("(" + rest) - 1]
    return Instruction(name.lstrip("%"), shape, opcode, tuple(re.findall(r"%([\w.\-]+)", arguments)), "(" + rest)


def _closing(text: str) -> int:
    """Place of the parenthesis that closes the first one."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    return len(text) - 1


def nbytes(shape: str) -> int:
    """Bytes of a shape in XLA's text, of a tuple of all its parts; without padding."""
    return sum(BYTES.get(kind, 0) * math.prod(map(int, filter(None, dims.split(",")))) for kind, dims in _arrays(shape))


def elements(shape: str) -> int:
    """Elements of an array, of a tuple those of its first."""
    found = _arrays(shape)
    return math.prod(map(int, filter(None, found[0][1].split(",")))) if found else 0


def padded_nbytes(shape: str) -> int:
    """The same as a TPU stores it: the two minor dimensions are filled up to the tile in the layout, like T(8,128)."""
    total = 0
    for kind, dims, order, tile in re.findall(r"(\w+)\[([\d,]*)\]\{([\d,]*):T\((\d+(?:,\d+)?)\)", shape):
        sizes = [int(d) for d in dims.split(",") if d]
        for axis, least in zip([int(o) for o in order.split(",") if o], reversed(tile.split(",")), strict=False):
            sizes[axis] = -(-sizes[axis] // int(least)) * int(least)
        total += BYTES.get(kind, 0) * math.prod(sizes)
    return total


def _arrays(shape: str) -> list[tuple[str, str]]:
    return re.findall(r"(\w+)\[([\d,]*)\]", shape)


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
            seconds[run.part] += run.times * run.op.cycles / chip.clock
            continue
        inputs = [shapes[run.computation].get(name, "") for name in run.op.operands]
        moved = sum(map(nbytes, inputs)) + nbytes(run.op.shape)
        computing = product_seconds(run.op, inputs, chip) or run.op.kernel_seconds(chip)
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
    sizes = [int(size) for size in _arrays(op.shape)[0][1].split(",") if size]
    batch = math.prod(sizes[:-2])  # of products [m, k] [k, n] -> [m, n], each the root of its three sizes' product
    flops = 2 * math.sqrt(elements(inputs[0]) * elements(inputs[1]) * elements(op.shape) / batch)
    if inputs[0].startswith("bf16"):
        return flops / chip.bfloat16
    return flops / (chip.float32 if "HIGHEST" in op.rest else chip.bfloat16 / 2)  # TF32: half of bfloat16's


def counts(program: Program, inside_loops: bool = False) -> dict[str, int]:
    """Operations of interest that run in one iteration; or those of them inside loops."""
    found: Counter[str] = Counter()
    for run in program.walk():
        if inside_loops and not run.loops:
            continue
        found["operations"] += run.times
        for kind, hit in (
            ("copies", run.op.opcode in COPIES),
            ("sorts", run.op.opcode == "sort" or "TopK" in run.op.rest),
            ("custom calls", run.op.opcode == "custom-call" and not run.op.is_kernel),
            ("collectives", run.op.opcode.startswith(COLLECTIVES)),
            ("in the update loop", run.in_update_loop),
        ):
            found[kind] += run.times * hit
    return dict(found)


def large_copies(program: Program, least: int) -> list[Executed]:
    """Copies and transposes inside loops that move at least so many bytes each time; a fusion of nothing but a copy
    counts."""
    return [
        run
        for run in program.walk()
        if len(run.loops) > 1
        and nbytes(run.op.shape) >= least
        and (run.op.opcode in COPIES or re.match(r"(copy|transpose|bitcast|reshape)[\w.\-]*fusion|copy", run.op.name))
    ]
