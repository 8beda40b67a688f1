"""Attention however its tensors lie: what fusion takes into such a kernel always has a schedule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tests.schedule.test_defaults import native
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.expand import Expand
from tilewright.graph.rewrites.hoist_scales import HoistScales
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import TensorType, tensor
from tilewright.loops.counts import cost
from tilewright.ops import contract, view
from tilewright.ops import elementwise as ew
from tilewright.ops.norm import softmax
from tilewright.passes import PassContext
from tilewright.schedule.steps.pace import STAGE

N = var("n", 1)


@dataclass(frozen=True)
class Form:
    """Attention of `heads` heads in `batch` images. Axes are b, h, s (rows) and d; `q`, `k`, `v` and `y` say in which
    order they lie in memory. `lines` cuts rows into lines of so many: the result has (line, column) for the row."""

    batch: int
    heads: int
    rows: int
    keys: int
    depth: int
    width: int
    q: str
    k: str
    v: str
    y: str
    mask: str = ""
    lines: int = 0
    one_tensor: bool = False
    is_unknown: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        return {"b": self.batch, "h": self.heads}

    def shape(self, name: str, axes: str) -> tuple[int, ...]:
        rows = self.rows if name == "q" else self.keys
        sizes = {**self.sizes, "s": rows, "d": self.width if name == "v" else self.depth}
        return tuple(sizes[a] for a in axes)

    def types(self) -> list[TensorType]:
        found = [self.shape(n, axes) for n, axes in (("q", self.q), ("k", self.k), ("v", self.v))]
        if self.one_tensor:
            found = [(3, *found[0])]
        if self.mask:
            found.append(tuple({**self.sizes, "s": self.rows, "t": self.keys, "1": 1}[a] for a in self.mask))
        unknown = {self.keys: N} if self.is_unknown else {}
        return [tensor(dt.f32, tuple(unknown.get(n, n) for n in shape)) for shape in found]

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        env = {"n": self.keys}
        shapes = [tuple(d.evaluate(env) for d in t.shape) for t in self.types()]
        return [rng.standard_normal(s, np.float32) for s in shapes]

    def body(self, *values: Value) -> Value:
        if self.one_tensor:
            whole, *mask = values
            shape = whole.tensor.shape[1:]
            parts = [
                view.reshape(
                    view.slice_(whole, starts=(k, 0, 0, 0, 0), sizes=(1, *shape), steps=(1,) * 5), shape=shape
                )
                for k in (2, 0, 1)
            ]
            values = (*parts, *mask)
        q, k, v, *masks = values
        given = ((q, self.q), (k, self.k), (v, self.v))
        q, k, v = (view.transpose(x, perm=tuple(map(axes.index, "bhsd"))) for x, axes in given)
        scores = ew.mul(contract.matmul(q, k, transpose_b=True), 0.3)
        for mask in masks:
            scores = ew.add(scores, mask)
        y = contract.matmul(softmax(scores), v)
        if not self.lines:
            return view.transpose(y, perm=tuple(map("bhsd".index, self.y)))
        b, h, s, d = y.tensor.shape
        y = view.reshape(y, shape=(b, h, s.value // self.lines, self.lines, d))
        axes = self.y.replace("s", "lc")
        return view.transpose(y, perm=tuple(map("bhlcd".index, axes)))

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        if self.one_tensor:
            arrays = (*(arrays[0][k] for k in (2, 0, 1)), *arrays[1:])
        q, k, v, *masks = (a.astype(np.float64) for a in arrays)
        q, k, v = (x.transpose(*map(axes.index, "bhsd")) for x, axes in ((q, self.q), (k, self.k), (v, self.v)))
        scores = q @ k.swapaxes(-1, -2) * 0.3 + sum(masks)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        y = powers / powers.sum(-1, keepdims=True) @ v
        if not self.lines:
            return y.transpose(*map("bhsd".index, self.y))
        b, h, s, d = y.shape
        axes = self.y.replace("s", "lc")
        return y.reshape(b, h, s // self.lines, self.lines, d).transpose(*map("bhlcd".index, axes))


def drawn(seed: int) -> Form:
    rng = np.random.default_rng(seed)

    def order() -> str:
        return "".join(rng.permutation(list("bhsd")))

    lines = int(rng.choice([0, 0, 2, 7]))
    rows = int(rng.integers(1, 40)) if not lines else lines * int(rng.integers(1, 7))
    keys, depth, width = int(rng.integers(1, 40)), int(rng.integers(1, 30)), int(rng.integers(1, 40))
    mask = str(rng.choice(["", "", "bhst", "b1st", "1hst", "b11t", "st", "t", "b1s1"]))
    q, k, v = order(), order(), order()
    one_tensor = bool(rng.random() < 0.3)
    if one_tensor:
        keys, width, k, v = rows, depth, q, q
    is_unknown = not one_tensor and keys not in (rows, depth, width) and bool(rng.random() < 0.3)
    batch, heads = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    if keys in (batch, heads, 1):
        is_unknown = False
    return Form(batch, heads, rows, keys, depth, width, q, k, v, order(), mask, lines, one_tensor, is_unknown)


def built(form: Form) -> Module:
    module = oracle.build(form.types(), form.body)
    for step in (Expand(), Canonicalize(), HoistScales(), Canonicalize()):
        step.run(module, PassContext())
    return module


FORMS = {
    "columns of images": Form(1, 4, 40, 40, 16, 16, "bhds", "bhds", "bhds", "bhds"),
    "channels": Form(1, 3, 16, 16, 50, 50, "bhsd", "bhsd", "bhsd", "bdhs"),
    "lines and columns": Form(1, 3, 49, 49, 16, 16, "bhsd", "bhsd", "bhsd", "bshd", lines=7),
    "lines and columns, turned": Form(2, 3, 49, 49, 16, 16, "bhsd", "bhsd", "bhsd", "bhds", lines=7),
    "few rows, turned": Form(2, 3, 5, 49, 16, 16, "bhsd", "bhsd", "bhsd", "bhds"),
    "one row, turned": Form(2, 3, 1, 49, 16, 16, "bhsd", "bhsd", "bhsd", "dbhs"),
    "heads last": Form(2, 3, 20, 20, 16, 16, "sdbh", "sdbh", "sdbh", "sdbh", "bhst"),
    "a channel": Form(2, 3, 20, 20, 1, 16, "bhsd", "bhsd", "bhsd", "bhds"),
    "unknown keys, turned": Form(2, 3, 20, 35, 16, 24, "bhsd", "bhsd", "bhsd", "bhds", "b11t", is_unknown=True),
}


def check(form: Form, seed: int, target: str) -> None:
    module = built(form)
    arrays = form.arrays(np.random.default_rng(seed))
    ctx = oracle.scheduled(module, target)
    said = [str(r) for r in ctx.remarks if ": attention" in r.subject or r.stage == STAGE]
    assert not said, f"{form} is not scheduled as fusion made it: {said}"
    (found,) = oracle.run(module, arrays)
    np.testing.assert_allclose(found, form.reference(*arrays), rtol=2e-5, atol=2e-6, err_msg=str(form))


@pytest.mark.sweep(3)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_known_forms(form: Form, target: str) -> None:
    check(form, 1, target)
    module = built(form)
    oracle.scheduled(module, target)
    calls = [op.attrs["kernel"] for op in module.main.body.ops if op.name == "call"]
    assert calls[0] == "k0_attention"
    assert set(calls[1:]) <= {"k1_transpose"}  # results whose neighbours are of several heads


def test_one_column_is_no_attention() -> None:
    check(Form(2, 3, 20, 20, 16, 1, "bhsd", "bhsd", "bhsd", "bhds"), 3, "x86-64-v3")


@pytest.mark.sweep(4)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_native_code_of_known_forms(form: Form) -> None:
    arrays = form.arrays(np.random.default_rng(2))
    (found,) = native(built(form), 2)(*arrays)
    np.testing.assert_allclose(found, form.reference(*arrays), rtol=2e-5, atol=2e-6)


@pytest.mark.fresh_seeds(3)
def test_drawn_forms(fresh_seed: int) -> None:
    check(drawn(fresh_seed), fresh_seed, "x86-64-v4" if fresh_seed % 2 else "x86-64-v3")


@pytest.mark.fresh_seeds(2)
def test_native_code_of_drawn_forms(fresh_seed: int) -> None:
    form = drawn(fresh_seed)
    arrays = form.arrays(np.random.default_rng(fresh_seed))
    (found,) = native(built(form), 1)(*arrays)
    np.testing.assert_allclose(found, form.reference(*arrays), rtol=2e-5, atol=2e-6, err_msg=str(form))


def windows(q: Value, k: Value, v: Value, mask: Value) -> Value:
    """Windows of 3 images, 4 each, with a mask for each of the 4, as Swin's shifted ones have it."""
    scores = contract.matmul(q, k, transpose_b=True)
    masked = ew.add(view.reshape(scores, shape=(3, 4, 2, 21, 21)), mask)
    return contract.matmul(softmax(view.reshape(masked, shape=(12, 2, 21, 21))), v)


def test_windows_of_several_images_compute_their_own_scores_only() -> None:
    types = [*[tensor(dt.f32, (12, 2, 21, 16))] * 3, tensor(dt.f32, (4, 1, 21, 21))]
    module = oracle.build(types, windows)
    for step in (Expand(), Canonicalize()):
        step.run(module, PassContext())
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal([d.value for d in t.shape], np.float32) for t in types]
    wanted = oracle.expected(module, arrays)
    oracle.scheduled(module, "x86-64-v3")
    np.testing.assert_allclose(oracle.run(module, arrays)[0], wanted[0], rtol=2e-5, atol=2e-6)
    kernel = module.funcs["k0_attention"]
    products = 2 * 12 * 2 * 21 * 21 * 16
    assert cost(kernel).flops.value < 2 * (2 * products)  # two products of multiply-adds, and rows padded to tiles
