"""Turns a traced JAX function of one state into a list of instructions that the page can run without JAX.

The function is the program's own: an agent's `act`, a body's `observe`. JAX traces it, what depends on constants alone
(weights, statistics) is computed here, and the rest becomes instructions on flat float vectors, one register each:

    ["gather", sources, indices]    entries of the joined source registers
    ["dot", x, c]                   x @ constant c, a matrix [in, out]
    ["sum", x, n]                   sums of n neighbouring entries each
    ["constant", c]                 constant c
    [name, x], [name, x, y]         tanh, cos, ...; add, mul, max, ... entry by entry
    ["select_n", x, y, z]           y where x is 0, z where it is 1

Registers come first for the inputs, then one for each instruction. An operand below zero is a constant: -1 is the
first; one of a single entry serves all. Only entries that reach the outputs are kept: a policy's mean is used and its
log std is not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

UNARY = (
    "tanh",
    "cos",
    "sin",
    "asinh",
    "exp",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "neg",
    "abs",
    "sign",
    "logistic",
    "square",
)
BINARY = ("add", "sub", "mul", "div", "max", "min", "atan2", "gt", "lt", "ge", "le")
SAME = ("convert_element_type", "copy", "stop_gradient", "optimization_barrier")
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat")


def _slice(x: np.ndarray, start_indices: tuple, limit_indices: tuple, strides: tuple | None, **_) -> np.ndarray:
    return x[tuple(map(slice, start_indices, limit_indices, strides or (1,) * x.ndim))]


def _broadcast(x: np.ndarray, shape: tuple, broadcast_dimensions: tuple, **_) -> np.ndarray:
    return np.broadcast_to(np.expand_dims(x, [i for i in range(len(shape)) if i not in broadcast_dimensions]), shape)


MOVES: dict[str, Callable[..., Any]] = {  # primitives that only move entries, on numpy arrays
    "slice": _slice,
    "broadcast_in_dim": _broadcast,
    "squeeze": lambda x, dimensions, **_: np.squeeze(x, dimensions),
    "reshape": lambda x, new_sizes, **_: x.reshape(new_sizes),
    "transpose": lambda x, permutation, **_: x.transpose(permutation),
    "rev": lambda x, dimensions, **_: np.flip(x, dimensions),
    "concatenate": lambda *parts, dimension, **_: np.concatenate(parts, dimension),
    "split": lambda x, sizes, axis, **_: np.split(x, np.cumsum(sizes)[:-1], axis),
}


class Untraceable(ValueError):
    """The function does something that the page has no instruction for."""


@dataclass
class Program:
    """Instructions with their constants; `outputs` are registers."""

    inputs: dict[str, int]  # sizes by name, in the order of their registers
    instructions: list[list[Any]] = field(default_factory=list)
    constants: list[np.ndarray] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # of every register
    outputs: list[int] = field(default_factory=list)

    def add(self, size: int, *instruction: Any) -> int:
        self.instructions.append(list(instruction))
        self.sizes.append(size)
        return len(self.sizes) - 1

    def constant(self, value: np.ndarray) -> int:
        self.constants.append(np.asarray(value, np.float32))
        return -len(self.constants)


@dataclass(frozen=True)
class Value:
    """An array whose entries are found in a register; `entries` [shape] says where."""

    register: int
    entries: np.ndarray


def trace(fn: Callable[..., Any], inputs: dict[str, tuple[int, ...]]) -> Program:
    """The program of fn(**inputs) -> array or tuple of arrays, for float inputs of these shapes."""
    names = list(inputs)
    shapes = [jax.ShapeDtypeStruct(inputs[name], jnp.float32) for name in names]
    closed = jax.make_jaxpr(lambda *values: fn(**dict(zip(names, values, strict=True))))(*shapes)
    program = Program({name: int(np.prod(inputs[name])) for name in names})
    program.sizes = list(program.inputs.values())
    starts = [Value(i, np.arange(program.sizes[i]).reshape(inputs[name])) for i, name in enumerate(names)]
    found = _run(program, closed.jaxpr, closed.consts, starts)
    program.outputs = [_as_register(program, value) for value in found]
    return _without_unused(program)


def _run(program: Program, jaxpr: core.Jaxpr, consts: list[Any], arguments: list[Any]) -> list[Any]:
    """Interprets the equations: known arrays are computed, values that depend on the inputs are recorded."""
    known: dict[core.Var, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *arguments], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name in CALLS:
            inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
            results = _run(program, inner.jaxpr, inner.consts, operands)
        elif not any(isinstance(operand, Value) for operand in operands):
            results = equation.primitive.bind(*operands, **equation.params)
            results = results if equation.primitive.multiple_results else [results]
        else:
            results = _record(program, equation, name, operands)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _record(program: Program, equation: Any, name: str, operands: list[Any]) -> list[Any]:
    shape = equation.outvars[0].aval.shape
    if name in SAME and len(operands) == 1:
        return operands
    if name in MOVES:
        return _moved(program, equation, operands)
    if name == "integer_pow" and equation.params["y"] == 2:
        name = "square"
    if name in UNARY:
        return [_fresh(program.add(int(np.prod(shape)), name, _as_register(program, operands[0])), shape)]
    if name in BINARY or (name == "select_n" and len(operands) == 3):
        several = [_as_operand(program, operand, shape) for operand in operands]
        return [_fresh(program.add(int(np.prod(shape)), name, *several), shape)]
    if name == "dot_general":
        return [_product(program, equation, operands, shape)]
    if name == "reduce_sum":
        return [_summed(program, equation.params["axes"], operands[0], shape)]
    raise Untraceable(f"the page has no instruction for {name!r}")


def _fresh(register: int, shape: tuple[int, ...]) -> Value:
    return Value(register, np.arange(int(np.prod(shape))).reshape(shape))


def _moved(program: Program, equation: Any, operands: list[Any]) -> list[Value]:
    """Slices, reshapes and joins only move entries: they are applied to the entries' places."""
    places, sources = [], []
    base = 0
    for operand in operands:
        if not isinstance(operand, Value):
            operand = _constant_value(program, np.asarray(operand))
        if operand.register in sources:
            offset = sum(program.sizes[source] for source in sources[: sources.index(operand.register)])
        else:
            offset, base = base, base + program.sizes[operand.register]
            sources.append(operand.register)
        places.append(operand.entries + offset)
    moved = MOVES[equation.primitive.name](*places, **equation.params)
    moved = moved if equation.primitive.multiple_results else [moved]
    if len(sources) == 1:
        return [Value(sources[0], part) for part in moved]
    return [
        _fresh(program.add(part.size, "gather", list(sources), part.ravel().tolist()), part.shape) for part in moved
    ]


