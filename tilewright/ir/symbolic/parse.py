"""Reading symbolic integers from the text that `str` makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable

from tilewright.ir.symbolic import cond as symcond
from tilewright.ir.symbolic.arith import Sym, ceildiv, const, floordiv, mod
from tilewright.ir.symbolic.node import NAME, RESERVED_NAMES

Lookup = Callable[[str], Sym]

# A '-' before '>' is an arrow, which ends the expression.
_TOKEN = re.compile(rf"\d+|{NAME.pattern}|//|<=|>=|==|!=|-(?!>)|[+*%<>(),]", re.ASCII)
_SPACE = re.compile(r"\s*")
_COMPARISONS = {
    "<": symcond.lt,
    "<=": symcond.le,
    ">": symcond.gt,
    ">=": symcond.ge,
    "==": symcond.eq,
    "!=": symcond.ne,
}
_FUNCTIONS: dict[str, tuple[Callable[..., Sym], int | None]] = {
    "min": (symcond.minimum, None),
    "max": (symcond.maximum, None),
    "select": (symcond.select, 3),
    "ceildiv": (ceildiv, 2),
}
_MAX_DEPTH = 100
_MAX_DIGITS = 100


def parse_sym(text: str, lookup: Lookup) -> Sym:
    """The expression that the whole text spells; `lookup` gives the variable of a name.

    ValueError with the position for a malformed text. Errors of `lookup` pass through.
    """
    expression, pos = parse_sym_prefix(text, 0, lookup)
    pos = _skip_space(text, pos)
    if pos != len(text):
        raise _error(text, pos, "the expression ends here, but the text goes on")
    return expression


def parse_sym_prefix(text: str, pos: int, lookup: Lookup) -> tuple[Sym, int]:
    """The longest expression that starts at `pos`, and the position just after its last token.

    It stops at the first token that cannot continue an expression: a comma, a closing bracket, `..`, `->`,
    `{`, a name, the end of the text.
    """
    reader = _Reader(text, pos, lookup)
    expression = reader.disjunction(0)
    return expression, reader.end


def _skip_space(text: str, pos: int) -> int:
    match = _SPACE.match(text, pos)
    return match.end() if match else pos


class SymTextError(ValueError):
    """Text that spells no expression: `problem` at character `pos`; the message shows a caret under it."""

    def __init__(self, problem: str, text: str, pos: int) -> None:
        line_start = text.rfind("\n", 0, pos) + 1
        line_end = text.find("\n", pos)
        line = text[line_start : line_end if line_end >= 0 else len(text)]
        caret = " " * (pos - line_start) + "^"
        number = text.count("\n", 0, pos) + 1
        super().__init__(f"{problem} (line {number}, column {pos - line_start + 1})\n  {line}\n  {caret}")
        self.problem = problem
        self.pos = pos


def _error(text: str, pos: int, problem: str) -> SymTextError:
    return SymTextError(problem, text, pos)


class _Reader:
    """A recursive-descent reader: one method per level of precedence, one token of look-ahead."""

    def __init__(self, text: str, pos: int, lookup: Lookup) -> None:
        self.text = text
        self.lookup = lookup
        self.end = pos  # just after the last token taken
        self.token = ""
        self.start = pos
        self._look(pos)

    def _look(self, pos: int) -> None:
        self.start = _skip_space(self.text, pos)
        match = _TOKEN.match(self.text, self.start)
        self.token = match.group() if match else ""

    def _take(self) -> str:
        taken = self.token
        self.end = self.start + len(taken)
        self._look(self.end)
        return taken

    def _expect(self, token: str) -> None:
        if self.token != token:
            raise self._unexpected(f"'{token}'")
        self._take()

    def _unexpected(self, wanted: str) -> ValueError:
        found = f"'{self.text[self.start]}'" if self.start < len(self.text) else "the end of the text"
        return _error(
            self.text, self.start, f"expected {wanted}, found {(self.token and repr(self.token)) or found}"
        )

    def disjunction(self, depth: int) -> Sym:
        operands = [self._conjunction(depth)]
        while self.token == "or":
            self._take()
            operands.append(self._conjunction(depth))
        return symcond.logical_or(*operands) if len(operands) > 1 else operands[0]

    def _conjunction(self, depth: int) -> Sym:
        operands = [self._negation(depth)]
        while self.token == "and":
            self._take()
            operands.append(self._negation(depth))
        return symcond.logical_and(*operands) if len(operands) > 1 else operands[0]

    def _negation(self, depth: int) -> Sym:
        count = 0
        while self.token == "not":
            self._take()
            count += 1
        condition = self._comparison(depth)
        for _ in range(count):
            condition = symcond.logical_not(condition)
        return condition

    def _comparison(self, depth: int) -> Sym:
        left = self._sum(depth)
        if (compare := _COMPARISONS.get(self.token)) is None:
            return left
        self._take()
        return compare(left, self._sum(depth))

    def _sum(self, depth: int) -> Sym:
        total = self._product(depth)
        while self.token in ("+", "-"):
            sign = self._take()
            operand = self._product(depth)
            total = total + operand if sign == "+" else total - operand
        return total

    def _product(self, depth: int) -> Sym:
        product = self._signed(depth)
        while self.token in ("*", "//", "%"):
            at, sign = self.start, self._take()
            operand = self._signed(depth)
            if sign == "*":
                product = product * operand
            elif operand == 0:
                raise _error(self.text, at, "division by zero")
            else:
                product = floordiv(product, operand) if sign == "//" else mod(product, operand)
        return product

    def _signed(self, depth: int) -> Sym:
        negative = False
        while self.token == "-":
            self._take()
            negative = not negative
        operand = self._primary(depth + 1)
        return -operand if negative else operand

    def _primary(self, depth: int) -> Sym:
        if depth > _MAX_DEPTH:
            raise _error(self.text, self.start, f"the expression nests deeper than {_MAX_DEPTH} levels")
        if self.token.isdigit():
            if len(self.token) > _MAX_DIGITS:
                raise _error(self.text, self.start, f"a number of more than {_MAX_DIGITS} digits")
            return const(int(self._take()))
        if self.token == "(":
            self._take()
            inner = self.disjunction(depth)
            self._expect(")")
            return inner
        if self.token in _FUNCTIONS:
            return self._call(depth)
        if not NAME.fullmatch(self.token) or self.token in RESERVED_NAMES:
            raise self._unexpected("a number, a name or '('")
        return self.lookup(self._take())

    def _call(self, depth: int) -> Sym:
        at, name = self.start, self._take()
        function, arity = _FUNCTIONS[name]
        self._expect("(")
        operands = [self.disjunction(depth)]
        while self.token == ",":
            self._take()
            operands.append(self.disjunction(depth))
        self._expect(")")
        if arity is not None and len(operands) != arity:
            raise _error(self.text, at, f"'{name}' takes {arity} operands, not {len(operands)}")
        try:
            return function(*operands)
        except ZeroDivisionError:
            raise _error(self.text, at, "division by zero") from None
