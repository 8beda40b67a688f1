"""Parts of detectors, upsampling networks and vision transformers that compute sizes, beside ONNX Runtime.

Each is translated once with symbolic dims, and once for each input with all dims fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.frontends.helpers import model_of, run
from tests.frontends.test_control import graph
from tests.frontends.test_sizes import Graph, f32, info, session, sizes
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.sym import Sym, sym, var
from tilewright.ops.composites.windows import WindowAttributes, rounded_up
from tilewright.ops.define.staged import MEASURE

rng = np.random.default_rng(15)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def floats(*shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) * 0.3).astype(np.float32)


def agrees(model: onnx.ModelProto, shapes: Sequence[tuple[int, ...]], symbolic: bool = True) -> None:
    """What the model gives for inputs of these shapes is what ONNX Runtime gives."""
    theirs = session(model)
    module = load_onnx(model) if symbolic else None
    for shape in shapes:
        x = floats(*shape)
        wanted = theirs.run(None, {"x": x})
        for known in (module, load_onnx(model, shapes={"x": shape})):
            if known is None:
                continue
            for found, expected in zip(run(known, x), wanted, strict=True):
                assert found.shape == expected.shape
                np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def vector(g: Graph, *scalars: str | np.ndarray) -> str:
    """One-element tensors, or vectors, as one vector."""
    return g("Concat", *[g("Reshape", v, i64(-1)) for v in scalars], axis=0)


def dims(g: Graph, x: str, *axes: int) -> list[str]:
    shape = g("Shape", x)
    return [g("Gather", shape, np.array(k)) for k in axes]


def anchors(g: Graph, h: str, w: str) -> str:
    """The centres of the cells of a map, as make_anchors of YOLOv8 has them."""

    def centres(n: str) -> str:
        count = g("Cast", n, to=TensorProto.FLOAT)
        return g("Add", g("Range", np.float32(0), count, np.float32(1)), np.float32(0.5))

    wide = vector(g, h, w)
    ys = g("Expand", g("Reshape", centres(h), i64(-1, 1)), wide)
    xs = g("Expand", g("Reshape", centres(w), i64(1, -1)), wide)
    both = g("Concat", g("Unsqueeze", xs, i64(-1)), g("Unsqueeze", ys, i64(-1)), axis=-1)
    return g("Reshape", both, i64(-1, 2))


def detector(strides: Sequence[int] = (4, 8), bins: int = 4, classes: int = 3) -> onnx.ModelProto:
    """The head of YOLOv8: anchors, boxes from distributions, scaled by strides."""
    g = Graph()
    channels = 4 * bins + classes
    maps, centres, scales = [], [], []
    for stride in strides:
        f = g("Conv", "x", floats(channels, 3, stride, stride), strides=[stride, stride])
        b, h, w = dims(g, f, 0, 2, 3)
        centres.append(anchors(g, h, w))
        filler = helper.make_tensor("v", TensorProto.FLOAT, [1], [float(stride)])
        scales.append(g("ConstantOfShape", vector(g, g("Mul", h, w), i64(1)), value=filler))
        maps.append(g("Reshape", f, vector(g, b, i64(channels, -1))))
    all_maps = g("Concat", *maps, axis=2)
    boxes = g("Slice", all_maps, i64(0), i64(4 * bins), i64(1))
    scores = g("Slice", all_maps, i64(4 * bins), i64(2**62), i64(1))
    b, a = dims(g, boxes, 0, 2)
    apart = g("Transpose", g("Reshape", boxes, vector(g, b, i64(4, bins), a)), perm=[0, 2, 1, 3])
    weights = np.arange(bins, dtype=np.float32).reshape(1, bins, 1, 1)
    distances = g("Reshape", g("Conv", g("Softmax", apart, axis=1), weights), vector(g, b, i64(4), a))
    half = g("Div", g("Add", *dims(g, distances, 1), i64(1)), i64(2))  # chunk(2, 1) of PyTorch
    near = g("Slice", distances, i64(0), g("Mul", half, i64(1)), i64(1))
    far = g("Slice", distances, g("Mul", half, i64(1)), g("Mul", half, i64(2)), i64(1))
    at = g("Unsqueeze", g("Transpose", g("Concat", *centres, axis=0), perm=[1, 0]), i64(0))
    low, high = g("Sub", at, near), g("Add", at, far)
    box = g("Concat", g("Div", g("Add", low, high), np.float32(2)), g("Sub", high, low), axis=1)
    scaled = g("Mul", box, g("Transpose", g("Concat", *scales, axis=0), perm=[1, 0]))
    return g.model({"x": ["b", 3, "h", "w"]}, g("Concat", scaled, g("Sigmoid", scores), axis=1))


def test_head_of_a_detector() -> None:
    agrees(detector(), [(1, 3, 16, 16), (2, 3, 24, 16)])


@pytest.mark.parametrize("factor", [2.0, 1.5, 1 / 3])
@pytest.mark.parametrize(
    ("mode", "coordinates"), [("nearest", "asymmetric"), ("linear", "pytorch_half_pixel")]
)
def test_interpolate_by_sizes(factor: float, mode: str, coordinates: str) -> None:
    """F.interpolate(scale_factor=...) of opset 11: Shape, Slice, Cast, Mul, Floor, Cast, Concat."""
    g = Graph()
    scaled = g("Mul", g("Cast", g("Slice", g("Shape", "x"), i64(2), i64(4)), to=1), f32(factor, factor))
    target = g("Concat", g("Slice", g("Shape", "x"), i64(0), i64(2)), g.whole(g("Floor", scaled)), axis=0)
    how = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
    y = g("Resize", "x", g.constant(f32()), g.constant(f32()), target, **how)
    agrees(g.model({"x": ["b", 2, "h", "w"]}, y, opset=11), [(1, 2, 5, 7), (2, 2, 9, 12)])


def test_interpolate_by_computed_scales() -> None:
    """The same of opset 9: the scales are quotients of floats."""
    g = Graph()
    parts = []
    for axis in (2, 3):
        old = g.dim("x", axis)
        parts.append(g("Div", g("Floor", g("Mul", old, f32(2))), old))
    agrees(g.model({"x": ["b", 2, "h", "w"]}, g("Upsample", "x", g("Concat", f32(1, 1), *parts, axis=0)), opset=9), [
        (1, 2, 5, 7), (2, 2, 10, 9),
    ])  # fmt: skip


@pytest.mark.parametrize("by", ["sizes", "scales"])
def test_pyramid(by: str) -> None:
    """A coarse map as large as a finer one."""
    g = Graph()
    fine = g("Conv", "x", floats(4, 2, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    coarse = g("Conv", fine, floats(4, 4, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    a, b = g("Shape", fine), g("Shape", coarse)
    if by == "sizes":
        target = g("Concat", g("Slice", b, i64(0), i64(2)), g("Slice", a, i64(2), i64(4)), axis=0)
        up = g("Resize", coarse, g.constant(f32()), g.constant(f32()), target, **how)
    else:
        up = g("Resize", coarse, g.constant(f32()), g("Div", g("Cast", a, to=1), g("Cast", b, to=1)), **how)
    agrees(g.model({"x": ["b", 2, "h", "w"]}, g("Add", up, fine)), [(1, 2, 16, 24), (2, 2, 20, 28)])


def test_positions_of_a_vision_transformer() -> None:
    """A square of embeddings, whose side is a root, resized by the scales that DINO computes."""
    g = Graph()
    patches = g("Conv", "x", floats(8, 3, 4, 4), strides=[4, 4])
    embedded = g.constant(floats(1, 49, 8))
    side = g("Sqrt", g.dim(embedded, 1))
    square = g("Reshape", embedded, vector(g, i64(1), g.whole(side), g.whole(side), i64(8)))
    scales = [g("Div", g("Add", g.dim(patches, k), np.float32(0.1)), side) for k in (2, 3)]
    resized = g(
        "Resize", g("Transpose", square, perm=[0, 3, 1, 2]), g.constant(f32()),
        g("Concat", f32(1, 1), *scales, axis=0), mode="linear",
    )  # fmt: skip
    agrees(g.model({"x": ["b", 3, "h", "w"]}, g("Add", resized, patches)), [(1, 3, 32, 24), (2, 3, 64, 40)])


def test_windows_of_a_transformer() -> None:
    """(w - x % w) % w elements of padding, then windows."""
    g = Graph()
    seven = np.array(7)
    h, w = dims(g, "x", 1, 2)
    pads = [g("Mod", g("Sub", seven, g("Mod", d, seven)), seven) for d in (h, w)]
    whole = g("Pad", "x", vector(g, i64(0, 0, 0, 0, 0), *pads, i64(0)))
    b, h, w = dims(g, whole, 0, 1, 2)
    rows, columns = g("Div", h, seven), g("Div", w, seven)
    cut = g("Reshape", whole, vector(g, b, rows, seven, columns, seven, i64(2)))
    y = g("Reshape", g("Transpose", cut, perm=[0, 1, 3, 2, 4, 5]), i64(-1, 49, 2))
    agrees(g.model({"x": ["b", "h", "w", 2]}, y), [(1, 7, 14, 2), (2, 9, 15, 2)])


def test_pools_that_round_up() -> None:
    g = Graph()
    y = g("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    z = g("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    agrees(g.model({"x": ["b", 2, "h", "w"]}, z, opset=19), [(1, 2, 9, 10), (2, 2, 12, 11), (1, 2, 16, 15)])


def test_sizes_behind_pools_that_round_up_stay_short() -> None:
    """Three of SqueezeNet's: proofs of each access contain these sizes."""
    g, y = Graph(), "x"
    for _ in range(3):
        y = g("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    model = g.model({"x": ["b", 2, "h", "w"]}, y)
    (out,) = load_onnx(model).main.body.ops[-1].operands
    assert [str(d) for d in out.tensor.shape] == ["b", "2", "h // 8", "w // 8"]
    agrees(model, [(1, 2, h, w) for h, w in ((15, 16), (17, 33), (24, 41), (31, 50))])


@pytest.mark.parametrize("begin", [0, 1, 2])
@pytest.mark.parametrize("end", [0, 1, 2])
def test_a_position_counts_if_it_begins_inside(begin: int, end: int) -> None:
    """Window, stride and dilation of all kinds, over sizes that are quotients themselves: one after the other."""
    n = var("n")
    of_sizes: list[tuple[Sym, Callable[[int], int]]] = [(n, lambda k: k), ((n + 3) // 4, lambda k: (k + 3) // 4)]
    for (size, actual), kernel, dilation, stride in product(of_sizes, range(3, 6), (1, 2), range(1, 5)):
        reach = (kernel - 1) * dilation + 1
        asked = WindowAttributes((sym(kernel),), (stride,), (sym(begin),), (sym(end),), (dilation,))
        (pads,) = rounded_up(asked, (size,)).pads_end
        for k in range(4 * reach):
            length = actual(k)
            starts = [p for p in range(0, length + begin, stride) if p < length + begin + end - reach + stride]
            positions = (length + begin + pads.subs({n: k}).value - reach) // stride + 1
            if length + begin + end >= reach:
                assert positions == len(starts)


def test_expand_with_minus_one() -> None:
    """PyTorch's expand(-1, 4, -1): Where(target == -1, shape, target)."""
    g = Graph()
    target = g.constant(i64(-1, 4, -1))
    ones = g(
        "ConstantOfShape", g("Shape", target), value=helper.make_tensor("v", TensorProto.INT64, [1], [1])
    )
    shape = g("Where", g("Equal", target, g("Mul", ones, np.array(-1))), g("Shape", "x"), target)
    agrees(g.model({"x": ["b", 1, "w"]}, g("Expand", "x", shape)), [(1, 1, 5), (2, 1, 3)])


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_dims_put_into_a_shape(op: str) -> None:
    g = Graph()
    h, w = dims(g, "x", 1, 2)
    at, put = (i64(1).reshape(1, 1) if op == "ScatterND" else i64(1)), g("Reshape", g("Mul", h, w), i64(1))
    shape = g("Slice", g(op, g("Shape", "x"), at, put), i64(0), i64(2))
    agrees(g.model({"x": ["b", "h", "w"]}, g("Reshape", "x", shape)), [(1, 3, 5), (2, 4, 3)])


def test_best_of_a_static_number_of_boxes() -> None:
    """TopK of min(k, n), and a mask whose positions are known once n is."""
    g = Graph()
    n = g("Gather", g("Shape", "x"), i64(1))
    g.nodes.append(helper.make_node("TopK", ["x", g("Min", n, i64(5))], ["values", "places"]))
    later = g("Greater", g("Range", np.array(0), g("Squeeze", n), np.array(1)), np.array(3))
    chosen = g("Gather", "x", g("Reshape", g("NonZero", later), i64(-1)), axis=1)
    y = g("Add", "values", g("ReduceSum", chosen, i64(1)))
    agrees(g.model({"x": ["b", "n"]}, y), [(1, 9), (2, 7)], symbolic=False)


def positions(build: Callable[[Graph], str], shape: Sequence[int]) -> int:
    """How many places NonZero finds in a mask: its shape follows only where the mask is known when compiling."""
    g = Graph()
    model = g.model({"x": ["n", "m"]}, g("NonZero", build(g)))
    assert MEASURE in [op.name for op in load_onnx(model).main.body.ops]
    ((_, found),) = sizes(load_onnx(model, shapes={"x": shape}), {})
    return found


def test_static_masks_of_any_operator_and_size() -> None:
    def counter(g: Graph) -> str:
        return g("Range", np.array(0), g("Size", "x"), np.array(1))

    def waves(g: Graph) -> str:
        at = g("Cast", counter(g), to=TensorProto.FLOAT)
        return g(
            "Greater",
            g("Sin", g("Softmax", g("Exp", g("Mul", at, np.float32(-1e-3))), axis=0)),
            np.float32(0),
        )

    def ordered(g: Graph) -> str:
        g.nodes.append(helper.make_node("TopK", [counter(g), g.constant(i64(4))], ["best", "where"]))
        return g("ScatterElements", counter(g), "where", g("Sub", "best", "best"))

    def long_chain(g: Graph) -> str:
        x = counter(g)
        for _ in range(1500):
            x = g("Add", x, np.array(1))
        return g("Greater", x, np.array(1502))

    assert positions(lambda g: g("Greater", counter(g), np.array(9)), (1000, 2000)) == 2_000_000 - 10
    assert (
        positions(lambda g: g("Trilu", g("Expand", np.float32(1), g("Shape", "x")), upper=0), (50, 50))
        == 1275
    )
    assert positions(waves, (10, 10)) == 100
    assert positions(ordered, (10, 10)) == 100 - 5  # the first was none
    assert positions(long_chain, (10, 10)) == 97


def test_static_trips_and_conditions() -> None:
    """A Loop and an If that floats of static dims decide."""
    g = Graph()
    trips = g("Squeeze", g.whole(g("Ceil", g("Log", g.dim("x", 0)))))
    body = graph(
        [helper.make_node("Identity", ["go"], ["more"]), helper.make_node("Add", ["v", "v"], ["next"])],
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("v", ["n"])],
        ["more", "next"],
    )
    y = g("Loop", trips, np.array(True), "x", body=body)
    branches = {
        "then_branch": graph([helper.make_node("Neg", [y], ["p"])], [], ["p"]),
        "else_branch": graph([helper.make_node("Frobnicate", [y], ["q"])], [], ["q"]),
    }
    z = g("If", g("Less", g("Sqrt", g.dim("x", 0)), f32(4.5)), **branches)
    module = load_onnx(model_of(g.nodes, [info("x", ["n"])], [z], g.constants), shapes={"x": [20]})
    x = floats(20)
    assert np.array_equal(run(module, x)[0], -8 * x)
