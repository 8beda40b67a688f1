"""Operators that move elements, as views of their operand, give what their definition gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import tensor
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.interp import evaluate_op
from tilewright.ops.define.loop_programs import _meet
from tilewright.ops.define.views import view_of

MOVES = {
    "reshape": {"shape": (3, 20)},
    "transpose": {"perm": (2, 0, 1)},
    "expand": {"shape": (2, 3, 4, 5)},
    "slice": {"starts": (1, 3, 4), "sizes": (2, 2, 3), "steps": (1, -2, -1)},
    "reduce_sum": {"axes": (1,), "keepdims": False},
    "cast": {"dtype": dt.f64},
}


def of(name: str, attrs: dict[str, Any], shape: tuple[int | Sym, ...]) -> Op:
    block = Block([tensor(dt.f32, shape)])
    with Builder(block, Module()):
        OPERATORS[name](*block.args, **attrs)
    return block.ops[0]


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_elements_is_a_view(name: str) -> None:
    op, whole = of(name, MOVES[name], (3, 4, 5)), np.arange(120, dtype=np.float32).reshape(5, 4, 6)
    first = np.broadcast_to(whole[:1, :, :1], (3, 4, 5))
    for array in (np.ascontiguousarray(whole[:3, :, :5]), whole[:3, :, :5], first):
        found = view_of(op, array, {})
        assert (found is None) == (name in ("reduce_sum", "cast"))
        if found is not None:
            (wanted,) = evaluate_op(op, [array], {})
            np.testing.assert_array_equal(found, wanted, strict=True)
            assert not found.flags.writeable


def test_sizes_of_a_call_and_no_elements() -> None:
    n = var("n", 0)
    op, x = of("expand", {"shape": (n, 4, 6)}, (n, 1, 6)), np.arange(12, dtype=np.float32).reshape(2, 1, 6)
    found = view_of(op, x, {"n": 2})
    assert found is not None
    np.testing.assert_array_equal(found, np.repeat(x, 4, axis=1), strict=True)
    assert view_of(op, x[:0], {"n": 0}) is None


def test_lanes_that_meet() -> None:
    rng = np.random.default_rng(3)
    for _ in range(300):
        span, lanes = int(rng.choice([4, 40, 4000, 1 << 40])), int(rng.integers(0, 9))
        a, b = (rng.integers(0, span, lanes) for _ in "ab")
        masks = [None if rng.integers(2) else rng.integers(0, 2, lanes).astype(bool) for _ in "ab"]
        b = a if rng.integers(2) else b
        pairs = zip((a, b), masks, strict=True)
        ours, theirs = [[(k, at) for k, at in enumerate(x.tolist()) if m is None or m[k]] for x, m in pairs]
        meet = any(p != q and at == other for p, at in ours for q, other in theirs)
        twice = len({at for _, at in ours}) < len(ours)
        found = _meet(a, masks[0], b, masks[1])
        assert found == meet or (found and twice)
