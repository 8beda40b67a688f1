"""Fuzzing the C interface of exported libraries: whatever is given, each call ends with a status, and calls that are
right give what the model gives in Python, to the bit.

Inputs, outputs and memory of the caller lie between guard zones, and are exactly as large as they have to be: what is
said to be less must be refused, and memory that a plan says is enough must be.
"""

from __future__ import annotations

import ctypes
import functools
import math
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx import helper as h

import tilewright
from tests.exporters.library import c_library as c
from tests.exporters.library.c_library import CError, CModel, Tensor
from tests.exporters.library.test_export import loop
from tests.exporters.library.test_misuse import decoder
from tests.fuzz.registry import Tried
from tests.models import mlp
from tests.staging.models import model_of
from tests.zones.turned_on import zones
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.guarded.pages import ZonedBuffer

CALLS = 8
ODD_NUMBERS = (-(2**63), -2, -1, 0, 1, 2, 3, 255, 2**31, 2**32 - 1, 2**62, 2**63 - 1)


@dataclass(frozen=True)
class Library:
    """An exported model and the same one in Python; `memory` says whether it can do with memory of the caller."""

    name: str
    path: Path
    model: tilewright.Model
    memory: bool = True


def convolutions() -> onnx.ModelProto:
    """Kernels of which each thread has scratch memory, and two outputs."""
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) for k in range(2)}
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [h.make_node("Conv", ["x", "w0"], ["v"], **pads), h.make_node("Relu", ["v"], ["r"]),
             h.make_node("Conv", ["r", "w1"], ["y"], **pads)]  # fmt: skip
    return model_of(nodes, [("x", TensorProto.FLOAT, ["batch", 16, 20, 20])], ["r", "y"], weights)


@functools.cache
def libraries() -> tuple[Library, ...]:
    """Made once for each process, with the code that users get: without room for guard zones within."""
    folder = Path(tempfile.mkdtemp(prefix="libraries"))
    models: dict[str, tuple[onnx.ModelProto, dict[str, Any]]] = {
        "mlp": (mlp(), {"frequent": [{"batch": 3}]}),
        "loop": (loop(), {}),
        "convolutions": (convolutions(), {}),
        "decoder": (decoder(), {"states": True, "capacity": 16}),
    }
    found = []
    for name, (model, options) in models.items():
        path = folder / f"lib{name}.so"
        tilewright.export(model, path, name=name, cache=False, **options)
        found.append(Library(name, path, tilewright.compile(model, threads=1, cache=False, **options), name != "loop"))
    for file in folder.iterdir():
        if file.suffix != ".so":
            file.unlink()
    return tuple(found)


