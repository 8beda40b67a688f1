"""What other exporters and optimisers write: beside the standard, and as ONNX Runtime takes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import info, model_of

RNG = np.random.default_rng(12)
X = RNG.standard_normal((2, 3, 8)).astype(np.float32)


def by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def agrees(model: onnx.ModelProto, rtol: float = 1e-4, **feeds: np.ndarray) -> None:
    compiled = tilewright.compile(model, cache=False, threads=1)
    for wanted, found in zip(by_onnxruntime(model, feeds), compiled(**feeds), strict=True):
        assert (wanted.shape, wanted.dtype) == (found.shape, found.dtype)
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize(
    ("opset", "attributes"),
    [(9, {}), (11, {"epsilon": 1e-12}), (14, {"epsilon": 1e-5, "axis": -1, "stash_type": 1}), (16, {"axis": 1})],
)
def test_a_norm_in_a_model_of_an_opset_before_it(opset: int, attributes: dict[str, Any]) -> None:
    shape = (3, 8) if attributes.get("axis") == 1 else (8,)
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], **attributes)
    weights = {"s": RNG.random(shape).astype(np.float32), "b": np.ones(shape, np.float32)}
    agrees(model_of([node], [info("x", ["n", 3, 8])], [info("y", ["n", 3, 8])], weights, opset=opset), x=X)


def layer(opset: int) -> onnx.ModelProto:
    """A norm and a GELU as PyTorch's exporter writes them out, a scaled product, and a residual."""
    n = helper.make_node
    nodes = [
        n("ReduceMean", ["x"], ["m"], axes=[-1]), n("Sub", ["x", "m"], ["c"]), n("Pow", ["c", "two"], ["p"]),
        n("ReduceMean", ["p"], ["v"], axes=[-1]), n("Add", ["v", "eps"], ["ve"]), n("Sqrt", ["ve"], ["d"]),
        n("Div", ["c", "d"], ["h"]), n("Mul", ["h", "s"], ["hs"]), n("Add", ["hs", "b"], ["z"]),
        n("MatMul", ["z", "w"], ["l"]), n("Add", ["l", "b"], ["lb"]),
        n("Div", ["lb", "root"], ["q"]), n("Erf", ["q"], ["e"]), n("Add", ["e", "one"], ["e1"]),
        n("Mul", ["lb", "e1"], ["g"]), n("Mul", ["g", "half"], ["gelu"]),
        n("Transpose", ["gelu"], ["t"], perm=[0, 2, 1]), n("MatMul", ["gelu", "t"], ["a"]),
        n("Mul", ["a", "half"], ["y"]),
    ]  # fmt: skip
    weights = {
        name: np.float32(v)
        for name, v in {"two": 2, "eps": 1e-5, "root": 2**0.5, "one": 1, "half": 0.5}.items()
    }
    weights |= {"s": RNG.random(8).astype("f"), "b": RNG.random(8).astype("f"), "w": RNG.random((8, 8)).astype("f")}
    return model_of(nodes, [info("x", ["n", 3, 8])], [info("y", ["n", 3, 3])], weights, opset=opset)


