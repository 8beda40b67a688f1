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
class Product:
    """How an operator adds up products of elements of two operands, of which one may be weights.

    data, weights: these operands; of what carries a state from step to step, the data are the state it begins with.
    channel: the axis of the result along which outputs lie, whose weights are their own.
    kept: the axis of the weights that it is.
    depth: the axis of the data over which sums go, that of their channels.
    summed: the axes of the weights over which they go, first that of these channels. Where they are in groups, those
        of a group are there.
    space: the axes of the data along which windows move.
    transposed: where it is a product of matrices over the last two axes, with NumPy broadcasting over the others,
        whether each of both lies transposed. All axes are counted from the first.
    is_plain: the elements of the operands are multiplied as they are, and nothing is done to the sums.
    """

    data: int
    weights: int
    channel: int
    kept: int
    summed: tuple[int, ...]
    depth: int
    space: tuple[int, ...] = ()
    transposed: tuple[bool, bool] | None = None
    is_plain: bool = True

    @property
    def of_matrices(self) -> bool:
        return self.transposed is not None

    @property
    def turns_data(self) -> bool:
        """Whether it is one of matrices, of which the left one lies transposed."""
        return self.transposed is not None and self.transposed[0]

    @property
    def turns_weights(self) -> bool:
        """Whether it is one of matrices, of which the right one lies transposed."""
        return self.transposed is not None and self.transposed[1]

    @property
    def slides(self) -> bool:
        """Whether it is a convolution: of data [n, c, *space] with filters [o, c, *window] to [n, o, *space]."""
        return bool(self.space) and (self.channel, self.kept, self.depth) == (1, 0, 1)


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
    product: the axes of these products, where they are all that it adds up.
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
    product: Product | None = None
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


def step_by_step(state: int, floats: int = 8) -> Traits:
    """Of networks that multiply a state with weights, operand 1 [gates, units, units], in each step, and give [steps,
    batch, units]: the state that they begin with is operand `state`. So many operands may be floats."""
    product = Product(state, 1, channel=2, kept=1, summed=(2,), depth=1, is_plain=False)
    return Traits(continuous=frozenset(range(floats)), sums_products=True, product=product, has_state=True)


def _is_said(declared: Traits, name: str) -> bool:
    return bool(getattr(declared, name) != getattr(UNKNOWN, name))
