"""Models that random ones were reduced to (`python -m tests.fuzz onnx`)."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, TypeProto, ValueInfoProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tests.frontends.helpers import info, model_of
from tests.random_models.converted import converted
from tests.random_models.isolated import evaluated
from tilewright.api import compile_artifact
from tilewright.ir import sym as s
from tilewright.ir.diag import InputError, ModelError, UnsupportedError
from tilewright.ir.symbolic.prove import prove
from tilewright.options import Options
from tilewright.runtime.errors import ExecutionError

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.mark.parametrize("positions", [[[0, 0], [0, 3]], [[8, 7], [7, 7]]])
def test_an_element_that_several_windows_found_is_put_once(positions: list[list[int]]) -> None:
    node = helper.make_node("MaxUnpool", ["x", "at"], ["y"], kernel_shape=[2, 2], strides=[1, 1])
    model = model_of([node], [info("x", [1, 1, 2, 2]), info("at", [1, 1, 2, 2], I64)], ["y"], opset=22)
    given = {"x": np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2), "at": np.array(positions).reshape(1, 1, 2, 2)}
    (wanted,) = evaluated(model.SerializeToString(), given)
    (found,) = tilewright.compile(model, cache=False)(*given.values())
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("strides, wanted_shape", [([3, 2], [1, 1, 5, 5]), ([2, 3], [1, 1, 6, 6])])
def test_positions_count_in_what_the_window_gives(strides: list[int], wanted_shape: list[int]) -> None:
    """Also where the shape of the result is another one, as in ONNX's reference."""
    node = helper.make_node("MaxUnpool", ["x", "at", "shape"], ["y"], kernel_shape=[2, 2], strides=strides)
    infos = [info("x", [1, 1, 2, 2]), info("at", [1, 1, 2, 2], I64), info("shape", [4], I64)]
    model = model_of([node], infos, ["y"], opset=22)
    x, at = np.arange(5, 9, dtype=np.float32).reshape(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])
    shape = np.array(wanted_shape)
    (reference,) = ReferenceEvaluator(model).run(None, {"x": x, "at": at, "shape": shape})
    (found,) = tilewright.compile(model, constants={"shape": shape}, cache=False)(x, at)
    assert np.array_equal(found, reference)


@pytest.mark.parametrize("shape", [[1, 2, 7], [2, 1, 5, 4], [1, 2, 3, 4, 5], [1, 1, "h", "w"]])
def test_positions_by_columns_of_equal_elements(shape: list[int | str]) -> None:
    """The first of equals is that by rows, also where positions count by columns."""
    count = len(shape) - 2
    node = helper.make_node("MaxPool", ["x"], ["y", "at"], kernel_shape=[2] * count, storage_order=1)
    model = model_of([node], [info("x", shape)], ["y", info("at", ["?"] * len(shape), I64)], opset=22)
    sizes = [6 if isinstance(d, str) else d for d in shape]
    x = np.random.default_rng(0).integers(0, 3, sizes).astype(np.float32)
    wanted = evaluated(model.SerializeToString(), {"x": x})
    for found, theirs in zip(tilewright.compile(model, cache=False)(x), wanted, strict=True):
        np.testing.assert_array_equal(found, theirs)


def test_a_position_outside_of_what_was_pooled() -> None:
    node = helper.make_node("MaxUnpool", ["x", "at"], ["y"], kernel_shape=[2, 2], strides=[2, 2], name="up")
    model = model_of([node], [info("x", [1, 1, 1, 1]), info("at", [1, 1, 1, 1], I64)], ["y"], opset=22)
    compiled = tilewright.compile(model, cache=False)
    for at in (4, -5, 2**40):
        with pytest.raises(ExecutionError, match="out of range"):
            compiled(np.ones((1, 1, 1, 1), np.float32), np.full((1, 1, 1, 1), at))


@pytest.mark.parametrize("op", ["GatherND", "ScatterND"])
def test_index_vectors_of_an_unknown_length(op: str) -> None:
    names = ["x", "at", "with"][: 2 + (op == "ScatterND")]
    shapes = {"x": [3, 4], "at": [2, "depth"], "with": [2]}
    given = [info(n, shapes[n], I64 if n == "at" else F32) for n in names]
    with pytest.raises(UnsupportedError, match="depth, must be known") as caught:
        tilewright.compile(model_of([helper.make_node(op, names, ["y"])], given, ["y"]), cache=False)
    assert "shapes=" in str(caught.value)


