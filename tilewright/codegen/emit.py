"""From LLVM IR text to machine code: LLVM's scalar passes and its code generator, through llvmlite."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from llvmlite import binding

from tilewright.ir.diag import InternalError
from tilewright.target.target import Target

OPTIMISATION_LEVEL = 2
"""Of the middle end: level 1 has no GVN, which the repeated loads of unrolled code need."""

CODE_LEVEL = 2
"""Of the code generator; level 3 differs in nothing that generated kernels use."""


def compile_ir(text: str, target: Target) -> bytes:
    """The object file of a module; InternalError with LLVM's message when the text is not legal."""
    with _parsed(text) as module:
        machine = _target_machine(target)
        _optimise(module, machine)
        return bytes(machine.emit_object(module))


def compile_all(texts: Sequence[str], target: Target, threads: int) -> list[bytes]:
    """The object files of several modules, made by up to `threads` threads (LLVM releases the interpreter
    lock)."""
    if threads <= 1 or len(texts) <= 1:
        return [compile_ir(text, target) for text in texts]
    # Largest first: a long one that starts last would be waited for.
    order = sorted(range(len(texts)), key=lambda k: -len(texts[k]))
    with ThreadPoolExecutor(min(threads, len(texts))) as pool:
        objects = dict(zip(order, pool.map(lambda k: compile_ir(texts[k], target), order), strict=True))
    return [objects[k] for k in range(len(texts))]


def assembly(text: str, target: Target) -> str:
    """The assembler text of a module, as the object file would hold it."""
    with _parsed(text) as module:
        machine = _target_machine(target)
        _optimise(module, machine)
        return str(machine.emit_assembly(module))


def optimised(text: str, target: Target) -> str:
    """The module after LLVM's scalar passes, as text."""
    with _parsed(text) as module:
        _optimise(module, _target_machine(target))
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


_LOCAL = threading.local()


def _target_machine(target: Target) -> Any:
    """A machine for this thread: LLVM's are not to be shared by threads."""
    machines = _LOCAL.__dict__.setdefault("machines", {})
    if target not in machines:
        llvm_target = binding.Target.from_triple(target.triple)
        machines[target] = llvm_target.create_target_machine(
            cpu=target.cpu, features=target.feature_text, opt=CODE_LEVEL, reloc="pic", codemodel="small"
        )
    return machines[target]


def _optimise(module: Any, machine: Any) -> None:
    """Run the scalar passes. Loops are vectorised and unrolled by the schedule, so LLVM's passes for it are
    off."""
    options = binding.create_pipeline_tuning_options(speed_level=OPTIMISATION_LEVEL)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = binding.create_pass_builder(machine, options)
    manager = builder.getModulePassManager()
    manager.run(module, builder)
