"""Running loops on NumPy arrays, of kernels and of irregular operators: what they mean, and the oracle for every
transformation.

Slow and obvious, with three aids: every access is checked against its buffer's shape; an innermost loop, with the
loops around it that hold nothing else, runs all its iterations at once with NumPy when a look at the actual positions
shows that no two of them meet; and an index that grows by the same from lane to lane is computed for the first lane and
checked at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from operator import mul
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.diag import ExecutionError, InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import ZERO, Sym
from tilewright.ir.symbolic.compiled import Places, places_of
from tilewright.ops.define.bodies import (
    evaluate_element,
    evaluate_sym,
    filled,
    guards_hold,
    require_checked,
)

WIDE_ENOUGH = 4
"""Iterations from which on loops run with NumPy: fewer are faster one by one."""

MOST_AT_ONCE = 1 << 16
"""Iterations up to which loops run with NumPy at once: of more, the outer ones run one by one."""

MOST_ELEMENTS = 1 << 22
"""The same where the memory of each access is a view, so that no positions are held."""

SPREAD = 8
"""Positions that lie in so many times their number are looked up in a table, others are sorted."""


def run_kernel(
    func: Func, arrays: Sequence[np.ndarray], env: Mapping[str, int] | None = None, *, backwards: bool = False
) -> None:
    """Execute a kernel in place on one array for each argument, with `env` giving its dims by name.

    The lanes of a vector loop run in lockstep, op by op; a parallel loop runs in order, or from its last
    iteration to its first with `backwards`, which must make no difference. An array holds either the
    buffer's logical shape (or one of which the kernel has merged axes), or (for a buffer with strides or an
    offset) is flat memory. ExecutionError for a failing `check`; InternalError, naming the buffer and the
    index, for an access out of bounds, and for arrays that do not fit.
    """
    run = Run(dict(env or {}), backwards)
    run.bind(func, arrays)
    with np.errstate(all="ignore"):
        run.block(func.body)


def _same_elements(given: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether `expected` is the given shape, with neighbouring axes merged, or an axis split, or not."""
    if 0 in expected:
        return 0 in given
    ours, theirs = list(given), list(expected)
    while ours and theirs:
        size, wanted = ours.pop(0), theirs.pop(0)
        if size < wanted:
            while size < wanted and ours:
                size *= ours.pop(0)
        else:
            while wanted < size and theirs:
                wanted *= theirs.pop(0)
        if size != wanted:
            return False
    return all(n == 1 for n in (*ours, *theirs))


@dataclass(slots=True)
class Elements:
    """One buffer: flat elements, and how an index finds them."""

    name: str
    flat: np.ndarray
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def address(self, idx: Sequence[Any], what: str) -> Any:
        """Position in `flat`; InternalError when the index is not inside of the shape."""
        total: Any = self.offset
        for axis, (i, n, step) in enumerate(zip(idx, self.shape, self.strides, strict=True)):
            low, high = (i, i) if type(i) is int else (int(i.min()), int(i.max()))
            if low < 0 or high >= n:
                raise self._outside(low if low < 0 else high, axis, what)
            total = total + i * step
        return total

    def _outside(self, index: int, axis: int, what: str) -> InternalError:
        return InternalError(
            f"{what} of buffer '{self.name}' {list(self.shape)} at index {index} of axis {axis}, "
            f"which is out of 0..{self.shape[axis]}; the schedule or lowering of this kernel is wrong"
        )


