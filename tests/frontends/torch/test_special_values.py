"""NaN, infinities, signed zeros and the ends of integers: what eager PyTorch gives.

Where eager PyTorch itself is not of one mind (vectors and single elements differ: which of two zeros is the larger one,
`gelu` of infinity, remainders of the largest floats by small ones), nothing is asked for. Denormal numbers count as
zero by default, and are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch._dynamo as dynamo  # noqa: E402

import tilewright  # noqa: E402
from tests.frontends.torch.special_values import BINARY, INTEGERS, ROWS, UNARY, WHOLE, words  # noqa: E402
from tilewright.ir.diag import UnsupportedError  # noqa: E402
from tilewright.torch import backend  # noqa: E402

INF, NAN = float("inf"), float("nan")
SPECIAL = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, 100.0, -100.0)
_ARE_SIGNED = (
    "sign",
    "sgn",
    "floor",
    "remainder",
    "rfloor",
    "rremainder",
    "copysign",
    "fmod",
    "div",
    "trunc",
    "ceil",
)
_ARE_SIGNED += ("round", "neg", "abs", "hypot", "erfinv", "nextafter", "frac", "sinh", "tan", "sqrt")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dynamo.reset()
    with torch.no_grad():
        yield
    dynamo.reset()


def _runs(function: Callable[..., Any], given: Sequence[Any]) -> bool:
    try:
        function(*given)
    except (RuntimeError, TypeError):  # not of this type
        return False
    return True


def _agree(table: dict[str, Callable[..., Any]], *given: Any) -> None:
    """Compile some functions together, run them, and compare with eager PyTorch."""
    names = [name for name, function in table.items() if _runs(function, given)]
    assert len(names) > len(table) / 2
    compiled = torch.compile(
        lambda *args: [table[name](*args) for name in names],
        backend=backend,
        options={"cache": False, "threads": 1},
    )
    for name, found in zip(names, compiled(*given), strict=True):
        expected = table[name](*given)
        pairs = zip(*(torch.utils._pytree.tree_leaves(result) for result in (found, expected)), strict=True)
        for ours, theirs in pairs:
            torch.testing.assert_close(
                ours, theirs, equal_nan=True, **_within(theirs), msg=lambda text, name=name: f"{name}: {text}"
            )
            if name.startswith(_ARE_SIGNED) and theirs.is_floating_point():
                differ = torch.signbit(ours) != torch.signbit(theirs)
                assert not (differ & ~theirs.isnan()).any(), (
                    f"{name}: signs differ at {differ.nonzero().tolist()}"
                )


def _within(expected: Any) -> dict[str, float]:
    relative = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}
    if expected.is_complex() or not expected.is_floating_point():
        return {"rtol": 0, "atol": 0}
    return {"rtol": relative[expected.dtype], "atol": max(1e-7, relative[expected.dtype] / 10)}


FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_of_single_elements(dtype: Any, part: int) -> None:
    """A quarter of the functions, each fourth one."""
    x = torch.tensor(SPECIAL, dtype=dtype)
    # Of -infinity a square root is NaN, also in PyTorch, where float16 alone has a power of 0.5.
    left_out = {"gelu", "pow 0.5"} if dtype is torch.float16 else {"gelu"}
    names = [name for name in UNARY if name not in left_out][part::4]
    _agree({name: UNARY[name] for name in names}, x)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_ends_of_floats(dtype: Any) -> None:
    """Where nothing overflows on the way."""
    names = words(
        "abs ceil floor round trunc sign sgn neg relu isfinite isinf sqrt nan_to_num clamp signbit frac reciprocal "
        "tanh sigmoid exp log threshold where"
    )
    ends = torch.finfo(dtype)
    x = torch.tensor([ends.max, ends.min, ends.tiny, -ends.tiny, *SPECIAL], dtype=dtype)
    _agree({name: UNARY[name] for name in (*names, "floor_divide 2.0", "floor_divide -1.5")}, x)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_of_pairs(dtype: Any) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    # Computed in float32 (docs/frontends.md), 16-bit floats have the power of two that is 0 among themselves.
    left_out = {"ldexp"} if dtype.itemsize == 2 else set()
    _agree({name: function for name, function in BINARY.items() if name not in left_out}, x[:, None], x[None])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_of_rows(dtype: Any) -> None:
    rows = list(itertools.product((NAN, INF, -INF, 0.0, -0.0, 1.0, -2.0), repeat=3))
    _agree(ROWS, torch.tensor(rows, dtype=dtype))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_the_ends_of_integers(dtype: Any) -> None:
    ends = torch.iinfo(dtype)
    few = [0, 1, 2, 3, 7, 8, 16, ends.max, ends.max - 1, ends.min] + ([-1, -2, -3, -7] if ends.min else [])
    x = torch.tensor(few, dtype=dtype)
    _agree(WHOLE, x)
    # The least integer divided by -1 ends eager PyTorch, and its greatest divisor is negative there.
    others = x[x != ends.min] if ends.min else x
    _agree(INTEGERS, others[:, None], others[others != 0][None])


def test_the_least_integer_divided_by_minus_one_wraps_around() -> None:
    for dtype in (torch.int8, torch.int32, torch.int64):
        least = torch.iinfo(dtype).min
        function = torch.compile(
            lambda a, b: (a // b, a % b, torch.fmod(a, b)), backend=backend, options={"cache": False}
        )
        found = function(torch.full((9,), least, dtype=dtype), torch.full((9,), -1, dtype=dtype))
        assert [x.tolist() for x in found] == [[least] * 9, [0] * 9, [0] * 9]


def test_projections_of_an_lstm_are_refused_with_the_reason() -> None:
    layer, x = torch.nn.LSTM(4, 8, proj_size=3).eval(), torch.randn(5, 2, 4)
    with pytest.raises(UnsupportedError, match="projections of states") as found:
        tilewright.compile(layer, (x,), cache=False)
    assert "proj_size" in str(found.value)
    with dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(layer, backend=backend, options={"cache": False})
        torch.testing.assert_close(compiled(x)[0], layer(x)[0])
