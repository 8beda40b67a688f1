"""If, loops and scans: what is known is decided now, short loops of a known length are unrolled, the host runs others.

A body is a function that writes a subgraph for its arguments and gives its results; the operators are called what the
current node is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.frontends.axes import as_scalar
from tilewright.frontends.translation import DifferentRanksError, Translation, type_of
from tilewright.frontends.unroll import Body, element, require_tensor, unrolled
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.diag import ModelError, TilewrightError, TypeRuleError, UnsupportedError
from tilewright.ir.sym import ZERO, Sym
from tilewright.ir.types import HostType, TensorType, Type, is_native, tensor
from tilewright.ops import elementwise as ew
from tilewright.ops import index
from tilewright.ops.composites.sequences import joined
from tilewright.ops.composites.text import moved_one
from tilewright.ops.define import constant, staged
from tilewright.ops.define.binding import is_input_value
from tilewright.ops.define.speculation import NotSpeculated, Why, speculative_steps
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import reshape, shape_of, transpose

LITTLE_WORK = 1 << 14
"""Scalar operations that take some microseconds, as a branch in native code does with the call of its part and the
fusion that it prevents. Branches of less, which cannot fail, are both computed, and a result is chosen."""

ENDLESS = 1 << 40
"""Trips that take months, however little each does."""

MAX_ATTEMPTS = 8
"""How often a loop's body is translated to find which sizes change from trip to trip."""


def branch(
    translation: Translation, condition: Value, then: Body, other: Body, *, forks: bool = False
) -> tuple[Value, ...]:
    """The branch that a known condition takes; otherwise a choice between results, or between ways at run time. Where
    ranks differ by dims, one of them is taken in all calls, unless what comes after it `forks`."""
    op = translation.builder.loc.op
    condition = as_scalar(translation, condition, f"the condition of {op}")
    known = translation.constant_of(condition)
    if known is not None:
        return _taken(translation, bool(known.any()), then, other, "its condition is known when the model is compiled")
    symbol = _of_dims(translation, condition)
    decided = None if symbol is None else translation.is_where(symbol)
    if decided is not None:
        return _taken(translation, decided, then, other, "its condition is that of a branch around it")
    ways = _block_of(translation, then), _block_of(translation, other)
    if symbol is None:
        ways = _with_failing(translation, *ways)
    taken, untaken = ways
    if isinstance(taken, Block) and isinstance(untaken, Block):
        reason = _difference(op, taken, untaken)
        if not reason:
            return _either(translation, condition, taken, untaken)
    else:
        which, failed = ("else", untaken) if isinstance(taken, Block) else ("then", taken)
        assert not isinstance(failed, Block)
        is_fork = isinstance(failed, DifferentRanksError)
        why = failed.error.what if isinstance(failed, DifferentRanksError) else failed.what
        reason = why if is_fork else f"the {which}-branch of {op} cannot be translated: {why}"
    translation.discard(*(way for way in ways if isinstance(way, Block)))
    if symbol is not None and forks and all(isinstance(way, Block) for way in ways):
        fixed = symbol

        def chosen() -> tuple[Value, ...]:
            return _taken(translation, translation.choose(fixed), then, other, f"dims decide it in all calls: {reason}")

        raise DifferentRanksError(condition, (then, other), UnsupportedError(reason), symbol, chosen)
    try:
        holds = _decided(translation, condition, reason)
        return _taken(translation, holds, then, other, f"dims decide it in all calls: {reason}")
    except UnsupportedError as error:
        if not any(isinstance(way, TilewrightError) for way in ways):
            raise DifferentRanksError(condition, (then, other), error) from error
        raise


def _taken(translation: Translation, holds: bool, then: Body, other: Body, reason: str) -> tuple[Value, ...]:
    """What the one branch gives that is taken in all calls."""
    name, way = ("then", then) if holds else ("else", other)
    before = len(translation.builder.block.ops)
    results = way()
    _note(translation, "decided", reason, "", {name: translation.builder.block.ops[before:]})
    return results


def _note(
    translation: Translation, outcome: str, reason: str, change: str, ways: Mapping[str, Sequence[Op]]
) -> None:
    """What has become of the current node, for reports."""
    loc = translation.builder.loc
    name = loc.node or loc.value
    if name:
        of_ways = tuple((way, _nodes_of(ops)) for way, ops in ways.items())
        translation.flow[name] = (name, loc.op, outcome, reason, change, of_ways)


def _nodes_of(ops: Sequence[Op]) -> tuple[str, ...]:
    names = (inner.loc.node or inner.loc.value for op in ops for inner in op.walk())
    return tuple(dict.fromkeys(filter(None, names)))


Written = Block | TilewrightError | DifferentRanksError
"""A branch, or why there is no block of it."""


