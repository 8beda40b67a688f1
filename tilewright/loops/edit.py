"""Moving around in a loop program and editing it: loops are `for` ops, and an op keeps its identity under
edits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from tilewright.ir.core import Block, Func, Op, Value, substitute
from tilewright.ir.diag import UNKNOWN, Loc, ScheduleError
from tilewright.ir.sym import ONE, ZERO, Sym, var, weighted_sum
from tilewright.ir.types import BufferType
from tilewright.loops.analysis.bounds import Ranges

ORDERED_KINDS = ("serial", "parallel")
"""Kinds of loops that have an order, which may alternate."""


def refuse(step: str, subject: Op | Value | str, reason: str) -> NoReturn:
    """Raise the ScheduleError of a step that is not legal."""
    raise ScheduleError(f"{step} {describe(subject)}: {reason}")


def reason_of(error: ScheduleError) -> str:
    """Why a step is not legal, without the step and its subject, for those who did not write it."""
    return error.what.partition(": ")[2] or error.what


def describe(subject: Op | Value | str) -> str:
    """A loop, buffer or op as error messages name it."""
    if isinstance(subject, str):
        return subject
    if isinstance(subject, Value):
        return f"buffer '{subject.name}' ({subject.type})" if subject.name else f"a buffer ({subject.type})"
    if is_loop(subject):
        return f"loop '{loop_var(subject)}' (0..{extent_of(subject)}, {kind_of(subject)})"
    return f"op '{subject.name}' of {subject.loc}"


# Reading


def is_loop(op: Op) -> bool:
    return op.name == "for"


def loop_var(loop: Op) -> Sym:
    v: Sym = loop.attrs["var"]
    return v


def extent_of(loop: Op) -> Sym:
    extent: Sym = loop.attrs["extent"]
    return extent


def kind_of(loop: Op) -> str:
    kind: str = loop.attrs["kind"]
    return kind


def body_of(op: Op) -> Block:
    """The only block of a `for` or `if`."""
    return op.blocks[0]


def holds_parallel(op: Op) -> bool:
    """Whether `op` is a loop that threads share, or holds one."""
    return any(is_loop(o) and kind_of(o) == "parallel" for o in op.walk())


def block_of(op: Op) -> Block:
    """The block that holds `op`."""
    assert op.parent is not None, f"{op.name} is in no block"
    return op.parent


def buffer_type(value: Value) -> BufferType:
    return value.buffer


def address_of(access: Op) -> Sym:
    """Element offset of a load, store or prefetch within its buffer."""
    type = buffer_type(access.operands[-1])
    return weighted_sum(type.offset, access.attrs["idx"], type.strides)


def places_of(buffer: Value) -> list[Op]:
    """The ops that name an element of a buffer by its index: loads, stores, and requests to have it in a cache."""
    return [op for op in dict.fromkeys(buffer.users) if op.name in ("load", "store", "prefetch")]


def enclosing(op: Op) -> list[Op]:
    """The `for`, `if` and `run` ops around `op`, outermost first."""
    found: list[Op] = []
    block = op.parent
    while block is not None and isinstance(holder := block.parent, Op):
        found.append(holder)
        block = holder.parent
    return found[::-1]


def enclosing_loops(op: Op) -> list[Op]:
    """The loops around `op`, outermost first."""
    return [o for o in enclosing(op) if is_loop(o)]


def ancestor_in(op: Op, block: Block) -> Op | None:
    """`op` or the op around it that is directly in `block`; None when there is none."""
    current: Op | Func | None = op
    while isinstance(current, Op):
        if current.parent is block:
            return current
        current = current.parent.parent if current.parent else None
    return None


def is_inside(op: Op, outer: Op) -> bool:
    """Whether `op` is nested in `outer`, at any depth."""
    return outer in enclosing(op)


def is_in_run(op: Op) -> bool:
    """Whether `op` is in the body of a run."""
    return any(o.name == "run" for o in enclosing(op))


def loops_in(root: Op | Block) -> list[Op]:
    """All loops of an op (itself included) or block, in program order."""
    found: list[Op] = []
    _collect_loops([root] if isinstance(root, Op) else root.ops, found)
    return found


def _collect_loops(ops: Iterable[Op], found: list[Op]) -> None:
    for op in ops:
        if op.blocks:
            if op.name == "for":
                found.append(op)
            for block in op.blocks:
                _collect_loops(block.ops, found)


def find_loop(func: Func, name: str) -> Op:
    """The loop whose variable is called `name`; ScheduleError with the names there are when there is none."""
    loops = loops_in(func.body)
    for loop in loops:
        if loop_var(loop).name == name:
            return loop
    listed = ", ".join(loop_var(loop).name for loop in loops)
    raise ScheduleError(f"kernel @{func.name} has no loop '{name}'; its loops are {listed or 'none'}")


def loop_range(loop: Op) -> tuple[Sym, Sym]:
    """Inclusive range of the loop's variable."""
    return ZERO, extent_of(loop) - ONE


