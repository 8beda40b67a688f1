"""Integer expressions as 64-bit LLVM arithmetic, for one value or for a value in each lane of a vector
loop."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import NamedTuple, Self

from tilewright.codegen.cpu.kernel.functions import intrinsic
from tilewright.codegen.cpu.kernel.lanes import vector
from tilewright.codegen.cpu.kernel.text import Reg, Text
from tilewright.ir import dtype as dt
from tilewright.ir.diag import InternalError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import ONE, Sym, rebuild
from tilewright.ir.symbolic.arith import factors_of
from tilewright.ir.symbolic.reach import LARGEST_INTEGER


@dataclass(frozen=True, slots=True)
class Iota:
    """The variable of a vector loop: base, base + 1, ... in `lanes` lanes."""

    base: int
    lanes: int


Number = int | Reg
"""A known integer, or a register of i64 with as many lanes as differ."""

_RELATIONS: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {"eq": operator.eq, "ne": operator.ne, "sge": operator.ge, "slt": operator.lt}
)
_MASKS: Mapping[int, DType] = MappingProxyType({8: dt.u8, 16: dt.u16, 32: dt.u32})
"""Integers with a bit for each of so many lanes."""

Term = tuple[Sym, int]


class Affine(NamedTuple):
    """An expression as `constant + uniform + stride * lane + general`; `general` is None or one value a
    lane."""

    constant: int
    uniform: Number
    stride: Number
    general: Number | None


class _Plan(NamedTuple):
    """How an address depends on variables, as long as these stay what they are (`epoch`): `known` numbers, registers of
    one lane (`uniform`, from the outermost loop inwards), and the terms that move with the lane. The constant and the
    stride are those of `lanes` where they are no more than the variables of vector loops, and `lanes` then is empty."""

    epoch: int
    constant: int
    known: Sequence[Term]
    uniform: tuple[Term, ...]
    stride: int
    lanes: Sequence[Term]


class _Scope(NamedTuple):
    """What holds until the scope ends: `keys` are those of values. `block` is the level of the innermost scope, this
    one or one around it, with which control flow begins."""

    block: int
    keys: list[object]


class Indices:
    """Emits integer expressions, each once within the code that it dominates. `mask_registers` says that the machine
    has registers for the conditions of lanes."""

    def __init__(self, text: Text, *, mask_registers: bool = False) -> None:
        self.text = text
        self.mask_registers = mask_registers
        self.true, self.false = (text.constant(dt.bool_, value) for value in (True, False))
        self._env: dict[Sym, Number | Iota] = {}
        self._known: dict[Sym, int] = {}  # variables that are numbers
        self._varying: dict[Sym, int] = {}  # the lanes of variables whose values differ between them
        self._epoch = 0  # changes when a variable becomes something of another kind
        self._plans: dict[Sym, _Plan] = {}
        self._bytes: dict[Sym, Reg] = {}
        self._level: dict[Sym, int] = {}
        self._scopes = [_Scope(0, [])]
        self._values: dict[object, object] = {}  # computed so far, each until a scope ends

    # Scopes and variables

    def scope(self, *, is_block: bool) -> Self:
        """`with indices.scope(...)`: what is computed inside may be reused only inside; without control flow, less is
        forgotten."""
        self._scopes.append(_Scope(len(self._scopes) if is_block else self._block_level(), []))
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        for key in self._scopes.pop().keys:
            del self._values[key]

    def integer(self, name: str) -> Reg:
        """The i64 register of this name."""
        return self.text.named(name, dt.i64)

    def bind(self, v: Sym, value: Number | Iota) -> None:
        """Give a variable its value for the rest of the current scope."""
        level = len(self._scopes) - 1
        if v in self._known and isinstance(value, int) and self._level[v] == level:  # the next of an unrolled loop
            self._env[v] = self._known[v] = value
            return
        if v in self._env and (self._level[v] != level or not _are_alike(self._env[v], value)):
            self._epoch += 1
        self._env[v] = value
        self._level[v] = level
        self._known.pop(v, None)
        self._varying.pop(v, None)
        if isinstance(value, int):
            self._known[v] = value
        elif value.lanes > 1:
            self._varying[v] = value.lanes

    def bind_byte(self, v: Sym, value: Reg) -> None:
        """Tell of a variable that was given its value now that it is this byte (u8)."""
        self._bytes[v] = value

    def byte(self, e: Sym) -> Reg | None:
        """The byte (u8) that `e` is, where it is known to be one."""
        return self._bytes.get(e)

    def lanes_of(self, e: Sym) -> int:
        """Lanes that differ in the value of `e`: 1 when it is the same for all."""
        varying = self._varying
        if not varying:
            return 1
        if e.kind == "var":
            return varying.get(e, 1)
        return 1 if e.vars.isdisjoint(varying) else max([varying.get(v, 1) for v in e.vars])

    def _value_of(self, v: Sym) -> Number | Iota:
        value = self._env.get(v)
        if value is None:
            raise InternalError(
                f"the variable '{v}' has no value here", hint="this is a defect; please report it"
            )
        return value

    def _block_level(self) -> int:
        return self._scopes[-1].block

    def cached(self, key: object) -> object | None:
        """What was remembered under `key` where it still holds."""
        return self._values.get(key)

    def remember(self, key: object, value: object, variables: Iterable[Sym]) -> None:
        """Keep `value`, computed here from `variables`, as long as it holds."""
        level = max([self._level[v] for v in variables], default=0)
        self._remember(key, value, max(level, self._block_level()))

    def remember_here(self, key: object, value: object) -> None:
        """Keep `value`, computed here from SSA values, until the current block's scope ends."""
        self._remember(key, value, self._block_level())

    def _remember(self, key: object, value: object, level: int) -> None:
        if key not in self._values:
            self._scopes[level].keys.append(key)
        self._values[key] = value

    def once(self, key: object, compute: Callable[[], Reg]) -> Reg:
        """What `compute` emits from SSA values, or did before where that still holds."""
        found = self.cached(key)
        if found is None:
            found = compute()
            self.remember_here(key, found)
        assert isinstance(found, Reg)
        return found

    # Expressions

    def number(self, e: Sym) -> Number:
        """The value of `e`; an int where it is known, with as many lanes as differ."""
        if e.kind == "const":
            return e.value
        if e.kind == "var":
            return self._variable(e)
        found = self.cached(e)
        if found is None:
            found = self._computed(e)
            self.remember(e, found, e.vars)
        assert isinstance(found, int | Reg)
        return found

    def uniform(self, e: Sym) -> str:
        """The value of `e` as an i64 operand; it must not differ between lanes."""
        return self.in_lanes(self.number(e), 1).name

    def in_lanes(self, x: Number, lanes: int) -> Reg:
        """`x` as a register or literal of so many lanes."""
        if isinstance(x, int):
            return self.text.constant(dt.i64, _fitting(x), lanes)
        return self.in_all_lanes(x, lanes)

    def in_all_lanes(self, x: Reg, lanes: int) -> Reg:
        """`x` in so many lanes, which it has or which are all the same."""
        if x.lanes == lanes or x.is_literal:
            return x.splat(lanes)
        return self.once(("splat", x.name, lanes), lambda: x.splat(lanes))

    def _variable(self, v: Sym) -> Number:
        value = self._value_of(v)
        return self.iota(value.lanes, value.base) if isinstance(value, Iota) else value

    def iota(self, lanes: int, base: int = 0) -> Reg:
        """base, base + 1, ... as a constant vector."""
        items = ", ".join(f"i64 {base + k}" for k in range(lanes))
        return self.text.named(f"<{items}>", dt.i64, lanes)

    def _computed(self, e: Sym) -> Number:
        match e.kind:
            case "add" | "mul":
                return self._polynomial(e.terms)
            case "floordiv":
                return self._floordiv(e)
            case "mod":
                return self._mod(e)
            case "min" | "max":
                return self._extremum(e)
            case "select":
                return self._select(e)
        flag = self.condition(e)
        if flag.known is not None:
            return int(flag.known)
        return flag.convert("zext", dt.i64)

    def _polynomial(self, terms: Sequence[Term]) -> Number:
        constant, rest = self._sum(terms)
        return self.add(rest, constant)

    def _sum(self, terms: Sequence[Term]) -> tuple[int, Number]:
        """The terms' sum as (known part, remainder); partial sums of outer variables are kept for reuse."""
        known = self._known
        constant = 0
        open_: list[Term] = []
        for term in terms:
            mono, coef = term
            number = 1 if mono is ONE else known.get(mono)
            if number is None:
                open_.append(term)
            else:
                constant += coef * number
        return constant, self._total(self._outermost_first(open_))

    def _outermost_first(self, terms: Sequence[Term]) -> tuple[Term, ...]:
        return tuple(sorted(terms, key=self._term_level) if len(terms) > 1 else terms)

    def _total(self, terms: tuple[Term, ...]) -> Number:
        """The sum of terms that are not known, from the outermost loop's inwards."""
        total = self._values.get(terms) if terms else 0
        if total is not None:
            assert isinstance(total, int | Reg)
            return total
        total = 0
        seen: tuple[Term, ...] = ()
        for term in terms:
            seen = (*seen, term)
            found = self._values.get(seen)
            if found is None:
                mono, coef = term
                found = self.add(total, self.multiply(self._monomial(mono), coef))
                self.remember(seen, found, [v for m, _ in seen for v in m.vars])
            assert isinstance(found, int | Reg)
            total = found
        return total

    def _term_level(self, term: Term) -> int:
        mono = term[0]
        if mono.kind == "var":
            return self._level.get(mono, 0)
        return max([self._level.get(v, 0) for v in mono.vars])

    def _monomial(self, mono: Sym) -> Number:
        if mono.kind != "mul":
            return self.number(mono)
        product: Number = 1
        for factor in sorted(factors_of(mono), key=lambda f: self._term_level((f, 1))):
            product = self.multiply(product, self.number(factor))
        return product

    def _floordiv(self, e: Sym) -> Number:
        x, q = e.args
        a, b = self.number(x), self._divisor(q)
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            return self.binary("ashr", a, b.bit_length() - 1)
        if x.interval[0] >= 0 and q.interval[0] >= 0:
            return self.binary("udiv", a, b)
        quotient, inexact = self._signed_division(a, b)
        lowered = self.binary("sub nsw", quotient, 1)
        return self.choose(inexact, lowered, quotient)

    def _mod(self, e: Sym) -> Number:
        x, q = e.args
        a, b = self.number(x), self._divisor(q)
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        if isinstance(b, int) and b > 0 and b & (b - 1) == 0:
            return self.binary("and", a, b - 1)
        if x.interval[0] >= 0 and q.interval[0] >= 0:
            return self.binary("urem", a, b)
        remainder = self.binary("srem", a, b)
        differs = self._signs_differ(remainder, b)
        return self.choose(differs, self.add(remainder, b), remainder)

    def _divisor(self, q: Sym) -> Number:
        """The value of `q`, or 1 where it is 0: a division of a branch that is not taken must not trap."""
        b = self.number(q)
        if isinstance(b, int):
            return _fitting(b) or 1
        return b if q.interval[0] > 0 else self.choose(self._compare("eq", b, 0), 1, b)

    def _signed_division(self, a: Number, b: Number) -> tuple[Number, Reg]:
        """The quotient towards zero, and whether the one towards minus infinity is smaller."""
        quotient = self.binary("sdiv", a, b)
        remainder = self.binary("sub nsw", a, self.multiply(quotient, b))
        return quotient, self._signs_differ(remainder, b)

    def _signs_differ(self, remainder: Number, b: Number) -> Reg:
        nonzero = self._compare("ne", remainder, 0)
        return self.combined([nonzero, self._compare("slt", self.binary("xor", remainder, b), 0)])

    def _extremum(self, e: Sym) -> Number:
        result, *others = (self.number(arg) for arg in e.args)
        for other in others:
            if isinstance(result, int) and isinstance(other, int):
                result = min(result, other) if e.kind == "min" else max(result, other)
                continue
            result = intrinsic(f"s{e.kind}", *self._alike(result, other))
        return result

    def _select(self, e: Sym) -> Number:
        flag = self.condition(e.args[0])
        if flag.known is not None:
            return self.number(e.args[1 if flag.known else 2])
        return self.choose(flag, self.number(e.args[1]), self.number(e.args[2]))

    # Conditions

    def condition(self, e: Sym) -> Reg:
        """Whether `e` is not 0."""
        key = ("condition", e)
        found = self.cached(key)
        if found is None:
            found = self._condition(e)
            self.remember(key, found, e.vars)
        assert isinstance(found, Reg)
        return found

    def _condition(self, e: Sym) -> Reg:
        if e.kind == "ge0":
            constant, uniform, stride, general = self.affine(e.args[0])
            lanes = self.lanes_of(e)
            narrow = isinstance(stride, int) and 0 < abs(stride) * lanes < 1 << 31
            if general is None and isinstance(stride, int) and narrow:
                return self._lane_comparison(stride, self.add(uniform, constant), lanes)
            return self._compare("sge", self.number(e.args[0]), 0)
        if e.kind == "eq0":
            return self._compare("eq", self.number(e.args[0]), 0)
        if e.kind in ("min", "max") and all(arg.is_bool for arg in e.args):
            return self.combined([self.condition(arg) for arg in e.args], conjunction=e.kind == "min")
        return self._compare("ne", self.number(e), 0)

    def _lane_comparison(self, stride: int, uniform: Number, lanes: int) -> Reg:
        """uniform + stride * lane >= 0 in each lane, compared in 32 bits: `uniform` is clamped to where it decides."""
        if isinstance(uniform, int):
            holds = [uniform + stride * k >= 0 for k in range(lanes)]
            if all(holds) or not any(holds):
                return self.true if holds[0] else self.false
            return self.text.named("<" + ", ".join(f"i1 {int(h)}" for h in holds) + ">", dt.bool_, lanes)
        if abs(stride) == 1 and lanes in _MASKS and self.mask_registers:
            return self._lanes_from_bits(stride, uniform, lanes)
        reach = abs(stride) * lanes
        near = intrinsic("smin", intrinsic("smax", uniform, -reach), reach).to(dt.i32)
        limits = ", ".join(f"i32 {-stride * k}" for k in range(lanes))
        return near.splat(lanes) >= self.text.named(f"<{limits}>", dt.i32, lanes)

    def _lanes_from_bits(self, stride: int, uniform: Reg, lanes: int) -> Reg:
        """The same for a stride of 1 or -1, from an integer with a bit for each lane. It stays in a mask register; but
        comparisons of vectors LLVM moves into the loops that use them, where limits take vector registers."""
        end = self.add(uniform, 1) if stride < 0 else self.binary("sub", 0, uniform)
        count = intrinsic("smin", intrinsic("smax", self.in_lanes(end, 1), 0), lanes)
        above = self.binary("shl", -1, count)
        bits = (self.binary("xor", above, -1) if stride < 0 else above).to(_MASKS[lanes])
        return self.text.reg(dt.bool_, lanes, f"bitcast {bits.typed} to {vector('i1', lanes)}")

    def combined(self, flags: Iterable[Reg], conjunction: bool = True) -> Reg:
        """The conjunction (or disjunction) of conditions."""
        neutral, absorbing = (self.true, self.false) if conjunction else (self.false, self.true)
        open_ = [flag for flag in flags if flag != neutral]
        if absorbing in open_ or not open_:
            return absorbing if open_ else neutral
        lanes = max(flag.lanes for flag in open_)
        return reduce(operator.and_ if conjunction else operator.or_, [f.splat(lanes) for f in open_])

    # Arithmetic

    def add(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0:
            return b
        return a if b == 0 else self.binary("add nsw", a, b)

    def multiply(self, a: Number, b: Number) -> Number:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1:
            return b
        return a if b == 1 else self.binary("mul nsw", a, b)

    def _alike(self, a: Number, b: Number, least: int = 1) -> tuple[Reg, Reg]:
        """Both in as many lanes as one of them has, or `least`."""
        lanes = max(least, _lanes(a), _lanes(b))
        return self.in_lanes(a, lanes), self.in_lanes(b, lanes)

    def binary(self, opcode: str, a: Number, b: Number) -> Reg:
        left, right = self._alike(a, b)
        return left.op(opcode, right)

    def _compare(self, relation: str, a: Number, b: Number) -> Reg:
        if isinstance(a, int) and isinstance(b, int):
            return self.true if _RELATIONS[relation](a, b) else self.false
        left, right = self._alike(a, b)
        return left.test(f"icmp {relation}", right)

    def choose(self, flag: Reg, a: Number, b: Number) -> Reg:
        condition = flag.splat(max(flag.lanes, _lanes(a), _lanes(b)))
        return condition.select(*self._alike(a, b, condition.lanes))

    # Addresses

    def known_part(self, e: Sym) -> tuple[int, Sym]:
        """`e` as the sum of a number and of what is not known here."""
        known = {v: n for v, n in self._known.items() if v in e.vars}
        terms = (e.subs(known) if known else e).terms
        constant = sum(coef for mono, coef in terms if mono is ONE)
        return constant, e.subs(known) - constant if known else e - constant

    def affine(self, e: Sym) -> Affine:
        """`e` split by how it depends on the lane."""
        plan = self._plans.get(e)
        if plan is None or plan.epoch != self._epoch:
            plan = self._plans[e] = self._planned(e)
        constant = plan.constant
        known = self._known
        for v, coef in plan.known:
            constant += coef * known[v]
        if not plan.lanes:
            return Affine(_fitting(constant), self._total(plan.uniform), plan.stride, None)
        moved, stride, general = self._by_lane(plan.lanes)
        return Affine(_fitting(constant + moved), self._total(plan.uniform), stride, general)

    def _planned(self, e: Sym) -> _Plan:
        constant = stride = 0
        known: list[Term] = []
        uniform: list[Term] = []
        lanes: list[Term] = []
        for term in e.terms:
            mono, coef = term
            if mono is ONE:
                constant += coef
            elif mono in self._known:
                known.append(term)
            else:
                (uniform if self.lanes_of(mono) == 1 else lanes).append(term)
        iotas = [(value, coef) for mono, coef in lanes if isinstance(value := self._env.get(mono), Iota)]
        if len(iotas) == len(lanes):
            stride = sum(coef for _, coef in iotas)
            constant += sum(coef * iota.base for iota, coef in iotas)
            lanes = []
        return _Plan(self._epoch, constant, known, self._outermost_first(uniform), stride, lanes)

    def _by_lane(self, terms: Sequence[Term]) -> tuple[int, Number, Number | None]:
        """What terms that move with the lane add to the constant, the stride and all else of an address."""
        constant = 0
        stride: Number = 0
        general: Number | None = None
        for mono, coef in terms:
            step = self._step(mono)
            if step is None:
                value = self.multiply(self.number(mono), coef)
                general = value if general is None else self.add(general, value)
                continue
            iota, factor = step
            factor = self.multiply(factor, coef)
            stride = self.add(stride, factor)
            base = self.multiply(factor, iota.base)
            if isinstance(base, int):
                constant += base
            else:
                general = base if general is None else self.add(general, base)
        return constant, stride, general

    def either(self, e: Sym) -> tuple[Sym, Sym, Sym] | None:
        """A condition that all lanes share, and what `e` is where it holds and where it does not, if that alone decides
        how it moves over the lanes: the position along an axis that may have one element."""
        picks = [p for p in _selections(e) if self.lanes_of(p) > 1]
        if len(picks) != 1 or self.lanes_of(picks[0].args[0]) > 1:
            return None
        condition, then, otherwise = picks[0].args
        return condition, _replaced(e, picks[0], then), _replaced(e, picks[0], otherwise)

    def interleaved(self, e: Sym, lanes: int) -> list[Sym]:
        """The expressions of lanes 0 to n - 1 where every n-th lane from each of these on is larger by 1, for the
        smallest such n of 2 and 4; [] where there is none, as where a variable is another number in each lane."""
        moving = [v for v in e.vars if self.lanes_of(v) > 1]
        iota = self._env.get(moving[0]) if len(moving) == 1 else None
        if not isinstance(iota, Iota):
            return []
        (v,) = moving
        for n in (2, 4):
            if lanes % n or lanes == n or e.subs({v: iota.base + n}) - e.subs({v: iota.base}) != 1:
                continue
            found = [e.subs({v: iota.base + k}) for k in range(lanes)]
            if all(found[k] - found[k % n] == k // n for k in range(lanes)):
                return found[:n]
        return []

    def _step(self, mono: Sym) -> tuple[Iota, Number] | None:
        """A monomial that is linear in the lane: the variable's lanes, and the product of the other
        factors."""
        iota: Iota | None = None
        factor: Number = 1
        for f in factors_of(mono):
            value = self._env.get(f)
            if isinstance(value, Iota):
                if iota is not None:
                    return None
                iota = value
            elif self.lanes_of(f) == 1:
                factor = self.multiply(factor, self.number(f))
            else:
                return None
        return None if iota is None else (iota, factor)


def _fitting(x: int) -> int:
    """A number of an index; InternalError where no i64 is that number, on which LLVM would end the process."""
    if not -LARGEST_INTEGER <= x <= LARGEST_INTEGER:
        raise InternalError(f"the index {x} does not fit 64 bits", hint="please report this with the model")
    return x


def _are_alike(a: Number | Iota, b: Number | Iota) -> bool:
    """Whether a variable that was the one and is the other now depends on the lanes as it did."""
    if isinstance(a, Reg) and isinstance(b, Reg):
        return a.lanes == b.lanes
    return a == b if isinstance(a, Iota) else isinstance(a, int) and isinstance(b, int)


def _lanes(x: Number) -> int:
    return 1 if isinstance(x, int) else x.lanes


@lru_cache(maxsize=1 << 10)
def _selections(e: Sym) -> tuple[Sym, ...]:
    """The selections in an expression that are in no other one."""
    if e.kind == "select":
        return (e,)
    return tuple(dict.fromkeys(found for arg in e.args for found in _selections(arg)))


def _replaced(e: Sym, part: Sym, by: Sym) -> Sym:
    if e is part:
        return by
    return rebuild(e, tuple([_replaced(arg, part, by) for arg in e.args])) if e.args else e
