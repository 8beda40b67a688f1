"""Wrong rules are refuted: operands exchanged, an index off, a condition forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("z3", reason="proofs need z3: pip install '.[proofs]'")

from tests.proofs.naive import check_size
from tests.proofs.of_sizes import AT, D, N, SizeStatement, X, Y
from tests.proofs.prover import check
from tests.proofs.statement import Statement, stated, typed
from tilewright.graph.match import shape_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.rewrite import Replacement, RewriteContext, Rule
from tilewright.ir.sym import Sym, ge, sym, var
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as red
from tilewright.ops.contract import conv, matmul
from tilewright.ops.quant import dequantize_linear
from tilewright.ops.source import full
from tilewright.ops.view import concat, pad, reshape, slice_, transpose

S, T, M, K = (var(name) for name in ("s", "t", "m", "k"))
Planted = tuple[Callable[[Op], Replacement], Statement]


def _inner(op: Op, operand: int = 0) -> Op:
    made = op.operands[operand].op
    assert made is not None
    return made


def _number(value: float) -> Value:
    return full(value=value, dtype=dt.f32, shape=())


def _rows(x: Value, start: Sym | int, size: Sym | int) -> Value:
    return slice_(x, starts=(start, 0), sizes=(size, M))


def _swapped_permutations(op: Op) -> Value:
    inner = _inner(op)
    return transpose(inner.operands[0], perm=tuple(op.attrs["perm"][k] for k in inner.attrs["perm"]))


def _start_without_stride(op: Op) -> Value:
    inner = _inner(op)
    start = sym(inner.attrs["starts"][0]) + op.attrs["starts"][0]
    return slice_(inner.operands[0], starts=(start, 0), sizes=op.attrs["sizes"], steps=(2, 1))


def _second_part_from_its_beginning(op: Op) -> Value:
    return slice_(_inner(op).operands[1], starts=(0, 0), sizes=op.attrs["sizes"])


def _reduced_where_it_was(op: Op) -> Value:
    return red.reduce_max(_inner(op).operands[0], axes=op.attrs["axes"], keepdims=True)


def _dequantised_padding(op: Op) -> Value:
    inner = _inner(op)
    return dequantize_linear(pad(inner.operands[0], before=(1,), after=(0,)), *inner.operands[1:], dtype=dt.f32)


def _padding_on_the_other_side(op: Op) -> Value:
    return conv(_inner(op).operands[0], op.operands[1], pads_begin=(0,), pads_end=(1,))


PLANTED: dict[str, Planted] = {
    "permutations in the wrong order": (
        _swapped_permutations,
        stated("", "", lambda x: transpose(transpose(x, perm=(1, 2, 0)), perm=(0, 2, 1)), typed(M, M, M)),
    ),
    "a start that is not scaled": (
        _start_without_stride,
        stated("", "", lambda x: slice_(slice_(x, starts=(S, 0), sizes=(K, M), steps=(2, 1)), starts=(T, 0),
                                        sizes=(N, M)), typed(64, M)),
    ),
    "a slice of the wrong place": (
        _second_part_from_its_beginning,
        stated("", "", lambda x, y: _rows(concat(x, y, axis=0), N + 1, K), typed(N, M), typed(K + 1, M)),
    ),
    "a slice that spans both parts": (
        lambda op: slice_(_inner(op).operands[0], starts=(1, 0), sizes=op.attrs["sizes"]),
        stated("", "", lambda x, y: _rows(concat(x, y, axis=0), 1, N), typed(N, M), typed(K + 1, M)),
    ),
    "axes of a reduction that are not permuted": (
        _reduced_where_it_was,
        stated("", "", lambda x: red.reduce_max(transpose(x, perm=(1, 0, 2)), axes=(0,), keepdims=True),
               typed(2, 2, M), arithmetic="floats"),
    ),
    "operands of a difference exchanged": (
        lambda op: ew.sub(op.operands[1], op.operands[0]),
        stated("", "", lambda x, y: ew.sub(x, y), typed(N), typed(N), arithmetic="floats"),
    ),
    "operands of an unknown function exchanged": (
        lambda op: ew.div(op.operands[1], op.operands[0]),
        stated("", "", lambda x, y: ew.div(x, y), typed(N), typed(N)),
    ),
    "a reciprocal that is rounded": (
        lambda op: ew.mul(op.operands[0], _number(1 / 3)),
        stated("", "", lambda x: ew.div(x, _number(3.0)), typed(N), arithmetic="floats"),
    ),
    "sums of floats in another order": (
        lambda op: ew.add(_inner(op).operands[0], ew.add(_inner(op).operands[1], op.operands[1])),
        stated("", "", lambda x, y, z: ew.add(ew.add(x, y), z), typed(N), typed(N), typed(N), arithmetic="floats"),
    ),
    "zeros of both signs": (
        lambda op: op.operands[0],
        stated("", "", lambda x: ew.add(x, _number(0.0)), typed(N), arithmetic="floats"),
    ),
    "padding with 0 instead of the zero point": (
        _dequantised_padding,
        stated("", "", lambda q: pad(dequantize_linear(
            q, _number(0.5), full(value=3, dtype=dt.i8, shape=()), dtype=dt.f32), before=(1,), after=(0,)),
            typed(N, dtype=dt.i8), arithmetic="reals"),
    ),
    "another factor": (
        lambda op: ew.mul(matmul(_inner(op).operands[0], op.operands[1]), _number(2.0)),
        stated("", "", lambda x, y: matmul(ew.mul(x, _number(3.0)), y), typed(N, 2), typed(2, M),
               arithmetic="reals"),
    ),
    "padding on the other side": (
        _padding_on_the_other_side,
        stated("", "", lambda x, w: conv(pad(x, before=(0, 0, 1), after=(0, 0, 0)), w), typed(N, 1, M + 2),
               typed(1, 1, 2), arithmetic="reals"),
    ),
    "a reshape that moves elements": (
        lambda op: reshape(transpose(_inner(op).operands[0], perm=(1, 0)), shape=shape_of(op.result)),
        stated("", "", lambda x: reshape(reshape(x, shape=(6, N)), shape=(6 * N,)), typed(N, 6)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_rule_is_refuted_with_sizes_and_a_place(name: str) -> None:
    replacement, statement = PLANTED[name]

    def rewritten(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
        return replacement(op)

    verdict = check(statement, Rule("planted", (), rewritten))
    assert verdict.outcome == "refuted", verdict
    assert "i0 = " in verdict.detail, verdict


WRONG_FORMS: dict[str, tuple[SizeStatement, Sym]] = {
    "divisors added": (SizeStatement("", lambda o, n: (n // 4) // 6, (N,), ""), N // 10),
    "an inner divisor that is no multiple": (SizeStatement("", lambda o, x: (x % 24) % 5, (X,), ""), X % 5),
    "a quotient that is not rounded down": (SizeStatement("", lambda o, x: x // -6, (X,), ""), -(X // 6)),
    "fine parts beyond the divisor": (SizeStatement("", lambda o, x, i: (3 * x + i) // 12, (X, AT), ""), X // 4),
    "the greater of two": (SizeStatement("", lambda o, n: o.minimum(n, n + 3), (N,), ""), N + 3),
    "a condition rounded the wrong way": (SizeStatement("", lambda o, x: o.ge0(6 * x - 9), (X,), ""), ge(X, 1)),
    "a remainder without its range": (SizeStatement("", lambda o, x, d: x % d, (X, D), ""), X),
    "operands of a difference": (SizeStatement("", lambda o, x, y: x - y, (X, Y), ""), Y - X),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_FORMS)
def test_a_wrong_form_is_refuted_with_numbers(name: str) -> None:
    statement, form = WRONG_FORMS[name]
    verdict = check_size(statement, form)
    assert verdict.outcome == "refuted" and "=" in verdict.detail, verdict