@dataclass(frozen=True, slots=True)
class View:
    """What an access of a nest touches: `start` and `steps` in the flat memory, for the loops at once (`shape`), and
    by how much each of the loops that run one by one moves it on."""

    memory: Elements
    start: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    moves: tuple[int, ...]

    @staticmethod
    def of(
        memory: Elements, idx: Sequence[Sym], env: Mapping[str, int], elements: Mapping[str, int],
        terms: Mapping[str, int],
    ) -> View | None:  # fmt: skip
        """None where the index is no sum of multiples, or leaves the buffer."""
        extents = {**elements, **terms}
        steps, start = dict.fromkeys(extents, 0), memory.offset
        for e, n, stride in zip(idx, memory.shape, memory.strides, strict=True):
            low = high = 0
            for part, times in e.terms:
                own = part.name if part.kind == "var" else ""
                if own in extents:
                    steps[own] += times * stride
                    low += min(0, times * (extents[own] - 1))
                    high += max(0, times * (extents[own] - 1))
                elif any(v.name in extents for v in part.vars):
                    return None
                else:
                    value = evaluate_sym(part, env)
                    if type(value) is not int:
                        return None
                    start += times * value * stride
                    low, high = low + times * value, high + times * value
            if low < 0 or high >= n:
                return None
        ours = tuple(steps[name] for name in elements)
        return View(memory, start, tuple(elements.values()), ours, tuple(steps[name] for name in terms))

    def at(self, numbers: Sequence[int]) -> np.ndarray:
        """The elements in one iteration of the loops that run one by one."""
        flat, size = self.memory.flat, self.memory.flat.itemsize
        first = self.start + sum(map(mul, self.moves, numbers))
        return np.ndarray(self.shape, flat.dtype, flat, first * size, tuple(step * size for step in self.steps))

    def places(self, numbers: Sequence[int]) -> np.ndarray:
        """Where these elements are in the flat memory."""
        first = self.start + sum(map(mul, self.moves, numbers))
        counted = zip(np.indices(self.shape, sparse=True), self.steps, strict=True)
        return np.asarray(sum((i * step for i, step in counted), np.full(self.shape, first, np.int64)))

    def is_of_distinct(self) -> bool:
        """Whether no element is touched twice by the loops at once: each step is longer than all smaller ones reach."""
        reach = 0
        for step, n in sorted((abs(step), n) for step, n in zip(self.steps, self.shape, strict=True) if n > 1):
            if step <= reach:
                return False
            reach += step * (n - 1)
        return True


class _Serial(Exception):
    """An innermost loop whose iterations meet must run one by one."""


