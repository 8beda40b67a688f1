"""Arithmetic of symbolic integers: interning, polynomials, division and remainder in canonical form."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from math import gcd
from typing import Any

from tilewright.ir.symbolic.interning import InternTable
from tilewright.ir.symbolic.node import Kind, SymNode, check_variable
from tilewright.ir.symbolic.reach import LARGEST_INTEGER, fits_64_bits

Terms = dict["Sym", int]

MAX_TERMS = 1 << 14

REMEMBERED = 1 << 14  # results of operations that are looked up: a compilation does each ten times or more
SHORT = 64  # the terms of operands up to which they are, so that what is remembered has a bound


class Sym(SymNode):
    """An interned integer expression in canonical form; made by functions and operators, never directly.

    Equality is identity, but that a constant also equals the int of its value.
    """

    __slots__ = ()
    __array_ufunc__ = None  # NumPy scalars and arrays leave mixed arithmetic to this class

    @property
    def args(self) -> tuple[Sym, ...]:
        """The operands: terms of an add, factors of a mul (a coefficient first), operands of an atom."""
        return _args_of(self) if self._args is None else self._args

    def subs(self, mapping: Mapping[Sym, Sym | int]) -> Sym:
        """The expression with variables replaced, all at once; the keys of the mapping are variables."""
        return self if self.vars.isdisjoint(mapping) else _substituted(self, tuple(mapping.items()))

    def __add__(self, other: Sym | int) -> Sym:
        right = other if isinstance(other, Sym) else _operand(other)  # most are: that saves a call
        return NotImplemented if right is None else _plus(self, right, 1)

    __radd__ = __add__

    def __sub__(self, other: Sym | int) -> Sym:
        right = other if isinstance(other, Sym) else _operand(other)
        return NotImplemented if right is None else _plus(self, right, -1)

    def __rsub__(self, other: Sym | int) -> Sym:
        return NotImplemented if (left := _operand(other)) is None else left - self

    def __mul__(self, other: Sym | int) -> Sym:
        right = other if isinstance(other, Sym) else _operand(other)
        return NotImplemented if right is None else _product(self, right)

    __rmul__ = __mul__

    def __neg__(self) -> Sym:
        return sum_of({mono: -coef for mono, coef in self.terms})

    def __floordiv__(self, other: Sym | int) -> Sym:
        return NotImplemented if (right := _operand(other)) is None else floordiv(self, right)

    def __rfloordiv__(self, other: Sym | int) -> Sym:
        return NotImplemented if (left := _operand(other)) is None else floordiv(left, self)

    def __mod__(self, other: Sym | int) -> Sym:
        return NotImplemented if (right := _operand(other)) is None else mod(self, right)

    def __rmod__(self, other: Sym | int) -> Sym:
        return NotImplemented if (left := _operand(other)) is None else mod(left, self)

    def __reduce__(self) -> tuple[Callable[..., Sym], tuple[Any, ...]]:
        args = self.args if self.kind == "const" or self._terms is None else None
        terms = None if self.kind == "const" else self._terms
        return intern, (self.kind, self._make, args, terms, self.name, self._payload)


class _Constant(Sym):
    """Apart from the others so that these keep the fast hash and equality of plain objects."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and bool(self._payload == other))

    def __hash__(self) -> int:
        return hash(self._payload)


_DIVISIONS = ("floordiv", "mod")

# Interning is what makes identity mean equality; no setting lives in this table.
_INTERNED: InternTable[Sym] = InternTable()


