"""The tokens of program text, and a cursor over them."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from itertools import accumulate, compress
from typing import NoReturn, TypeVar

from tilewright.ir import dtype as dt
from tilewright.ir.sym import Sym, const, parse_sym_prefix, var
from tilewright.ir.text.notation import NAME
from tilewright.ir.textpos import text_error
from tilewright.ir.types import (
    HOST_KINDS,
    BufferType,
    HostType,
    ScalarType,
    TensorType,
    TokenType,
    Type,
    row_major,
)

T = TypeVar("T")

# The last alternative takes any other character, so that the pieces make up the whole text.
_PIECE = re.compile(
    rf"""\s+
       | {NAME.pattern}
       | ->|\.\.|<=|>=|==|!=|\+=|//
       | \d+(?:\.\d+)?(?:[eE][-+]?\d+)?
       | "(?:[^"\\\n]|\\.)*"
       | \#[^\n]*
       | (?s:.)
    """,
    re.VERBOSE | re.ASCII,
)
_SIGNS = frozenset("()[]{},:=<>+*/%@&`-")
_KINDS = (
    dict.fromkeys(string.ascii_letters + "_", "name")
    | dict.fromkeys(string.digits, "number")
    | {'"': "string", "": "end"}
)
_ENDS = frozenset({",", "]", ")"})


def _scan(text: str, file: str) -> tuple[list[str], list[int]]:
    """All tokens and where they start; the last one is empty. TextError for what is no token."""
    pieces = _PIECE.findall(text)
    starts = accumulate(map(len, pieces), initial=0)
    if any(len(p) == 1 and not (p.isalnum() or p.isspace() or p in _SIGNS or p in "_#") for p in set(pieces)):
        _fail_at_first_stranger(pieces, text, file)
    solid = [p[0] not in " \n\t\r\f\v#" for p in pieces]
    tokens = list(compress(pieces, solid))
    tokens.append("")
    places = list(compress(starts, solid))
    places.append(len(text))
    return tokens, places


def _fail_at_first_stranger(pieces: list[str], text: str, file: str) -> NoReturn:
    pos = 0
    for piece in pieces:
        if len(piece) == 1 and not (piece.isalnum() or piece.isspace() or piece in _SIGNS or piece in "_#"):
            problem = "a string that does not end on its line" if piece == '"' else "no token starts here"
            raise text_error(problem, text, pos, file=file)
        pos += len(piece)
    raise AssertionError("unreachable")


class Cursor:
    """A position among the tokens of a text, with what can be read at it; keeps the variables in scope."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.tokens, self.starts = _scan(text, file)
        self.at = 0
        self.token = ""
        self.variables: dict[str, Sym] = {}
        self.seek(0)

    # Tokens

    @property
    def kind(self) -> str:
        """What the current token is: "name", "number", "string", "sign" or "end"."""
        return _KINDS.get(self.token[:1], "sign")

    def seek(self, at: int) -> None:
        self.at = at
        self.token = self.tokens[at]

    def advance(self) -> str:
        """Step over the current token and return it."""
        token, at = self.token, self.at
        if at + 1 < len(self.tokens):
            self.at = at + 1
            self.token = self.tokens[at + 1]
        return token

    def skip_to(self, pos: int) -> None:
        """Go to the first token that starts at character `pos` or after it."""
        at, starts = self.at, self.starts
        while starts[at] < pos:
            at += 1
        self.seek(at)

    def peek(self) -> str:
        """The token after the current one."""
        return self.tokens[min(self.at + 1, len(self.tokens) - 1)]

    def accept(self, token: str) -> bool:
        # A string token begins with a quote, so that it equals no sign and no word.
        if self.token != token:
            return False
        self.advance()
        return True

    def expect(self, token: str) -> None:
        if self.token != token:
            self.fail(f"expected '{token}'")
        self.advance()

    def name(self, what: str) -> str:
        if self.kind != "name":
            self.fail(f"expected {what}")
        return self.advance()

    def several(self, item: Callable[[], T]) -> list[T]:
        """One or more items with commas between."""
        found = [item()]
        while self.accept(","):
            found.append(item())
        return found

    def until(self, end: str, item: Callable[[], T]) -> list[T]:
        """Items with commas between, up to the token `end`, which is taken too; the last may have a comma behind it."""
        found: list[T] = []
        while not self.accept(end):
            found.append(item())
            if self.token != end:
                self.expect(",")
        return found

    def on_same_line(self) -> bool:
        """Whether there is no line break between the last token and the current one."""
        last = self.starts[self.at - 1]
        return self.text.find("\n", last, self.starts[self.at]) < 0

    def fail(self, message: str, at: int | None = None, hint: str | None = None) -> NoReturn:
        """Raise a TextError at token number `at`, or at the current one."""
        at = self.at if at is None else at
        found = f", found '{self.tokens[at]}'" if self.tokens[at] else ", found the end of the text"
        shown = message + found if message.startswith("expected") else message
        raise text_error(shown, self.text, self.starts[at], file=self.file, hint=hint)

    # Words and numbers

    def string(self, what: str) -> str:
        if self.kind != "string":
            self.fail(f"expected {what} in double quotes")
        at = self.at
        try:
            value: str = json.loads(self.advance())
        except ValueError:
            self.fail("this string has a wrong escape", at)
        return value

    def name_or_string(self, what: str) -> str:
        return self.string(what) if self.kind == "string" else self.name(what)

    def reference(self, what: str) -> str:
        """`@name` or `@"any text"`."""
        self.expect("@")
        return self.name_or_string(what)

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        if not self.token.isdigit():
            self.fail("expected an integer")
        return sign * self.natural()

    def natural(self) -> int:
        if len(self.token) > 100:
            self.fail("a number of more than 100 digits")
        return int(self.advance())

    def at_number(self) -> bool:
        token = self.peek() if self.token == "-" else self.token
        return token[:1].isdigit() or token in ("inf", "nan")

    def number(self) -> int | float:
        negative = self.accept("-")
        if not self.at_number() or self.token == "-":
            self.fail("expected a number")
        value: int | float = self.natural() if self.token.isdigit() else float(self.advance())
        return -value if negative else value

    # Variables and expressions over them

    def declare(self, variable: Sym) -> Sym | None:
        """Bring a variable into scope; returns the one of its name that is hidden by it."""
        old = self.variables.get(variable.name)
        self.put(variable.name, variable)
        return old

    def put(self, name: str, variable: Sym | None) -> None:
        """Set what `name` stands for; None: nothing."""
        if variable is None:
            del self.variables[name]
        else:
            self.variables[name] = variable

    def variable(self) -> Sym:
        """A declaration: `n`, `1 <= n`, `n <= 9`, `-inf <= n <= 9`; without a lower bound it is 0."""
        at = self.at
        lo: int | None = 0
        if self.kind != "name":
            if self.token == "-" and self.peek() == "inf":
                self.advance()
                self.advance()
                lo = None
            else:
                lo = self.integer()
            self.expect("<=")
        name = self.name("the name of a variable")
        hi = self.integer() if self.accept("<=") else None
        try:
            return var(name, lo, hi)
        except ValueError as e:
            self.fail(str(e), at)

    def variable_list(self) -> tuple[Sym, ...]:
        """`(n, 1 <= m)`."""
        self.expect("(")
        return tuple(self.until(")", self.variable))

    def lookup(self, name: str) -> Sym:
        """The variable called `name`; one that is not declared is a dim from 0 up."""
        found = self.variables.get(name)
        if found is None:
            found = self.variables[name] = var(name)
        return found

    def sym(self) -> Sym:
        """An integer expression."""
        token = self.token
        if self.peek() in _ENDS:
            if token.isdigit() and len(token) < 20:
                self.advance()
                return const(int(token))
            known = self.variables.get(token)
            if known is not None:
                self.advance()
                return known
        start = self.starts[self.at]
        try:
            expression, end = parse_sym_prefix(self.text, start, self.lookup, self.file)
        except ValueError as e:
            raise text_error(str(e), self.text, start, file=self.file) from None
        self.skip_to(end)
        return expression

    def syms(self, end: str) -> tuple[Sym, ...]:
        """Expressions with commas between, up to the token `end`, which is taken too."""
        return tuple(self.until(end, self.sym))

    # Types

    def dtype(self) -> dt.DType:
        found = dt.BY_NAME.get(self.token)
        if found is None:
            self.fail("expected a dtype", hint=f"the dtypes are {', '.join(dt.BY_NAME)}")
        self.advance()
        return found

    def type(self) -> Type:
        """`f32`, `f32[n, 4]`, `&f32[n, 4] strides(8, 1) offset(2)`, `reg f32[4]`."""
        space = ""
        if self.accept("token"):
            return TokenType()
        if self.token in HOST_KINDS and self.peek() == "(":
            return self.host_type()
        if self.accept("&"):
            space = "global"
        elif self.kind == "name" and self.token not in dt.BY_NAME and self.peek() in dt.BY_NAME:
            space = self.advance()
        dtype = self.dtype()
        if not self.accept("["):
            if space:
                self.fail("expected '[': a buffer has dims")
            return ScalarType(dtype)
        shape = self.syms("]")
        if not space:
            return TensorType(dtype, shape)
        strides, offset = row_major(shape), const(0)
        if self.token == "strides" and self.peek() == "(":
            at = self.at
            self.advance()
            self.advance()
            strides = self.syms(")")
            if len(strides) != len(shape):
                self.fail(f"{len(strides)} strides for {len(shape)} dims", at)
        if self.token == "offset" and self.peek() == "(":
            self.advance()
            self.advance()
            offset = self.sym()
            self.expect(")")
        return BufferType(dtype, shape, strides, space, offset)

    def host_type(self) -> HostType:
        """`sequence(f32[n])`, `optional(...)`, `map(string, f32[])`, `tensor(f32)`."""
        kind = self.advance()
        self.expect("(")
        is_tensor = kind in ("tensor", "nothing")
        dtype = self.dtype() if is_tensor or kind == "map" else None
        if kind == "map":
            self.expect(",")
        element = None if is_tensor else self.type()
        self.expect(")")
        return HostType(kind, dtype, element)

    def types(self) -> list[Type]:
        """One or more types with commas between."""
        return self.several(self.type)
