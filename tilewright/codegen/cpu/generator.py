"""LLVM's scalar passes and its code generator in this process, through llvmlite, for one machine and one effort."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from llvmlite import binding

from tilewright.codegen.cpu.float_modes import FLUSH_DENORMALS
from tilewright.codegen.cpu.native import compiled, pass_manager, refused, run_passes
from tilewright.target.target import Target, arch_of, system_of


@dataclass(frozen=True, slots=True)
class Generator:
    """What LLVM is told of a machine, and its levels of optimisation (middle end, code generator)."""

    triple: str
    cpu: str
    features: str
    has_fma: bool
    levels: tuple[int, int]

    @classmethod
    def of(cls, target: Target, levels: tuple[int, int]) -> Self:
        return cls(object_triple(target), target.cpu, target.feature_text, target.has_fma, levels)


def object_of(text: str, generator: Generator) -> bytes:
    """The object file of a module; InternalError with LLVM's message when the text is not legal."""
    tools = _tools(generator)
    return compiled(tools.adapted(text), tools.machine, tools.builder, tools.level)


def refusal_of(text: str, generator: Generator) -> str:
    """Why LLVM, or its verifier, refuses a module; "" for a legal one."""
    try:
        with binding.parse_assembly(text, context=binding.create_context()) as module:
            module.verify()
    except RuntimeError as error:
        return str(error)
    return ""


def assembly_of(text: str, generator: Generator, *, comments: bool) -> str:
    """The assembler text of a module; InternalError as `object_of`."""
    tools = _tools(generator)
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

    def __init__(self, generator: Generator) -> None:
        self.level, level = generator.levels
        llvm_target = binding.Target.from_triple(generator.triple)
        self.machine = llvm_target.create_target_machine(
            cpu=generator.cpu, features=generator.features, opt=level, reloc="pic", codemodel="small"
        )
        layout = str(self.machine.target_data)
        is_other = layout.startswith("E") or any(part in layout for part in ("-p:32:", "m:o-", "m:w-"))
        self.layout = layout if is_other else ""
        arch = arch_of(generator.triple)
        self.has_modes = arch in FLUSH_DENORMALS
        self.rounds_to_even = arch != "x86_64" or "+sse4.1" in generator.features.split(",")
        self.has_fma, self.extends_integers = generator.has_fma, arch in _EXTENDING
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


def _tools(generator: Generator) -> _Tools:
    """Those of this thread: threads are not to share them."""
    _initialise()
    made: dict[Generator, _Tools] = _LOCAL.__dict__.setdefault("tools", {})
    found = made.get(generator)
    if found is None:
        found = made[generator] = _Tools(generator)
    return found
