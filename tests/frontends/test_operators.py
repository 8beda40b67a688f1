"""One-node models of every family against the evaluator of the ONNX package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright
from tests.frontends.helpers import check, imported, node_model, reference
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import ModelError, UnsupportedError

RNG = np.random.default_rng(7)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def ints(high: int, *shape: int, dtype: type = np.int64) -> np.ndarray:
    return RNG.integers(0, high, shape).astype(dtype)


class Case(NamedTuple):
    op: str
    arrays: Sequence[np.ndarray | None]
    attrs: Mapping[str, Any] = {}
    known: Sequence[int] = ()
    outputs: int = 1
    opset: int = 23


CASES = [
    Case("Add", [f32(2, 3, 4), f32(3, 1)]),
    Case("Sum", [f32(2, 3), f32(3), f32(2, 1)]),
    Case("Mean", [f32(2, 3), f32(3), f32(2, 1)]),
    Case("Max", [f32(2, 3), f32(3), f32(1, 1)]),
    Case("Min", [ints(9, 4), ints(9, 4)]),
    Case("Mod", [i64(-7, 7, -3), i64(3, -3, 2)]),
    Case("Mod", [f32(5), f32(5)], {"fmod": 1}),
    Case("Pow", [np.abs(f32(4)), i64(0, 1, 2, 3)]),
    Case("BitShift", [ints(99, 4, dtype=np.uint8), ints(7, 4, dtype=np.uint8)], {"direction": "LEFT"}),
    Case("Cast", [f32(6) * 9], {"to": 7}),
    Case("Where", [f32(2, 3) > 0, f32(2, 3), f32(3)]),
    Case("Clip", [f32(9), np.float32(-0.3), np.float32(0.4)], {}, (1, 2)),
    Case("Clip", [f32(9), None, np.float32(0.4)]),
    Case("Clip", [f32(9)], {"min": -0.2, "max": 0.5}, opset=7),
    Case("IsInf", [np.array([1, np.inf, -np.inf], np.float32)], {"detect_negative": 0}),
    Case("PRelu", [f32(2, 3, 4), f32(3, 1)]),
    Case("Gelu", [f32(7)], {"approximate": "tanh"}),
    Case("Dropout", [f32(3, 4)], {}, (), 2),
    Case("Reshape", [f32(2, 3, 4), i64(0, -1)], {}, (1,)),
    Case("Reshape", [f32(0, 3), i64(3, 0)], {"allowzero": 1}, (1,)),
    Case("Reshape", [f32(2, 3, 4), i64(4, -1)]),
    Case("Reshape", [f32(2, 3, 4), i64(0, 0, 2, 2)]),
    Case("Expand", [f32(3, 1), i64(2, 1, 4)], {}, (1,)),
    Case("Tile", [f32(2, 3), i64(2, 3)], {}, (1,)),
    Case("Squeeze", [f32(1, 3, 1), i64(0, -1)], {}, (1,)),
    Case("Squeeze", [f32(1, 3, 1)], {"axes": [0]}, opset=11),
    Case("Unsqueeze", [f32(3), i64(0, -1)], {}, (1,)),
    Case("Flatten", [f32(2, 3, 4)], {"axis": -1}),
    Case("Transpose", [f32(2, 3, 4)], {"perm": [2, 0, 1]}),
    Case("Transpose", [f32(2, 3, 4)]),
    Case("DepthToSpace", [f32(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    Case("DepthToSpace", [f32(1, 8, 2, 3)], {"blocksize": 2}),
    Case("SpaceToDepth", [f32(1, 2, 4, 6)], {"blocksize": 2}),
    Case("Concat", [f32(2, 3), f32(2, 1)], {"axis": -1}),
    Case("Slice", [f32(5, 6), i64(4, 1), i64(0, 2**62), i64(0, 1), i64(-2, 2)], {}, (1, 2, 3, 4)),
    Case("Slice", [f32(5, 6), i64(-3), i64(-1)], {}, (1, 2)),
    Case("Slice", [f32(5, 6), i64(1), i64(4)]),
    Case("Split", [f32(5, 2), i64(2, 3)], {}, (1,), 2),
    Case("Split", [f32(5, 2)], {"num_outputs": 3}, (), 3),
    Case("Pad", [f32(2, 3), i64(0, 1, 2, 1), np.float32(5)], {}, (1, 2)),
    Case("Pad", [f32(4, 4), i64(1, 2, 1, 0)], {"mode": "reflect"}, (1,)),
    Case("Trilu", [f32(4, 4), np.int64(1)], {"upper": 0}, (1,)),
    Case("Trilu", [f32(2, 3, 4)]),
    Case("ReduceSum", [f32(2, 3, 4), i64(0, -1)], {"keepdims": 0}, (1,)),
    Case("ReduceSum", [f32(2, 3)], {"noop_with_empty_axes": 1}),
    Case("ReduceMean", [f32(2, 3, 4)], {"axes": [1]}, opset=13),
    Case("ReduceLogSumExp", [f32(2, 3) * 50, i64(1)], {}, (1,)),
    Case("ReduceL2", [f32(2, 3, 4), i64(2)], {}, (1,)),
    Case("ReduceMax", [ints(9, 3, 4), i64(0)], {}, (1,)),
    Case("ArgMax", [ints(3, 4, 5)], {"axis": 1, "select_last_index": 1}),
    Case("ArgMin", [f32(4, 5)], {"axis": 0, "keepdims": 0}),
    Case("MatMul", [f32(3), f32(3)]),
    Case("MatMul", [f32(3), f32(2, 3, 4)]),
    Case("MatMul", [f32(2, 1, 3, 4), f32(5, 4, 2)]),
    Case("Gemm", [f32(3, 2), f32(4, 3), f32(4)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Einsum", [f32(2, 3, 4), f32(2, 4, 5)], {"equation": "bij,bjk->bik"}),
    Case("Einsum", [f32(3, 3)], {"equation": "ii"}),
    Case("Einsum", [f32(2, 3, 4), f32(4, 2)], {"equation": "...j,jk"}),
    Case(
        "Conv", [f32(1, 4, 7, 8), f32(6, 2, 3, 3), f32(6)],
        {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]},
    ),
    Case("Conv", [f32(1, 2, 9), f32(3, 2, 3)], {"auto_pad": "SAME_LOWER", "strides": [2]}),
    Case("ConvTranspose", [f32(1, 2, 3, 3), f32(2, 3, 3, 3)], {"strides": [2, 2], "output_padding": [1, 1]}),
    Case("MaxPool", [f32(1, 2, 7, 7)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Case("MaxPool", [f32(1, 1, 5, 5)], {"kernel_shape": [2, 2], "strides": [2, 2]}, (), 2),
    Case("AveragePool", [f32(1, 2, 6, 6)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    Case("AveragePool", [f32(1, 2, 6, 6)], {"kernel_shape": [3, 3], "pads": [1] * 4, "count_include_pad": 1}),
    Case(
        "AveragePool",
        [f32(1, 2, 6, 7)],
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1, "ceil_mode": 1},
    ),
    Case("GlobalAveragePool", [f32(2, 3, 4, 5)]),
    Case("GlobalMaxPool", [f32(2, 3, 4, 2)]),
    Case("BatchNormalization", [f32(2, 3, 4), f32(3), f32(3), f32(3), np.abs(f32(3))]),
    Case("InstanceNormalization", [f32(2, 3, 4), f32(3), f32(3)]),
    Case("GroupNormalization", [f32(2, 4, 3), f32(4), f32(4)], {"num_groups": 2}),
    Case("LayerNormalization", [f32(2, 3, 4), f32(3, 4), f32(3, 4)], {"axis": 1}, (), 3),
    Case("RMSNormalization", [f32(2, 3, 4), f32(4)]),
    Case("LpNormalization", [f32(3, 4)], {"axis": 0}),
    Case("Softmax", [f32(2, 3, 4)], {"axis": 1}),
    Case("LogSoftmax", [f32(2, 3)]),
    Case("Hardmax", [ints(3, 3, 4).astype(np.float32)]),
    Case("Gather", [f32(4, 5), ints(4, 2, 3) - 2], {"axis": 0}),
    Case("GatherElements", [f32(3, 4), ints(3, 2, 4)], {"axis": 0}),
    Case("GatherND", [f32(3, 4, 2), ints(3, 5, 2)]),
    Case("ScatterElements", [f32(3, 4), ints(3, 1, 4), f32(1, 4)], {"axis": 0}),
    Case("ScatterND", [f32(5, 2), i64(3, 1).reshape(2, 1), f32(2, 2)]),
    Case("OneHot", [i64(0, 2, -1), np.int64(4), f32(2)], {"axis": 0}, (1,)),
    Case("ReverseSequence", [f32(4, 3), i64(2, 4, 1)], {"batch_axis": 1, "time_axis": 0}),
    Case("TopK", [f32(3, 6), i64(4)], {"axis": 1}, (1,), 2),
    Case(
        "LSTM", [f32(4, 2, 3), f32(2, 20, 3), f32(2, 20, 5), f32(2, 40)],
        {"hidden_size": 5, "direction": "bidirectional"}, (), 3,
    ),
    Case("GRU", [f32(4, 2, 3), f32(1, 15, 3), f32(1, 15, 5), f32(1, 30)], {"hidden_size": 5}, (), 2),
    Case(
        "GRU", [f32(4, 2, 3), f32(1, 15, 3), f32(1, 15, 5), f32(1, 30)],
        {"hidden_size": 5, "linear_before_reset": 1}, (), 2,
    ),
    Case("RNN", [f32(4, 2, 3), f32(1, 5, 3), f32(1, 5, 5)], {"hidden_size": 5}, (), 2),
    Case("TopK", [f32(6), i64(3)], {"largest": 0}, (1,), 2),
    Case("CumSum", [f32(3, 4), np.int64(1)], {"exclusive": 1, "reverse": 1}, (1,)),
    Case("Range", [np.int64(3), np.int64(12), np.int64(4)], {}, (2,)),
    Case("Range", [np.float32(0.5), np.float32(2.5), np.float32(0.5)], {}, (0, 1, 2)),
    Case("ConstantOfShape", [i64(2, 3)]),
    Case("EyeLike", [f32(3, 4)], {"k": 1}),
    Case("Shape", [f32(2, 3, 4)], {"start": -2}),
    Case("Size", [f32(2, 3)]),
    Case("HannWindow", [np.int64(9)], {}, (0,)),
    Case("QuantizeLinear", [f32(2, 3) * 9, np.float32(0.1), np.uint8(128)]),
    Case("DequantizeLinear", [ints(99, 2, 3, dtype=np.int8), f32(3), np.ones(3, np.int8)], {"axis": 1}),
    Case("DynamicQuantizeLinear", [f32(3, 4)], {}, (), 3),
    Case("MatMulInteger", [ints(99, 3, 4, dtype=np.uint8), ints(9, 4, 2, dtype=np.uint8), np.uint8(7)]),
    Case("Resize", [f32(1, 1, 3, 4), None, np.array([1, 1, 2, 2], np.float32)], {}, (2,)),
    Case("Resize", [f32(1, 1, 4, 4), None, None, i64(1, 1, 7, 3)], {"mode": "linear"}, (3,)),
    Case("Resize", [f32(1, 1, 4, 5), None, None, i64(1, 1, 8, 9)], {"mode": "cubic"}, (3,)),
    Case(
        "Resize", [f32(1, 1, 6, 6), None, None, i64(1, 1, 3, 4)],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, (3,),
    ),
    Case("GridSample", [f32(1, 2, 4, 5), np.tanh(f32(1, 3, 2, 2))], {"padding_mode": "reflection"}),
    Case("GridSample", [f32(1, 1, 4, 5), f32(1, 3, 2, 2)], {"mode": "cubic", "align_corners": 1}),
    Case("GridSample", [f32(2, 9, 4, 5), f32(2, 3, 2, 2)], {"mode": "linear"}),  # by rows of channels
    Case("GridSample", [f32(2, 4, 3, 4, 5), f32(2, 3, 2, 1, 3)], {"mode": "linear"}),
    Case("CenterCropPad", [f32(5, 4), i64(3, 6)], {}, (1,)),
    Case("Attention", [f32(1, 2, 3, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 4)], {"is_causal": 1}),
    Case("SoftmaxCrossEntropyLoss", [f32(3, 5), ints(5, 3)]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_operator_agrees_with_the_reference(case: Case) -> None:
    model = node_model(
        case.op, case.arrays, case.attrs, outputs=case.outputs, opset=case.opset, known=case.known
    )
    given = [a for k, a in enumerate(case.arrays) if a is not None and k not in case.known]
    check(model, *[np.asarray(a) for a in given], rtol=1e-4, atol=1e-5)


def test_local_response_normalization() -> None:
    """The package's evaluator (1.23) sums squares for some channels only: the formula is written here."""
    x = f32(1, 6, 2, 2)
    squares = np.stack([(x[:, max(0, c - 1) : c + 2].astype(np.float64) ** 2).sum(1) for c in range(6)], 1)
    (got,) = imported(node_model("LRN", [x], {"size": 3, "alpha": 0.3, "beta": 0.5, "bias": 2.0}), x)
    np.testing.assert_allclose(got, x / np.sqrt(2.0 + 0.1 * squares), rtol=1e-5)