@pytest.mark.parametrize("opset", [11, 13, 16])
@pytest.mark.parametrize("level", ["ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_what_onnxruntime_has_optimised(opset: int, level: str, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(layer(opset).SerializeToString(), options)
    optimised = onnx.load(tmp_path / "optimised.onnx")
    kinds = {node.op_type for node in optimised.graph.node}
    assert {"LayerNormalization", "FusedMatMul"} <= kinds
    agrees(optimised, x=X)


def test_a_domain_that_is_used_and_not_imported() -> None:
    """As models have it in memory that ONNX Runtime's optimiser for transformers has changed."""
    node = helper.make_node("BiasGelu", ["x", "b"], ["y"], domain="com.microsoft")
    model = model_of([node], [info("x", ["n", 3, 8])], [info("y", ["n", 3, 8])], {"b": np.ones(8, "f")}, opset=14)
    assert [o.domain for o in model.opset_import] == [""]
    agrees(model, x=X)


def test_slices_whose_bounds_are_slices() -> None:
    """The rows of one bag, as the exporter for torch.export writes EmbeddingBag."""
    n = helper.make_node
    nodes = [
        n("Add", ["k", "one"], ["k1"]), n("Add", ["k1", "one"], ["k2"]), n("Slice", ["off", "k", "k1"], ["s"]),
        n("Slice", ["off", "k1", "k2"], ["e"]), n("Slice", ["w", "s", "e"], ["rows"]),
        n("ReduceMean", ["rows", "zero"], ["y"], keepdims=0),
    ]  # fmt: skip
    inputs = [info("w", ["n", 4]), info("off", ["b"], TensorProto.INT64), info("k", [1], TensorProto.INT64)]
    model = model_of(nodes, inputs, [info("y", [4])], {"one": np.array([1]), "zero": np.array([0])}, opset=18)
    w, off = RNG.random((6, 4)).astype(np.float32), np.array([0, 1, 3, 3, 6])
    for k in range(4):
        agrees(model, w=w, off=off, k=np.array([k]))


@pytest.mark.parametrize(
    ("starts", "ends"), [([1], [3]), ([1, 2], [3, -1]), ([], []), ([-3, 0], [99, 2])]
)
def test_slices_with_bounds_of_a_number_that_the_call_tells(starts: list[int], ends: list[int]) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    inputs = [info("x", [4, "n"]), info("s", ["k"], TensorProto.INT64), info("e", ["k"], TensorProto.INT64)]
    model = model_of([helper.make_node("Slice", ["x", "s", "e"], ["y"])], inputs, [info("y", [None, None])], opset=18)
    agrees(model, x=x, s=np.array(starts, np.int64), e=np.array(ends, np.int64))


@pytest.mark.parametrize(
    ("starts", "ends", "said"),
    [([1, 2, 0], [3, 4, 1], "more elements than there are axes"), ([1], [3, 4], "bounds")],
)
def test_bounds_that_are_too_many(starts: list[int], ends: list[int], said: str) -> None:
    inputs = [info("x", [4, 6]), info("s", ["k"], TensorProto.INT64), info("e", ["m"], TensorProto.INT64)]
    model = model_of([helper.make_node("Slice", ["x", "s", "e"], ["y"])], inputs, [info("y", [None, None])], opset=18)
    compiled = tilewright.compile(model, cache=False, threads=1)
    with pytest.raises(tilewright.InputError, match=said):
        compiled(np.zeros((4, 6), np.float32), np.array(starts), np.array(ends))


REDUCTIONS = ("Mean", "Sum", "Prod", "Max", "Min", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.int64, np.int8, np.uint8])
def test_reductions_over_no_elements(dtype: type) -> None:
    """All of them in one model, as ONNX Runtime has them: those that it has for the type."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = ("Max", "Min") if np.dtype(dtype).itemsize == 1 else REDUCTIONS
    nodes = [helper.make_node(f"Reduce{name}", ["x", "axes"], [name], keepdims=0) for name in names]
    outputs = [info(name, [3], kind) for name in names]
    model = model_of(nodes, [info("x", ["n", 3], kind)], outputs, {"axes": np.array([0])}, opset=20)
    compiled = tilewright.compile(model, cache=False, threads=1)
    for rows in (0, 2):
        x = RNG.integers(1, 5, (rows, 3)).astype(dtype)
        for name, wanted, found in zip(names, by_onnxruntime(model, {"x": x}), compiled(x), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-3, err_msg=f"{name} over {rows} rows")


def extractor(size: int | str, places: Sequence[int] | None) -> tilewright.Model:
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain="ai.onnx.ml")
    inputs = [info("x", [2, size])] + ([] if places else [info("i", ["k"], TensorProto.INT64)])
    weights = {"i": np.array(places)} if places else {}
    model = model_of([node], inputs, [info("y", [2, None])], weights, domains=["ai.onnx.ml"], opset=18)
    return tilewright.compile(model, cache=False, threads=1)


@pytest.mark.parametrize("size", [4, "n"])
@pytest.mark.parametrize("place", [4, -1, 2**40, -(2**63)])
def test_a_feature_that_does_not_exist(size: int | str, place: int) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    compiled = extractor(size, None)
    np.testing.assert_array_equal(compiled(x, np.array([3, 0]))[0], x[:, [3, 0]])
    with pytest.raises(tilewright.ExecutionError, match="an index is out of range"):
        compiled(x, np.array([0, place]))
    with pytest.raises(tilewright.TilewrightError, match="is out of range"):
        extractor(size, [0, place])(x)
