"""Quantised states of recurrent networks and their weights, in the dtypes that the machine multiplies in groups.

The zero point of a state is taken off by sums of whole rows of weights, so a state can have any dtype that holds it up
to a shift. Weights are read in every step: they get the fewest bytes that hold them, and an instruction that wants more
bits of them finds them widened where they are loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.match import dtype_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Op
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, Rule, constant_array
from tilewright.ops.define import constant
from tilewright.ops.recurrent import lstm_quantized
from tilewright.target.dots import Dot

STATES = (dt.u8, dt.i8, dt.i16)
"""Dtypes of states; each is the left operand of some instruction."""


def states_in_groups(dots: Sequence[Dot]) -> Rule:
    """The rule that chooses the dtypes of states and weights for the first of `dots` that can be."""

    def rewritten(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
        weights = constant_array(op.operands[1], ctx.module)
        if weights is None:
            return NoMatch("the recurrent weights are not known when compiling")
        low, high = weights.min(initial=0), weights.max(initial=0)
        narrow = dt.i8 if low >= -128 and high < 128 else dt.i16
        dot = next((d for d in dots if d.left in STATES and d.right.holds(narrow)), None)
        if dot is None:
            return NoMatch("the machine multiplies no groups of such integers")
        if weights.shape[-1] % dot.group:
            return NoMatch(f"{weights.shape[-1]} units are no multiple of the groups of {dot.group} that are added")
        if dtype_of(op.operands[1]) is narrow and op.attrs["state"] is dot.left:
            return None
        gates, _, *others = op.operands
        packed = constant(weights.astype(narrow.storage), "integers")
        return lstm_quantized(gates, packed, *others, **{**op.attrs, "state": dot.left})

    return Rule("states_in_groups", ("lstm_quantized",), rewritten)
