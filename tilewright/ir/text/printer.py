"""Printing programs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Module, Op, Value, free_name
from tilewright.ir.scalar import scalar_operation
from tilewright.ir.sym import Sym, var
from tilewright.ir.text.attributes import (
    print_attrs,
    print_elements,
    print_loc,
    print_name,
    print_number,
    print_string,
    print_syms,
    print_variable,
)
from tilewright.ir.text.notation import (
    COMPARISON,
    CONVERSIONS,
    INFIX,
    LONGEST_INLINE,
    MOST_PRINTED_ELEMENTS,
    PRIMARY,
    QUOTED,
    RESERVED,
    STATEMENTS,
    UNNAMED,
    is_expression,
    is_literal,
    is_statement,
    is_store,
    is_variable,
    takes_expressions,
)
from tilewright.ir.types import BufferType, ScalarType, TensorType, Type

_WORDS = {"graph": "func", "program": "program", "loops": "kernel"}
"""What functions of the levels begin with."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")


def print_module(module: Module, *, locs: bool = False) -> str:
    """The text of a module; with `locs`, ops carry the source node they came from.

    Elements of big constants are not printed; they are read back as zeros.
    """
    parts = ["".join(map(_print_constant, module.constants, module.constants.values()))]
    parts += [print_func(func, locs=locs) for func in module.funcs.values()]
    return "\n".join(p for p in parts if p)


def print_func(func: Func, *, locs: bool = False) -> str:
    """The text of a function, ending in a newline."""
    printer = _Printer(locs)
    printer.func(func)
    return "\n".join(printer.lines) + "\n"


def print_block(block: Block) -> str:
    """The text of the ops of a block, one statement a line."""
    printer = _Printer(False)
    for arg in block.args:
        printer.name(arg)
    printer.block(block, "")
    return "\n".join(printer.lines) + "\n"


def texts_of_ops(func: Func) -> dict[Op, str]:
    """What `print_func` shows of each op of a graph or program, those in blocks included: its lines, without their
    common indent."""
    printer = _Printer(False)
    printer.func(func)
    return {op: _lines_at(printer.lines, number - 1) for op, number in printer.line_numbers.items()}


def _lines_at(lines: Sequence[str], begin: int) -> str:
    """The line at a place, and those of its blocks."""
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    end = begin + 1
    while lines[end].startswith((" " * (indent + 1), f"{' ' * indent}}}")) and indent:
        end += 1
    return "\n".join(line[indent:] for line in lines[begin:end])


def line_of(func: Func, op: Op) -> tuple[int, str]:
    """The line on which `print_func` shows `op`: its number, from 1, and its text.

    (0, "") when it is not shown.
    """
    printer = _Printer(False)
    printer.func(func)
    seen: set[Op] = set()
    while op not in printer.line_numbers and op not in seen and op.results and op.results[0].users:
        seen.add(op)
        op = op.results[0].users[0]  # an expression stands on the line of its user
    number = printer.line_numbers.get(op, 0)
    return number, printer.lines[number - 1].strip() if number else ""


def _print_constant(name: str, array: np.ndarray) -> str:
    dims = ", ".join(map(str, array.shape))
    elements = f" = {print_elements(array)}" if array.size <= MOST_PRINTED_ELEMENTS else ""
    return f"constant @{print_name(name)}: {dt.from_numpy(array.dtype)}[{dims}]{elements}\n"


