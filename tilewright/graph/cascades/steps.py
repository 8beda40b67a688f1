"""A cascade as steps: which rows of which tensor are computed when, and the memory that this takes.

Rows are computed as they are asked for: to compute rows of the last tensor those of the one before it are computed
first, as far as they are not there. What is still to be read of a tensor is joined with its next rows, so that no row
is computed twice.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import lcm, prod
from types import MappingProxyType

from tilewright.cost.conv.cascades import ALIGNMENT
from tilewright.graph.cascades.links import FUSED, Link
from tilewright.graph.cascades.rows import NoRows, RowRange
from tilewright.ir.core import Op, Value

NO_SCRATCH: Mapping[Op, int] = MappingProxyType({})


def bytes_of(value: Value) -> int:
    return -(-value.tensor.size.value * value.tensor.dtype.bytes // ALIGNMENT) * ALIGNMENT


@dataclass(eq=False)
class RowBuffer:
    """Rows `start` to `stop` of a tensor; a view has the memory of another buffer (`root`)."""

    value: Value
    start: int
    stop: int
    size: int
    root: RowBuffer | None = None

    def memory(self) -> RowBuffer:
        return self if self.root is None else self.root.memory()


@dataclass(frozen=True, eq=False)
class MakeRows:
    """Compute the rows of a result of `sources`; None for tensors from outside of the cascade."""

    link: Link
    sources: tuple[RowBuffer | None, ...]
    result: RowBuffer


@dataclass(frozen=True, eq=False)
class JoinRows:
    """Rows of `old` from `keep` on, and those of `new` behind them, in one buffer."""

    old: RowBuffer
    new: RowBuffer
    result: RowBuffer


@dataclass(frozen=True, eq=False)
class PlaceRows:
    """Put rows where they belong in a tensor that is needed as a whole."""

    new: RowBuffer
    whole: RowBuffer


Step = MakeRows | JoinRows | PlaceRows


class Cascade:
    """Ops that follow each other in a fused program, each of which can be computed by rows. NoRows where one cannot.

    `needed` are the values that others read; `known` are links that were made before.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        needed: Sequence[Value],
        known: dict[tuple[Op, int], Link | NoRows] | None = None,
    ) -> None:
        self.known = {} if known is None else known
        self.ops = tuple(ops)
        self.needed = tuple(needed)
        self.links = self._linked()
        self.units = self._units()
        self.inside = {
            v: [(k, w) for k, w in enumerate(link.op.operands) if w in self.links]
            for v, link in self.links.items()
        }
        """For each value the operands that are computed in the cascade, with their positions."""
        self.readers: dict[Value, list[tuple[Value, int]]] = {v: [] for v in self.links}
        for v, operands in self.inside.items():
            for k, w in operands:
                self.readers[w].append((v, k))
        self.row_bytes = {v: bytes_of_rows(v, link.axis) for v, link in self.links.items()}
        self.least_of: dict[int, int] = {}

    def _linked(self) -> dict[Value, Link]:
        last = self.ops[-1].result if len(self.ops[-1].results) == 1 else None
        if last is None:
            raise NoRows("it has several results")
        reason = NoRows("it has no axis of several rows")
        for axis, extent in enumerate(last.tensor.shape):
            if extent.value > 1:
                try:
                    return self._along(last, axis)
                except NoRows as error:
                    reason = error
        raise reason

    def _along(self, last: Value, axis: int) -> dict[Value, Link]:
        axes, found = {last: axis}, dict[Value, Link]()
        inside = {v for op in self.ops for v in op.results}
        for op in reversed(self.ops):
            if len(op.results) != 1 or op.result not in axes:
                raise NoRows("nothing in the cascade reads it")
            link = found[op.result] = self._link(op, axes[op.result])
            for v, own in zip(op.operands, link.axes, strict=True):
                if v in inside and own is None:
                    raise NoRows("it reads all of a tensor at once")
                if v in inside and own is not None and axes.setdefault(v, own) != own:
                    raise NoRows("a tensor is read along two axes")
        return dict(reversed(found.items()))

    def _link(self, op: Op, axis: int) -> Link:
        if (op, axis) not in self.known:
            try:
                self.known[op, axis] = Link(op, axis)
            except NoRows as error:
                self.known[op, axis] = error
        found = self.known[op, axis]
        if isinstance(found, NoRows):
            raise found
        return found

    def _units(self) -> dict[Value, int]:
        """For each value how many positions are a row: a view may join the positions of several axes."""
        units = {v: link.unit for v, link in self.links.items()}
        own = [
            (value, v, more)
            for value, link in self.links.items()
            for v, more in zip(link.op.operands, link.rows_of_one, strict=True)
            if v in units and more is not None
        ]
        for value, v, more in (*own, *reversed(own)) * 2:
            units[value] = lcm(units[value], (units[v] / more).numerator)
            units[v] = (units[value] * more).numerator
        return units

    def kernels(self, pieces: int) -> int:
        """How many kernels are called where tensors are computed in so many pieces, copies apart."""
        return sum(
            -(-link.extent // self.rows(v, pieces)) for v, link in self.links.items() if link.op.name == FUSED
        )

    def rows(self, value: Value, pieces: int) -> int:
        """Rows of each of about so many pieces of a tensor."""
        unit = self.units[value]
        return max(1, -(-self.links[value].extent // unit // pieces)) * unit

    def least_bytes(self, pieces: int) -> int:
        """Bytes that some step takes in any case: rows of a result, and those that they are computed of. It is quick to
        tell, and less than `peak_of` the steps."""
        if pieces not in self.least_of:
            self.least_of[pieces] = max(
                (self._bytes_of_step(v, pieces) for v, link in self.links.items() if link.op.name == FUSED), default=0
            )
        return self.least_of[pieces]

    def _bytes_of_step(self, value: Value, pieces: int) -> int:
        """Of rows in the middle; tensors that are needed as a whole may lie elsewhere."""
        link, rows = self.links[value], self.rows(value, pieces)
        start = link.extent // rows // 2 * rows
        try:
            needs = link.needs(start, min(start + rows, link.extent))
        except NoRows:  # `steps` says so, too
            return 0
        read = {v: needs[k] for k, v in self.inside[value] if v not in self.needed}
        own = 0 if value in self.needed else (min(start + rows, link.extent) - start) * self.row_bytes[value]
        return own + sum(r.count * self.row_bytes[v] for v, r in read.items() if r is not None)

    def steps(self, pieces: int) -> list[Step]:
        """The steps where tensors are computed in about so many pieces each."""
        return _Schedule(self, pieces).run()


def is_in_lines(value: Value, axis: int) -> bool:
    """Whether rows of a tensor follow each other in memory."""
    return prod(d.value for d in value.tensor.shape[:axis]) == 1


class _Schedule:
    def __init__(self, cascade: Cascade, pieces: int) -> None:
        self.links = cascade.links
        self.needed = cascade.needed
        self.rows = {v: cascade.rows(v, pieces) for v in self.links}
        self.readers = cascade.readers
        self.inside = cascade.inside
        self.row_bytes = cascade.row_bytes
        self.done = dict.fromkeys(self.links, 0)
        self.at: dict[Value, RowBuffer] = {}
        self.wholes = {v: self._buffer(v, 0, self.links[v].extent) for v in cascade.needed}
        self.viewed = {v: link for v, link in self.links.items() if v in self.wholes and self._is_view(link)}
        """Views of tensors that are needed as a whole, too: they need no rows that are placed."""
        self.done |= {v: link.extent for v, link in self.viewed.items() if not self.readers[v]}
        self.found: list[Step] = []

    def _is_view(self, link: Link) -> bool:
        return link.op.name != FUSED and link.op.operands[0] in self.wholes

    def run(self) -> list[Step]:
        for value in (*reversed(self.links), *self.needed):
            if value in self.wholes and value not in self.viewed:
                self._produce(value, self.links[value].extent)
        for value, link in self.viewed.items():
            made, whole = self._buffer(value, 0, link.extent), self.wholes[value]
            made.root = whole.root = self.wholes[link.op.operands[0]]
            self.found += [MakeRows(link, (made.root,), made), PlaceRows(made, whole)]
        return self.found

    def _buffer(self, value: Value, start: int, stop: int) -> RowBuffer:
        return RowBuffer(
            value, start, stop, -(-(stop - start) * self.row_bytes[value] // ALIGNMENT) * ALIGNMENT
        )

    def _produce(self, value: Value, upto: int) -> None:
        link, inside = self.links[value], self.inside[value]
        while self.done[value] < upto:
            start = self.done[value]
            stop = min(start + self.rows[value], link.extent)
            needs = link.needs(start, stop)
            for k, v in inside:
                rows = needs[k]
                if rows is not None and self.done[v] < rows.stop:
                    self._produce(v, rows.stop)
            sources: list[RowBuffer | None] = [None] * len(needs)
            for k, v in inside:
                sources[k] = self.at[v]
            made = self._buffer(value, start, stop)
            if link.op.name != FUSED and sources[0] is not None and _is_all(sources[0], needs[0]):
                made.root = sources[0]
            self.found.append(MakeRows(link, tuple(sources), made))
            self.done[value] = stop
            self._keep(value, made)

    def _keep(self, value: Value, made: RowBuffer) -> None:
        if value in self.wholes and value not in self.viewed:
            self.found.append(PlaceRows(made, self.wholes[value]))
            if is_in_lines(value, self.links[value].axis):
                self._write_in_place(made, self.wholes[value])
        old = self.at.get(value)
        self.at[value] = made
        if old is not None and (keep := self._first_needed(value)) < old.stop:
            self.at[value] = self._buffer(value, max(keep, old.start), made.stop)
            self.found.append(JoinRows(old, made, self.at[value]))

    def _write_in_place(self, made: RowBuffer, whole: RowBuffer) -> None:
        memory = made.memory()
        if memory in self.wholes.values():
            raise NoRows("two views of a tensor are needed as a whole")
        memory.root = whole

    def _first_needed(self, value: Value) -> int:
        """The first row of a value that is still to be read."""
        first = self.done[value]
        for reader, k in self.readers[value]:
            link, done = self.links[reader], self.done[reader]
            if done < link.extent:
                rows = link.needs(done, min(done + self.rows[reader], link.extent))[k]
                if rows is not None and rows.start < first:
                    first = rows.start
        return first


def _is_all(buffer: RowBuffer, rows: RowRange | None) -> bool:
    return rows is not None and (buffer.start, buffer.stop) == (rows.start, rows.stop)


def bytes_of_rows(value: Value, axis: int) -> int:
    """Bytes of one row."""
    shape = value.tensor.shape
    return value.tensor.size.value // shape[axis].value * value.tensor.dtype.bytes


# Memory


def touched(step: Step) -> tuple[RowBuffer, ...]:
    """The buffers that a step reads and writes."""
    match step:
        case MakeRows():
            return *(b for b in step.sources if b is not None), step.result
        case JoinRows():
            return step.old, step.new, step.result
        case PlaceRows():
            return step.new, step.whole


@dataclass(frozen=True)
class Peak:
    """The most bytes of a cascade at once, and the buffers that these are."""

    bytes: int
    buffers: tuple[RowBuffer, ...]


def peak_of(
    cascade: Cascade, steps: Sequence[Step], elsewhere: Container[Value] = (), scratch: Mapping[Op, int] = NO_SCRATCH
) -> Peak:
    """The most bytes that buffers of a cascade take at once, with the scratch memory of the kernel that runs; tensors
    that are needed as a whole stay to its end. Those that lie `elsewhere` do not count. Rows that follow each other in
    memory are computed where they belong. `scratch` are the bytes of kernels on whole tensors, which is taken for used
    by rows."""
    first: dict[RowBuffer, int] = {}
    last: dict[RowBuffer, int] = {}
    for n, step in enumerate(steps):
        for buffer in touched(step):
            memory = buffer if buffer.root is None else buffer.memory()
            if memory not in first:
                first[memory] = n
            last[memory] = n
    for whole in (b for b in first if b.value in cascade.needed and _is_whole(b, cascade)):
        last[whole] = len(steps)
    grows = [0] * (len(steps) + 2)
    for buffer, n in first.items():
        size = _own_size(buffer, cascade, elsewhere)
        grows[n] += size
        grows[last[buffer] + 1] -= size
    size = most = at = 0
    for n in range(len(steps)):
        size += grows[n]
        if size + (own := _scratch(steps[n], scratch)) > most:
            most, at = size + own, n
    return Peak(most, tuple(b for b, n in first.items() if n <= at <= last[b]))


def _scratch(step: Step, scratch: Mapping[Op, int]) -> int:
    if not isinstance(step, MakeRows):
        return 0
    return -(-scratch.get(step.link.op, 0) * (step.result.stop - step.result.start) // step.link.extent)


def _own_size(buffer: RowBuffer, cascade: Cascade, elsewhere: Container[Value]) -> int:
    return 0 if buffer.value in elsewhere and _is_whole(buffer, cascade) else buffer.size


def _is_whole(buffer: RowBuffer, cascade: Cascade) -> bool:
    return (buffer.start, buffer.stop) == (0, cascade.links[buffer.value].extent)
