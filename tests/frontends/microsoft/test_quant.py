"""Operators between quantised tensors, and weights of few bits, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.microsoft.against import RNG, Case, agree, f16, f32, i8, ints, u8

S, T, U = np.float32(0.02), np.float32(0.013), np.float32(0.031)
Z, W = np.uint8(120), np.uint8(131)
A, B = np.int8(3), np.int8(-7)
SCALES = (RNG.uniform(0.01, 0.02, 6)).astype(np.float32)

QLINEAR = [
    Case("QLinearAdd", [u8(2, 3, 8), S, Z, u8(2, 3, 8), T, W, U, Z]),
    Case("QLinearAdd", [i8(2, 3, 8), S, A, i8(3, 1), T, B, U, A]),
    Case("QLinearMul", [u8(2, 3, 8), S, Z, u8(1, 8), T, W, U, Z], {}, (3, 4, 5)),
    Case("QLinearSigmoid", [u8(2, 9), S, Z, np.float32(1 / 256), np.uint8(0)], {}, (1, 2, 3, 4)),
    Case("QLinearSigmoid", [i8(2, 9), S, A, np.float32(1 / 256), np.int8(-128)]),
    Case("QLinearLeakyRelu", [u8(2, 9), S, Z, T, W], {"alpha": 0.2}, (1, 2, 3, 4)),
    Case(
        "QLinearSoftmax",
        [u8(2, 3, 9), U, Z, np.float32(1 / 256), np.uint8(0)],
        {"opset": 13, "axis": -1},
        (1, 2, 3, 4),
    ),
    Case(
        "QLinearSoftmax",
        [i8(2, 3, 9), U, A, np.float32(1 / 256), np.int8(-128)],
        {"opset": 12, "axis": 1},
        (1, 2, 3, 4),
    ),
    Case("QLinearGlobalAveragePool", [u8(2, 3, 4, 5), S, Z, T, W]),
    Case("QLinearGlobalAveragePool", [i8(2, 4, 5, 3), S, A, T, B], {"channels_last": 1}),
    Case(
        "QLinearAveragePool",
        [u8(1, 3, 7, 8), S, Z, T, W],
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
    ),
    Case("QLinearAveragePool", [i8(1, 7, 8, 3), S, A, T, B], {"kernel_shape": [2, 3], "channels_last": 1}),
    Case("QLinearConcat", [S, Z, u8(2, 3), T, W, u8(2, 4), U, Z], {"axis": 1}, (0, 1, 3, 4, 6, 7)),
    Case(
        "QLinearWhere",
        [ints(0, 2, 2, 9, dtype=bool), u8(2, 9), S, Z, u8(2, 9), T, W, U, Z],
        {},
        (2, 3, 5, 6, 7, 8),
    ),
    Case(
        "QLinearConv",
        [u8(1, 7, 8, 3), S, Z, i8(6, 3, 3, 3), SCALES, np.zeros(6, np.int8), U, W, ints(-99, 99, 6)],
        {"channels_last": 1, "pads": [1] * 4},
        (1, 2, 3, 4, 5, 6, 7, 8),
    ),
    Case(
        "QLinearConv", [u8(1, 3, 7, 8), S, Z, i8(6, 3, 3, 3), T, np.int8(0), U, W], {}, (1, 2, 3, 4, 5, 6, 7)
    ),
    Case(
        "QGemm",
        [u8(3, 8), S, Z, i8(8, 6), SCALES, np.zeros(6, np.int8), ints(-99, 99, 6), U, W],
        {"alpha": 0.7},
        (1, 2, 3, 4, 5, 6, 7, 8),
    ),
    Case("QGemm", [u8(8, 3), S, Z, u8(6, 8), T, W], {"transA": 1, "transB": 1}, (1, 2, 3, 4, 5)),
    Case("NhwcMaxPool", [u8(1, 7, 8, 3)], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
    Case("QuantizeLinear", [f32(2, 9) * 99, np.float32(0.01), np.uint16(30000)]),
    Case("QuantizeLinear", [f32(2, 9), np.float32([0.01, 0.1]), np.int8([3, -3])], {"axis": 0}),
    Case("DequantizeLinear", [ints(-9999, 9999, 2, 9, dtype=np.int16), T, np.int16(-31)]),
    Case("DequantizeLinear", [u8(2, 6), SCALES, u8(6)], {"axis": 1}),
]
PRODUCTS = [
    Case("DynamicQuantizeMatMul", [f32(2, 3, 8), i8(8, 6), SCALES], {}, (1, 2)),
    Case("DynamicQuantizeMatMul", [f32(3, 8), u8(8, 6), T, W, f32(6)], {}, (1, 2, 3, 4)),
    Case("MatMulIntegerToFloat", [u8(2, 3, 8), i8(8, 6), S, SCALES, Z, None, f32(6)], {}, (1,)),
    Case("MatMulIntegerToFloat", [u8(3, 8), u8(8, 6), S, T, None, W], {}, (1,)),
    Case(
        "MatMulInteger16",
        [ints(-999, 999, 3, 8, dtype=np.int16), ints(-999, 999, 8, 6, dtype=np.int16)],
        error=0,
    ),
]


@pytest.mark.sweep
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("case", [*QLINEAR, *PRODUCTS], ids=str)
def test_it_means_what_onnxruntime_does(case: Case, symbolic: bool, fresh_seed: int) -> None:
    agree(case.redrawn(fresh_seed), symbolic and "Pool" not in case.op and "Conv" not in case.op)


def n_bits(
    k: int,
    n: int,
    bits: int,
    block: int,
    zeros: str = "",
    bias: bool = False,
    dtype: Any = np.float32,
    **attrs: int,
) -> Case:
    blocks = -(-k // block)
    scale = RNG.uniform(0.01, 0.1, (n, blocks)).astype(dtype)
    zero = {
        "": None,
        "packed": u8(n, -(-blocks * bits // 8)),
        "floats": RNG.uniform(0, 2**bits, (n, blocks)).astype(dtype),
    }[zeros]
    arrays = [
        f32(2, 3, k).astype(dtype),
        u8(n, blocks, block * bits // 8),
        scale,
        zero,
        None,
        f32(n) if bias else None,
    ]
    while arrays[-1] is None:
        arrays.pop()
    return Case(
        "MatMulNBits",
        arrays,
        {"K": k, "N": n, "bits": bits, "block_size": block, **attrs},
        (1, 2, 3, 5),
        error=2e-5,
    )


@pytest.mark.sweep
@pytest.mark.parametrize("known", [True, False], ids=["known", "data"])
@pytest.mark.parametrize(
    "case",
    [
        n_bits(64, 8, 4, 32),
        n_bits(48, 9, 4, 16, "packed"),
        n_bits(40, 9, 4, 32, "floats", bias=True),
        n_bits(64, 8, 8, 32),
        n_bits(40, 8, 8, 16, "packed"),
        n_bits(64, 8, 2, 32),
        n_bits(64, 9, 4, 32, dtype=np.float16, accuracy_level=1),
    ],
    ids=str,
)
def test_weights_of_few_bits(case: Case, known: bool) -> None:
    agree(
        Case(case.op, case.arrays, case.attrs, case.known if known else (), error=case.error), symbolic=known
    )


def test_columns_that_name_their_group() -> None:
    """The group of a column is not that of its place: the definition, in float64."""
    case, groups = n_bits(64, 8, 4, 32), ints(0, 2, 64)

    def reference(a: np.ndarray, packed: np.ndarray, scale: np.ndarray, *others: object) -> list[np.ndarray]:
        q = np.stack([packed & 15, packed >> 4], -1).reshape(8, 64)
        return [(a.astype(np.float64) @ ((q - 8.0) * scale[:, groups]).T).astype(np.float32)]

    arrays = [*case.arrays, None, groups]
    agree(Case(case.op, arrays, case.attrs, (1, 2, 4), error=case.error), reference=reference)


GATHERS = [
    Case(
        "GatherBlockQuantized",
        [u8(9, 32), ints(0, 9, 2, 3), f32(9, 2)],
        {"block_size": 32, "bits": 4},
        (0, 2),
        error=1e-6,
    ),
    Case(
        "GatherBlockQuantized",
        [u8(9, 32), ints(0, 9, 2, 3), f32(9, 4), u8(9, 2)],
        {"block_size": 16},
        (0, 2, 3),
        error=1e-6,
    ),
    Case(
        "GatherBlockQuantized",
        [u8(9, 32), ints(-9, 9, 3), f32(9, 2), u8(9, 2)],
        {"block_size": 16, "bits": 8},
        (0, 2, 3),
        error=1e-6,
    ),
    Case(
        "GatherBlockQuantized", [u8(9, 32), ints(0, 9, 3), f16(9, 2)], {"block_size": 32}, (0, 2), error=1e-6
    ),
]


@pytest.mark.parametrize("case", GATHERS, ids=str)
def test_slices_of_weights_of_few_bits(case: Case) -> None:
    agree(case, symbolic=True)


def test_integers_that_are_multiplied_and_summed() -> None:
    """By hand: ONNX Runtime's CPU has neither."""
    a, b = u8(2, 3), u8(3)
    product = (a.astype(np.int32) - 7) * (b.astype(np.int32) - 9)
    agree(Case("MulInteger", [a, np.uint8(7), b, np.uint8(9)], error=0), reference=lambda *_: [product])
    sums = a.sum(1, keepdims=True, dtype=np.int32)
    agree(Case("ReduceSumInteger", [a], {"axes": [1], "keepdims": 1}, error=0), reference=lambda *_: [sums])


def test_a_mean_in_quantised_numbers() -> None:
    x = u8(2, 3, 8)
    mean = ((x - 120.0) * 0.02).mean((0, 2)) / 0.013
    wanted = np.clip(np.round(mean) + 131, 0, 255).astype(np.uint8)
    case = Case("QLinearReduceMean", [x, S, Z, T, W], {"axes": [0, -1], "keepdims": 0})
    agree(case, reference=lambda *_: [wanted])
