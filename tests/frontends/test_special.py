"""Special functions in f64, evaluated without compiling, against PyTorch's and the standard library's."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.sym import sym
from tilewright.ir.types import TensorType
from tilewright.ops.composites import special as sp
from tilewright.ops.define.interp import evaluate_func

EDGES = np.array([0.0, 1.0, 2.0, 0.5, 8.0, 1e-20, 30.0, math.inf, math.nan])


def evaluated(function: Callable[[Value], Value], x: np.ndarray) -> np.ndarray:
    block, module = Block([TensorType(dt.f64, (sym(len(x)),))], ["x"]), Module()
    with Builder(block, module) as builder:
        builder.emit("return", [function(block.args[0])])
    main = Func("main", block, "graph", {"inputs": ("x",), "outputs": ("y",)})
    module.add(main)
    with np.errstate(all="ignore"):
        return evaluate_func(main, module, [x])[0]


def close(function: Callable[[Value], Value], reference: Callable[[float], float], x: np.ndarray) -> None:
    found, expected = evaluated(function, x), np.array([reference(float(v)) for v in x])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.fresh_seeds(1)
def test_against_the_standard_library(fresh_seed: int) -> None:
    x = np.random.default_rng(fresh_seed).uniform(-20, 20, 200)
    close(sp.erfc, math.erfc, x)
    close(
        sp.lgamma, lambda v: math.lgamma(v) if math.isfinite(v) else abs(v), np.append(np.abs(x), EDGES[1:-1])
    )
    close(sp.erfinv, lambda v: v, np.zeros(1))
    y = np.tanh(x / 8)
    np.testing.assert_allclose([math.erf(v) for v in evaluated(sp.erfinv, y)], y, rtol=1e-13)


@pytest.mark.fresh_seeds(1)
def test_against_pytorch(fresh_seed: int) -> None:
    torch = pytest.importorskip("torch")
    special = torch.special
    x = np.random.default_rng(fresh_seed).uniform(-15, 15, 200)
    pairs = [
        (sp.erfcx, special.erfcx, x[x > -5]), (sp.log_ndtr, special.log_ndtr, x), (sp.digamma, special.digamma, x),
        (sp.ndtri, special.ndtri, 1 / (1 + np.exp(-x))), (partial(sp.polygamma, 3), lambda v: torch.polygamma(3, v), x),
        *((partial(sp.bessel_i, n), getattr(special, f"i{n}"), x) for n in (0, 1)),
        *((partial(sp.bessel_i, n, scaled=True), getattr(special, f"i{n}e"), x) for n in (0, 1)),
        *((partial(sp.bessel_j, n), getattr(special, f"bessel_j{n}"), x) for n in (0, 1)),
        *((partial(sp.bessel_y, n), getattr(special, f"bessel_y{n}"), np.abs(x)) for n in (0, 1)),
        *((partial(sp.bessel_k, n), getattr(special, f"modified_bessel_k{n}"), np.abs(x)) for n in (0, 1)),
        *((partial(sp.bessel_k, n, scaled=True), getattr(special, f"scaled_modified_bessel_k{n}"), np.abs(x))
          for n in (0, 1)),
    ]  # fmt: skip
    for ours, theirs, at in pairs:
        at = at if ours is sp.ndtri else np.concatenate([at, EDGES[:7]])
        # PyTorch's own Bessel functions of the first two kinds are those of f32.
        rtol = 2e-5 if getattr(ours, "func", None) in (sp.bessel_j, sp.bessel_y) else 2e-12
        expected = theirs(torch.from_numpy(at)).numpy()
        np.testing.assert_allclose(evaluated(ours, at), expected, rtol=rtol, atol=rtol, err_msg=str(ours))
