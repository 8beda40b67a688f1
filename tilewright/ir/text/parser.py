"""Reading modules, functions and statements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Module, Op
from tilewright.ir.diag import Loc
from tilewright.ir.sym import Sym
from tilewright.ir.text.expressions import Expressions
from tilewright.ir.text.notation import KINDS
from tilewright.ir.types import ScalarType, TensorType, TokenType, Type

_LEVELS = {"func": "graph", "program": "program", "kernel": "loops"}


Classes = Mapping[str, type[Any]]


def parse_module(
    text: str, *, file: str = "text", records: Classes | None = None, infos: Classes | None = None
) -> Module:
    """The module that `text` spells; `file` names it in errors.

    `records` are the dataclasses that attributes may hold, by name; others are read as `Record`. `infos` are the
    dataclasses that say what is known of a function, by level; functions of other levels keep it in `attrs`.
    Constants without elements are zeros (which take no memory). TextError shows file, line and place of
    what is wrong.
    """
    return _Parser(text, file, records or {}, infos or {}).module()


def parse_func(
    text: str, *, file: str = "text", records: Classes | None = None, infos: Classes | None = None
) -> Func:
    """The only function that `text` spells."""
    parser = _Parser(text, file, records or {}, infos or {})
    module = parser.module()
    if len(module.funcs) != 1:
        parser.fail(f"expected one function, and there are {len(module.funcs)}")
    return next(iter(module.funcs.values()))


class _Parser(Expressions):
    """One method for each construct; the keyword of a statement selects its method."""

    def module(self) -> Module:
        module = Module()
        while self.kind != "end":
            at = self.at
            if self.token == "constant":
                name, array = self.constant()
                if name in module.constants:
                    self.fail(f"constant @{name} is defined already", at)
                module.constants[name] = array
            elif self.token in _LEVELS:
                func = self.func()
                if func.name in module.funcs:
                    self.fail(f"function @{func.name} is defined already", at)
                module.add(func)
            else:
                self.fail("expected 'constant', 'func', 'program' or 'kernel'")
        return module

    # Constants

    def constant(self) -> tuple[str, np.ndarray]:
        """`constant @name: f32[2] = [1.0, 2.0]`, the elements in row-major order or left out."""
        self.advance()
        name = self.reference("the name of the constant")
        self.expect(":")
        at = self.at
        type = self.type()
        if not isinstance(type, TensorType) or not type.is_static:
            self.fail("the type of a constant is a dtype with constant dims, as f32[2, 3]", at)
        shape = [d.value for d in type.shape]
        if any(d < 0 for d in shape):
            self.fail("a dim is negative", at)
        if not self.accept("="):
            zero = np.array("" if type.dtype is dt.string else 0, type.dtype.storage)
            return name, np.broadcast_to(zero, shape)
        at = self.at
        elements = self.elements()
        if len(elements) != math.prod(shape):
            self.fail(f"{len(elements)} elements for {type}", at)
        return name, self.array(elements, type.dtype, at).reshape(shape)

    def elements(self) -> list[Any]:
        self.expect("[")
        return self.until("]", self.one_element)

    def one_element(self) -> Any:
        if self.kind == "string":
            return self.string("text")
        return self.advance() == "true" if self.token in ("true", "false") else self.number()

    def array(self, elements: list[Any], dtype: dt.DType, at: int) -> np.ndarray:
        kinds = {"bool": bool, "string": str, "float": int | float}.get(dtype.kind, int)
        for element in elements:
            if not isinstance(element, kinds) or (dtype.kind != "bool" and isinstance(element, bool)):
                self.fail(f"{element!r} is not an element of {dtype}", at)
        if dtype.is_int:
            signed = dtype.kind == "int"
            lo, hi = (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1)) if signed else (0, 2**dtype.bits)
            for element in elements:
                if not lo <= element < hi:
                    self.fail(f"{element} does not fit {dtype}", at)
            wide = np.int64 if signed else np.uint64
            return np.array(elements, wide).astype(dtype.storage)
        if dtype.is_float:
            with np.errstate(over="ignore"):
                return np.array(elements, np.float64).astype(dtype.storage)
        return np.array(elements, dtype.storage)

    # Functions

    def func(self) -> Func:
        level = _LEVELS[self.advance()]
        if self.kind == "string":
            level = self.string("the level")
        name = self.reference("the name of the function")
        self.variables.clear()
        dims = self.declarations()
        mark = self.enter()
        names, types, places = self.parameters()
        body = Block(types)
        for value, arg_name, at in zip(body.args, names, places, strict=True):
            self.define(arg_name, value, at)
        returned = self.result_types() if self.accept("->") else None
        for word in ("dims", "where"):
            if self.token == word:
                self.advance()
                self.variable_list()
        at = self.at
        attrs = self.attrs() if self.accept("with") else {}
        cls = self.infos.get(level)
        info = None if cls is None else self.made(cls, attrs, at)
        at = self.at
        self.statements(body)
        self.leave(mark)
        func = Func(name, body, level, attrs if cls is None else {}, dims, info)
        if returned is not None and returned != [v.type for v in func.returns]:
            self.fail(f"@{name} returns ({', '.join(str(v.type) for v in func.returns)})", at)
        return func

    def declarations(self) -> tuple[Any, ...]:
        """Read ahead what `dims(...)` and `where(...)` of the head declare, for the types before them."""
        start, depth = self.at, 0
        dims: tuple[Any, ...] = ()
        while self.token not in ("{", "}", ""):
            if self.token in ("(", "["):
                depth += 1
            elif self.token in (")", "]"):
                depth -= 1
            elif depth == 0 and self.token in ("dims", "where"):
                word = self.advance()
                found = self.variable_list()
                for variable in found:
                    self.put(variable.name, variable)
                dims = found if word == "dims" else dims
                continue
            self.advance()
        self.seek(start)
        return dims

    def parameters(self) -> tuple[list[str], list[Type], list[int]]:
        """`(x: f32[n], y: f32[4])`: names, types, and the tokens of the names."""
        self.expect("(")
        found = self.until(")", self.parameter)
        return [name for name, _, _ in found], [type for _, type, _ in found], [at for _, _, at in found]

    def parameter(self) -> tuple[str, Type, int]:
        at, name = self.at, self.name("the name of an argument")
        self.expect(":")
        return name, self.type(), at

    def result_types(self) -> list[Type]:
        self.expect("(")
        if self.accept(")"):
            return []
        found = self.types()
        self.expect(")")
        return found

    # Statements

    def statements(self, block: Block) -> None:
        """`{`, statements into `block`, `}`."""
        at = self.at
        self.expect("{")
        self.block = block
        special = self.special
        while not self.accept("}"):
            self.start_statement()
            if self.kind == "end":
                self.fail("this block is not closed", at)
            first = len(block.ops)
            special.get(self.token, _Parser.named)(self)
            if self.token == "loc" and self.peek() == "(":
                loc = self.location()
                for op in block.ops[first:]:
                    op.loc = loc

    def location(self) -> Loc:
        """`loc("node", "operator")`."""
        self.advance()
        self.advance()
        node = self.string("the name of a node")
        self.expect(",")
        operator = self.string("the operator of a node")
        self.expect(")")
        return Loc(node, operator)

    def optional_location(self) -> Loc:
        return self.location() if self.token == "loc" and self.peek() == "(" else self.loc

    def named(self) -> None:
        """A statement that begins with the name of a value, or with an op."""
        following = self.peek()
        if following == "(":
            self.general([], [])
        elif following == "[":
            self.store()
        elif following == ":":
            self.definition()
        else:
            self.results()

    def definition(self) -> None:
        """`x: f32 = expression`."""
        at = self.at
        name = self.name("the name of a value")
        self.advance()
        type_at = self.at
        dtype = self.dtype()
        self.expect("=")
        ops = self.block.ops
        before, start = len(ops), self.at
        result = self.scalar(dtype)
        if len(ops) == before or result is not ops[-1].results[0]:
            self.fail("expected a computation: this value has a name already", start)
        if self.dtype_of(result, type_at) is not dtype:
            self.fail(f"the expression has type {result.type}", type_at)
        self.define(name, result, at)

    def store(self) -> None:
        """`buffer[i] = expression with {key=value}` or `buffer[i] += expression`."""
        at = self.at
        buffer, attrs = self.access()
        dtype = self.element(buffer, at)
        if "other" in attrs:
            self.fail("a store has no 'else'", at)
        if self.accept("+="):
            old = self.emit("load", [buffer], [ScalarType(dtype)], dict(attrs)).results[0]
            value = self.apply("add", [old, self.operand(2)], at)
        else:
            self.expect("=")
            value = self.scalar(dtype)
        if self.accept("with"):
            attrs |= self.attrs()
        self.emit("store", [value, buffer], [], attrs)

    def results(self) -> None:
        """`x, y = op(...) : type, type`."""
        names: list[str] = []
        places: list[int] = []
        if self.kind != "string":
            while True:
                places.append(self.at)
                names.append(self.name("a statement"))
                if not self.accept(","):
                    break
            self.expect("=")
        self.general(names, places)

    def general(self, names: list[str], places: list[int]) -> None:
        """`op(a, b) {key=value} : type (arg: type) { ... }`."""
        operands: list[Any] = []
        attrs: dict[str, Any] = {}
        if self.token == "constant" and self.peek() == "@":
            name = self.advance()
            attrs["name"] = self.reference("the name of a constant")
        else:
            name = self.name_or_string("the name of an op")
            self.expect("(")
            operands = self.until(")", self.value)
            if self.token == "{":
                attrs = self.attrs()
        types: list[Type] = []
        if names:
            self.expect(":")
            at = self.at
            types = self.types()
            if len(types) != len(names):
                self.fail(f"{len(types)} types for {len(names)} results", at)
        loc = self.optional_location()
        blocks: list[Block] = []
        while self.token == "(":
            blocks.append(self.nested())
        op = Op(name, operands, types, attrs, blocks, loc)
        self.block.append(op)
        for value, result, place in zip(op.results, names, places, strict=True):
            self.define(result, value, place)

    def nested(self) -> Block:
        """`(a: type) { ... }`."""
        mark = self.enter()
        names, types, places = self.parameters()
        block = Block(types)
        for value, name, at in zip(block.args, names, places, strict=True):
            self.define(name, value, at)
        self.statements(block)
        self.leave(mark)
        return block

    def body(self, variable: Sym | None = None) -> Block:
        """`{ ... }`, in which a variable is declared."""
        mark = self.enter()
        if variable is not None:
            self.bring(variable)
        body = Block()
        self.statements(body)
        self.leave(mark)
        return body

    def ending(self) -> None:
        """`return x, y` or `yield x`."""
        name = self.advance()
        operands: list[Any] = []
        if self.kind == "name" and self.on_same_line() and not (self.token == "loc" and self.peek() == "("):
            operands = self.value_list()
        self.emit(name, operands, [])

    def loop(self) -> None:
        """`for i in 0..n vector with {key=value} { ... }`."""
        self.advance()
        variable = self.variable()
        self.expect("in")
        if self.token != "0":
            self.fail("expected 0: loops start there")
        self.advance()
        self.expect("..")
        attrs: dict[str, Any] = {"var": variable, "extent": self.sym(), "kind": "serial"}
        if self.kind == "name" and self.token not in ("with", "loc"):
            if self.token not in KINDS:
                self.fail(f"expected '{{' or one of {', '.join(sorted(KINDS))}")
            attrs["kind"] = self.advance()
        if self.accept("with"):
            attrs |= self.attrs()
        loc = self.optional_location()
        body = self.body(variable)
        self.block.append(Op("for", (), (), attrs, [body], loc))

    def condition(self) -> None:
        """`if i < n, j < m with {key=value} { ... }`, with computed conditions after `when`."""
        guard = []
        if self.accept("if"):
            guard = self.several(self.sym)
        operands: list[Any] = []
        if self.accept("when"):
            operands = self.several(lambda: self.scalar(dt.bool_))
        attrs: dict[str, Any] = {"guard": tuple(guard)}
        if self.accept("with"):
            attrs |= self.attrs()
        loc = self.optional_location()
        body = self.body()
        self.block.append(Op("if", operands, (), attrs, [body], loc))

    def alloc(self) -> None:
        """`alloc acc: reg f32[6, 16]`."""
        self.advance()
        at = self.at
        name = self.name("the name of a buffer")
        self.expect(":")
        self.define(name, self.emit("alloc", [], [self.type()]).results[0], at)

    def bind(self) -> None:
        """`bind k <= 9 = expression`: the rest of the block knows the variable."""
        self.advance()
        variable = self.variable()
        self.expect("=")
        self.emit("bind", [self.scalar()], [], {"var": variable})
        self.bring(variable)

    def check(self) -> None:
        """`check condition else ErrorClass("message")`."""
        self.advance()
        condition = self.scalar(dt.bool_)
        self.expect("else")
        kind = self.name_or_string("the class of the error")
        self.expect("(")
        message = self.string("the message")
        self.expect(")")
        self.emit("check", [condition], [], {"kind": kind, "message": message})

    def prefetch(self) -> None:
        """`prefetch buffer[i, j] with {key=value}`."""
        self.advance()
        at = self.at
        buffer, attrs = self.access()
        if attrs.keys() != {"idx"}:
            self.fail("a prefetch has no condition", at)
        if self.accept("with"):
            attrs |= self.attrs()
        self.emit("prefetch", [buffer], [], attrs)

    def run(self) -> None:
        """`run intrinsic on queue as token sets 0 for queue, 1 after token, token { ... }`."""
        self.advance()
        attrs: dict[str, Any] = {"intrinsic": self.name_or_string("the name of an intrinsic"), "queue": ""}
        token, at = "", self.at
        if self.accept("on"):
            attrs["queue"] = self.name_or_string("the name of a queue")
            self.expect("as")
            at = self.at
            token = self.name("the name of a token")
            if self.accept("sets"):
                attrs["events"] = tuple(self.several(self.event))
        waits_for: list[Any] = []
        if self.accept("after"):
            waits_for = self.value_list()
        loc = self.optional_location()
        body = self.body()
        op = self.block.append(Op("run", waits_for, [TokenType()] if token else [], attrs, [body], loc))
        if token:
            self.define(token, op.result, at)

    def event(self) -> tuple[str, int]:
        """`0 for queue`, or `0` for the thread: who waits for an event, and its number."""
        number = self.integer()
        return (self.name_or_string("the name of a queue") if self.accept("for") else ""), number

    def wait(self) -> None:
        """`wait token, token`."""
        self.advance()
        self.emit("wait", self.value_list(), [])

    def barrier(self) -> None:
        """`barrier level`."""
        self.advance()
        self.emit("barrier", [], [], {"level": self.name_or_string("the name of a level")})

    def value_list(self) -> list[Any]:
        """One or more values with commas between."""
        return self.several(self.value)

    special: ClassVar[Mapping[str, Callable[[_Parser], None]]] = {
        "for": loop,
        "if": condition,
        "when": condition,
        "alloc": alloc,
        "return": ending,
        "yield": ending,
        "bind": bind,
        "check": check,
        "prefetch": prefetch,
        "run": run,
        "wait": wait,
        "barrier": barrier,
    }
