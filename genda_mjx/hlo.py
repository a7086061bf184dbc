"""What a compiled program says of itself: its operations, and how often each runs. `costs.py` says how long they take.

XLA's text (HLO) names every operation that is left after optimisation. A loop's body stands there once; how often it
runs is read from its condition. `jax.named_scope`s of the program tell which part an operation belongs to.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
BYTES |= {"f64": 8, "s64": 8, "u64": 8}
FREE = {  # opcodes that do nothing at run time
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "after-all"),
    *("copy-done", "all-reduce-done", "all-gather-done", "async-done", "partition-id", "opt-barrier", "async-update"),
}
COPIES = {"copy", "copy-start", "transpose"}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
HOST = ("infeed", "outfeed", "send", "recv")  # opcodes that talk to the host
# A library's factorisations of matrices [..., N, ..., n, n].
CHOLESKY, TRIANGLE = 'custom_call_target="Cholesky"', 'custom_call_target="InvertDiagBlocks'
KERNEL = "cholesky/pallas_call"  # scope of envs/physics/cholesky_kernel.py and of cholesky_cuda.py
SCOPES = {"solver": "solver", "physics": "physics", "replay": "replay", "update": "updates", "rollout": "policy"}


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
    def is_factorisation(self) -> bool:
        """Whether it is one of a library's."""
        return CHOLESKY in self.rest or TRIANGLE in self.rest

    @property
    def is_kernel(self) -> bool:
        """Whether it is our own Cholesky, which is a call but none of a library's."""
        return self.opcode == "custom-call" and KERNEL in self.scope

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
        if self.op.is_factorisation:
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
    return sum(BYTES.get(kind, 0) * math.prod(map(int, filter(None, dims.split(",")))) for kind, dims in arrays(shape))


def elements(shape: str) -> int:
    """Elements of an array, of a tuple those of its first."""
    found = arrays(shape)
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


def arrays(shape: str) -> list[tuple[str, str]]:
    """Type and dimensions, as text, of an array or of each part of a tuple."""
    return re.findall(r"(\w+)\[([\d,]*)\]", shape)


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
