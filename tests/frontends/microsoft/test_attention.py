"""Attention, with caches and rotary positions, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.microsoft.against import Case, agree, by_onnxruntime, f16, f32, i8, ints, u8
from tests.saturating import unsaturated


def mask(*shape: int) -> np.ndarray:
    """Which keys are visible. The first one always is: numbers that all are moved by -10000 keep few digits."""
    return np.where(np.arange(shape[-1]) == 0, 1, ints(0, 2, *shape)).astype(np.int32)


QKV = [f32(2, 5, 16), f32(16, 48), f32(48)]
ATTENTION = [
    Case("Attention", QKV, {"num_heads": 2}),
    Case("Attention", [*QKV[:2], None, np.array([3, 5], np.int32)], {"num_heads": 4, "scale": 0.3}),
    Case("Attention", [*QKV, mask(2, 5)], {"num_heads": 2}),
    Case(
        "Attention",
        [*QKV, mask(2, 5)],
        {"num_heads": 2, "mask_filter_value": -2.5, "unidirectional": 1},
    ),
    Case("Attention", [*QKV, mask(2, 5, 5)], {"num_heads": 2}),
    Case(
        "Attention",
        [*QKV, None, f32(2, 2, 2, 3, 8)],
        {"num_heads": 2, "unidirectional": 1},
        (1, 2),
        (True, True),
    ),
    Case("Attention", [*QKV, mask(2, 8), f32(2, 2, 2, 3, 8)], {"num_heads": 2}, (1, 2), (True, True)),
    Case("Attention", [*QKV, None, None, f32(2, 2, 5, 5)], {"num_heads": 2}),
    Case("Attention", [*QKV, mask(2, 5), None, f32(1, 2, 5, 5)], {"num_heads": 2}),
    Case(
        "Attention", [f32(2, 5, 16), f32(16, 56), f32(56)], {"num_heads": 4, "qkv_hidden_sizes": [16, 16, 24]}
    ),
]
Q, K, V = f32(2, 5, 16), f32(2, 6, 16), f32(2, 6, 24)
PAST = [f32(2, 2, 3, 8), f32(2, 2, 3, 8)]
MULTI_HEAD = [
    Case("MultiHeadAttention", [Q, K, V], {"num_heads": 2}),
    Case("MultiHeadAttention", [Q, K, V, f32(56)], {"num_heads": 4, "scale": 0.4}),
    Case("MultiHeadAttention", [Q, K, V, None, mask(2, 6)], {"num_heads": 4}),
    Case("MultiHeadAttention", [Q, K, V, None, np.array([3, 6], np.int32)], {"num_heads": 4}),
    Case("MultiHeadAttention", [Q, K, V, None, None, f32(1, 1, 5, 6)], {"num_heads": 4}),
    Case("MultiHeadAttention", [Q, f32(2, 5, 16), f32(2, 5, 16)], {"num_heads": 2, "unidirectional": 1}),
    Case(
        "MultiHeadAttention",
        [Q, f32(2, 5, 16), f32(2, 5, 16), f32(48), mask(2, 8), f32(2, 1, 5, 8), *PAST],
        {"num_heads": 2},
        (3,),
        (True, True, True),
    ),
    Case("MultiHeadAttention", [Q, f32(2, 2, 7, 8), f32(2, 2, 7, 8)], {"num_heads": 2}),
]
POSITIONS = ints(0, 9, 2, 5, dtype=np.int64)
ROTARY = [
    Case("RotaryEmbedding", [f32(2, 5, 32), POSITIONS, f32(9, 8), f32(9, 8)], {}, (2, 3)),
    Case("RotaryEmbedding", [f32(2, 5, 32), POSITIONS, f32(9, 8), f32(9, 8)], {"interleaved": 1}, (2, 3)),
    Case("RotaryEmbedding", [f32(2, 2, 5, 16), np.array([3]), f32(9, 8), f32(9, 8)], {}, (2, 3)),
    Case(
        "RotaryEmbedding",
        [f32(2, 5, 32), POSITIONS, f32(9, 4), f32(9, 4)],
        {"num_heads": 2, "rotary_embedding_dim": 8},
        (2, 3),
    ),
    Case("RotaryEmbedding", [f16(2, 5, 32), POSITIONS, f16(9, 8), f16(9, 8)], {}, (2, 3)),
]

SCALE, ZERO = np.float32(0.02), np.uint8(120)
QUANTIZED = [
    Case(
        "QAttention",
        [u8(2, 5, 16), i8(16, 48), f32(48), SCALE, np.float32(0.01), None, ZERO, np.int8(3)],
        {"num_heads": 2, "unidirectional": 1},
        (1, 2, 3, 4, 6, 7),
        error=1e-5,
    ),
    Case(
        "QAttention",
        [
            u8(2, 5, 16),
            i8(16, 48),
            f32(48),
            SCALE,
            np.full(48, 0.01, np.float32),
            np.array([3, 5], np.int32),
            ZERO,
            np.zeros(48, np.int8),
            f32(2, 2, 2, 3, 8),
        ],
        {"num_heads": 2},
        (1, 2, 3, 4, 6, 7),
        (True, True),
        error=1e-5,
    ),
]


def test_quantized_attention_in_half_precision() -> None:
    """ONNX Runtime's CPU has none: it is given the same numbers as f32."""
    rng = np.random.default_rng(3)  # other numbers, as other tests before would draw, may have two equal maxima
    scale, bias, past = (rng.standard_normal(s).astype(np.float16) for s in (48, 48, (2, 2, 2, 3, 8)))
    x, w = rng.integers(0, 256, (2, 5, 16), np.uint8), unsaturated(rng.integers(-128, 128, (16, 48), np.int8))
    arrays = [x, w, bias, np.float16(0.02), scale, None, ZERO, np.int8(3), past]
    wide = [a.astype(np.float32) if a is not None and a.dtype == np.float16 else a for a in arrays]
    attrs, known, outputs = {"num_heads": 2, "unidirectional": 1}, (1, 2, 3, 4, 6, 7), (True, True)
    single = Case("QAttention", wide, attrs, known, outputs)
    wanted = [y.astype(np.float16) for y in by_onnxruntime(single.model(), single.given)]
    agree(Case("QAttention", arrays, attrs, known, outputs, error=4e-3), reference=lambda *_: wanted, native=False)


