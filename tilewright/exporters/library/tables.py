"""The tables of an exported model as C: what its inputs, outputs, states and programs are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.diag import UnsupportedError
from tilewright.runtime import staged
from tilewright.runtime.artifact import Artifact, Failure, TensorInfo
from tilewright.runtime.guard import fixed_places
from tilewright.runtime.threads import MAX_THREADS, SPIN_NS
from tilewright.runtime.values.dtypes import numpy_dtype

MOST_AXES = 16
"""Of a tensor in the C interface."""

DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
)  # fmt: skip
"""Dtypes of the C interface; their numbers are in model.h."""


@dataclass(frozen=True)
class LibraryWeights:
    """How the library has its weights: `size` bytes with this crc32, within, or in the file `beside` that begins with
    `header`."""

    size: int
    checksum: int = 0
    beside: str = ""
    header: bytes = b""


def tables_c(artifact: Artifact, name: str, weights: LibraryWeights, features: str) -> str:
    """All of it; `features` is the table of what the CPU must have. UnsupportedError for what C has no form for, by
    name."""
    check_exportable(artifact)
    programs = artifact.programs
    states = [state.info for state in artifact.states]
    lines = [
        _infos("input", artifact.inputs), _infos("output", artifact.outputs), _infos("state", states),
        _TYPES, _states(artifact), *_programs(artifact), features, _weights(weights), _numbers(artifact),
        f"static const tw_model_info the_info = {{TW_ABI, {quoted(name)}, {quoted(artifact.target.cpu)}, "
        f"{quoted(artifact.producer)}, {len(artifact.inputs)}, {len(artifact.outputs)}, {len(states)}, "
        f"input_infos, output_infos, state_infos, {weights.size}}};",
        f"#define PROGRAMS {len(programs)}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def check_exportable(artifact: Artifact) -> None:
    """UnsupportedError that names all that needs a host, or that C has no form for."""
    problems = []
    states = [state.info for state in artifact.states]
    for what, infos in (("input", artifact.inputs), ("output", artifact.outputs), ("state", states)):
        for info in infos:
            if info.kind != "tensor" or info.dtype not in DTYPES:
                problems.append(f"{what} {info}")
            elif len(info.shape) > MOST_AXES:
                problems.append(f"{what} {info}, which has more than {MOST_AXES} axes")
    for program in artifact.programs:
        problems += _host_steps(program)
    if problems:
        listed = list(dict.fromkeys(problems))
        more = f"; and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
        raise UnsupportedError(
            f"the model cannot be a library, as it needs Python: {'; '.join(listed[:_LISTED])}{more}",
            hint="export a model without these, or run it with Python (`tilewright compile`)",
        )


_LISTED = 8


def _host_steps(artifact: Artifact) -> list[str]:
    """What the host does for a program, in words."""
    if artifact.program is None or whole_step(artifact.program) is not None:
        return []
    steps = list(staged.program.steps_within(artifact.program.steps))
    called = [s for s in steps if isinstance(s, staged.program.CallHost)]
    if called:
        return [f"{s.function} of {s.node or 'a node without a name'}" for s in called]
    kinds = sorted({type(s).__name__ for s in steps if not isinstance(s, staged.program.RunNative)})
    return [f"steps that the host runs ({', '.join(kinds) or 'several'})"]


def whole_step(program: staged.program.StagedProgram) -> staged.program.RunNative | None:
    """The one step of native code that is all of a program."""
    step = program.steps[0] if len(program.steps) == 1 else None
    return step if isinstance(step, staged.program.RunNative) else None


def quoted(text: str) -> str:
    """A C string of any text, as UTF-8; a name that would end early ends there."""
    data = text.encode("utf-8", "replace").split(b"\0")[0]
    escaped = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in data)
    return f'"{escaped}"'


_TYPES = """
#ifdef TW_SYMBOLS_KEPT
#define TW_SYMBOL(name) __asm__(name)
#else
#define TW_SYMBOL(name)
#endif

/* What code is given lies in words of 8 bytes, also where a pointer has 4 (and the low byte is the first). */
typedef union word {
  void *at;
  uint64_t bits;
} word;

typedef struct failure {
  tw_status status;
  const char *message;
} failure;

typedef struct fixed_dim {
  int32_t input, axis;
  int64_t size;
} fixed_dim;

typedef struct part {
  int32_t (*plan)(const int64_t *, const word *, int64_t *, int64_t *, int64_t *);
  int32_t (*run)(const word *);
  const failure *failures;
  int32_t failure_count;
} part;

typedef struct steps {
  int32_t (*run)(int64_t *);
  void (*clear)(int64_t *);
  void (*free)(int64_t *);
  int32_t parts_at, part_count;
  const part *parts;
  const int32_t *inputs, *outputs; /* words of slots; an output that is an input as it came is -1 - its number */
} steps;

