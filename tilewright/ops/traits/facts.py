"""The traits that an operator can have: facts beside what it computes, which passes ask for instead of names.

What follows from the definition of an operator is derived from it (`derive`): of a primitive from its Compute,
of a composite from its parts. The rest is declared with the operator (`Operator.declares`), as that of operators that
bring their own loops. Each trait says something that can be tried on arrays, and is (`check`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

Number = int | float | bool
Indices = frozenset[int]

NONE: Indices = frozenset()


@dataclass(frozen=True)
class Traits:
    """What is known of one application of an operator; what is not known is left empty, or False.

    moves: the operands of whose elements the first result consists, wherever these go, which their values do not tell:
        op(g(x)) is g(op(x)) for any function g of one element.
    chooses: the operands of whose elements the first result consists, by their order perhaps: the same for any
        function g that never falls. What moves chooses as well.
    fills: numbers that stand among these elements, and on which g does not act.
    continuous: operands of floats of which a small change changes results little, where these are finite.
    linear: operands in which the result is linear, while the others stay as they are.
    commutative: an elementwise operator of two operands that may be exchanged.
    right_identity: the number n for which op(x, n) is x, of an elementwise operator on numbers.
    is_exact: in a short type of floats it gives what it gives of the same numbers in a longer type, rounded.
    is_finite: of finite numbers it gives finite ones, unless these are too large for the type.
    sums_products: it adds up products of elements of two operands (perhaps among other things).
    is_pure: results follow from operands and attributes.
    has_state: it goes through an axis and carries a state from one place to the next.
    """

    moves: Indices = NONE
    chooses: Indices = NONE
    fills: tuple[Number, ...] = ()
    continuous: Indices = NONE
    linear: Indices = NONE
    commutative: bool = False
    right_identity: Number | None = None
    is_exact: bool = False
    is_finite: bool = False
    sums_products: bool = False
    is_pure: bool = True
    has_state: bool = False

    @property
    def moves_one(self) -> bool:
        """Whether all elements of the first result are elements of the first operand, moved."""
        return self.moves == FIRST and not self.fills

    @property
    def chooses_one(self) -> bool:
        """Whether all elements of the first result are elements of the first operand."""
        return self.chooses == FIRST and not self.fills

    def with_declared(self, declared: Traits) -> Traits:
        """These, and what is declared beside them."""
        changed = {f.name: getattr(declared, f.name) for f in fields(Traits) if _is_said(declared, f.name)}
        return replace(self, **changed) if changed else self


FIRST: Indices = frozenset({0})
UNKNOWN = Traits()


def _is_said(declared: Traits, name: str) -> bool:
    return bool(getattr(declared, name) != getattr(UNKNOWN, name))
