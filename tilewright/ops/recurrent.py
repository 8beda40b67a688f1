"""Recurrent networks: the steps over time as one loop for a few batch entries at once.

What does not depend on the state, the product of the inputs with their weights, is computed before for all
steps at once and comes as `gates`: for each gate its units, which may be filled up to whole lines of `line` floats, as
states are in memory. A weight of the recurrent product that was read serves all of the `entries` of a group: how many
these are, and how long lines are, changes no result. Weights of fewer bits than the gates are multiplied with states
that are rounded to their dtype. Steps beyond an entry's length leave its
state as it is and give zeros; without lengths all entries last for all steps.

Where the recurrent weights are integers, each step quantises the states to 8 bits by their own range, and the sums are
exact. Each entry has a scale of its own, so that it does not depend on who else is in the batch.

With a `limit` that is not 0, the sums that activations are applied to are limited to -limit..limit before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, ceildiv, le, lt, minimum
from tilewright.ir.types import TensorType
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import require_equal_dim
from tilewright.ops.traits.facts import step_by_step

ACTIVATIONS = ("sigmoid", "tanh", "relu")

LARGEST = 255
"""The largest number of 8 bits without a sign."""

HALF = 128
"""Between a byte without a sign and the one with a sign that stands for the same number."""


def lined(units: Sym | int, line: int) -> Sym:
    """So many floats and those that are left of their last line of `line` floats."""
    return ceildiv(units, line) * line


def activated(t: ScalarBuilder, name: str, x: Scalar, limit: float = 0.0) -> Scalar:
    """An activation of x, which is limited to -limit..limit before where that is not 0."""
    if limit:
        x = _between(t, x, limit)
    return t.apply("max", x, 0.0) if name == "relu" else t.apply(name, x)


def _between(t: ScalarBuilder, x: Scalar, limit: float) -> Scalar:
    return t.apply("min", t.apply("max", x, -limit), limit)


def _require_limits(**limits: float) -> None:
    for what, limit in limits.items():
        if not limit >= 0:
            raise ValueError(f"{what} cannot be limited to {limit}")


def _checked(
    gates: TensorType,
    r: TensorType,
    lengths: TensorType | None,
    count: int,
    activations: Sequence[str],
    line: int,
    *states: TensorType,
) -> tuple[TensorType, TensorType]:
    """The types of all outputs over time and of the last state; the first `states` must be like that."""
    if gates.rank != 3 or r.rank != 3:
        raise ValueError("gates must be [time, batch, gates * units] and weights [gates, hidden, hidden]")
    steps, batch, width = gates.shape
    hidden = r.shape[2]
    if width != lined(hidden, line) * count:
        require_equal_dim(width, hidden * count, "the gates and the hidden size times their number")
    require_equal_dim(
        r.shape[0] * r.shape[1], hidden * count, "the rows of the recurrent weights and the gates"
    )
    for state in states:
        if state.rank != 2:
            raise ValueError("a first state must be [batch, hidden]")
        require_equal_dim(state.shape[0], batch, "the batch of a first state and that of the gates")
        require_equal_dim(state.shape[1], hidden, "the units of a first state and the hidden size")
    if lengths is not None:
        if lengths.rank != 1:
            raise ValueError("lengths must be a vector")
        require_equal_dim(lengths.shape[0], batch, "the number of lengths and the batch")
    if any(name not in ACTIVATIONS for name in activations):
        raise ValueError(f"activations {tuple(activations)} are not all of {', '.join(ACTIVATIONS)}")
    return TensorType(gates.dtype, (steps, batch, hidden)), TensorType(gates.dtype, (batch, hidden))


def _require_vector(vector: TensorType, count: Sym, name: str) -> None:
    if vector.rank != 1:
        raise ValueError(f"the {name} must be a vector")
    require_equal_dim(vector.shape[0], count, f"the size of the {name} and what it is added to")


PAIR = 2
"""Entries of the groups of batches that turn out to be smaller than the usual group."""


@dataclass(frozen=True)
class _Group:
    """Batch entries `start`, `start + 1`, ... that go through time together, and their states in scratch memory."""

    size: int
    hidden: Sym
    line: int
    start: Sym
    states: tuple[Array, ...]
    dtype: DType
    """What states and sums are kept in: f32, of f64 operands f64."""
    given: DType
    """The dtype of the first states."""

    def rows(self, t: ScalarBuilder) -> Array:
        """Memory for the units of each entry."""
        return t.alloc(self.dtype, (self.size, lined(self.hidden, self.line)))

    @contextmanager
    def units(self, t: ScalarBuilder) -> Iterator[tuple[Sym, Sym]]:
        """A loop over the entries of the group and one over the hidden units."""
        with t.loop(self.size, "e") as e, t.loop(self.hidden, "j") as j:
            yield e, j


def _groups(
    t: ScalarBuilder, entries: int, line: int, first: Sequence[Array], last: Sequence[Array]
) -> Iterator[_Group]:
    """Loops over groups of so many entries with their states, from `first` and to `last`: one or, of unknown batches,
    one for those that have so many, one of pairs for those of fewer, and one for single entries."""
    batch = last[0].shape[0]
    if batch.is_const or entries == 1:
        yield from _groups_of(t, min(entries, max(1, batch.value)) if batch.is_const else 1, line, first, last)
        return
    with t.when(le(entries, batch)):
        yield from _groups_of(t, entries, line, first, last)
    with t.when(lt(batch, entries)):
        if entries <= PAIR:
            yield from _groups_of(t, 1, line, first, last)
            return
        with t.when(le(PAIR, batch)):
            yield from _groups_of(t, PAIR, line, first, last)
        with t.when(lt(batch, PAIR)):
            yield from _groups_of(t, 1, line, first, last)


def _groups_of(
    t: ScalarBuilder, size: int, line: int, first: Sequence[Array], last: Sequence[Array]
) -> Iterator[_Group]:
    """A loop over groups of `size` entries. The last group overlaps the one before where the batch is no multiple: both
    give the same."""
    batch, hidden = last[0].shape  # first states of sizes that are not known are of these, which is checked
    is_whole = batch % size == 0
    with t.loop(ceildiv(batch, size), "b", "parallel", overlap=not is_whole) as b:
        start = b * size if is_whole else minimum(b * size, batch - size)
        dtype = first[0].dtype.accumulator
        states = tuple(t.alloc(dtype, (size, lined(hidden, line))) for _ in first)
        group = _Group(size, hidden, line, start, states, dtype, first[0].dtype)
        with group.units(t) as (e, j):
            for state, begin in zip(group.states, first, strict=True):
                state.store((e, j), begin[start + e, j].cast(group.dtype))
        yield group
        with group.units(t) as (e, j):
            for state, end in zip(group.states, last, strict=True):
                end.store((start + e, j), state[e, j].cast(end.dtype))


@dataclass(frozen=True)
class _Step:
    """One step: its number among `count`, and the lengths of all entries where they are given."""

    number: Sym
    count: Sym
    lengths: Array | None
    reverse: bool

    def at(self, t: ScalarBuilder, entry: Sym) -> _Moment:
        """The step of one entry; `reverse` begins at the entry's own end."""
        if self.lengths is None:
            return _Moment(self.count - 1 - self.number if self.reverse else self.number, None)
        now = t.index(self.number)
        length = t.apply("min", self.lengths[entry].cast(dt.i64), t.index(self.count))
        active = now < length
        if not self.reverse:
            return _Moment(self.number, active)
        return _Moment(t.bind(t.select(active, length - 1 - now, now), "place"), active)


