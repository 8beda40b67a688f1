"""Operations whose operands and results must lie in a scratchpad: a memory beside the units of a machine, into which
tensors are loaded and from which they are stored by instructions of the program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.runtime.errors import InputError


@dataclass(frozen=True)
class Transfer:
    """What moves tensors between the memories: `cycles_per_unit` for each begun `unit` of bytes, after `latency`."""

    unit: int = 1
    cycles_per_unit: int = 1
    latency: int = 0

    def cycles(self, size: int) -> int:
        return self.latency + -(-size // self.unit) * self.cycles_per_unit if size else 0


@dataclass(frozen=True)
class ScratchTensor:
    """A tensor of `size` bytes. One that is `given` lies in the large memory before the first operation, one that is
    `wanted` must lie there after the last."""

    name: str
    size: int
    given: bool = False
    wanted: bool = False


@dataclass(frozen=True)
class Operation:
    """Numbers of the tensors that it reads and writes, and its time."""

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    cycles: int


@dataclass(frozen=True)
class ScratchpadProblem:
    """Operations in an order that is possible, their tensors, and the scratchpad: `capacity` bytes, tensors at
    multiples of `align`. Loads, operations and stores run beside each other, each of the three in order."""

    tensors: tuple[ScratchTensor, ...]
    operations: tuple[Operation, ...]
    capacity: int
    align: int = 1
    load: Transfer = Transfer()
    store: Transfer = Transfer()

    def bytes_of(self, tensor: int) -> int:
        """What a tensor takes, with what aligns the next one."""
        return -(-self.tensors[tensor].size // self.align) * self.align

    def load_cycles(self, tensor: int) -> int:
        return self.load.cycles(self.tensors[tensor].size)

    def store_cycles(self, tensor: int) -> int:
        return self.store.cycles(self.tensors[tensor].size)

    @cached_property
    def maker(self) -> dict[int, int]:
        """The operation that writes each tensor."""
        return {t: n for n, op in enumerate(self.operations) for t in op.writes}

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The operations that read each tensor."""
        found: list[list[int]] = [[] for _ in self.tensors]
        for n, op in enumerate(self.operations):
            for t in dict.fromkeys(op.reads):
                found[t].append(n)
        return tuple(map(tuple, found))

    @cached_property
    def before(self) -> tuple[frozenset[int], ...]:
        """The operations whose results each operation reads."""
        return tuple(frozenset(self.maker[t] for t in op.reads if t in self.maker) for op in self.operations)

    @cached_property
    def loaded(self) -> tuple[int, ...]:
        """The tensors that are loaded in every schedule."""
        return tuple(n for n, t in enumerate(self.tensors) if t.given and self.readers[n])

    @cached_property
    def stored(self) -> tuple[int, ...]:
        """The tensors that are stored in every schedule."""
        return tuple(n for n, t in enumerate(self.tensors) if t.wanted and not t.given)


def check(problem: ScratchpadProblem) -> None:
    """InputError where the facts contradict each other, or where an operation does not fit by itself: with the bytes
    that are missing."""
    names: dict[str, int] = {}
    for n, tensor in enumerate(problem.tensors):
        if names.setdefault(tensor.name, n) != n:
            raise InputError(f"two tensors have the name '{tensor.name}'")
        if tensor.size < 0:
            raise InputError(f"tensor '{tensor.name}' has {tensor.size} bytes")
    if problem.capacity < 0 or problem.align < 1:
        raise InputError(f"a scratchpad of {problem.capacity} bytes aligned to {problem.align} is none")
    made: set[int] = set()
    for op in problem.operations:
        _check_operation(problem, op, made)
        made.update(op.writes)
    for n in problem.stored:
        if n not in made:
            raise InputError(f"tensor '{problem.tensors[n].name}' is wanted, and no operation writes it")


def _check_operation(problem: ScratchpadProblem, op: Operation, made: set[int]) -> None:
    for t in (*op.reads, *op.writes):
        if not 0 <= t < len(problem.tensors):
            raise InputError(f"operation '{op.name}' names tensor {t}, and there are {len(problem.tensors)}")
    for t in op.reads:
        if not (problem.tensors[t].given or t in made):
            raise InputError(f"operation '{op.name}' reads '{problem.tensors[t].name}', which nothing before it writes")
    for t in op.writes:
        if problem.tensors[t].given or t in made or op.writes.count(t) > 1:
            raise InputError(f"operation '{op.name}' writes '{problem.tensors[t].name}', which is there already")
    if op.cycles < 0:
        raise InputError(f"operation '{op.name}' takes {op.cycles} cycles")
    held = _held(problem, op)
    if held > problem.capacity:
        tensors = ", ".join(f"'{problem.tensors[t].name}' {problem.bytes_of(t)}" for t in _touched(op))
        raise InputError(
            f"operation '{op.name}' needs {held} bytes of the scratchpad at once, {held - problem.capacity} more than "
            f"its {problem.capacity}: {tensors}",
            hint="split the operation into parts, or give it a larger scratchpad",
        )


def least_capacity(problem: ScratchpadProblem) -> int:
    """The bytes below which some operation does not fit by itself."""
    return max((_held(problem, op) for op in problem.operations), default=0)


def _held(problem: ScratchpadProblem, op: Operation) -> int:
    return sum(problem.bytes_of(t) for t in _touched(op))


def _touched(op: Operation) -> Sequence[int]:
    return tuple(dict.fromkeys((*op.reads, *op.writes)))