class _Printer:
    """Prints one function: the lines so far, and the names given to values."""

    def __init__(self, locs: bool) -> None:
        self.locs = locs
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set(RESERVED)
        self.unnamed = 0
        self.line_numbers: dict[Op, int] = {}
        self.types: dict[Type, str] = {}
        self.type_ids: dict[int, str] = {}
        self.indices: dict[tuple[Sym, ...], str] = {}
        # Expressions whose user is still to come: text, and how tightly it binds. They compute and read, but
        # change nothing, so that their order among themselves is free; whatever changes something flushes.
        self.pending: dict[Op, tuple[str, int]] = {}

    def name(self, value: Value) -> str:
        found = self.names.get(value)
        if found is not None:
            return found
        hint = value.name
        if not hint.isidentifier() or not hint.isascii():
            hint = _NOT_IN_NAMES.sub("_", hint).strip("_")
            hint = f"n{hint}" if hint[:1].isdigit() else hint
        is_unnamed = not hint or UNNAMED.fullmatch(hint)
        name = self.next_unnamed() if is_unnamed else free_name(hint, self.taken)
        self.taken.add(name)
        self.names[value] = name
        return name

    def next_unnamed(self) -> str:
        name = f"v{self.unnamed}"
        self.unnamed += 1
        return name

    def type(self, type: Type) -> str:
        # By identity first: the hash of a type costs more than printing the rest of an op.
        found = self.type_ids.get(id(type))
        if found is None:
            found = self.types.get(type)
            if found is None:
                found = self.types[type] = str(type)
            self.type_ids[id(type)] = found
        return found

    def syms(self, syms: tuple[Sym, ...]) -> str:
        found = self.indices.get(syms)
        if found is None:
            found = self.indices[syms] = print_syms(syms)
        return found

    # Functions and blocks

    def func(self, func: Func) -> None:
        args = ", ".join(f"{self.name(a)}: {self.type(a.type)}" for a in func.args)
        word = _WORDS.get(func.level) or f"func {print_string(func.level)}"
        attrs = {**func.attrs, **_fields(func.info)}
        is_declared = func.level == "loops" or bool(func.dims)
        declared = f" dims({', '.join(map(print_variable, func.dims))})" if is_declared else ""
        others = [v for v in _free_variables(func, attrs) if v not in func.dims and v != var(v.name)]
        where = f" where({', '.join(map(print_variable, others))})" if others else ""
        shown = f" with {{{print_attrs(attrs)}}}" if attrs else ""
        head = f"{word} @{print_name(func.name)}({args}){self.result_types(func)}{declared}{where}{shown}"
        self.lines.append(head + " {")
        self.block(func.body, "  ")
        self.lines.append("}")

    def result_types(self, func: Func) -> str:
        if func.level == "loops" or not func.body.ops or func.body.ops[-1].name != "return":
            return ""
        return f" -> ({', '.join(self.type(v.type) for v in func.returns)})"

    def block(self, block: Block, indent: str) -> None:
        outer, self.pending = self.pending, {}
        for op in block.ops:
            if is_literal(op):
                if not op.result.users or not all(map(takes_expressions, op.result.users)):
                    self.flush(indent)
                    self.definition(op, self.typed_literal(op), indent)
            elif is_expression(op):
                self.expression(op, block, indent)
            else:
                self.statement(op, indent)
        self.flush(indent)
        self.pending = outer

    def line(self, op: Op, text: str, indent: str) -> None:
        self.lines.append(f"{indent}{text}{print_loc(op.loc) if self.locs else ''}")
        self.line_numbers[op] = len(self.lines)

    def flush(self, indent: str) -> None:
        """Give all pending expressions lines of their own."""
        for op, (text, _) in self.pending.items():
            self.definition(op, text, indent)
        self.pending.clear()

    def definition(self, op: Op, text: str, indent: str) -> None:
        self.line(op, f"{self.name(op.result)}: {self.type(op.result.type)} = {text}", indent)

    # Expressions

    def expression(self, op: Op, block: Block, indent: str) -> None:
        text, level = self.expression_text(op)
        users = op.results[0].users
        if len(users) == 1:
            user = users[0]
            # What `+=` adds to is not written twice.
            short = len(text) <= LONGEST_INLINE or (user.name == "store" and _adds_to_target(op, user))
            if short and user.parent is block and takes_expressions(user):
                self.pending[op] = text, level
                return
        self.flush(indent)
        self.definition(op, text, indent)

    def take(self, values: Sequence[Value], types: Sequence[dt.DType | None]) -> list[tuple[str, int]]:
        """Texts of scalar operands, taken off `pending` where they are there.

        A literal is written without its type where that is the one expected (`types`).
        """
        texts: list[tuple[str, int]] = []
        for value, expected in zip(values, types, strict=True):
            op = value.owner
            waiting = self.pending.pop(op, None) if isinstance(op, Op) else None
            if waiting is not None:
                texts.append(waiting)
            elif isinstance(op, Op) and is_literal(op):
                plain = print_number(op.attrs["value"])
                texts.append((plain if value.scalar.dtype is expected else self.typed_literal(op), PRIMARY))
            else:
                texts.append((self.name(value), PRIMARY))
        return texts

    def typed_literal(self, op: Op) -> str:
        return f"{self.type(op.result.type)}({print_number(op.attrs['value'])})"

    def expression_text(self, op: Op) -> tuple[str, int]:
        """The text of an expression, and how tightly it binds."""
        name, operands = op.name, op.operands
        if name == "load":
            return self.access(operands[0], op), PRIMARY
        if name == "index":
            dtype = self.type(op.results[0].type)
            return f"index{'' if dtype == 'i64' else f'.{dtype}'}({op.attrs['expr']})", PRIMARY
        if name == "lanes_reduce":
            return f"lanes_reduce.{op.attrs['combine']}({self.name(operands[0])})", PRIMARY
        if (prefix := CONVERSIONS.get(name)) is not None:
            ((text, _),) = self.take(operands, [None])
            return f"{prefix}{self.type(op.results[0].type)}({text})", PRIMARY
        taken = self.take(operands, _literal_types(op))
        infix = INFIX.get(name)
        if infix is None:
            return f"{name}({', '.join([text for text, _ in taken])})", PRIMARY
        sign, level = infix
        (left, left_level), (right, right_level) = taken
        # Comparisons do not associate.
        if left_level < level or left_level == level == COMPARISON:
            left = f"({left})"
        if right_level <= level:
            right = f"({right})"
        return f"{left} {sign} {right}", level

    def access(self, buffer: Value, op: Op) -> str:
        """`a[i, j]`, or with a guard `a[i, j if i < n else 0.0]`."""
        attrs = op.attrs
        text = self.syms(attrs["idx"])
        if len(attrs) > 1:
            if attrs.get("guard"):
                text += f" if {self.syms(attrs['guard'])}"
            if "other" in attrs:
                text += f" else {print_number(attrs['other'])}"
        return f"{self.name(buffer)}[{text.strip()}]"

    # Statements

    def statement(self, op: Op, indent: str) -> None:
        if op.name == "store" and is_store(op):
            self.store(op, indent)
        elif op.name in STATEMENTS and is_statement(op):
            self.special(op, indent)
        else:
            self.flush(indent)
            self.generic(op, indent)

    def store(self, op: Op, indent: str) -> None:
        value, buffer = op.operands
        assert isinstance(buffer.type, BufferType | TensorType)
        tree = value.owner if isinstance(value.owner, Op) and value.owner in self.pending else None
        ((text, _),) = self.take([value], [buffer.type.dtype])
        target = self.access(buffer, op)
        self.flush(indent)
        kept = {key: op.attrs[key] for key in ("nontemporal",) if key in op.attrs}
        shown = f" with {{{print_attrs(kept)}}}" if kept else ""
        if tree is not None and _adds_to_target(tree, op) and text.startswith(f"{target} + "):
            self.line(op, f"{target} += {text[len(target) + 3 :]}{shown}", indent)
        else:
            self.line(op, f"{target} = {text}{shown}", indent)

    def special(self, op: Op, indent: str) -> None:
        """A statement with a notation of its own."""
        attrs, name = op.attrs, op.name
        if name in ("return", "yield"):
            self.flush(indent)
            self.line(op, f"{name} {', '.join(map(self.name, op.operands))}".rstrip(), indent)
        elif name == "alloc":
            self.flush(indent)
            self.line(op, f"alloc {self.name(op.result)}: {self.type(op.result.type)}", indent)
        elif name == "prefetch":
            self.flush(indent)
            more = {k: v for k, v in attrs.items() if k != "idx"}
            shown = f" with {{{print_attrs(more)}}}" if more else ""
            self.line(op, f"prefetch {self.access(op.operands[0], op)}{shown}", indent)
        elif name == "run":
            self.flush(indent)
            queue = f" on {print_name(attrs['queue'])}" if op.results else ""
            token = f" as {self.name(op.result)}" if op.results else ""
            events = [f"{n}{f' for {print_name(to)}' if to else ''}" for to, n in attrs.get("events", ())]
            sets = f" sets {', '.join(events)}" if events else ""
            after = f" after {', '.join(map(self.name, op.operands))}" if op.operands else ""
            self.with_body(op, f"run {print_name(attrs['intrinsic'])}{queue}{token}{sets}{after}", indent)
        elif name == "wait":
            self.flush(indent)
            self.line(op, f"wait {', '.join(map(self.name, op.operands))}", indent)
        elif name == "barrier":
            self.flush(indent)
            self.line(op, f"barrier {print_name(attrs['level'])}", indent)
        elif name == "for":
            self.flush(indent)
            more = {k: v for k, v in attrs.items() if k not in ("var", "extent", "kind")}
            kind = "" if attrs["kind"] == "serial" else f" {attrs['kind']}"
            shown = f" with {{{print_attrs(more)}}}" if more else ""
            head = f"for {print_variable(attrs['var'])} in 0..{attrs['extent']}{kind}{shown}"
            self.with_body(op, head, indent)
        else:
            texts = [text for text, _ in self.take(op.operands, [None] * len(op.operands))]
            self.flush(indent)
            if name == "if":
                guard = f"if {self.syms(attrs['guard'])}" if attrs["guard"] else ""
                values = f"when {', '.join(texts)}" if texts else ""
                more = {k: v for k, v in attrs.items() if k != "guard"}
                shown = f" with {{{print_attrs(more)}}}" if more else ""
                self.with_body(op, f"{guard} {values}".strip() + shown, indent)
            elif name == "bind":
                self.line(op, f"bind {print_variable(attrs['var'])} = {texts[0]}", indent)
            else:
                error = f"{print_name(attrs['kind'])}({print_string(attrs['message'])})"
                self.line(op, f"check {texts[0]} else {error}", indent)

    def with_body(self, op: Op, head: str, indent: str) -> None:
        self.line(op, head, indent)
        self.lines[-1] += " {"
        self.block(op.blocks[0], indent + "  ")
        self.lines.append(indent + "}")

    def generic(self, op: Op, indent: str) -> None:
        operands = ", ".join([self.name(v) for v in op.operands])
        name = op.name
        if name == "constant" and not operands and _is_plain_constant(op):
            text = f"constant @{print_name(op.attrs['name'])}"
        else:
            name = print_string(name) if name in QUOTED else print_name(name)
            text = f"{name}({operands}){f' {{{print_attrs(op.attrs)}}}' if op.attrs else ''}"
        if op.results:
            results = ", ".join([self.name(v) for v in op.results])
            text = f"{results} = {text} : {', '.join([self.type(v.type) for v in op.results])}"
        self.line(op, text, indent)
        for block in op.blocks:
            args = ", ".join([f"{self.name(a)}: {self.type(a.type)}" for a in block.args])
            self.lines[-1] += f" ({args}) {{"
            self.block(block, indent + "  ")
            self.lines.append(indent + "}")


