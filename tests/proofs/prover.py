"""Whether what a rule makes of a program is equal to it, for all sizes and all data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal

import z3

from tests.proofs.arithmetics import Moves, arithmetic
from tests.proofs.elements import Elements, Reduction
from tests.proofs.sizes import Sizes
from tests.proofs.statement import Given, Statement, known
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.rewrite import NoMatch, RewriteContext, Rule

MILLISECONDS = 5000
"""What z3 may take for one question."""

ANY_ORDER = ("min", "max", "and", "or")
"""Reductions that give the same bits in any order."""


@dataclass(frozen=True)
class Verdict:
    """What was found: of a rule that does not apply, or is refuted, `detail` says why, or where the results differ."""

    outcome: Literal["proved", "refuted", "unknown", "refused"]
    detail: str = ""


def check(statement: Statement, rule: Rule) -> Verdict:
    """Apply the rule to the statement's program, and compare both."""
    block = Block(list(statement.types), [f"x{k}" for k in range(len(statement.types))])
    module = Module()
    module.add(Func("main", block))
    with Builder(block, module) as builder:
        operands = [
            known(value.tensor, f"x{k}") if k in statement.constants else value for k, value in enumerate(block.args)
        ]
        written = statement.program(*operands)
        before, *read = written if isinstance(written, tuple) else (written,)
        builder.emit("return", read or [before])
    root = before.op
    assert root is not None
    if rule.ops and root.name not in rule.ops:
        return Verdict("refused", f"the program ends with {root.name}")
    scratch = Builder(Block(), module)
    with scratch:
        try:
            found = rule.fn(root, scratch, RewriteContext(module, module.main))
        except NoMatch as refusal:
            found = refusal
    if found is None or isinstance(found, NoMatch):
        return Verdict("refused", "" if found is None else found.reason)
    after = found if isinstance(found, Value) else found[0]
    if after.type != before.type:
        return Verdict("refuted", f"{after.type} in the place of {before.type}")
    return compare(before, after, statement, module)


def compare(before: Value, after: Value, statement: Statement, module: Module) -> Verdict:
    """Whether two values of the same type are equal in each element."""
    theory, sizes = arithmetic(statement.arithmetic, statement.one_zero), Sizes()
    sides = [Elements(theory, sizes, side, module) for side in ("a", "b")]
    at = [z3.Int(f"i{k}") for k in range(before.tensor.rank)]
    terms = [side.element(value, at) for side, value in zip(sides, (before, after), strict=True)]
    within = [z3.And(i >= 0, i < sizes.term(d, {})) for i, d in zip(at, before.tensor.shape, strict=True)]
    loaded = [term for side in sides for term in side.loaded]
    facts = [*within, *sizes.facts, *theory.axioms, *_given(statement.given, loaded, theory)]
    question = _Question(facts, theory)
    if not question.has_cases():
        return Verdict("unknown", "no sizes and data meet the conditions")
    for a in sides[0].reductions:
        for b in sides[1].reductions:
            question.learn_if_equal(a, b, sides)
    return question.verdict([], theory.same(*terms))


def _given(given: Sequence[Given], loaded: Sequence[Any], theory: Moves) -> Iterator[Any]:
    for condition in given:
        for term in loaded:
            if term.decl().name() == f"x{condition.operand}":
                number = z3.RealVal(condition.number)
                relations = {"!=": term != number, ">": term > number, ">=": term >= number}
                yield relations[condition.relation]


class _Question:
    """What is known so far of sizes, elements and reductions."""

    def __init__(self, facts: Sequence[Any], theory: Moves) -> None:
        self.facts = list(facts)
        self.theory = theory

    def solver(self) -> Any:
        solver = z3.Solver()
        solver.set("timeout", MILLISECONDS)
        solver.add(*self.facts)
        return solver

    def has_cases(self) -> bool:
        return bool(self.solver().check() != z3.unsat)

    def verdict(self, where: Sequence[Any], holds: Any) -> Verdict:
        solver = self.solver()
        solver.add(*where, z3.Not(holds))
        result = solver.check()
        if result == z3.unsat:
            return Verdict("proved")
        if result == z3.unknown:
            return Verdict("unknown", solver.reason_unknown())
        return Verdict("refuted", _counterexample(solver.model()))

    def holds(self, where: Sequence[Any], proposition: Any) -> bool:
        return self.verdict(where, proposition).outcome == "proved"

    def learn_if_equal(self, a: Reduction, b: Reduction, sides: Sequence[Elements]) -> None:
        """Note how two reductions are related, if they are equal, or one is the other times a factor."""
        if a.combine != b.combine or len(a.places) != len(b.places):
            return
        path = [*a.path, *b.path]
        inner = {r.unknown.decl().name() for side in sides for r in side.reductions}
        nests = any(name.decl().name() in inner for name in _names(b.element))  # of which places are not substituted
        for extents, element in [(b.extents, b.element)] if nests else self._orders(b):
            same = z3.And(*(x == y for x, y in zip(a.extents, extents, strict=True)))
            if not self.holds(path, same):
                continue
            if self.holds([*path, *a.ranges], self.theory.same(a.element, element)):
                return self._note(path, self.theory.same(a.unknown, b.unknown))
            if a.combine == "add" and self.theory.element == z3.RealSort():
                for factor in _factors(a, b, sides):
                    if self.holds([*path, *a.ranges], a.element == factor * element):
                        return self._note(path, a.unknown == factor * b.unknown)
                    if self.holds([*path, *a.ranges], factor * a.element == element):
                        return self._note(path, factor * a.unknown == b.unknown)
        return None

    def _orders(self, b: Reduction) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """The extents and the element of a reduction with its axes in each order that gives the same result."""
        yield b.extents, b.element
        if b.combine not in ANY_ORDER and self.theory.element != z3.RealSort():
            return
        for order in list(permutations(range(len(b.places))))[1:]:
            places = [(b.places[k], b.places[order.index(k)]) for k in range(len(order))]
            yield tuple(b.extents[k] for k in order), z3.substitute(b.element, *places)

    def _note(self, path: Sequence[Any], fact: Any) -> None:
        self.facts.append(z3.Implies(z3.And(*path), fact) if path else fact)


def _factors(a: Reduction, b: Reduction, sides: Sequence[Elements]) -> Iterator[Any]:
    """Elements and numbers that do not depend on the places of a reduction."""
    seen: list[Any] = []
    for term in (t for side in sides for t in side.loaded):
        depends = any(p.eq(v) for p in a.places for v in _names(term))
        if not depends and not any(term.eq(other) for other in seen):
            seen += [term, 1 / term]
    yield from seen
    yield from (z3.RealVal(n) for n in _numbers(a.element))


def _names(term: Any) -> Iterator[Any]:
    if z3.is_const(term):
        yield term
    for child in term.children():
        yield from _names(child)


def _numbers(term: Any) -> set[str]:
    if z3.is_rational_value(term):
        return {str(term)}
    return set().union(*(_numbers(child) for child in term.children()))


def _counterexample(model: Any) -> str:
    """The sizes, the place and the numbers for which the results differ."""
    values = sorted((d.name(), str(model[d])) for d in model.decls() if d.arity() == 0)
    return ", ".join(f"{name} = {value}" for name, value in values)
