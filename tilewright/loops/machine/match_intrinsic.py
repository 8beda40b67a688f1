"""Whether a loop nest does what an intrinsic does: the same ops up to names, with operands of any strides.

The intrinsic's body is a kernel whose dims are free: matching finds their values. Each argument of it becomes a part of
a buffer: an element to begin at, and the strides of the argument, which may be dims too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.scalar import COMPUTING, scalar_operation
from tilewright.ir.sym import ZERO, Sym, affine_in, ge0, sym
from tilewright.loops.analysis.bounds import Ranges, holds
from tilewright.loops.edit import (
    address_of,
    body_of,
    buffer_type,
    describe,
    extent_of,
    is_loop,
    kind_of,
    loop_var,
    ranges_at,
)
from tilewright.loops.machine.intrinsics import conditions_of, kernel_of
from tilewright.target.machine import Intrinsic


@dataclass(frozen=True, eq=False)
class Operand:
    """The part of a buffer that an argument of an intrinsic stands for, beginning at element `start` of its memory."""

    buffer: Value
    start: Sym


@dataclass(frozen=True, eq=False)
class IntrinsicMatch:
    """How a nest is an intrinsic: operands in the order of its arguments, and the values of its dims by name."""

    intrinsic: Intrinsic
    operands: tuple[Operand, ...]
    dims: dict[str, Sym]


class _Differs(Exception):
    """Where nest and intrinsic are different."""


def match_intrinsic(intrinsic: Intrinsic, nest: Op | Block) -> IntrinsicMatch | str:
    """How `nest` (a loop, or the body of a run) does what `intrinsic` does, or why it does not."""
    kernel = kernel_of(intrinsic)
    if isinstance(nest, Block) and not nest.ops:
        return "it is empty"
    first = nest.ops[0] if isinstance(nest, Block) else nest
    state = _State(intrinsic, kernel, ranges_at(first))
    try:
        state.block(kernel.body, nest.ops if isinstance(nest, Block) else [nest])
        return state.found()
    except _Differs as why:
        return str(why)


@dataclass
class _State:
    """What is known so far: of the intrinsic's loop variables, dims, arguments and scalars."""

    intrinsic: Intrinsic
    kernel: Func
    around: Ranges
    loops: dict[Sym, Sym] = field(default_factory=dict)
    dims: dict[Sym, Sym] = field(default_factory=dict)
    operands: dict[Value, Operand] = field(default_factory=dict)

    def block(self, wanted: Block, given: list[Op]) -> None:
        """Statements in order; what they compute is compared from their operands on."""
        expected = [op for op in wanted.ops if op.name != "return" and (not op.results)]
        actual = [op for op in given if not op.results]
        if any(op.results and not _is_pure(op) for op in given):
            raise _Differs("it allocates memory")
        if len(expected) != len(actual):
            raise _Differs(f"it has {len(actual)} statements where the intrinsic has {len(expected)}")
        for want, got in zip(expected, actual, strict=True):
            self.statement(want, got)

    def statement(self, want: Op, got: Op) -> None:
        if want.name != got.name:
            raise _Differs(f"it has {describe(got)} where the intrinsic has '{want.name}'")
        if is_loop(want):
            self.loop(want, got)
        elif want.name == "store":
            self.value(want.operands[0], got.operands[0])
            self.access(want, got)
        else:
            raise _Differs(f"{describe(got)} is nothing that an intrinsic does")

    def loop(self, want: Op, got: Op) -> None:
        if kind_of(got) == "parallel" or "boustrophedon" in got.attrs:
            raise _Differs(f"{describe(got)} is not an ordinary loop")
        self.same(extent_of(want), extent_of(got), f"the extent of {describe(got)}")
        self.loops[loop_var(want)] = loop_var(got)
        self.block(body_of(want), body_of(got).ops)

    def value(self, want: Value, got: Value) -> None:
        """What two scalars are computed from."""
        a, b = want.op, got.op
        if a is None or b is None or a.name != b.name or want.type != got.type:
            raise _Differs(f"it computes a {_name(got)} where the intrinsic has a {_name(want)}")
        if a.name == "load":
            self.access(a, b)
        elif a.name == "index":
            self.same(a.attrs["expr"].subs(self.loops), b.attrs["expr"], "an index")
        elif a.attrs != b.attrs:
            raise _Differs(f"a {a.name} has {b.attrs} where the intrinsic has {a.attrs}")
        elif scalar_operation(a).commutative:
            self.either_way(a, b)
        else:
            self.pairs(a.operands, b.operands)

    def either_way(self, a: Op, b: Op) -> None:
        """Operands in one order or the other: what has been found in vain is forgotten."""
        reason: _Differs | None = None
        for operands in permutations(b.operands):
            dims, known = dict(self.dims), dict(self.operands)
            try:
                self.pairs(a.operands, operands)
                return
            except _Differs as why:
                reason = reason or why
                self.dims, self.operands = dims, known
        assert reason is not None
        raise reason

    def pairs(self, wanted: tuple[Value, ...], given: tuple[Value, ...]) -> None:
        if len(wanted) != len(given):
            raise _Differs("operands differ in number")
        for want, got in zip(wanted, given, strict=True):
            self.value(want, got)

    def access(self, want: Op, got: Op) -> None:
        """The element that both touch: in the loops' variables it moves with the argument's strides."""
        argument, buffer = want.operands[-1], got.operands[-1]
        if got.attrs.get("guard"):
            raise _Differs(f"the {got.name} of '{buffer.name}' is under a condition; split the loop at it")
        type, actual = buffer_type(argument), buffer_type(buffer)
        if (type.dtype, type.space) != (actual.dtype, actual.space):
            raise _Differs(
                f"'{buffer.name}' is {actual.dtype} in memory '{actual.space}' where the intrinsic has "
                f"'{argument.name}', {type.dtype} in memory '{type.space}'"
            )
        start = address_of(got)
        expected = address_of(want)
        for v, w in self.loops.items():
            start, step = self.step(start, w, buffer)
            expected, stride = self.step(expected, v, argument)
            self.same(stride, step, f"the stride of '{buffer.name}' in '{w}'")
        if expected is not ZERO:
            raise _Differs(f"argument '{argument.name}' does not begin at its first element")
        known = self.operands.setdefault(argument, Operand(buffer, start))
        if known.buffer is not buffer or known.start is not start:
            raise _Differs(f"'{buffer.name}' begins at {start} where '{known.buffer.name}' begins at {known.start}")

    def step(self, address: Sym, v: Sym, buffer: Value) -> tuple[Sym, Sym]:
        """What is left of an address without a variable, and by how many elements it moves with it."""
        found = affine_in(address, v)
        if found is None or found[0].vars & (self.loops.keys() | set(self.loops.values())):
            raise _Differs(f"'{buffer.name}' does not move by a stride with '{v}'")
        return found[1], found[0]

    def same(self, want: Sym, got: Sym, what: str) -> None:
        """Equal expressions; a dim that is not known yet gets its value."""
        if want.kind == "var" and want not in self.dims and want in self.kernel.dims:
            self.dims[want] = got
        elif want.subs(self.dims) is not got:
            raise _Differs(f"{what} is {got}, not {want.subs(self.dims)}")

    def found(self) -> IntrinsicMatch:
        """The match, when all dims are known and within what the intrinsic allows."""
        kernel = self.kernel
        values = {d.name: self.dims[d] for d in kernel.dims if d in self.dims}
        for name, (least, most) in self.intrinsic.sizes.items():
            size = values.get(name, sym(least))
            fits = [holds(ge0(e), self.around) for e in (size - least, most - size)]
            if fits != [True, True]:
                raise _Differs(f"{name} is {size}, and intrinsic '{self.intrinsic.name}' takes {least} to {most}")
        for text, condition in zip(self.intrinsic.limits, conditions_of(self.intrinsic, kernel), strict=True):
            if holds(condition.subs(self.dims), self.around) is not True:
                known = ", ".join(f"{d} = {self.dims[d]}" for d in condition.vars if d in self.dims)
                raise _Differs(f"intrinsic '{self.intrinsic.name}' demands {text}, and {known}")
        operands = tuple(self.operands[a] for a in kernel.args if a in self.operands)
        if len(operands) != len(kernel.args):
            raise _Differs("it does not touch all operands")
        return IntrinsicMatch(self.intrinsic, operands, values)


def _is_pure(op: Op) -> bool:
    return op.name in ("load", "index", "const") or op.name in COMPUTING


def _name(value: Value) -> str:
    return "argument" if value.op is None else f"'{value.op.name}' of {value.type}"