@dataclass(frozen=True)
class _Moment:
    """The position in time of one entry's step, and whether the entry lasts so long (None: for certain)."""

    place: Sym
    active: Scalar | None

    def kept(self, t: ScalarBuilder, new: Scalar, old: Scalar | float) -> Scalar:
        return new if self.active is None else t.select(self.active, new, old)


@contextmanager
def _steps(t: ScalarBuilder, gates: Array, lengths: Sequence[Array], reverse: bool) -> Iterator[_Step]:
    """A loop over time; `lengths` holds one vector or nothing."""
    with t.loop(gates.shape[0], "t") as number:
        yield _Step(number, gates.shape[0], lengths[0] if lengths else None, reverse)


def _products(t: ScalarBuilder, group: _Group, r: Array, gates: range, state: Array) -> Array:
    """r[gates] . state for each entry: [entries, gates, hidden], of integers in i32."""
    state = _rounded(t, group, r.dtype, state)
    dtype = group.dtype if state.dtype.is_float else dt.i32
    sums = t.alloc(dtype, (group.size, len(gates), group.hidden))
    with t.loop(group.size, "e") as e, t.loop(len(gates), "g") as g, t.loop(group.hidden, "j") as j:
        sums.store((e, g, j), 0.0 if dtype.is_float else 0)
    size, hidden = group.size, group.hidden
    with (
        t.loop(size, "e") as e,
        t.loop(len(gates), "g") as g,
        t.loop(hidden, "j") as j,
        t.loop(hidden, "k") as k,
    ):
        weight, number = r[gates.start + g, j, k].cast(dtype), state[e, k].cast(dtype)
        product = weight * number if dtype.is_float else number * weight  # as instructions for integers take them
        sums.store((e, g, j), sums[e, g, j] + product)
    return sums