def test_a_divisor_that_may_be_zero_is_no_hindrance_to_proofs() -> None:
    n, m = s.var("n"), s.var("m")
    quotient = s.floordiv(m, n)
    assert prove(s.ge(quotient, 1), {n: (s.sym(0), s.sym(3))}) is None
    assert prove(s.ge(8 * quotient, s.var("i")), {n: (s.sym(1), s.sym(3)), s.var("i"): (s.sym(0), quotient)})


@pytest.mark.parametrize("shape", [[1, 2, 3, 2], [1, 2], [1, 5, 3], [1, 2, 4]])
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_first_states_of_other_shapes(op: str, gates: int, shape: list[int]) -> None:
    shapes = {"x": [1, 2, 4], "w": [1, 3 * gates, 4], "r": [1, 3 * gates, 3], "h": shape}
    node = helper.make_node(op, ["x", "w", "r", "", "", "h"], ["", "y"], hidden_size=3)
    with pytest.raises(ModelError, match="with hidden size 3 its shape is"):
        tilewright.compile(model_of([node], [info(n, s) for n, s in shapes.items()], ["y"]), cache=False)


@pytest.mark.parametrize("shape", [[1, 5], [9], [2, 9], [1, 12]])
def test_peepholes_of_other_shapes(shape: list[int]) -> None:
    shapes = {"x": [1, 2, 4], "w": [1, 12, 4], "r": [1, 12, 3], "p": shape}
    node = helper.make_node("LSTM", ["x", "w", "r", "", "", "", "", "p"], ["", "y"], hidden_size=3)
    with pytest.raises(ModelError, match=r"with hidden size 3 its shape is \[1, 9\]"):
        tilewright.compile(model_of([node], [info(n, s) for n, s in shapes.items()], ["y"]), cache=False)


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_first_states_of_a_batch_that_is_known_in_the_call(op: str, gates: int) -> None:
    shapes = {"x": [1, "n", 4], "w": [1, 3 * gates, 4], "r": [1, 3 * gates, 3], "h": [1, "m", 3]}
    node = helper.make_node(op, ["x", "w", "r", "", "", "h"], ["", "y"], hidden_size=3)
    model = tilewright.compile(model_of([node], [info(n, s) for n, s in shapes.items()], ["y"]), cache=False)
    x, w, r, h = (np.ones([2 if isinstance(d, str) else d for d in s], np.float32) for s in shapes.values())
    assert model(x, w, r, h)[0].shape == (1, 2, 3)
    with pytest.raises(InputError):
        model(x, w, r, h[:, :1])


@pytest.mark.parametrize("op", ["GatherElements", "ScatterElements", "GatherND", "ScatterND"])
def test_an_operator_of_a_later_opset(op: str) -> None:
    along = op.endswith("Elements")
    shapes = {"x": [3, 4], "at": [2, 3] if along else [2, 1], "with": [2, 3] if along else [2, 4]}
    names = list(shapes)[: 2 + op.startswith("Scatter")]
    given = [info(n, shapes[n], I64 if n == "at" else F32) for n in names]
    arrays = [np.arange(12, dtype=np.float32).reshape(3, 4), np.broadcast_to(np.array([[0], [2]]), shapes["at"])]
    arrays += [np.ones(shapes["with"], np.float32)][: len(names) - 2]
    node = helper.make_node(op, names, ["y"], **({"axis": 0} if along else {}))
    found, wanted = (
        tilewright.compile(model_of([node], given, ["y"], opset=opset), cache=False)(*arrays) for opset in (8, 18)
    )
    np.testing.assert_array_equal(found[0], wanted[0])


@pytest.mark.parametrize("version", [2**31, 2**62, -(2**40)])
def test_versions_that_are_no_versions(version: int) -> None:
    node = helper.make_node("FlexAttention", ["x", "x", "x"], ["y"], domain="ai.onnx.preview")
    model = model_of([node], [info("x", [1, 1, 2, 4])], ["y"])
    model.opset_import.add(domain="ai.onnx.preview", version=version)
    with pytest.raises(UnsupportedError, match="FlexAttention: the operator is unknown"):
        tilewright.compile(model, cache=False)


