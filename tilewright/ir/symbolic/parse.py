"""Reading symbolic integers from the text that `str` makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from tilewright.ir.symbolic import cond as symcond
from tilewright.ir.symbolic.arith import Sym, const, floordiv, mod
from tilewright.ir.symbolic.node import NAME, RESERVED_NAMES
from tilewright.ir.symbolic.sums import ceildiv
from tilewright.ir.textpos import text_error

Lookup = Callable[[str], Sym]

# A '-' before '>' is an arrow, which ends the expression.
_TOKEN = re.compile(rf"\d+|{NAME.pattern}|//|<=|>=|==|!=|-(?!>)|[+*%<>(),]", re.ASCII)
_SPACE = re.compile(r"\s+")
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

    TextError with the position for a malformed text. Errors of `lookup` pass through.
    """
    reader = _Reader(text, 0, lookup, "expression")
    expression = reader.disjunction(0)
    if reader.start != len(text):
        reader.fail("the expression ends here, but the text goes on")
    return expression


def parse_sym_prefix(text: str, pos: int, lookup: Lookup, file: str = "text") -> tuple[Sym, int]:
    """The longest expression that starts at `pos`, and the position just after its last token.

    It stops at the first token that cannot continue an expression: a comma, a closing bracket, `..`, `->`,
    `{`, a name, the end of the text. TextError names `file`.
    """
    reader = _Reader(text, pos, lookup, file)
    expression = reader.disjunction(0)
    return expression, reader.end


class _Reader:
    """A recursive-descent reader: one method per level of precedence, one token of look-ahead."""

    def __init__(self, text: str, pos: int, lookup: Lookup, file: str) -> None:
        self.text = text
        self.lookup = lookup
        self.file = file
        self.token = ""
        self.start = self.end = pos  # of the token, and just after the last one taken
        self._look(pos)

    def _look(self, pos: int) -> None:
        space = _SPACE.match(self.text, pos)
        self.start = space.end() if space else pos
        match = _TOKEN.match(self.text, self.start)
        self.token = match.group() if match else ""

    def _take(self) -> str:
        taken = self.token
        self.end = self.start + len(taken)
        self._look(self.end)
        return taken

    def _accept(self, token: str) -> bool:
        return self.token == token and bool(self._take())

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            self._unexpected(f"'{token}'")

    def _unexpected(self, wanted: str) -> NoReturn:
        found = self.token or self.text[self.start : self.start + 1]
        self.fail(f"expected {wanted}, found {repr(found) if found else 'the end of the text'}")

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        """Raise a TextError about the current token, or about another place."""
        raise text_error(problem, self.text, self.start if at is None else at, file=self.file)

    def disjunction(self, depth: int) -> Sym:
        operands = [self._conjunction(depth)]
        while self._accept("or"):
            operands.append(self._conjunction(depth))
        return symcond.logical_or(*operands) if len(operands) > 1 else operands[0]

    def _conjunction(self, depth: int) -> Sym:
        operands = [self._negation(depth)]
        while self._accept("and"):
            operands.append(self._negation(depth))
        return symcond.logical_and(*operands) if len(operands) > 1 else operands[0]

    def _negation(self, depth: int) -> Sym:
        count = 0
        while self._accept("not"):
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
                self.fail("division by zero", at)
            else:
                product = floordiv(product, operand) if sign == "//" else mod(product, operand)
        return product

    def _signed(self, depth: int) -> Sym:
        negative = False
        while self._accept("-"):
            negative = not negative
        operand = self._primary(depth + 1)
        return -operand if negative else operand

    def _primary(self, depth: int) -> Sym:
        if depth > _MAX_DEPTH:
            self.fail(f"the expression nests deeper than {_MAX_DEPTH} levels")
        if self.token.isdigit():
            if len(self.token) > _MAX_DIGITS:
                self.fail(f"a number of more than {_MAX_DIGITS} digits")
            return const(int(self._take()))
        if self._accept("("):
            inner = self.disjunction(depth)
            self._expect(")")
            return inner
        if self.token in _FUNCTIONS:
            return self._call(depth)
        if not NAME.fullmatch(self.token) or self.token in RESERVED_NAMES:
            self._unexpected("a number, a name or '('")
        return self.lookup(self._take())

    def _call(self, depth: int) -> Sym:
        at, name = self.start, self._take()
        function, arity = _FUNCTIONS[name]
        self._expect("(")
        operands = [self.disjunction(depth)]
        while self._accept(","):
            operands.append(self.disjunction(depth))
        self._expect(")")
        if arity is not None and len(operands) != arity:
            self.fail(f"'{name}' takes {arity} operands, not {len(operands)}", at)
        try:
            return function(*operands)
        except ZeroDivisionError:
            self.fail("division by zero", at)
