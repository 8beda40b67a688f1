"""The fuzzer of size arithmetic: random expressions over sizes, as native code computes their canonical forms in 64
bits, against the same arithmetic in Python's integers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.fuzz.registry import Tried
from tilewright.ir import sym as s
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.symbolic.reach import LARGEST_INTEGER, LARGEST_SIZE, MOST_ELEMENTS, fits_64_bits

EXPRESSIONS, POINTS = 12, 24
LARGEST = 1 << 31
SMALL = 1 << 55
"""A computation none of whose numbers is larger has a canonical form that fits 64 bits: multiplied out, what was one
number is a sum of several."""

VARIABLES = (
    var("n"), var("m", 1), var("i", 0, 5), var("k", -7, 9), var("w", 2, 300), var("d", 1, LARGEST), var("u", None),
)  # fmt: skip
FACTORS = ((6, 5), (1, 3), (7, 10), (13, 3), (5404319552844595, 1 << 52), (19, 48), (3, 1 << 20),
           ((1 << 20) + 7, 1 << 21), (12345677, 10**7))  # fmt: skip


class LeavesRangeError(Exception):
    """A number needs more than 64 bits."""


def within(value: int) -> int:
    if abs(value) > LARGEST_INTEGER:
        raise LeavesRangeError
    return value


def wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass(frozen=True)
class Twin:
    """A computation, as a canonical expression and as written: `text` in Python. `reach` bounds the numbers that occur
    in it as written, for all sizes."""

    text: str
    form: Sym
    compute: Callable[[Mapping[str, int]], int]
    reach: int


def leaf(rng: random.Random) -> Twin:
    if rng.random() < 0.3:
        value = rng.choice((0, 1, 2, 3, 5, 7, 8, 16, 100, -1, -3, 1 << rng.randrange(40), rng.randrange(1 << 32)))
        return Twin(str(value), sym(value), lambda env: value, abs(value))
    v = rng.choice(VARIABLES)
    low, high = (LARGEST_SIZE if end is None else abs(end) for end in v.bounds)
    return Twin(v.name, v, lambda env: env[v.name], max(low, high))


def twin(rng: random.Random, depth: int) -> Twin:
    if depth == 0 or rng.random() < 0.1:
        return leaf(rng)
    return rng.choice(KINDS)(rng, depth - 1)


def _sum(rng: random.Random, depth: int) -> Twin:
    a, b, sign = twin(rng, depth), twin(rng, depth), rng.choice((1, -1))
    return Twin(
        f"({a.text} {'+' if sign > 0 else '-'} {b.text})",
        a.form + sign * b.form,
        lambda env: within(a.compute(env) + sign * b.compute(env)),
        a.reach + b.reach,
    )


def _product(rng: random.Random, depth: int) -> Twin:
    a, b = twin(rng, depth), twin(rng, rng.choice((0, 0, depth)))
    reach = max(a.reach, b.reach, a.reach * b.reach)
    product: Callable[[Mapping[str, int]], int] = lambda env: within(a.compute(env) * b.compute(env))  # noqa: E731
    return Twin(f"({a.text} * {b.text})", a.form * b.form, product, reach)


def _scaled(rng: random.Random, depth: int) -> Twin:
    """What a factor makes of a size, and often what another makes of that."""
    a = twin(rng, depth)
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        a = _scaled_once(a, *rng.choice(FACTORS))
    return a


def _scaled_once(a: Twin, p: int, q: int) -> Twin:
    reach = max(a.reach * p, q)
    return Twin(f"({a.text} * {p} // {q})", a.form * p // q, lambda env: within(a.compute(env) * p) // q, reach)


def _divided(rng: random.Random, depth: int) -> Twin:
    """A quotient or a remainder, rounded down or up; of a number, or of a size that is not 0."""
    a = twin(rng, depth)
    b = twin(rng, rng.choice((0, 0, 1, depth)))
    b = Twin(f"max({b.text}, 1)", s.maximum(b.form, 1), lambda env, of=b.compute: max(of(env), 1), max(b.reach, 1))  # type: ignore[misc]
    reach = max(a.reach, b.reach)
    match rng.randrange(3):
        case 0:
            text = f"({a.text} // {b.text})"
            return Twin(text, a.form // b.form, lambda env: a.compute(env) // b.compute(env), reach)
        case 1:
            text = f"({a.text} % {b.text})"
            return Twin(text, a.form % b.form, lambda env: a.compute(env) % b.compute(env), reach)
    return Twin(
        f"(({a.text} + {b.text} - 1) // {b.text})",
        s.ceildiv(a.form, b.form),
        lambda env: within(a.compute(env) + b.compute(env) - 1) // b.compute(env),
        a.reach + b.reach,
    )


def _extremum(rng: random.Random, depth: int) -> Twin:
    a, b, least = twin(rng, depth), twin(rng, depth), rng.random() < 0.5
    form, of = (s.minimum, min) if least else (s.maximum, max)
    text = f"{'min' if least else 'max'}({a.text}, {b.text})"
    return Twin(text, form(a.form, b.form), lambda env: of(a.compute(env), b.compute(env)), max(a.reach, b.reach))


def _condition(rng: random.Random, depth: int) -> Twin:
    a, b = twin(rng, depth), twin(rng, depth)
    sign, form, holds = rng.choice((("<", s.lt, int.__lt__), ("<=", s.le, int.__le__), (">", s.gt, int.__gt__),
                                    ("==", s.eq, int.__eq__), ("!=", s.ne, int.__ne__)))  # fmt: skip

    def compute(env: Mapping[str, int]) -> int:
        left, right = a.compute(env), b.compute(env)
        within(abs(left - right) + 1)  # that is what is compared with 0
        return int(holds(left, right))

    return Twin(f"({a.text} {sign} {b.text})", form(a.form, b.form), compute, a.reach + b.reach + 1)


def _select(rng: random.Random, depth: int) -> Twin:
    c, a, b = _condition(rng, depth), twin(rng, depth), twin(rng, depth)

    def compute(env: Mapping[str, int]) -> int:
        ways = a.compute(env), b.compute(env)  # both are computed
        return ways[0] if c.compute(env) else ways[1]

    text = f"({a.text} if {c.text} else {b.text})"
    return Twin(text, s.select(c.form, a.form, b.form), compute, max(c.reach, a.reach, b.reach))


def _regrouped(rng: random.Random, depth: int) -> Twin:
    """A number taken apart by its quotient and remainder, and put together."""
    a, q, b = twin(rng, depth), rng.choice((3, 8, 300, 1 << 20, 1 << 33)), rng.choice((2, 7, 1 << 15, 1 << 34))
    return Twin(
        f"({a.text} // {q} % {b} * {q} + {a.text} % {q})",
        (a.form // q % b) * q + a.form % q,
        lambda env: within((a.compute(env) // q % b) * q) + a.compute(env) % q,
        # the parts of a size are no larger than it
        max(a.reach, q, b) if a.form.interval[0] >= 0 else max(a.reach, q * b),
    )


KINDS = (_sum, _sum, _product, _scaled, _divided, _divided, _extremum, _select, _regrouped)


def native(e: Sym, env: Mapping[str, int], fit: Callable[[int], int]) -> int:
    """The value as native code computes it: `fit` is what becomes of a number in a register. Both sides of a select are
    computed, and a division by 0 is one by 1."""
    if e.kind == "const":
        return fit(e.value)
    if e.kind == "var":
        return env[e.name]
    if e.kind in ("add", "mul") and e.terms != ((e, 1),):
        total = 0
        for mono, coef in e.terms:
            total = fit(total + fit(fit(coef) * native(mono, env, fit)))
        return total
    args = [native(arg, env, fit) for arg in e.args]
    match e.kind:
        case "mul":
            product = 1
            for arg in args:
                product = fit(product * arg)
            return product
        case "floordiv":
            return fit(args[0] // (args[1] or 1))
        case "mod":
            return args[0] % (args[1] or 1)
        case "min":
            return min(args)
        case "max":
            return max(args)
        case "ge0":
            return int(args[0] >= 0)
        case "eq0":
            return int(args[0] == 0)
    assert e.kind == "select", e.kind
    return args[1] if args[0] else args[2]


def magnitude(rng: random.Random, low: int, high: int) -> int:
    """A size within bounds: small ones, the ends, and of every order."""
    choice = rng.random()
    if choice < 0.2:
        return rng.choice((low, high))
    if choice < 0.5:
        return rng.randint(low, min(high, max(low, 0) + 100))
    value = rng.getrandbits(rng.randrange(1, 32)) * (rng.choice((1, -1)) if low < 0 else 1)
    return max(low, min(high, value))


def points(rng: random.Random) -> Iterator[dict[str, int]]:
    for _ in range(POINTS):
        ends = ((v.name, *(e if e is not None else LARGEST * sign for e, sign in zip(v.bounds, (-1, 1), strict=True)))
                for v in VARIABLES)  # fmt: skip
        yield {name: magnitude(rng, low, high) for name, low, high in ends}


def has_elements(e: Sym, env: Mapping[str, int]) -> bool:
    """Whether the products of sizes count elements that memory could hold, as is taken for granted."""
    if e.kind == "mul" and e.terms == ((e, 1),) and abs(e.evaluate(env)) > MOST_ELEMENTS:
        return False
    parts = [mono for mono, _ in e.terms if mono is not e] or e.args
    return all(has_elements(part, env) for part in parts)


def fuzz(seed: int) -> Tried:
    """Expressions whose computation as written stays within 64 bits at a point have that value there."""
    rng = random.Random(seed)
    tried: Tried = Counter()
    for _ in range(EXPRESSIONS):
        each = twin(rng, rng.choice((1, 2, 3, 4)))
        fits = fits_64_bits(each.form)
        assert fits or each.reach > SMALL, f"{each.text} as {each.form} may leave 64 bits"
        for env in points(rng):
            try:
                expected = each.compute(env)
            except LeavesRangeError:
                tried["computation", "too large"] += 1
                continue
            if not has_elements(each.form, env):
                tried["computation", "no memory"] += 1
                continue
            try:
                found = native(each.form, env, within if fits else wrapped)
            except LeavesRangeError:
                raise AssertionError(f"{each.text} as {each.form} leaves 64 bits at {env}") from None
            if fits:
                assert found == expected, f"{each.text} as {each.form} is {found} at {env}, not {expected}"
            tried["form that fits" if fits else "form that may leave", "equal" if found == expected else "other"] += 1
    return tried
