"""All that is stated of rules, and why nothing is stated of some."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.proofs.of_arithmetic import convolutions, factors, quantised, scalars
from tests.proofs.of_orders import orders
from tests.proofs.of_sizes import SizeStatement, stated_of_sizes
from tests.proofs.of_views import sinks, views
from tests.proofs.statement import Statement

STATEMENTS: tuple[Statement, ...] = (
    *views(), *sinks(), *orders(), *scalars(), *factors(), *convolutions(), *quantised(),
)  # fmt: skip
"""Of rules of graphs."""

SIZE_STATEMENTS: tuple[SizeStatement, ...] = tuple(stated_of_sizes())
"""Of the arithmetic of symbolic integers."""

_KNOWN_DATA = "it computes new constants of the data of others, which z3 would have to be given one by one"
_ROUNDED = "it rests on how a division of float32 is rounded, which the small format of floats does not show"
_OF_TARGET = "what it writes depends on instructions of a target, and on loops of their own"

TESTED_ONLY: Mapping[str, str] = MappingProxyType(
    {
        "attention_in_integers": _OF_TARGET,
        "dequantize_centred": _OF_TARGET,
        "convs_as_products": "it cuts a window into slices, one for each of its taps",
        "pools_by_axes": "it cuts a window into slices, one for each of its taps",
        "depthwise_convs_as_sums": "it cuts a window into slices, one for each of its taps",
        "rounded_products": "it rounds operands to float16, which only numerics='fast' allows",
        "multiply_in_groups": _OF_TARGET,
        "number_of_narrow_operand": "products are rounded to 16 bits before the sum, or not at all",
        "sums_of_narrow_weights": "weights of at most 1 are rounded to 16 bits, before they are scaled or after",
        "multiply_on_unit": _OF_TARGET,
        "padded_products": _OF_TARGET,
        "states_in_groups": "a recurrent network has loops of its own",
        "sums_of_integers": _KNOWN_DATA,
        "tabulate": "it computes a table of all 256 values of a byte with the operators themselves",
        "order_data": "positions come from data: a permutation that is read from a constant",
        "gather_of_a_range": "positions come from data: indices that are read from a constant",
        "gather_of_runs": "positions come from data: indices that are read from a constant",
        "divide_by_known_scale": _ROUNDED,
        "there_and_back": _ROUNDED,
        "without_a_sign": _KNOWN_DATA,
        "centre_weights": _KNOWN_DATA,
        "untranspose_weights": _KNOWN_DATA,
        "turn_weights": _KNOWN_DATA,
        "pick_constants": "positions come from data: experts that are chosen in the call",
        "expand_composite": "its result is the definition of the operator",
        "large_windows": "extremes of 25 and more floats in another order, for which z3 takes too long",
        "plain_windows": "extremes of 25 and more floats in another order, for which z3 takes too long",
    }
)
"""Rules of which nothing is stated, with the reason."""
