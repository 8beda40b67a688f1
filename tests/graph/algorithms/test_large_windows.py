"""Pooling with windows that are large, or larger than what they slide over."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.graph.programs import ops, program, run
from tilewright.cost.conv import windows
from tilewright.graph.algorithms.large_windows import PlainWindows
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.ir.core import Value
from tilewright.ir.sym import var
from tilewright.ops.pool import max_pool, sum_pool
from tilewright.ops.view import pad

TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
         "int8": TensorProto.INT8, "uint8": TensorProto.UINT8}  # fmt: skip


def pooling(operator: str, shape: tuple[int, ...], dtype: str = "float32", **attrs: Any) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, TYPES[dtype], s) for n, s in (("x", shape), ("y", None))]
    graph = helper.make_graph([helper.make_node(operator, ["x"], ["y"], **attrs)], "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def expected(operator: str, x: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """Each window by itself, in float64."""
    space = x.shape[2:]
    rank = len(space)
    kernel, strides, dilations = (attrs[name] for name in ("kernel_shape", "strides", "dilations"))
    begin, end = attrs["pads"][:rank], attrs["pads"][rank:]
    counts = [
        (n + b + e - (k - 1) * d - 1) // s + 1
        for n, b, e, k, d, s in zip(space, begin, end, kernel, dilations, strides, strict=True)
    ]
    y = np.zeros((*x.shape[:2], *counts))
    for at in itertools.product(*map(range, counts)):
        inside = []
        for i, s, b, k, d, n in zip(at, strides, begin, kernel, dilations, space, strict=True):
            positions = i * s - b + np.arange(k) * d
            inside.append(positions[(positions >= 0) & (positions < n)])
        window = x[np.ix_(range(x.shape[0]), range(x.shape[1]), *inside)].reshape(*x.shape[:2], -1).astype(np.float64)
        if operator == "MaxPool":
            found = window.max(-1) if window.shape[-1] else -np.inf
        else:
            found = window.sum(-1) / (np.prod(kernel) if attrs.get("count_include_pad") else window.shape[-1])
        y[(..., *at)] = found
    return y


def drawn(rng: np.random.Generator) -> tuple[str, tuple[int, ...], dict[str, Any]]:
    rank = int(rng.integers(1, 4))
    while True:
        space, kernel = rng.integers(1, 8, rank), rng.integers(1, 13 if rank < 3 else 7, rank)
        strides, dilations = rng.integers(1, 5, rank), rng.integers(1, 4, rank)
        reach = (kernel - 1) * dilations + 1
        begin, end = rng.integers(0, kernel), rng.integers(0, kernel)
        if np.all(space + begin + end >= reach):
            break
    attrs = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": [*begin, *end]}
    attrs = {name: [int(v) for v in values] for name, values in attrs.items()}
    operator = str(rng.choice(["MaxPool", "AveragePool"]))
    if operator == "AveragePool":
        attrs["count_include_pad"] = int(rng.integers(2))
    return operator, (2, 3, *map(int, space)), attrs


@pytest.mark.fresh_seeds(3)
@pytest.mark.parametrize("doubling", [False, True])
def test_windows_of_any_size(monkeypatch: pytest.MonkeyPatch, doubling: bool, fresh_seed: int) -> None:
    """Clipped to what they can read, and grown by doubling wherever that is possible."""
    if doubling:
        monkeypatch.setattr(windows, "LEAST_SAVING", 0)
        monkeypatch.setattr(windows, "PASS", 0)
    rng = np.random.default_rng(fresh_seed)
    operator, shape, attrs = drawn(rng)
    x = rng.standard_normal(shape).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = expected(operator, x, attrs)
    (y,) = tilewright.compile(pooling(operator, shape, **attrs), cache=False, threads=1)(x)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_large_windows_of_each_type(operator: str, dtype: str) -> None:
    if operator == "AveragePool" and dtype.endswith("int8"):
        pytest.skip("there is no mean of bytes")
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((1, 2, 6000)) * 20).astype(dtype)
    attrs: dict[str, Any] = {"kernel_shape": [2001], "strides": [1], "dilations": [1], "pads": [1000, 1000]}
    model = tilewright.compile(pooling(operator, x.shape, dtype, **attrs), cache=False, threads=1)
    (y,) = model(x)
    assert y.dtype == x.dtype and model.report().kernels > 5
    loose = {"float16": 2e-3, "float32": 1e-5}.get(dtype, 1e-12)
    np.testing.assert_allclose(y.astype(np.float64), expected(operator, x, attrs), rtol=loose, atol=loose)


@pytest.mark.sweep
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 3e38])
def test_special_values_reach_their_windows_and_no_others(operator: str, special: float) -> None:
    x = np.random.default_rng(5).standard_normal((1, 1, 5000)).astype(np.float32)
    x[0, 0, 2400] = special
    attrs = {"kernel_shape": [1001], "strides": [1], "dilations": [1], "pads": [0, 0]}
    (y,) = tilewright.compile(pooling(operator, x.shape, **attrs), cache=False, threads=1)(x)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(y, expected(operator, x, attrs), rtol=1e-5, atol=1e-6)
    assert np.isfinite(y[0, 0, :1400]).all() and np.isfinite(y[0, 0, 2401:]).all()


def test_a_window_of_any_size_takes_work_of_the_sizes_of_input_and_output() -> None:
    """A mean of 510 x 16,895 elements, which takes minutes where each window is read."""
    attrs = {"kernel_shape": [510, 16895], "pads": [255] * 4, "count_include_pad": 1}
    model = tilewright.compile(pooling("AveragePool", (2, 1, 3, 32766), **attrs), cache=False, threads=1, profile=True)
    touched = sum(int(call.touched_bytes) for call in model.report().calls)
    assert touched < 40 * 4 * (2 * 3 * 32766 + 2 * 4 * 16382)
    (y,) = model(np.ones((2, 1, 3, 32766), np.float32))
    assert y.shape == (2, 1, 4, 16382)
    np.testing.assert_allclose(y[0, 0, 1, 300:15000], 3 / 510, rtol=1e-5)


def pooled(
    pool: Any, shape: tuple[Any, ...], kernel: tuple[int, ...], *, plain: bool = False, **attrs: Any
) -> list[str]:
    """The operators of a pool after canonicalisation (and the pass for `plain` layouts), which keep its results."""

    def one(x: Value) -> Value:
        found: Value = pool(x, kernel=kernel, **attrs)
        return found

    module = program(one, shape)
    run(module, Canonicalize())
    if plain:
        run(module, PlainWindows())
    return ops(module)


POOLS = [max_pool, sum_pool]


@pytest.mark.parametrize(
    ("kernel", "strides"),
    [((2, 2), (1, 1)), ((3, 3), (1, 1)), ((1, 13), (1, 1)), ((112, 112), (1, 1)), ((3, 3), (2, 2)), ((5, 5), (2, 2))],
)
@pytest.mark.parametrize("pool", POOLS)
def test_windows_that_are_small_or_few_stay_as_they_are(pool: Any, kernel: Any, strides: Any) -> None:
    assert pooled(pool, (1, 8, 112, 112), kernel, strides=strides) == [pool.name]
    if strides == (1, 1) and kernel != (112, 112):
        assert pooled(pool, (1, 2, var("h", 1), var("w", 1)), kernel, pads_begin=kernel, pads_end=kernel) == [pool.name]


@pytest.mark.parametrize(("pool", "nothing"), [(max_pool, -np.inf), (sum_pool, 0.0)])
def test_elements_that_were_added_and_change_nothing_are_not_read(pool: Any, nothing: float) -> None:
    """Of other elements the padded tensor stays."""
    for value, left in ((nothing, []), (1.5, ["pad"])):

        def padded(x: Value, value: float = value) -> Value:
            ends = (0, 0, 4, 4)
            found: Value = pool(pad(x, before=ends, after=ends, value=value), kernel=(9, 9))
            return found

        module = program(padded, (1, 64, 20, 20))
        run(module, Canonicalize())
        assert ops(module) == [*left, pool.name, pool.name]


@pytest.mark.sweep
@pytest.mark.parametrize("size", [5, 7, 9, 13, 31])
@pytest.mark.parametrize("pool", POOLS)
def test_windows_at_every_position_are_reduced_along_one_axis_after_the_other(pool: Any, size: int) -> None:
    ends: dict[str, Any] = {"pads_begin": (size // 2,) * 2, "pads_end": (size // 2,) * 2}
    assert pooled(pool, (1, 64, 20, 20), (size, size), **ends) == [pool.name] * 2


@pytest.mark.parametrize("kernel", [(5, 5), (1, 5, 7), (9, 13)])
@pytest.mark.parametrize("pool", POOLS)
def test_sizes_need_not_be_known(pool: Any, kernel: tuple[int, ...]) -> None:
    """Lines, which lanes lie along, are padded before."""
    space = tuple(var(name, 1) for name in "dhw"[-len(kernel) :])
    begin, end = tuple(k // 2 for k in kernel), tuple(k - 1 for k in kernel)
    found = pooled(pool, (var("n", 1), 2, *space), kernel, pads_begin=begin, pads_end=end)
    assert found == [pool.name, "pad", pool.name]


@pytest.mark.sweep(1)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("is_known", [True, False])
def test_windows_with_strides_along_lines_of_plain_images(pool: Any, is_known: bool) -> None:
    """Lanes that are positions read lines with strides slowly, and so once all other axes are reduced."""
    shape = (1, 64, 56, 56) if is_known else (1, 64, var("h", 1), var("w", 1))
    attrs: dict[str, Any] = {"pads_begin": (6, 6), "pads_end": (6, 6), "strides": (2, 2)}
    assert pooled(pool, shape, (5, 5), **attrs) == [pool.name]
    apart = [pool.name, pool.name] if is_known else [pool.name, "pad", pool.name]
    assert pooled(pool, shape, (5, 5), plain=True, **attrs) == apart
    assert pooled(pool, shape, (13, 13), **attrs) == apart
    assert pooled(pool, shape, (3, 3), plain=True, **attrs) == [pool.name]
    assert pooled(pool, shape, (5, 3), plain=True, **attrs | {"strides": (2, 1)}) == [pool.name]


@pytest.mark.sweep
@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_native_windows_over_images_of_any_size(operator: str, dtype: str, strides: list[int]) -> None:
    if operator == "AveragePool" and dtype.endswith("int8"):
        pytest.skip("there is no mean of bytes")
    attrs: dict[str, Any] = {"kernel_shape": [5, 7], "strides": strides, "dilations": [1, 2], "pads": [2, 6, 3, 6]}
    proto = pooling(operator, ("n", 3, "h", "w"), dtype, **attrs)
    model = tilewright.compile(proto, cache=False, threads=2)
    rng = np.random.default_rng(2)
    for shape in ((1, 3, 1, 1), (2, 3, 2, 9), (1, 3, 20, 20), (1, 3, 6, 67)):
        x = (rng.standard_normal(shape) * 20).astype(dtype)
        loose = {"float16": 2e-3, "float32": 1e-5}.get(dtype, 1e-12)
        wanted = expected(operator, x, attrs)
        np.testing.assert_allclose(model(x)[0].astype(np.float64), wanted, rtol=loose, atol=loose * 20)