typedef struct program {
  int32_t (*plan)(const int64_t *, const word *, int64_t *, int64_t *, int64_t *); /* null: all sizes are fixed */
  int32_t (*run)(const word *);
  int64_t arena, scratch;
  int32_t dims_count;
  const int64_t *dims;
  const int64_t *const *output_dims;
  const failure *failures;
  int32_t failure_count, reads_data, loses_states, fixed_count; /* states are lost when a run fails */
  const int32_t *swaps; /* of kernels, for each state: it is written beside, and swapped; the others in place */
  const fixed_dim *fixed;
  const steps *steps;
} program;

typedef struct state_place {
  size_t bytes;
  int64_t initial; /* in the weights; -1: zeros */
  int has_beside; /* programs write what it is next into memory beside it, or what it was is kept there during a run */
  int is_counter; /* how far others are filled: put back when a run fails, so that these lose nothing */
} state_place;
"""


def _infos(kind: str, infos: Sequence[TensorInfo]) -> str:
    lines = []
    for k, info in enumerate(infos):
        sizes = [d if isinstance(d, int) else -1 for d in info.shape]
        lines.append(_array("int64_t", f"{kind}_shape{k}", sizes))
        lines.append(_array("char *const", f"{kind}_dims{k}", [quoted(str(d)) for d in info.shape]))
    entries = [
        f"{{{quoted(info.name)}, TW_{info.dtype.upper()}, {len(info.shape)}, {kind}_shape{k}, {kind}_dims{k}}}"
        for k, info in enumerate(infos)
    ]
    return "\n".join([*lines, _array("tw_tensor_info", f"{kind}_infos", entries)])


def _array(kind: str, name: str, entries: Iterable[object]) -> str:
    """A table; an empty one has one element of zeros, as C has no array of none."""
    texts = [str(entry) for entry in entries] or ["{0}" if kind in _STRUCTS else "0"]
    rows, row = [], ""
    for text in texts:
        if row and len(row) + len(text) > _WIDTH:
            rows.append(row)
            row = ""
        row += f"{text}, "
    return f"static const {kind} {name}[] = {{\n  " + "\n  ".join([*rows, row]).rstrip(", ") + "\n};"


_STRUCTS = ("tw_tensor_info", "failure", "fixed_dim", "part", "steps", "program", "state_place")
_WIDTH = 110


def _states(artifact: Artifact) -> str:
    entries, counters = [], _counters(artifact)
    for state, ways in zip(artifact.states, zip(*(p.states for p in artifact.programs), strict=True), strict=True):
        shape = [int(d) for d in state.info.shape]
        nbytes = int(np.prod(shape, dtype=np.int64)) * numpy_dtype(state.info.dtype).itemsize
        counts = state.info.name in counters
        beside = counts or any(of.way != "in place" for of in ways)
        entries.append(f"{{{nbytes}u, {state.initial}, {int(beside)}, {int(counts)}}}")
    return _array("state_place", "states", entries)


def _counters(artifact: Artifact) -> frozenset[str]:
    """The states that say how far others are filled."""
    return frozenset(state.counter for program in artifact.programs for state in program.states if state.counter)


def _programs(artifact: Artifact) -> list[str]:
    lines, entries, counters = [], [], _counters(artifact)
    for number, program in enumerate(artifact.programs):
        fixed = [] if program in (artifact, artifact.broadcasting) else fixed_places(artifact, program)
        lines.append(_array("fixed_dim", f"fixed{number}", [f"{{{i}, {a}, {s}}}" for i, a, s in fixed]))
        if program.program is None:
            text, entry = _of_kernels(number, program)
            step = "NULL"
        else:
            text, entry = _of_steps(number, program, len(artifact.inputs) + len(artifact.states))
            step = f"&steps{number}"
        lines += text
        lines.append(_array("int32_t", f"swaps{number}", [int(s.way != "in place") for s in program.states]))
        written = [s for s in program.states if s.way == "in place" and not s.counter]
        loses = int(any(s.info.name not in counters for s in written))
        entries.append(f"{{{entry}, {loses}, {len(fixed)}, swaps{number}, fixed{number}, {step}}}")
    return [*lines, _array("program", "programs", entries)]


def _of_kernels(number: int, artifact: Artifact) -> tuple[list[str], str]:
    """A program of kernels: what it refers to, and its entry up to `reads_data`."""
    lines = [_declared(artifact), _failures(f"failures{number}", artifact.errors)]
    static = artifact.static_plan
    dims = static.dims if static else ()
    lines.append(_array("int64_t", f"dims{number}", dims))
    outputs = []
    for k, info in enumerate(artifact.outputs if static else ()):
        lines.append(_array("int64_t", f"out{number}_{k}", info.shape))
        outputs.append(f"out{number}_{k}")
    lines.append(_array("int64_t *const", f"outs{number}", outputs))
    sizes = f"{static.arena}, {static.scratch}" if static else "0, 0"
    return lines, (
        f"{_plan_of(artifact)}, model_{c_name(artifact.run_symbol)}, {sizes}, {len(dims)}, dims{number}, "
        f"outs{number}, failures{number}, {len(artifact.errors)}, {int(artifact.plan_reads_data)}"
    )


def _of_steps(number: int, artifact: Artifact, input_count: int) -> tuple[list[str], str]:
    """A program of native steps."""
    program = artifact.program
    assert program is not None
    step = whole_step(program)
    assert step is not None
    slots = dict(program.slots)
    lines, parts = [], []
    for k, of in enumerate(artifact.parts):
        lines += [_declared(of), _failures(f"failures{number}_{k}", of.errors)]
        run = f"model_{c_name(of.run_symbol)}"
        parts.append(f"{{{_plan_of(of)}, {run}, failures{number}_{k}, {len(of.errors)}}}")
    lines.append(_array("part", f"parts{number}", parts))
    taken = set(step.inputs)
    lines.append(_array("int32_t", f"ins{number}", [slots[v] if v in taken else -1 for v in program.inputs]))
    given = set(step.outputs)
    places = [slots[v] if v in given else -1 - program.inputs.index(v) for v in program.outputs]
    lines.append(_array("int32_t", f"outs{number}", places))
    suffix = program.native_suffix([of.run_symbol for of in artifact.parts])
    symbols = [f"tw_steps_{which}{suffix}" for which in (step.function, "clear", "free")]
    kinds = ("int32_t", "void", "void")
    lines += [_function(kind, symbol, "int64_t *frame") for kind, symbol in zip(kinds, symbols, strict=True)]
    names = [f"model_{c_name(symbol)}" for symbol in symbols]
    lines.append(
        f"static const steps steps{number} = {{{', '.join(names)}, {program.parts}, {len(parts)}, parts{number}, "
        f"ins{number}, outs{number}}};"
    )
    return lines, "NULL, NULL, 0, 0, 0, NULL, NULL, NULL, 0, 0"


def _declared(artifact: Artifact) -> str:
    text = _function("int32_t", artifact.run_symbol, "const word *call")
    if artifact.static_plan is None:
        arguments = "const int64_t *, const word *, int64_t *, int64_t *, int64_t *"
        text += "\n" + _function("int32_t", artifact.plan_symbol, arguments)
    return text


def _function(kind: str, symbol: str, arguments: str) -> str:
    """A function of the code, whose symbol is `symbol` where object files keep theirs."""
    return f'TW_CODE {kind} model_{c_name(symbol)}({arguments}) TW_SYMBOL("{symbol}");'


def _plan_of(artifact: Artifact) -> str:
    return "NULL" if artifact.static_plan else f"model_{c_name(artifact.plan_symbol)}"


def c_name(symbol: str) -> str:
    """A symbol of generated code as a name of C: each character that C has not becomes `_`."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in symbol)