def intern(
    kind: Kind,
    make: Callable[..., Sym] | None,
    args: tuple[Sym, ...] | None = None,
    terms: tuple[tuple[Sym, int], ...] | None = None,
    name: str = "",
    payload: Any = None,
) -> Sym:
    """The one object with this content, which must be canonical; `make(*args)` builds it from its operands."""
    key = frozenset(terms) if kind == "add" and terms else (kind, name, payload, args, terms)
    if (known := _INTERNED.get(key)) is not None:
        return known
    with _INTERNED.lock:
        if (known := _INTERNED.get(key)) is not None:
            return known
        new: Sym = object.__new__(_Constant if kind == "const" else Sym)
        new.kind, new.name, new._make, new._payload = kind, name, make, payload
        new._args, new._terms = args, terms
        new._key = new._vars = new._interval = new._reach = None
        new._divides = kind in _DIVISIONS or (kind == "mul" and any(f._divides for f in args or ()))
        if kind == "const":
            new._terms = ((new if payload == 1 else ONE, payload),) if payload else ()
        _INTERNED.add(key, new)
        return new


def const(value: int) -> Sym:
    """The constant expression."""
    return _SMALL[value] if 0 <= value < len(_SMALL) else intern("const", None, (), payload=int(value))


_SMALL: tuple[Sym, ...] = ()
ONE = const(1)
ZERO = const(0)
_SMALL = tuple(const(value) for value in range(1025))  # the most frequent constants, kept alive


def var(name: str, lo: int | None = 0, hi: int | None = None) -> Sym:
    """The variable with this name and these inclusive bounds; other bounds make another variable."""
    check_variable(name, lo, hi)
    bounds = (None if lo is None else int(lo), None if hi is None else int(hi))
    return intern("var", None, (), name=name, payload=bounds)


def sym(x: Sym | int) -> Sym:
    """An int (or NumPy integer) as a constant; a `Sym` as it is; TypeError for anything else."""
    return x if isinstance(x, Sym) else const(operator.index(x))


def _operand(x: Sym | int) -> Sym | None:
    """`sym(x)`, or None for what is no integer, so that Python asks the other operand."""
    if isinstance(x, Sym):
        return x
    try:
        return const(operator.index(x))
    except TypeError:
        return None


sort_key: Callable[[Sym], tuple[Any, ...]] = operator.attrgetter("sort_key")

# --- polynomials ---------------------------------------------------------------------------------------------


def factors_of(mono: Sym) -> tuple[Sym, ...]:
    """The atoms of a monomial; none for `ONE`."""
    if mono.kind == "mul":
        return mono.args
    return () if mono is ONE else (mono,)


def monomial(factors: Iterable[Sym]) -> Sym:
    """The product of atoms, in which a 0/1 atom occurs once."""
    distinct: list[Sym] = []
    for factor in sorted(factors, key=sort_key):
        if not (distinct and distinct[-1] is factor and factor.is_bool):
            distinct.append(factor)
    if not distinct:
        return ONE
    return distinct[0] if len(distinct) == 1 else intern("mul", _product_of, tuple(distinct))


def _monomial_product(a: Sym, b: Sym) -> Sym:
    return b if a is ONE else a if b is ONE else monomial((*factors_of(a), *factors_of(b)))


def _scaled(mono: Sym, coef: int) -> Sym:
    if mono is ONE:
        return const(coef)
    return mono if coef == 1 else intern("mul", _product_of, None, ((mono, coef),))


def _args_of(e: Sym) -> tuple[Sym, ...]:
    """The operands of an add or of a monomial with a coefficient, which hold their content as terms."""
    if e.kind == "add":
        e._args = tuple(_scaled(mono, coef) for mono, coef in e.terms)
    else:
        mono, coef = e.terms[0]
        e._args = (const(coef), *factors_of(mono))
    return e._args


def _term_order(term: tuple[Sym, int]) -> tuple[Any, ...]:
    """Reading order: the constant last, high degrees first, positive terms first, large strides first."""
    mono, coef = term
    degree = len(mono.args) if mono.kind == "mul" else 1
    return mono is ONE, -degree, coef < 0, -abs(coef), mono.sort_key


def sum_of(total: Terms) -> Sym:
    """The canonical polynomial with these coefficients (the dictionary is used up)."""
    terms = {mono: coef for mono, coef in total.items() if coef}
    # before the identities and the sort, which take longer: what is interned is canonical
    if len(terms) > 1 and (known := _INTERNED.get(frozenset(terms.items()))) is not None:
        return known
    while _rejoin_divmod(terms):
        pass
    if not terms:
        return ZERO
    if len(terms) == 1:
        return _scaled(*next(iter(terms.items())))
    return intern("add", _total, None, tuple(sorted(terms.items(), key=_term_order)))


