"""Expressions of sizes in C: dims, bounds of loops, addresses and conditions.

Variables have the type `ptrdiff_t` in kernels and `int64_t` in plans; what is read from data is an `int64_t`, and so is
an expression of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce

from tilewright.ir.sym import ONE, Sym

OR, AND, EQUAL, ORDER, SUM, PRODUCT, UNARY, PRIMARY = range(8)
"""How tightly an expression binds, from the loosest to the tightest."""

_HOISTED = ("floordiv", "mod", "min", "max", "select")

Term = tuple[Sym, int]


class SizeTexts:
    """Spells expressions; `name` gives the name of a variable, `needs` collects the functions that are called."""

    def __init__(
        self, name: Callable[[Sym], str], needs: dict[str, None], hoist: Callable[[Sym], str] = lambda _: "",
        *, saturates: bool = False,
    ) -> None:  # fmt: skip
        """`hoist` gives the name of an expression that is computed where code is not repeated, or "". `saturates`: sums
        and products that are no int64 become the nearest one, for sizes that nobody has checked yet."""
        self._name, self.needs, self._hoist, self._saturates = name, needs, hoist, saturates
        self.wide: set[str] = set()
        """Names of variables that are an `int64_t` on every machine."""

    def text(self, e: Sym, least: int = OR) -> str:
        """An expression, in parentheses where it binds less tightly than `least`."""
        spelled, level = self._spelled(e)
        return f"({spelled})" if level < least else spelled

    def all_hold(self, conditions: Iterable[Sym], more: Sequence[str] = ()) -> str:
        """Whether all conditions hold, and other expressions that stand in parentheses where they need any; "" for
        none."""
        parts = [(self.text(c, EQUAL), c) for c in conditions]
        texts = [text for text, _ in parts] + list(more)
        return " && ".join(texts)

    def _spelled(self, e: Sym) -> tuple[str, int]:
        if e.kind in _HOISTED and not is_condition(e) and (name := self._hoist(e)):
            return name, PRIMARY
        match e.kind:
            case "const":
                return str(e.value), (PRIMARY if e.value >= 0 else UNARY)
            case "var":
                return self._name(e), PRIMARY
            case "add" if _is_inequality(e):
                return self._equation(e.terms[0][0].args[0], "!="), EQUAL
            case "add":
                return self._sum(e.terms), PRIMARY if self._saturates else SUM
            case "mul" if len(e.terms) != 1 or e.terms[0][0] is not e:
                return self._sum(e.terms), PRIMARY if self._saturates else PRODUCT
            case "mul" if self._saturates:
                return self._called("times", [self.text(f) for f in e.args]), PRIMARY
            case "mul":
                return " * ".join(self.text(f, UNARY) for f in e.args), PRODUCT
            case "floordiv" | "mod":
                return self._division(e)
            case "ge0":
                return self._comparison(e.args[0]), ORDER
            case "eq0":
                return self._equation(e.args[0], "=="), EQUAL
            case "min" if is_condition(e):
                return " && ".join(self.text(arg, EQUAL) for arg in e.args), AND
            case "max" if is_condition(e):
                return " || ".join(self.text(arg, EQUAL) for arg in e.args), OR
            case "min" | "max":
                return self._extremum(e.kind, e.args), PRIMARY
        condition, one, other = e.args
        texts = [self.text(condition, EQUAL), self.text(one, SUM), self.text(other, SUM)]
        return f"({texts[0]} ? {texts[1]} : {texts[2]})", PRIMARY

    def _extremum(self, kind: str, args: Sequence[Sym]) -> str:
        is_wide = not self.wide.isdisjoint(v.name for arg in args for v in arg.vars)
        name = f"{kind}_{'i64' if is_wide else 'size'}"
        self.needs[name] = None
        first, *rest = args
        found = self.text(first)
        for arg in rest:
            found = f"{name}({found}, {self.text(arg)})"
        return found

    def _division(self, e: Sym) -> tuple[str, int]:
        x, q = e.args
        if x.interval[0] >= 0 and q.interval[0] >= 1:
            sign = "/" if e.kind == "floordiv" else "%"
            return (
                f"{self.text(x, PRODUCT + 1 if x.kind == 'mul' else PRODUCT)} {sign} {self.text(q, UNARY)}",
                PRODUCT,
            )
        if x.interval[0] >= 0 and q.interval[0] >= 0:
            self.needs["max_size"] = None
            sign = "/" if e.kind == "floordiv" else "%"
            return f"{self.text(x, UNARY)} {sign} max_size({self.text(q)}, 1)", PRODUCT
        name = "floor_div" if e.kind == "floordiv" else "floor_mod"
        self.needs[name] = None
        return f"{name}({self.text(x)}, {self.text(q)})", PRIMARY

    def _sum(self, terms: Iterable[Term]) -> str:
        """The polynomial with these terms; 0 for none."""
        if self._saturates:
            return self._called("plus", [self._term(mono, coef) for mono, coef in terms]) or "0"
        spelled = ""
        for mono, coef in terms:
            if mono.kind == "const":
                size = str(abs(coef))
            elif abs(coef) == 1:
                size = self.text(mono, PRODUCT)
            else:
                size = f"{abs(coef)} * {self.text(mono, PRODUCT if mono.kind == 'mul' else UNARY)}"
            if spelled:
                spelled += f" - {size}" if coef < 0 else f" + {size}"
            else:
                spelled = f"-{size}" if coef < 0 else size
        return spelled or "0"

    def _term(self, mono: Sym, coef: int) -> str:
        """A part of a sum that saturates."""
        if mono.kind == "const":
            return str(coef)
        return self.text(mono) if coef == 1 else self._called("times", [str(coef), self.text(mono)])

    def _called(self, name: str, parts: Sequence[str]) -> str:
        """A function of two numbers applied to all parts, from the first one on; "" for none."""
        if len(parts) > 1:
            self.needs[name] = None
        return reduce(lambda one, other: f"{name}({one}, {other})", parts) if parts else ""

    def _comparison(self, e: Sym) -> str:
        """e >= 0 without negative terms."""
        positive, negative, constant = _sides(e)
        if not negative:
            return f"{self._sum(positive)} >= {-constant}"
        if not positive:
            return f"{self._sum(negative)} <= {constant}"
        if constant < 0:
            return f"{self._moved(negative, -constant - 1)} < {self._sum(positive)}"
        return f"{self._sum(negative)} <= {self._moved(positive, constant)}"

    def _equation(self, e: Sym, sign: str) -> str:
        positive, negative, constant = _sides(e)
        if negative and constant > 0:
            return f"{self._moved(positive, constant)} {sign} {self._sum(negative)}"
        other = self._moved(negative, -constant) if negative else str(-constant)
        return f"{self._sum(positive)} {sign} {other}"

    def _moved(self, terms: Sequence[Term], constant: int) -> str:
        return self._sum([*terms, (ONE, constant)] if constant else terms)


def _sides(e: Sym) -> tuple[list[Term], list[Term], int]:
    """(positive, negative, constant) with e == positive - negative + constant."""
    positive = [(m, c) for m, c in e.terms if m.kind != "const" and c > 0]
    negative = [(m, -c) for m, c in e.terms if m.kind != "const" and c < 0]
    return positive, negative, sum(c for m, c in e.terms if m.kind == "const")


def _is_inequality(e: Sym) -> bool:
    """Whether e is 1 - (x == 0)."""
    return sorted((m.kind, c) for m, c in e.terms) == [("const", 1), ("eq0", -1)]


def is_condition(e: Sym) -> bool:
    if e.kind in ("min", "max"):
        return all(is_condition(arg) for arg in e.args)
    return e.kind in ("ge0", "eq0") or (e.kind == "add" and _is_inequality(e))
