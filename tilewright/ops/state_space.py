"""Recurrences of state-space models: each channel has a state, which fades and takes in what comes (Gu and Dao, 2023).

    state[n, c] = exp(dt[t, h] * a[m, h]) * state[n, c] + dt[t, h] * x[t, c] * b[t, g, n]
    y[t, c]     = sum over n of state[n, c] * c[t, g, n]

Heads of channels share `dt` and `a`, and groups of heads `b` and `c`. With a channel for each head that is Mamba, where
states fade each at its own pace; with one pace for all states of a head Mamba-2 (Dao and Gu, 2024).
"""

from __future__ import annotations

from tilewright.ir.sym import Sym, ceildiv, minimum, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import require_equal_dim, require_rank
from tilewright.ops.traits.facts import Traits

STRIP = 64
"""Channels that are computed together: their states stay in L1, and threads share the strips."""

TOGETHER = 4
"""States of a channel that are added up in a register: totals in memory wait for each other."""


def _scan_types(
    x: TensorType, dt: TensorType, a: TensorType, b: TensorType, c: TensorType, state: TensorType
) -> tuple[TensorType, ...]:
    named = ((x, 2, "x"), (dt, 2, "dt"), (a, 2, "a"), (b, 3, "b"), (c, 3, "c"), (state, 2, "the state"))
    for type, rank, what in named:
        require_rank(type, rank, what)
        if type.dtype is not x.dtype or not type.dtype.is_float:
            raise ValueError(f"{what} is of {type.dtype}: all are floats of the type of x, {x.dtype}")
    require_equal_dim(dt.shape[0], x.shape[0], "the steps of dt and of x")
    require_equal_dim(b.shape[0], x.shape[0], "the steps of b and of x")
    require_equal_dim(state.shape[1], x.shape[1], "the channels of the state and of x")
    require_equal_dim(a.shape[1], dt.shape[1], "the heads of a and of dt")
    require_equal_dim(state.shape[0], b.shape[2], "the states of a channel and the last axis of b")
    if c.shape != b.shape:
        raise ValueError(f"b is {b}, and c is {c}: they have one shape")
    channels, heads, groups = x.shape[1], dt.shape[1], b.shape[1]
    if not (channels.is_const and heads.is_const and groups.is_const and b.shape[2].is_const):
        raise ValueError(f"channels, heads, groups and states are known numbers, not {channels}, {heads}, {groups}")
    if min(heads.value, groups.value) < 1 or channels.value % heads.value or heads.value % groups.value:
        raise ValueError(f"{channels} channels are no heads of {heads}, in groups of {groups}")
    if a.shape[0] != 1 and a.shape[0] != b.shape[2]:
        raise ValueError(f"a has a row for all states or for each of {b.shape[2]}, not {a.shape[0]}")
    return (TensorType(x.dtype, x.shape), TensorType(x.dtype, state.shape))


@irregular(_scan_types)
def state_space_scan(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """y [steps, channels] and the state [states, channels] behind the last step, of x [steps, channels], dt [steps,
    heads], a [1 or states, heads], b and c [steps, groups, states], and the state before."""
    x, dt, *_ = inputs
    channels, heads = x.shape[1].value, dt.shape[1].value
    if not channels:
        return
    size = channels // heads
    strip = channels if size == 1 else size
    pieces = ceildiv(strip, STRIP)
    with t.loop(heads * pieces if size > 1 else pieces, "strip", "parallel") as k:
        first = k * STRIP if size == 1 else k // pieces * size + k % pieces * STRIP
        width = sym(strip) if strip <= STRIP else minimum(STRIP, strip - (first if size == 1 else k % pieces * STRIP))
        _Strip(t, inputs, outputs, first, width, size).run()


class _Strip:
    """Some channels, of one head where heads have several: their states are kept in memory of the thread."""

    def __init__(
        self, t: ScalarBuilder, inputs: list[Array], outputs: list[Array], first: Sym, width: Sym, size: int
    ) -> None:
        self.t, self.first, self.width, self.size = t, first, width, size
        self.x, self.dt, self.a, self.b, self.c, self.before = inputs
        self.y, self.after = outputs
        self.states = self.b.shape[2]
        room = minimum(STRIP, self.x.shape[1])
        self.state = t.alloc(self.x.dtype, (self.states, room))
        self.taken, self.total = t.alloc(self.x.dtype, (room,)), t.alloc(self.x.dtype, (room,))

    def head(self, lane: Sym) -> Sym:
        return self.first // self.size if self.size > 1 else self.first + lane

    def group(self, lane: Sym) -> Sym:
        per_group = self.dt.shape[1].value // self.b.shape[1].value
        return self.head(lane) // per_group

    def run(self) -> None:
        t = self.t
        with t.loop(self.states, "n") as n, t.loop(self.width, "l") as lane:
            self.state.store((n, lane), self.before[n, self.first + lane])
        with t.loop(self.x.shape[0], "step") as step:
            self._step(step)
        with t.loop(self.states, "n") as n, t.loop(self.width, "l") as lane:
            self.after.store((n, self.first + lane), self.state[n, lane])

    def _step(self, step: Sym) -> None:
        t = self.t
        with t.loop(self.width, "l") as lane:
            self.taken.store((lane,), self.dt[step, self.head(lane)] * self.x[step, self.first + lane])
            self.total.store((lane,), 0.0)
        shared = self._fades(step, sym(0), sym(0)) if self.size > 1 and self.a.shape[0] == 1 else None
        together = TOGETHER if self.states % TOGETHER == 0 else 1
        with t.loop(self.states // together, "n") as block, t.loop(self.width, "l") as lane:
            taken, total = self.taken[lane], self.total[lane]
            for n in (together * block + k for k in range(together)):
                fades = self._fades(step, n, lane) if shared is None else shared
                of_group = step, self.group(lane), n
                state = fades * self.state[n, lane] + taken * self.b[of_group]
                self.state.store((n, lane), state)
                total = total + state * self.c[of_group]
            self.total.store((lane,), total)
        with t.loop(self.width, "l") as lane:
            self.y.store((step, self.first + lane), self.total[lane])

    def _fades(self, step: Sym, n: Sym, lane: Sym) -> Scalar:
        head = self.head(lane)
        pace = self.a[n if self.a.shape[0] != 1 else sym(0), head]
        return self.t.apply("exp", self.dt[step, head] * pace)


state_space_scan.declares(Traits(continuous=frozenset(range(6)), has_state=True))
