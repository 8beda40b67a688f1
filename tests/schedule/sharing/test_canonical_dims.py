"""Sizes of a region's own in place of quotients of the model's inputs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.schedule.scheduling import build, run, scheduled
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Op, Value
from tilewright.ir.sym import Sym, ceildiv, maximum, minimum, sym, var
from tilewright.ir.types import TensorType, tensor
from tilewright.loops.edit import buffer_type
from tilewright.loops.kernel_info import parse_kernel
from tilewright.ops.elementwise import tanh
from tilewright.ops.pool import max_pool
from tilewright.schedule.sharing.canonical_dims import canonical_dims
from tilewright.stages import programs

h, w, batch = var("h", 1), var("w", 1), var("batch", 1)


def region(*shapes: tuple[Sym, ...]) -> Op:
    """A region with arguments of these shapes, that computes the tanh of the last."""
    block = Block([TensorType(dt.f32, s) for s in shapes], [f"x{k}" for k in range(len(shapes))])
    with Builder(block) as builder:
        builder.emit("yield", (tanh(block.args[-1]),))
    return Op("fused", [], [TensorType(dt.f32, shapes[-1])], {"strategy": "elementwise"}, [block])


def names(shape: tuple[Sym, ...]) -> list[str]:
    return [str(d) for d in canonical_dims(region(shape)).of(shape)]


def test_quotient_of_a_dim_is_a_dim() -> None:
    assert names((batch, ceildiv(h, 32), ceildiv(w, 32))) == ["n0", "n1", "n2"]


def test_multiples_and_sums_of_a_quotient_are_made_of_its_dim() -> None:
    assert names((2 * ceildiv(h, 8) + 1, ceildiv(h, 8) * ceildiv(w, 8))) == ["2*n0 + 1", "n0*n1"]


def test_quotients_of_quotients_keep_one_divisor_less() -> None:
    assert names((ceildiv(h, 4), ceildiv(ceildiv(h, 4), 2))) == ["n0", "(n0 + 1) // 2"]


def test_quotients_by_dims_and_what_divides_are_dims() -> None:
    tall = minimum(maximum(ceildiv(h, 4), 1), 8)
    assert names((ceildiv(h, w),)) == ["n0 + 1"]
    assert names((h // tall, tall)) == ["n0", "n1"]
    assert names((maximum(h // tall - 3, 1), tall, maximum(h // tall - 3, 1) * tall)) == ["n0", "n1", "n0*n1"]


def test_dims_keep_their_proportions() -> None:
    assert names((ceildiv(h, 16), ceildiv(w, 2))) == ["(n0 + 7) // 8", "n1"]


@pytest.mark.parametrize(
    "shape",
    [
        (h, ceildiv(h, 2)),  # a function of the whole number, too
        (ceildiv(h, 2), h // 2),  # two that are not functions of one quotient
        (ceildiv(h, 2), ceildiv(h, 3)),
        ((3 * h + 1) // 2,),
        (h % 4,),
    ],
)
def test_other_dims_keep_their_form(shape: tuple[Sym, ...]) -> None:
    renamed = {v: var(f"n{k}", 1) for k, v in enumerate((h, w) if w in shape[0].vars else (h,))}
    assert names(shape) == [str(d.subs(renamed)) for d in shape]


@pytest.mark.parametrize("seed", range(40))
def test_canonical_dims_have_the_values_of_the_models(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(_random_dim(rng) for _ in range(4))
    dims = canonical_dims(region(shape))
    for _ in range(50):
        model = {"h": int(rng.integers(1, 200)), "w": int(rng.integers(1, 200))}
        kernel = {v.name: value.evaluate(model) for v, value in dims.actual.items()}
        for d in shape:
            assert d.subs(dims.canonical).evaluate(kernel) == d.evaluate(model)


def _random_dim(rng: np.random.Generator) -> Sym:
    """An expression of quotients as networks have them, now and then of the variables themselves."""
    d = sym(int(rng.integers(0, 2)))
    for v in (h, w):
        by = 2 ** int(rng.integers(1 - (rng.random() < 0.1), 5))
        shift = by - 1 if rng.random() < 0.8 else int(rng.integers(0, 2 * by))
        d = d + int(rng.integers(0, 4)) * ((v + shift) // by)
    return d * ((h + 15) // 16) if rng.random() < 0.2 else d


def test_a_dim_has_the_bounds_of_its_quotient() -> None:
    long = var("long", 100, 1000)
    (dim,) = canonical_dims(region((ceildiv(long, 8),))).actual
    assert dim.bounds == (13, 125)


def test_layers_of_a_pyramid_share_their_kernels() -> None:
    """A window of 3 with stride 2 and padding 1 has the same form at every level."""
    levels = 4

    def body(x: Value) -> Value:
        for _ in range(levels):
            x = tanh(max_pool(x, kernel=(3, 3), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1)))
        return x

    module = build([tensor(dt.f32, (1, 3, h, w))], body)
    scheduled(module)
    calls = [op.attrs["kernel"] for op in module.main.body.ops if op.name == "call"]
    assert len(calls) == levels * len(set(calls))
    x = np.random.default_rng(5).standard_normal((1, 3, 37, 50)).astype(np.float32)
    wanted = x.astype(np.float64)
    for _ in range(levels):
        wanted = np.tanh(_max_of_windows(wanted))
    np.testing.assert_allclose(run(module, [x])[0], wanted, rtol=1e-5, atol=1e-6)


def _max_of_windows(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (1, 2)), constant_values=-np.inf)
    rows, columns = -(-x.shape[2] // 2), -(-x.shape[3] // 2)
    parts = [
        padded[:, :, i : i + 2 * rows : 2, j : j + 2 * columns : 2][:, :, :rows, :columns]
        for i in range(3)
        for j in range(3)
    ]
    return np.max(parts, axis=0)


def test_dims_that_are_the_same_are_one_dim() -> None:
    a, b, c = var("a", 0), var("b", 0), var("c", 0)
    dims = canonical_dims(region((a, c), (b, 2 * b)), {b: a, c: sym(45)})
    assert [str(d) for d in dims.of((a, c, b, 2 * b))] == ["n0", "45", "n0", "2*n0"]
    assert {str(named): str(value) for named, value in dims.actual.items()} == {"n0": "a"}


def test_a_sum_of_which_nothing_else_occurs_is_one_dim() -> None:
    a, b, c = var("a", 1), var("b", 2), var("c", 0)
    dims = canonical_dims(region((a + b + c, sym(4)), (2 * (a + b + c) + 1, 8 * a + 8 * b + 8 * c)))
    assert [str(d) for d in dims.of((a + b + c, 3 * (a + b + c)))] == ["n0", "3*n0"]
    assert {str(named): str(value) for named, value in dims.actual.items()} == {"n0": "a + b + c"}
    assert next(iter(dims.actual)).bounds == (3, None)


@pytest.mark.parametrize(
    "shape", [(h + w, h), (h + w, h * w), (h + w, h + 2 * w), (h + w + 1, ceildiv(h, 2)), (2 * h + w, h + w)]
)
def test_sums_of_which_a_part_occurs_stay_sums(shape: tuple[Sym, ...]) -> None:
    dims = canonical_dims(region(shape))
    assert len(dims.actual) == 2
    for model in ({"h": 3, "w": 11}, {"h": 8, "w": 1}):
        kernel = {v.name: value.evaluate(model) for v, value in dims.actual.items()}
        assert [d.evaluate(kernel) for d in dims.of(shape)] == [d.evaluate(model) for d in shape]


@pytest.mark.parametrize("op", ["Add", "Concat"])
def test_operands_of_unknown_sizes_lie_in_lines(op: str) -> None:
    """Calls check that their dims are equal, so that loops run over all of them at once."""
    shapes = [[f"{name}{k}" for k in range(4)] for name in "ab"]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip("ab", shapes, strict=True)]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    node = helper.make_node(op, ["a", "b"], ["y"], **({"axis": 1} if op == "Concat" else {}))
    graph = helper.make_graph([node], "g", infos, [result])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    texts = programs(proto, "loops")
    kernel = next(parse_kernel(text) for name, text in texts.items() if "stretch" not in name)
    assert [buffer_type(arg).rank for arg in kernel.args] == [2 if op == "Concat" else 1] * 3
    model = tilewright.compile(proto, cache=False)
    a, b = np.ones((2, 3, 5, 2), np.float32), np.full((2, 3, 5, 2), 2, np.float32)
    wanted = a + b if op == "Add" else np.concatenate([a, b], 1)
    np.testing.assert_array_equal(model(a, b)[0], wanted)
    with pytest.raises(tilewright.TilewrightError, match=r"5"):
        model(a, b[:, :, :4])
