"""What `numerics` promises of a whole model: denormal numbers, and the modes of the calling thread."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright

DENORMAL = np.float32(2.0**-130)
TINY = np.float32(2.0**-126)
"""The smallest normal number."""
SIZE = 1 << 18  # enough work for two threads


def _scale() -> onnx.ModelProto:
    """y = 2 x."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE]) for name in "xy")
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "scale", [x], [y], [two])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("numerics", "expected"), [("default", 0.0), ("strict", 2.0**-129)])
def test_denormals_count_as_zero_unless_strict(numerics: str, expected: float, threads: int) -> None:
    model = tilewright.compile(_scale(), numerics=numerics, threads=threads, cache=False)
    x = np.full(SIZE, DENORMAL)
    x[:: SIZE // 8] = 1.0
    (y,) = model(x)
    assert set(np.unique(y)) == {np.float32(expected), np.float32(2.0)}


def test_the_caller_keeps_its_modes() -> None:
    model = tilewright.compile(_scale(), cache=False)
    model(np.ones(SIZE, np.float32))
    assert np.full(8, DENORMAL).sum() == np.float32(2.0**-127)


def test_zeros_stay_zeros_when_normalised() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    node = helper.make_node("LpNormalization", ["x"], ["y"], axis=1, p=2)
    graph = helper.make_graph([node], "norm", [x], [y])
    model = tilewright.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), cache=False
    )
    (found,) = model(np.array([[0, 0, 0], [3, 0, 4]], np.float32))
    np.testing.assert_allclose(found, [[0, 0, 0], [0.6, 0, 0.8]], rtol=1e-6)


MIXED = np.array([DENORMAL, -DENORMAL, 0, 1, -1, 2 * DENORMAL, DENORMAL, -2, 3 * DENORMAL, 0.5], np.float32)
ZEROS, ONES, SMALL = np.zeros(10, np.float32), np.ones(10, np.float32), np.full(10, TINY)
WIDE = np.array([2.0**-1030, -(2.0**-1030), 0, 1, -1])
UNARY = (
    "Sign", "Floor", "Ceil", "Round", "Relu", "Sqrt", "Reciprocal", "Log", "Exp", "Sin", "Tan", "Asin", "Atan", "Sinh",
    "Asinh", "Atanh", "Tanh", "Erf", "Softsign",
)  # fmt: skip
COMPARISONS = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
COMPUTED: list[tuple[str, list[np.ndarray], dict[str, object]]] = [
    *((op, [MIXED], {}) for op in UNARY),
    *((op, [MIXED, other], {}) for op in ("Sub", "Mul", "Div", "Max", "Min") for other in (SMALL * 2, ONES / 2)),
    *((op, [MIXED, ZEROS], {}) for op in COMPARISONS),
    ("Mul", [SMALL, ONES / 2], {}),
    ("Sub", [SMALL, SMALL * 1.5], {}),
    ("Mod", [MIXED, ONES], {"fmod": 1}),
    ("Mod", [SMALL * 1.25, SMALL], {"fmod": 1}),
    ("Clip", [MIXED, np.float32(0.0), np.float32(1.0)], {}),
    ("Cast", [MIXED], {"to": TensorProto.BOOL}),
    ("Cast", [MIXED], {"to": TensorProto.DOUBLE}),
    ("Cast", [WIDE], {"to": TensorProto.FLOAT}),
    ("Cast", [np.array([2.0**-130])], {"to": TensorProto.FLOAT}),
    ("Sign", [WIDE], {}),
    ("Sin", [WIDE], {}),
    ("ReduceMin", [np.abs(MIXED)], {}),
    ("ReduceMax", [-np.abs(MIXED)], {}),
    ("ArgMax", [np.array([0, DENORMAL, 2 * DENORMAL], np.float32)], {}),
    ("ArgMin", [np.array([DENORMAL, 0, -DENORMAL], np.float32)], {}),
    ("Hardmax", [np.array([0, DENORMAL, 2 * DENORMAL], np.float32)], {}),
    ("ThresholdedRelu", [MIXED], {"alpha": 0.0}),
    ("Shrink", [MIXED], {"lambd": 0.0}),
]
MOVED: list[tuple[str, list[np.ndarray], dict[str, object]]] = [
    ("Identity", [MIXED], {}),
    ("Neg", [MIXED], {}),
    ("Abs", [MIXED], {}),
    ("Where", [np.arange(10) % 2 == 0, MIXED, ONES], {}),
    ("Concat", [MIXED, MIXED], {"axis": 0}),
    ("Sign", [np.array([6e-8, -6e-8, 0, 1], np.float16)], {}),
    ("Mul", [np.array([6e-8, -6e-8, 0, 1], np.float16), np.ones(4, np.float16)], {}),
]