class Run:
    """State of one execution: dims and loop variables by name, scalars by value, buffers."""

    def __init__(self, env: dict[str, Any], backwards: bool = False) -> None:
        self.backwards = backwards
        self.env = env
        self.scalars: dict[Value, Any] = {}
        self.memory: dict[Value, Elements] = {}
        self.lanes: int | None = None
        self.lane = ""  # the variable of the loop that runs as lanes
        self.has_uneven_names = False  # whether a variable beside that has a value for each lane
        self.places: dict[Op, Places | None] = {}  # of accesses that ran as lanes
        self.mask: np.ndarray | None = None
        self.speculating = False  # running a serial loop as lanes, as long as that makes no difference
        self.log: list[tuple[Elements, Any, bool, np.ndarray | None]] = []
        self.undo: list[tuple[np.ndarray, Any, np.ndarray]] = []
        self.elements: dict[Op, frozenset[str]] = {}  # of nests, what tells the elements apart that they give
        self.serial: set[Op] = set()  # loops that hold others beside something else, or were seen to need it

    def bind(self, func: Func, arrays: Sequence[np.ndarray]) -> None:
        """Take the arrays as the memory of the arguments of `func`."""
        if len(arrays) != len(func.args):
            raise InternalError(f"kernel @{func.name} takes {len(func.args)} arrays, not {len(arrays)}")
        for value, array in zip(func.args, arrays, strict=True):
            self.bind_array(value, array)

    def bind_array(self, value: Value, array: np.ndarray) -> None:
        """Take the array as the memory of a buffer."""
        memory = self._memory(value)
        type = value.buffer
        if array.dtype != type.dtype.storage:
            raise InternalError(
                f"argument '{value.name}' is {type}, the array is {array.dtype}{list(array.shape)}"
            )
        if not array.flags.c_contiguous:
            raise InternalError(f"argument '{value.name}': the array must be C-contiguous")
        if type.is_dense and type.offset is ZERO and not _same_elements(array.shape, memory.shape):
            raise InternalError(
                f"argument '{value.name}' is {type}, the array is {array.dtype}{list(array.shape)}"
            )
        memory.flat = array.reshape(-1)
        self.memory[value] = memory

    def _memory(self, value: Value) -> Elements:
        type = value.buffer
        shape, strides = (
            tuple(int(evaluate_sym(s, self.env)) for s in syms) for syms in (type.shape, type.strides)
        )
        flat = np.zeros(0, type.dtype.storage)
        return Elements(value.name or "?", flat, shape, strides, int(evaluate_sym(type.offset, self.env)))

    # Statements

    def block(self, block: Block) -> None:
        """Run the ops of a block."""
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        """Run one op."""
        statement = _STATEMENTS.get(op.name)
        if statement is not None:
            statement(self, op)
        elif op.name not in _NOTHING_HERE:
            self.scalars[op.result] = evaluate_element(op, self.scalars, self.env)[()]

    def _bind(self, op: Op) -> None:
        value = self.scalars[op.operands[0]]
        self.has_uneven_names |= np.ndim(value) > 0
        self.env[op.attrs["var"].name] = int(value) if np.ndim(value) == 0 else value.astype(np.int64)

    def _for(self, op: Op) -> None:
        name, extent, kind = (
            op.attrs["var"].name,
            int(evaluate_sym(op.attrs["extent"], self.env)),
            op.attrs["kind"],
        )
        if kind == "vector" and self.lanes is None:
            self._in_lockstep(op.blocks[0], {name: extent})
            return
        if self.lanes is None and op not in self.serial:
            extents, inner = self._nest(op)
            if not _is_flat(inner):
                self.serial.add(op)
            elif self._run_views(op, inner, extents):
                return
            elif WIDE_ENOUGH <= math.prod(extents.values()) <= MOST_AT_ONCE:
                if self._speculate(inner, extents):
                    return
                self.serial.add(op)
        backwards = kind == "parallel" and self.backwards
        if "boustrophedon" in op.attrs:
            backwards ^= bool(evaluate_sym(op.attrs["boustrophedon"], self.env) % 2)
        for i in reversed(range(extent)) if backwards else range(extent):
            self.env[name] = i
            self.block(op.blocks[0])

    def _nest(self, op: Op) -> tuple[dict[str, int], Block]:
        """The loops from this one inwards that hold nothing but the next one, by name, and what the last one holds."""
        extents: dict[str, int] = {}
        while True:
            extents[op.attrs["var"].name] = max(0, int(evaluate_sym(op.attrs["extent"], self.env)))
            block = op.blocks[0]
            if len(block.ops) != 1 or block.ops[0].name != "for" or block.ops[0].attrs["kind"] == "vector":
                return extents, block
            op = block.ops[0]
            if extents.keys() & {op.attrs["var"].name, *(v.name for v in op.attrs["extent"].vars)}:
                return extents, block

    def _in_lockstep(self, block: Block, extents: Mapping[str, int]) -> None:
        """Run all iterations of the loops as lanes of NumPy arrays, op by op."""
        self.lanes, (self.lane, *others) = math.prod(extents.values()), extents
        self.has_uneven_names = bool(others)
        self.env.update(zip(extents, _iterations(*extents.values()), strict=True))
        try:
            self.block(block)
        finally:
            self.lanes, self.mask, self.has_uneven_names = None, None, False

    def _run_views(self, op: Op, block: Block, extents: Mapping[str, int]) -> bool:
        """Run a nest that gives each element of one buffer, or adds it up: the loops over elements at once, those over
        terms one by one, in their order, so that each sum is added up as it is written. False, with nothing done, where
        it is no such nest."""
        if op not in self.elements:
            self.elements[op] = _elements_of(op, block)
        names = self.elements[op]
        elements = {name: n for name, n in extents.items() if name in names}
        terms = {name: n for name, n in extents.items() if name not in names}
        if self.backwards or self.mask is not None or not names:
            return False
        if not WIDE_ENOUGH <= math.prod(elements.values()) <= (MOST_AT_ONCE if terms else MOST_ELEMENTS):
            return False
        views = self._views_of(block, elements, terms)
        if views is None:
            return False
        inside = [o for o in block.ops if o.name != "store"]
        (store,) = (o for o in block.ops if o.name == "store")
        target = views[store].at((0,) * len(terms))
        for numbers in product(*map(range, terms.values())):
            for o in inside:
                if o.name == "load":
                    self.scalars[o.result] = views[o].at(numbers)
                elif o.name not in _NOTHING_HERE:
                    self.scalars[o.result] = evaluate_element(o, self.scalars, self.env)
            target[...] = self.scalars[store.operands[0]]
        return True

    def _views_of(
        self, block: Block, elements: Mapping[str, int], terms: Mapping[str, int]
    ) -> dict[Op, View] | None:
        """The memory of each access of a nest; None where that is no view, where something lies outside of its buffer,
        or where elements meet."""
        found: dict[Op, View] = {}
        for op in block.ops:
            if op.name not in ("load", "store"):
                continue
            view = View.of(self.memory[op.operands[-1]], op.attrs["idx"], self.env, elements, terms)
            if view is None:
                return None
            found[op] = view
        (store,) = (op for op in found if op.name == "store")
        written = found[store].memory.flat
        others = [view.memory.flat for view in found.values() if view.memory.flat is not written]
        meet = not found[store].is_of_distinct() or any(np.may_share_memory(o, written) for o in others)
        return None if meet else found

    def _speculate(self, block: Block, extents: Mapping[str, int]) -> bool:
        """Run the iterations of serial loops in lockstep; False, with memory as it was, when that would differ."""
        self.speculating, self.log, self.undo = True, [], []
        try:
            self._in_lockstep(block, extents)
            self._check_apart(math.prod(extents.values()))
            return True
        except (_Serial, ExecutionError, InternalError):  # errors are reported by the run in order
            for flat, at, old in reversed(self.undo):
                flat[at] = old
            return False
        finally:
            self.speculating = False

    def _check_apart(self, lanes: int) -> None:
        """Lanes must touch different elements, or the same lane the same one, wherever one writes."""
        for k, (memory, at, writes, mask) in enumerate(self.log):
            for other, other_at, other_writes, other_mask in self.log[k:]:
                if other.flat is not memory.flat or not (writes or other_writes):
                    continue
                if type(at) is type(other_at) is slice and at == other_at:
                    continue  # lanes have distances
                if _meet(_each(at, lanes), mask, _each(other_at, lanes), other_mask):
                    raise _Serial

    def _if(self, op: Op) -> None:
        holds = guards_hold(op.attrs.get("guard", ()), self.env)
        for v in op.operands:
            holds = holds & self.scalars[v] if holds is not True else self.scalars[v]
        outer = self.mask
        if np.ndim(holds) == 0:
            if bool(holds):
                self.block(op.blocks[0])
            return
        self.mask = holds if outer is None else holds & outer
        if self.mask.any():
            self.block(op.blocks[0])
        self.mask = outer

    def alloc(self, op: Op) -> None:
        memory = self._memory(op.result)
        type = op.result.buffer
        memory.flat = _garbage(int(np.prod([max(0, n) for n in memory.shape], dtype=np.int64)), type.dtype)
        self.memory[op.result] = memory

    def _check(self, op: Op) -> None:
        ok = self.scalars[op.operands[0]]
        require_checked(op, ok if self.mask is None else ok | ~self.mask)

    # Memory

    def _place(self, op: Op) -> tuple[Elements, Any, np.ndarray | None]:
        """Buffer, address (of lanes: an array or a slice, or an int) and mask of an access; addresses of lanes that
        are masked out are 0."""
        memory = self.memory[op.operands[-1]]
        holds = guards_hold(op.attrs.get("guard", ()), self.env)
        mask = self.mask
        if holds is not True and (np.ndim(holds) or not holds):
            mask = np.asarray(holds) if mask is None else mask & holds
        at = self._straight(op, memory) if mask is None and self.lanes and not self.has_uneven_names else None
        if at is None:
            idx = [evaluate_sym(i, self.env) for i in op.attrs["idx"]]
            if mask is not None:
                if not mask.any():
                    return memory, 0, np.asarray(False)
                idx = [_kept(i, mask) for i in idx]
            at = memory.address(idx, op.name)
        if self.speculating:
            self.log.append(
                (memory, at, op.name == "store", mask if mask is not None and mask.ndim else None)
            )
        return memory, at, mask

    def _straight(self, op: Op, memory: Elements) -> Any:
        """The addresses of all lanes of an access, when they have equal distances and are inside; else None."""
        assert self.lanes is not None
        if op not in self.places:
            self.places[op] = places_of(op.attrs["idx"], self.lane)
        places = self.places[op]
        if places is None:
            return None
        try:
            return places(self.env, self.lanes, memory.shape, memory.strides, memory.offset)
        except KeyError:
            return None  # which variable is missing, or which index is outside, the general way says

    def _load(self, op: Op) -> None:
        memory, at, mask = self._place(op)
        if mask is None:
            self.scalars[op.result] = memory.flat[at].copy() if type(at) is slice else memory.flat[at]
            return
        other = filled(op.attrs.get("other", 0), op.result.scalar.dtype)[()]
        if mask.any():
            self.scalars[op.result] = np.where(mask, memory.flat[at], other) if mask.ndim else memory.flat[at]
        else:
            self.scalars[op.result] = other

    def _store(self, op: Op) -> None:
        memory, at, mask = self._place(op)
        value = self.scalars[op.operands[0]]
        if mask is not None and not mask.any():
            return
        if self.lanes is None or type(at) is slice:
            if self.speculating:
                self.undo.append((memory.flat, at, memory.flat[at].copy()))
            memory.flat[at] = value
            return
        at, value = np.broadcast_to(at, (self.lanes,)), np.broadcast_to(value, (self.lanes,))
        if mask is not None and mask.ndim:
            at, value = at[mask], value[mask]
        if self.speculating:
            self.undo.append((memory.flat, at, memory.flat[at].copy()))
        memory.flat[at] = value

    def _lanes_reduce(self, op: Op) -> None:
        combine = SCALAR_OPS[op.attrs["combine"]].evaluate
        total, *others = self.memory[op.operands[0]].flat
        for element in others:
            total = combine(total, element)
        self.scalars[op.result] = total