def _accumulate(terms: Terms, added: Sym, mono: Sym, coef: int) -> None:
    """terms += added * mono * coef, without zero coefficients."""
    for part, part_coef in added.terms:
        product = _monomial_product(part, mono)
        if total := terms.get(product, 0) + part_coef * coef:
            terms[product] = total
        else:
            terms.pop(product, None)


def _plus(a: Sym, b: Sym, sign: int) -> Sym:
    """a + sign * b"""
    if b.kind == "const":
        if a.kind == "const":
            return const(a._payload + sign * b._payload)
        if b is ZERO:
            return a
    elif a is ZERO and sign == 1:
        return b
    return (_combined if len(a.terms) + len(b.terms) <= SHORT else _combined.__wrapped__)(a, b, sign)


@functools.lru_cache(REMEMBERED)
def _combined(a: Sym, b: Sym, sign: int) -> Sym:
    total = dict(a.terms)
    for mono, coef in b.terms:
        total[mono] = total.get(mono, 0) + sign * coef
    return sum_of(total)


def _product(a: Sym, b: Sym) -> Sym:
    if a is ONE or b is ZERO:
        return b
    if b is ONE or a is ZERO:
        return a
    if a.kind == b.kind == "const":
        return const(a._payload * b._payload)
    size = len(a.terms) * len(b.terms)
    if size > MAX_TERMS:
        counts = f"{len(a.terms)} and {len(b.terms)}"
        raise ValueError(f"a product of {counts} terms is too large to expand (limit {MAX_TERMS})")
    return (_expanded if size <= SHORT else _expanded.__wrapped__)(a, b)


@functools.lru_cache(REMEMBERED)
def _expanded(a: Sym, b: Sym) -> Sym:
    total: Terms = {}
    for mono_a, coef_a in a.terms:
        for mono_b, coef_b in b.terms:
            mono = _monomial_product(mono_a, mono_b)
            total[mono] = total.get(mono, 0) + coef_a * coef_b
    return sum_of(total)


def _total(*terms: Sym) -> Sym:
    total: Terms = {}
    for term in terms:
        for mono, coef in term.terms:
            total[mono] = total.get(mono, 0) + coef
    return sum_of(total)


def _product_of(*factors: Sym) -> Sym:
    return functools.reduce(_product, factors)


@functools.lru_cache(REMEMBERED)
def _substituted(e: Sym, items: tuple[tuple[Sym, Sym | int], ...]) -> Sym:
    if wrong := [key for key, _ in items if key.kind != "var"]:
        raise ValueError(f"only variables can be substituted, not '{wrong[0]}'")
    return _rebuilt(e, {v: sym(replacement) for v, replacement in items})


def _rebuilt(e: Sym, memo: dict[Sym, Sym]) -> Sym:
    """e with the memo's expressions replaced by what the memo has for them; the memo grows."""
    if (known := memo.get(e)) is not None:
        return known
    if e._make is None:
        return e
    if e._terms is not None:  # a sum or a scaled monomial: without making its operands
        total: Terms = {}
        for mono, coef in e._terms:
            for part, part_coef in _rebuilt(mono, memo).terms:
                total[part] = total.get(part, 0) + part_coef * coef
        memo[e] = result = sum_of(total)
        return result
    memo[e] = result = e._make(*(_rebuilt(arg, memo) for arg in e.args))
    return result


