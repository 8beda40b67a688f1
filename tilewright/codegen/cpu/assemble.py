"""From LLVM IR text to machine code: LLVM's scalar passes and its code generator, through llvmlite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from typing import Literal, Self

from tilewright.codegen.cpu import apart
from tilewright.codegen.cpu.generator import Generator, assembly_of, object_of
from tilewright.ir.diag import InternalError, UnsupportedError
from tilewright.target.target import Target


class Effort(Enum):
    """LLVM's optimisation levels (middle end, code generator) for the kinds of text there are."""

    KERNEL = (2, 2)
    """Level 1 of the middle end has no GVN, which the repeated loads of unrolled code need; level 3 of the
    code generator differs in nothing that generated kernels use."""

    LITTLE = (0, 0)
    """A kernel that takes next to nothing of its program's time: a sixth to an eighth of LLVM's time for it."""

    SUPPORT = (0, 2)
    """The thread pool: written in SSA form without anything to simplify, and the same in every artefact."""

    CALLS = (0, 0)
    """The program: thousands of calls one after the other, each executed once."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The text of one LLVM module, how hard LLVM should try, who is to look at the assembler text, the name of the
    kernel, and what the module is."""

    text: str
    effort: Effort = Effort.KERNEL
    inspect: Callable[[str], None] | None = None
    kernel: str = ""
    kind: ObjectKind = "kernel"


ObjectKind = Literal["kernel", "program", "pool", "functions", "external"]
"""What an object holds: a kernel, the program that calls kernels, the thread pool, a function from outside; in C also
the scalar functions that kernels call."""


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """A relocatable object of a compiled model; `name` is that of its kernel, or what it is."""

    kind: ObjectKind
    name: str
    data: bytes


def compile_ir(text: str, target: Target, effort: Effort = Effort.KERNEL) -> bytes:
    """The object file of a module; InternalError with LLVM's message when the text is not legal, or LLVM has no code
    for it on a machine of another architecture."""
    generator = Generator.of(target, effort.value)
    return apart.object_of(text, generator) if apart.is_foreign(target.triple) else object_of(text, generator)


class ObjectMaker:
    """Makes object files on threads while its owner goes on making texts; a context manager.

    The owner's thread is one of `threads`: when it asks for the objects, it makes those that none has begun with. If
    it is the only one, it makes each at once.
    """

    def __init__(self, target: Target, threads: int) -> None:
        self._target = target
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._submitted: list[tuple[Unit, Future[bytes]]] = []
        self._added: dict[str, bytes] = {}
        self.failed = ""
        """The kernel of which `objects` could make none."""

    def start(self, unit: Unit) -> None:
        """Begin to compile a module; `objects` will have it next."""
        made: Future[bytes] = Future()
        if self._pool is not None:
            made = self._pool.submit(_object_of, unit, self._target)
        else:
            made.set_result(_object_of(unit, self._target))
        self._submitted.append((unit, made))

    def add(self, name: str, object: bytes) -> None:
        """Take the object file of a function from outside, each once; `objects` will have it next. UnsupportedError
        where there is another function of that name."""
        if self._added.get(name, object) != object:
            raise UnsupportedError(
                f"two kernels from outside have a function '{name}'", hint="give one of the functions another name"
            )
        is_there = object in self._added.values()
        self._added[name] = object
        if is_there:
            return
        made: Future[bytes] = Future()
        made.set_result(object)
        self._submitted.append((Unit("", kernel=name, kind="external"), made))

    @property
    def submitted(self) -> int:
        """How many modules were started."""
        return len(self._submitted)

    def objects(self, step: Callable[[int, int], None] | None = None) -> list[bytes]:
        """All object files in the order of their start, waiting for what is not ready; InternalError as
        `compile_ir`. `step` is told how many of how many are there."""
        done: dict[int, bytes] = {}

        def note(k: int, made: bytes) -> None:
            done[k] = made
            if step is not None:
                step(len(done), len(self._submitted))

        for k, (unit, made) in enumerate(self._submitted):
            if made.cancel():  # no thread has begun with it
                note(k, self._object(unit, partial(_object_of, unit, self._target)))
        for k, (unit, made) in enumerate(self._submitted):
            if k not in done:
                note(k, self._object(unit, made.result))
        return [done[k] for k in range(len(self._submitted))]

    def files(self, objects: Sequence[bytes]) -> tuple[ObjectFile, ...]:
        """What `objects` gave, with what each is."""
        units = [unit for unit, _ in self._submitted]
        return tuple(
            ObjectFile(unit.kind, unit.kernel or unit.kind, data) for unit, data in zip(units, objects, strict=True)
        )

    def _object(self, unit: Unit, make: Callable[[], bytes]) -> bytes:
        try:
            return make()
        except Exception:
            self.failed = unit.kernel
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if self._pool is not None:
            # after an error or an interrupt nobody needs what is still being made
            self._pool.shutdown(wait=kind is None, cancel_futures=True)


def compile_all(units: Sequence[Unit], target: Target, threads: int) -> list[bytes]:
    """The object files of several modules, made by up to `threads` threads."""
    with ObjectMaker(target, threads) as maker:
        for unit in units:
            maker.start(unit)
        return maker.objects()


def _object_of(unit: Unit, target: Target) -> bytes:
    try:
        return _made_of(unit, target)
    except InternalError as error:
        if error.where is not None or not unit.kernel:
            raise
        raise InternalError(error.what, where=f"kernel '{unit.kernel}'", hint=error.hint) from error


def _made_of(unit: Unit, target: Target) -> bytes:
    if unit.inspect is not None:
        unit.inspect(assembly(unit.text, target, effort=unit.effort))
    if unit.effort is Effort.SUPPORT:
        return _support_object(unit.text, target)
    return compile_ir(unit.text, target, unit.effort)


@lru_cache(maxsize=8)
def _support_object(text: str, target: Target) -> bytes:
    return compile_ir(text, target, Effort.SUPPORT)


def assembly(text: str, target: Target, *, comments: bool = False, effort: Effort = Effort.KERNEL) -> str:
    """The assembler text of a module, as the object file would hold it; with LLVM's comments, which name the
    blocks that the machine code comes from."""
    generator = Generator.of(target, effort.value)
    if apart.is_foreign(target.triple):
        return apart.assembly_of(text, generator, comments=comments)
    return assembly_of(text, generator, comments=comments)
