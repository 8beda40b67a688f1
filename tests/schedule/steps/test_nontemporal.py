"""Outputs larger than the last cache are stored past it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Value
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import tensor
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import contract, reduce, view
from tilewright.ops import elementwise as ew
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.target.named import parse_target

SMALL = "zen3,l3=65536"  # of which 64 KiB is the last cache


def transposed(x: Value) -> Value:
    return view.transpose(x, perm=(1, 0))


def centred(x: Value) -> Value:
    return ew.sub(x, reduce.reduce_sum(x, axes=(1,), keepdims=True))


def kernel(shape: Sequence[int | Sym], body: Callable[[Value], Value], target: str = SMALL) -> Func:
    module = oracle.build([tensor(dt.f32, shape)], body)
    oracle.scheduled(module, target)
    (found,) = (func for name, func in module.funcs.items() if name != "main")
    return found


def conditions(func: Func) -> set[str]:
    return {str(op.attrs["nontemporal"]) for op in func.body.walk() if "nontemporal" in op.attrs}


def test_only_outputs_that_the_last_cache_cannot_hold_go_past_it() -> None:
    assert conditions(kernel((128, 129), ew.neg)) == {"1"}
    assert conditions(kernel((128, 128), ew.neg)) == set()
    assert conditions(kernel((128, 129), ew.neg, "zen3,l3=0")) == set()  # L2 has 512 KiB
    assert conditions(kernel((128, 129, 16), ew.neg, "zen3,l3=0")) == {"1"}


def test_an_unknown_size_is_looked_at_when_the_kernel_runs() -> None:
    (condition,) = conditions(kernel((var("n"), 128), ew.neg))
    assert "n" in condition and "129" in condition
    assert "nontemporal" in str(kernel_info(kernel((var("n"), 128), ew.neg)).schedule)


@pytest.mark.parametrize(
    ("body", "target"),
    [(centred, SMALL), (transposed, "zen4,l3=65536"), (lambda x: ew.tanh(ew.neg(x)), SMALL)],
)
def test_kernels_of_several_kinds_stream(body: Callable[[Value], Value], target: str) -> None:
    assert conditions(kernel((256, 256), body, target)) == {"1"}


@pytest.mark.parametrize(("target", "register"), [("zen3", "ymm"), ("zen4", "zmm")])
def test_the_inner_loop_of_an_elementwise_kernel_stores_past_the_caches(target: str, register: str) -> None:
    func = kernel((512, 1024), ew.neg, f"{target},l3=65536")
    text = assembly(kernel_ir(func, parse_target(target)).text, parse_target(target))
    assert re.search(rf"vmovntps\t%{register}", text)
    assert text.count("sfence") == 1


def test_what_cannot_be_streamed_is_told() -> None:
    module = oracle.build([tensor(dt.f32, (4096, 5))], ew.neg)
    remarks = [str(r) for r in oracle.scheduled(module, SMALL).remarks]
    assert not any("past the caches" in r for r in remarks)  # one flat loop of whole vectors
    module = oracle.build([tensor(dt.f32, (5, 4096))], transposed)
    remarks = [str(r) for r in oracle.scheduled(module, SMALL).remarks]
    assert any("is not stored past the caches" in r for r in remarks)


def streamed(rows: int | Sym, depth: int, columns: int) -> Func:
    """A product with constants, of which a tile has several vectors of each row."""
    module = oracle.build(
        [tensor(dt.f32, (rows, depth)), tensor(dt.f32, (depth, columns))],
        contract.matmul,
    )
    oracle.scheduled(module, SMALL)
    (found,) = (func for name, func in module.funcs.items() if name != "main")
    return found


def test_vectors_of_one_row_are_looked_at_together() -> None:
    text = kernel_ir(streamed(var("n"), 64, 256), parse_target(SMALL)).text
    branches = len(re.findall(r"^past\d+:", text, re.MULTILINE))
    assert branches and text.count("!nontemporal") - 1 >= 2 * branches


@pytest.mark.parametrize("columns", [256, 250])
@pytest.mark.parametrize("rows", [1, 7, 400])
def test_rows_that_begin_anywhere_are_stored_whole(rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    w = rng.standard_normal((64, columns), np.float32)
    module = oracle.build(
        [tensor(dt.f32, (var("n"), 64)), tensor(dt.f32, w.shape)], contract.matmul
    )
    module.main.attrs |= {"inputs": ("x", "w"), "outputs": ("y",)}
    compiled = Model(compile_module(module, Options(), parse_target("host,l3=65536")), 1)
    x = rng.standard_normal((rows, 64), np.float32)
    for start in (0, 1, 16):
        out = np.full(start + rows * columns + 1, np.nan, np.float32)
        y = out[start : start + rows * columns].reshape(rows, columns)
        compiled(x, w, out=[y])
        np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-4)
        assert np.isnan(out[:start]).all() and np.isnan(out[-1])