def _with_failing(translation: Translation, taken: Written, untaken: Written) -> tuple[Written, Written]:
    """The branches; one whose operands never fit is written as what it is, an error of the calls that take it. With two
    of them it is an error of all calls."""
    if isinstance(taken, TypeRuleError) and isinstance(untaken, TypeRuleError):
        raise taken
    if isinstance(taken, TypeRuleError) and isinstance(untaken, Block):
        return _failing(translation, taken, untaken), untaken
    if isinstance(untaken, TypeRuleError) and isinstance(taken, Block):
        return taken, _failing(translation, untaken, taken)
    return taken, untaken


def _failing(translation: Translation, error: TypeRuleError, other: Block) -> Written:
    """A block that no call gets through, with results of the types that the `other` one has."""
    types = [v.type for v in _yielded(other)]
    if not all(isinstance(type, TensorType) and is_native(type) for type in types):
        return error
    inner = staged.inner_variables(other)

    def write() -> tuple[Value, ...]:
        translation.require(ZERO, error.what + (f", in {error.where}" if error.where else ""))
        shapes = [[ZERO if d.vars & inner else d for d in t.shape] for t in types if isinstance(t, TensorType)]
        dtypes = [t.dtype for t in types if isinstance(t, TensorType)]
        return tuple(full(value=0, dtype=dtype, shape=shape) for dtype, shape in zip(dtypes, shapes, strict=True))

    return translation.block((), write)


def _block_of(translation: Translation, way: Body) -> Written:
    try:
        return translation.block((), way)
    except DifferentRanksError as fork:
        return fork


_WAYS = ("then", "else")


def split(
    translation: Translation, condition: Value, then: Body, other: Body, error: UnsupportedError
) -> tuple[Value, ...] | TilewrightError:
    """What one of two ways through the remainder of a graph gives, which is written twice for the reason of `error`;
    the reason where one cannot be translated. Results of different ranks are known to the host alone."""
    ways: list[Block] = []
    for way in (then, other):
        block = translation.block((), way)
        if isinstance(block, TilewrightError):
            translation.discard(*ways)
            return block
        ways.append(block)
    _note(translation, "branch", error.what, "", dict(zip(_WAYS, (way.ops for way in ways), strict=True)))
    inner = staged.inner_variables(ways[0]) | staged.inner_variables(ways[1])
    pairs = zip(_yielded(ways[0]), _yielded(ways[1]), strict=True)
    types = [_merged(translation, a.type, b.type, inner) for a, b in pairs]
    return staged.branch(reshape(condition, shape=()), ways[0], ways[1], types)


def _difference(op: str, taken: Block, untaken: Block) -> str:
    """Why two branches cannot be the ways of one program; "" where they can."""
    a, b = _yielded(taken), _yielded(untaken)
    if len(a) != len(b):
        raise ModelError(f"the branches of {op} have {len(a)} and {len(b)} outputs")
    for x, y in zip(a, b, strict=True):
        differ = f"the branches of {op} give {x.type} and {y.type}"
        if not isinstance(x.type, TensorType) or not isinstance(y.type, TensorType):
            try:
                joined(x.type, y.type)
            except ValueError:
                return differ
        elif x.type.dtype != y.type.dtype:
            raise ModelError(differ)
        elif x.type.rank != y.type.rank:
            return f"{differ}: the rank would depend on data"
    return ""


def _either(translation: Translation, condition: Value, taken: Block, untaken: Block) -> tuple[Value, ...]:
    results = _yielded(taken), _yielded(untaken)
    reason, change = _why_one_is_taken(translation, taken, untaken)
    ways = dict(zip(_WAYS, ([*taken.ops[:-1]], [*untaken.ops[:-1]]), strict=True))
    if not reason:
        both = "both ways take little work and cannot fail: they are computed, and a result is chosen"
        _note(translation, "select", both, "", ways)
        for block in (taken, untaken):
            for op in block.ops[:-1]:
                translation.builder.block.append(op)
            block.ops.pop().drop()
        return tuple(ew.select(condition, a, b) for a, b in zip(*results, strict=True))
    _note(translation, "branch", reason, change, ways)
    inner = staged.inner_variables(taken) | staged.inner_variables(untaken)
    merged = [_merged(translation, a.type, b.type, inner) for a, b in zip(*results, strict=True)]
    return staged.branch(condition, taken, untaken, merged)


