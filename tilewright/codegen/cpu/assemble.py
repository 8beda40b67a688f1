"""From LLVM IR text to machine code: LLVM's scalar passes and its code generator, through llvmlite."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Literal, Self

from llvmlite import binding

from tilewright.codegen.cpu.float_modes import FLUSH_DENORMALS
from tilewright.codegen.cpu.native import compiled, pass_manager, refused, run_passes
from tilewright.target.target import Target, system_of


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


ObjectKind = Literal["kernel", "program", "pool", "functions"]
"""What an object holds: a kernel, the program that calls kernels, the thread pool; in C also the scalar functions that
kernels call."""


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """A relocatable object of a compiled model; `name` is that of its kernel, or what it is."""

    kind: ObjectKind
    name: str
    data: bytes


def compile_ir(text: str, target: Target, effort: Effort = Effort.KERNEL) -> bytes:
    """The object file of a module; InternalError with LLVM's message when the text is not legal."""
    tools = _tools(target, effort)
    return compiled(tools.adapted(text), tools.machine, tools.builder, tools.level)


class ObjectMaker:
    """Makes object files on threads while its owner goes on making texts; a context manager.

    The owner's thread is one of `threads`: when it asks for the objects, it makes those that none has begun with. If
    it is the only one, it makes each at once.
    """

    def __init__(self, target: Target, threads: int) -> None:
        self._target = target
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._submitted: list[tuple[Unit, Future[bytes]]] = []
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
    tools = _tools(target, effort)
    with _parsed(tools.adapted(text)) as module:
        tools.optimise(module)
        tools.machine.set_asm_verbosity(comments)
        return str(tools.machine.emit_assembly(module))


def _parsed(text: str) -> Any:
    """The module, in a context of its own so that threads do not share one; it must be closed."""
    try:
        return binding.parse_assembly(text, context=binding.create_context())
    except RuntimeError as e:
        raise refused(str(e)) from e


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


def object_triple(target: Target) -> str:
    """The triple for code whose object files are as `own_objects` says."""
    is_macos = system_of(target.triple) == "macos"
    return f"{target.triple}-elf" if is_macos and not target.own_objects else target.triple


_EXTENDING = frozenset({"riscv64", "s390x"})
"""Architectures whose conventions say so (RISC-V ABIs, 2.1; ELF Application Binary Interface s390x, 1.2.2)."""
_OF_C = re.compile(r"^(?:declare|define) (?:i32|i64|ptr|void) @(?!llvm\.).*$", re.MULTILINE)


_CANONICAL = re.compile(r"call (\S+|<[^>]*>) @llvm\.canonicalize\.\w+\(\1 (\S+)\)")


def _extended(line: re.Match[str]) -> str:
    """The first line of a function with attributes for its integers of 32 bits."""
    return re.sub(r"(?<=[(,] )i32|(?<=\()i32", "i32 signext", re.sub(r"^(\w+) i32", r"\1 signext i32", line[0]))


class _Tools:
    """LLVM's code generator and what makes its scalar passes, for one effort. Loops are vectorised and unrolled by the
    schedule, so LLVM's passes for it are off."""

    def __init__(self, target: Target, effort: Effort) -> None:
        self.level, level = effort.value
        llvm_target = binding.Target.from_triple(object_triple(target))
        self.machine = llvm_target.create_target_machine(
            cpu=target.cpu, features=target.feature_text, opt=level, reloc="pic", codemodel="small"
        )
        layout = str(self.machine.target_data)
        is_other = layout.startswith("E") or any(part in layout for part in ("-p:32:", "m:o-", "m:w-"))
        self.layout = layout if is_other else ""
        self.has_modes = target.arch in FLUSH_DENORMALS
        self.rounds_to_even = target.arch != "x86_64" or "sse4.1" in target.features
        self.has_fma, self.extends_integers = target.has_fma, target.arch in _EXTENDING
        options = binding.create_pipeline_tuning_options(speed_level=self.level)
        options.loop_vectorization = False
        options.slp_vectorization = False
        options.loop_interleaving = False
        options.loop_unrolling = False
        self.builder = binding.create_pass_builder(self.machine, options)

    def adapted(self, text: str) -> str:
        """A text as this machine needs it. LLVM's own layout of data is that of 64-bit machines with the low byte
        first and names as in ELF: others are named, as passes fold loads by it. Without fused multiply-adds a call of
        one would be a call of the C library for each lane; here products are rounded in between, if the machine does
        so. Without an instruction that rounds to even, the C library is called for `rint`, which does the same and is
        everywhere: `roundeven` is of C23. Some conventions want integers of 32 bits extended to whole registers between
        functions of C. Where denormals always count, none is flushed: LLVM has no code for it in WebAssembly."""
        if self.extends_integers:
            text = _OF_C.sub(_extended, text)
        if not self.has_modes:
            text = _CANONICAL.sub(r"fsub \1 \2, zeroinitializer", text)
        if not self.has_fma:
            text = text.replace("@llvm.fma.", "@llvm.fmuladd.")
        if not self.rounds_to_even:
            text = text.replace("@llvm.roundeven.", "@llvm.rint.")
        return f'target datalayout = "{self.layout}"\n{text}' if self.layout else text

    def optimise(self, module: Any) -> None:
        """Run the passes on a module of llvmlite's, in place."""
        with pass_manager(self.builder) as manager:
            run_passes(manager, module, self.builder)


def _tools(target: Target, effort: Effort) -> _Tools:
    """Those of this thread: threads are not to share them."""
    _initialise()
    made: dict[tuple[Target, Effort], _Tools] = _LOCAL.__dict__.setdefault("tools", {})
    found = made.get((target, effort))
    if found is None:
        found = made[target, effort] = _Tools(target, effort)
    return found