def ranges_of(loops: Iterable[Op]) -> Ranges:
    return {loop_var(loop): loop_range(loop) for loop in loops}


def ranges_at(op: Op) -> Ranges:
    """The ranges of all loops around `op`."""
    return ranges_of(enclosing_loops(op))


# Names


class TakenNames(set[str]):
    """Names that are taken, of which none is given back, so that the variations of a name that were found taken are
    not tried again."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(names)
        self._tried: dict[str, int] = {}

    def take(self, hint: str) -> str:
        """`hint`, or the first variation of it that is not taken, which now is."""
        name, n = hint, self._tried.get(hint, 0)
        if n:
            name = f"{hint}_{n}"
        while name in self:
            n += 1
            name = f"{hint}_{n}"
        self._tried[hint] = n
        self.add(name)
        return name


def names_in(func: Func) -> TakenNames:
    """Names that are taken by loops, bound indices and dims of `func`."""
    names = TakenNames(v.name for v in func.dims)
    for value in func.args:
        for d in buffer_type(value).shape:
            names.update(v.name for v in d.vars)
    for op in func.body.walk():
        if op.name in ("for", "bind"):
            names.add(op.attrs["var"].name)
    return names


def fresh_var(names: TakenNames, hint: str, extent: Sym) -> Sym:
    """A new loop variable for 0..extent, called `hint` or a free variation of it, which is added to
    `names`."""
    name = names.take(hint)
    _, hi = extent.bounds
    return var(name, 0, hi - 1 if hi is not None and hi > 0 else None)


def base_name(v: Sym) -> str:
    """The variable's name without the number of a variation."""
    stem, _, tail = v.name.rpartition("_")
    return stem if stem and tail.isdigit() else v.name


# Editing


def new_loop(v: Sym, extent: Sym, ops: Sequence[Op] = (), kind: str = "serial", loc: Loc = UNKNOWN) -> Op:
    """`for v in 0..extent { ops }`, in no block yet."""
    block = Block()
    for op in ops:
        block.append(op)
    return Op("for", attrs={"var": v, "extent": extent, "kind": kind}, blocks=[block], loc=loc)


def set_kind(loop: Op, kind: str, level: str = "") -> None:
    """Make it a loop of this kind (a parallel one of this level of the machine), without the attributes that loops of
    this kind do not have."""
    loop.attrs["kind"] = kind
    loop.attrs.pop("level", None)
    if level:
        loop.attrs["level"] = level
    if kind not in ORDERED_KINDS:
        loop.attrs.pop("boustrophedon", None)


def new_if(
    guard: Sequence[Sym], ops: Sequence[Op] = (), operands: Sequence[Value] = (), loc: Loc = UNKNOWN
) -> Op:
    """`if all of guard { ops }`, in no block yet."""
    block = Block()
    for op in ops:
        block.append(op)
    return Op("if", operands, attrs={"guard": tuple(guard)}, blocks=[block], loc=loc)


