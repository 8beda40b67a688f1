"""A compiled model as C: one source file with its header, and the weights as arrays of C or in a file beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tilewright.codegen.c.spelling import CNames, comment
from tilewright.codegen.cpu.assemble import ObjectFile
from tilewright.exporters.library.build import MEMORY_FUNCTIONS, header_c, named, runtime_c, weights_beside
from tilewright.exporters.library.tables import LibraryWeights, tables_c
from tilewright.runtime.artifact import Artifact
from tilewright.runtime.values.dtypes import numpy_dtype

LARGEST_ARRAYS = 4 << 20
"""Bytes of weights up to which they are arrays of C unless it is told otherwise: compilers take about a second for a
megabyte."""


def write_source(
    folder: Path, artifact: Artifact, texts: Sequence[ObjectFile], name: str, beside: str
) -> list[Path]:
    """The source, its header, and the weights: `NAME_weights.h`, or where `beside` is a name, a file that is called so
    in the end."""
    pieces = artifact.saved_weights()
    size = sum(piece.nbytes for piece in pieces)
    files: list[Path] = []
    held = LibraryWeights(size)
    if size and beside:
        files = [folder / "beside.weights"]
        held = weights_beside(files[0], pieces, beside)
    elif size:
        files = [folder / f"{name}_weights.h"]
        with open(files[0], "w", encoding="utf-8") as file:
            file.writelines(_arrays(artifact, b"".join(pieces)))
    source, header = folder / f"{name}.c", folder / f"{name}.h"
    header.write_text(named(header_c(), name), encoding="utf-8")
    source.write_text(_source(artifact, texts, name, held, beside=bool(held.beside)), encoding="utf-8")
    return [source, header, *files]


def _source(
    artifact: Artifact, texts: Sequence[ObjectFile], name: str, weights: LibraryWeights, *, beside: bool
) -> str:
    functions, kernels, programs = (
        "\n".join(text.data.decode() for text in texts if text.kind == kind)
        for kind in ("functions", "kernel", "program")
    )
    called = sorted(set(_MATH.findall(functions + kernels)))
    has_math = called or not _is_finite(artifact, weights, beside=beside)
    math = f"{_WITH_MATH}{''.join(map(_prototype, called))}#endif\n" if has_math else ""
    arrays = f'#include "{name}_weights.h"\n#define TW_WEIGHTS ((const unsigned char *)&the_weights)\n'
    parts = [
        named(_HEAD.replace("MATH\n", math), name),
        f'#include "{name}.h"\n{MEMORY_IF_FREE}',
        arrays if weights.size and not beside else "",
        named(tables_c(artifact, name, weights, ""), name),
        named(
            runtime_c("basics.c", *(["steps.c"] if any(p.program for p in artifact.programs) else [])), name
        ),
        "/* Scalar functions */\n" if functions else "",
        functions,
        "/* Kernels */\n",
        kernels,
        "/* The program */\n",
        named(programs, name, in_comments=False),
        named(runtime_c("machine.c", "programs.c", "interface.c"), name),
    ]
    return "\n".join(part for part in parts if part)


def _is_finite(artifact: Artifact, weights: LibraryWeights, *, beside: bool) -> bool:
    """Whether arrays of weights need no macros for infinities and NaN."""
    if beside or not weights.size:
        return True
    data = b"".join(artifact.saved_weights())
    floats = [(at, of) for at, of in _entries(artifact).items() if of[0].name in _TYPES]
    return all(np.isfinite(np.frombuffer(data, dtype, count, at)).all() for at, (dtype, count, *_) in floats)


_MATH = re.compile(
    r"\b((?:fma|fabs|floor|ceil|rint|trunc|copysign|sqrt|fmod|sin|cos|tan|a(?:sin|cos|tan)h|atan2)f?)\("
)

_WITH_MATH = """#ifndef TW_FREESTANDING
#include <math.h>
#else /* what the model calls of it, without the header */
#define INFINITY (1.0f / 0.0f)
#define NAN (0.0f / 0.0f)
"""


def _prototype(function: str) -> str:
    """The declaration of a function of <math.h>."""
    name = function.removesuffix("f")
    type = "double" if name == function else "float"
    count = 3 if name == "fma" else 2 if name in ("copysign", "fmod", "atan2") else 1
    return f"{type} {function}({', '.join([type] * count)});\n"


_HEAD = """/* A model, made by tilewright: the interface is model_info and what stands with it in model.h.

   C11, without anything that depends on a machine or a compiler. With TW_FREESTANDING defined it needs no C library:
   all memory is the caller's. Arithmetic rounds as it is written where the compiler contracts nothing
   (-ffp-contract=off); integers are the same everywhere. */