def _is_plain_constant(op: Op) -> bool:
    name = op.attrs.get("name")
    return len(op.attrs) == 1 and isinstance(name, str) and len(op.results) == 1 and not op.blocks


def _literal_types(op: Op) -> list[dt.DType | None]:
    """For each operand of a scalar op the dtype that its other operands show; None where they show none.

    The operands of an op have one dtype, apart from the condition of a select.
    """
    first = scalar_operation(op).conditions
    dtypes = [
        v.type.dtype for v in op.operands[first:] if isinstance(v.type, ScalarType) and not _is_number(v)
    ]
    shown = dtypes[0] if dtypes else None
    return [None for _ in range(first)] + [shown for _ in op.operands[first:]]


def _is_number(value: Value) -> bool:
    return isinstance(value.owner, Op) and is_literal(value.owner)


def _adds_to_target(tree: Op, store: Op) -> bool:
    """Whether `tree` is `target + something` for the element that `store` writes."""
    first = tree.operands[0].owner if tree.name == "add" else None
    return (
        isinstance(first, Op)
        and first.name == "load"
        and first.operands[0] is store.operands[1]
        and first.attrs == store.attrs
        and len(first.attrs) == 1
    )


def _fields(info: object) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    found: dict[str, Any] = {}
    for f in fields(info) if is_dataclass(info) else ():
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if getattr(info, f.name) != default:
            found[f.name] = getattr(info, f.name)
    return found