def _rejoin_divmod(terms: Terms) -> bool:
    """Apply one of the identities that tie x // q and x % q together; False where none applies.

    `q*(x//q) + x%q` is x, `x - q*(x//q)` is x%q, `x - x%q` is q*(x//q), and `q*((x//q)%b) + x%q` is x%(q*b),
    each times any monomial. Every step lowers the depth of the divisions in the sum, so they come to an end.
    """
    divided = [mono for mono in terms if mono._divides]
    if len(terms) == 1 or not divided:
        return False
    for mono in sorted(divided, key=sort_key):  # in the order of no construction
        coef = terms[mono]
        for factor in factors_of(mono):
            if not factor._divides:
                continue
            x, q = factor.args
            others = list(factors_of(mono))
            others.remove(factor)
            rest = monomial(others)
            replace = _replace_quotient if factor.kind == "floordiv" else _replace_remainder
            if replace(terms, mono, coef, rest, x, q):
                return True
    return False


def _contains(terms: Terms, x: Sym, rest: Sym, coef: int) -> bool:
    """Whether the sum has every term of coef*rest*x, but for the constant of x."""
    return all(
        terms.get(_monomial_product(part, rest)) == part_coef * coef
        for part, part_coef in x.terms if part is not ONE
    )


def _replace_quotient(terms: Terms, mono: Sym, coef: int, rest: Sym, x: Sym, q: Sym) -> bool:
    """x - q*(x//q) is x % q, times -coef/q * rest."""
    if not q.is_const or coef % q.value or x.is_const:
        return False
    scale = -coef // q.value
    if not _contains(terms, x, rest, scale):
        return False
    del terms[mono]
    _accumulate(terms, x, rest, -scale)
    _accumulate(terms, mod(x, q), rest, scale)
    return True


def _replace_remainder(terms: Terms, mono: Sym, coef: int, rest: Sym, x: Sym, q: Sym) -> bool:
    """The identities with coef * rest * (x % q) in them."""
    quotient = floordiv(x, q)
    if len(quotient.terms) != 1 or quotient.terms[0][1] != 1:
        return False
    times = _monomial_product(rest, quotient.terms[0][0])
    partners = {_monomial_product(part, times): part_coef * coef for part, part_coef in q.terms}
    joins = len(partners) == len(q.terms)  # unless a condition is a factor of two of them
    if joins and all(terms.get(partner) == scale for partner, scale in partners.items()):
        for each in (mono, *partners):
            del terms[each]
        _accumulate(terms, x, rest, coef)
        return True
    if not q.is_const:
        return False
    scale = coef * q.value
    if not x.is_const and abs(scale) <= LARGEST_INTEGER and _contains(terms, x, rest, -coef):
        del terms[mono]
        _accumulate(terms, x, rest, coef)
        _accumulate(terms, quotient, rest, -scale)
        return True
    for other, other_coef in terms.items():
        if other_coef != scale:
            continue
        for factor in factors_of(other):
            if factor.kind != "mod" or factor.args[0] is not quotient or not factor.args[1].is_const:
                continue
            by = q.value * factor.args[1].value
            if by <= LARGEST_INTEGER and _monomial_product(rest, factor) is other:
                del terms[mono], terms[other]
                _accumulate(terms, mod(x, by), rest, coef)
                return True
    return False


# --- division ------------------------------------------------------------------------------------------------


@functools.lru_cache(REMEMBERED)
def floordiv(x: Sym | int, q: Sym | int) -> Sym:
    """x // q, rounded down; ZeroDivisionError where q is the constant 0."""
    x, q = sym(x), sym(q)
    if q.is_const:
        return _floordiv_const(x, q.value)
    if all(coef < 0 for _, coef in q.terms):
        return floordiv(-x, -q)
    whole, remainder = _split_multiples(x, q)
    if remainder is ZERO:
        return whole
    common = _common_factor(remainder, q)
    if common is not ONE:
        return whole + floordiv(_exact_quotient(remainder, common), _exact_quotient(q, common))
    if remainder.interval[0] >= 0 and (q - 1 - remainder).interval[0] >= 0:
        return whole
    return whole + intern("floordiv", floordiv, (remainder, q))


