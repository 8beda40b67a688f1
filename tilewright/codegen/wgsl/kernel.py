"""One kernel of the loops level as a compute shader: an entry point for each of its grids.

Nests of a kernel that follow each other are dispatches of their own, as groups cannot wait for each other. Within one,
iterations of a loop of the grid are those of groups, and iterations of a loop of threads are shared among the threads
of a group; what is in no loop of threads and writes is done by the first one. A kernel whose nests are none of these is
done by one thread, in order.

Arguments lie in buffers of words, whichever the program binds: the functions `read_k`, `write_k` and `part_k` are made
when that is known (`program.py`). An element of a byte or two is written into its word by an atomic operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilewright.codegen.cpu.kernel.checks import DIVISION_BY_ZERO, KernelChecks
from tilewright.codegen.devices.phases import Phase, phases_of
from tilewright.codegen.devices.program import DeviceKernel, Launch, doubt_of_serial
from tilewright.codegen.program import Check
from tilewright.codegen.wgsl.functions import definitions, iterations_of
from tilewright.codegen.wgsl.iterations import Iterations
from tilewright.codegen.wgsl.spelling import IndexTexts, Told, is_wide, literal, wgsl_type
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS, scalar_operation
from tilewright.ir.sym import ONE, ZERO, Sym, maximum, sym, upper
from tilewright.loops.analysis.bounds import Ranges
from tilewright.loops.edit import (
    address_of,
    body_of,
    enclosing_loops,
    extent_of,
    kind_of,
    loop_range,
    loop_var,
)
from tilewright.target.gpu.webgpu import DEVICE, GRID, REGISTERS, SHARED, THREAD, Gpu

_RANGES = {
    **{level: (f"i32(group.{axis})", f"i32(groups.{axis})") for level, axis in zip(GRID, "zyx", strict=True)},
    THREAD: ("i32(local)", "THREADS"),
}
"""Where the loops of a level begin, and their steps."""
_CHECK = "fail"
PIECE = 64
"""Bytes of which buffers in device memory have a whole number."""
MOST_GROUPS = 65535
"""Groups along an axis of a grid; where there are more iterations, groups go around."""


_DOUBT = "data decide how many iterations of loops a thread goes through, and some drivers end threads without an error"


@dataclass(frozen=True)
class Grid(Launch):
    """One dispatch of a kernel. `iterations` are those of all loops that one thread goes through, at most; None where
    data decide."""

    iterations: Sym | None = None

    def more(self, size: Callable[[Sym], Any]) -> list[Any]:
        return [None if self.iterations is None else size(self.iterations)]


@dataclass(frozen=True)
class WgslKernel(DeviceKernel):
    """The text of a kernel without the functions that read and write its arguments: `arguments` is their number, those
    of `parts` are written by parts of words."""

    arguments: int = 0
    parts: frozenset[int] = frozenset()


def kernel_wgsl(func: Func, machine: Gpu) -> WgslKernel:
    """A kernel as WGSL. UnsupportedError for types that it has none for."""
    return _Kernel(func, machine).written()


@dataclass(frozen=True)
class _Buffer:
    """Where a buffer is: argument `number`, `start` pieces of `PIECE` bytes on, or the variable `name`."""

    number: int = -1
    start: str = ""
    name: str = ""


class _Kernel:
    def __init__(self, func: Func, machine: Gpu) -> None:
        self.func, self.machine = func, machine
        self.names: dict[str, str] = {}
        self.needs: dict[str, None] = {}
        self.told = Told(func.dims)
        self.sizes = IndexTexts(self.names, self.needs, self.told)
        self.values: dict[Value, str] = {}
        self.buffers: dict[Value, _Buffer] = {a: _Buffer(k) for k, a in enumerate(func.args)}
        self.device = len(func.args)
        self.known = {dim.name for dim in func.dims}
        self.parts: set[int] = set()
        self.checks = KernelChecks()
        self.lines: list[str] = []
        self.shared: list[str] = []
        self.indent = "  "
        self.level = ""
        self.room = ZERO
        self.count = 0
        self.is_serial = False
        self.threads = 1
        self.ranges: Ranges = {}
        self.iterations = Iterations()

    def written(self) -> WgslKernel:
        phases = phases_of(self.func)
        self.is_serial = phases is None
        bodies, grids = [], []
        for k, phase in enumerate([None] if phases is None else phases):
            entry = f"{self.func.name}_{k}"
            self.iterations = Iterations()
            self.lines = []
            self.level = THREAD if self.is_serial else ""
            grids.append(self._alone(entry) if phase is None else self._grid(entry, phase))
            bodies.append((entry, self.threads, self.lines))
        if self.checks.found:
            self.needs[_CHECK] = None
        helpers = definitions(n for n in self.needs if n != _CHECK)
        dims = [self._dim(k, name) for k, name in enumerate(self.told.names.values())]
        texts = [_entry(entry, threads, [*dims, *lines]) for entry, threads, lines in bodies]
        text = "\n\n".join([*helpers, *self.shared, *texts, ""])
        return WgslKernel(
            self.func.name, text, tuple(self.checks.found), sym(0), launches=tuple(grids),
            arguments=len(self.func.args), parts=frozenset(self.parts), room=self.room * PIECE,
            dims=tuple(self.func.dims), told=tuple(self.told.names), doubt=self._doubt(grids),
        )  # fmt: skip

    def _doubt(self, grids: Sequence[Grid]) -> str:
        if any(grid.iterations is None for grid in grids):
            return _DOUBT
        return doubt_of_serial(self.func) if self.is_serial else ""

    def _dim(self, number: int, name: str) -> str:
        """A size, which is told behind the starts of the arguments and of the device memory."""
        at = len(self.func.args) + 1 + number
        return f"  let {name} = bitcast<i32>(told[{at // 4}].{'xyzw'[at % 4]});"

    # Grids

    def _alone(self, entry: str) -> Grid:
        """All of the kernel, by one thread."""
        self.threads = 1
        for op in self.func.body.ops:
            self._op(op)
        return Grid(entry, (ONE, ONE, ONE), self.iterations.most)

    def _grid(self, entry: str, phase: Phase) -> Grid:
        self.threads, groups = _shape(phase.nest, self.machine)
        for op in (*phase.before, phase.nest):
            self._op(op)
        most = self.iterations.most
        return Grid(entry, phase.groups(groups), None if most is None else phase.if_it_runs(most))

    # Statements

    def _line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._line(head)
        self.indent += "  "
        yield
        self.indent = self.indent[:-2]
        self._line("}")

    def _fresh(self, hint: str) -> str:
        self.count += 1
        return f"{hint}_{self.count}"

    def _ops(self, block: Block) -> None:
        for op in block.ops:
            self._op(op)

    def _op(self, op: Op) -> None:
        """An op; what writes outside of the loops of threads, the first thread does."""
        if self.level in GRID and op.name in ("store", "for", "if", "check") and not _has_threads(op):
            level, self.level = self.level, THREAD
            with self._block("if (local == 0u) {"):
                self._plain(op)
            self.level = level
        else:
            self._plain(op)

    def _plain(self, op: Op) -> None:
        if op.name in SCALAR_OPS:
            self._scalar(op)
            return
        match op.name:
            case "return" | "prefetch" | "wait":
                return
            case "barrier":
                if not self.is_serial:
                    self._line("workgroupBarrier();")
            case "run":
                self._ops(op.blocks[0])
            case _:
                handler = getattr(self, f"_{op.name}", None)
                if handler is None:
                    raise UnsupportedError(f"WGSL has no form of '{op.name}'", where=str(op.loc))
                handler(op)

    def _for(self, op: Op) -> None:
        variable, level = loop_var(op), op.attrs.get("level", "") if not self.is_serial else ""
        if kind_of(op) == "unroll":
            for k in range(extent_of(op).value):
                self.names[variable.name] = str(k)
                with self._block("{"):
                    self._ops(body_of(op))
            return
        name = self.names[variable.name] = self._fresh("i")
        extent = self.sizes.text(extent_of(op))
        start, step = _RANGES.get(level, ("0", "1"))
        outer = self.level
        if level:
            self.level = level
        with self._block(f"for (var {name}: i32 = {start}; {name} < {extent}; {name} += {step}) {{"):
            self._counted(op, level)
        self.level = outer
        if level in GRID and any(_is_shared(o) for o in op.walk()):
            self.lines.insert(-1, self.indent + "  workgroupBarrier();")

    def _counted(self, op: Op, level: str) -> None:
        """The body of a loop, with the number of iterations that it adds to those of a thread."""
        before, self.iterations = self.iterations, Iterations()
        most = upper(extent_of(op), self.ranges)
        self.ranges[loop_var(op)] = loop_range(op)
        self._ops(body_of(op))
        del self.ranges[loop_var(op)]
        shared = self.threads if level == THREAD else 1
        if level in GRID and self._is_known(extent_of(op)):
            shared = MOST_GROUPS
        trips = (most + (shared - 1)) // shared if most is not None and self._is_known(most) else None
        self.iterations = before.after(self.iterations.repeated(trips))

    def _is_known(self, e: Sym) -> bool:
        return self.known.issuperset(v.name for v in e.vars)

    def _if(self, op: Op) -> None:
        holds = [*map(self.sizes.holds, op.attrs.get("guard", ())), *(self.values[v] for v in op.operands)]
        with self._block(f"if ({' && '.join(holds) or 'true'}) {{"):
            self._ops(op.blocks[0])

    def _check(self, op: Op) -> None:
        number = self.checks.number(Check(op.attrs["kind"], op.attrs["message"]))
        self._line(f"if (!{self.values[op.operands[0]]}) {{ fail({number}u); }}")

    def _bind(self, op: Op) -> None:
        source, variable = op.operands[0], op.attrs["var"]
        text = self.values[source]
        if is_wide(source.scalar.dtype):
            self.needs["size_of_i64"] = None
            text = f"size_of_i64({text})"
        else:
            text = f"i32({text})"
        name = self.names[variable.name] = self._fresh("i")
        self._line(f"let {name}: i32 = {text};")

    # Memory

    def _alloc(self, op: Op) -> None:
        type = op.result.buffer
        if type.space == DEVICE or not type.size.is_const:
            self._alloc_in_device(op)
            return
        size = max(1, type.size.value)
        name = self._fresh("m")
        self.buffers[op.result] = _Buffer(name=name)
        declared = f"{name}: array<{wgsl_type(type.dtype)}, {size}>;"
        if type.space == SHARED and not self.is_serial:
            self.shared.append(f"var<workgroup> {declared}")
        else:
            self._line(f"var {declared}")

    def _alloc_in_device(self, op: Op) -> None:
        """A buffer of device memory, or of a thread that is alone and has no other for one of an unknown size."""
        type = op.result.buffer
        if not self.is_serial and (enclosing_loops(op) or type.space != DEVICE):
            raise UnsupportedError(f"a buffer of device memory in a loop of groups: {type}")
        if not self._is_known(type.size):
            raise UnsupportedError(f"the size of {type} is not known before the kernel runs")
        if op.result not in self.buffers:
            self.buffers[op.result] = _Buffer(self.device, self.sizes.text(self.room))
            self.room += (type.size * type.dtype.bytes + (PIECE - 1)) // PIECE

    def _load(self, op: Op) -> None:
        if not op.result.users:
            return
        dtype = op.result.scalar.dtype
        text = self._read(op.operands[0], self.sizes.text(address_of(op)), dtype)
        conditions = list(op.attrs.get("guard", ()))
        if not conditions:
            self._set(op, text)
            return
        name = self._fresh("v")
        self._line(f"var {name}: {wgsl_type(dtype)} = {self._literal(dtype, op.attrs.get('other', 0))};")
        self._line(f"if ({' && '.join(map(self.sizes.holds, conditions))}) {{ {name} = {text}; }}")
        self.values[op.result] = name

    def _store(self, op: Op) -> None:
        value, buffer = op.operands
        dtype = buffer.buffer.dtype
        text = self._written(buffer, self.sizes.text(address_of(op)), self.values[value], dtype)
        conditions = list(op.attrs.get("guard", ()))
        if conditions:
            text = f"if ({' && '.join(map(self.sizes.holds, conditions))}) {{ {text} }}"
        self._line(text)

    def _read(self, buffer: Value, element: str, dtype: DType) -> str:
        place = self.buffers[buffer]
        if place.name:
            return f"{place.name}[{element}]"
        k = place.number
        if is_wide(dtype):
            at = self._word(place, element, 2)
            return f"vec2<u32>(read_{k}({at}), read_{k}({at} + 1u))"
        if dtype.bytes == 4:
            return _of_word(f"read_{k}({self._word(place, element, 1)})", dtype)
        wgsl_type(dtype)
        bits = 8 * dtype.bytes
        return _of_part(f"byte_{k}({self._byte(place, element, dtype)})", dtype, bits)

    def _written(self, buffer: Value, element: str, value: str, dtype: DType) -> str:
        place = self.buffers[buffer]
        if place.name:
            return f"{place.name}[{element}] = {value};"
        k = place.number
        if is_wide(dtype):
            at = self._word(place, element, 2)
            return f"write_{k}({at}, {value}.x); write_{k}({at} + 1u, {value}.y);"
        if dtype.bytes == 4:
            word = value if wgsl_type(dtype) == "u32" else f"bitcast<u32>({value})"
            return f"write_{k}({self._word(place, element, 1)}, {word});"
        self.parts.add(k)
        word = f"select(0u, 1u, {value})" if dtype.kind == "bool" else f"bitcast<u32>({value})"
        mask = f"{(1 << 8 * dtype.bytes) - 1:#x}u"
        return f"part_{k}({self._byte(place, element, dtype)}, {mask}, {word});"

    def _word(self, place: _Buffer, element: str, words: int) -> str:
        scaled = f"u32({element})" if words == 1 else f"{words}u * u32({element})"
        return f"{PIECE // 4}u * u32({place.start}) + {scaled}" if place.start else scaled

    def _byte(self, place: _Buffer, element: str, dtype: DType) -> str:
        scaled = f"u32({element})" if dtype.bytes == 1 else f"{dtype.bytes}u * u32({element})"
        return f"{PIECE}u * u32({place.start}) + {scaled}" if place.start else scaled

    # Values

    def _set(self, op: Op, text: str) -> None:
        name = self.values[op.result] = self._fresh("v")
        self._line(f"let {name}: {wgsl_type(op.result.scalar.dtype)} = {text};")

    def _literal(self, dtype: DType, value: float) -> str:
        text = literal(dtype, value)
        if text.startswith("f32_of_bits"):
            self.needs["f32_of_bits"] = None
        return text

    def _const(self, op: Op) -> None:
        dtype = op.result.scalar.dtype
        wgsl_type(dtype)
        self._set(op, self._literal(dtype, op.attrs["value"]))

    def _index(self, op: Op) -> None:
        dtype, e = op.result.scalar.dtype, op.attrs["expr"]
        if dtype.kind == "bool":
            self._set(op, self.sizes.holds(e))
        elif dtype is dt.i32:
            self._set(op, self.sizes.text(e))
        else:
            self._called(op, f"{dtype.name}_from_i32", [self.sizes.text(e)])

    def _called(self, op: Op, name: str, arguments: Sequence[str]) -> None:
        self.needs[name] = None
        self.iterations = self.iterations.after(iterations_of(name))
        self._set(op, f"{name}({', '.join(arguments)})")

    def _cast(self, op: Op) -> None:
        (value,) = op.operands
        source, to = value.scalar.dtype, op.result.scalar.dtype
        if source is to:
            self._set(op, self.values[value])
        else:
            self._called(op, f"{to.name}_from_{source.name}", [self.values[value]])

    def _bitcast(self, op: Op) -> None:
        (value,) = op.operands
        source, to = value.scalar.dtype, op.result.scalar.dtype
        self._called(op, f"{to.name}_bits_from_{source.name}", [self.values[value]])

    def _level(self, op: Op) -> None:
        dtype = op.result.scalar.dtype
        table, type = self._fresh("levels"), f"array<{wgsl_type(dtype)}, 16>"
        items = ", ".join(literal(dtype, v) for v in op.attrs["levels"])
        self.shared.append(f"var<private> {table}: {type} = {type}({items});")
        self._set(op, f"{table}[u32({self.values[op.operands[0]]}) & 15u]")

    def _scalar(self, op: Op) -> None:
        if not op.result.users:
            return
        dtype = op.operands[-1].scalar.dtype
        values = [self.values[v] for v in op.operands]
        wgsl_type(dtype)
        if scalar_operation(op).divides and dtype.is_int:
            self._divided(op, dtype, values)
        elif (emit := _OPERATORS.get(dtype.name, _OF_ALL).get(op.name)) is not None:
            self._set(op, emit(self, op))
        else:
            self._called(op, f"{op.name}_{dtype.name}", values)

    def _term(self, value: Value) -> str:
        """An operand of a sum; where it is a sum itself, as one that drivers do not join with the other."""
        if not scalar_operation(value.op).is_sum:
            return self.values[value]
        self.needs["exact_f32"] = None
        return f"exact_f32({self.values[value]})"

    def _divided(self, op: Op, dtype: DType, values: Sequence[str]) -> None:
        divisor = op.operands[1]
        known = divisor.op is not None and divisor.op.name == "const" and divisor.op.attrs["value"] != 0
        one, zero = literal(dtype, 1), literal(dtype, 0)
        taken = values[1]
        if not known:
            number = self.checks.number(Check("ExecutionError", DIVISION_BY_ZERO))
            is_zero = f"all({taken} == {zero})" if is_wide(dtype) else f"{taken} == {zero}"
            self._line(f"if ({is_zero}) {{ fail({number}u); }}")
            taken = f"select({taken}, {one}, {is_zero})"
        self._called(op, f"{op.name}_{dtype.name}", [values[0], taken])


def _entry(entry: str, threads: int, lines: Sequence[str]) -> str:
    head = [
        f"@compute @workgroup_size({threads})",
        f"fn {entry}(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,",
        "    @builtin(local_invocation_index) local: u32) {",
    ]
    return "\n".join([*head, *(line.replace("THREADS", str(threads)) for line in lines), "}"])


def _shape(nest: Op, machine: Gpu) -> tuple[int, tuple[Sym, Sym, Sym]]:
    """Threads of a group, and groups along x, y and z. Where threads have registers, their loops say how many threads
    there are; others go around."""
    loops = [op for op in nest.walk() if op.name == "for"]
    owning = [op for op in loops if any(o.name == "alloc" and o.result.buffer.space == REGISTERS for o in op.walk())]

    def most(ops: Sequence[Op]) -> int:
        found = _extents(THREAD, ops)
        known = max([0, *(n.value if n.is_const else machine.alone for n in found)])
        return 1 << (known - 1).bit_length() if known else 0

    threads = min(most(owning) or most(loops) or 1, machine.threads)
    inner = {loop_var(op) for op in loops}
    z, y, x = (maximum(1, *(n for n in _extents(level, loops) if inner.isdisjoint(n.vars))) for level in GRID)
    return threads, (x, y, z)


def _extents(level: str, loops: Sequence[Op]) -> list[Sym]:
    """Those of the loops of a level."""
    return [extent_of(op) for op in loops if op.attrs.get("level") == level]


def _has_threads(op: Op) -> bool:
    return any(o.name == "barrier" or o.attrs.get("level") in (*GRID, THREAD) for o in op.walk())


def _is_shared(op: Op) -> bool:
    return op.name == "alloc" and op.result.buffer.space == SHARED


def _of_word(word: str, dtype: DType) -> str:
    type = wgsl_type(dtype)
    return word if type == "u32" else f"bitcast<{type}>({word})"


def _of_part(word: str, dtype: DType, bits: int) -> str:
    """An element of the low bits of a word, whose other bits may be any."""
    if dtype.kind == "bool":
        return f"(({word} & 0xffu) != 0u)"
    if dtype.kind == "int":
        taken = 32 - min(bits, dtype.bits)
        return f"(bitcast<i32>({word} << {taken}u) >> {taken}u)"
    return f"({word} & {(1 << min(bits, dtype.bits)) - 1:#x}u)"


Emit = Callable[[_Kernel, Op], str]


def _infix(sign: str, operand: Callable[[_Kernel, Value], str] = lambda kernel, v: kernel.values[v]) -> Emit:
    def emit(kernel: _Kernel, op: Op) -> str:
        one, other = (operand(kernel, v) for v in op.operands)
        return f"{one} {sign} {other}"

    return emit


def _select(kernel: _Kernel, op: Op) -> str:
    condition, one, other = (kernel.values[v] for v in op.operands)
    return f"select({other}, {one}, {condition})"


_OF_ALL: dict[str, Emit] = {"select": _select}
_ORDERED: dict[str, Emit] = {"lt": _infix("<"), "le": _infix("<="), "gt": _infix(">"), "ge": _infix(">=")}
_WORD: dict[str, Emit] = {**_OF_ALL, **_ORDERED, "eq": _infix("=="), "ne": _infix("!=")}
_FLOAT: dict[str, Emit] = {
    **_OF_ALL,
    **_ORDERED,
    "eq": _infix("=="),
    "add": _infix("+", _Kernel._term),
    "sub": _infix("-", _Kernel._term),
    "mul": _infix("*"),
    "div": _infix("/"),
}
_OPERATORS: Mapping[str, Mapping[str, Emit]] = {"f32": _FLOAT, "i32": _WORD, "u32": _WORD}
"""Scalar operations that WGSL has an operator for, by the type of their operands; all others are calls of functions
(`functions.py`)."""
