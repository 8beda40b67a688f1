"""Running programs with the interpreters of the levels that they call: slow, obvious, the oracle for splitting, for
plans of memory and for native code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Func, Module, Op, Value
from tilewright.ir.diag import InternalError
from tilewright.ir.sym import ZERO, Sym
from tilewright.ir.types import ANY_DIM, TensorType
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops.define.binding import input_variables
from tilewright.ops.define.interp import evaluate_func, evaluate_op
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.ops.define.staged import BRANCH, HOST, LOOP, MEASURE
from tilewright.program.memory.places import is_planned, places_of
from tilewright.program.memory.storage import Place
from tilewright.program.memory.views import is_view
from tilewright.program.spec import LEVEL, NATIVE, READ, STATE, UPDATE
from tilewright.program.split import alone
from tilewright.runtime.staged.functions.registry import bound

Memory = dict[str, np.ndarray]
"""What states hold, by name."""

NotePart = Callable[[str, Sequence[Any]], None]
"""Is told the name of a part and what it is called with."""

EvaluatePart = Callable[[Func, Sequence[Any]], list[Any]]
"""Gives what a part, which is a graph, makes of what it is called with."""


def run_program(
    module: Module, inputs: Sequence[Any], states: Memory | None = None, *, aliased: bool = False,
    note: NotePart | None = None, evaluate: EvaluatePart | None = None, pace: Callable[[], None] = lambda: None,
) -> list[Any]:  # fmt: skip
    """The results of the main function, a program; `states`, which are zeros where they are not there, are changed as
    it says. In a planned program values lie where the plan has them, in memory that is garbage at first. What is read
    of a state is a copy, or with `aliased` the memory of the state, as in native code: for a program that obeys the
    rules (`aliasing.py`) that makes no difference. `note` is told what each part gets, when it is called; `evaluate`
    takes the place of the interpreter of graphs; `pace` is called before each trip of a loop, and may end it."""
    run = _Run(module, {} if states is None else states, aliased, note, evaluate, pace)
    for value, array in zip(module.main.args, inputs, strict=True):
        run.define(value, array)
        if (symbols := input_variables(value)) is not None:
            run.sizes |= {v.name: int(n) for v, n in zip(symbols.flat, np.ravel(array), strict=True)}
    run.block(module.main.body)
    return [run.values[v] for v in module.main.returns]


class _Run:
    def __init__(
        self, module: Module, states: Memory, aliased: bool, note: NotePart | None, evaluate: EvaluatePart | None,
        pace: Callable[[], None],
    ) -> None:  # fmt: skip
        self.module = module
        self.note = note
        self.evaluate = evaluate or (lambda part, arrays: evaluate_func(part, module, arrays))
        self.pace = pace
        self.aliased = aliased
        self.states = states
        self.values: dict[Value, Any] = {}
        self.sizes: dict[str, int] = {}
        self.places: Mapping[Value, Place] = places_of(module.main) if is_planned(module.main) else {}
        self.arena = np.zeros(0, np.uint8)

    def define(self, value: Value, found: Any) -> None:
        """What a value is, and with it its dims, where these have no values yet."""
        self.values[value] = found
        if isinstance(value.type, TensorType):
            for d, size in zip(value.type.shape, np.shape(found), strict=True):
                if d.kind == "var" and d is not ANY_DIM:
                    self.sizes.setdefault(d.name, size)

    def block(self, block: Block) -> list[Any]:
        """Run the ops of a block; what its terminator reads."""
        for op in block.ops[:-1]:
            for value, found in zip(op.results, self.op(op), strict=True):
                self.define(value, found)
        return [self.values[v] for v in block.ops[-1].operands]

    def inside(self, block: Block, arguments: Sequence[Any]) -> list[Any]:
        """Run a nested block, whose sizes are its own in each run."""
        outer = dict(self.sizes)
        for value, found in zip(block.args, arguments, strict=True):
            self.define(value, found)
        results = self.block(block)
        self.sizes = outer
        return results

    def op(self, op: Op) -> Sequence[Any]:
        operands = [self.values[v] for v in op.operands]
        match op.name:
            case "call":
                func = self.module.funcs[op.attrs["kernel" if "kernel" in op.attrs else "part"]]
                return self.kernel(op, func, operands) if func.level == "loops" else self.part(op, func, operands)
            case _ if op.name == MEASURE:
                elements = zip(op.attrs["variables"], operands[0].reshape(-1), strict=True)
                self.sizes |= {v.name: int(x) for v, x in elements if v.name not in self.sizes}
                return ()
            case _ if op.name == HOST:
                parameters = {k: v for k, v in op.attrs.items() if k != "function"}
                return bound(op.attrs["function"], parameters)(*operands)
            case _ if op.name == BRANCH:
                return self.inside(op.blocks[0 if operands[0].any() else 1], ())
            case _ if op.name == LOOP:
                return self.loop(op, operands)
            case _ if op.name == NATIVE:
                return self.inside(op.blocks[0], ())
            case _ if op.name == STATE:
                type = op.result.buffer
                zeros = np.zeros([d.value for d in type.shape], type.dtype.storage)
                return (self.states.setdefault(op.attrs["name"], zeros),)
            case _ if op.name == READ:
                return (operands[0] if self.aliased else operands[0].copy(),)
            case _ if op.name == UPDATE:
                self.update(op, *operands)
                return ()
            case _ if self.places and is_view(op):
                return self.view(op, operands)
            case "reshape" if self.aliased:
                return (operands[0].reshape(self.shape_of(op.result)),)
            case "slice" if self.aliased:
                parts = zip(op.attrs["starts"], self.shape_of(op.result), op.attrs["steps"], strict=True)
                return (operands[0][tuple(slice(i, i + n * step, step) for i, n, step in parts)],)
        return evaluate_op(op, operands, self.sizes, self.module)

    def value_of(self, expression: Sym) -> int:
        return expression.evaluate(self.sizes)

    def shape_of(self, value: Value) -> list[int]:
        return [self.value_of(d) for d in value.tensor.shape]

    def update(self, op: Op, state: np.ndarray, value: np.ndarray) -> None:
        at = [self.value_of(i) for i in op.attrs.get("at", (ZERO,) * state.ndim)]
        if any(i < 0 or i + n > most for i, n, most in zip(at, value.shape, state.shape, strict=True)):
            raise InternalError(f"an update of {list(value.shape)} elements at {at} of {list(state.shape)}")
        state[tuple(slice(i, i + n) for i, n in zip(at, value.shape, strict=True))] = value

    def part(self, op: Op, part: Func, operands: list[Any]) -> list[Any]:
        """A part, whose sizes are elements of its last argument: a graph, or a program of its own."""
        sizes = np.array([self.value_of(v) for v in op.attrs["sizes"]], np.int64)
        given = [*operands, sizes] if op.attrs["sizes"] else operands
        if self.note is not None:
            self.note(part.name, given)
        if part.level != LEVEL:
            return self.evaluate(part, given)
        return run_program(alone(part, self.module), given, aliased=self.aliased)

    def kernel(self, op: Op, kernel: Func, operands: list[Any]) -> list[np.ndarray]:
        results = [self.memory(v) for v in op.results]
        dims = {d.name: self.value_of(n) for d, n in zip(kernel.dims, op.attrs["dims"], strict=True)}
        assert len(kernel.args) - kernel_info(kernel).outputs == len(operands)
        run_kernel(kernel, [np.ascontiguousarray(a) for a in operands] + results, dims)
        return results

    def memory(self, value: Value) -> np.ndarray:
        """Where a kernel writes a value: its place in the arena, or memory of its own."""
        shape, dtype = self.shape_of(value), value.tensor.dtype.storage
        place = self.places.get(value)
        if place is None or place.base != "arena":
            return np.zeros(shape, dtype)
        if not self.arena.size:
            self.arena = np.full(self.value_of(self.module.main.attrs["arena"]), 0xC5, np.uint8)
        first = self.value_of(place.offset)
        return self.arena[first : first + prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def view(self, op: Op, operands: list[np.ndarray]) -> list[np.ndarray]:
        """A value that needs no code: it is part of the memory of another."""
        place = self.places[op.result]
        if place.base == "arena":
            return [self.memory(op.result)]
        return list(evaluate_op(op, operands, self.sizes, self.module))

    def loop(self, op: Op, operands: list[Any]) -> list[Any]:
        limit, condition, *states = operands
        (block,) = op.blocks
        goes_on, trip = bool(condition.any()), 0
        rows: list[list[np.ndarray]] = [[] for _ in op.attrs["row_shapes"]]
        while goes_on and trip < int(limit.reshape(())):
            self.pace()
            going, *made = self.inside(block, [np.array(trip, np.int64), np.array(True), *states])
            states = made[: len(states)]
            for column, row in zip(rows, made[len(states) :], strict=True):
                column.append(row)
            goes_on, trip = bool(going.any()), trip + 1
        yielded = block.ops[-1].operands[1 + len(states) :]
        shapes = [[self.value_of(d) for d in shape] for shape in op.attrs["row_shapes"]]
        found = zip(rows, yielded, shapes, strict=True)
        return [*states, *(np.stack(r) if r else np.empty((0, *s), v.tensor.dtype.storage) for r, v, s in found)]