def _rounded(t: ScalarBuilder, group: _Group, dtype: DType, state: Array) -> Array:
    """The state in the dtype of float weights that have fewer bits than the model's states; else as it is."""
    if not dtype.is_float or dtype.bits >= group.given.bits:
        return state
    narrow = t.alloc(dtype, (group.size, lined(group.hidden, group.line)))
    with group.units(t) as (e, j):
        narrow.store((e, j), state[e, j].cast(dtype))
    return narrow


@dataclass(frozen=True)
class _Bytes:
    """States of a group in 8 bits: numbers from 0 to 255, moved into the range of their dtype, and for each entry the
    scale and the zero point (f32, whole, and not moved)."""

    q: Array
    scale: Array
    zero: Array


def _shifted(number: Scalar, dtype: DType) -> Scalar:
    """A number from 0 to 255 moved into the range of `dtype`."""
    return number - HALF if dtype is dt.i8 else number


def _quantised(t: ScalarBuilder, group: _Group, state: Array, dtype: DType) -> _Bytes:
    """The state in 8 bits, as `dynamic_quantize_linear` has them, entry by entry; zeros get the scale 1."""
    q = t.alloc(dtype, (group.size, lined(group.hidden, group.line)))
    low, high, scale, zero = (t.alloc(dt.f32, (group.size,)) for _ in range(4))
    with t.loop(group.size, "e") as e:
        low.store((e,), 0.0)
        high.store((e,), 0.0)
    for limit, name in ((high, "max"), (low, "min")):
        with group.units(t) as (e, j):
            limit.store((e,), t.apply(name, limit[e], state[e, j]))
    with t.loop(group.size, "e") as e:
        found = (high[e] - low[e]) / LARGEST
        step = t.select(high[e].eq(low[e]), 1.0, found)
        scale.store((e,), step)
        zero.store((e,), _limited(t, t.apply("round", (0.0 - low[e]) / step)))
    with group.units(t) as (e, j):
        number = _limited(t, t.apply("round", state[e, j] / scale[e]) + zero[e])
        q.store((e, j), _shifted(number.cast(dt.i32), dtype).cast(dtype))
    return _Bytes(q, scale, zero)


def _limited(t: ScalarBuilder, x: Scalar) -> Scalar:
    return t.apply("min", t.apply("max", x, 0.0), float(LARGEST))