def _constant_value(program: Program, array: np.ndarray) -> Value:
    """A constant that is moved among values: a register of its own."""
    register = program.add(array.size, "constant", program.constant(array.ravel()))
    return Value(register, np.arange(array.size).reshape(array.shape))


def _as_register(program: Program, value: Any) -> int:
    """The register that holds exactly the entries of the value, in order."""
    if not isinstance(value, Value):
        return _constant_value(program, np.asarray(value)).register
    entries = value.entries.ravel()
    if np.array_equal(entries, np.arange(program.sizes[value.register])):
        return value.register
    return program.add(entries.size, "gather", [value.register], entries.tolist())


def _as_operand(program: Program, value: Any, shape: tuple[int, ...]) -> int:
    if isinstance(value, Value):
        return _as_register(program, Value(value.register, np.broadcast_to(value.entries, shape)))
    array = np.asarray(value, np.float32)
    same = array.size == 1 or (array == array.ravel()[0]).all()
    return program.constant(array.ravel()[:1] if same else np.broadcast_to(array, shape).ravel())


def _product(program: Program, equation: Any, operands: list[Any], shape: tuple[int, ...]) -> Value:
    """One row times a constant matrix."""
    (left, right), batch = equation.params["dimension_numbers"]
    x, kernel = operands
    plain = (
        isinstance(x, Value)
        and not isinstance(kernel, Value)
        and kernel.ndim == 2
        and x.entries.shape[:-1] in ((), (1,))
    )
    if not plain or batch != ((), ()) or left != (x.entries.ndim - 1,) or len(right) != 1:
        raise Untraceable("the page multiplies one vector with a constant matrix, nothing else")
    kernel = np.asarray(kernel, np.float32)
    kernel = kernel if right == (0,) else kernel.T
    return _fresh(program.add(kernel.shape[1], "dot", _as_register(program, x), program.constant(kernel)), shape)


def _summed(program: Program, axes: tuple[int, ...], value: Value, shape: tuple[int, ...]) -> Value:
    kept = [axis for axis in range(value.entries.ndim) if axis not in axes]
    ordered = Value(value.register, value.entries.transpose(*kept, *axes))
    size = int(np.prod(shape))
    return _fresh(program.add(size, "sum", _as_register(program, ordered), value.entries.size // size), shape)


def _without_unused(program: Program) -> Program:
    """Drops instructions that reach no output, and the trailing entries that nobody reads of those that stay."""
    first = len(program.inputs)
    needed = [0] * len(program.sizes)
    for register in program.outputs:
        needed[register] = program.sizes[register]
    for place in reversed(range(len(program.instructions))):
        name, *operands = program.instructions[place]
        want = needed[first + place]
        if want == 0:
            continue
        if name == "gather":
            sources, entries = operands
            base = 0
            for source in sources:
                inside = [entry - base for entry in entries[:want] if base <= entry < base + program.sizes[source]]
                needed[source] = max(needed[source], 1 + max(inside, default=-1))
                base += program.sizes[source]
        elif name in ("dot", "sum"):
            needed[operands[0]] = program.sizes[operands[0]]
        else:
            for operand in operands:
                if operand >= 0:
                    needed[operand] = max(needed[operand], want)
    return _rebuilt(program, needed)


def _rebuilt(program: Program, needed: list[int]) -> Program:
    """The program with every register cut to its needed length and renumbered."""
    first = len(program.inputs)
    smaller = Program(program.inputs, sizes=list(program.inputs.values()))
    places = {i: i for i in range(first)}

    def sized(register: int) -> int:
        return program.sizes[register] if register < first else needed[register]

    for place, (name, *operands) in enumerate(program.instructions):
        register, size = first + place, needed[first + place]
        if size == 0:
            continue
        if name == "gather":
            sources, entries = operands
            used = [source for source in sources if source < first or needed[source]]
            moves, base, new = np.full(sum(program.sizes[s] for s in sources), -1), 0, 0
            for source in sources:
                if source in used:
                    moves[base : base + sized(source)] = np.arange(sized(source)) + new
                    new += sized(source)
                base += program.sizes[source]
            kept = moves[np.asarray(entries[:size])].tolist()
            instruction = ["gather", [places[source] for source in used], kept]
        elif name == "dot":
            instruction = ["dot", places[operands[0]], smaller.constant(program.constants[-operands[1] - 1][:, :size])]
        elif name == "sum":
            instruction = ["sum", places[operands[0]], operands[1]]
        else:

            def renamed(operand: int, size: int = size) -> int:
                return places[operand] if operand >= 0 else smaller.constant(program.constants[-operand - 1][:size])

            instruction = [name, *map(renamed, operands)]
        places[register] = smaller.add(size, *instruction)
    smaller.outputs = [places[register] for register in program.outputs]
    return smaller
