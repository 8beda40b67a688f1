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

CASES: list[tuple[str, dict[str, Any], list[Any], dict[int, Sequence[int]]]] = [
    ("Conv", {"group": 2}, [(1, 4, 8), (6, 2, 3)], {0: (1, 6, 8), 1: (5, 2, 3)}),
    ("Conv", {"group": 2}, [(1, 4, 8, 8), (4, 2, 3, 3)], {0: (1, 3, 8, 8), 1: (4, 3, 3, 3)}),
    ("Conv", {"group": 2}, [(1, 4, 8, 8), (4, 2, 3, 3)], {0: (1, 4, 2, 8)}),
    ("Conv", {"group": 3}, [(1, 3, 4, 4, 4), (3, 1, 2, 2, 2)], {0: (1, 2, 4, 4, 4), 1: (4, 1, 2, 2, 2)}),
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
]


def name_of(case: tuple[str, dict[str, Any], list[Any], dict[int, Sequence[int]]]) -> str:
    return f"{case[0]}-{case[2][0][0] if isinstance(case[2][0][0], tuple) else case[2][0]}"


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
    model = model_of([node], inputs, ["y"], constants, opset=19, domains=[domain] if domain else [])
    compiled = tilewright.compile(model.SerializeToString(), cache=False, threads=1, numerics=numerics)
    right = compiled(*arrays)
    assert all(np.isfinite(r).all() for r in right)
    for k, shape in wrong.items():
        given = [np.ones(shape, a.dtype) if n == k else a for n, a in enumerate(arrays)]
        with pytest.raises(InputError, match="the_node"):
            compiled(*given)
