"""Steps of recurrent networks: which entries of a batch go through time together, and states and gates that begin with
cache lines.

A gate of h units becomes as many columns of the product of the inputs as whole cache lines hold, where its weights are
constants: loads that cross lines cost more than the columns that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tilewright.cost.recurrence import USUAL_BATCH, columns_of_gate, entries_together, floats_of_line
from tilewright.graph.match import is_known, shape_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Block, Builder, Module, Op, Value, insert_before
from tilewright.ir.rewrite import defining
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.view import pad, reshape
from tilewright.passes import PassContext

GATES = {"rnn": 1, "gru": 3, "lstm": 4, "lstm_quantized": 4}


@dataclass(frozen=True)
class RecurrentSteps:
    """Choose groups of batch entries, and pad the gates to cache lines."""

    name: ClassVar[str] = "recurrent-steps"

    def run(self, module: Module, ctx: PassContext) -> None:
        if ctx.target is None:
            return
        found = [op for op in module.main.body.ops if op.name in GATES]
        for op in found:
            _, batch, _ = shape_of(op.operands[0])
            weights = product(shape_of(op.operands[1]))
            op.attrs["line"] = floats_of_line()
            known = weights.value if weights.is_const else None
            op.attrs["entries"] = entries_together(batch.value if batch.is_const else USUAL_BATCH, known)
            _pad_gates(op, module)
        if found:
            drop_dead(module)


def _pad_gates(op: Op, module: Module) -> None:
    """Fill each gate up to whole cache lines, where the product that gives them has constant weights."""
    count, hidden = GATES[op.name], shape_of(op.operands[1])[2]
    added = defining(op.operands[0], "add")
    shaped = defining(op.operands[0] if added is None else added.operands[0], "reshape")
    made = None if shaped is None else defining(shaped.operands[0], "matmul")
    if shaped is None or made is None or not hidden.is_const:
        return
    if not made.attrs["transpose_b"] or not is_known(made.operands[1]):
        return
    units = columns_of_gate(hidden.value)
    if units == hidden or shape_of(made.operands[1])[0] != count * hidden:
        return
    x, w = made.operands
    steps, batch, _ = shape_of(op.operands[0])
    wide = _before(made, lambda: matmul(x, _extended(w, count, units), transpose_b=True), module)
    gates = _before(shaped, lambda: reshape(wide, shape=(steps, batch, count * units)), module)
    if added is not None:
        bias = added.operands[1]
        gates = _before(added, lambda: ew.add(gates, _extended(bias, count, units)), module)
    op.set_operands([gates, *op.operands[1:]])


def _before(op: Op, emit: Callable[[], Value], module: Module) -> Value:
    """What `emit` makes, in the place before `op`."""
    emitted = Block()
    with Builder(emitted, module, op.loc):
        made = emit()
    insert_before(op, emitted.ops)
    return made


def _extended(x: Value, gates: int, units: int) -> Value:
    """Zeros after the rows of each gate, [gates * hidden, ...] to [gates * units, ...]."""
    rows, *rest = shape_of(x)
    hidden = rows // gates
    apart = reshape(x, shape=(gates, hidden, *rest))
    zeros = [0] * len(rest)
    padded = pad(apart, before=(0, 0, *zeros), after=(0, units - hidden, *zeros))
    return reshape(padded, shape=(gates * units, *rest))
