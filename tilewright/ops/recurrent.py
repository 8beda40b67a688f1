"""Recurrent networks: the steps over time as one loop for each batch entry.

What does not depend on the state, the product of the inputs with their weights, is computed before for all
steps at once and comes as `gates`. Steps beyond an entry's length leave its state as it is and give zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import irregular
from tilewright.ops.shape import require_equal_dim
from tilewright.ops.trace import Array, Scalar, Trace

ACTIVATIONS = ("sigmoid", "tanh", "relu")


def activated(t: Trace, name: str, x: Scalar) -> Scalar:
    return t.apply("max", x, 0.0) if name == "relu" else t.apply(name, x)


def _checked(
    gates: TensorType, r: TensorType, lengths: TensorType, count: int, activations: Sequence[str]
) -> tuple[TensorType, TensorType]:
    """The types of all outputs over time and of the last state."""
    if gates.rank != 3 or r.rank != 2 or lengths.rank != 1:
        raise ValueError("gates must be [time, batch, gates], weights a matrix and lengths a vector")
    steps, batch, width = gates.shape
    hidden = r.shape[1]
    require_equal_dim(width, hidden * count, "the gates and the hidden size times their number")
    require_equal_dim(r.shape[0], hidden * count, "the rows of the recurrent weights and the gates")
    require_equal_dim(lengths.shape[0], batch, "the number of lengths and the batch")
    if any(name not in ACTIVATIONS for name in activations):
        raise ValueError(f"activations {tuple(activations)} are not all of {', '.join(ACTIVATIONS)}")
    return TensorType(gates.dtype, (steps, batch, hidden)), TensorType(gates.dtype, (batch, hidden))


@dataclass(frozen=True)
class _Step:
    """One step of one batch entry: its position in time, and whether the entry lasts so long."""

    batch: Sym
    place: Sym
    active: Scalar


@contextmanager
def _entry(t: Trace, first: Sequence[Array], last: Sequence[Array]) -> Iterator[tuple[Sym, list[Array]]]:
    """A loop over batch entries with their states in scratch memory, from `first` and to `last`."""
    batch, hidden = first[0].shape
    with t.loop(batch, "b", "parallel") as b:
        states = [t.alloc(dt.f32, (hidden,)) for _ in first]
        with t.loop(hidden, "j") as j:
            for state, start in zip(states, first, strict=True):
                state.store((j,), start[b, j].cast(dt.f32))
        yield b, states
        with t.loop(hidden, "j") as j:
            for state, end in zip(states, last, strict=True):
                end.store((b, j), state[j].cast(end.dtype))


@contextmanager
def _steps(t: Trace, count: Sym, b: Sym, lengths: Array, reverse: bool) -> Iterator[_Step]:
    """A loop over time; `reverse` begins at each entry's own end."""
    with t.loop(count, "t") as step:
        now = t.index(step)
        length = t.apply("min", lengths[b].cast(dt.i64), t.index(count))
        active = now < length
        place = t.select(active, length - 1 - now, now) if reverse else now
        yield _Step(b, t.bind(place, "place"), active)


def _product(t: Trace, start: Scalar, r: Array, row: Sym, state: Array) -> Scalar:
    """start + r[row] . state"""
    total = t.alloc(dt.f32, (1,))
    total.store((0,), start)
    with t.loop(state.shape[0], "k") as k:
        total.store((0,), total[0] + r[row, k].cast(dt.f32) * state[k])
    return total[0]


def _keep(t: Trace, step: _Step, state: Array, j: Sym, value: Scalar) -> None:
    state.store((j,), t.select(step.active, value, state[j]))


def _emit(t: Trace, step: _Step, y: Array, j: Sym, value: Scalar) -> None:
    y.store((step.place, step.batch, j), t.select(step.active, value, 0.0).cast(y.dtype))


def _rnn_types(
    gates: TensorType,
    r: TensorType,
    h: TensorType,
    lengths: TensorType,
    *,
    activations: Sequence[str] = ("tanh",),
    reverse: bool = False,
) -> tuple[TensorType, ...]:
    return _checked(gates, r, lengths, 1, activations)


@irregular(_rnn_types)
def rnn(
    t: Trace,
    inputs: list[Array],
    outputs: list[Array],
    *,
    activations: Sequence[str] = ("tanh",),
    reverse: bool = False,
) -> None:
    """h = f(gates + R h): outputs of all steps [time, batch, hidden] and the last h [batch, hidden]."""
    (gates, r, h0, lengths), (y, hn) = inputs, outputs
    with _entry(t, [h0], [hn]) as (b, (h,)), _steps(t, gates.shape[0], b, lengths, reverse) as step:
        new = t.alloc(dt.f32, h.shape)
        with t.loop(h.shape[0], "j") as j:
            total = _product(t, gates[step.place, b, j].cast(dt.f32), r, j, h)
            new.store((j,), activated(t, activations[0], total))
        with t.loop(h.shape[0], "j") as j:
            _keep(t, step, h, j, new[j])
            _emit(t, step, y, j, new[j])