def compute(op: str, inputs: list[np.ndarray], attrs: dict[str, object], how: str) -> np.ndarray:
    """The result of one node: of inputs (default or strict numerics), or "folded" from constants."""
    names = [f"i{k}" for k in range(len(inputs))]
    node = helper.make_node(op, names, ["y"], **attrs)
    result = onnx.ValueInfoProto(name="y")
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, inputs, strict=True)
    ]
    constants = [onnx.numpy_helper.from_array(*pair) for pair in zip(inputs, names, strict=True)]
    given = ([], constants) if how == "folded" else (infos, [])
    graph = helper.make_graph([node], "g", given[0], [result], given[1])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compiled = tilewright.compile(model, numerics="strict" if how == "strict" else "default", cache=False)
    assert how != "folded" or [call.kernel for call in compiled.report().calls] == ["k0_copy"]
    (y,) = compiled(*([] if how == "folded" else inputs))
    return y


def flushed(array: np.ndarray) -> np.ndarray:
    """Zeros of the same sign for denormal numbers."""
    if array.dtype.kind != "f" or array.dtype == np.float16:
        return array
    small = np.abs(array) < np.finfo(array.dtype).smallest_normal
    return np.where(small, np.copysign(array.dtype.type(0), array), array)


def reference(op: str, inputs: list[np.ndarray], attrs: dict[str, object]) -> np.ndarray:
    """What the specification says, for inputs as they are."""
    node = helper.make_node(op, [f"i{k}" for k in range(len(inputs))], ["y"], **attrs)
    evaluator = ReferenceEvaluator(node, opsets={"": 17})
    with np.errstate(all="ignore"):
        (y,) = evaluator.run(None, {f"i{k}": array for k, array in enumerate(inputs)})
    return np.asarray(y)


def name_of(case: tuple[str, list[np.ndarray], dict[str, object]]) -> str:
    return f"{case[0]}-{len(case[1])}-{case[1][0].dtype}"


@pytest.mark.sweep
@pytest.mark.parametrize("case", COMPUTED, ids=name_of)
@pytest.mark.parametrize("how", ["default", "folded"])
def test_what_computes_takes_denormals_as_zero_and_gives_zero(
    case: tuple[str, list[np.ndarray], dict[str, object]], how: str
) -> None:
    op, inputs, attrs = case
    expected = flushed(reference(op, [flushed(array) for array in inputs], attrs))
    np.testing.assert_allclose(compute(op, inputs, attrs, how), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("case", COMPUTED, ids=name_of)
def test_strict_numerics_compute_with_denormals(
    case: tuple[str, list[np.ndarray], dict[str, object]],
) -> None:
    op, inputs, attrs = case
    expected = reference(op, inputs, attrs)
    np.testing.assert_allclose(compute(op, inputs, attrs, "strict"), expected, rtol=1e-6, atol=2.0**-149)


@pytest.mark.parametrize("case", MOVED, ids=name_of)
@pytest.mark.parametrize("how", ["default", "folded", "strict"])
def test_what_moves_numbers_keeps_their_bits(
    case: tuple[str, list[np.ndarray], dict[str, object]], how: str
) -> None:
    op, inputs, attrs = case
    np.testing.assert_array_equal(compute(op, inputs, attrs, how), reference(op, inputs, attrs))


def test_the_report_says_what_denormals_count_as() -> None:
    said = {
        how: tilewright.compile(_scale(), numerics=how, cache=False).report() for how in ("default", "strict")
    }
    assert said["default"].numerics == "default: denormal numbers count as zero"
    assert "numerics: strict: denormal numbers as the calling thread's modes say" in str(said["strict"])