def _advance(t: ScalarBuilder, group: _Group, state: Array, new: Array) -> None:
    """The new state becomes the state, once all of the old one has been read."""
    with group.units(t) as (e, j):
        state.store((e, j), new[e, j])


def _rnn_types(
    gates: TensorType,
    r: TensorType,
    h: TensorType,
    lengths: TensorType | None = None,
    *,
    activations: Sequence[str] = ("tanh",),
    reverse: bool = False,
    limit: float = 0.0,
    entries: int = 1,
    line: int = 1,
) -> tuple[TensorType, ...]:
    _require_limits(sums=limit)
    return _checked(gates, r, lengths, 1, activations, line, h)


@irregular(_rnn_types)
def rnn(
    t: ScalarBuilder,
    inputs: list[Array],
    outputs: list[Array],
    *,
    activations: Sequence[str] = ("tanh",),
    reverse: bool = False,
    limit: float = 0.0,
    entries: int = 1,
    line: int = 1,
) -> None:
    """h = f(gates + R h): outputs of all steps [time, batch, hidden] and the last h [batch, hidden]."""
    (gates, r, h0, *lengths), (y, hn) = inputs, outputs

    def go(group: _Group) -> None:
        with _steps(t, gates, lengths, reverse) as step:
            (h,) = group.states
            new = group.rows(t)
            sums = _products(t, group, r, range(1), h)
            with group.units(t) as (e, j):
                b = group.start + e
                now = step.at(t, b)
                value = activated(
                    t, activations[0], gates[now.place, b, j].cast(group.dtype) + sums[e, 0, j], limit
                )
                y.store((now.place, b, j), now.kept(t, value, 0.0).cast(y.dtype))
                new.store((e, j), now.kept(t, value, h[e, j]))
            _advance(t, group, h, new)

    for group in _groups(t, entries, line, [h0], [hn]):
        go(group)


rnn.declares(step_by_step(2))


def _gru_types(
    gates: TensorType,
    r: TensorType,
    bias: TensorType,
    h: TensorType,
    lengths: TensorType | None = None,
    *,
    activations: Sequence[str] = ("sigmoid", "tanh"),
    reverse: bool = False,
    limit: float = 0.0,
    linear_before_reset: bool = False,
    entries: int = 1,
    line: int = 1,
) -> tuple[TensorType, ...]:
    _require_limits(sums=limit)
    _require_vector(bias, r.shape[2], "bias")
    return _checked(gates, r, lengths, 3, activations, line, h)


@irregular(_gru_types)
def gru(
    t: ScalarBuilder,
    inputs: list[Array],
    outputs: list[Array],
    *,
    activations: Sequence[str] = ("sigmoid", "tanh"),
    reverse: bool = False,
    limit: float = 0.0,
    linear_before_reset: bool = False,
    entries: int = 1,
    line: int = 1,
) -> None:
    """Gated recurrent unit, gates in the order z, r, h (Cho et al., 2014); `bias` is the recurrent one of h.

    h = (1 - z) * g(gates_h + R_h (r * h) + bias) + z * h; with `linear_before_reset` r * (R_h h + bias) is
    what is added to gates_h.
    """
    (gates, r, bias, h0, *lengths), (y, hn) = inputs, outputs
    f, g = activations

    def go(group: _Group) -> None:
        with _steps(t, gates, lengths, reverse) as step:
            (h,) = group.states
            stride = gates.shape[2] // 3
            new, update, reset = (group.rows(t) for _ in range(3))
            sums = _products(t, group, r, range(3 if linear_before_reset else 2), h)

            def gate(now: _Moment, k: int, e: Sym, j: Sym) -> Scalar:
                return gates[now.place, group.start + e, k * stride + j].cast(group.dtype)

            def finish(now: _Moment, z: Scalar, candidate: Scalar, e: Sym, j: Sym) -> None:
                old = h[e, j]
                value = (1 - z) * candidate + z * old
                y.store((now.place, group.start + e, j), now.kept(t, value, 0.0).cast(y.dtype))
                new.store((e, j), now.kept(t, value, old))

            with group.units(t) as (e, j):
                now = step.at(t, group.start + e)
                z, keep = (activated(t, f, gate(now, k, e, j) + sums[e, k, j], limit) for k in range(2))
                if linear_before_reset:
                    recurrent = keep * (sums[e, 2, j] + bias[j].cast(group.dtype))
                    finish(now, z, activated(t, g, gate(now, 2, e, j) + recurrent, limit), e, j)
                else:
                    update.store((e, j), z)
                    reset.store((e, j), keep * h[e, j])
            if not linear_before_reset:
                rest = _products(t, group, r, range(2, 3), reset)
                with group.units(t) as (e, j):
                    now = step.at(t, group.start + e)
                    total = gate(now, 2, e, j) + (rest[e, 0, j] + bias[j].cast(group.dtype))
                    finish(now, update[e, j], activated(t, g, total, limit), e, j)
            _advance(t, group, h, new)

    for group in _groups(t, entries, line, [h0], [hn]):
        go(group)