def _gru_types(
    gates: TensorType,
    r: TensorType,
    bias: TensorType,
    h: TensorType,
    lengths: TensorType,
    *,
    activations: Sequence[str] = ("sigmoid", "tanh"),
    reverse: bool = False,
    linear_before_reset: bool = False,
) -> tuple[TensorType, ...]:
    return _checked(gates, r, lengths, 3, activations)


@irregular(_gru_types)
def gru(
    t: Trace,
    inputs: list[Array],
    outputs: list[Array],
    *,
    activations: Sequence[str] = ("sigmoid", "tanh"),
    reverse: bool = False,
    linear_before_reset: bool = False,
) -> None:
    """Gated recurrent unit, gates in the order z, r, h (Cho et al., 2014); `bias` is the recurrent one of h.

    h = (1 - z) * g(gates_h + R_h (r * h) + bias) + z * h; with `linear_before_reset` r * (R_h h + bias) is
    what is added to gates_h.
    """
    (gates, r, bias, h0, lengths), (y, hn) = inputs, outputs
    f, g = activations
    with _entry(t, [h0], [hn]) as (b, (h,)), _steps(t, gates.shape[0], b, lengths, reverse) as step:
        size = h.shape[0]
        z, reset, hidden = (t.alloc(dt.f32, h.shape) for _ in range(3))
        with t.loop(size, "j") as j:
            for gate, row in ((z, j), (reset, size + j)):
                total = _product(t, gates[step.place, b, row].cast(dt.f32), r, row, h)
                gate.store((j,), activated(t, f, total))
        source = h
        if not linear_before_reset:
            source = t.alloc(dt.f32, h.shape)
            with t.loop(size, "j") as j:
                source.store((j,), reset[j] * h[j])
        with t.loop(size, "j") as j:
            row = 2 * size + j
            recurrent = _product(t, bias[j].cast(dt.f32), r, row, source)
            if linear_before_reset:
                recurrent = reset[j] * recurrent
            hidden.store((j,), activated(t, g, gates[step.place, b, row].cast(dt.f32) + recurrent))
        with t.loop(size, "j") as j:
            new = (1 - z[j]) * hidden[j] + z[j] * h[j]
            _emit(t, step, y, j, new)
            _keep(t, step, h, j, new)


def _lstm_types(
    gates: TensorType,
    r: TensorType,
    peepholes: TensorType,
    h: TensorType,
    c: TensorType,
    lengths: TensorType,
    *,
    activations: Sequence[str] = ("sigmoid", "tanh", "tanh"),
    reverse: bool = False,
    couple: bool = False,
) -> tuple[TensorType, ...]:
    over_time, last = _checked(gates, r, lengths, 4, activations)
    return over_time, last, last


@irregular(_lstm_types)
def lstm(
    t: Trace,
    inputs: list[Array],
    outputs: list[Array],
    *,
    activations: Sequence[str] = ("sigmoid", "tanh", "tanh"),
    reverse: bool = False,
    couple: bool = False,
) -> None:
    """Long short-term memory, gates in the order i, o, f, c (Hochreiter & Schmidhuber, 1997).

    `peepholes` [3 * hidden] (i, o, f) let gates see the cell; with `couple` f is 1 - i. Gives the outputs of
    all steps, the last h and the last c.
    """
    (gates, r, peepholes, h0, c0, lengths), (y, hn, cn) = inputs, outputs
    f, g, out = activations
    with _entry(t, [h0, c0], [hn, cn]) as (b, (h, c)), _steps(t, gates.shape[0], b, lengths, reverse) as step:
        size = h.shape[0]
        sums = t.alloc(dt.f32, gates.shape[2:])
        with t.loop(gates.shape[2], "row") as row:
            sums.store((row,), _product(t, gates[step.place, b, row].cast(dt.f32), r, row, h))
        with t.loop(size, "j") as j:

            def peep(k: int, cell: Scalar, at: Sym = j) -> Scalar:
                return sums[k * size + at] + peepholes[k * size + at].cast(dt.f32) * cell

            old = c[j]
            entering = activated(t, f, peep(0, old))
            kept = 1 - entering if couple else activated(t, f, peep(2, old))
            cell = kept * old + entering * activated(t, g, sums[3 * size + j])
            new = activated(t, f, peep(1, cell)) * activated(t, out, cell)
            _emit(t, step, y, j, new)
            _keep(t, step, c, j, cell)
            _keep(t, step, h, j, new)
