"""Every operator in every element type that the standard allows: cases of the onnx package, their tensors converted.

A case of an operator gives its operands; those of one type constraint are converted to each element type that the
constraint names. What the compiled model gives is compared with ONNX's evaluator: for floats with that of the same
numbers in float32 or float64, for others with that of the element type itself. `python -m tests.element_types` lists
what does not agree.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tests.conformance import Case, cases
from tilewright.ir.diag import TilewrightError, UnsupportedError
from tilewright.options import Options

OPTIONS = Options(cache=False, threads=1)
ERRORS: Mapping[str, float] = {
    "float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2, "float8_e4m3fn": 0.13, "float8_e5m2": 0.26,
    "float8_e4m3fnuz": 0.13, "float8_e5m2fnuz": 0.26, "float4_e2m1fn": 0.5,
    "float6_e2m3fn": 0.26, "float6_e3m2fn": 0.26, "float8_e8m0fnu": 1.0,
}  # fmt: skip
"""How far elements may be off, as a share of the greatest."""


_COMPLEX = "complex numbers are no element type here; the transforms of signals have pairs of numbers"
_ALONE = "what the operator holds is of a type of its own, which does not change with the operands'"
_IN_F32 = "the evaluator computes in float32; in NumPy's float64 ours agrees to 1e-15"
_TRUNCATED = "the evaluator rounds its sums or leaves out weights; ours are those of floats, without their fractions"
_ZERO = "zero points that are no zero, which the evaluators leave out"
_GENERATOR = "the numbers of another generator"
EXPLAINED: Mapping[str, str] = {
    "complex64": _COMPLEX, "complex128": _COMPLEX,
    "Attention": "the function body of the standard multiplies matrices of different types, or adds masks of integers",
    "Bernoulli": _GENERATOR, "Dropout": _GENERATOR,
    "BitCast": "the type must be as wide as that of the result, which the case fixes",
    "CenterCropPad": "the function body of the standard takes the greater of integers of different types",
    "DequantizeLinear": _ZERO, "QuantizeLinear": _ZERO, "QLinearMatMul": _ZERO,
    "GridSample": _TRUNCATED, "Resize": _TRUNCATED,
    "LabelEncoder": _ALONE, "Loop": _ALONE, "Scan": _ALONE, "TreeEnsemble": _ALONE,
    "OptionalGetElement": "the case declares no rank", "OptionalHasElement": "the case declares no rank",
    "SoftmaxCrossEntropyLoss": "the function body of the standard uses an operator that has no bfloat16",
    **dict.fromkeys(
        ("Adam", "AffineGrid", "BatchNormalization", "DeformConv", "Erf", "Gelu", "GroupNormalization", "GRU",
         "HardSwish", "LSTM", "RNN", "RoiAlign"), _IN_F32
    ),
}  # fmt: skip
"""Why a variant may not agree, by element type or by operator; those of operators were looked into one by one."""


@dataclass(frozen=True)
class Variant:
    """A case whose operands of the type constraint `letter` are converted to an element type of ONNX."""

    case: Case
    letter: str
    type: str

    def __str__(self) -> str:
        version = schema_of(self.case).since_version
        return f"{self.case.operator}-{version} {self.letter}={self.type}"


def schema_of(case: Case) -> onnx.defs.OpSchema:
    (node,) = case.model.graph.node
    versions = {i.domain: i.version for i in case.model.opset_import}
    return onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)


def variants() -> Iterator[Variant]:
    """Of each operator the case with the most operands, in all element types but strings."""
    chosen: dict[tuple[str, int], Case] = {}
    for case in cases("node"):
        if len(case.model.graph.node) != 1 or not all(isinstance(x, np.ndarray | np.generic) for x in case.sets[0][0]):
            continue
        key = (case.operator, schema_of(case).since_version)
        if key not in chosen or len(case.sets[0][0]) > len(chosen[key].sets[0][0]):
            chosen[key] = case
    for case in chosen.values():
        schema = schema_of(case)
        for constraint in schema.type_constraints:
            if any(formal.type_str == constraint.type_param_str for formal, _ in operands(case)):
                for text in sorted(constraint.allowed_type_strs):
                    if text.startswith("tensor(") and text != "tensor(string)":
                        yield Variant(case, constraint.type_param_str, text[7:-1])


def operands(case: Case) -> list[tuple[Any, str]]:
    """The formal parameter of each operand that is given, and its name."""
    (node,), formals = case.model.graph.node, schema_of(case).inputs
    return [(formals[min(k, len(formals) - 1)], name) for k, name in enumerate(node.input) if name]


def numpy_type(type: str) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(type.upper()))


def converted(variant: Variant, dtype: np.dtype) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """The model and its inputs, those of the constraint in a dtype; numbers are those that the element type has."""
    model, target = onnx.ModelProto(), numpy_type(variant.type)
    model.CopyFrom(variant.case.model)
    names = {name for formal, name in operands(variant.case) if formal.type_str == variant.letter}
    arrays = []
    for info, given in zip(model.graph.input, variant.case.sets[0][0], strict=True):
        array = np.asarray(given)
        if info.name in names:
            array = as_type(array, target).astype(dtype)
            info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(dtype)
        arrays.append(array)
    for output in model.graph.output:
        output.ClearField("type")
    return model, arrays


def as_type(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if x.dtype == dtype:
        return x
    if dtype.kind == "b":
        return x > 0
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        whole = np.round(x.astype(np.float64) * (3 if x.dtype.kind not in "iub" else 1))
        whole = np.abs(whole) if dtype.kind == "u" else whole
        return np.clip(whole, max(limits.min, -(2**31)), min(limits.max, 2**31)).astype(dtype)
    return x.astype(np.float32).astype(dtype) if x.dtype.kind not in "biuf" else x.astype(dtype)


def expected(variant: Variant) -> Sequence[Any] | None:
    """What evaluators give; None where none has the operator in that type."""
    dtype = numpy_type(variant.type)
    is_float = variant.type in ("double", "float", "float16", "bfloat16")
    wide = np.dtype(np.float64 if dtype == np.float64 else np.float32) if is_float else dtype
    model, arrays = converted(variant, wide)
    given = dict(zip((i.name for i in model.graph.input), arrays, strict=True))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return list(ReferenceEvaluator(model).run(None, given))
        except Exception:
            pass
        try:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
            return list(session.run(None, given))
        except Exception:
            return None


def outcome(variant: Variant) -> tuple[str, str]:
    """ "agrees", "refused", "fails", "differs" or "unknown", and why."""
    model, arrays = converted(variant, numpy_type(variant.type))
    try:
        run = tilewright.compile(model.SerializeToString(), options=OPTIONS)
        named = dict(zip((i.name for i in model.graph.input), arrays, strict=True))
        found = list(run(*[named[i.name] for i in run.inputs]))
    except UnsupportedError as e:
        return "refused", e.problems[0].reason if e.problems else e.what
    except TilewrightError as e:
        return "fails", e.what
    wanted = expected(variant)
    if wanted is None:
        return "unknown", "no evaluator has it"
    for ours, theirs in zip(found, wanted, strict=False):
        if why := difference(ours, theirs, variant.type):
            return "differs", why
    return "agrees", ""


def difference(ours: Any, theirs: Any, type: str) -> str:
    """How results differ; "" where they are close enough for the element type."""
    if not isinstance(ours, np.ndarray):
        return ""
    a, b = ours, np.asarray(theirs)
    if a.shape != b.shape:
        return f"shape {a.shape}, not {b.shape}"
    if a.dtype == object or a.size == 0:
        return ""
    with np.errstate(all="ignore"):
        if a.dtype.name not in ERRORS:
            off = np.abs(a.astype(np.float64) - b.astype(np.float64))
            return f"{np.count_nonzero(off)} of {a.size} differ, by {off.max()}" if off.any() else ""
        b = b.astype(a.dtype).astype(np.float64)
        wide = a.astype(np.float64)
        finite = np.isfinite(b)
        if not np.array_equal(np.isnan(wide), np.isnan(b)) or not np.array_equal(np.isfinite(wide), finite):
            return "NaN or infinity at other places"
        allowed = max(ERRORS[a.dtype.name], ERRORS.get(numpy_type(type).name, 0))
        off = np.abs(wide - b)[finite] / np.abs(b[finite]).max(initial=1e-9) if finite.any() else np.zeros(1)
        return f"by {off.max(initial=0):.2g} of the greatest" if off.max(initial=0) > allowed else ""


def is_explained(variant: Variant) -> bool:
    return variant.type in EXPLAINED or variant.case.operator in EXPLAINED


def main() -> None:
    count: Counter[str] = Counter()
    for variant in variants():
        if sys.argv[1:] and variant.case.operator not in sys.argv[1:]:
            continue
        try:
            status, why = outcome(variant)
        except Exception as e:
            status, why = "raises", f"{type(e).__name__}: {e}"[:200]
        if status in ("differs", "refused", "fails", "raises") and is_explained(variant):
            status = "explained"
        count[status] += 1
        if status not in ("agrees", "explained"):
            print(f"{variant}: {status}: {' '.join(why.split())[:160]}", flush=True)
    print(dict(count))


if __name__ == "__main__":
    main()