gru.declares(step_by_step(3))


def _lstm_types(
    gates: TensorType,
    r: TensorType,
    peepholes: TensorType,
    h: TensorType,
    c: TensorType,
    lengths: TensorType | None = None,
    *,
    activations: Sequence[str] = ("sigmoid", "tanh", "tanh"),
    reverse: bool = False,
    limit: float = 0.0,
    couple: bool = False,
    clip: float = 0.0,
    entries: int = 1,
    line: int = 1,
) -> tuple[TensorType, ...]:
    _require_vector(peepholes, 3 * r.shape[2], "peepholes")
    _require_limits(sums=limit, cells=clip)
    over_time, last = _checked(gates, r, lengths, 4, activations, line, h, c)
    return over_time, last, last


@irregular(_lstm_types)
def lstm(
    t: ScalarBuilder,
    inputs: list[Array],
    outputs: list[Array],
    *,
    activations: Sequence[str] = ("sigmoid", "tanh", "tanh"),
    reverse: bool = False,
    limit: float = 0.0,
    couple: bool = False,
    clip: float = 0.0,
    entries: int = 1,
    line: int = 1,
) -> None:
    """Long short-term memory, gates in the order i, o, f, c (Hochreiter & Schmidhuber, 1997).

    `peepholes` [3 * hidden] (i, o, f) let gates see the cell; with `couple` f is 1 - i. Cells are
    limited to -clip..clip where `clip` is not 0. Gives the outputs of all steps, the last h and the last c.
    """
    (gates, r, *rest) = inputs
    _lstm_steps(
        t, gates, rest, outputs, lambda group, h: _float_sums(t, group, r, h), activations, reverse, limit, couple,
        clip, entries, line,
    )  # fmt: skip


lstm.declares(step_by_step(3))


Sums = Callable[[Sym, int, Sym], Scalar]
"""The sum of an entry of a group, a gate and a unit."""


def _float_sums(t: ScalarBuilder, group: _Group, r: Array, h: Array) -> Sums:
    sums = _products(t, group, r, range(4), h)
    return lambda e, k, j: sums[e, k, j]


def _lstm_quantized_types(
    gates: TensorType,
    r: TensorType,
    scale: TensorType,
    totals: TensorType,
    peepholes: TensorType,
    h: TensorType,
    c: TensorType,
    lengths: TensorType | None = None,
    *,
    state: DType = dt.i16,
    activations: Sequence[str] = ("sigmoid", "tanh", "tanh"),
    reverse: bool = False,
    limit: float = 0.0,
    couple: bool = False,
    clip: float = 0.0,
    entries: int = 1,
    line: int = 1,
) -> tuple[TensorType, ...]:
    if gates.dtype is not dt.f32 or not r.dtype.is_int or r.dtype.bits > 16 or totals.dtype is not dt.i32:
        raise ValueError("gates must be f32, recurrent weights integers of up to 16 bits, and their totals i32")
    if state not in (dt.i16, dt.u8, dt.i8):
        raise ValueError(f"states are quantised to i16, u8 or i8, not to {state}")
    _require_vector(scale, 4 * r.shape[2], "scale")
    _require_vector(totals, 4 * r.shape[2], "totals")
    return _lstm_types(
        gates, r, peepholes, h, c, lengths, activations=activations, reverse=reverse, limit=limit, couple=couple,
        clip=clip, entries=entries, line=line,
    )  # fmt: skip