def _free_variables(func: Func, attrs: Mapping[str, Any]) -> list[Sym]:
    """Variables that no loop or bind of the function declares, in the order of their names."""
    found: dict[Sym, None] = {}
    bound: set[Sym] = set()
    seen: set[int] = set()
    _collect((*func.dims, *attrs.values()), found)
    _collect_types(func.args, found, seen)
    for op in func.body.walk():
        if op.attrs:
            for attr in op.attrs.values():
                _collect(attr, found)
            if op.name in ("for", "bind") and is_variable(op.attrs.get("var")):
                bound.add(op.attrs["var"])
        _collect_types(op.results, found, seen)
        for block in op.blocks:
            _collect_types(block.args, found, seen)
    return sorted((v for v in found if v not in bound), key=lambda v: v.sort_key)


def _collect(attr: object, found: dict[Sym, None]) -> None:
    if isinstance(attr, Sym):
        if not attr.is_const:
            found.update(dict.fromkeys(attr.vars))
    elif isinstance(attr, tuple):
        for item in attr:
            _collect(item, found)
    elif isinstance(attr, dict):
        _collect((*attr, *attr.values()), found)


def _collect_types(values: Iterable[Value], found: dict[Sym, None], seen: set[int]) -> None:
    """Variables in the types of values; `seen` holds the identities of types that were looked at."""
    for value in values:
        type = value.type
        if id(type) not in seen:
            seen.add(id(type))
            if isinstance(type, TensorType | BufferType):
                _collect(type.shape, found)
            if isinstance(type, BufferType):
                _collect((*type.strides, type.offset), found)
