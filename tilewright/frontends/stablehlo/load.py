"""`load_stablehlo`: a program of StableHLO becomes a graph-level Module."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from tilewright.frontends.files import read_file
from tilewright.frontends.inputs import Declared
from tilewright.frontends.problems import shown
from tilewright.frontends.stablehlo import adapters as adapters
from tilewright.frontends.stablehlo.export import Export, export_of, read_export
from tilewright.frontends.stablehlo.importer import Inliner, walk
from tilewright.frontends.stablehlo.node import ADAPTERS
from tilewright.frontends.stablehlo.parsing import BYTECODE, legalized, read_program
from tilewright.frontends.stablehlo.types import place_of, tensor_type, text_of
from tilewright.frontends.translation import Results, Translation, translated
from tilewright.ir.core import Module, Value
from tilewright.ir.diag import ModelError, TilewrightError, UnsupportedError

MOST_BYTES = 2**31
"""The longest file that is read."""


def load_stablehlo(
    source: Any,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Module:
    """Translate a program to a Module with one function `main`, as a front end's `load` does: a path, bytes or
    `jax.export.Exported`. ModelError when it is broken, UnsupportedError listing all that is not supported."""
    export, where, trusted = _source(source)
    module = read_program(export.module, where, trusted=trusted)
    if _has_chlo(module):
        legalized(module)
    functions = _functions(module)
    if "main" not in functions and len(functions) != 1:
        raise ModelError("the program has no function 'main'", where=where)
    main = functions.get("main") or next(iter(functions.values()))
    inputs = _inputs(main, functions, export)
    outputs = _outputs(main)
    nodes = sum(1 for f in functions.values() for region in f.regions for b in region.blocks for _ in walk(b))

    def translate(translation: Translation, values: dict[str, Value | None]) -> Results:
        return Inliner(translation, functions).main(main, [values[name] for name in inputs])

    return translated(inputs, outputs, nodes, translate, constants=constants, shapes=shapes)


def _source(source: Any) -> tuple[Export, str, bool]:
    if not isinstance(source, Path | bytes):
        return export_of(source), "the given export", True
    where = str(source) if isinstance(source, Path) else "the given bytes"
    data = read_file(source, MOST_BYTES, "export it without its weights") if isinstance(source, Path) else source
    is_export = not data.startswith(BYTECODE) and BYTECODE in data[: 1 << 20] and b"\0" in data[:64]
    return (read_export(data, where) if is_export else Export(data)), where, False


def _has_chlo(module: ir.Module) -> bool:
    return any(op.name.startswith("chlo.") and op.name not in ADAPTERS for op in walk(module.body))


def _functions(module: ir.Module) -> dict[str, ir.Operation]:
    found = {}
    for view in module.body.operations:
        op = view.operation
        if op.name == "func.func":
            found[text_of(op.attributes["sym_name"])] = op
        elif op.name not in ("sdy.mesh", "mhlo.mesh"):
            raise UnsupportedError(f"a program with {shown(op.name)} beside its functions is not supported")
    return found


# Inputs and outputs


def _inputs(
    main: ir.Operation, functions: Mapping[str, ir.Operation], export: Export
) -> dict[str, Declared]:
    arguments = main.regions[0].blocks[0].arguments
    shapes: Sequence[Sequence[str] | None] = (
        export.shapes if export.shapes is not None and len(export.shapes) == len(arguments) else [None] * len(arguments)
    )
    found: dict[str, Declared] = {}
    for k, (argument, dims) in enumerate(zip(arguments, shapes, strict=True)):
        name = _name_of_argument(argument, functions) or f"arg{k}"
        unique, n = name, 1
        while unique in found:
            n += 1
            unique = f"{name}_{n}"
        try:
            type = tensor_type(argument.type)
        except TilewrightError as error:
            error.where = error.where or f"input '{shown(unique)}'"
            raise
        names = dims if dims is not None and len(dims) == len(type.shape) else [None] * len(type.shape)
        shape = [d if d is not None else name for d, name in zip(type.shape, names, strict=True)]
        found[unique] = Declared(type.dtype, tuple(shape), type.is_complex)
    return found


def _name_of_argument(argument: ir.Value, functions: Mapping[str, ir.Operation]) -> str:
    """The name that the location of an argument tells, or where it has none that of the argument of a function which
    it is passed to."""
    for _ in range(4):
        if path := place_of(argument.location).path:
            return path
        uses = [use for use in argument.uses if use.owner.operation.name in ("func.call", "call")]
        if not uses:
            return ""
        callee = functions.get(text_of(uses[0].owner.operation.attributes["callee"]))
        if callee is None:
            return ""
        argument = callee.regions[0].blocks[0].arguments[uses[0].operand_number]
    return ""


def _outputs(main: ir.Operation) -> list[str]:
    count = len(ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results)
    told = list(main.attributes["res_attrs"]) if "res_attrs" in main.attributes else []
    found: list[str] = []
    for k in range(count):
        given = told[k] if k < len(told) else {}
        name = text_of(given["jax.result_info"]) if "jax.result_info" in given else ""
        name = re.sub(r"\s+", " ", name).strip() or ("result" if count == 1 else f"result{k}")
        found.append(name if name not in found else f"{name}_{k}")
    return found