def test_more_computed_axes_than_a_tensor_has() -> None:
    given = [info("x", [2, 3]), info("axes", [20], I64)]
    model = model_of([helper.make_node("ReduceSum", ["x", "axes"], ["y"])], given, ["y"])
    with pytest.raises(ModelError, match="20 axes of a tensor of rank 2 name an axis twice"):
        tilewright.compile(model, cache=False)


def test_updates_of_another_number_than_indices() -> None:
    """Loops of an operator's own rely on dims that its type rule takes for equal."""
    given = [info("x", [8]), info("at", ["n", 1], I64), info("with", ["m"])]
    model = tilewright.compile(
        model_of([helper.make_node("ScatterND", ["x", "at", "with"], ["y"])], given, ["y"]), cache=False
    )
    x, at = np.zeros(8, np.float32), np.arange(3).reshape(3, 1)
    assert model(x, at, np.ones(3, np.float32))[0].sum() == 3
    with pytest.raises(InputError, match="it must be that"):
        model(x, at, np.ones(2, np.float32))


def test_a_matrix_that_is_not_square() -> None:
    node = helper.make_node("Inverse", ["x"], ["y"], domain="com.microsoft")
    made = model_of([node], [info("x", ["n", "m"])], ["y"])
    made.opset_import.add(domain="com.microsoft", version=1)
    model = tilewright.compile(made, cache=False)
    np.testing.assert_array_equal(model(np.eye(3, dtype=np.float32))[0], np.eye(3))
    with pytest.raises(InputError, match="it must be that"):
        model(np.ones((2, 3), np.float32))


def test_a_node_that_asks_for_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 32.0 GiB")

    monkeypatch.setattr("tilewright.frontends.onnx.importer.Importer._results", no_memory, raising=True)
    with pytest.raises(ModelError, match=r"Relu asks for more memory than there is"):
        tilewright.compile(model_of([helper.make_node("Relu", ["x"], ["y"])], [info("x", [2])], ["y"]), cache=False)


_VECTOR = info("v", ["n"], I64)
_NUMBERS: dict[str, tuple[list[ValueInfoProto], list[str], dict[str, np.ndarray]]] = {
    "Pad": ([info("x", [2, 3]), info("v", ["n"])], ["x", "pads", "v"], {"pads": np.array([0, 1, 0, 0])}),
    "Clip": ([info("x", [2, 3]), info("v", ["n"])], ["x", "v"], {}),
    "Range": ([_VECTOR], ["zero", "v", "one"], {"zero": np.array(0), "one": np.array(1)}),
    "OneHot": ([info("x", [3], I64), _VECTOR], ["x", "v", "ends"], {"ends": np.array([0.0, 1.0], np.float32)}),
    "TopK": ([info("x", [2, 3]), _VECTOR], ["x", "v"], {}),
    "CumSum": ([info("x", [2, 3]), _VECTOR], ["x", "v"], {}),
    "MelWeightMatrix": (
        [info("v", ["n"])],
        ["bins", "size", "rate", "v", "high"],
        {"bins": np.array(4), "size": np.array(16), "rate": np.array(8000), "high": np.array(4000.0, np.float32)},
    ),
}


@pytest.mark.parametrize("op", sorted(_NUMBERS))
def test_vectors_of_unknown_length_where_one_number_is_meant(op: str) -> None:
    inputs, names, constants = _NUMBERS[op]
    number = info("v", [1], inputs[-1].type.tensor_type.elem_type)
    node = helper.make_node(op, names, ["y", "at"] if op == "TopK" else ["y"])
    exact, model = (
        tilewright.compile(model_of([node], [*inputs[:-1], v], ["y"], constants), cache=False)
        for v in (number, inputs[-1])
    )
    *others, v = (np.ones([d.dim_value for d in t.shape.dim], _dtype(t)) for t in map(_type, [*inputs[:-1], number]))
    np.testing.assert_array_equal(model(*others, v)[0], exact(*others, v)[0])
    for wrong in (v[:0], np.concatenate([v, v])):
        with pytest.raises(InputError, match="must be one number"):
            model(*others, wrong)


