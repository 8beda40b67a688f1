"""One kernel of the loops level as a function of C: its loops as the program says, with plain loops for vectors and for
what is unrolled, which compilers make vectors of by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.codegen.c.functions import byte_of
from tilewright.codegen.c.operations import CHOICE, spelled
from tilewright.codegen.c.order import nest_of
from tilewright.codegen.c.sizes import (
    EQUAL,
    OR,
    ORDER,
    PRIMARY,
    PRODUCT,
    SUM,
    UNARY,
    SizeTexts,
    is_condition,
)
from tilewright.codegen.c.spelling import CNames, c_type, literal
from tilewright.codegen.cpu.kernel.checks import DIVISION_BY_ZERO, KernelChecks
from tilewright.codegen.program import Check, KernelText
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Op, Value, substitute
from tilewright.ir.diag import InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS, scalar_operation
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import BufferType, product
from tilewright.loops.edit import address_of
from tilewright.loops.kernel_info import kernel_info
from tilewright.program.memory.scratch import bytes_in_scratch
from tilewright.target.machine import GLOBAL, REGISTERS

_FLOATS = (dt.f32, dt.f64)


@dataclass(frozen=True)
class CKernel(KernelText):
    """The text of a kernel, and the names of the scalar functions that it calls. It takes its buffers and dims, then
    scratch memory where it has some, and a place for errors where it reports any."""

    needs: tuple[str, ...] = field(default=(), compare=False)


def kernel_c(func: Func) -> CKernel:
    """A kernel as C."""
    return _Kernel(func).written()


@dataclass(eq=False)
class _Scope:
    """A block of code while it is written: the names of variables that it binds, and the lines at its beginning."""

    bound: set[str]
    head: list[str]
    indent: str


@dataclass(frozen=True)
class _Expression:
    """What a value is spelled as, how tightly it binds, and whether it reads memory."""

    text: str
    level: int
    reads: bool = False


Lines = list["str | Lines"]


class _Kernel:
    def __init__(self, func: Func) -> None:
        self.func = func
        self.names = CNames()
        self.needs: dict[str, None] = {}
        self.sizes = SizeTexts(self._variable, self.needs, self._hoisted)
        self.checks = KernelChecks()
        self.lines: Lines = []
        self.scopes: list[_Scope] = []
        self.loops: list[_Scope] = []
        self.hoisted: dict[Sym, tuple[str, _Scope]] = {}
        self.values: dict[Value, _Expression] = {}
        self.pending: dict[Value, None] = {}
        self.known: dict[Sym, Sym] = {}
        self.scratch = sym(0)
        self.used = _variables(func)

    def written(self) -> CKernel:
        self.names.fresh("scratch")
        info = kernel_info(self.func)
        shared = {k for pair in info.inplace for k in pair}
        parameters = []
        for k, arg in enumerate(self.func.args):
            name = self.names.of(arg, arg.name or f"b{k}")
            const = "const " if k < len(self.func.args) - info.outputs else ""
            restrict = "" if k in shared else "restrict "
            parameters.append(f"{const}{c_type(arg.buffer.dtype)} *{restrict}{name}")
        for d in self.func.dims:
            parameters.append(f"ptrdiff_t {self._variable(d)}")
        with self._scope({d.name for d in self.func.dims}, "  "):
            self._block(self.func.body)
        if self.scratch.kind != "const" or self.scratch.value:
            parameters.append("unsigned char *scratch")
        checks = tuple(self.checks.found)
        if checks:
            self.needs["fail"] = None
            parameters.append("int32_t *error")
        head = _wrapped(f"static void {self.func.name}(", parameters)
        body = list(_flat(self.lines))
        words = set(re.findall(r"\w+", "\n".join(body)))
        given = [name for parameter in parameters if (name := parameter.split()[-1].lstrip("*")) not in words]
        text = "\n".join([head, *(f"  (void){name};" for name in given), *body, "}", ""])
        return CKernel(self.func.name, text, checks, self.scratch, needs=tuple(self.needs))

    # Names and sizes

    def _variable(self, v: Sym) -> str:
        return self.names.of(v.name, v.name)

    def _size(self, e: Sym, least: int = OR) -> str:
        return self.sizes.text(substitute(e, self.known) if self.known else e, least)

    def _conditions(self, op: Op) -> list[Sym]:
        found = [substitute(c, self.known) if self.known else c for c in op.attrs.get("guard", ())]
        return [c for c in found if not (c.is_const and c.value)]

    def _hoisted(self, e: Sym) -> str:
        """The name of an expression that inner loops do not change, computed outside of these."""
        if e in self.hoisted and self.hoisted[e][1] in self.scopes:
            return self.hoisted[e][0]
        wanted = {v.name for v in e.vars}
        if wanted & self.sizes.wide:
            return ""
        for k, scope in enumerate(self.scopes):
            wanted -= scope.bound
            if wanted:
                continue
            if not any(inner in self.loops for inner in self.scopes[k + 1 :]):
                return ""
            return self._define(e, scope)
        return ""

    def _define(self, e: Sym, scope: _Scope) -> str:
        variable = max((v.name for v in e.vars), key=lambda name: (name in scope.bound, name))
        suffix = {"floordiv": "div", "mod": "mod", "select": "pick"}.get(e.kind, e.kind)
        name = self.names.fresh(f"{variable}_{suffix}")
        self.hoisted[e] = "", scope
        text = self.sizes.text(e)
        scope.head.append(f"{scope.indent}const ptrdiff_t {name} = {text};")
        self.hoisted[e] = name, scope
        return name

    @contextmanager
    def _scope(self, bound: set[str], indent: str, *, is_loop: bool = False) -> Iterator[None]:
        scope = _Scope(bound, [], indent)
        outer, self.lines = self.lines, []
        outer.append(scope.head)  # type: ignore[arg-type]
        outer.append(self.lines)
        self.scopes.append(scope)
        if is_loop:
            self.loops.append(scope)
        yield
        self.scopes.pop()
        if is_loop:
            self.loops.pop()
        self.lines = outer

    # Statements

    @property
    def indent(self) -> str:
        return self.scopes[-1].indent

    def _line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if op.name in SCALAR_OPS:
                self._scalar(op)
            elif (handler := _HANDLERS.get(op.name)) is not None:
                handler(self, op)
            else:
                raise InternalError(f"'{op.name}' is not an op of the loops level", where=str(op.loc))

    def _nothing(self, op: Op) -> None:
        """What plain C has no form for, and what makes no difference without it."""

    def _run(self, op: Op) -> None:
        self._block(op.blocks[0])

    def _for(self, op: Op) -> None:
        self._settle()
        self._nest(*nest_of(op))

    def _nest(self, loops: Sequence[Op], block: Block) -> None:
        """Loops around a block, from the outermost one."""
        if not loops:
            self._block(block)
            return
        variable, extent = loops[0].attrs["var"], loops[0].attrs["extent"]
        if extent.is_const and extent.value <= 1:
            if extent.value == 1:
                self.known[variable] = sym(0)
                with self._scope(set(), self.indent):
                    self._nest(loops[1:], block)
            return
        name = self.names.of(variable.name, variable.name)
        self._line(f"for (ptrdiff_t {name} = 0; {name} < {self._size(extent, SUM)}; {name}++) {{")
        with self._scope({variable.name}, f"{self.indent}  ", is_loop=True):
            self._nest(loops[1:], block)
        self._line("}")

    def _if(self, op: Op) -> None:
        flags = [self._take(v, EQUAL) for v in op.operands]
        self._settle()
        holds = self.sizes.all_hold(self._conditions(op), flags) or "1"
        self._line(f"if ({holds}) {{")
        with self._scope(set(), f"{self.indent}  "):
            self._block(op.blocks[0])
        self._line("}")

    def _check(self, op: Op) -> None:
        holds = self._take(op.operands[0], UNARY)
        self._settle()
        number = self.checks.number(Check(op.attrs["kind"], op.attrs["message"]))
        self._line(f"if (!{holds}) fail(error, {number});")

    def _bind(self, op: Op) -> None:
        v = op.attrs["var"]
        self._settle()
        text = self._take(op.operands[0], OR)
        self._line(f"const int64_t {self._variable(v)} = {text if '?' not in text else f'({text})'};")
        if v.name not in self.used:
            self._line(f"(void){self._variable(v)};")
        self.sizes.wide.add(v.name)

    # Memory

    def _alloc(self, op: Op) -> None:
        type = op.result.buffer
        name = self.names.of(op.result, op.result.name or "sums")
        if not _is_local(type):
            start = self.scratch
            self.scratch = start + bytes_in_scratch(type)
            at = "scratch" if start == 0 else f"(scratch + {self._size(start, PRODUCT)})"
            self._line(f"{c_type(type.dtype)} *const {name} = ({c_type(type.dtype)} *){at};")
            return
        dims = [d.value for d in type.shape] if _has_axes(type) else [type.size.value]
        axes = "".join(f"[{max(1, d)}]" for d in dims)
        first = "" if type.space == REGISTERS.name else " = {0}" if axes else " = 0"
        self._line(f"{c_type(type.dtype)} {name}{axes}{first};")

    def _place(self, op: Op) -> str:
        """The element that a load or a store is of."""
        buffer = op.operands[-1]
        type, name = buffer.buffer, self.names.of(buffer, buffer.name or "v")
        if _is_local(type) and _has_axes(type):
            return name + "".join(f"[{self._size(i)}]" for i in op.attrs["idx"])
        return f"{name}[{self._size(address_of(op))}]"

    def _load(self, op: Op) -> None:
        if not op.result.users:
            return
        conditions = self._conditions(op)
        dtype = op.result.scalar.dtype
        other = literal(dtype, op.attrs.get("other", 0))
        if any(c.is_const for c in conditions):
            self._set(op, other, PRIMARY)
            return
        text = self._place(op)
        is_flag = dtype.kind == "bool"
        if is_flag:
            text = f"{text} != 0"
        elif dtype.is_int and dtype.bits < 8:  # the other bits of a byte may be any
            name = f"{dtype.name}_from_{byte_of(dtype).name}"
            self.needs[name] = None
            text = f"{name}({text})"
        if conditions:
            self._note_literal(other)
            text, level = f"{self.sizes.all_hold(conditions)} ? {text} : {other}", CHOICE
        else:
            level = EQUAL if is_flag else PRIMARY
        self._set(op, text, level, reads=True)

    def _store(self, op: Op) -> None:
        value, _ = op.operands
        conditions = self._conditions(op)
        if any(c.is_const for c in conditions):
            self._settle()
            return
        place = self._place(op)
        text = self._added(value, place) or f"{place} = {self._take(value, CHOICE)}"
        self._settle()
        if conditions:
            self._line(f"if ({self.sizes.all_hold(conditions)}) {text};")
        else:
            self._line(f"{text};")

    def _added(self, value: Value, place: str) -> str:
        """The statement that adds to an element, where that is what a store does; "" where it is not."""
        found = self.values.get(value)
        if found is None or found.level not in (SUM, PRODUCT) or len(value.users) != 1:
            return ""
        for sign in ("+", "*"):
            before = f"{place} {sign} "
            if found.text.startswith(before) and found.level == (SUM if sign == "+" else PRODUCT):
                rest = found.text.removeprefix(before)
                if not _has_operator(rest, "+-" if sign == "+" else "+-*/"):
                    del self.values[value]
                    self.pending.pop(value, None)
                    return f"{place} {sign}= {rest}"
        return ""

    def _lanes_reduce(self, op: Op) -> None:
        buffer = op.operands[0]
        name = f"{op.attrs['combine']}_of_{product(buffer.buffer.shape).value}_{buffer.buffer.dtype.name}"
        self.needs[name] = None
        self._set(op, f"{name}({self.names.of(buffer, buffer.name)})", PRIMARY, reads=True)

    # Values

    def _set(self, op: Op, text: str, level: int, *, reads: bool = False) -> None:
        """Give the result of an op its spelling: where it is used, or under a name."""
        value = op.result
        if not value.users:
            return
        is_inline = len(value.users) == 1 and value.users[0].parent is op.parent and len(text) < _LONG
        if level == PRIMARY and not reads and "(" not in text:
            is_inline = True
        self.values[value] = _Expression(text, level, reads)
        if not is_inline:
            self._name(value)
        elif reads:
            self.pending[value] = None

    def _name(self, value: Value) -> None:
        """Compute a value here, and use its name from now on."""
        found = self.values[value]
        dtype = value.scalar.dtype
        name = self.names.fresh(value.name or (value.op.name if value.op is not None else "v"))
        type = "int" if dtype.kind == "bool" else c_type(dtype)
        self._line(f"const {type} {name} = {found.text};")
        self.values[value] = _Expression(name, PRIMARY)
        self.pending.pop(value, None)

    def _settle(self) -> None:
        """Read what was not read yet, before memory changes."""
        for value in list(self.pending):
            self._name(value)

    def _take(self, value: Value, least: int) -> str:
        """The spelling of an operand."""
        found = self.values[value]
        if found.reads:
            self.pending.pop(value, None)
        return f"({found.text})" if found.level < least else found.text

    def _reads(self, op: Op) -> bool:
        return any(self.values[v].reads for v in op.operands)

    def _note_literal(self, text: str) -> str:
        for name in ("f32_of_bits", "f64_of_bits"):
            if name in text:
                self.needs[name] = None
        return text

    def _const(self, op: Op) -> None:
        text = self._note_literal(literal(op.result.scalar.dtype, op.attrs["value"]))
        self.values[op.result] = _Expression(text, UNARY if text.startswith("-") else PRIMARY)

    def _index(self, op: Op) -> None:
        dtype, e = op.result.scalar.dtype, op.attrs["expr"]
        e = substitute(e, self.known) if self.known else e
        if e.is_const:
            self._set(op, literal(dtype, e.value), UNARY if e.value < 0 else PRIMARY)
        elif dtype.kind == "bool":
            if is_condition(e):
                self._set(op, self._size(e, EQUAL), EQUAL)
            else:
                self._set(op, f"{self._size(e, SUM)} != 0", EQUAL)
        elif dtype.bits < 8:
            self._call(op, f"{dtype.name}_from_i64", [f"(int64_t){self._size(e, PRIMARY)}"], reads=False)
        else:
            self._set(op, f"({c_type(dtype)}){self._size(e, PRIMARY)}", UNARY)

    def _call(self, op: Op, name: str, arguments: list[str], *, reads: bool) -> None:
        self.needs[name] = None
        self._set(op, f"{name}({', '.join(arguments)})", PRIMARY, reads=reads)

    def _cast(self, op: Op) -> None:
        source, to = op.operands[0].scalar.dtype, op.result.scalar.dtype
        reads = self._reads(op)
        if source is to:
            self._set(op, self._take(op.operands[0], CHOICE), CHOICE, reads=reads)
        elif to.kind == "bool" and (source.is_int or source in _FLOATS):
            self._set(op, f"{self._take(op.operands[0], ORDER)} != 0", EQUAL, reads=reads)
        elif _is_cast(source, to):
            self._set(op, f"({c_type(to)}){self._take(op.operands[0], UNARY)}", UNARY, reads=reads)
        else:
            self._call(op, f"{to.name}_from_{source.name}", [self._take(op.operands[0], CHOICE)], reads=reads)

    def _bitcast(self, op: Op) -> None:
        source, to = op.operands[0].scalar.dtype, op.result.scalar.dtype
        reads, taken = self._reads(op), self._take(op.operands[0], CHOICE)
        self._call(op, f"{to.name}_bits_from_{source.name}", [taken], reads=reads)

    def _level(self, op: Op) -> None:
        dtype = op.result.scalar.dtype
        table = self.names.fresh("levels")
        items = ", ".join(self._note_literal(literal(dtype, v)) for v in op.attrs["levels"])
        self.scopes[0].head.append(f"  static const {c_type(dtype)} {table}[16] = {{{items}}};")
        reads = self._reads(op)
        self._set(op, f"{table}[{self._take(op.operands[0], SUM)} & 15]", PRIMARY, reads=reads)

    def _scalar(self, op: Op) -> None:
        if not op.result.users:
            return
        dtype = op.operands[-1].scalar.dtype
        if scalar_operation(op).divides and dtype.is_int and not _is_nonzero(op.operands[1]):
            self._require_divisor(op.operands[1])
            self._divided(op, dtype)
            return
        reads = self._reads(op)
        operator = spelled(op, dtype, self._take)
        if operator is not None:
            self._set(op, *operator, reads=reads)
        else:
            arguments = [self._take(v, CHOICE) for v in op.operands]
            self._call(op, f"{op.name}_{dtype.name}", arguments, reads=reads)

    def _require_divisor(self, divisor: Value) -> None:
        if self.values[divisor].level != PRIMARY or self.values[divisor].reads:
            self._name(divisor)
        number = self.checks.number(Check("ExecutionError", DIVISION_BY_ZERO))
        self._line(f"if ({self._take(divisor, ORDER)} == 0) fail(error, {number});")

    def _divided(self, op: Op, dtype: DType) -> None:
        reads = self._reads(op)
        taken, divisor = (self._take(v, ORDER) for v in op.operands)
        name = f"{op.name}_{dtype.name}"
        self.needs[name] = None
        self._set(op, f"{divisor} == 0 ? 0 : {name}({taken}, {divisor})", CHOICE, reads=reads)


_LONG = 160
"""Characters of an expression from which on it has a name."""


def _is_local(type: BufferType) -> bool:
    """Whether a buffer is an array of C: registers, and what is one element."""
    if type.space == GLOBAL.name or not type.size.is_const:
        return False
    return type.space == REGISTERS.name or type.size.value == 1


def _has_axes(type: BufferType) -> bool:
    return type.is_dense and type.offset == 0


def _has_operator(text: str, signs: str) -> bool:
    """Whether one of these operators stands in no parentheses."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if not depth and c in signs and text[k - 1 : k] == " " and text[k + 1 : k + 2] == " ":
            return True
    return False