@irregular(_lstm_quantized_types)
def lstm_quantized(
    t: ScalarBuilder,
    inputs: list[Array],
    outputs: list[Array],
    *,
    state: DType = dt.i16,
    activations: Sequence[str] = ("sigmoid", "tanh", "tanh"),
    reverse: bool = False,
    limit: float = 0.0,
    couple: bool = False,
    clip: float = 0.0,
    entries: int = 1,
    line: int = 1,
) -> None:
    """`lstm` whose recurrent weights are the integers r times `scale` [4 * hidden], which multiply h in 8 bits.

    `totals` [4 * hidden] are the sums of r over its last axis, by which the zero point of h is taken off; `state` is
    the dtype that h is multiplied in, which changes no result.
    """
    (gates, r, scale, totals, *rest) = inputs

    def sums_of(group: _Group, h: Array) -> Sums:
        bytes_ = _quantised(t, group, h, state)
        sums, hidden = _products(t, group, r, range(4), bytes_.q), group.hidden

        def sum_of(e: Sym, k: int, j: Sym) -> Scalar:
            zero = _shifted(bytes_.zero[e].cast(dt.i32), state)
            exact = sums[e, k, j] - zero * totals[k * hidden + j]
            return exact.cast(dt.f32) * (bytes_.scale[e] * scale[k * hidden + j])

        return sum_of

    _lstm_steps(t, gates, rest, outputs, sums_of, activations, reverse, limit, couple, clip, entries, line)


lstm_quantized.declares(step_by_step(5, floats=0))


def _lstm_steps(
    t: ScalarBuilder,
    gates: Array,
    inputs: list[Array],
    outputs: list[Array],
    sums_of: Callable[[_Group, Array], Sums],
    activations: Sequence[str],
    reverse: bool,
    limit: float,
    couple: bool,
    clip: float,
    entries: int,
    line: int,
) -> None:
    """All steps; `sums_of` gives R h for the entries of a group."""
    (peepholes, h0, c0, *lengths), (y, hn, cn) = inputs, outputs
    f, g, out = activations

    def go(group: _Group) -> None:
        with _steps(t, gates, lengths, reverse) as step:
            h, c = group.states
            size, stride = group.hidden, gates.shape[2] // 4
            new = group.rows(t)
            sum_of = sums_of(group, h)
            with group.units(t) as (e, j):
                b = group.start + e
                now = step.at(t, b)
                i, o, forget, entry = (
                    gates[now.place, b, k * stride + j].cast(group.dtype) + sum_of(e, k, j) for k in range(4)
                )

                def peep(k: int, cell: Scalar, at: Sym = j) -> Scalar:
                    return peepholes[k * size + at].cast(group.dtype) * cell

                old = c[e, j]
                entering = activated(t, f, i + peep(0, old), limit)
                kept = 1 - entering if couple else activated(t, f, forget + peep(2, old), limit)
                cell = kept * old + entering * activated(t, g, entry, limit)
                if clip:
                    cell = _between(t, cell, clip)
                value = activated(t, f, o + peep(1, cell), limit) * activated(t, out, cell)
                y.store((now.place, b, j), now.kept(t, value, 0.0).cast(y.dtype))
                c.store((e, j), now.kept(t, cell, old))
                new.store((e, j), now.kept(t, value, h[e, j]))
            _advance(t, group, h, new)

    for group in _groups(t, entries, line, [h0, c0], [hn, cn]):
        go(group)
