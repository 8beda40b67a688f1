"""The toy, simulated: memories of bytes, queues whose work is done as late as it may be, and threads from the last to
the first. A program that waits for what it needs computes the same as if all were done at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import parse_sym, var
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.executor import DrivenCode

CAPACITY = 2048


def executor(artifact: Artifact) -> DrivenCode:
    """What runs an artefact of the toy."""
    program = json.loads(bytes(artifact.objects[0]))

    def execute(
        inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], constants: np.ndarray, arena: np.ndarray
    ) -> None:
        for kernel, buffers in program["programs"][artifact.run_symbol]:
            found = {"constants": constants, "arena": arena}
            arrays = []
            for base, index, offset in buffers:
                tensors = {"input": inputs, "output": outputs}.get(base)
                memory = found[base] if tensors is None else tensors[index].reshape(-1).view(np.uint8)
                arrays.append(memory[offset:])
            Simulation(arrays).run(program["kernels"][kernel])

    return DrivenCode(artifact, execute)


class Simulation:
    """One call of a kernel."""

    def __init__(self, arguments: Sequence[np.ndarray]) -> None:
        self.arguments = {f"a{k}": array for k, array in enumerate(arguments)}
        self.memories: dict[tuple[str, int], np.ndarray] = {}
        self.env: dict[str, int] = {}
        self.values: dict[str, Any] = {}
        self.queues: dict[str, list[Callable[[], None]]] = {}
        self.tokens: dict[str, tuple[str, int]] = {}  # of the last run of each name: its queue, and its number there
        self.done: dict[str, int] = {}
        self.core = 0

    def run(self, block: Sequence[Any]) -> None:
        for word, *rest in block:
            getattr(self, f"do_{word}")(*rest)

    def do_loop(self, name: str, extent: str, level: str, block: Sequence[Any]) -> None:
        count = self.number(extent)
        for k in reversed(range(count)) if level else range(count):
            self.env[name] = k
            if level == "core":
                self.core = k
            self.run(block)
        if level == "core":
            self.core = 0

    def do_if(self, guard: Sequence[str], block: Sequence[Any]) -> None:
        if self.holds(guard):
            self.run(block)

    def do_load(self, name: str, memory: str, dtype: str, at: str, guard: Sequence[str], other: float) -> None:
        found = self.elements(memory, dtype)
        element = self.number(at) // found.itemsize if self.holds(guard) else None
        self.values[name] = found.dtype.type(other) if element is None else found[element]

    def do_store(self, name: str, memory: str, dtype: str, at: str, guard: Sequence[str]) -> None:
        if self.holds(guard):
            found = self.elements(memory, dtype)
            found[self.number(at) // found.itemsize] = self.values[name]

    def do_const(self, name: str, dtype: str, value: float) -> None:
        self.values[name] = _dtype(dtype).type(value)

    def do_scalar(self, op: str, name: str, *operands: str) -> None:
        self.values[name] = SCALAR_OPS[op].evaluate(*(self.values[o] for o in operands))

    def do_barrier(self, level: str) -> None:
        """Threads are simulated one after the other between two barriers."""

    # Queues

    def do_wait(self, names: Sequence[str]) -> None:
        for name in names:
            queue, number = self.tokens[name]
            while self.done.get(queue, 0) < number:
                work = self.queues[queue].pop(0)
                work()
                self.done[queue] = self.done.get(queue, 0) + 1

    def begin(self, queue: str, name: str, after: Sequence[str], work: Callable[[], None]) -> None:
        self.do_wait(after)  # a machine would let the queue wait
        self.queues.setdefault(queue, []).append(work)
        self.tokens[name] = queue, self.done.get(queue, 0) + len(self.queues[queue])

    def do_copy(self, queue: str, name: str, after: Sequence[str], transfer: Sequence[Any]) -> None:
        (*target, to), (*source, start), dims = transfer
        a, b = self.elements(*target), self.elements(*source)
        sizes = [[self.number(n) for n in dim] for dim in dims]
        to, start = self.number(to) // a.itemsize, self.number(start) // b.itemsize

        def work() -> None:
            for k in product(*(range(n) for n, _, _ in sizes)):
                steps = [(i * s, i * t) for i, (_, s, t) in zip(k, sizes, strict=True)]
                a[to + sum(s for s, _ in steps)] = b[start + sum(t for _, t in steps)]

        self.begin(queue, name, after, work)

    def do_mma(self, queue: str, name: str, after: Sequence[str], operands: Sequence[Any]) -> None:
        a, b, c = (self.square(*operand) for operand in operands)

        def work() -> None:
            c[...] += a @ b

        self.begin(queue, name, after, work)

    def square(self, memory: str, dtype: str, at: str, stride: str) -> np.ndarray:
        found = self.elements(memory, dtype)[self.number(at) // _dtype(dtype).itemsize :]
        return np.lib.stride_tricks.as_strided(found, (4, 4), (self.number(stride) * found.itemsize, found.itemsize))

    # Memory

    def elements(self, memory: str, dtype: str) -> np.ndarray:
        """A memory as elements; each core has scratchpads of its own, which hold anything at first."""
        if memory in self.arguments:
            found = self.arguments[memory]
        else:
            found = self.memories.setdefault((memory, self.core), np.full(CAPACITY, 0x7F, np.uint8))
        size = _dtype(dtype).itemsize
        return found[: len(found) // size * size].view(_dtype(dtype))

    def number(self, text: str) -> int:
        return int(parse_sym(text, var).evaluate(self.env))

    def holds(self, guard: Sequence[str]) -> bool:
        return all(self.number(c) for c in guard)


def _dtype(name: str) -> np.dtype:
    return np.dtype({"f32": np.float32, "i32": np.int32, "i64": np.int64, "bool": np.bool_}[name])