@functools.lru_cache(REMEMBERED)
def mod(x: Sym | int, q: Sym | int) -> Sym:
    """x % q, with the sign of q, so that x == q*(x // q) + x % q; ZeroDivisionError where q is the constant 0."""
    x, q = sym(x), sym(q)
    if q.is_const:
        return _mod_const(x, q.value)
    if all(coef < 0 for _, coef in q.terms):
        return -mod(-x, -q)
    _, remainder = _split_multiples(x, q)
    if remainder is ZERO:
        return ZERO
    common = _common_factor(remainder, q)
    if common is not ONE:
        return common * mod(_exact_quotient(remainder, common), _exact_quotient(q, common))
    if remainder.interval[0] >= 0 and (q - 1 - remainder).interval[0] >= 0:
        return remainder
    return intern("mod", mod, (remainder, q))


def _divided_term(mono: Sym, coef: int, by: Sym, by_coef: int) -> tuple[Sym, int] | None:
    """(mono * coef) / (by * by_coef) where that is a term with an integer coefficient."""
    if coef % by_coef:
        return None
    remaining = list(factors_of(mono))
    for factor in factors_of(by):
        if factor not in remaining:
            return None
        remaining.remove(factor)
    return monomial(remaining), coef // by_coef


def _split_multiples(x: Sym, q: Sym) -> tuple[Sym, Sym]:
    """(whole, remainder) with x == whole*q + remainder, where remainder has no term that q obviously divides."""
    if len(q.terms) > 1:
        multiple = _polynomial_quotient(x, q)
        return (ZERO, x) if multiple is None else (multiple, ZERO)
    ((by, by_coef),) = q.terms
    whole: Terms = {}
    remainder: Terms = {}
    for mono, coef in x.terms:
        quotient = _divided_term(mono, coef, by, by_coef)
        if quotient is None:
            remainder[mono] = coef
        else:
            whole[quotient[0]] = whole.get(quotient[0], 0) + quotient[1]
    return sum_of(whole), sum_of(remainder)


def _polynomial_quotient(x: Sym, q: Sym) -> Sym | None:
    """x / q where q divides the polynomial x without remainder, by long division of the leading terms."""
    lead, lead_coef = max(q.terms, key=_lexicographic)
    quotient: Terms = {}
    remainder = x
    for _ in range(len(x.terms)):
        if remainder is ZERO:
            return sum_of(quotient)
        step = _divided_term(*max(remainder.terms, key=_lexicographic), lead, lead_coef)
        if step is None:
            return None
        quotient[step[0]] = quotient.get(step[0], 0) + step[1]
        remainder = remainder - _scaled(*step) * q
    return sum_of(quotient) if remainder is ZERO else None


def _lexicographic(term: tuple[Sym, int]) -> tuple[Any, ...]:
    """An order of monomials by degree, which multiplication keeps for most products."""
    factors = factors_of(term[0])
    return len(factors), [factor.sort_key for factor in factors]


def _common_factor(x: Sym, q: Sym) -> Sym:
    """The largest monomial with coefficient that divides every term of x and of q."""
    terms = (*x.terms, *q.terms)
    coef = gcd(*(coef for _, coef in terms))
    shared = list(factors_of(terms[0][0]))
    for mono, _ in terms[1:]:
        available = list(factors_of(mono))
        kept = []
        for factor in shared:
            if factor in available:
                available.remove(factor)
                kept.append(factor)
        shared = kept
    return _scaled(monomial(shared), coef)


def _exact_quotient(x: Sym, by: Sym) -> Sym:
    """x divided by a common factor of its terms."""
    ((mono, coef),) = by.terms
    total: Terms = {}
    for part, part_coef in x.terms:
        term = _divided_term(part, part_coef, mono, coef)
        assert term is not None
        total[term[0]] = total.get(term[0], 0) + term[1]
    return sum_of(total)