_STATEMENTS: Mapping[str, Callable[[Run, Op], None]] = {
    "load": Run._load,
    "store": Run._store,
    "for": Run._for,
    "if": Run._if,
    "alloc": Run.alloc,
    "bind": Run._bind,
    "check": Run._check,
    "lanes_reduce": Run._lanes_reduce,
    "run": lambda run, op: run.block(op.blocks[0]),
}

def _elements_of(op: Op, block: Block) -> frozenset[str]:
    """The variables that tell which element of a buffer a nest of loops changes, where it changes no other element in
    an iteration and reads none: the other loops are over the terms of a sum. None of them where it does anything
    else. `block` is what the innermost loop holds."""
    loops = [op]
    while loops[-1].blocks[0] is not block:
        loops.append(loops[-1].blocks[0].ops[0])
    if any("boustrophedon" in o.attrs for o in loops):
        return frozenset()
    names, ops = {o.attrs["var"].name for o in loops}, block.ops
    stores = [o for o in ops if o.name == "store"]
    if len(stores) != 1 or any(o.name in _STATEMENTS and o.name not in ("load", "store") for o in ops):
        return frozenset()
    if any(o.name == "index" or o.attrs.get("guard") for o in ops):
        return frozenset()  # what depends on variables themselves has no view
    own = [o for o in ops if o.name in ("load", "store") and o.operands[-1] is stores[0].operands[-1]]
    places = frozenset(v.name for i in stores[0].attrs["idx"] for v in i.vars) & names
    is_one = all(o.attrs["idx"] == stores[0].attrs["idx"] for o in own)
    return places if is_one and (len(own) > 1 or places == names) else frozenset()