def _failures(name: str, errors: Sequence[Failure]) -> str:
    kinds = {"input": "TW_BAD_INPUT"}
    return _array("failure", name, [f"{{{kinds.get(e.kind, 'TW_FAILED')}, {quoted(e.message)}}}" for e in errors])


def _weights(weights: LibraryWeights) -> str:
    lines = [f"#define TW_WEIGHTS_BYTES {weights.size}u", f"#define TW_WEIGHTS_SUM {weights.checksum}u"]
    if weights.beside:
        lines.append(f"#define TW_WEIGHTS_BESIDE {quoted(weights.beside)}")
        lines.append(_array("unsigned char", "weights_header", weights.header))
    return "\n".join(lines)


def _numbers(artifact: Artifact) -> str:
    programs = artifact.programs
    of_kernels = [p for p in programs if p.program is None]
    bounded = [p.static_plan.most_threads for p in of_kernels if p.static_plan and p.static_plan.most_threads]
    numbers = {
        "INPUTS": len(artifact.inputs),
        "OUTPUTS": len(artifact.outputs),
        "STATES": len(artifact.states),
        "INPUT_AXES": sum(len(info.parts.shape) for info in artifact.inputs),
        "OUTPUT_AXES": sum(len(info.parts.shape) for info in artifact.outputs),
        "MOST_DIMS": max((max(p.dims_count, len(p.static_plan.dims) if p.static_plan else 0) for p in of_kernels),
                         default=0),
        "MOST_WORDS": max((p.program.frame_words for p in programs if p.program is not None), default=0),
        "HAS_STEPS": int(any(p.program is not None for p in programs)),
        "HAS_BROADCASTING": int(artifact.broadcasting is not None),
        "MOST_THREADS": min((MAX_THREADS, *bounded)),
        "PLAN_READS_DATA": int(any(p.plan_reads_data for p in programs)),
        "TW_SPIN_NS": SPIN_NS,
    }  # fmt: skip
    return "\n".join(f"#define {name} {value}" for name, value in numbers.items())
