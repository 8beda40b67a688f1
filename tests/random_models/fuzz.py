"""Random ONNX models: compiled, they give what ONNX Runtime gives, or are refused with a reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx

from tests.fuzz.registry import Tried
from tests.random_models.growth import Grown, Growth, Refused, run_onnxruntime
from tests.random_models.standard import UNCHECKED
from tests.random_models.steps import STEPS
from tilewright.api import compile_artifact
from tilewright.ir.diag import ExecutionError, InputError, TilewrightError, UnsupportedError
from tilewright.options import Options
from tilewright.runtime import Artifact, Model

NODES = (1, 2, 4, 8, 12, 16)
OTHER_SIZES = (0, 1, 2, 3, 5, 8, 13, 40)
TAKEN_FOR_GRANTED = "it must be that"
"""In the message for inputs whose symbolic dims are not as the model has them combined."""
TOLERANCE_OF_OTHER_SIZES = 2e-3


def grown(seed: int) -> tuple[Growth, Tried]:
    """A model, and which steps were taken and refused."""
    growth = Growth(seed)
    tried: Tried = Counter()
    weights = [weight for _, weight in STEPS.values()]
    wanted = growth.random.choice(NODES)
    for _ in range(6 * wanted):
        if len(growth.nodes) >= wanted:
            break
        (name,) = growth.random.choices(list(STEPS), weights)
        try:
            STEPS[name][0](growth)
            tried[name, "added"] += 1
        except Refused:
            tried[name, "left out"] += 1
    return growth, tried


OUT_OF_RANGE = "an index is out of range"
EXPLAINED = {
    ("name an axis twice",): "an axis named twice",  # which the standard forbids, and ONNX Runtime reduces once
    ("TfIdfVectorizer has", "indexes for"): "n-grams and their columns of different number",
    ("must be one number, it is",): "several numbers",  # of which the reference takes the first
    ("Resize: the region is",): "a region of another rank",  # which ONNX Runtime does not check,
    ("neither are equal", "SkipLayerNormalization"): "operands of other batches",  # nor these
    ("neither are equal", "SkipSimplifiedLayerNormalization"): "operands of other batches",
    ("a Fourier transform of 0 elements",): "the inverse of a single bin",  # which it takes for that of none
    ("rotary_embedding_dim", "contradicts"): "a cache of another width",  # of which it reads other rows
    ("except for the concatenation axis must match",): "empty tensors of other sizes",  # whose elements it makes up
}
"""Texts of errors for models that ONNX Runtime runs and that are not right."""

MOST_OTHER_ELEMENTS = 1 << 20
"""Of an input at other sizes."""


def fuzz(seed: int) -> Tried:
    """Compile a random model and run it with one and with two threads, and where its sizes are symbolic with others."""
    growth, tried = grown(seed)
    results = growth.results()
    if not results:
        return tried
    model = growth.model(results)
    try:
        artifact = compile_artifact(model, options=options(seed))
    except UnsupportedError:
        tried["model", "refused"] += 1
        return tried
    except TilewrightError as e:
        if reason := explained(e):
            tried["model", reason] += 1
            return tried
        e.add_note(described(model))
        raise
    except Exception as e:
        e.add_note(described(model))
        raise
    tried["model", "compiled"] += 1
    tried += Counter({(op, "compiled"): count for op, count in growth.applied.items()})
    try:
        tried += run(growth, model, artifact, results)
    except (InputError, ExecutionError) as e:
        reason = explained(e) or ("other sizes taken for granted" if TAKEN_FOR_GRANTED in str(e) else "")
        if not reason:
            e.add_note(described(model))
            raise
        tried["model", reason] += 1
    except Exception as e:
        e.add_note(described(model))
        raise
    return tried


def explained(error: Exception) -> str:
    """Why a model is refused that ONNX Runtime runs; "" where nothing explains it."""
    found = (reason for texts, reason in EXPLAINED.items() if all(text in str(error) for text in texts))
    return next(found, "")


def options(seed: int) -> Options:
    return Options(
        numerics="strict" if seed % 8 == 0 else "default", verify=True, cache=False, compile_threads=1
    )


def run(growth: Growth, model: onnx.ModelProto, artifact: Artifact, results: Sequence[Grown]) -> Tried:
    """Compare what the compiled model gives; counts of what was."""
    tried: Tried = Counter()
    arrays = growth.inputs.values()
    one = Model(artifact, 1)
    found = one(*arrays)
    compare(results, found)
    for a, b in zip(found, Model(artifact, 2)(*arrays), strict=True):
        assert np.array_equal(a, b), "threads change the bits"
    if growth.symbolic and growth.is_continuous:
        tried["other sizes", with_other_sizes(growth, model, one, results)] += 1
    return tried


def compare(results: Sequence[Grown], found: Sequence[np.ndarray]) -> None:
    assert len(results) == len(found)
    for wanted, got in zip(results, found, strict=True):
        check(wanted.name, got, wanted.array, wanted.wide, wanted.tolerance, wanted.slack)


def check(
    name: str, got: np.ndarray, wanted: np.ndarray, wide: np.ndarray | None, tolerance: float, slack: int = 0
) -> None:
    assert got.dtype == wanted.dtype, f"{name} is {got.dtype}, not {wanted.dtype}"
    assert got.shape == wanted.shape, f"{name} has the shape {got.shape}, not {wanted.shape}"
    if slack and wanted.dtype.kind in "iu":
        off = np.abs(got.astype(np.int64) - wanted.astype(np.int64))
        assert off.max(initial=0) <= slack, f"{name} is\n{got}\nnot\n{wanted}"
    elif wanted.dtype.kind != "f":
        assert np.array_equal(got, wanted), f"{name} is\n{got}\nnot\n{wanted}"
    elif wanted.size:
        best = wanted if wide is None else wide
        error = float(np.abs(got.astype(np.float64) - best).max())
        assert error <= tolerance, (
            f"{name} is off by {error:g}, allowed are {tolerance:g}:\n{got}\nnot\n{wanted}"
        )


def with_other_sizes(
    growth: Growth, model: onnx.ModelProto, compiled: Callable[..., Sequence[np.ndarray]], results: Sequence[Grown]
) -> str:
    """Run the model with other values of its symbolic dims, if ONNX Runtime can."""
    sizes: dict[str, int] = {}
    arrays = {}
    for name in growth.inputs:
        shape = [
            d
            if isinstance(d, int)
            else sizes.setdefault(d, max(growth.least_size, growth.random.choice(OTHER_SIZES)))
            for d in growth.dims[name]
        ]
        if math.prod(shape) > MOST_OTHER_ELEMENTS:
            return "too large"
        arrays[name] = growth.fed_again(name, shape)
    if not sizes:
        return "none"
    try:
        wanted = run_onnxruntime(model, arrays)
    except Exception:
        return "not possible"
    if not all(is_tame(a) for a in wanted):
        return "not tame"
    try:
        found = compiled(*arrays.values())
    except ExecutionError as e:
        if OUT_OF_RANGE in str(e) and any(node.op_type in UNCHECKED for node in growth.nodes):
            return "an index out of range"  # which ONNX Runtime does not check
        raise
    for result, got, want in zip(results, found, wanted, strict=True):
        largest = float(np.abs(want.astype(np.float64)).max()) if want.size else 0.0
        share = max((10 if want.dtype == np.float16 else 1) * TOLERANCE_OF_OTHER_SIZES, result.tolerance_share)
        check(f"{result.name} for {sizes}", got, want, None, share * max(1.0, largest), result.slack)
    return "compared"


def is_tame(array: np.ndarray) -> bool:
    return array.dtype.kind == "b" or bool((np.abs(array.astype(np.float64)) < 1e4).all())


def described(model: onnx.ModelProto) -> str:
    """The model as a text that can be read in a report."""
    lines = [f"opset {model.opset_import[0].version}"]
    for value in model.graph.input:
        lines.append(f"input {value.name}: {type_of(value)}")
    for weight in model.graph.initializer:
        lines.append(f"constant {weight.name}: {onnx.numpy_helper.to_array(weight).dtype}{list(weight.dims)}")
    lines += [onnx.printer.to_text(node).strip() for node in model.graph.node]
    lines.append("outputs " + ", ".join(value.name for value in model.graph.output))
    return "\n".join(lines)


def type_of(value: onnx.ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    dims: Mapping[int, str | int] = dict(enumerate(d.dim_param or d.dim_value for d in tensor.shape.dim))
    return f"{onnx.TensorProto.DataType.Name(tensor.elem_type)}[{', '.join(map(str, dims.values()))}]"
