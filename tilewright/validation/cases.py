"""Inputs on which a program is replayed: noise, values at the edges of what types hold, and those of real calls; with
sizes for the dims that a call chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilewright.graph.assumptions import Assumption
from tilewright.ir.core import Func, Value
from tilewright.ir.diag import InputError, TilewrightError
from tilewright.ir.types import TensorType
from tilewright.ops.define.binding import bound_dims, input_variables

Feed = Mapping[str, np.ndarray]

EDGES = (0.0, 1.0, -1.0, 0.5, -2.0, 3.0, -0.25, 100.0, -100.0, 1e-3)
"""Floats of the boundary case, one after the other over the elements."""

MOST_DRAWN = 65537
"""Random floats of an array, which repeat in larger ones (memory of language models has millions): a prime, so that no
axis repeats with them."""

MOST_ID = 8
"""Random integers are below this: most are ids into tables, or sizes."""

SIZES = (3, 1, 2, 4, 8, 17, 16, 32, 64)
"""Of dims that a call chooses, in the order in which they are tried."""


@dataclass(frozen=True)
class Case:
    """One call: what kind it is, its arrays in the order of the inputs, and the dims that these say."""

    kind: str
    arrays: tuple[np.ndarray, ...]
    env: Mapping[str, int]

    @property
    def sizes(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.env.items() if not name.startswith("val_"))

    def __str__(self) -> str:
        return f"{self.kind} inputs{f' with {self.sizes}' if self.sizes else ''}"


def why_no_cases(main: Func) -> str:
    """Why there are no inputs for a program; "" where there are."""
    if any(not isinstance(a.type, TensorType) for a in main.args):
        return "it takes inputs that are no tensors"
    if any(a.tensor.dtype.storage.hasobject for a in main.args):
        return "it takes strings"
    return ""


def dims_of_inputs(main: Func) -> tuple[str, ...]:
    """Names of the dims that a call chooses."""
    dims = (d for a in main.args if isinstance(a.type, TensorType) for d in a.tensor.shape)
    return tuple(dict.fromkeys(v.name for d in dims for v in sorted(d.vars, key=lambda v: v.name)))


def cases_of(main: Func, sizes: Mapping[str, int], kinds: Sequence[str] = ("random", "boundary")) -> Iterator[Case]:
    """Calls with these sizes of dims; none where shapes would have no elements to speak of."""
    for kind in kinds:
        arrays = []
        for number, value in enumerate(main.args):
            shape = [int(d.evaluate(sizes)) for d in value.tensor.shape]
            arrays.append(_array(kind, value, shape, np.random.default_rng(1000 + number)))
        case = _case(main, kind, arrays)
        if case is not None:
            yield case


def integer_cases(main: Func, sizes: Mapping[str, int]) -> Iterator[Case]:
    """Calls of programs that take integers, of all that these can be and of small ones below 0: most programs that take
    ids or positions refuse them. What says sizes may be an axis of the only dim, too."""
    if any(map(_says_sizes, main.args)):
        yield from cases_of(main, sizes, ("zero",))
    kinds = {v.tensor.dtype.kind for v in main.args if not _says_sizes(v)}
    if kinds & {"int", "uint"}:
        yield from cases_of(main, sizes, ("negative", "extreme") if "int" in kinds else ("extreme",))


def recorded_cases(main: Func, feeds: Sequence[Feed]) -> list[Case]:
    """Calls that were recorded and that the program takes; others, of another program of the model, are left out."""
    names = main.attrs.get("inputs", tuple(a.name for a in main.args))
    found = []
    for feed in feeds:
        if set(names) <= set(feed):
            case = _case(main, "recorded", [np.asarray(feed[name]) for name in names])
            if case is not None:
                found.append(case)
    return found


def given_case(main: Func, arrays: Sequence[np.ndarray]) -> Case | None:
    """A call that a part of a program gets in one of the program; None where that is not what it takes."""
    return _case(main, "observed", arrays) if len(arrays) == len(main.args) else None


def _case(main: Func, kind: str, arrays: Sequence[np.ndarray]) -> Case | None:
    try:
        return Case(kind, tuple(arrays), bound_dims(main.args, arrays))
    except (TilewrightError, KeyError):
        return None


def refuse_call(case: Case, assumed: Sequence[Assumption]) -> None:
    """InputError for a call that the model refuses, as what its operators take for granted of sizes does not hold:
    interpreters compute something of most of them, and passes need not keep that."""
    for assumption in assumed:
        if all(v.name in case.env for v in assumption.holds.vars):
            try:
                holds = assumption.holds.evaluate(case.env)
            except ArithmeticError:
                holds = 0
            if not holds:
                raise InputError(assumption.message)


def _says_sizes(value: Value) -> bool:
    """Whether the elements of an input are sizes of tensors."""
    symbols, func = input_variables(value), getattr(value.owner, "parent", None)
    if symbols is None or not isinstance(func, Func):
        return False
    names = {v.name for v in symbols.flat}
    shapes = (v.type.shape for op in func.body.ops for v in op.results if isinstance(v.type, TensorType))
    return any(v.name in names for shape in shapes for d in shape for v in d.vars)


def _array(kind: str, value: Value, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    dtype = value.tensor.dtype.storage
    if value.tensor.dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(dtype)
    if value.tensor.dtype.kind in ("int", "uint"):
        if _says_sizes(value):
            return np.zeros(shape, dtype) if kind == "zero" else np.ones(shape, dtype)
        if kind == "extreme" and dtype.kind in "iu":
            least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
            return np.asarray(rng.integers(least, most, shape, dtype, endpoint=True))
        if kind == "negative" and value.tensor.dtype.kind == "int":
            return rng.integers(-MOST_ID, MOST_ID, shape).astype(dtype)
        low = 0 if value.tensor.dtype.kind == "uint" or dtype.itemsize > 1 else -MOST_ID
        if kind == "boundary":
            return np.resize(np.array([0, 1], dtype), shape)
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        high = MOST_ID if dtype.itemsize > 1 else int(limits.max) if limits is not None else MOST_ID
        return rng.integers(low, max(high, 1), shape).astype(dtype)
    numbers = np.array(EDGES) if kind == "boundary" else rng.standard_normal(min(prod(shape), MOST_DRAWN))
    return np.resize(numbers.astype(dtype), shape)
