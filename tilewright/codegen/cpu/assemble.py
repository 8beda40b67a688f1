"""From LLVM IR text to machine code: LLVM's scalar passes and its code generator, through llvmlite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Self

from llvmlite import binding

from tilewright.codegen.cpu.native import emit_object, pass_manager, run_passes
from tilewright.ir.diag import InternalError
from tilewright.target.target import Target


class Effort(Enum):
    """LLVM's optimisation levels (middle end, code generator) for the kinds of text there are."""

    KERNEL = (2, 2)
    """Level 1 of the middle end has no GVN, which the repeated loads of unrolled code need; level 3 of the
    code generator differs in nothing that generated kernels use."""

    SUPPORT = (0, 2)
    """The thread pool: written in SSA form without anything to simplify, and the same in every artefact."""

    CALLS = (0, 0)
    """The program: thousands of calls one after the other, each executed once."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The text of one LLVM module, how hard LLVM should try, and who is to look at the assembler text."""

    text: str
    effort: Effort = Effort.KERNEL
    inspect: Callable[[str], None] | None = None


def compile_ir(text: str, target: Target, effort: Effort = Effort.KERNEL) -> bytes:
    """The object file of a module; InternalError with LLVM's message when the text is not legal."""
    with _parsed(text) as module:
        machine = _target_machine(target, effort)
        _optimise(module, machine, effort)
        return emit_object(machine, module)


class ObjectMaker:
    """Makes object files on threads while its owner goes on making texts; a context manager.

    With one thread the work is done at once, by the caller's own.
    """

    def __init__(self, target: Target, threads: int) -> None:
        self._target = target
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._made: list[Callable[[], bytes]] = []

    def start(self, unit: Unit) -> None:
        """Begin to compile a module; `objects` will have it next."""
        if self._pool is not None:
            self._made.append(self._pool.submit(_object_of, unit, self._target).result)
            return
        blob = _object_of(unit, self._target)
        self._made.append(lambda: blob)

    @property
    def begun(self) -> int:
        """How many modules were started."""
        return len(self._made)

    def objects(self, step: Callable[[int, int], None] | None = None) -> list[bytes]:
        """All object files in the order of their start, waiting for what is not ready; InternalError as
        `compile_ir`. `step` is told how many of how many are there."""
        found: list[bytes] = []
        for made in self._made:
            found.append(made())
            if step is not None:
                step(len(found), len(self._made))
        return found

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
    with _parsed(text) as module:
        machine = _target_machine(target, effort)
        _optimise(module, machine, effort)
        machine.set_asm_verbosity(comments)
        return str(machine.emit_assembly(module))


def optimised(text: str, target: Target) -> str:
    """The module after LLVM's scalar passes, as text."""
    with _parsed(text) as module:
        _optimise(module, _target_machine(target, Effort.KERNEL), Effort.KERNEL)
        return str(module)


def _parsed(text: str) -> Any:
    """The module, in a context of its own so that threads do not share one; it must be closed."""
    _initialise()
    try:
        return binding.parse_assembly(text, context=binding.create_context())
    except RuntimeError as e:
        raise InternalError(
            f"LLVM refuses generated code: {e}", hint="this is a defect; please report it"
        ) from e


@lru_cache(maxsize=1)
def _initialise() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    # LLVM's machine-level hoisting moves the constants of an epilogue's polynomials into registers around
    # the whole tile loop, and spills accumulators for it: 9.5 ms instead of 5.5 for a 128x768x3072 product
    # with erf.
    binding.set_option("tilewright", "-disable-machine-licm")
    # one spelling of vector instructions for all systems: macOS has one of its own
    binding.set_option("tilewright", "-aarch64-neon-syntax=generic")


_LOCAL = threading.local()


def _target_machine(target: Target, effort: Effort) -> Any:
    """A machine for this thread: LLVM's are not to be shared by threads."""
    machines = _LOCAL.__dict__.setdefault("machines", {})
    _, level = effort.value
    if (target, level) not in machines:
        llvm_target = binding.Target.from_triple(target.triple)
        machines[target, level] = llvm_target.create_target_machine(
            cpu=target.cpu, features=target.feature_text, opt=level, reloc="pic", codemodel="small"
        )
    return machines[target, level]


def _optimise(module: Any, machine: Any, effort: Effort) -> None:
    """Run the scalar passes. Loops are vectorised and unrolled by the schedule, so LLVM's passes for it are
    off."""
    level, _ = effort.value
    with binding.create_pipeline_tuning_options(speed_level=level) as options:
        options.loop_vectorization = False
        options.slp_vectorization = False
        options.loop_interleaving = False
        options.loop_unrolling = False
        with binding.create_pass_builder(machine, options) as builder, pass_manager(builder) as manager:
            run_passes(manager, module, builder)
