"""A cursor that also knows the values in scope and the block that ops are added to."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.diag import Loc, TilewrightError
from tilewright.ir.sym import Sym
from tilewright.ir.text.attributes import Record
from tilewright.ir.text.notation import UNNAMED
from tilewright.ir.text.tokens import Cursor
from tilewright.ir.types import Type


class ScopedCursor(Cursor):
    """Names of values, the current block, and attributes."""

    def __init__(
        self, text: str, file: str, records: Mapping[str, type[Any]], infos: Mapping[str, type[Any]]
    ) -> None:
        super().__init__(text, file)
        self.records, self.infos = records, infos
        self.values: dict[str, Value] = {}
        self.new_values: list[str] = []
        self.hidden: list[tuple[str, Sym | None]] = []
        self.block = Block()
        self.loc = Loc(file=file, line=1)
        self._counted = 0

    # Values

    def define(self, name: str, value: Value, at: int) -> None:
        """Bring a value into scope; `at` is the token of its name."""
        if name in self.values:
            self.fail(f"'{name}' is defined already", at)
        if not (name[0] == "v" and UNNAMED.fullmatch(name)):
            value.name = name
        self.values[name] = value
        self.new_values.append(name)

    def value(self) -> Value:
        """A value by its name."""
        if self.kind != "name":
            self.fail("expected the name of a value")
        found = self.values.get(self.token)
        if found is None:
            self.fail(f"there is no value '{self.token}' here", hint=self._similar(self.token))
        self.advance()
        return found

    def _similar(self, name: str) -> str | None:
        near = difflib.get_close_matches(name, self.values, 2)
        return f"did you mean {' or '.join(near)}?" if near else None

    def emit(
        self, name: str, operands: list[Value], types: list[Type], attrs: dict[str, Any] | None = None
    ) -> Op:
        op = Op(name, operands, types, attrs, (), self.loc)
        op.parent = self.block
        self.block.ops.append(op)
        return op

    def start_statement(self) -> None:
        """Note the line for the ops that follow."""
        start = self.starts[self.at]
        passed = self.text.count("\n", self._counted, start)
        self._counted = start
        if passed:
            self.loc = Loc(file=self.file, line=self.loc.line + passed)

    # Scopes

    def enter(self) -> tuple[int, int, Block]:
        """Begin a block; the mark is for `leave`."""
        return len(self.new_values), len(self.hidden), self.block

    def leave(self, mark: tuple[int, int, Block]) -> None:
        """End a block: forget its values and variables."""
        values, hidden, self.block = mark
        for name in self.new_values[values:]:
            del self.values[name]
        del self.new_values[values:]
        for name, old in reversed(self.hidden[hidden:]):
            self.put(name, old)
        del self.hidden[hidden:]

    def bring(self, variable: Sym) -> None:
        """Declare a variable until the end of the block."""
        self.hidden.append((variable.name, self.declare(variable)))

    # Attributes

    def attrs(self) -> dict[str, Any]:
        """`{key=value, ...}`."""
        self.expect("{")
        found: dict[str, Any] = {}

        def item() -> None:
            at = self.at
            key = self.name_or_string("the name of an attribute")
            if key in found:
                self.fail(f"attribute '{key}' is given twice", at)
            self.expect("=")
            found[key] = self.attr()

        self.until("}", item)
        return found

    def attr(self) -> Any:
        """The value of an attribute."""
        kind, token = self.kind, self.token
        if kind == "string":
            return self.string("text")
        if token in ("true", "false", "none"):
            self.advance()
            return {"true": True, "false": False, "none": None}[token]
        if self.at_number():
            return self.number()
        if token == "type" and self.peek() == "(":
            return self._type_attr()
        if kind == "name":
            return self._record() if self.peek() == "{" else self.dtype()
        if self.accept("["):
            return self.syms("]")
        if self.accept("`"):
            expression = self.sym()
            self.expect("`")
            return expression
        if self.accept("("):
            return tuple(self.until(")", self.attr))
        if self.accept("{"):
            return dict(self.until("}", self._item))
        self.fail('expected an attribute: a number, "string", dtype, [sym, ...], `sym`, none or (tuple)')

    def _type_attr(self) -> Type:
        self.advance()
        self.advance()
        type = self.type()
        self.expect(")")
        return type

    def _record(self) -> Any:
        """`Name{field=value}`: an object of the class of that name, or a Record."""
        at = self.at
        name = self.advance()
        found = self.attrs()
        cls = self.records.get(name)
        if cls is None:
            return Record(name, tuple(found.items()))
        return self.made(cls, found, at)

    def made(self, cls: type[Any], fields: dict[str, Any], at: int) -> Any:
        """An object of a dataclass with these fields."""
        try:
            return cls(**fields)
        except (TypeError, ValueError, TilewrightError) as e:
            self.fail(f"this is no {cls.__name__}: {e}", at)

    def _item(self) -> tuple[Any, Any]:
        """`key: value`."""
        key = self.attr()
        self.expect(":")
        return key, self.attr()
