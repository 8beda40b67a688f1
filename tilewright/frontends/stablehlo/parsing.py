"""Programs as MLIR's bindings read them, after a process of its own has read them without harm.

MLIR's reader of bytecode is written for files that it wrote itself: bytes that were changed may end the process, or
keep it busy for ever. So what comes from a file is first read by a child.
"""

from __future__ import annotations

import subprocess
import sys

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

from tilewright.ir.diag import ModelError, UnsupportedError

BYTECODE = b"ML\xefR"

SECONDS_FOR_MEGABYTE, LEAST_SECONDS = 2, 60
"""How long the child may read: a hundred times what it takes."""

_CHILD = """
import sys
from tilewright.frontends.stablehlo.parsing import parsed
try:
    parsed(sys.stdin.buffer.read())
except Exception as error:
    sys.stdout.write(str(error)[:2000])
    sys.exit(3)
"""

_QUANTISED = "!quant."


def context() -> ir.Context:
    """A context that knows the dialects which programs of StableHLO have."""
    made = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    made.append_dialect_registry(registry)
    stablehlo.register_dialect(made)
    chlo.register_dialect(made)
    mhlo.register_mhlo_dialect(made)
    sdy.register_dialect(made)
    made.load_all_available_dialects()
    return made


def parsed(data: bytes) -> ir.Module:
    """The verified program; whatever the bindings raise where there is none."""
    with context() as made:
        if data.startswith(BYTECODE):
            module = stablehlo.deserialize_portable_artifact(made, data)
        else:
            module = ir.Module.parse(data)
        module.operation.verify()
        return module


def read_program(data: bytes, where: str, *, trusted: bool = False) -> ir.Module:
    """The program in an artefact or text; ModelError where it is damaged. What a live object gives is
    `trusted`."""
    if not trusted:
        _check(data, where)
    try:
        return parsed(data)
    except Exception as error:
        raise _refused(str(error), data, where) from error


def _check(data: bytes, where: str) -> None:
    limit = LEAST_SECONDS + SECONDS_FOR_MEGABYTE * (len(data) >> 20)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD], input=data, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"MLIR's reader did not come to an end within {limit} seconds", where=where, hint="export it again"
        ) from error
    except OSError as error:
        raise ModelError(f"the process that checks the program cannot be started: {error}", where=where) from error
    if done.returncode == 3:
        raise _refused(done.stdout.decode(errors="replace"), data, where)
    if done.returncode:
        raise ModelError(
            f"the program is damaged: MLIR's reader failed on it (exit {done.returncode})",
            where=where,
            hint="export it again",
        )


def _refused(reason: str, data: bytes, where: str) -> ModelError | UnsupportedError:
    if _QUANTISED in reason or _QUANTISED.encode() in data or b"quant.uniform" in data:
        return UnsupportedError(
            "quantised types of StableHLO are not supported: the MLIR bindings of jaxlib do not know them",
            where=where,
            hint="export the float model, and quantise it with tilewright.quantize",
        )
    safe = "".join(c if c.isprintable() or c == "\n" else "?" for c in reason[:1500]).strip()
    return ModelError(f"the program is no valid StableHLO: {safe}", where=where, hint="export it again")


def legalized(module: ir.Module) -> None:
    """Write operators of CHLO, which functions of StableHLO stand for, as these functions."""
    stablehlo.register_stablehlo_passes()
    mhlo.register_mhlo_passes()
    with module.context:
        passmanager.PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