def _split_const_multiples(x: Sym, q: int) -> tuple[Sym, Sym]:
    """(whole, remainder) with x == whole*q + remainder, no coefficient of which can be divided; its constant is in
    [0, q)."""
    whole: Terms = {}
    remainder: Terms = {}
    for mono, coef in x.terms:
        if mono is ONE:
            whole[ONE], remainder[ONE] = divmod(coef, q)
        elif coef % q == 0:
            whole[mono] = coef // q
        else:
            remainder[mono] = coef
    return sum_of(whole), sum_of(remainder)


def _fixed_quotient(x: Sym, q: int) -> int | None:
    """x // q where the bounds of x leave one value."""
    lo, hi = x.bounds
    return lo // q if lo is not None and hi is not None and lo // q == hi // q else None


def _split_coarse(x: Sym, q: int) -> tuple[int, Sym, Sym] | None:
    """(g, coarse, fine) with x == g*coarse + fine, g > 1 a divisor of q, 0 <= fine < g; None where there is none."""
    for g in sorted({gcd(coef, q) for mono, coef in x.terms if mono is not ONE} - {1}, reverse=True):
        coarse, fine = _split_const_multiples(x, g)
        lo, hi = fine.interval
        if lo >= 0 and hi < g:
            return g, coarse, fine
    return None


def _floordiv_const(x: Sym, q: int) -> Sym:
    if q == 0:
        raise ZeroDivisionError(f"division of '{x}' by zero")
    if q < 0:
        return _floordiv_const(-x, -q)
    if q == 1 or x is ZERO:
        return x
    whole, remainder = _split_const_multiples(x, q)
    return whole + _quotient_atom(remainder, q)


def _quotient_atom(x: Sym, q: int) -> Sym:
    """x // q for an x out of which multiples of q were taken."""
    if (fixed := _fixed_quotient(x, q)) is not None:
        return const(fixed)
    if (split := _split_coarse(x, q)) is not None:
        g, coarse, _ = split
        return _floordiv_const(coarse, q // g)
    atoms = [(mono, coef) for mono, coef in x.terms if mono is not ONE]
    if len(atoms) == 1 and atoms[0][1] == 1 and atoms[0][0].kind in ("floordiv", "mod"):
        atom = atoms[0][0]
        inner, divisor = atom.args
        merges = divisor.is_const and atom.kind == "floordiv" and divisor.value * q <= LARGEST_INTEGER
        if merges and fits_64_bits(whole := inner + (x - atom) * divisor):
            return _floordiv_const(whole, divisor.value * q)
        if divisor.is_const and atom.kind == "mod" and x is atom and divisor.value % q == 0:
            return _mod_const(_floordiv_const(inner, q), divisor.value // q)
    return intern("floordiv", floordiv, (x, const(q)))


def _mod_const(x: Sym, q: int) -> Sym:
    if q == 0:
        raise ZeroDivisionError(f"'{x}' modulo zero")
    if q < 0:
        return -_mod_const(-x, -q)
    fewer = _without_inner_mods(x, q)
    for form in dict.fromkeys((x, fewer if fits_64_bits(fewer) else x)):  # the first has tighter bounds
        _, x = _split_const_multiples(form, q)
        if (fixed := _fixed_quotient(x, q)) is not None:
            return x - fixed * q
        if (split := _split_coarse(x, q)) is not None:
            g, coarse, fine = split
            return g * _mod_const(coarse, q // g) + fine
    return intern("mod", mod, (x, const(q)))


def _without_inner_mods(x: Sym, q: int) -> Sym:
    """x, or an expression of the same remainder by q, in which c*(y % a) is c*y where q divides c*a."""
    terms = dict(x.terms)  # not made a sum between the steps: one that also has y//a would take y % a back
    while inner := [mono for mono, coef in terms.items() if _drops_out(mono, coef, q)]:
        _accumulate(terms, inner[0].args[0], ONE, terms.pop(inner[0]))
    return x if terms == dict(x.terms) else sum_of(terms)


def _drops_out(mono: Sym, coef: int, q: int) -> bool:
    """Whether the monomial is y % a, where q divides coef*a."""
    return mono.kind == "mod" and mono.args[1].is_const and coef * mono.args[1].value % q == 0
