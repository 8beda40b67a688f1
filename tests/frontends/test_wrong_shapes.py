"""Sizes that come with the call and do not fit: refused with the node, the operands and what must hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

import tilewright
from tests.frontends.helpers import info, model_of
from tilewright.runtime.errors import InputError

F, I8, I64 = np.float32, np.int8, np.int64

I32 = np.int32
HEADS, SHARED = {"num_heads": 2}, {"num_heads": 4, "kv_num_heads": 2}
PAIRS, PAST = {"q_num_heads": 4, "kv_num_heads": 2}, [(1, 2, 3, 8)] * 2
WIDE, NARROW, ONE = (1, 2, 32), [(1, 2, 16)] * 2, ((1,), I32)
Q, K, X, W = (1, 2, 1, 4), (1, 2, 5, 4), (1, 3, 16), [(16, 48), (48,)]
ATTENTION: list[tuple[str, dict[str, Any], list[Any], dict[int, Sequence[int]]]] = [
    ("Attention", {}, [Q, K, K, (1, 5)], {1: (2, 2, 5, 4), 2: (1, 1, 5, 4), 3: (3, 5)}),
    ("Attention", {}, [Q, K, K, (1, 1, 1, 5)], {0: (1, 2, 1, 1), 2: (1, 2, 1, 4), 3: (2, 1, 1, 5)}),
    ("Attention", {}, [Q, K, K, (1, 1, 1, 7), K, K], {3: (1, 1, 1, 11), 4: (1, 1, 5, 4), 5: (1, 2, 4, 4)}),
    ("Attention", PAIRS, [(2, 3, 8), (2, 5, 4), (2, 5, 6)], {2: (3, 5, 4)}),
    ("com.microsoft.Attention", HEADS, [X, *W, ((1, 3), I32)], {2: (1,), 3: (3, 1)}),
    ("com.microsoft.Attention", HEADS, [X, *W, ((1, 3, 3), I32), (2, 1, 2, 0, 8)], {3: (3, 1, 3), 4: (3, 1, 2, 0, 8)}),
    ("com.microsoft.Attention", HEADS, [(1, 1, 16), *W, ((1, 1, 6, 6), I32), (2, 1, 2, 4, 8), (1, 2, 1, 5)],
     {3: (2, 1, 6, 6), 5: (1, 2, 3, 5)}),
    ("com.microsoft.MultiHeadAttention", HEADS, [(1, 1, 16), (1, 2, 5, 8), (1, 2, 5, 8)],
     {1: (1, 1, 5, 8), 2: (2, 2, 5, 8)}),
    ("com.microsoft.MultiHeadAttention", HEADS, [X, X, X, (48,), ((1, 3), I32), (1, 1, 3, 3)],
     {3: (47,), 4: (3, 1), 5: (2, 1, 3, 3)}),
    ("com.microsoft.GroupQueryAttention", SHARED, [WIDE, *NARROW, *PAST, ONE, ONE],
     {3: (1, 1, 3, 8), 4: (1, 2, 1, 8), 5: (2,)}),
    ("com.microsoft.GroupQueryAttention", {**SHARED, "do_rotary": 1},
     [WIDE, *NARROW, *PAST, ONE, ONE, (9, 4), (9, 4), ((1, 2), I64), (1, 1, 2, 3), (4,)],
     {8: (9, 1), 9: (2, 2), 10: (1, 3, 2, 3), 11: (2,)}),
    ("com.microsoft.RotaryEmbedding", {}, [(1, 2, 3, 8), ((1, 3), I64), (9, 4), (9, 4)], {1: (2, 3), 3: (9, 1)}),
    ("com.microsoft.RotaryEmbedding", {}, [(1, 2, 3, 8), ((1,), I64), (9, 4), (9, 4)], {1: (3,)}),
]

CASES: list[tuple[str, dict[str, Any], list[Any], dict[int, Sequence[int]]]] = [
    ("Conv", {"group": 2}, [(1, 4, 8), (6, 2, 3)], {0: (1, 6, 8), 1: (5, 2, 3)}),
    ("Conv", {"group": 2}, [(1, 4, 8, 8), (4, 2, 3, 3)], {0: (1, 3, 8, 8), 1: (4, 3, 3, 3)}),
    ("Conv", {"group": 2}, [(1, 4, 8, 8), (4, 2, 3, 3)], {0: (1, 4, 2, 8)}),
    ("Conv", {"group": 3}, [(1, 3, 4, 4, 4), (3, 1, 2, 2, 2)], {0: (1, 2, 4, 4, 4)}),
    ("Conv", {"group": 4}, [(1, 4, 8, 8), (4, 1, 3, 3), (4,)], {0: (1, 2, 8, 8), 2: (3,)}),
    ("Conv", {"kernel_shape": [3, 3]}, [(1, 4, 8, 8), (4, 4, 3, 3)], {1: (4, 4, 5, 5)}),
    ("ConvTranspose", {"group": 2}, [(1, 4, 5), (4, 3, 3)], {0: (1, 6, 5), 1: (2, 3, 3)}),
    ("ConvTranspose", {"group": 2}, [(1, 4, 5, 5), (4, 3, 3, 3)], {0: (1, 3, 5, 5)}),
    ("ConvInteger", {"group": 2}, [((1, 4, 8, 8), I8), ((4, 2, 3, 3), I8)], {0: (1, 2, 8, 8), 1: (4, 3, 3, 3)}),
    (
        "QLinearConv",
        {"group": 2},
        [
            ((1, 4, 8, 8), I8), (), ((), I8), ((4, 2, 3, 3), I8), (4,), ((4,), I8), (), ((), I8),
            ((4,), np.int32),
        ],
        {0: (1, 6, 8, 8), 3: (4, 3, 3, 3), 4: (3,), 5: (3,), 8: (3,)},
    ),
    (
        "QLinearConv",
        {},
        [
            ((1, 4, 8, 8), I8), (), ((), I8), ((4, 4, 3, 3), I8), (4,), ((4,), I8), (), ((), I8),
            ((4,), np.int32),
        ],
        {3: (1, 4, 3, 3), 8: (1,)},
    ),
    ("com.microsoft.MatMulIntegerToFloat", {}, [((4, 6), I8), ((6, 5), I8), (), (5,), ((), I8), ((5,), I8), (5,)],
     {1: (6, 1), 6: (1,)}),
    ("com.microsoft.FusedConv", {}, [(1, 4, 6, 6), (4, 4, 3, 3), (4,), (1, 4, 4, 4)],
     {0: (2, 4, 6, 6), 3: (1, 1, 4, 4)}),
    ("com.microsoft.FusedConv", {"group": 2, "activation": "Relu"}, [(1, 4, 8, 8), (4, 2, 3, 3)], {0: (1, 2, 8, 8)}),
    ("DeformConv", {}, [(1, 2, 6, 6), (3, 2, 3, 3), (1, 18, 4, 4)], {0: (1, 1, 6, 6), 2: (1, 18, 3, 4)}),
    (
        "LSTM",
        {"hidden_size": 3},
        [(4, 2, 5), (1, 12, 5), (1, 12, 3), (1, 24), ((2,), np.int32), (1, 2, 3), (1, 2, 3), (1, 9)],
        {1: (1, 8, 5), 2: (1, 12, 2), 3: (1, 12), 4: (1,), 5: (1, 1, 3), 6: (1, 2, 2), 7: (1, 3)},
    ),
    (
        "GRU",
        {"hidden_size": 3},
        [(4, 2, 5), (1, 9, 5), (1, 9, 3), (1, 18), ((2,), np.int32), (1, 2, 3)],
        {0: (4, 2, 4), 1: (2, 9, 5), 2: (1, 6, 3), 3: (1, 36), 4: (3,), 5: (1, 2, 4)},
    ),
    (
        "RNN",
        {"hidden_size": 3, "direction": "bidirectional"},
        [(4, 2, 5), (2, 3, 5), (2, 3, 3), (2, 6), ((2,), np.int32), (2, 2, 3)],
        {1: (1, 3, 5), 3: (2, 3), 5: (1, 2, 3)},
    ),
    ("NonMaxSuppression", {}, [(1, 6, 4), (1, 2, 6), ((), I64)], {0: (1, 6, 3), 1: (1, 2, 5)}),
    ("RoiAlign", {"sampling_ratio": 2}, [(2, 2, 6, 6), (3, 4), ((3,), I64)], {0: (0, 2, 6, 6), 1: (3, 3), 2: (2,)}),
    ("BatchNormalization", {}, [(1, 4, 5), (4,), (4,), (4,), (4,)], {1: (3,), 4: (8,)}),
    ("BatchNormalization", {}, [(1, 4, 5), (4,), (4,), (4,), (4,)], {0: (1, 1, 5), 2: (1,)}),
    ("InstanceNormalization", {}, [(1, 4, 5), (4,), (4,)], {0: (1, 1, 5), 1: (1,), 2: (3,)}),
    ("LayerNormalization", {"axis": 0}, [(2, 3, 4), (2, 3, 4), (4,)], {0: (2, 1, 4), 1: (2, 3, 5), 2: (3,)}),
    ("QuantizeLinear", {}, [(2, 3, 4), (3,), ((3,), I8)], {0: (2, 1, 4), 1: (2,), 2: (4,)}),
    ("ai.onnx.ml.Scaler", {"offset": [1.0, 2.0], "scale": [1.0, 2.0]}, [(3, 2)], {0: (3, 1)}),
    ("ai.onnx.ml.Imputer", {"imputed_value_floats": [1.0, 2.0], "replaced_value_float": 0.0}, [(3, 2)], {0: (3, 1)}),
    ("ImageScaler", {"bias": [1.0, 2.0], "scale": 2.0}, [(1, 2, 3, 3)], {0: (1, 1, 3, 3)}),
    ("GatherElements", {"axis": 1}, [(3, 5), ((3, 2), I64)], {0: (2, 5), 1: (4, 2)}),
    ("GatherND", {"batch_dims": 1}, [(2, 3, 4), ((2, 3, 1), I64)], {0: (1, 3, 4)}),
    ("GridSample", {}, [(2, 3, 4, 5), (2, 3, 3, 2)], {0: (1, 3, 4, 5)}),
    ("Einsum", {"equation": "ii->i"}, [(3, 3)], {0: (5, 3)}),
    ("Einsum", {"equation": "bii,i->b"}, [(2, 3, 3), (3,)], {0: (2, 1, 3), 1: (4,)}),
    ("DepthToSpace", {"blocksize": 2}, [(1, 8, 3, 3)], {0: (1, 6, 3, 3)}),
    ("Pad", {"mode": "reflect"}, [(4, 5)], {0: (0, 5)}),
    *ATTENTION,
]


@pytest.mark.parametrize(("op", "attrs", "shapes", "wrong"), [
    ("Attention", {}, [Q, K, K, (3, 5)], r"a mask f32\[3, 5\] does not fit scores \[1, 2, 1, 5\]"),
    ("Attention", {}, [Q, K, K, (1, 1, 1, 1, 5)], r"does not fit scores \[1, 2, 1, 5\]"),
    ("Attention", {}, [Q, K, K, (1, 6)], "does not fit scores"),
    ("Attention", {}, [Q, K, K, None, K], "past keys and past values come together"),
    ("Attention", {}, [Q, K, K, None, (1, 5, 4), (1, 5, 4)], r"f32\[1, 5, 4\] is not before"),
    ("Attention", {}, [Q, (1, 5, 8), K], r"3 or 4 axes each, not \[4, 3, 4\]"),
    ("Attention", {}, [Q, K, (1, 2, 4, 4)], "keys and values are as many"),
    ("Attention", {}, [Q, (2, 2, 5, 4), K], "different batches"),
    ("Attention", {}, [Q, K, (1, 1, 5, 4)], "as many heads"),
    ("Attention", {}, [Q, (1, 2, 5, 1), K], "heads of queries and keys have one size"),
    ("Attention", PAIRS, [(1, 2, 8), (1, 2, 8), (1, 2, 8)], "heads of queries and keys have one size"),
    ("Attention", {"q_num_heads": 0, "kv_num_heads": 2}, [(1, 2, 8)] * 3, "q_num_heads is 0"),
])  # fmt: skip
def test_attention_of_the_standard_says_what_does_not_fit(
    op: str, attrs: dict[str, Any], shapes: list[Any], wrong: str
) -> None:
    names = ["" if s is None else f"x{k}" for k, s in enumerate(shapes)]
    inputs = [info(n, s) for n, s in zip(names, shapes, strict=True) if s is not None]
    model = model_of([helper.make_node(op, names, ["y"], **attrs)], inputs, ["y"], opset=23)
    with pytest.raises(tilewright.TilewrightError, match=wrong):
        tilewright.compile(model, cache=False, threads=1)


def name_of(case: tuple[str, dict[str, Any], list[Any], dict[int, Sequence[int]]]) -> str:
    return f"{case[0]}-{case[2][0][0] if isinstance(case[2][0][0], tuple) else case[2][0]}"


@pytest.mark.sweep(6)
@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("case", [c for c in CASES if c[3]], ids=name_of)
def test_wrong_sizes_are_refused(case, numerics: str) -> None:
    op, attrs, operands, wrong = case
    typed = [(s, F) if not s or not isinstance(s[0], tuple) else s for s in operands]
    arrays = [np.ones(shape, dtype) for shape, dtype in typed]
    names = [f"x{k}" for k in range(len(arrays))]
    inputs = [
        info(n, [f"{n}_{axis}" if k in wrong else d for axis, d in enumerate(a.shape)],
             helper.np_dtype_to_tensor_dtype(a.dtype))
        for k, (n, a) in enumerate(zip(names, arrays, strict=True))
    ]
    domain, _, short = op.rpartition(".")
    constants = {"pads": np.array([1, 0, 1, 0])} if op == "Pad" else {}
    node = helper.make_node(short, [*names, *constants], ["y"], name="the_node", domain=domain, **attrs)
    model = model_of([node], inputs, ["y"], constants, opset=24 if short == "Attention" else 19,
                     domains=[domain] if domain else [])
    compiled = tilewright.compile(model.SerializeToString(), cache=False, threads=1, numerics=numerics)
    right = compiled(*arrays)
    assert all(np.isfinite(r).all() for r in right)
    for k, shape in wrong.items():
        given = [np.ones(shape, a.dtype) if n == k else a for n, a in enumerate(arrays)]
        with pytest.raises(InputError, match="the_node"):
            compiled(*given)
