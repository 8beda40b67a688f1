"""Sizes that models compute, in integers and in floats, are those that ONNX Runtime finds when it runs the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import info, model_of, run
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.core import Module
from tilewright.ir.diag import UnsupportedError

LENGTHS = range(1, 2001)


class Graph:
    """Nodes of a model about to be built; each method gives the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def __call__(self, op: str, *operands: str | np.ndarray, **attrs: object) -> str:
        names = [o if isinstance(o, str) else self.constant(o) for o in operands]
        result = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [result], name=f"the_{result}", **attrs))
        return result

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def dim(self, x: str, axis: int, to: int = TensorProto.FLOAT) -> str:
        """A dim as a vector of one number."""
        return self("Cast", self("Gather", self("Shape", x), np.array([axis])), to=to)

    def whole(self, x: str) -> str:
        return self("Cast", x, to=TensorProto.INT64)

    def model(
        self, inputs: dict[str, Sequence[int | str]], *outputs: str, opset: int = 18
    ) -> onnx.ModelProto:
        infos = [info(name, shape) for name, shape in inputs.items()]
        return model_of(self.nodes, infos, outputs, self.constants, opset=opset)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # its nodes need outputs of a declared type
    complete = onnx.ModelProto()
    complete.CopyFrom(model)
    inferred = onnx.shape_inference.infer_shapes(complete)
    known = {v.name: v for v in inferred.graph.value_info}
    outputs = [o if o.HasField("type") else known[o.name] for o in complete.graph.output]
    del complete.graph.output[:]
    complete.graph.output.extend(outputs)
    return onnxruntime.InferenceSession(
        complete.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def sizes(module: Module, env: dict[str, int]) -> list[tuple[int, ...]] | None:
    """The shapes of the results for dims; None where a call with those is refused."""
    if not all(condition.evaluate(env) for condition, *_ in module.main.attrs.get("assumed", ())):
        return None
    return [tuple(d.evaluate(env) for d in v.type.shape) for v in module.main.returns]


def agrees(model: onnx.ModelProto, lengths: Sequence[int] = LENGTHS, refused: int = 0) -> None:
    """The size of the result for a vector of each length is ONNX Runtime's, but for `refused` lengths at most, with
    which a call is refused."""
    module, theirs = load_onnx(model), session(model)
    declined = 0
    for n in lengths:
        (wanted,) = theirs.run(None, {"x": np.zeros(n, np.float32)})
        found = sizes(module, {"n": n})
        declined += found is None
        assert found is None or found == [wanted.shape], n
    assert declined <= refused


def sized(compute: Callable[[Graph, str], str]) -> onnx.ModelProto:
    """A model that gives a tensor of as many elements as `compute` makes of the length of x."""
    g = Graph()
    return g.model({"x": ["n"]}, g("ConstantOfShape", g.whole(compute(g, g.dim("x", 0)))))


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


FACTORS = (2.0, 0.5, 0.0625, 1.25, 0.375, 1 / 3, 0.1, 0.3, 0.6, 0.7, 1.3, 1 / 7)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("factor", [*FACTORS, 0.7310586, 3.14159274, 1 / 49, 0.0333333333])
@pytest.mark.parametrize("rounding", ["Floor", "Ceil", "Round", "Identity"])
def test_a_dim_times_a_number(factor: float, rounding: str) -> None:
    agrees(sized(lambda g, n: g(rounding, g("Mul", n, f32(factor)))), refused=170)


@pytest.mark.sweep(5)
@pytest.mark.parametrize("divisor", [2.0, 3.0, 7.0, 10.0, 49.0, 0.1, 0.3, 1.7])
@pytest.mark.parametrize("rounding", ["Floor", "Ceil"])
def test_a_dim_divided_by_a_number(divisor: float, rounding: str) -> None:
    agrees(sized(lambda g, n: g(rounding, g("Div", n, f32(divisor)))), refused=256)


@pytest.mark.parametrize(
    "compute",
    [
        lambda g, n: g("Add", g("Mul", n, f32(0.1)), f32(0.5)),
        lambda g, n: g("Mul", g("Div", g("Add", n, f32(0.1)), f32(14)), f32(14)),
        lambda g, n: g("Mul", g("Div", n, f32(14)), f32(14)),
        lambda g, n: g("Max", g("Sub", g("Ceil", g("Mul", n, f32(0.3))), f32(5)), f32(1)),
        lambda g, n: g("Floor", g("Div", g("Floor", g("Mul", n, f32(0.7))), f32(3))),
        lambda g, n: g("Clip", g("Div", n, f32(3)), np.float32(2), np.float32(50)),
        lambda g, n: g("Where", g("Greater", g("Mul", n, f32(0.1)), f32(7)), n, f32(3)),
        lambda g, n: g("Abs", g("Neg", g("Mul", n, f32(0.2)))),
        lambda g, n: g("ReduceMean", g("Concat", n, f32(8, 1), axis=0)),
        lambda g, n: g("ReduceProd", g("Concat", n, f32(0.5, 3), axis=0)),
        lambda g, n: g("Mod", g.whole(g("Mul", n, f32(0.7))), np.array([7])),
        lambda g, n: g("Cast", g("Mul", g("Cast", n, to=TensorProto.DOUBLE), np.array([0.1])), to=1),
        lambda g, n: g("Mul", g("Cast", n, to=TensorProto.FLOAT16), np.array([0.5], np.float16)),
    ],
)
def test_longer_arithmetic(compute: Callable[[Graph, str], str]) -> None:
    agrees(sized(compute), refused=200)


@pytest.mark.parametrize(
    ("compute", "size"),
    [
        (lambda g, n: g("Sqrt", n), 10),
        (lambda g, n: g("Exp", g("Mul", n, f32(0.05))), 156),
        (lambda g, n: g("Reciprocal", g("Reciprocal", n)), 101),  # one less for 95 and for many others
    ],
)
def test_what_is_not_followed_is_computed_before_it_is_needed(compute: Callable[[Graph, str], str], size: int) -> None:
    model = sized(compute)
    (own,) = tilewright.compile(model, cache=False, verify=True)(np.zeros(101, np.float32))
    assert own.shape == (size,)
    assert sizes(load_onnx(model, shapes={"x": [101]}), {}) == [(size,)]
    (found,) = session(model).run(None, {"x": np.zeros(101, np.float32)})
    assert found.shape == (size,)


def test_dims_beyond_what_was_compared_are_refused_when_called() -> None:
    module = load_onnx(sized(lambda g, n: g("Mul", n, f32(0.7))))
    assert sizes(module, {"n": 1 << 20}) == [(734003,)]
    assert sizes(module, {"n": (1 << 20) + 1}) is None
    exact = load_onnx(sized(lambda g, n: g("Mul", n, f32(0.5))))
    assert sizes(exact, {"n": 1 << 24}) == [(1 << 23,)]
    assert sizes(exact, {"n": (1 << 24) + 1}) is None  # no f32 has this value
    ((_, message, node, op),) = exact.main.attrs["assumed"]
    assert "n < 16777217" in message and "pass shapes={'x': [<n>]}" in message
    assert op == "ConstantOfShape" and node.startswith("the_constantofshape")


@pytest.mark.sweep(4)
@pytest.mark.parametrize("factor", [2.0, 0.5, 1 / 3, 0.7, 0.1, 1.3, 0.6, 2.5])
@pytest.mark.parametrize("static", [False, True])
def test_resize_by_a_factor(factor: float, static: bool) -> None:
    g = Graph()
    y = g("Resize", "x", g.constant(f32()), f32(1, factor), mode="nearest")
    model = g.model({"x": [1, "n"]}, y)
    theirs, module = session(model), load_onnx(model)
    is_measured = any(v.name.startswith("size_") for y in module.main.returns for d in y.type.shape for v in d.vars)
    compiled = tilewright.compile(model.SerializeToString(), cache=False, threads=1) if is_measured else None
    for n in range(max(int(2 / factor), 1), 300):
        x = np.zeros((1, n), np.float32)
        (wanted,) = theirs.run(None, {"x": x})
        if static:
            found = sizes(load_onnx(model, shapes={"x": [1, n]}), {})
        else:
            found = sizes(module, {"n": n}) if compiled is None else [compiled(x)[0].shape]
        assert found == [wanted.shape], n


@pytest.mark.sweep(2)
@pytest.mark.parametrize("step", [0.5, 0.1, 1.0, 0.3, 7.0, -1.0])
@pytest.mark.parametrize("static", [False, True])
def test_range_of_floats(step: float, static: bool) -> None:
    g = Graph()
    n = g("Squeeze", g.dim("x", 0))
    ends = (np.float32(0.25), n) if step > 0 else (n, np.float32(-2))
    model = g.model({"x": ["n"]}, g("Range", *ends, np.float32(step)))
    theirs, module = session(model), load_onnx(model)
    for length in range(1, 300):
        x = np.zeros(length, np.float32)
        (wanted,) = theirs.run(None, {"x": x})
        at = load_onnx(model, shapes={"x": [length]}) if static else module
        assert sizes(at, {"n": length}) in (None, [wanted.shape]), length
        if length % 50 == 0 and sizes(at, {"n": length}):
            np.testing.assert_allclose(run(at, x)[0], wanted, rtol=1e-4, atol=1e-4)


def test_an_empty_axis_is_padded_beside_one_that_is_not_known() -> None:
    node = helper.make_node("Pad", ["x", "pads"], ["y"])
    model = model_of([node], [info("x", ["n", 0])], ["y"], {"pads": np.array([0, 0, 0, 5])})
    (y,) = tilewright.compile(model.SerializeToString(), cache=False)(np.ones((2, 0), np.float32))
    assert np.array_equal(y, np.zeros((2, 5)))


@pytest.mark.parametrize(("factor", "divisor"), [(1 << 40, (1 << 39) + 1), (1 << 62, 3), (3, 1 << 62)])
def test_a_size_that_may_leave_64_bits_is_refused(factor: int, divisor: int) -> None:
    g = Graph()
    n = g.dim("x", 0, to=TensorProto.INT64)
    y = g("ConstantOfShape", g("Div", g("Mul", n, np.array([factor])), np.array([divisor])))
    model = g.model({"x": ["n"]}, y)
    if factor < 1 << 40:
        assert sizes(load_onnx(model), {"n": 300}) == [(0,)]
        return
    with pytest.raises(UnsupportedError, match=f"the size {factor}.n // {divisor} may need more than 64 bits") as e:
        load_onnx(model)
    assert "constantofshape" in str(e.value.where) and "shapes={'x'" in str(e.value.hint)