def _why_one_is_taken(translation: Translation, taken: Block, untaken: Block) -> tuple[str, str]:
    """Why both branches are not computed, and a result of the same type chosen, and what would change that; ("", "")
    where that is faster than taking one. What a branch that is not taken would report or rely on must not be
    noticed."""
    chosen = 0
    for a, b in zip(_yielded(taken), _yielded(untaken), strict=True):
        if a.type != b.type:
            return f"its ways give {a.type} and {b.type}, of which no result can be chosen", "results of one type"
        if not isinstance(a.type, TensorType) or not is_native(a.type):
            return f"it gives {a.type}, which the host holds", ""
        if not a.type.is_static:
            return f"it gives {a.type}, and how much work that is, only calls tell", _FIXED
        chosen += a.type.size.value
    ops = [op for block in (taken, untaken) for op in block.ops]
    found = speculative_steps(ops, translation.constant_of, LITTLE_WORK - chosen)
    return _WHY_ONE[found.why](_worded(found.op)) if isinstance(found, NotSpeculated) else ("", "")


_FIXED = "fixed sizes of the inputs"
_WHY_ONE: Mapping[Why, Callable[[str], tuple[str, str]]] = {
    "work": lambda op: (f"with {op}, computing both ways takes more than {LITTLE_WORK} scalar operations, which is "
                        "what taking one of them costs", "smaller tensors in its ways"),
    "fails": lambda op: (f"{op} can fail, which it must not in calls that do not take its way",
                         "indices and divisors that are constants"),
    "sizes": lambda op: (f"{op} relies on sizes that only calls tell, of which those that do not take its way need not "
                         "be right", _FIXED),
    "host": lambda op: (f"{op} is decided by the host", ""),
}  # fmt: skip


def _worded(op: Op) -> str:
    """An op in the words of reports."""
    name = op.loc.node or op.loc.value
    return f"{op.name} of '{name}'" if name else op.name


