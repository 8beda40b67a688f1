"""Attention whose mask follows from positions: keys that no row of a block sees are left out, to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tests.schedule.test_defaults import data, f32, native
from tilewright.cost.attention import KEYS_OF_A_PIECE
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.pipeline import default_passes
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import Sym, maximum, var
from tilewright.ir.types import tensor
from tilewright.loops.conditions.skip_masked import skip_masked
from tilewright.loops.edit import extent_of, loops_in
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import elementwise as ew
from tilewright.ops.attention import attention
from tilewright.ops.source import dim_value, iota
from tilewright.ops.view import shape_of
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.schedule.gemm import attention as schedules
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.named import parse_target

S, T = var("s"), var("t")
LENGTHS = [(1, 1), (7, 9), (8, 8), (33, 33), (40, 100), (64, 64), (70, 70), (70, 200), (130, 130)]


def causal(q: Value, k: Value, v: Value, *, window: int | None = None) -> Value:
    """Queries are the last of as many positions as there are keys."""
    rows, keys = (shape_of(x)[-2] for x in (q, k))
    if window is None:
        return attention(q, k, v, causal=True, causal_offset=keys - rows)
    own = ew.add(iota(shape=(rows, 1), axis=0), dim_value(keys - rows))
    seen = ew.gt(iota(shape=(keys,), axis=0), ew.sub(own, window))
    return attention(q, k, v, seen, causal=True, causal_offset=keys - rows)


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None = None) -> np.ndarray:
    rows, keys = q.shape[-2], k.shape[-2]
    at, of = np.arange(keys), np.arange(keys - rows, keys)[:, None]
    seen = (at <= of) & (at > of - (window or keys))
    scores = np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True) @ v)


def built(body: Callable[..., Value], heads: tuple[int, ...], rows: Any = S, keys: Any = T) -> Module:
    types = (f32(*heads, rows, 16), *(f32(*heads[:-1], 1, keys, 16) for _ in range(2)))
    module = oracle.build(types, body)
    run_passes(module, default_passes(Options()), PassContext(parse_target("x86-64-v4")))
    return module


def inputs(heads: tuple[int, ...], rows: int, keys: int) -> tuple[np.ndarray, ...]:
    return data(*heads, rows, 16), data(*heads[:-1], 1, keys, 16), data(*heads[:-1], 1, keys, 16)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("window", [None, 5, 48], ids=str)
@pytest.mark.parametrize("heads", [(2, 3), (1, 1)], ids=str)
def test_results_are_those_of_numpy_and_bits_do_not_depend_on_what_is_left_out(
    heads: tuple[int, ...], window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = native(built(partial(causal, window=window), heads), 2)
    monkeypatch.setattr(schedules, "skip_masked_keys", lambda *_: None)
    whole = native(built(partial(causal, window=window), heads), 2)
    for rows, keys in LENGTHS:
        arrays = inputs(heads, rows, keys)
        (found,), (before,) = model(*arrays), whole(*arrays)
        np.testing.assert_array_equal(found, before)
        expected = reference(*(a.astype(np.float64) for a in arrays), window)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def kernel_of(module: Module) -> Func:
    (kernel,) = [func for name, func in module.funcs.items() if name.endswith("attention")]
    return kernel


def ends(module: Module) -> list[Sym]:
    """The extents of loops that depend on others, but those over pieces of keys, of which the last one is shorter."""
    kernel = kernel_of(module)
    variables = {o.attrs["var"] for o in loops_in(kernel.body)}
    found = [extent_of(o) for o in loops_in(kernel.body) if extent_of(o).vars & variables]
    return [extent for extent in found if extent.bounds[1] != KEYS_OF_A_PIECE]


@pytest.mark.parametrize("lengths", [(S, T), (S, S)], ids=str)
def test_blocks_of_rows_end_where_their_last_row_does(lengths: tuple[Any, Any]) -> None:
    module = built(causal, (2, 3), *lengths)
    ctx = oracle.scheduled(module)
    assert not [r for r in ctx.remarks if "masked" in r.message]
    assert sum(f"{skip_masked.__name__}(" in step for step in kernel_info(kernel_of(module)).schedule) == 1
    assert len(ends(module)) >= 4, "scores, greatest, weights and results"


def test_rows_that_see_all_keys_have_the_loops_that_they_had() -> None:
    def late(q: Value, k: Value, v: Value) -> Value:
        return attention(q, k, v, causal=True, causal_offset=shape_of(k)[-2])

    module = built(late, (2, 3))
    oracle.scheduled(module)
    assert not ends(module)
    assert not any(step.startswith(skip_masked.__name__) for step in kernel_info(kernel_of(module)).schedule)


def test_a_mask_from_data_is_none_of_positions() -> None:
    types = (f32(2, 48, 16), f32(2, T, 16), f32(2, T, 16), tensor(dt.bool_, (48, T)))
    module = oracle.build(types, lambda q, k, v, mask: attention(q, k, v, mask))
    run_passes(module, default_passes(Options()), PassContext(parse_target("x86-64-v4")))
    ctx = oracle.scheduled(module)
    assert not ends(module) and not [r for r in ctx.remarks if "masked" in r.message]


@pytest.mark.parametrize("first", [0, 3])
def test_conditions_on_positions_are_computed_in_the_kernels_of_all_layers(first: int) -> None:
    """A window's slice of the keys begins at a position of its own, which is a dim."""

    def layers(q: Value, k: Value, v: Value) -> Value:
        offset = maximum(T - S, first) - first
        for _ in range(2):
            q = attention(q, k, v, causal=True, causal_offset=offset)
        return q

    types = (f32(2, S, 16), f32(2, T, 16), f32(2, T, 16))
    module = oracle.build(types, layers)
    ctx = PassContext(parse_target("x86-64-v4"))
    run_passes(module, [*default_passes(Options()), Fuse(STRATEGIES)], ctx)
    regions = [op for op in module.main.body.ops if op.name == "fused"]
    assert [op.attrs["strategy"] for op in regions] == ["attention", "attention"]
    assert all(len(op.operands) == 3 for op in regions), "no tensor of flags"