def _type(given: ValueInfoProto) -> TypeProto.Tensor:
    return given.type.tensor_type


def _dtype(type: TypeProto.Tensor) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(type.elem_type)


_SOME = np.random.default_rng(5)


def _floats(*shape: int) -> np.ndarray:
    return _SOME.uniform(-1, 1, shape).astype(np.float32)


def _bytes(*shape: int) -> np.ndarray:
    return _SOME.integers(0, 256, shape).astype(np.uint8)


MICROSOFT = "com.microsoft"
_WEIGHTS = {"w": _floats(1, 12, 4), "r": _floats(1, 12, 3), "b": _floats(1, 24)}
_BLOCKS = {"K": 32, "N": 24, "block_size": 16}
_SIZES: dict[str, tuple[NodeProto, dict[str, np.ndarray], str, tuple[int, ...]]] = {
    "two parts": (
        helper.make_node("ComplexMul", ["a", "x"], ["y"], domain=MICROSOFT),
        {"a": _floats(3, 2), "x": _floats(3, 2)},
        "x",
        (3, 1),
    ),
    "parts of a spectrum": (
        helper.make_node("Irfft", ["x"], ["y"], domain=MICROSOFT, signal_ndim=1, normalized=0, onesided=1),
        {"x": _floats(2, 5, 2)},
        "x",
        (2, 5, 3),
    ),
    "packed weights": (
        helper.make_node("MatMulNBits", ["a", "x", "s"], ["y"], domain=MICROSOFT, bits=4, **_BLOCKS),
        {"a": _floats(3, 32), "x": _bytes(24, 2, 8), "s": _floats(24, 2)},
        "x",
        (24, 2, 7),
    ),
    "scales of blocks": (
        helper.make_node("MatMulBnb4", ["a", "w", "x"], ["y"], domain=MICROSOFT, quant_type=1, **_BLOCKS),
        {"a": _floats(3, 32), "w": _bytes(24 * 32 // 2), "x": _floats(24 * 32 // 16)},
        "x",
        (12,),
    ),
    "a region of Resize": (
        helper.make_node("Resize", ["a", "x", "", "sizes"], ["y"], coordinate_transformation_mode="tf_crop_and_resize"),
        {"a": _floats(3, 4), "x": np.array([0, 0.25, 1, 0.75], np.float32), "sizes": np.array([2, 3])},
        "x",
        (6,),
    ),
    "boxes": (
        helper.make_node("NonMaxSuppression", ["x", "scores", "most"], ["y"]),
        {"x": _floats(1, 6, 4), "scores": _floats(1, 2, 6), "most": np.array([3])},
        "x",
        (1, 5, 4),
    ),
    "regions of an image": (
        helper.make_node("MaxRoiPool", ["a", "x"], ["y"], pooled_shape=[2, 2]),
        {"a": _floats(1, 2, 6, 6), "x": np.array([[0, 1, 1, 4, 5]], np.float32)},
        "x",
        (1, 4),
    ),
    "a scale where there is no axis for several": (
        helper.make_node("DequantizeLinear", ["a", "x"], ["y"]),
        {"a": _bytes(5), "x": np.array([0.5], np.float32)},
        "x",
        (5,),
    ),
    "a first state": (
        helper.make_node("LSTM", ["a", "w", "r", "b", "", "x"], ["y"], hidden_size=3),
        {"a": _floats(2, 5, 4), "x": _floats(1, 5, 3), **_WEIGHTS},
        "x",
        (1, 5, 4),
    ),
}


@pytest.mark.parametrize("what", sorted(_SIZES))
def test_sizes_that_must_fit_may_be_unknown(what: str) -> None:
    """They are checked when the model is called."""
    node, arrays, name, wrong = _SIZES[what]
    constants = {k: a for k, a in arrays.items() if k in (*_WEIGHTS, "sizes", "most")}
    given = {k: a for k, a in arrays.items() if k not in constants}
    exact, model = (
        tilewright.compile(
            model_of(
                [node],
                [
                    info(
                        k,
                        [f"{k}{d}" for d in range(a.ndim)] if is_unknown and k == name else list(a.shape),
                        helper.np_dtype_to_tensor_dtype(a.dtype),
                    )
                    for k, a in given.items()
                ],
                ["y"],
                constants,
                domains=[MICROSOFT],
            ),
            cache=False,
        )
        for is_unknown in (False, True)
    )
    np.testing.assert_allclose(model(**given)[0], exact(**given)[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError):
        model(**{**given, name: np.resize(given[name], wrong)})


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_of_no_rows_there_are_no_positions(op: str) -> None:
    node = helper.make_node(op, ["x"], ["y"], axis=1)
    for shape in ([0, 0], ["n", "m"]):
        model = tilewright.compile(model_of([node], [info("x", shape)], ["y"]), cache=False)
        (found,) = model(np.zeros((0, 0), np.float32))
        assert found.shape == (0, 1)
    with pytest.raises(InputError, match="no elements"):
        model(np.zeros((2, 0), np.float32))


@pytest.mark.parametrize("shape", [[2, 0, 3, 4], [2, 3, 4, "w"]], ids=str)
def test_normalised_by_near_channels_are_no_elements(shape: list[int | str]) -> None:
    model = model_of([helper.make_node("LRN", ["x"], ["y"], size=3)], [info("x", shape)], ["y"], opset=22)
    x = np.zeros([0 if isinstance(d, str) else d for d in shape], np.float32)
    (found,) = tilewright.compile(model, cache=False)(x)
    assert found.shape == x.shape


def test_a_hidden_size_that_a_call_chooses_is_not_supported() -> None:
    """Where the attribute is left out, it is that of R."""
    model = {}
    for hidden in (3, "hidden"):
        given = [info("x", [2, 1, 4]), info("w", [1, 9, 4]), info("r", [1, 9, hidden])]
        model[hidden] = model_of([helper.make_node("GRU", ["x", "w", "r"], ["y"])], given, ["y"])
    (found,) = tilewright.compile(model[3], cache=False)(_floats(2, 1, 4), _floats(1, 9, 4), _floats(1, 9, 3))
    assert found.shape == (2, 1, 1, 3)
    with pytest.raises(UnsupportedError, match="must be known, it is hidden"):
        tilewright.compile(model["hidden"], cache=False)


def test_columns_of_unknown_number_that_fill_tiles() -> None:
    """Nothing is left for tiles of one vector."""
    node = helper.make_node("ArgMax", ["x"], ["y"], axis=0, keepdims=0)
    model = model_of([node], [info("x", ["rows", 512, "n"])], ["y"], opset=20)
    compile_artifact(model, options=Options(target="x86-64-v4", cache=False))
    compiled = tilewright.compile(model, cache=False)
    for sizes in ((5, 512, 3), (1, 512, 1), (4, 512, 0)):
        x = _floats(*sizes)
        np.testing.assert_array_equal(compiled(x)[0], x.argmax(0))


def test_rows_that_data_choose_for_each_lane_are_no_runs_in_turns() -> None:
    """The places along the last two axes alone would be two runs, as long as all lanes read the same row."""
    lengths = np.array([1, 4, 2] * 6)[:17]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("ReverseSequence", ["t", "lengths"], ["y"], time_axis=0, batch_axis=1),
    ]
    model = model_of(nodes, [info("x", [4, 2, 17])], ["y"], {"lengths": lengths}, opset=22)
    x = _floats(4, 2, 17)
    wanted = x.transpose(0, 2, 1).copy()
    for k, n in enumerate(lengths):
        wanted[:n, k] = wanted[:n, k][::-1]
    np.testing.assert_array_equal(tilewright.compile(model, cache=False)(x)[0], wanted)


def test_one_number_added_to_a_convolution_is_no_bias() -> None:
    """It is written again as what it is."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["t"]), helper.make_node("Add", ["t", "one"], ["y"])]
    constants = {"w": _floats(4, 3, 3), "one": np.array(0.5, np.float32)}
    model = model_of(nodes, [info("x", [1, 3, 8])], ["y"], constants, opset=20)
    x = {"x": _floats(1, 3, 8)}
    (wanted,), (found,) = (evaluated(m.SerializeToString(), x) for m in (model, converted(model, None)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
