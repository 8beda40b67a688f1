"""The operations of a planned program, for a schedule of a scratchpad: its calls of kernels, and what they read and
write. A view stands for the values that it shows, with all of their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tilewright.ir.core import Func, Op, Value
from tilewright.program.memory.picture import at_sizes
from tilewright.program.memory.places import places_of
from tilewright.program.memory.scratchpad.problem import Operation, ScratchpadProblem, ScratchTensor, Transfer
from tilewright.program.memory.views import bytes_of, is_view


def problem_of(
    main: Func, cycles: Callable[[Op], int], sizes: Mapping[str, int], capacity: int, align: int, load: Transfer,
    store: Transfer,
) -> ScratchpadProblem:  # fmt: skip
    """The calls of `main` as operations of so many `cycles`. Inputs and constants are given, outputs are wanted; dims
    that `sizes` has not are 1."""
    names = _Names(main, sizes)
    calls = [op for op in main.body.ops if op.name == "call"]
    operations = tuple(
        Operation(f"{n} {op.attrs['kernel']}", names.numbers(op.operands), names.numbers(op.results), cycles(op))
        for n, op in enumerate(calls)
    )
    return ScratchpadProblem(tuple(names.tensors), operations, capacity, align, load, store)


class _Names:
    """Numbers of the tensors that calls touch."""

    def __init__(self, main: Func, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.places = places_of(main)
        self.tensors: list[ScratchTensor] = []
        self.known: dict[Value, int] = {}

    def numbers(self, values: Iterable[Value]) -> tuple[int, ...]:
        sources = [source for value in values for source in _sources(value)]
        return tuple(dict.fromkeys(map(self._number, sources)))

    def _number(self, value: Value) -> int:
        if value not in self.known:
            base = self.places[value].base
            given, name = value.op is None or value.op.name != "call", f"{len(self.tensors)} {value.name or base}"
            size = at_sizes(bytes_of(value), self.sizes)
            self.known[value] = len(self.tensors)
            self.tensors.append(ScratchTensor(name, size, given, base == "output" and not given))
        return self.known[value]


def _sources(value: Value) -> list[Value]:
    """The values with memory of their own that a view shows, whole."""
    if value.op is None or not is_view(value.op):
        return [value]
    return [source for operand in value.op.operands for source in _sources(operand)]
