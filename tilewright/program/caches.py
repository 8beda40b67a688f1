"""Caches that travel through inputs and outputs become states that grow.

    present = concat(past, new)        past [.., p, ..], with room for `capacity`
        ->  kept = put(cache, new, at=(.., count, ..));   present = kept[.., 0 : count + n, ..];   count' = count + n

Decoders are exported so: each call takes what the one before gave. The length of the past, a dim of these inputs, is
what the counter holds from then on, a state of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Op, Value, substitute
from tilewright.ir.diag import Loc
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import MOST_BYTES, TensorType, product, tensor
from tilewright.ops.define.binding import input_variables
from tilewright.program.growing import PUT, SLICE
from tilewright.runtime.errors import OptionError

CONCAT = "concat"
COUNTER = "past"
"""The name of the counter, with more behind it where an input has that name."""


@dataclass(frozen=True)
class Cache:
    """An input that an output continues along an axis, the `concat` of it and what is new, and the dim that says how
    long it is."""

    name: str
    output: str
    value: Value
    axis: int
    concat: Op
    past: Sym

    @property
    def new(self) -> Value:
        return self.concat.operands[1]

    @property
    def steps(self) -> Sym:
        return self.new.tensor.shape[self.axis]


def caches_of(main: Func, pairs: Sequence[tuple[str, str]] | None = None) -> list[Cache]:
    """The inputs of a function, of some pairs or all, that outputs continue: each is read by this alone. OptionError
    where two inputs are joined of which either may be the cache, unless the pairs say which."""
    names: dict[Op, list[str]] = {}  # an output may have several
    for name, value in zip(main.attrs["outputs"], main.returns, strict=True):
        if value.op is not None and value.op.name == CONCAT:
            names.setdefault(value.op, []).append(name)
    found = []
    for name, value in zip(main.attrs["inputs"], main.args, strict=True):
        reader = value.users[0] if len(value.users) == 1 else None
        if reader is None or reader not in names or len(reader.operands) != 2 or reader.operands[0] is not value:
            continue
        output = next((o for o in names[reader] if pairs is None or (name, o) in pairs), None)
        axis = reader.attrs["axis"] % value.tensor.rank
        unknown = [k for k, d in enumerate(value.tensor.shape) if not d.is_const]
        if output is not None and unknown == [axis] and value.tensor.shape[axis].kind == "var":
            found.append(Cache(name, output, value, axis, reader, value.tensor.shape[axis]))
            if pairs is None and (other := _may_be_the_cache(main, found[-1])):
                raise OptionError(
                    f"capacity=: '{output}' joins the inputs '{name}' and '{other}', of which either may be the cache",
                    hint=f"say which: states={{'{name}': '{output}'}}; what is new must come behind it",
                )
    return found


def _may_be_the_cache(main: Func, cache: Cache) -> str:
    """The name of the input that is joined to a cache, where nothing else reads it and its dims are like those of one;
    "" where it is no such input."""
    new = cache.new
    if new not in main.args or len(new.users) != 1 or new.tensor.shape[cache.axis].is_const:
        return ""
    return str(main.attrs["inputs"][main.args.index(new)])


def grow_caches(main: Func, caches: Sequence[Cache], capacity: int) -> list[tuple[str, str]]:
    """Make of the caches inputs and outputs of a fixed size, and of their length one more of both: the pairs that they
    are then, the counter first. OptionError for caches that do not grow together."""
    first = caches[0]
    lengths = dict.fromkeys(cache.past for cache in caches)
    for cache in caches:
        # all are empty at first: those that get as much in each call are always of one length
        if substitute(cache.steps - first.steps, dict.fromkeys(lengths, first.past)) != 0:
            raise OptionError(
                f"'{first.name}' {first.value.type} and '{cache.name}' {cache.value.type} do not grow together: "
                f"{first.steps} and {cache.steps} elements become more",
                hint="name pairs of one length in states=, or give these inputs the same symbolic dims",
            )
    others = [v for v in main.args if v not in {cache.value for cache in caches}]
    for cache in caches:
        if any(d is cache.past for v in others if isinstance(v.type, TensorType) for d in v.type.shape):
            raise OptionError(
                f"'{cache.past}', the length of '{cache.name}', is a dim of another input, too",
                hint="name that dim otherwise with shapes=",
            )
    for cache in caches:
        _check_size(cache, capacity)
    counter, count = _counter(main)
    following = count + first.steps
    _replace_dim(main, dict.fromkeys(lengths, count))
    kept = {cache.output: _grow(cache, capacity, count) for cache in caches}
    loc = Loc(op="counter", value=counter.name)
    more = Op("sym_tensor", (), [counter.type], {"values": (following,), "scalar": True}, loc=loc)
    _insert(main.body, len(main.body.ops) - 1, [more])
    final, outputs = main.body.ops[-1], main.attrs["outputs"]
    operands = [kept.get(name, value) for name, value in zip(outputs, final.operands, strict=True)]
    final.set_operands([*operands, more.result])
    next_name = _unused(f"next_{counter.name}", outputs)
    main.attrs["outputs"] = (*outputs, next_name)
    return [(counter.name, next_name), *((cache.name, cache.output) for cache in caches)]


def check_frequent(caches: Iterable[Cache], frequent: Iterable[Mapping[str, int]]) -> None:
    """OptionError where frequent sizes name the length of a cache, which is none of the sizes of a call any more."""
    lengths = {cache.past.name: cache for cache in caches}
    for name in (name for sizes in frequent for name in sizes if name in lengths):
        raise OptionError(
            f"frequent= names '{name}', the length of the cache '{lengths[name].name}', which capacity= makes a state",
            hint=f"leave '{name}' out: how far a cache is filled is no size of a call",
        )


def _check_size(cache: Cache, capacity: int) -> None:
    """OptionError for a cache that no memory holds."""
    row = product(d for k, d in enumerate(cache.value.tensor.shape) if k != cache.axis)
    if row.is_const and row.value * capacity * cache.value.tensor.dtype.bytes >= MOST_BYTES:
        most = MOST_BYTES // max(1, row.value * cache.value.tensor.dtype.bytes)
        raise OptionError(
            f"capacity={capacity} is too large: the cache '{cache.name}' would have more bytes than any memory (2^47)",
            hint=f"it has room for {most - 1} positions at most; memory is taken as they are filled",
        )


def _counter(main: Func) -> tuple[Value, Sym]:
    """A new input of one integer, and the variable that it holds."""
    name = _unused(COUNTER, main.attrs["inputs"])
    counter = Value(tensor(dt.i64, ()), main.body, name)
    main.body.args = (*main.body.args, counter)
    main.attrs["inputs"] = (*main.attrs["inputs"], name)
    symbols = input_variables(counter)
    assert symbols is not None
    (count,) = symbols.flat
    return counter, count


def _unused(name: str, names: Sequence[str]) -> str:
    while name in names:
        name += "_"
    return name


def _grow(cache: Cache, capacity: int, count: Sym) -> Value:
    """Put what is new into the whole, which is the result, and of which its readers read what is filled."""
    concat, axis, whole = cache.concat, cache.axis, cache.value
    present = concat.result.tensor
    whole.type = tensor(whole.tensor.dtype, (*present.shape[:axis], capacity, *present.shape[axis + 1 :]))
    at = tuple(count if k == axis else sym(0) for k in range(present.rank))
    put = Op(PUT, [whole, cache.new], [whole.type], {"at": at}, loc=concat.loc)
    parts = {"starts": (0,) * present.rank, "sizes": present.shape, "steps": (1,) * present.rank}
    filled = Op(SLICE, [put.result], [present], parts, loc=concat.loc)
    block = concat.parent
    assert isinstance(block, Block)
    _insert(block, block.ops.index(concat), [put, filled])
    concat.result.replace_by(filled.result)
    concat.erase()
    return put.result


def _insert(block: Block, position: int, ops: Sequence[Op]) -> None:
    for op in ops:
        op.parent = block
    block.ops[position:position] = ops


def _replace_dim(main: Func, mapping: Mapping[Sym, Sym]) -> None:
    """Replace a variable wherever it stands."""
    for value in _values(main.body):
        if isinstance(value.type, TensorType):
            value.type = tensor(value.type.dtype, substitute(value.type.shape, mapping))
    for op in main.body.walk():
        op.attrs = {name: substitute(attr, mapping) for name, attr in op.attrs.items()}
    main.attrs = {name: substitute(attr, mapping) for name, attr in main.attrs.items()}


def _values(block: Block) -> Iterator[Value]:
    yield from block.args
    for op in block.walk():
        yield from op.results
        for inner in op.blocks:
            yield from inner.args