def _merged(translation: Translation, a: Type, b: Type, inner: set[Sym]) -> Type:
    """The type of what is either of type a or of type b; sizes that differ are measured."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.rank != b.rank:
        return joined(a, b)
    pairs = zip(a.shape, b.shape, strict=True)
    dims = [x if x is y and not x.vars & inner else translation.new_size() for x, y in pairs]
    return TensorType(a.dtype, tuple(dims))


def _yielded(block: Block) -> tuple[Value, ...]:
    return block.ops[-1].operands


def _decided(translation: Translation, condition: Value, reason: str) -> bool:
    """What the condition is taken to be in all calls, where it follows from dims; `reason` is why it must be."""
    symbol = _of_dims(translation, condition)
    if symbol is None:
        raise translation.must_be_known(condition, reason)
    return translation.choose(symbol)


def _of_dims(translation: Translation, condition: Value) -> Sym | None:
    """The condition as one on dims; None where it depends on data."""
    symbols = translation.symbols_of(condition)
    if symbols is None:
        return None
    symbol = s.truth(symbols.reshape(-1)[0])
    return None if any(is_input_value(v) for v in symbol.vars) else symbol


def loop(
    translation: Translation,
    limit: Value | None,
    condition: Value | None,
    state: Sequence[Value],
    body: Body,
    rows: int,
) -> tuple[Value, ...]:
    """A loop: (trip, condition, *state) -> (condition, *state, *one of each of the `rows`), which are stacked."""
    condition = constant(np.array(True), "condition") if condition is None else condition
    for value, kind in ((limit, dt.i64), (condition, dt.bool_)):
        if value is not None and type_of(value).dtype != kind:
            raise ModelError(f"{translation.builder.loc.op} takes one {kind}, not {value.type}")
    op = translation.builder.loc.op
    condition = as_scalar(translation, condition, f"the condition of {op}")
    limit = None if limit is None else as_scalar(translation, limit, f"the number of trips of {op}")
    trips = None if limit is None else translation.constant_of(limit)
    if limit is None or trips is not None:
        count = None if trips is None else max(int(trips.reshape(())), 0)
        before = len(translation.builder.block.ops)
        found = unrolled(translation, count, condition, state, body, rows)
        if not isinstance(found, str):
            ops = translation.builder.block.ops[before:]
            _note(translation, "unrolled", "its trips are few and known, and are written out", "", {"body": ops})
            return found
        reason, change = found, ""
    else:
        reason, change = "its number of trips is known in calls only", "a number of trips that is a constant"
    limit = constant(np.array(np.iinfo(np.int64).max), "limit") if limit is None else limit
    block = _generalised(translation, state, body)
    if trips is not None and trips.item() > ENDLESS and _never_ends(translation, condition, block):
        raise UnsupportedError(
            f"a {translation.builder.loc.op} of {trips.item()} trips, which nothing ends before, would never end"
        )
    inner = staged.inner_variables(block, state)
    results = [v.type for v in _yielded(block)[1:]]
    args = [a.type for a in block.args[2:]]
    types = [_merged(translation, a, b, inner) for a, b in zip(args, results[: len(args)], strict=True)]
    row_shapes = []
    for row in (require_tensor(translation, v) for v in _yielded(block)[1 + len(args) :]):
        dims = [translation.new_size() if d.vars & inner else d for d in row.shape]
        row_shapes.append(tuple(ZERO if d.vars & inner else _measured(translation, d) for d in row.shape))
        types.append(TensorType(row.dtype, (translation.new_size(), *dims)))
    _note(translation, "loop", reason, change, {"body": block.ops})
    return staged.loop([limit, condition, *state], block, types, len(state), row_shapes)


def _measured(translation: Translation, size: Sym) -> Sym:
    """A number or variable for a size that is known here."""
    if size.is_const or size.kind == "var":
        return size
    return staged.measure_size(dim_value(size), translation.new_size())


def _never_ends(translation: Translation, condition: Value, block: Block) -> bool:
    """Is the condition true before the first trip, and whatever a trip computes after it?"""
    begins, goes_on = translation.constant_of(condition), _yielded(block)[0]
    if begins is None or not begins.any():
        return False
    known = translation.constant_of(goes_on)
    return goes_on is block.args[1] or (known is not None and bool(known.any()))


def _generalised(translation: Translation, state: Sequence[Value], body: Body) -> Block:
    """The body of a loop for states of all the shapes that they have from trip to trip."""
    op, types = translation.builder.loc.op, [v.type for v in state]
    measured: set[Sym] = set()
    for _ in range(MAX_ATTEMPTS):
        block = translation.block([tensor(dt.i64, ()), tensor(dt.bool_, ()), *types], body)
        if isinstance(block, TilewrightError):
            raise block
        results = [v.type for v in _yielded(block)[1 : 1 + len(types)]]
        if type_of(_yielded(block)[0]).dtype != dt.bool_:
            raise ModelError(f"the condition of {op} must be bool, it is {_yielded(block)[0].type}")
        general = [_general(translation, a, b, measured) for a, b in zip(types, results, strict=True)]
        if general == types:
            return block
        translation.discard(block)
        types = general
    raise UnsupportedError(f"the shapes of what {op} carries from trip to trip are not followed")


def _general(translation: Translation, before: Type, after: Type, measured: set[Sym]) -> Type:
    """The type of a state that begins as `before` and is `after` when a trip ends; dims that are `measured` in
    each trip may be others in the next, and new ones are added to them."""
    if before == after:
        return before
    if isinstance(before, HostType) and isinstance(after, HostType):
        return joined(before, after)
    if not isinstance(before, TensorType) or not isinstance(after, TensorType) or before.dtype != after.dtype:
        raise ModelError(f"{translation.builder.loc.op} carries {before} into a trip, and {after} out of it")
    if before.rank != after.rank:
        raise UnsupportedError(
            f"{translation.builder.loc.op} carries {before} into a trip, and {after} out of it: ranks must be the same"
        )
    dims = []
    for a, b in zip(before.shape, after.shape, strict=True):
        if a is not b and a not in measured:
            measured.add(a := translation.new_size())
        dims.append(a)
    return TensorType(before.dtype, tuple(dims))


def scan(
    translation: Translation,
    state: Sequence[Value],
    scanned: Sequence[tuple[Value, int, bool]],
    body: Body,
    outputs: Sequence[tuple[int, bool]],
) -> tuple[Value, ...]:
    """A scan over axes: (*state, *elements) -> (*state, *one of each output). Of what is scanned and of the outputs the
    axis is given, and whether they go backward along it."""
    size = type_of(scanned[0][0]).shape[scanned[0][1]]
    trips = dim_value(size)

    def taken(x: Value, position: Value, axis: int, back: bool) -> Value:
        known = translation.constant_of(position)
        if known is not None and size.is_const:
            return element(x, axis, size.value - 1 - int(known) if back else int(known))
        last = dim_value(size - 1)
        return index.gather(x, ew.sub(last, position) if back else position, axis=axis)

    def trip(position: Value, condition: Value, *states: Value) -> tuple[Value, ...]:
        elements = [moved_one(x, taken, position, axis, back) for x, axis, back in scanned]
        return (condition, *body(*states, *elements))

    found = loop(translation, trips, None, state, trip, len(outputs))
    rows = zip(found[len(state) :], outputs, strict=True)
    return (*found[: len(state)], *[moved_one(row, _placed, *way) for row, way in rows])


def _placed(rows: Value, axis: int, back: bool) -> Value:
    """Rows that were stacked along axis 0, in the other order where they are wanted `back`, along `axis`."""
    rank = len(shape_of(rows))
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for rank {rank}")
    if back:
        size = shape_of(rows)[0]
        last = dim_value(size - 1)
        rows = index.gather(rows, ew.sub(last, iota(shape=(size,), axis=0)), axis=0)
    order = list(range(1, rank))
    order.insert(axis % rank, 0)
    return rows if axis % rank == 0 else transpose(rows, perm=tuple(order))