def nest_of(loops: Sequence[tuple[Sym, Sym]], ops: Sequence[Op], loc: Loc = UNKNOWN) -> list[Op]:
    """Serial loops (variable, extent) around `ops`; the loops, outermost first."""
    made: list[Op] = []
    inner = list(ops)
    for v, extent in reversed(loops):
        loop = new_loop(v, extent, inner, loc=loc)
        made.append(loop)
        inner = [loop]
    return made[::-1]


def take_ops(block: Block) -> list[Op]:
    """Empty `block`; the ops it had."""
    ops, block.ops = block.ops, []
    return ops


def put_ops(block: Block, ops: Iterable[Op]) -> None:
    """Set the ops of `block`."""
    block.ops = list(ops)
    for op in block.ops:
        op.parent = block


def insert_at(block: Block, position: int, ops: Sequence[Op]) -> None:
    for op in ops:
        op.parent = block
    block.ops[position:position] = ops


def insert_after(anchor: Op, ops: Sequence[Op]) -> None:
    block = block_of(anchor)
    insert_at(block, block.ops.index(anchor) + 1, ops)


def substitute_in(root: Op | Block, mapping: Mapping[Sym, Sym]) -> None:
    """Replace variables in every attribute below `root` (and of it); variables that an op binds stay."""
    for op in root.walk():
        for key, attr in op.attrs.items():
            if key != "var":
                op.attrs[key] = substitute(attr, mapping)


def rename_vars(ops: Sequence[Op], names: TakenNames) -> None:
    """Give every loop and bound index of `ops` a variable that no other has, so that clones can nest."""
    mapping: dict[Sym, Sym] = {}
    binders = [o for op in ops for o in op.walk() if o.name in ("for", "bind")]
    for op in binders:
        v = op.attrs["var"]
        mapping[v] = (
            fresh_bound(names, v) if op.name == "bind" else fresh_var(names, base_name(v), extent_of(op))
        )
    for op in ops:
        substitute_in(op, mapping)
    for op in binders:
        op.attrs["var"] = mapping[op.attrs["var"]]


def iteration_of(loop: Op, position: Sym, names: TakenNames) -> list[Op]:
    """A copy of the loop's body for one value of its variable."""
    copy = loop.clone({})
    substitute_in(body_of(copy), {loop_var(loop): position})
    ops = take_ops(body_of(copy))
    rename_vars(ops, names)
    return ops


def fresh_bound(names: TakenNames, v: Sym) -> Sym:
    """A new variable with the bounds of `v`."""
    return var(fresh_var(names, base_name(v), ONE).name, *v.bounds)


def outside_values(ops: Sequence[Op]) -> Iterator[tuple[Op, Value]]:
    """Scalars defined among `ops` (at any depth) with a user that is not: (defining op, value)."""
    inside = {id(o) for op in ops for o in op.walk()}
    for op in ops:
        for o in op.walk():
            for value in o.results:
                if any(id(user) not in inside for user in value.users):
                    yield o, value


def bound_in(ops: Sequence[Op]) -> set[Sym]:
    """Variables that `bind` ops among `ops` (at any depth) define."""
    return {o.attrs["var"] for op in ops for o in op.walk() if o.name == "bind"}


def vars_read(ops: Sequence[Op]) -> set[Sym]:
    """Variables in the attributes of `ops`, at any depth."""
    found: set[Sym] = set()
    for op in ops:
        for o in op.walk():
            for key, attr in o.attrs.items():
                if key != "var":
                    found |= _vars_of(attr)
    return found


def _vars_of(attr: object) -> frozenset[Sym]:
    if isinstance(attr, Sym):
        return attr.vars
    if isinstance(attr, tuple):
        return frozenset().union(*map(_vars_of, attr))
    return frozenset()