def _memory(stack: ExitStack, nbytes: int, alignment: int = 1) -> int:
    """The address of so many bytes between guard zones, for as long as the stack has them, at a multiple of `alignment`
    and of nothing more."""
    here = zones()
    if here is None:
        room = np.zeros(nbytes + 2 * alignment, np.uint8)
        at = -(-room.ctypes.data // alignment) * alignment
        stack.callback(room.fill, 0)  # which keeps it until then
        return at
    buffer = ZonedBuffer(here.memory, "memory of the caller", nbytes, alignment)
    buffer.fill()

    def release() -> None:
        beside = buffer.stores_beside()
        findings = [*here.memory.findings(), *([] if beside is None else [beside])]
        buffer.release()
        here.of.report(findings, "a call of an exported library")

    stack.callback(release)
    return buffer.address


@dataclass
class Session:
    """A library as a caller has it: perhaps one of its models, and what it should hold."""

    of: Library
    rng: Random
    stack: ExitStack
    library: CModel
    made: CModel | None = None
    planned: list[np.ndarray] = field(default_factory=list)
    """Inputs that the memory of the caller was planned for."""
    twin: tilewright.Model | None = None
    tried: Tried = field(default_factory=Counter)

    def call(self) -> None:
        often = [self.run] * 3 + [self.wrong_run] * 2
        steps = [*often, self.plan, self.state, self.create, self.destroy, self.cancel]
        step = self.create if self.made is None and self.rng.random() < 0.7 else self.rng.choice(steps)
        self.tried[step.__name__, step()] += 1

    def inputs(self) -> list[np.ndarray]:
        """Of the model's types, with sizes that are right, and values that may be out of range."""
        numbers = np.random.default_rng(self.rng.getrandbits(32))
        size = self.rng.choice((0, 1, 1, 2, 3, 5, 17))
        found = []
        for info in self.of.model.inputs:
            shape = [d if isinstance(d, int) else size for d in info.shape]
            if info.dtype == "int64":
                found.append(numbers.integers(-5 if self.rng.random() < 0.5 else 0, 3, shape))
            else:
                found.append((1 + np.abs(numbers.standard_normal(shape))).astype(info.dtype))
        return found

    def tensors(self, arrays: list[np.ndarray]) -> Any:
        """The inputs, between guard zones."""
        given = (Tensor * max(1, len(arrays)))(*map(Tensor.of, arrays))
        for tensor, array in zip(given, arrays, strict=False):
            tensor.data = _memory(self.stack, array.nbytes, array.itemsize)
            ctypes.memmove(tensor.data, array.ctypes.data, array.nbytes)
        return given

    def outputs(self, wanted: list[np.ndarray]) -> Any:
        """Memory for outputs, for some of them; the library has some for the others."""
        given = (Tensor * len(wanted))()
        for tensor, array in zip(given, wanted, strict=True):
            if self.rng.random() < 0.5:
                tensor.data = _memory(self.stack, array.nbytes, array.itemsize)
                tensor.bytes = array.nbytes
        return given

    def create(self) -> str:
        self.destroy()
        options: dict[str, Any] = {"threads": self.rng.choice((1, 1, 2, 3))}
        kind = self.rng.choice(("own", "exact", "exact", "small", "wrong"))
        if kind == "wrong":
            options[self.rng.choice(("size", "threads"))] = self.rng.choice((-1, 1025, 1 << 20))
        elif kind != "own" and self.of.memory:
            try:
                self.planned = self.inputs()
                needs = self.library.plan(*self.planned, threads=options["threads"])[0]
            except CError:
                return "no plan"
            beyond = self.rng.choice((1, 8, 64))  # a multiple of 64: 1 takes all of the room that is there for that
            nbytes = needs.total if kind == "exact" else self.less(needs.model) + 64 - beyond
            at = _memory(self.stack, nbytes + beyond % 64, 64) + beyond % 64
            options |= {"memory_bytes": nbytes, "memory": at}
        try:
            self.made = CModel(self.of.path, self.of.name, **options)
        except CError as error:
            assert kind in ("small", "wrong") and error.text, (kind, options, error)
            return f"refused {error.status}"
        assert kind in ("own", "exact") or not self.of.memory, (kind, options)
        self.twin = tilewright.load(self.of.model.artifact.to_bytes(), threads=1)
        return kind

    def destroy(self) -> str:
        if self.made is not None:
            self.made.close()
        self.made, self.twin, self.planned = None, None, []
        return "done"

    def cancel(self) -> str:
        made = ctypes.c_void_p() if self.made is None else self.made.made
        self.library._function("cancel")(made)
        return "done"

    def state(self) -> str:
        if self.made is None or not self.made.info.state_count:
            found = Tensor()
            given = ctypes.c_void_p() if self.made is None else self.made.made
            number = ctypes.c_size_t(self.rng.choice(ODD_NUMBERS) % 2**64)
            assert self.library._function("state")(given, number, ctypes.byref(found)) == c.BAD_ARGUMENT
            return "refused"
        if self.rng.random() < 0.3:
            self.made.reset(), self.twin.reset()
        self.compare_states()
        return "same"

    def compare_states(self) -> None:
        """What the states hold, of those that grow what is filled, is what they hold in Python."""
        assert self.made is not None and self.twin is not None
        for number, state in enumerate(self.twin.states):
            filled = self.made.state(number)
            if state.counter:
                count = int(self.twin.state(state.counter).reshape(-1)[0])
                filled = np.take(filled, range(count), state.grows)
                own = np.take(self.twin.state(state.info.name), range(count), state.grows)
            else:
                own = self.twin.state(state.info.name)
            assert filled.tobytes() == own.tobytes(), state

    def plan(self) -> str:
        arrays, count = self.inputs(), len(self.of.model.inputs)
        given = self.tensors(arrays)
        if self.rng.random() < 0.5:
            self.spoil(given[0], arrays[0])
        outputs, needs = (Tensor * max(1, self.library.info.output_count))(), c.Needs()
        threads = self.rng.choice((1, 2, 1024, *ODD_NUMBERS)) % 2**31
        status = self.library._function("plan")(
            given, ctypes.c_size_t(count), outputs, ctypes.c_size_t(self.library.info.output_count), threads,
            self.rng.choice((ctypes.byref(needs), ctypes.byref(needs), None)),
        )  # fmt: skip
        return f"status {status}"

    def run(self) -> str:
        """A call that is right, but for values: the library does what the model does."""
        if self.made is None:
            return "no model"
        arrays = self.planned if self.planned and self.rng.random() < 0.5 else self.inputs()
        before = self.twin.artifact.states and [self.twin.state(s.info.name) for s in self.twin.states]
        try:
            wanted = [np.asarray(y) for y in self.twin(*arrays)]
        except TilewrightError:
            wanted = []
        count = int(self.made.info.output_count)
        outputs = self.outputs(wanted) if wanted else (Tensor * count)()
        counts = ctypes.c_size_t(len(arrays)), ctypes.c_size_t(count)
        status = self.made._function("run")(self.made.made, self.tensors(arrays), counts[0], outputs, counts[1])
        if wanted:
            self.compare_plan(arrays, wanted, status)
        if status == c.NO_MEMORY and self.made.given.memory:
            for state, array in zip(self.twin.states, before, strict=True):
                self.twin.set_state(state.info.name, array)
            return "no memory"
        assert bool(status) == (not wanted), (status, arrays)
        self.compare_states()
        if status:
            assert self.made._function("error")(self.made.made)
            return f"status {status}"
        assert [outputs[k].array().tobytes() for k in range(count)] == [y.tobytes() for y in wanted]
        return "right"

    def compare_plan(self, arrays: list[np.ndarray], wanted: list[np.ndarray], status: int) -> None:
        """What is planned for a run is what it gave, and memory that is enough by the plan was enough."""
        assert self.made is not None
        try:
            needs, shapes = self.library.plan(*arrays, threads=self.made.given.threads)
        except CError as error:
            assert error.status == c.UNKNOWN_SIZE, error
            return
        assert shapes == [y.shape for y in wanted]
        assert needs.outputs >= sum(y.nbytes for y in wanted), (needs.outputs, shapes)
        if not self.made.info.state_count:  # a cache that is fuller than before the first run may take more
            assert status != c.NO_MEMORY or self.made.given.memory_bytes < needs.total, needs.total

    def spoil(self, tensor: Tensor, array: np.ndarray) -> bool:
        """Let the tensor of an input say something else than what it is, which can be seen: not more memory than it
        has. Whether it must be refused for that."""
        needed = tensor.bytes
        match self.rng.choice(("data", "unaligned", "bytes", "bytes", "dtype", "rank", "dim")):
            case "data":
                tensor.data = None
                return needed > 0
            case "unaligned":
                tensor.data = self.unaligned(array.nbytes, array.itemsize)
                ctypes.memmove(tensor.data, array.ctypes.data, array.nbytes)
                return needed > 0 and array.itemsize > 1
            case "bytes":
                tensor.bytes = self.less(needed)
                return needed > 0
            case "dtype":
                tensor.dtype = self.rng.choice((-1, 0, 1, 2, 13, 26, 1 << 20))
            case "rank":
                tensor.rank = self.rng.choice((-1, 0, 1, 3, 16, 17, 1 << 30))
            case _:
                tensor.shape[self.rng.randrange(max(1, tensor.rank))] = self.rng.choice(ODD_NUMBERS)
        return False

    def less(self, nbytes: int) -> int:
        """Less than so many bytes, and mostly not by much."""
        return self.rng.choice((max(0, nbytes - self.rng.randint(1, 64)), self.rng.randrange(max(1, nbytes))))

    def unaligned(self, nbytes: int, itemsize: int) -> int:
        """Memory with room for all of so many bytes, which is not aligned to an element of more than one byte."""
        beyond = self.rng.randrange(1, max(2, itemsize))
        return _memory(self.stack, nbytes + beyond, itemsize) + beyond

    def output_sizes(self, arrays: list[np.ndarray]) -> list[tuple[int, int]]:
        """The bytes of each output and of one element of it, where they can be known."""
        try:
            shapes = self.library.plan(*arrays)[1]
        except CError:
            return []
        of = [np.dtype(info.dtype).itemsize for info in self.of.model.outputs]
        return [(math.prod(shape) * size, size) for shape, size in zip(shapes, of, strict=True)]

    def bad_output(self, arrays: list[np.ndarray], outputs: Any) -> bool:
        """Memory for one output that is too small or not aligned, where it can be known; whether it is."""
        sizes = self.output_sizes(arrays)
        if not sizes:
            return False
        number = self.rng.randrange(len(sizes))
        needed, itemsize = sizes[number]
        if self.rng.random() < 0.3:
            outputs[number].data, outputs[number].bytes = self.unaligned(needed, itemsize), needed
            return needed > 0 and itemsize > 1
        nbytes = self.less(needed)
        outputs[number].data, outputs[number].bytes = _memory(self.stack, nbytes, itemsize), nbytes
        return needed > 0

    def shared_output(self, arrays: list[np.ndarray], given: Any, outputs: Any) -> bool:
        """Memory for one output that is as large as it has to be, and begins or ends within that of an input or of
        another output, or just beside it; whether they overlap."""
        sizes = self.output_sizes(arrays)
        if not sizes:
            return False
        number = self.rng.randrange(len(sizes))
        needed, itemsize = sizes[number]
        others = [(tensor, array.nbytes, array.itemsize) for tensor, array in zip(given, arrays, strict=False)]
        others += [(outputs[k], *size) for k, size in enumerate(sizes) if k != number]
        other, nbytes, other_itemsize = self.rng.choice(others)
        output_first, alignment = self.rng.random() < 0.5, max(itemsize, other_itemsize)
        first, second = (needed, nbytes) if output_first else (nbytes, needed)
        beside = -(-first // alignment) * alignment
        within = self.rng.randrange(beside + 1) // alignment * alignment
        at = self.rng.choice((0, within, max(0, beside - alignment), beside))
        here = _memory(self.stack, max(first, at + second), alignment)
        own, of_other = (here, here + at) if output_first else (here + at, here)
        if other.data:
            ctypes.memmove(of_other, other.data, nbytes)
        outputs[number].data, outputs[number].bytes = own, needed
        other.data, other.bytes = of_other, nbytes
        return first > at and second > 0

    def wrong_run(self) -> str:
        """A call in which something may be wrong; afterwards the model is made anew, as its states may have moved."""
        run = self.library._function("run")
        arrays = self.inputs()
        given, count = self.tensors(arrays), int(self.library.info.output_count)
        outputs: Any = (Tensor * count)()
        counts = [len(arrays), count]
        made: Any = ctypes.c_void_p() if self.made is None else self.made.made
        is_wrong = self.made is None
        match self.rng.choice(("tensor", "output", "output", "overlap", "counts", "null")):
            case "tensor":
                number = self.rng.randrange(len(arrays))
                is_wrong |= self.spoil(given[number], arrays[number])
            case "output":
                is_wrong |= self.bad_output(arrays, outputs)
            case "overlap":
                is_wrong |= self.shared_output(arrays, given, outputs)
            case "counts":
                counts[self.rng.randrange(2)] = self.rng.choice((0, 2, 5, 2**64 - 1))
            case _:
                given, outputs = self.rng.choice(((None, outputs), (given, None)))
        status = run(made, given, ctypes.c_size_t(counts[0]), outputs, ctypes.c_size_t(counts[1]))
        assert 0 <= status <= c.UNKNOWN_SIZE and (status or not is_wrong), (arrays, list(outputs))
        if status:
            assert self.library._function("error")(made)
        else:
            self.destroy()
        return f"status {status}"


def fuzz(seed: int) -> Tried:
    """Some calls of a library, one after the other."""
    rng = Random(seed)
    of = rng.choice(libraries())
    with ExitStack() as stack:
        session = Session(of, rng, stack, CModel(of.path, of.name, create=False))
        try:
            for _ in range(CALLS):
                session.call()
        finally:
            session.destroy()
    return session.tried