#define TW_PORTABLE
#define TW_PUBLIC
#define TW_CODE static
#include <stddef.h>
#include <stdint.h>
MATH
#ifndef TW_FREESTANDING
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32 /* aligned memory has functions of its own there, and all memory here is aligned */
#include <malloc.h>
#define aligned_alloc(alignment, bytes) _aligned_malloc(bytes, alignment)
#define free _aligned_free
#endif
#endif
"""

MEMORY_IF_FREE = f"\n#ifdef TW_FREESTANDING{MEMORY_FUNCTIONS}#endif\n"

_TYPES = {"float32": "float", "float64": "double"}


def _arrays(artifact: Artifact, data: bytes) -> Iterator[str]:
    """The weights as a structure of arrays, each where the program looks for it."""
    names = CNames()
    fields, values, at = [], [], 0

    def add(array: np.ndarray, name: str, about: str) -> None:
        kind = "int" if array.dtype.kind == "i" else "uint"
        type = _TYPES.get(array.dtype.name) or f"{kind}{8 * array.dtype.itemsize}_t"
        fields.append(f"  _Alignas({_ALIGNMENT}) {type} {names.fresh(name)}[{array.size}];{about}\n")
        values.append(_values(array))

    entries = sorted(_entries(artifact).items())
    ends = [offset for offset, _ in entries[1:]] + [len(data)]
    for end, (offset, (dtype, count, name, shape)) in zip(ends, entries, strict=True):
        if offset > at:
            add(np.frombuffer(data, np.uint8, offset - at, at), "more", "")
        array = np.frombuffer(data, dtype, min(count, (end - offset) // dtype.itemsize), offset)
        is_plain = dtype.name in _TYPES or dtype.kind in "iu"
        add(array if is_plain else array.view(f"u{dtype.itemsize}"), name, f" {comment(shape)}")
        at = -(-(offset + array.nbytes) // _ALIGNMENT) * _ALIGNMENT
    if len(data) > at:
        add(np.frombuffer(data, np.uint8, len(data) - at, at), "more", "")
    yield "/* The weights of a model, as its program has them. */\n\n#include <stdint.h>\n\n"
    yield "static const struct weights {\n"
    yield from fields
    yield "} the_weights = {\n"
    for value in values:
        yield from value
    yield "};\n\n"
    yield f'_Static_assert(sizeof the_weights == {len(data)}, "where the program looks for them");\n'


_ALIGNMENT = 64


def _values(array: np.ndarray) -> Iterator[str]:
    yield "  {\n"
    for start in range(0, array.size, _ROW):
        yield "    " + ", ".join(map(_spelled, array[start : start + _ROW])) + ",\n"
    yield "  },\n"


_ROW = 12


def _spelled(value: np.generic) -> str:
    if value.dtype.kind != "f":
        if value.dtype == np.int64 and value == np.iinfo(np.int64).min:  # C has no literal for it
            return "INT64_MIN"
        return f"{value}{'u' if value.dtype.kind == 'u' and value.dtype.itemsize >= 4 else ''}"
    if not np.isfinite(value):
        return "NAN" if np.isnan(value) else "INFINITY" if float(value) > 0 else "-INFINITY"
    text = str(value)
    text += "" if "." in text or "e" in text else ".0"
    return f"{text}f" if value.dtype.itemsize == 4 else text


Entry = tuple[np.dtype, int, str, str]


def _entries(artifact: Artifact) -> dict[int, Entry]:
    """What lies where in the weights: the dtype, how many elements, a name, and the shape as a text."""
    found: dict[int, Entry] = {}
    pending = [*artifact.programs]
    while pending:
        program = pending.pop()
        pending += program.parts
        for info in program.constant_table:
            dtype, count = numpy_dtype(info.dtype), int(np.prod(info.shape, dtype=np.int64))
            shape = f"{info.dtype}[{', '.join(map(str, info.shape))}]"
            if count:
                found.setdefault(info.offset, (dtype, count, info.name, shape))
        for state in program.states:
            if state.initial >= 0:
                dtype = numpy_dtype(state.info.dtype)
                count = int(np.prod([int(d) for d in state.info.parts.shape], dtype=np.int64))
                found.setdefault(state.initial, (dtype, count, f"{state.info.name}_first", str(state.info)))
    return found
