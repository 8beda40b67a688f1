"""Sizes that PyTorch computes in floats: `floor(float(w) * factor)` and its siblings, for every width."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import sympy  # noqa: E402
from torch.utils._sympy.functions import (  # noqa: E402
    CeilToInt,
    FloatTrueDiv,
    FloorToInt,
    IntTrueDiv,
    RoundToInt,
    ToFloat,
    TruncToInt,
)

import tilewright  # noqa: E402
from tests.fuzz.sizes import native, within  # noqa: E402
from tilewright.frontends.choices import Choices  # noqa: E402
from tilewright.frontends.torch.symbols.sizes import Sizes  # noqa: E402
from tilewright.frontends.translation import Translation  # noqa: E402
from tilewright.ir import dtype as dt  # noqa: E402
from tilewright.ir.core import Module  # noqa: E402
from tilewright.ir.sym import Sym, var  # noqa: E402
from tilewright.ir.types import tensor  # noqa: E402
from tilewright.ops.define.interp import evaluate_block  # noqa: E402
from tilewright.ops.define.staged import MEASURE  # noqa: E402

F = torch.nn.functional
W = sympy.Symbol("s77", positive=True, integer=True)
DYNAMIC = torch.export.Dim.DYNAMIC
FACTORS = [k / 10 for k in range(1, 60)] + [k / 3 for k in range(1, 60)]
ODD = [0.37284638291, 2 / 7, 1.2345, 0.9999, 3.1415926, 5e-3]
ROUNDINGS: dict[Any, Callable[[float], int]] = {
    FloorToInt: math.floor, CeilToInt: math.ceil, TruncToInt: math.trunc, RoundToInt: round,
}  # fmt: skip


def followed(expression: Any) -> tuple[Sym, list[Sym], Module]:
    """The size that an expression of w is, what is assumed of w, and the program that measures it if need be."""
    w = var("w", 1)
    translation = Translation({"x": tensor(dt.f32, [w])}, Choices(()))
    with translation.builder:
        sizes = Sizes(translation)
        sizes.bind(W, w)
        found = sizes.of(expression)
        assert sizes.of(expression) is found
    module = translation.finish([translation.inputs[0]], ["y"], 0)
    return found, [c for c, *_ in module.main.attrs.get("assumed", ())], module


def value_at(size: Sym, module: Module, w: int) -> int:
    """The size for one width, in native arithmetic, or as measured in the program."""
    ops = module.main.body.ops
    measured = [k for k, op in enumerate(ops) if op.name == MEASURE and op.attrs["variables"] == (size,)]
    if not measured:
        return native(size, {"w": w}, within)
    values: dict[Any, np.ndarray] = {}
    evaluate_block(ops[: measured[0]], values, {"w": w}, module)
    return int(values[ops[measured[0]].operands[0]])


def agrees(expression: Any, expected: Callable[[int], int], widths: Iterable[int]) -> bool:
    """Whether the size is the expected one for all widths: as an expression (True), or as measured."""
    size, assumed, module = followed(expression)
    is_formula = size.kind != "var" or size.name == "w"
    for w in widths:
        assert all(c.evaluate({"w": w}) for c in assumed), f"{expression} is refused for {w}"
        assert value_at(size, module, w) == expected(w), f"{expression} for {w}"
    return is_formula


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_sizes_are_pytorchs_for_all_factors(rounding: Any) -> None:
    formulas = 0
    computed, widths = ROUNDINGS[rounding], range(1, 301)
    for factor in [*FACTORS, *ODD]:
        expression = rounding(sympy.Float(factor) * ToFloat(W))
        size, _, _ = followed(expression)
        is_measured = size.kind == "var" and size.name != "w"
        # measuring is slower here: the first widths, and those that the factor rounds down
        wrong = [w for w in widths if computed(w * factor) != computed(float(round(w * factor, 6)))]
        few = (*range(1, 20), *wrong[:6])
        expected = {w: computed(w * factor) for w in widths}
        formulas += agrees(expression, expected.__getitem__, few if is_measured else widths)
    assert formulas > 100


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (FloorToInt(IntTrueDiv(W, sympy.Integer(3))), lambda w: w // 3),
        (CeilToInt(IntTrueDiv(3 * W, sympy.Integer(7))), lambda w: -(-3 * w // 7)),
        (RoundToInt(IntTrueDiv(W, sympy.Integer(2))), lambda w: round(w / 2)),
        (TruncToInt(FloatTrueDiv(ToFloat(W), sympy.Float(1.2))), lambda w: int(w / 1.2)),
        (FloorToInt(0.5 + 1.2 * ToFloat(W)), lambda w: math.floor(1.2 * w + 0.5)),
        (FloorToInt(1.2 * ToFloat(FloorToInt(1.2 * ToFloat(W)))), lambda w: math.floor(1.2 * math.floor(1.2 * w))),
        (TruncToInt(0.3 * ToFloat(W * W)), lambda w: int(0.3 * (w * w))),
        (TruncToInt(0.7 * ToFloat(W * W)), lambda w: int(0.7 * (w * w))),
        (TruncToInt(0.7 * ToFloat(W - 20)), lambda w: int(0.7 * (w - 20))),
    ],
    ids=lambda x: "" if callable(x) else str(x),
)
def test_other_arithmetic_of_floats(expression: Any, expected: Callable[[int], int]) -> None:
    agrees(expression, expected, range(1, 120))


class Scaled(torch.nn.Module):
    def __init__(self, factor: float, recompute: bool | None) -> None:
        super().__init__()
        self.factor, self.recompute = factor, recompute

    def forward(self, x: Any) -> Any:
        y = F.interpolate(x, scale_factor=self.factor, mode="nearest", recompute_scale_factor=self.recompute)
        return y * 2 + y.shape[2]


@pytest.mark.sweep
@pytest.mark.parametrize("recompute", [None, True])
@pytest.mark.parametrize("factor", [1.2, 1 / 3, 0.7, 13 / 3, 1.2345])
def test_interpolation_has_pytorchs_sizes(factor: float, recompute: bool | None) -> None:
    module = Scaled(factor, recompute).eval()
    example = (torch.randn(1, 2, 30),)
    model = tilewright.compile(module, example, dynamic_shapes=({2: DYNAMIC},), cache=False, threads=1)
    for w in (*range(6, 60), 90, 180, 255, 1000):
        x = torch.randn(1, 2, w)
        assert model(x)[0].shape == tuple(module(x).shape), w