def test_negative_pads_crop() -> None:
    x = f32(4, 4)
    (got,) = imported(node_model("Pad", [x, i64(-1, 1, 0, -2)], known=(1,)), x)
    assert np.array_equal(got, np.pad(x[1:, :2], ((0, 0), (1, 0))))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize(
    ("start", "end", "step", "size", "wanted"),
    [
        (-5, -(2**62), -1, 3, [0]),
        (-9, -9, -2, 3, [0]),
        (-5, 0, -1, 3, []),
        (-1, -5, -1, 0, []),
        (-(2**62), -(2**62), -1, 0, []),
        (-5, 2, 1, 3, [0, 1]),
    ],
)
def test_starts_below_the_first_element(
    start: int, end: int, step: int, size: int, wanted: list[int], dynamic: bool
) -> None:
    """The standard moves them to it, also where steps are negative; the reference, as NumPy, finds nothing there."""
    x = np.arange(size, dtype=np.float32)
    model = node_model(
        "Slice", [x, i64(start), i64(end), i64(0), i64(step)], known=(1, 2, 3, 4), dynamic=dynamic
    )
    (got,) = imported(model, x)
    assert got.tolist() == wanted


DYNAMIC = [
    Case("Add", [f32(2, 3), f32(2, 3)]),
    Case("MatMul", [f32(2, 3), f32(3, 4)]),
    Case("Softmax", [f32(2, 5)]),
    Case("Slice", [f32(5, 6), i64(1, -2), i64(2**62, 2**62)], {}, (1, 2)),
    Case("Slice", [f32(5, 6), i64(-1), i64(-(2**62)), i64(0), i64(-2)], {}, (1, 2, 3, 4)),
    Case("Reshape", [f32(4, 6), i64(0, 3, -1)], {}, (1,)),
    Case("Flatten", [f32(2, 3, 4)], {"axis": 1}),
    Case("Conv", [f32(1, 3, 9, 8), f32(2, 3, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (1,)),
    Case("MaxPool", [f32(1, 2, 7, 6)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Case("AveragePool", [f32(1, 2, 7, 6)], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    Case("GlobalAveragePool", [f32(1, 2, 7, 6)]),
    Case("Resize", [f32(1, 1, 3, 4), None, np.array([1, 1, 1.5, 2], np.float32)], {"mode": "linear"}, (2,)),
    Case("Resize", [f32(1, 1, 3, 4), None, np.array([1, 1, 2, 2], np.float32)], {}, (2,)),
    Case("Shape", [f32(2, 3)]),
    Case("Tile", [f32(2, 3), i64(2, 1)], {}, (1,)),
    Case("DepthToSpace", [f32(1, 4, 2, 3)], {"blocksize": 2}),
    Case("LayerNormalization", [f32(2, 3, 4), f32(4), f32(4)], {}, (1, 2)),
    Case("TopK", [f32(3, 6), i64(2)], {}, (1,), 2),
]


@pytest.mark.parametrize("case", DYNAMIC, ids=lambda c: c.op)
def test_operator_with_symbolic_dims(case: Case) -> None:
    model = node_model(
        case.op,
        case.arrays,
        case.attrs,
        outputs=case.outputs,
        opset=case.opset,
        known=case.known,
        dynamic=True,
    )
    given = [a for k, a in enumerate(case.arrays) if a is not None and k not in case.known]
    check(model, *given, rtol=1e-4, atol=1e-5)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("group", "parts", "attrs"),
    [
        (1, 1, {"pads": [1, 1, 1, 1]}),
        (2, 1, {"strides": [2, 1], "dilations": [1, 2]}),
        (1, 2, {"pads": [0, 1, 2, 0]}),
        (2, 2, {"pads": [1, 1, 1, 1]}),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_windows_that_read_beside_their_places(
    group: int, parts: int, attrs: dict[str, list[int]], dynamic: bool
) -> None:
    x, w = f32(2, 4, 7, 8), f32(6, 4 // group, 3, 2)
    plain = node_model("Conv", [x, w], {"group": group, **attrs}, known=(1,))
    (shape,) = (y.shape for y in imported(plain, x))
    offsets, factors = f32(2, parts * 12, *shape[2:]) * 2, f32(2, parts * 6, *shape[2:])
    attrs = {"group": group, "offset_group": parts, **attrs}
    operands = [x, w, offsets, f32(6), factors]
    model = node_model("DeformConv", operands, attrs, known=(1, 3), opset=22, dynamic=dynamic)
    if dynamic:
        for value, array in zip(model.graph.input, (x, offsets, factors), strict=True):
            value.type.tensor_type.shape.dim[1].dim_value = array.shape[1]
    check(model, x, offsets, factors, rtol=1e-4, atol=1e-4)


def test_means_that_count_padding_make_no_padded_image() -> None:
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "count_include_pad": 1}
    module = load_onnx(node_model("AveragePool", [f32(1, 4, 9, 9)], attrs))
    evaluated = [op.name for op in module.main.body.ops]
    assert "pad" not in evaluated


def test_channels_at_the_places_of_a_window_are_read_beside_each_other() -> None:
    x, w, offsets = f32(1, 8, 6, 6), f32(4, 8, 3, 3), f32(1, 18, 4, 4)
    module = load_onnx(node_model("DeformConv", [x, w, offsets], opset=22))
    names = [op.name for op in module.main.body.ops]
    assert "grid_sample_rows" in names and "grid_sample" not in names
    sampled = load_onnx(node_model("GridSample", [f32(1, 8, 4, 5), f32(1, 3, 2, 2)], opset=20))
    assert "grid_sample_rows" in [op.name for op in sampled.main.body.ops]


def test_offsets_that_do_not_fit_are_refused() -> None:
    operands = [f32(1, 4, 7, 8), f32(6, 4, 3, 3), f32(1, 17, 5, 6)]
    with pytest.raises(ModelError, match=r"input 2, f32\[1, 17, 5, 6\], does not fit f32\[1, 4, 7, 8\]"):
        load_onnx(node_model("DeformConv", operands, opset=22))
    with pytest.raises(UnsupportedError, match="images have four axes"):
        load_onnx(node_model("DeformConv", [f32(1, 4, 7), f32(6, 4, 3), f32(1, 6, 5)], opset=22))


def test_regions_of_images_of_any_size() -> None:
    """As machine code, where the dims of kernels have names of their own."""
    x, rois, batch = f32(2, 3, 7, 6), np.float32([[0, 0, 5, 6], [1.5, 2.25, 4, 3]]), i64(1, 0)
    attrs = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    model = node_model("RoiAlign", [x, rois, batch], attrs, dynamic=True)
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 4
    (found,) = tilewright.compile(model.SerializeToString(), cache=False, threads=1)(x, rois, batch)
    np.testing.assert_allclose(found, reference(model, x, rois, batch)[0], rtol=1e-5, atol=1e-6)
