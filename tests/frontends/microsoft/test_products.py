"""Fused products, convolutions and activations against ONNX Runtime."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest

from tests.frontends.microsoft.against import Case, agree, by_onnxruntime, f16, f32

CASES = [
    Case("FusedMatMul", [f32(2, 3, 4), f32(2, 4, 5)], {"alpha": 0.3}),
    Case("FusedMatMul", [f32(2, 4, 3), f32(2, 5, 4)], {"transA": 1, "transB": 1}),
    Case("FusedMatMul", [f32(3, 2, 4), f32(2, 4, 5)], {"transBatchA": 1}),
    Case(
        "FusedMatMul",
        [f32(4, 2, 6, 3), f32(5, 2, 6, 4)],
        {"transBatchA": 1, "transBatchB": 1, "transB": 1, "transA": 1},
    ),
    Case("FusedMatMul", [f32(3), f32(3, 4)], {"alpha": 2.0}),
    Case("TransposeMatMul", [f32(4, 3), f32(4, 5)], {"transA": 1}),
    Case("FusedGemm", [f32(3, 4), f32(4, 5), f32(5)], {"activation": "Relu", "alpha": 0.5, "beta": 2.0}),
    Case(
        "FusedGemm",
        [f32(4, 3), f32(5, 4)],
        {"activation": "LeakyRelu", "activation_alpha": 0.2, "transA": 1, "transB": 1},
    ),
    Case("FusedGemm", [f32(3, 4), f32(4, 5), f32(3, 1)], {"activation": "Tanh"}),
    Case(
        "FusedConv",
        [f32(1, 4, 6, 7), f32(6, 2, 3, 3), f32(6)],
        {"group": 2, "pads": [1] * 4, "activation": "Relu", "activation_params": [9.0]},  # which nothing reads
        (1,),
    ),
    Case(
        "FusedConv",
        [f32(1, 2, 6, 7), f32(3, 2, 3, 3)],
        {"strides": [2, 2], "activation": "LeakyRelu", "activation_params": [0.2]},
        (1,),
    ),
    Case(
        "FusedConv",
        [f32(1, 2, 6, 7), f32(3, 2, 3, 3), f32(3), f32(1, 3, 4, 5)],
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
        (1, 2),
    ),
    Case(
        "FusedConv",
        [f32(1, 2, 6, 7), f32(3, 2, 3, 3), f32(3)],
        {"auto_pad": "SAME_UPPER", "activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
        (1, 2),
    ),
    Case("FusedConv", [f32(1, 2, 6, 7), f32(3, 2, 1, 1), f32(3), f32(1, 3, 6, 7)], {}, (1, 2)),
    Case(
        "ConvTransposeWithDynamicPads",
        [f32(1, 2, 4, 5), f32(2, 3, 3, 3), np.array([1, 0, 1, 2]), f32(3)],
        {"strides": [2, 2], "output_padding": [1, 0]},
        (1, 2),
    ),
    Case("Gelu", [f32(3, 5)]),
    Case("FastGelu", [f32(2, 3, 8)]),
    Case("FastGelu", [f32(2, 3, 8), f32(8)]),
    Case("FastGelu", [f16(2, 3, 8), f16(8)]),
    Case("BiasGelu", [f32(2, 3, 8), f32(8)]),
    Case("QuickGelu", [f32(4, 5)]),
    Case("QuickGelu", [f32(4, 5)], {"alpha": 1.0}),
]


@pytest.mark.sweep(7)
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_means_what_onnxruntime_does(case: Case, symbolic: bool, fresh_seed: int) -> None:
    agree(case.redrawn(fresh_seed), symbolic and "Conv" not in case.op)


@pytest.mark.parametrize("last", [False, True], ids=["filters mchw", "filters mhwc"])
def test_images_whose_channels_come_last(last: bool) -> None:
    """ONNX Runtime's CPU has no such convolution in float32: it is compared with its convolution of the others."""
    x, w, b, z = f32(1, 5, 6, 4), f32(3, 4, 3, 2), f32(3), f32(1, 3, 5, 3)
    plain = Case("FusedConv", [np.moveaxis(x, 3, 1), w, b, np.moveaxis(z, 3, 1)], {"activation": "Relu"})
    (wanted,) = by_onnxruntime(plain.model(), plain.given)
    arrays = [x, np.moveaxis(w, 1, 3).copy() if last else w, b, z]
    case = Case("NhwcFusedConv", arrays, {"activation": "Relu", "kernel_shape": [3, 2]}, (1, 2))
    agree(case, reference=lambda *arrays: [np.moveaxis(wanted, 1, 3)])


def test_halves_of_the_channels() -> None:
    def reference(x: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
        left, right = np.split((x + bias).astype(np.float64), 2, axis=-1)
        return [(left * right * (1 + np.vectorize(erf)(right / np.sqrt(2))) / 2).astype(np.float32)]

    agree(Case("BiasSplitGelu", [f32(2, 3, 8), f32(8)]), reference=reference)


@pytest.mark.parametrize("axis", [2, 1])
def test_a_softmax_of_a_sum(axis: int) -> None:
    def reference(x: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
        powers = np.exp((x + bias).astype(np.float64))
        return [(powers / powers.sum(tuple(range(axis, 3)), keepdims=True)).astype(np.float32)]

    agree(
        Case("BiasSoftmax", [f32(2, 3, 4), f32(2, 1, 4)], {"axis": axis, "is_inner_broadcast": 1}),
        reference=reference,
    )


def test_a_bias_and_a_skip() -> None:
    agree(Case("BiasAdd", [f32(2, 3, 8), f32(8), f32(2, 3, 8)]), reference=lambda x, b, s: [x + b + s])
