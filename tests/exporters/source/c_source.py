"""Models and kernels as sources in C, compiled here, beside the same loops as native code."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from tests.ops.sampling import Sample
from tilewright.codegen.c.functions import definitions
from tilewright.codegen.c.kernel import kernel_c
from tilewright.codegen.cpu.assemble import ObjectFile
from tilewright.compiler import compile_graphs
from tilewright.exporters.library.export import write_c
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module
from tilewright.ir.types import tensor
from tilewright.ops.define import OPERATORS
from tilewright.options import Options
from tilewright.requested import RequestedGraphs
from tilewright.target.named import C_TARGET
from tilewright.target.target import Target

TWIN = Target(
    **{
        **{field.name: getattr(C_TARGET, field.name) for field in fields(Target)},
        "name": "twin", "triple": "x86_64-unknown-linux-gnu", "cpu": "x86-64",
    }
)  # fmt: skip
"""A machine of the facts of the target for C, for which LLVM makes the code: the same loops, and nothing contracted."""

STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")

UNFUSED = """/* As LLVM has it for vectors on machines without fused multiply-adds: two roundings. */
#include <math.h>
#define fmaf(a, b, c) ((a) * (b) + (c))
#define fma(a, b, c) ((a) * (b) + (c))
"""


def write(module: Module, path: Path, options: Options | None = None) -> tuple[Path, ...]:
    """The source of a graph, which is changed."""
    texts: list[ObjectFile] = []
    options = replace(options or Options(), threads=1)
    artifact = compile_graphs(RequestedGraphs(module), options, C_TARGET, on_objects=texts.extend)
    return write_c(artifact, texts, path, path.stem, weights=None)


def shared(source: Path, *flags: str, cc: Sequence[str] = ("cc",)) -> Path:
    """A shared library of a source, by a compiler that has nothing to say about it."""
    made = source.with_suffix(".so")
    command = [*cc, *STRICT, *(flags or ("-O2",)), "-fPIC", "-shared", source.name, "-o", made.name, "-lm"]
    done = subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return made


def module_of(sample: Sample) -> Module:
    """The graph of one operator on the inputs of a sample."""
    types = [tensor(dt.from_numpy(a.dtype), a.shape) for a in sample.inputs]
    names = tuple(f"x{k}" for k in range(len(types)))
    body, module = Block(types, names), Module()
    with Builder(body, module) as builder:
        results = OPERATORS[sample.op](*body.args, **sample.attrs)
        results = results if isinstance(results, tuple) else (results,)
        builder.emit("return", results)
    outputs = tuple(f"y{k}" for k in range(len(results)))
    module.add(Func("main", body, "graph", {"inputs": names, "outputs": outputs}))
    return module


def run_in_c(func: Func, arrays: Sequence[np.ndarray], folder: Path) -> int:
    """Run a kernel without dims and scratch memory in C on arrays in place; gives its error."""
    kernel = kernel_c(func)
    text = ["#include <stddef.h>", "#include <stdint.h>", "#include <math.h>", *definitions(kernel.needs)]
    text += [kernel.text, "int32_t run(void **at);", "int32_t run(void **at) {", "  int32_t error = 0;"]
    given = [f"at[{k}]" for k in range(len(arrays))] + (["&error"] if kernel.checks else [])
    text += [f"  {kernel.symbol}({', '.join(given)});", "  return error;", "}", ""]
    source = folder / "kernel.c"
    source.write_text("\n".join(text))
    library = ctypes.CDLL(str(shared(source, "-O1", "-fsanitize=undefined", "-fno-sanitize-recover=undefined")))
    return int(library.run((ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))))
