"""Running a kernel on NumPy arrays: the meaning of the loop level, and the oracle for every transformation.

Slow and obvious, with two aids: every access is checked against its buffer's shape, and an innermost loop
runs all its iterations at once with NumPy when a look at the actual positions shows that no two of them
meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.diag import ExecutionError, InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import ZERO, Sym
from tilewright.ir.types import BufferType, ScalarType

WIDE_ENOUGH = 4
"""Iterations from which on a loop runs with NumPy: fewer are faster one by one."""


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
    Run(func, dict(env or {}), backwards).run(arrays)


def _same_elements(given: Sequence[int], expected: Sequence[int]) -> bool:
    """Whether `expected` is the given shape, with neighbouring axes merged or not."""
    if 0 in expected:
        return 0 in given
    rest = list(given)
    for n in expected:
        size = rest.pop(0) if rest else 1
        while size != n and rest:
            size *= rest.pop(0)
        if size != n:
            return False
    return all(n == 1 for n in rest)


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
            low, high = (i, i) if isinstance(i, int) else (int(i.min()), int(i.max()))
            if low < 0 or high >= n:
                wrong = low if low < 0 else high
                raise InternalError(
                    f"{what} of buffer '{self.name}' {list(self.shape)} at index {wrong} of axis {axis}, "
                    f"which is out of 0..{n}; the schedule or lowering of this kernel is wrong"
                )
            total = total + i * step
        return total


class _Serial(Exception):
    """An innermost loop whose iterations meet must run one by one."""


class Run:
    """State of one execution: dims and loop variables by name, scalars by value, buffers."""

    def __init__(self, func: Func, env: dict[str, Any], backwards: bool) -> None:
        self.func = func
        self.backwards = backwards
        self.env = env
        self.scalars: dict[Value, Any] = {}
        self.memory: dict[Value, Elements] = {}
        self.lanes: int | None = None
        self.mask: np.ndarray | None = None
        self.speculating = False  # running a serial loop as lanes, as long as that makes no difference
        self.log: list[tuple[Elements, Any, bool, np.ndarray | None]] = []
        self.undo: list[tuple[np.ndarray, Any, np.ndarray]] = []
        self.serial: set[Op] = set()  # loops that were seen to need it

    def run(self, arrays: Sequence[np.ndarray]) -> None:
        self.bind(arrays)
        with np.errstate(all="ignore"):
            self._block(self.func.body)

    def bind(self, arrays: Sequence[np.ndarray]) -> None:
        """Take the arrays as the memory of the arguments."""
        if len(arrays) != len(self.func.args):
            raise InternalError(
                f"kernel @{self.func.name} takes {len(self.func.args)} arrays, not {len(arrays)}"
            )
        for value, array in zip(self.func.args, arrays, strict=True):
            self.memory[value] = self._bind_array(value, array)

    def _bind_array(self, value: Value, array: np.ndarray) -> Elements:
        memory = self._memory(value, None)
        type = value.type
        assert isinstance(type, BufferType)
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
        return memory

    def _memory(self, value: Value, flat: np.ndarray | None) -> Elements:
        type = value.type
        assert isinstance(type, BufferType)
        shape, strides = (tuple(int(self._index(s)) for s in syms) for syms in (type.shape, type.strides))
        if flat is None:
            flat = np.zeros(0, type.dtype.storage)
        return Elements(value.name or "?", flat, shape, strides, int(self._index(type.offset)))

    # Statements

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        match op.name:
            case "for":
                self._for(op)
            case "if":
                self._if(op)
            case "alloc":
                self.alloc(op)
            case "load":
                self.scalars[op.result] = self._load(op)
            case "store":
                self._store(op)
            case "bind":
                value = self.scalars[op.operands[0]]
                self.env[op.attrs["var"].name] = int(value) if np.ndim(value) == 0 else value.astype(np.int64)
            case "check":
                self._check(op)
            case "run":
                self._block(op.blocks[0])
            case "return" | "prefetch" | "wait" | "barrier":
                pass
            case _:
                self.scalars[op.result] = self._scalar(op)

    def _for(self, op: Op) -> None:
        name, extent, kind = op.attrs["var"].name, int(self._index(op.attrs["extent"])), op.attrs["kind"]
        if kind == "vector" and self.lanes is None:
            self._in_lockstep(op.blocks[0], name, extent)
            return
        if extent >= WIDE_ENOUGH and self.lanes is None and op not in self.serial and _is_flat(op.blocks[0]):
            if self._speculate(op.blocks[0], name, extent):
                return
            self.serial.add(op)
        backwards = kind == "parallel" and self.backwards
        if "boustrophedon" in op.attrs:
            backwards ^= bool(self._index(op.attrs["boustrophedon"]) % 2)
        for i in reversed(range(extent)) if backwards else range(extent):
            self.env[name] = i
            self._block(op.blocks[0])

    def _in_lockstep(self, block: Block, name: str, lanes: int) -> None:
        """Run all iterations as lanes of NumPy arrays, op by op."""
        self.lanes = lanes
        self.env[name] = np.arange(lanes)
        try:
            self._block(block)
        finally:
            self.lanes, self.mask = None, None

    def _speculate(self, block: Block, name: str, extent: int) -> bool:
        """Run the iterations of a serial loop in lockstep; False, with memory as it was, when that would differ."""
        self.speculating, self.log, self.undo = True, [], []
        try:
            self._in_lockstep(block, name, extent)
            self._check_apart(extent)
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
                if _meet(
                    np.broadcast_to(at, (lanes,)), mask, np.broadcast_to(other_at, (lanes,)), other_mask
                ):
                    raise _Serial

    def _if(self, op: Op) -> None:
        holds = self._guard(op.attrs.get("guard", ()))
        for v in op.operands:
            holds = holds & self.scalars[v] if holds is not True else self.scalars[v]
        outer = self.mask
        if np.ndim(holds) == 0:
            if bool(holds):
                self._block(op.blocks[0])
            return
        self.mask = holds if outer is None else holds & outer
        if self.mask.any():
            self._block(op.blocks[0])
        self.mask = outer

    def alloc(self, op: Op) -> None:
        memory = self._memory(op.result, None)
        type = op.result.type
        assert isinstance(type, BufferType)
        memory.flat = _garbage(int(np.prod([max(0, n) for n in memory.shape], dtype=np.int64)), type.dtype)
        self.memory[op.result] = memory

    def _check(self, op: Op) -> None:
        ok = self.scalars[op.operands[0]]
        if self.mask is not None:
            ok = ok | ~self.mask
        if not np.all(ok):
            raise ExecutionError(f"{op.attrs['message']} (in {op.loc})")

    # Memory

    def _place(self, op: Op) -> tuple[Elements, Any, np.ndarray | None]:
        """Buffer, address and mask of an access; addresses of lanes that are masked out are 0."""
        memory = self.memory[op.operands[-1]]
        holds = self._guard(op.attrs.get("guard", ()))
        mask = self.mask
        if holds is not True:
            mask = np.asarray(holds) if mask is None else mask & holds
        idx = [self._index(i) for i in op.attrs["idx"]]
        if mask is not None:
            if not mask.any():
                return memory, 0, np.asarray(False)
            idx = [_kept(i, mask) for i in idx]
        at = memory.address(idx, op.name)
        if self.lanes is not None:
            self.log.append(
                (memory, at, op.name == "store", mask if mask is not None and mask.ndim else None)
            )
        return memory, at, mask

    def _load(self, op: Op) -> Any:
        memory, at, mask = self._place(op)
        if mask is None:
            return memory.flat[at]
        other = memory.flat.dtype.type(op.attrs.get("other", 0))
        if not mask.any():
            return other
        return np.where(mask, memory.flat[at], other) if mask.ndim else memory.flat[at]

    def _store(self, op: Op) -> None:
        memory, at, mask = self._place(op)
        value = self.scalars[op.operands[0]]
        if mask is not None and not mask.any():
            return
        if self.lanes is None:
            memory.flat[at] = value
            return
        at, value = np.broadcast_to(at, (self.lanes,)), np.broadcast_to(value, (self.lanes,))
        if mask is not None and mask.ndim:
            at, value = at[mask], value[mask]
        if self.speculating:
            self.undo.append((memory.flat, at, memory.flat[at].copy()))
        memory.flat[at] = value

    # Scalars

    def _scalar(self, op: Op) -> Any:
        type = op.result.type
        assert isinstance(type, ScalarType)
        storage = type.dtype.storage
        match op.name:
            case "const":
                return storage.type(op.attrs["value"])
            case "index":
                value = self._index(op.attrs["expr"])
                return storage.type(value) if isinstance(value, int) else value.astype(storage)
            case "cast":
                return _cast(self.scalars[op.operands[0]], type.dtype)
            case "lanes_reduce":
                memory = self.memory[op.operands[0]]
                combine = SCALAR_OPS[op.attrs["combine"]].evaluate
                total = memory.flat[0]
                for element in memory.flat[1:]:
                    total = combine(total, element)
                return total
        operands = [self.scalars[v] for v in op.operands]
        result = SCALAR_OPS[op.name].evaluate(*operands)
        return np.asarray(result).astype(storage, copy=False)[()]

    def _guard(self, guard: Sequence[Sym]) -> Any:
        """Whether all conditions hold: True, False or one truth for each lane."""
        holds: Any = True
        for c in guard:
            value = self._index(c)
            holds = holds & (bool(value) if isinstance(value, int) else value != 0)
            if holds is False:
                return False
        return holds

    def _index(self, e: Sym) -> Any:
        """Value of an index expression: an int, or one for each lane."""
        if e.is_const:
            return e.value
        if e.kind == "var":
            return self.env[e.name]
        if self.lanes is None or not any(isinstance(self.env[v.name], np.ndarray) for v in e.vars):
            return e.evaluate(self.env)
        return e.evaluate_numpy({v.name: self.env[v.name] for v in e.vars})


def _meet(a: np.ndarray, mask_a: np.ndarray | None, b: np.ndarray, mask_b: np.ndarray | None) -> bool:
    """Whether two different lanes touch one element."""
    if mask_a is None and mask_b is None and np.array_equal(a, b):
        return len(set(a.tolist())) < len(a)
    owner: dict[int, int] = {}
    for lane, at in enumerate(a.tolist()):
        if (mask_a is None or mask_a[lane]) and owner.setdefault(at, lane) != lane:
            return True
    return any(
        owner.get(at, lane) != lane for lane, at in enumerate(b.tolist()) if mask_b is None or mask_b[lane]
    )


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


def _cast(value: Any, dtype: DType) -> Any:
    source = np.asarray(value)
    if dtype.kind == "bool":
        return (source != 0)[()]
    if dtype.is_int and np.issubdtype(source.dtype, np.floating):
        source = np.trunc(source)
    return source.astype(dtype.storage)[()]
