"""Products of bytes by the machine's instructions for groups: machine code against int64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.target.host import host_target
from tilewright.target.named import parse_target

RNG = np.random.default_rng(9)
MACHINES = ("host", "x86-64", "x86-64-v3", "zen3", "x86-64-v4", "cascadelake")
TYPES = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}


def integers(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def skip_unless_it_runs(machine: str) -> None:
    missing = set(parse_target(machine).features) - set(host_target().features)
    if missing:
        pytest.skip(f"this machine lacks {', '.join(sorted(missing))}")


def product(a, b, a_zero, b_zero, rows=None):
    """A model of MatMulInteger with constant b."""
    constants = {"b": b, "a_zero": a_zero, "b_zero": b_zero}
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b", "a_zero", "b_zero"], ["y"])],
        "g",
        [helper.make_tensor_value_info("a", TYPES[a.dtype.type], [rows or a.shape[0], a.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(x, name) for name, x in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.sweep
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("shape", [(1, 64, 48), (19, 32, 70), (6, 16, 4), (3, 10, 5)], ids=str)
@pytest.mark.parametrize("right", TYPES)
@pytest.mark.parametrize("left", TYPES)
def test_products_are_exact(left, right, shape, machine):
    skip_unless_it_runs(machine)
    m, k, n = shape
    a, b = integers(left, m, k), integers(right, k, n)
    a[0], b[:, 0] = np.iinfo(left).max, np.iinfo(right).min
    a_zero, b_zero = np.array(100, left), integers(right, n)
    for rows in (None, "rows"):
        model = product(a, b, a_zero, b_zero, rows)
        (found,) = tilewright.compile(model, threads=1, cache=False, target=machine)(a)
        wide = a.astype(np.int64) - 100, b.astype(np.int64) - b_zero
        np.testing.assert_array_equal(found, wide[0] @ wide[1])


@pytest.mark.parametrize("machine", MACHINES)
def test_sums_do_not_saturate(machine):
    """Neither those of a pair of products at 16 bits, nor those of a group."""
    skip_unless_it_runs(machine)
    a, b = np.full((4, 256), 255, np.uint8), np.full((256, 32), -128, np.int8)
    b[:, ::2] = 127
    model = product(a, b, np.uint8(0), np.int8(0))
    (found,) = tilewright.compile(model, threads=1, cache=False, target=machine)(a)
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.sweep
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_few_rows_that_wait_for_bytes_have_exact_sums(rows, machine, fresh_seed):
    """Weights that stay bytes on machines which multiply wider integers."""
    skip_unless_it_runs(machine)
    rng = np.random.default_rng(fresh_seed)
    a = rng.integers(0, 256, (rows, 514)).astype(np.uint8)
    b = rng.integers(-128, 128, (514, 1029)).astype(np.int8)
    model = product(a, b, np.uint8(31), np.int8(0))
    (found,) = tilewright.compile(model, threads=1, cache=False, target=machine)(a)
    np.testing.assert_array_equal(found, (a.astype(np.int64) - 31) @ b.astype(np.int64))


def windows(x, w, zero, pads, strides, width=None):
    """A model of ConvInteger that sums each channel by itself."""
    channels = len(w)
    node = helper.make_node(
        "ConvInteger", ["x", "w", "zero"], ["y"], group=channels, pads=[*pads, *pads], strides=strides
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TYPES[x.dtype.type], [*x.shape[:-1], width or x.shape[-1]])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, None)],
        [numpy_helper.from_array(a, name) for name, a in {"w": w, "zero": zero}.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.sweep(2)
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("machine", [*MACHINES, "zen4"])
@pytest.mark.parametrize("zero", [0, 93])
@pytest.mark.parametrize(
    ("kernel", "stride"), [((3, 3), 1), ((3, 3), 2), ((5, 5), 1), ((1, 2), 1), ((2, 4), 3), ((1, 9), 1)]
)
def test_windows_of_each_channel_have_exact_sums(kernel, stride, zero, machine, fresh_seed):
    """Where neighbours are multiplied in groups, lines are filled up to whole ones: nothing beyond them counts."""
    skip_unless_it_runs(machine)
    rng = np.random.default_rng(fresh_seed)
    x = rng.integers(0, 256, (2, 40, 7, 21)).astype(np.uint8)
    w = rng.integers(-128, 128, (40, 1, *kernel)).astype(np.int8)
    pads = [n // 2 for n in kernel]
    centred = np.pad(x.astype(np.int64) - zero, [(0, 0), (0, 0), *((p, p) for p in pads)])
    seen = np.lib.stride_tricks.sliding_window_view(centred, kernel, axis=(2, 3))[:, :, ::stride, ::stride]
    for width in (None, "width"):
        model = windows(x, w, np.uint8(zero), pads, [stride, stride], width)
        (found,) = tilewright.compile(model, threads=1, cache=False, target=machine)(x)
        np.testing.assert_array_equal(found, np.einsum("nchwkl,ckl->nchw", seen, w[:, 0].astype(np.int64)))


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("machine", "taps"), [("zen4", 3), ("zen4", 5), ("zen4", 1), ("cascadelake", 3)])
def test_neighbours_in_each_channel_are_shuffled_into_groups(machine, taps):
    """One instruction shuffles and one adds up four; without that shuffle, each neighbour is multiplied by itself."""
    x, w = integers(np.uint8, 1, 32, 12, 64), integers(np.int8, 32, 1, 3, taps)
    model = windows(x, w, np.uint8(7), [1, taps // 2], [1, 1])
    products = tilewright.compile(model, threads=1, cache=False, target=machine).report().products
    is_grouped = machine == "zen4" and taps > 1
    assert any(product.form.instruction == "vpdpbusd" for product in products) == is_grouped