def _is_cast(source: DType, to: DType) -> bool:
    """Whether a conversion is a cast of C: one that is defined for all values, and rounds as it should."""
    if to in _FLOATS:
        return source in _FLOATS or source.is_int or source.kind == "bool"
    return to.is_int and to.bits >= 8 and (source.is_int or source.kind == "bool")


def _is_nonzero(value: Value) -> bool:
    return value.op is not None and value.op.name == "const" and value.op.attrs["value"] != 0


def _variables(func: Func) -> set[str]:
    """Names of the variables that a kernel reads."""
    found: set[str] = set()
    for op in func.body.walk():
        for e in (*op.attrs.get("guard", ()), op.attrs.get("extent"), op.attrs.get("expr")):
            if isinstance(e, Sym):
                found |= {v.name for v in e.vars}
        if op.name in ("load", "store"):
            found |= {v.name for v in address_of(op).vars}
        if op.name == "alloc":
            found |= {v.name for d in op.result.buffer.shape for v in d.vars}
    return found


def _wrapped(head: str, parameters: list[str]) -> str:
    """A head of a function, in lines."""
    line, lines = head, []
    for k, parameter in enumerate(parameters):
        piece = parameter + (", " if k < len(parameters) - 1 else ") {")
        if len(line) + len(piece) > _WIDTH:
            lines.append(line.rstrip())
            line = "    "
        line += piece
    if not parameters:
        line += "void) {"
    return "\n".join([*lines, line])


_WIDTH = 118


def _flat(lines: Lines) -> Iterator[str]:
    for line in lines:
        if isinstance(line, str):
            yield line
        else:
            yield from _flat(line)


_HANDLERS = {
    "return": _Kernel._nothing,
    "prefetch": _Kernel._nothing,
    "wait": _Kernel._nothing,
    "barrier": _Kernel._nothing,
    "run": _Kernel._run,
    "for": _Kernel._for,
    "if": _Kernel._if,
    "alloc": _Kernel._alloc,
    "load": _Kernel._load,
    "store": _Kernel._store,
    "check": _Kernel._check,
    "bind": _Kernel._bind,
    "lanes_reduce": _Kernel._lanes_reduce,
    "const": _Kernel._const,
    "index": _Kernel._index,
    "cast": _Kernel._cast,
    "bitcast": _Kernel._bitcast,
    "level": _Kernel._level,
}