@pytest.mark.sweep
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("case", [*ATTENTION, *QUANTIZED, *MULTI_HEAD, *ROTARY], ids=str)
def test_it_means_what_onnxruntime_does(case: Case, symbolic: bool, fresh_seed: int) -> None:
    agree(case.redrawn(fresh_seed), symbolic, native=False)


def grouped(
    batch: int,
    steps: int,
    past: int | None,
    total: int,
    lengths: list[int] | None = None,
    *,
    packed: bool = False,
    bias: bool = False,
    sink: bool = False,
    norms: bool = False,
    dtype: Any = np.float32,
    **attrs: Any,
) -> Case:
    """A call with a cache of `past` positions, of which `lengths` less the new steps are filled."""
    heads, groups, size = 4, 2, 16
    widths = [(heads + 2 * groups) * size] if packed else [heads * size, groups * size, groups * size]
    new = [f32(batch, steps, w).astype(dtype) for w in widths] + [None] * (2 if packed else 0)
    cache = [None if past is None else f32(batch, groups, past, size).astype(dtype) for _ in range(2)]
    filled = np.array(lengths or [total] * batch, np.int32)
    tables = [f32(20, size // 2).astype(dtype) if attrs.get("do_rotary") else None for _ in range(2)]
    extra = [None, f32(1, heads, steps, total) if bias else None, f32(heads) if sink else None, None, None]
    weights = [f32(size) for _ in range(2)] if norms else []
    arrays = [*new, *cache, filled - 1, np.array([total], np.int32), *tables, *extra, *weights]
    while arrays[-1] is None:
        arrays.pop()
    attrs = {"num_heads": heads, "kv_num_heads": groups, **attrs}
    error = 4e-3 if dtype == np.float16 else 5e-6  # in half precision both round what they rotate, and the scores
    return Case("GroupQueryAttention", arrays, attrs, (6, 7, 8), (True, True, True), error)


GROUPED = [
    grouped(2, 5, None, 5),
    grouped(2, 5, 0, 5),
    grouped(2, 5, None, 5, packed=True, do_rotary=1),
    grouped(2, 5, 8, 5, do_rotary=1, rotary_interleaved=1),
    grouped(2, 1, 4, 5, do_rotary=1),
    grouped(2, 1, 8, 5, [5, 3], packed=True, do_rotary=1),
    grouped(1, 3, 4, 7, do_rotary=1, scale=0.2),
    grouped(2, 1, 6, 7, [7, 4], local_window_size=3),
    grouped(2, 7, None, 7, local_window_size=2, softcap=1.5),
    grouped(2, 1, 6, 7, bias=True),
    grouped(2, 5, None, 5, bias=True, softcap=0.7),
    grouped(2, 5, None, 5, smooth_softmax=1),
    grouped(2, 1, 6, 7, [7, 2], sink=True),
    grouped(2, 1, 6, 7, dtype=np.float16, do_rotary=1),
]


@pytest.mark.sweep
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("case", GROUPED, ids=str)
def test_groups_of_heads_mean_what_onnxruntime_does(case: Case, symbolic: bool, fresh_seed: int) -> None:
    agree(case.redrawn(fresh_seed), symbolic, native=False)


@pytest.mark.sweep(5)
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("case", [*ATTENTION, *QUANTIZED, *MULTI_HEAD, *ROTARY, *GROUPED], ids=str)
def test_native_code_means_it_too(case: Case, symbolic: bool, fresh_seed: int) -> None:
    agree(case.redrawn(fresh_seed), symbolic)


def test_keys_that_begin_late() -> None:
    agree(Case("Attention", [*QKV, np.array([5, 4, 0, 2], np.int32)], {"num_heads": 2}))


@pytest.mark.parametrize("masked", [False, True])
def test_one_step_of_a_decoder(masked: bool) -> None:
    """ONNX Runtime's CPU wants a buffer for past and present together: it is compared with MultiHeadAttention."""
    new, bias = [f32(2, 1, 16) for _ in range(3)], f32(48)
    visible, added = (mask(2, 4), f32(2, 1, 1, 4)) if masked else (None, None)
    attrs, outputs = {"num_heads": 2}, (True, True, True)
    other = Case("MultiHeadAttention", [*new, bias, visible, added, *PAST], attrs, (), outputs)
    wanted = by_onnxruntime(other.model(), other.given)
    arrays = [*new, visible, added, *PAST, None, None, None, bias]
    agree(Case("DecoderMaskedMultiHeadAttention", arrays, attrs, (), outputs), reference=lambda *_: wanted)


@pytest.mark.parametrize("keys_too", [False, True])
def test_packed_operands(keys_too: bool) -> None:
    """As they are apart: ONNX Runtime's CPU takes no packed ones."""
    q, k, v = (f32(2, 5, 2, 8) for _ in range(3))
    apart = Case("MultiHeadAttention", [x.reshape(2, 5, 16) for x in (q, k, v)], {"num_heads": 2})
    wanted = by_onnxruntime(apart.model(), apart.given)
    packed = [np.stack([q, k, v], 3)] if keys_too else [q.reshape(2, 5, 16), np.stack([k, v], 3)]
    agree(Case("MultiHeadAttention", packed, {"num_heads": 2}), reference=lambda *_: wanted)


def test_heads_are_standardised_before_they_are_rotated() -> None:
    """ONNX Runtime's CPU does not: it is given operands that are."""
    case = grouped(2, 5, None, 5, norms=True, do_rotary=1, q_norm_epsilon=1e-2, qk_norm_epsilon=1e-3)

    def reference(q: np.ndarray, k: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
        made = []
        for x, weight, epsilon in ((q, others[-2], 1e-2), (k, others[-1], 1e-3)):
            heads = x.reshape(2, 5, -1, 16).astype(np.float64)
            power = (heads**2).mean(-1, keepdims=True)
            made.append((heads / np.sqrt(power + epsilon) * weight).reshape(x.shape).astype(np.float32))
        attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
        plain = Case(case.op, [*made, *others[:-2]], attrs, case.known, case.outputs)
        return by_onnxruntime(plain.model(), plain.given)

    agree(case, reference=reference)


def test_attention_that_is_not_causal() -> None:
    case = grouped(2, 1, 6, 7, [7, 4], causal=0)
    agree(case, reference=lambda *_: by_onnxruntime(grouped_like(case).model(), case.given))


def grouped_like(case: Case) -> Case:
    """The same without `causal`: one new step sees all of the cache in any case."""
    return Case(
        case.op, case.arrays, {k: v for k, v in case.attrs.items() if k != "causal"}, case.known, case.outputs
    )