_NOTHING_HERE = ("return", "yield", "prefetch", "wait", "barrier")


@lru_cache(maxsize=16)
def _iterations(*extents: int) -> tuple[np.ndarray, ...]:
    """The variable of each loop in all iterations of a nest, which nobody writes to."""
    found = tuple(values.reshape(-1) for values in np.indices(extents))
    for values in found:
        values.flags.writeable = False
    return found


def _each(at: Any, lanes: int) -> np.ndarray:
    """The address of each lane."""
    return np.arange(at.start, at.stop, at.step) if type(at) is slice else np.broadcast_to(at, (lanes,))


def _meet(a: np.ndarray, mask_a: np.ndarray | None, b: np.ndarray, mask_b: np.ndarray | None) -> bool:
    """Whether two different lanes touch one element."""
    lanes_a, lanes_b = _lanes(a, mask_a), _lanes(b, mask_b)
    a, b = a[lanes_a], b[lanes_b]
    if not a.size or not b.size or a.max() < b.min() or b.max() < a.min():
        return False
    first, last = min(a.min(), b.min()), max(a.max(), b.max())
    if last - first > SPREAD * (a.size + b.size):
        kept, places = np.unique(np.concatenate([a, b]), return_inverse=True)
        a, b, first, last = places[: a.size], places[a.size :], 0, kept.size - 1
    owner = np.full(last - first + 1, -1, np.int64)
    owner[a - first] = lanes_a
    if (owner[a - first] != lanes_a).any():
        return True
    owners = owner[b - first]
    return bool(((owners >= 0) & (owners != lanes_b)).any())


def _lanes(places: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """The numbers of the lanes that touch anything."""
    return np.arange(places.size) if mask is None else np.flatnonzero(mask)


def _is_flat(block: Block) -> bool:
    """Whether the block holds no loops and something to do."""
    return bool(block.ops) and not any(op.name in ("for", "alloc", "run") for op in block.walk())


def _kept(i: Any, mask: np.ndarray) -> Any:
    return i if isinstance(i, int) else np.where(mask, i, i[np.argmax(mask)])


def _garbage(n: int, dtype: DType) -> np.ndarray:
    """Fresh memory: filled with a value that shows up when it is read before it is written."""
    if dtype.is_float:
        return np.full(n, np.nan).astype(dtype.storage)
    return np.full(n, 85, np.int64).astype(dtype.storage)
