"""What models say of the memory of their calls is what calls take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.runtime import Model
from tilewright.runtime.errors import NoMemoryError, OptionError

pytestmark = pytest.mark.without_room_for_zones  # sizes are compared

RNG = np.random.default_rng(5)


def network(batch: int | str = "batch", length: int | str = "length") -> onnx.ModelProto:
    """Products and softmaxes of different widths over rows, and a result that is a sum over all."""
    names, before, weights = [], "x", []
    for k, (n, m) in enumerate([(16, 96), (96, 24), (24, 56)]):
        weights.append(numpy_helper.from_array(RNG.standard_normal((n, m)).astype(np.float32), f"w{k}"))
        names.append(helper.make_node("MatMul", [before, f"w{k}"], [f"p{k}"]))
        names.append(helper.make_node("Softmax", [f"p{k}"], [f"s{k}"], axis=-1))
        before = f"s{k}"
    names.append(helper.make_node("ReduceSum", ["s1"], ["total"], keepdims=0))
    graph = helper.make_graph(
        names,
        "needs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, length, 16])],
        [
            helper.make_tensor_value_info("s2", TensorProto.FLOAT, [batch, length, 56]),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, []),
        ],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def taken(model: Model, *inputs: np.ndarray) -> int:
    """Bytes that a call has left behind in a model that was not called before, and of its outputs."""
    model.trim()
    outputs = model(*inputs)
    (context,) = model._contexts
    states = sum(
        array.nbytes for array in (*model._states.current, *model._states._beside) if array is not None
    )
    return context.arena.nbytes + sum(o.nbytes for o in outputs) + states


@pytest.fixture(scope="module")
def symbolic() -> Model:
    return tilewright.compile(network(), cache=False, threads=2)


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 50), (8, 128), (0, 5)])
def test_sizes_by_name_give_what_a_call_takes(symbolic: Model, batch: int, length: int) -> None:
    x = np.zeros((batch, length, 16), np.float32)
    assert symbolic.peak_bytes(batch=batch, length=length) == taken(symbolic, x)


def test_fixed_shapes_and_variants_need_no_more(symbolic: Model) -> None:
    fixed = tilewright.compile(network(2, 30), cache=False, threads=2)
    assert fixed.peak_bytes() == taken(fixed, np.zeros((2, 30, 16), np.float32))
    often = tilewright.compile(network(), frequent=[{"batch": 2, "length": 30}], cache=False, threads=2)
    for length in (30, 31):
        x = np.zeros((2, length, 16), np.float32)
        assert often.peak_bytes(batch=2, length=length) == taken(often, x)


def test_a_dim_may_be_called_self() -> None:
    model = tilewright.compile(network("self"), cache=False, threads=1)
    assert model.peak_bytes(**{"self": 2, "length": 3}) == taken(model, np.zeros((2, 3, 16), np.float32))


def test_states_count() -> None:
    add = helper.make_node("Add", ["x", "h"], ["hn"])
    relu = helper.make_node("Relu", ["hn"], ["y"])
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 100]) for name in ("x", "h", "hn", "y")}
    graph = helper.make_graph([add, relu], "state", [values["x"], values["h"]], [values["hn"], values["y"]])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = tilewright.compile(proto, states={"h": "hn"}, cache=False, threads=1)
    assert model.peak_bytes() == taken(model, np.zeros((4, 100), np.float32)) >= 2 * 1600


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.peak_bytes(), r"depends on 'batch', which is None\n  hint: .*peak_bytes\(batch=1\)"),
        (lambda m: m.peak_bytes(batch=1, length=-1), "depends on 'length', which is -1"),
        (lambda m: m.peak_bytes(batch=2**64 + 3, length=1), "no memory holds .*x.* of these sizes"),
        (lambda m: m.peak_bytes(batch=10**9, length=10**9), "no memory holds"),
        (lambda m: m.peak_bytes(batch=True, length=1), "depends on 'batch', which is True"),
        (lambda m: m.peak_bytes(batch=1, length=2, height=3), "no dim height\n  hint: its dims are: batch, length"),
    ],
)
def test_what_is_missing_or_unknown_is_told(symbolic: Model, call: Callable[[Model], int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        call(symbolic)


def test_sizes_from_data_are_refused() -> None:
    nonzero = helper.make_node("NonZero", ["x"], ["y"])
    graph = helper.make_graph(
        [nonzero],
        "data",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1, "n"])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(OptionError, match="whose sizes depend on data"):
        tilewright.compile(proto, cache=False).peak_bytes()


@pytest.mark.parametrize(
    "sizes", [(1 << 21, 1 << 21, 1 << 20), (1 << 22, 1 << 22, 1 << 22), (1 << 22, 1 << 22, 3 << 20)]
)
def test_memory_of_more_bytes_than_64_bits_count_is_refused(sizes: tuple[int, int, int]) -> None:
    """Modulo 2**64 they would be few, or none."""
    nodes = [
        helper.make_node("Einsum", ["a", "b", "c"], ["o"], equation="i,j,k->ijk"),
        helper.make_node("CumSum", ["o", "axis"], ["s"]),
        helper.make_node("ReduceSum", ["s"], ["y"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"{name}_size"]) for name in "abc"]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])]
    axis = numpy_helper.from_array(np.array(0), "axis")
    graph = helper.make_graph(nodes, "g", inputs, outputs, [axis])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = tilewright.compile(proto, cache=False, threads=1, verify=True)
    with pytest.raises(NoMemoryError):
        model(*(np.ones(size, np.float32) for size in sizes))
    with pytest.raises(OptionError, match="no memory holds"):
        model.peak_bytes(**dict(zip(("a_size", "b_size", "c_size"), sizes, strict=True)))
    assert model(*[np.ones(2, np.float32)] * 3)[0] == 12  # sums from the front: 1 and 2, four times
