"""Right and wrong shapes for one operator: each call is refused, or gives what the reference gives.

Native code runs between guard zones (tests/zones), so that a load or store beyond a buffer is a finding.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from tests.fuzz.registry import Tried
from tests.fuzz.shapes.subjects import Arrays, Dims, Subject, subjects
from tilewright.ir.diag import ModelError, TilewrightError, TypeRuleError, UnsupportedError
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.runtime.errors import ExecutionError, InputError

Shapes = dict[str, tuple[int, ...]]

CALLS = 16
"""Calls with other shapes for each program."""
MOST_ELEMENTS = 1 << 18
"""Of an input."""
ODD_INTEGERS = (-1, -2, 1 << 20, 1 << 31, (1 << 63) - 1, -(1 << 63))
SHORT_INTEGERS = (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2)
ODD_FLOATS = (np.nan, np.inf, -np.inf, 1e30, -1e30, -0.5, 1e9)
NOT_COMPARED = frozenset({
    "positions", "joined_rows",  # they leave elements of results out where those of two operands contradict each other
    # matrices whose columns repeat have no inverse or directions
    "inverse", "householder_factor", "orthogonal_columns", "symmetric_eigen",
    "onnx.Bernoulli", "onnx.Dropout", "onnx.Multinomial", "onnx.RandomNormalLike", "onnx.RandomUniformLike",
})  # fmt: skip
"""Operators whose results say nothing."""
REPEATING = frozenset({"onnx.Loop"})
"""Operators that do something as often as an element says, which may be for ever."""
TABLES = {"tree_ensemble": 1}
"""Operators whose operands from a number on are tables that a front end has made and checked."""
TOLERANCE = 2e-2
"""Of floats, in units of the largest one: kernels round otherwise than the reference, which is not what is sought."""


def fuzz(seed: int) -> Tried:
    """Compile one operator with sizes that come with the call, and call it with right and wrong ones."""
    rng = random.Random(seed)
    found = subjects()
    operator = rng.choice(sorted(found))
    subject = rng.choice(found[operator])()
    shapes = known_shapes(rng, subject.inputs)
    dims = declared_dims(rng, shapes)
    options = Options(
        numerics=rng.choice(("default", "strict")), verify=True, cache=False, compile_threads=1
    )
    note = f"{subject.name}: {dims}, numerics {options.numerics}"
    fits = all(shapes[name] == a.shape for name, a in subject.inputs.items())
    try:
        artifact = subject.compiled(dims, options)
    except (UnsupportedError, TypeRuleError, ValueError):
        return Counter({(operator, "not for all sizes"): 1})
    except ModelError as e:
        if not fits:
            return Counter({(operator, "not for all sizes"): 1})
        e.add_note(note)
        raise
    except Exception as e:
        e.add_note(note)
        raise
    model = Model(artifact, 1)
    tried: Tried = Counter()
    for call in range(CALLS):
        chosen = shapes if call == 0 else other_shapes(rng, shapes, dims)
        may_be_odd = () if call == 0 or operator in REPEATING else [*subject.inputs][: TABLES.get(operator)]
        arrays, is_odd = elements(rng, subject.inputs, chosen, may_be_odd)
        try:
            tried[operator, outcome(operator, subject, model, arrays, is_odd)] += 1
        except Exception as e:
            e.add_note(f"{note}\ncalled with {chosen}")
            raise
    return tried


def known_shapes(rng: random.Random, inputs: Arrays) -> Shapes:
    """The shapes of the sample, or sometimes others, so that sizes that are known may be wrong ones, too."""
    right = {name: a.shape for name, a in inputs.items()}
    if rng.random() < 0.7:
        return right
    return other_shapes(rng, right, {name: tuple(f"{name}_{k}" for k in range(len(s))) for name, s in right.items()})


def declared_dims(rng: random.Random, shapes: Shapes) -> Dims:
    """Names for all dims, or for some of them; equal sizes may have one name."""
    share, chance = rng.random() < 0.2, rng.choice((1.0, 1.0, 0.8, 0.5, 0.0))
    names: dict[int, str] = {}

    def dim(name: str, axis: int, size: int) -> int | str:
        if rng.random() >= chance:
            return size
        own = f"{name}_{axis}"
        return names.setdefault(size, own) if share else own

    return {name: tuple(dim(name, k, d) for k, d in enumerate(shape)) for name, shape in shapes.items()}


def other_shapes(rng: random.Random, shapes: Mapping[str, tuple[int, ...]], dims: Dims) -> Shapes:
    """Shapes in which one or a few of the dims that have names are others; all of one name are alike."""
    by_name: dict[str, int] = {}
    for name, shape in shapes.items():
        by_name |= {d: n for d, n in zip(dims[name], shape, strict=True) if isinstance(d, str)}
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not by_name:
            break
        changed, other = rng.choice(list(by_name)), rng.choice(list(by_name))
        n, m = by_name[changed], by_name[other]
        kind = rng.choice(("less", "more", "none", "one", "double", "half", "swap", "as", "many"))
        if kind == "swap":
            by_name[changed], by_name[other] = m, n
        else:
            by_name[changed] = {
                "less": max(n - 1, 0), "more": n + 1, "none": 0, "one": 1, "double": 2 * n, "half": n // 2, "as": m,
                "many": n + rng.randrange(2, 40),
            }[kind]  # fmt: skip
    return {
        name: tuple(by_name[d] if isinstance(d, str) else n for d, n in zip(dims[name], shape, strict=True))
        for name, shape in shapes.items()
    }


def elements(
    rng: random.Random, inputs: Arrays, shapes: Mapping[str, tuple[int, ...]], may_be_odd: Sequence[str]
) -> tuple[dict[str, np.ndarray], bool]:
    """Arrays of these shapes with the elements of the sample, as often as it takes, and whether some are odd ones, for
    which only memory is looked at."""
    made, is_odd = {}, False
    for name, a in inputs.items():
        size = int(np.prod(shapes[name]))
        if size > MOST_ELEMENTS:
            shapes = {**shapes, name: a.shape}
            size = a.size
        array = np.resize(a, shapes[name]) if a.size else np.zeros(shapes[name], a.dtype)
        array = np.ascontiguousarray(array).reshape(shapes[name])
        if name in may_be_odd and size and rng.random() < 0.15:
            is_odd |= array.dtype.kind != "b"
            array = spoilt(rng, array)
        made[name] = array
    return made, is_odd


def spoilt(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """With an element or two that are no positions, lengths or sizes."""
    flat = array.copy().reshape(-1)
    for _ in range(rng.choice((1, 2))):
        place = rng.randrange(flat.size)
        if array.dtype.kind in "iu" or array.dtype in SHORT_INTEGERS:
            bounds = ml_dtypes.iinfo(array.dtype)
            flat[place] = min(max(rng.choice((*ODD_INTEGERS, flat.size)), bounds.min), bounds.max)
        elif array.dtype.kind != "b":
            with np.errstate(all="ignore"):
                flat[place] = rng.choice(ODD_FLOATS)
    return flat.reshape(array.shape)


def outcome(operator: str, subject: Subject, model: Model, arrays: Arrays, is_odd: bool) -> str:
    """"right", "refused", or "only we refuse" (the reference gives something); AssertionError for anything else."""
    try:
        got = model(*[arrays[info.name] for info in model.inputs])
    except (InputError, ExecutionError) as e:
        refusal: TilewrightError | None = e
    else:
        refusal = None
    if is_odd or operator in NOT_COMPARED:
        return "odd elements"
    try:
        with np.errstate(all="ignore"):
            wanted = subject.reference(arrays)
    except UnsupportedError:
        return "not for these sizes"
    except TilewrightError as e:
        if refusal is not None:
            return "refused"
        if not any(np.size(r) for r in got):
            return "nothing computed"
        raise AssertionError(f"the reference refuses what the program accepts: {e}") from e
    if refusal is not None:
        return "only we refuse"
    compare(wanted, got)
    return "right"


def compare(wanted: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> None:
    assert len(wanted) == len(got)
    for k, (a, b) in enumerate(zip(wanted, got, strict=True)):
        if isinstance(a, list):
            compare(a, b)
            continue
        assert a.shape == b.shape, f"result {k} is {b.shape}, not {a.shape}"
        if a.dtype.kind in "OSU":
            assert np.array_equal(a, b)
            continue
        first, second = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (a, b))
        both = np.isfinite(first)
        assert np.array_equal(both, np.isfinite(second)), f"result {k} is not finite elsewhere:\n{b}\nnot\n{a}"
        size = np.abs(first[both]).max(initial=0) + 1e-6
        error = np.abs(first[both] - second[both]).max(initial=0)
        slack = 1 if a.dtype.kind in "iu" else 0  # sums that were rounded to integers
        assert error <= TOLERANCE * size + slack, f"result {k} is off by {error}:\n{b}\nnot\n{a}"
