"""Attention over a cache: right for all numbers of rows, read once for heads that share it, and only as far as it is
filled."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from tests.llm.caches import Caches
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_module
from tilewright.frontends.decoders.caches import STORED
from tilewright.frontends.decoders.source import CACHES
from tilewright.ir.text import print_func
from tilewright.options import Options
from tilewright.runtime import Artifact, Model
from tilewright.target.host import host_target
from tilewright.target.named import parse_target

SHARING = {"one each": (3, 3), "3 to 1": (9, 3), "4 to 1": (4, 1), "8 to 1": (8, 1), "5 to 1": (10, 2), "all": (20, 1)}


@cache
def artifact(caches: Caches, numerics: str = "default") -> Artifact:
    return compile_module(caches.module(), Options(states=True, verify=True, numerics=numerics), host_target())


def fed(model: Model, caches: Caches, steps: list[int], seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What calls with so many rows each give, and what they should."""
    rng = np.random.default_rng(seed)
    shapes = [(1, n, sum(steps), caches.size) for n in (caches.heads, caches.groups, caches.groups)]
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    found, wanted, at = [], [], 0
    for n in steps:
        rows = slice(at, at + n)
        found.append(model(*(np.ascontiguousarray(x[:, :, rows]) for x in (q, k, v)))[0])
        stored = (caches.read_back(x[:, :, : at + n]) for x in (k, v))
        wanted.append(caches.wanted(q[:, :, rows], *stored))
        at += n
    return found, wanted


@pytest.mark.sweep(2)
@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("stored", CACHES)
@pytest.mark.parametrize("sharing", SHARING.values(), ids=SHARING.keys())
def test_rows_few_and_many(sharing: tuple[int, int], stored: str, numerics: str) -> None:
    caches = Caches(*sharing, stored=stored)
    for steps in ([1] * 5, [7, 1, 2, 3, 1], [8, 1, 31], [40], [39, 1], [2, 9, 6]):
        results = []
        for threads in (1, 2):
            model = Model(artifact(caches, numerics), threads)
            found, wanted = fed(model, caches, steps)
            for a, b in zip(found, wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
            results.append(found)
        for a, b in zip(*results, strict=True):
            np.testing.assert_array_equal(a, b)


def test_long_caches_are_shared_by_threads() -> None:
    caches = Caches(9, 3, 64, capacity=700)
    models = [Model(artifact(caches), threads) for threads in (1, 2, 3)]
    results = [fed(model, caches, [600, 1, 5, 1]) for model in models]
    for found, wanted in results:
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for found, _ in results[1:]:
        for a, b in zip(found, results[0][0], strict=True):
            np.testing.assert_array_equal(a, b)


def kernel_text(caches: Caches) -> str:
    """The kernel of attention, for a machine with vectors of 16 floats."""
    setting = Setting.of(Options(states=True), parse_target("zen4"))
    compilation = Compilation(caches.module(), setting).run("planned")
    (kernel,) = (f for f in compilation.module.funcs.values() if f.name.endswith("attention"))
    return print_func(kernel).partition("\n")[2]


def test_few_rows_read_keys_once_for_all_heads_of_a_group() -> None:
    """The loops of heads are the innermost ones, unrolled, where keys and values are read."""
    few = kernel_text(Caches(9, 3, 64, capacity=2048)).partition("if n0 < 8 {")[2]
    loops: list[str] = []
    around: dict[str, list[str]] = {}
    for line in few.splitlines():
        indent = len(line) - len(line.lstrip())
        del loops[indent // 2 - 1 :]
        loops.append(line.strip())
        for operand in ("x0[", "x1["):
            if operand in line and "+=" in line:
                around[operand] = [o for o in loops if o.startswith("for")]
    for operand, (outermost, *inner) in around.items():
        assert "parallel" in outermost, operand
        assert "0..3 unroll" in inner[-2] or "0..3 unroll" in inner[-3], inner
    assert few.count("parallel") == 2
    assert "x0_" not in few  # nothing is packed


def test_scores_are_scratch_memory_of_the_kernel() -> None:
    text = kernel_text(Caches(9, 3, 64, capacity=2048))
    stored = set(re.findall(r"^ *(\w+)\[.*\] \+?= ", text, re.MULTILINE))
    allocated = set(re.findall(r"alloc (\w+): (?:scratch|reg)", text))
    assert stored - allocated == {"y"}


@pytest.mark.parametrize("stored", CACHES)
def test_caches_are_read_as_they_are_stored(stored: str) -> None:
    """Attention takes whole caches, and no other kernel reads or makes anything as long as the past but the mask."""
    setting = Setting.of(Options(states=True), parse_target("zen4"))
    caches = Caches(9, 3, 64, capacity=2048, stored=stored)
    funcs = Compilation(caches.module(), setting).run("planned").module.funcs.values()
    heads = [print_func(f).partition("\n")[0] for f in funcs if f.name != "main"]
    (kernel,) = (head for head in heads if "_attention(" in head)
    dtype = str(STORED[stored])
    assert kernel.count(f"&{dtype}[1, 3, 2048, 64]") == 2
    assert kernel.count("&f32[1, 3, 2048, 1]") == (2 if stored == "int8" else 0)
    long = [head for head in heads if "n0 + n1" in head.partition(" with ")[0] and head is not kernel]
    assert all(head.count("n0 + n1") == head.count("&bool[n0, n0 + n1]") for head in long), long
    assert not any("slice" in head.partition("(")[0] for head in heads)


@pytest.mark.parametrize("stored", CACHES)
def test_what_is_no_number_in_a_cache_is_seen(stored: str) -> None:
    """Zeros, tiny and large rows stay finite; a NaN or an infinite element makes what sees it no number."""
    caches = Caches(2, 2, 16, capacity=12, stored=stored)
    model = Model(artifact(caches), 1)
    q = np.ones((1, 2, 1, 16), np.float32)
    rows = [np.zeros_like(q), q * np.float32(1e-42), q * np.float32(6e4), q]
    for row in rows:
        assert np.isfinite(model(q, row, row)[0]).all()
    for wrong in (np.nan, np.inf):
        bad = q.copy()
        bad[0, 1, 0, 3] = wrong
        (found,) = model(q, q, bad)
        assert np.isfinite(found[0, 0]).all()
        assert not np.isfinite(found[0, 1, 0, 3])
    model.reset()
    assert np.isfinite(model(q, q, q)[0]).all()
