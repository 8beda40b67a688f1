"""Operators of models of language, against ONNX Runtime, or where its CPU has none by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.microsoft.against import Case, agree, f16, f32, ints, u8
from tilewright.frontends.onnx.load import load_onnx

TOKENS = np.array([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4]])
ROUTED = [f32(7, 8), f32(7, 4)]
WIDE = [f32(4, 12, 8), f32(4, 12)]
HALVES = [f32(4, 24, 8), f32(4, 24)]
BACK = [f32(4, 8, 12), f32(4, 8)]
TABLES = [np.cos(f32(20, 8)), np.sin(f32(20, 8))]


def embeddings() -> list[Any]:
    """Tables of bytes, and the scale and zero point of each."""
    tables = [u8(9, 16), u8(5, 16), u8(2, 16), u8(16), u8(16)]
    return [
        ints(0, 9, 2, 5), ints(0, 2, 2, 5), *tables, np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32),
        *[np.float32(s) for s in (0.03, 0.02, 0.05, 0.01, 0.02)], *[np.uint8(z) for z in (128, 120, 7, 0, 200)],
    ]  # fmt: skip


def rotations(sections: list[int], layout: int, **attrs: Any) -> Case:
    given = {"mrope_section": sections, "mrope_layout": layout, **attrs}
    return Case("MRotaryEmbedding", [f32(2, 3, 5, 16), ints(0, 20, 3, 2, 5, dtype=np.int64), *TABLES], given)


def experts(bits: int, block: int, *, zeros: bool = False, weights: bool = False, **attrs: Any) -> Case:
    """Eight experts of 32 and 64 elements, with weights of so many bits in blocks (0: columns) that have scales."""
    pack, width = 8 // bits, 128 if attrs.get("activation_type") == "swiglu" else 64

    def layer(columns: int, size: int) -> list[Any]:
        scales = (8, columns, size // block) if block else (8, columns)
        return [u8(8, columns, size // pack), np.abs(f32(*scales)) * np.float32(0.1), f32(8, columns)]

    def zero_points(columns: int, size: int) -> Any:
        if not zeros:
            return None
        return u8(8, columns, -(-size // block // pack)) if block else u8(8, columns // pack)

    arrays = [f32(7, 32), f32(7, 8), *layer(width, 32), *layer(32, 64), None, None, None]
    arrays += [zero_points(width, 32), zero_points(32, 64), None, np.abs(f32(7, 8)) if weights else None]
    while arrays[-1] is None:
        arrays.pop()
    attrs = {"expert_weight_bits": bits, "k": 2, **({"block_size": block} if block else {}), **attrs}
    return Case("QMoE", arrays, attrs, tuple(range(2, 14)), error=1e-5)


CASES = [
    Case("ScaledSiLU", [f32(3, 5)], {"alpha": 1.5}),
    Case("ScaledSiLU", [f32(3, 5), np.float32(0.7)]),
    Case("GatedRMSNorm", [f32(2, 3, 8), f32(4), f32(2, 3, 8)], {"epsilon": 1e-3, "activation": "sigmoid"}),
    Case("GatedRMSNorm", [f32(2, 3, 8), f32(8), f32(2, 3, 8)]),
    Case("BranchwiseRMSNorm", [f32(2, 3, 8), f32(8)], {"num_branches": 2, "epsilon": 1e-3}),
    Case("BranchwiseRMSNorm", [f32(2, 3, 8), f32(4)], {"num_branches": 2}),
    Case("BranchwiseRMSNorm", [f32(2, 3, 8), f32(3, 8)]),
    Case("GatedAdd", [f32(2, 3, 8), f32(2, 3, 8), f32(2, 3, 1)]),
    Case("LinearAttentionGate", [f32(2, 3, 4), f32(4), f32(4), f32(2, 3, 4)], outputs=(True, True)),
    Case("LinearAttentionGate", [f16(2, 3, 4), f32(4), f32(4)]),
    Case(
        "LinearAttention",
        [f32(2, 5, 8), f32(2, 5, 8), f32(2, 5, 6), f32(2, 2, 4, 3)],
        {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear", "scale": 0.5},
        outputs=(True, True), error=1e-5,
    ),
    Case(
        "CausalConvWithState", [f32(2, 4, 6), f32(4, 1, 3), f32(4), f32(2, 4, 2)], {"activation": "silu"},
        outputs=(True, True),
    ),
    rotations([3, 2, 3], 0),
    rotations([4, 2, 2], 1),
    rotations([3, 2, 3], 0, interleaved=1),
    Case("QEmbedLayerNormalization", embeddings(), {"epsilon": 1e-5}, tuple(range(2, 7)), (True, True), 1e-5),
    Case("MatMulBnb4", [f32(3, 32), u8(24 * 32 // 2), np.abs(f32(24 * 32 // 16))],
         {"K": 32, "N": 24, "block_size": 16, "quant_type": 0}, (1, 2), error=1e-5),
    Case("MatMulBnb4", [f32(3, 32), u8(24 * 32 // 2), np.abs(f32(24 * 32 // 64))],
         {"K": 32, "N": 24, "block_size": 64, "quant_type": 1}, error=1e-5),
    Case("NGramRepeatBlock", [TOKENS, f32(2, 6)], {"ngram_size": 3}),
    Case("NGramRepeatBlock", [TOKENS, f32(2, 6)], {"ngram_size": 2}),
    Case("NGramRepeatBlock", [TOKENS[:, :2], f32(2, 6)], {"ngram_size": 4}),
    Case("UnfoldTensor", [f32(2, 7, 3)], {"dim": 1, "size": 3, "step": 2}),
    Case("UnfoldTensor", [f32(2, 7)], {"size": 3}),
    Case("MoE", [*ROUTED, *WIDE, *BACK], {"k": 2, "activation_type": "gelu"}, error=1e-5),
    Case("MoE", [*ROUTED, *WIDE, *BACK], {"k": 2, "activation_type": "silu", "normalize_routing_weights": 1},
         error=1e-5),
    Case("MoE", [*ROUTED, *HALVES, *BACK],
         {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0,
          "swiglu_limit": 0.9}, error=1e-5),
    experts(8, 0),
    experts(4, 16, activation_type="silu"),
    experts(4, 32, zeros=True, activation_type="gelu"),
    experts(2, 16, zeros=True),
    experts(4, 0, zeros=True, weights=True),
    experts(4, 16, weights=True, normalize_routing_weights=1),
    experts(4, 16, activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.7, swiglu_limit=0.9),
]  # fmt: skip


@pytest.mark.sweep(7)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_means_what_onnxruntime_does(case: Case, symbolic: bool) -> None:
    fixed = ("LinearAttention", "CausalConvWithState", "MRotaryEmbedding", "GatedRMSNorm", "BranchwiseRMSNorm")
    agree(case, symbolic and case.op not in (*fixed, "MoE", "MatMulBnb4"))  # these need to know widths


@pytest.mark.parametrize(("columns", "block"), [(64, 32), (48, 32)])
def test_codes_of_4_bits_are_looked_up(columns: int, block: int) -> None:
    """Of floats of 4 bits, whose blocks may go on in the next row."""
    weights = [u8(512 * columns // 2), np.abs(f32(512 * columns // block))]
    case = Case("MatMulBnb4", [f32(3, columns), *weights],
                {"K": columns, "N": 512, "block_size": block, "quant_type": 1}, (1, 2), error=1e-5)  # fmt: skip
    module = load_onnx(case.model().SerializeToString())
    assert {op.name for op in module.main.body.ops} >= {"level", "matmul"}
    assert "uint4" in {array.dtype.name for array in module.constants.values()}
    agree(case)


def test_unique_elements_in_the_order_in_which_they_come() -> None:
    agree(Case("Unique", [np.float32([2, 1, 1, 3, 4, 3])], outputs=(True, True, True), error=0))


X, Y = f32(3, 6), f32(3, 6)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def test_gated_swish() -> None:
    attrs = {"activation_alpha": 1.7, "activation_beta": 1.0, "limit": 0.8}
    gate, up = np.minimum(X, np.float32(0.8)), np.clip(Y, -0.8, 0.8)
    wanted = gate * sigmoid(1.7 * gate) * (up + 1)
    agree(Case("SwiGLU", [X, Y], attrs), reference=lambda *_: [wanted])
    agree(Case("SwiGLU", [np.concatenate([X, Y], 1)], attrs), reference=lambda *_: [wanted])


def test_complex_products() -> None:
    a, b = f32(3, 4, 2), f32(3, 4, 2)
    first, second = a[..., 0] + 1j * a[..., 1], b[..., 0] + 1j * b[..., 1]
    for op, wanted in (("ComplexMul", first * second), ("ComplexMulConj", first * second.conj())):
        parts = np.stack([wanted.real, wanted.imag], -1).astype(np.float32)
        agree(Case(op, [a, b]), reference=lambda *_, parts=parts: [parts])


def test_fourier_transforms() -> None:
    x = f32(3, 16)
    spectrum = np.fft.rfft(x)
    parts = np.stack([spectrum.real, spectrum.imag], -1).astype(np.float32)
    agree(Case("Rfft", [x], {"signal_ndim": 1, "onesided": 1, "normalized": 0}), reference=lambda *_: [parts])
    agree(Case("Irfft", [parts], {"signal_ndim": 1}), reference=lambda *_: [x])


def test_products_with_activations() -> None:
    a, b, bias = f32(3, 4), f32(4, 5), f32(5)
    product = a @ b
    gelu = lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))  # noqa: E731
    agree(Case("GemmFastGelu", [a, b, bias]), reference=lambda *_: [gelu(product + bias).astype(np.float32)])
    case = Case("FusedMatMulActivation", [a, b], {"activation": "LeakyRelu", "activation_alpha": 0.2, "alpha": 2.0})
    agree(case, reference=lambda *_: [np.where(product > 0, 2 * product, np.float32(0.4) * product)])


def test_dropout_with_a_bias_adds_when_it_does_not_train() -> None:
    x, bias, residual = f32(2, 3), f32(3), f32(2, 3)
    agree(Case("BiasDropout", [x, bias, residual]), reference=lambda *_: [x + bias + residual])
    agree(Case("BitmaskDropout", [x]), reference=lambda *_: [x])


def test_an_embedding_is_a_table() -> None:
    table, rows = f32(5, 3), np.array([[1, 4], [0, 1]])
    agree(Case("TorchEmbedding", [table, rows, np.int64(1)], {}, (2,)), reference=lambda *_: [table[rows]])


@pytest.mark.parametrize("both", [False, True])
def test_biases_of_distances(both: bool) -> None:
    """By the formula of T5, one distance after the other."""
    rows, most = 32, 128
    table = f32(rows, 3)
    count = rows // 2 if both else rows

    def row_of(distance: int) -> int:
        n, first = (abs(distance), count * (distance > 0)) if both else (max(-distance, 0), 0)
        exact = count // 2
        if n < exact:
            return first + n
        share = np.log(np.float32(n) / np.float32(exact)) / np.float32(np.log(most / exact))
        return first + min(exact + int(share * (count - exact)), count - 1)

    wanted = np.array([[table[row_of(k - q)] for k in range(200)] for q in range(190)])
    case = Case(
        "RelativePositionBias", [table, np.int64(190), np.int64(200)],
        {"max_distance": most, "is_bidirectional": int(both)}, (), error=0,
    )  # fmt: skip
    agree(case, reference=lambda *_: [wanted.transpose(2, 0, 1)[None]])


def test_gated_biases_of_distances() -> None:
    batch, steps, heads, size = 2, 5, 3, 4
    x, x_bias, biases = f32(batch, steps, heads * size), f32(heads * size), f32(1, heads, steps, steps)
    weight, shift, eco = f32(size, 8), f32(8), f32(1, heads, 1, 1)
    q = (x + x_bias).reshape(batch, steps, heads, size).swapaxes(1, 2)
    gates = sigmoid((q @ weight + shift).reshape(batch, heads, steps, 2, 4).sum(-1))
    wanted = (gates[..., :1] * (gates[..., 1:] * eco - 1) + 2) * biases
    case = Case("GatedRelativePositionBias", [x, x_bias, biases, weight, shift, eco], {"num_heads": heads}, error=1e-5)
    agree(case, reference=lambda *_: [wanted.astype(np.float32)])


def test_rotations_of_gemma() -> None:
    angles, q = f32(2, 3, 4), [f16(2, 2, 3, 4) for _ in range(4)]
    cos, sin = (f(angles)[:, None].astype(np.float16) for f in (np.cos, np.sin))
    wanted = [q[0] * cos + q[1] * sin, q[2] * cos + q[3] * sin]
    agree(Case("GemmaRotaryEmbedding", [angles, *q], outputs=(True, True)), reference=lambda *_: wanted)


def test_experts_that_no_token_takes_are_not_read() -> None:
    """Nothing that their weights are, not even infinite ones, gets into a result."""
    x, logits = ROUTED
    first, last = WIDE[0].copy(), BACK[0]
    logits = logits.copy()
    logits[:, 1] = -9
    first[1] = np.inf
    chosen = logits.argmax(1)
    shares = np.exp(logits).max(1) / np.exp(logits).sum(1)
    rows = [share * (last[e] @ np.maximum(first[e] @ row, 0)) for row, e, share in zip(x, chosen, shares, strict=True)]
    case = Case("MoE", [x, logits, first, None, last], {"activation_type": "relu"}, error=1e-5)
    agree(case, reference=lambda *_: [np.stack(rows).astype(np.float32)])


def test_separate_gates_of_experts() -> None:
    """A third product, which ONNX Runtime's CPU has not."""
    x, logits = ROUTED
    gate, last = f32(4, 12, 8), BACK[0]
    chosen = logits.argmax(1)
    shares = np.exp(logits).max(1) / np.exp(logits).sum(1)
    rows = []
    for row, expert, share in zip(x, chosen, shares, strict=True):
        hidden = np.maximum(WIDE[0][expert] @ row, 0) * (gate[expert] @ row)
        rows.append(share * (last[expert] @ hidden))
    case = Case("MoE", [x, logits, WIDE[0], None, last, None, gate], {"activation_type": "relu"}, error=1e-5)
    agree(case, reference=lambda *_: [np.stack(rows).astype(np.float32)])


