"""Which accesses of kernels are proved to stay in their buffers, and what is said of those that are not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import helper

import tilewright
from tests import models
from tests.checks.test_check import model_of, network
from tests.validation.planted import PLANTED, beyond_the_end, specialised_too_early
from tilewright.checks import access_bounds
from tilewright.checks.access_bounds import AccessProof, access_proofs
from tilewright.checks.result import AccessBounds
from tilewright.compilation import Compilation
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.order import split


def proofs(args: str, body: str, dims: str = "n", info: str = "") -> list[AccessProof]:
    lines = "\n".join(f"  {line}" for line in body.strip("\n").splitlines())
    text = f"kernel @k({args}) dims({dims}) with {{outputs=1{info}}} {{\n{lines}\n  return\n}}\n"
    return list(access_proofs(parse_kernel(text)))


ROW = "x: &f32[n], y: &f32[n]"
WRONG = {
    "beyond the end": (ROW, "n", "for i in 0..n {\n  y[i] = x[i + 1]\n}", "load", "i + 1 < n", {"n": 1, "i": 0}),
    "before the start": (ROW, "n", "for i in 0..n {\n  y[i] = x[i - 1]\n}", "load", "i >= 1", {"n": 1, "i": 0}),
    "one iteration more": (ROW, "n", "for i in 0..n + 1 {\n  y[i] = 0.0\n}", "store", "i < n", {"n": 1, "i": 1}),
    "a variable that is declared as less": (
        "x: &f32[16], y: &f32[16]", "", "for i <= 15 in 0..17 {\n  y[i] = 0.0\n}", "store", "i < 16", {"i": 16},
    ),
    "a mask that misses the tail": (
        ROW, "n", "for o in 0..(n + 3) // 4 {\n  for i in 0..4 vector {\n    if 4*o + i <= n {\n"
        "      y[4*o + i] = 0.0\n    }\n  }\n}", "store", "4*o + i < n", {"n": 1, "o": 0, "i": 1},
    ),
    "a halo of one row more": (
        "x: &f32[n, 8], y: &f32[n, 8]", "n", "for i in 0..n {\n  for r in 0..3 {\n    for j in 0..8 {\n"
        "      y[i, j] += x[i + r - 1, j if i + r >= 1, i + r <= n + 1]\n    }\n  }\n}", "load", "i + r <= n",
        {"n": 1, "i": 0, "r": 2, "j": 0},
    ),
    "a last iteration that begins too early": (
        ROW, "n", "for o in 0..(n + 7) // 8 {\n  for i in 0..8 vector {\n    y[min(8*o, n - 8) + i] = 0.0\n  }\n}",
        "store", "", {"n": 1, "o": 0, "i": 0},
    ),
    "registers": (
        "x: &f32[n], y: &f32[n]", "n", "alloc r: reg f32[4]\nfor i in 0..n {\n  r[i % 5] = x[i]\n  y[i] = 0.0\n}",
        "store", "i % 5 < 4", {"n": 5, "i": 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("args, dims, body, access, missing, leaves", WRONG.values(), ids=WRONG)
def test_what_leaves_its_buffer_is_told_with_a_place(
    args: str, dims: str, body: str, access: str, missing: str, leaves: dict[str, int]
) -> None:
    wrong = [p for p in proofs(args, body, dims) if p.how != "range" and p.how != "guard"]
    (proof,) = (p for p in wrong if p.leaves)
    assert len(wrong) == 1 or all(p.missing == proof.missing for p in wrong)
    assert (proof.op.name, proof.how) == (access, "not proved")
    assert not missing or str(proof.missing) == missing
    found = dict(proof.leaves)
    assert found.keys() == leaves.keys()
    # by the definition: the index is outside of the buffer there
    at = [i.evaluate(found) for i in proof.op.attrs["idx"]]
    shape = [n.evaluate(found) for n in proof.op.operands[-1].buffer.shape]
    assert not 0 <= at[proof.axis] < shape[proof.axis], (at, shape)


RIGHT = {
    "a mask": ("for o in 0..(n + 3) // 4 {\n  for i in 0..4 vector {\n    if 4*o + i < n {\n      y[4*o + i] = 0.0\n"
               "    }\n  }\n}", ROW, "", {"guard": 1}),
    "a whole part, and the rest": (
        "for o in 0..n // 4 {\n  for i in 0..4 vector {\n    y[4*o + i] = x[4*o + i]\n  }\n}\n"
        "for t in 0..n % 4 {\n  y[n // 4 * 4 + t] = 0.0\n}", ROW, "", {"range": 3}),
    "a halo": (
        "for i in 0..n {\n  for r in 0..3 {\n    y[i] += x[i + r - 1 if i + r >= 1, i + r <= n]\n  }\n}", ROW, "",
        {"range": 2, "guard": 1}),
    "a last iteration that begins earlier": (
        "if n >= 8 {\n  for o in 0..(n + 7) // 8 {\n    for i in 0..8 vector {\n      y[min(8*o, n - 8) + i] = 0.0\n"
        "    }\n  }\n}", ROW, "", {"guard": 1}),
    "the same, where the caller says the least size": (
        "for o in 0..(n + 7) // 8 {\n  for i in 0..8 vector {\n    y[min(8*o, n - 8) + i] = 0.0\n  }\n}", ROW,
        ', specialized_for={"n": 8}', {"guard": 1}),
    "rows of tiles of which the last has fewer": (
        "for t in 0..4*n {\n  y[0, 0] += x[0, 4*(t % 4) + 3 if t % 4 < 3]\n}", "x: &f32[n, 14], y: &f32[1, 1]", "",
        {"range": 2, "guard": 1}),
    "two loops as one": (
        "for ij in 0..n*6 {\n  y[ij // 6, ij % 6] = x[ij // 6, ij % 6]\n}", "x: &f32[n, 6], y: &f32[n, 6]", "",
        {"range": 2}),
}  # fmt: skip


@pytest.mark.parametrize("body, args, info, counts", RIGHT.values(), ids=RIGHT)
def test_what_keeps_an_access_in_its_buffer(body: str, args: str, info: str, counts: dict[str, int]) -> None:
    found = proofs(args, body, "n", info)
    assert Counter(p.how for p in found) == counts, [str(p.missing) for p in found]


def softmax_rows() -> object:
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=-1)]
    return model_of(nodes, {"x": ["rows", 37]}, ["y"], {})


def strided() -> object:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("MaxPool", ["a"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    weights = np.ones((5, 3, 3, 3), np.float32)
    return model_of(nodes, {"x": [1, 3, "h", 23]}, ["y"], {"w": weights})


@pytest.mark.parametrize(
    "model", [network, models.mlp, models.gather, softmax_rows, strided], ids=lambda model: model.__name__
)
def test_kernels_of_models_are_proved(model: object) -> None:
    assert callable(model)
    bounds = tilewright.check(model(), bounds=True).bounds
    assert bounds is not None and bounds.by_range
    assert not bounds.unproved, "\n".join(map(str, bounds.unproved))


GATHERED = """for i in 0..n {{
  v: i64 = ids[i]
  inside: bool = and(v >= 0, v < index(5))
  check inside else ExecutionError("an index is out of range")
  bind at <= 4 = {}
  y[i] = x[at]
}}"""


def test_positions_that_are_data_are_kept_by_clamps_alone() -> None:
    args = "x: &f32[5], ids: &i64[n], y: &f32[n]"
    assert [p.how for p in proofs(args, GATHERED.format("select(inside, v, 0)"))] == ["range", "guard", "range"]
    # what the variable is declared with is no proof, and a check does not end the kernel
    ids, x, y = proofs(args, GATHERED.format("v"))
    assert (ids.how, x.how, y.how) == ("range", "not proved", "range")
    assert not x.leaves  # data decide


def masks_one_more(patch: pytest.MonkeyPatch) -> None:
    ge0 = split.ge0
    patch.setattr(split, "ge0", lambda e: ge0(e + 1))


DEFECTS = {
    "a store beyond a buffer": (beyond_the_end, {"y"}),
    "a mask that misses the tail": (masks_one_more, {"y"}),
    "one dynamic size": (specialised_too_early, {"x", "y"}),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_of_schedules_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def bounds() -> AccessBounds:
        return access_bounds.access_bounds(Compilation.by_default(PLANTED[name].module()).run("scheduled").module)

    plant, buffers = DEFECTS[name]
    assert not bounds().unproved
    plant(monkeypatch)
    assert {access.buffer for access in bounds().wrong} == buffers


def test_a_budget_ends_a_search_and_not_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_bounds, "TERMS", 0)
    body = "for i in 0..n {\n  y[i] = x[i + 1]\n}\nfor j in 0..n {\n  y[j] = 0.0\n}"
    # what takes a few terms is proved all the same
    assert [p.how for p in proofs(ROW, body)] == ["not looked at", "range", "range"]
