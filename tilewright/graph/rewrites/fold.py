"""Constant folding: ops whose operands are known are evaluated when compiling, by the operators' own
definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.match import is_constant, type_of
from tilewright.graph.quantised.weight_only import dequantizing_casts
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Module, Op, replace_in_block
from tilewright.ir.diag import TilewrightError, failure
from tilewright.ir.rewrite import constant_array
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.interp import evaluate_op
from tilewright.ops.traits.derive import traits_of
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.passes import PassContext

TABLE_WORK = 16
"""Ops that may work on the elements of a table before gathers read it."""


def _blocked(x: np.ndarray, attrs: Mapping[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """What `block_channels` makes of x."""
    (n, channels, *space), blocks, block = x.shape, shape[1], attrs["block"]
    if blocks * block > channels:
        x = np.concatenate([x, np.zeros((n, blocks * block - channels, *space), x.dtype)], axis=1)
    return np.ascontiguousarray(np.moveaxis(x.reshape(n, blocks, block, *space), 2, -1))


_DIRECT: Mapping[str, Callable[[np.ndarray, Mapping[str, Any], tuple[int, ...]], np.ndarray]] = {
    "transpose": lambda x, attrs, shape: np.ascontiguousarray(x.transpose(attrs["perm"])),
    "reshape": lambda x, attrs, shape: x.reshape(shape),
    "block_channels": _blocked,
}
"""Moves that weights go through: NumPy's own are much faster than the interpreter."""


@dataclass(frozen=True)
class Fold:
    """Evaluate ops on constants.

    A result may take `max_growth` times the bytes of its operands (quantised weights become f32), or
    `small_bytes`; `max_work` bounds the scalar operations of one op, so that no model can make compiling take
    for ever.
    """

    name: ClassVar[str] = "fold"
    small_bytes: int = 64 << 10
    max_growth: int = 4
    max_work: int = 1 << 27

    def run(self, module: Module, ctx: PassContext) -> None:
        body = module.main.body
        ops: list[Op] = []
        narrow = dequantizing_casts(module, ctx)
        readers = Counter(op.attrs["name"] for f in module.funcs.values() for op in f.body.walk() if _is_stored(op))
        for op in body.ops:
            found = self._survived(op, module, ctx) if _is_of_constants(op) and op not in narrow else None
            if found is None:
                ops.append(op)
                continue
            for value, array in zip(op.results, found, strict=True):
                name = module.add_constant(value.name or op.name, array)
                folded = Op("constant", [], [value.type], {"name": name}, loc=op.loc)
                folded.result.name = value.name
                value.replace_by(folded.result)
                ops.append(folded)
            read = {v.op for v in op.operands if v.op is not None and _is_stored(v.op)}
            op.drop()
            for name in (source.attrs["name"] for source in read if not source.result.users):
                readers[name] -= 1
                if not readers[name]:  # now, not with all others at the end: weights would be there twice
                    del module.constants[name]
        replace_in_block(body, ops)
        drop_dead(module)

    def _survived(self, op: Op, module: Module, ctx: PassContext) -> tuple[np.ndarray, ...] | None:
        """As `_evaluate`; an op whose evaluation fails as none should is computed in each call."""

        def tell(error: Exception) -> None:
            ctx.remarks.append(failure(self.name, f"{op.name} of {op.loc}", error, "it is computed in each call"))

        return ctx.optional.survive(lambda: self._evaluate(op, module, ctx), tell)

    def _evaluate(self, op: Op, module: Module, ctx: PassContext) -> tuple[np.ndarray, ...] | None:
        """The values of the results, or None where they are not known or should not be stored."""
        if not traits_of(op).is_pure or any(type_of(v).dtype.kind == "string" for v in op.results):
            return None
        refusal = self._refusal(op)
        if refusal:
            ctx.remark(self.name, op.name, refusal)
            return None
        arrays = [constant_array(v, module) for v in op.operands]
        if any(a is None for a in arrays):
            return None
        known = [a for a in arrays if a is not None]
        if (direct := _DIRECT.get(op.name)) is not None:
            return (direct(known[0], op.attrs, tuple(d.value for d in type_of(op.result).shape)),)
        try:
            return evaluate_op(op, known, {}, module, flush=not ctx.strict)
        except TilewrightError as e:
            ctx.remark(self.name, op.name, f"evaluating it fails: {e.what}")
            return None

    def _refusal(self, op: Op) -> str:
        """Why the op is not evaluated when compiling; "" when it may be."""
        operator = OPERATORS[op.name]
        results, operands = [type_of(v) for v in op.results], [type_of(v) for v in op.operands]
        if not all(t.is_static for t in (*results, *operands)):
            return "its shape is not known"
        if not _is_closed(op):
            return "it depends on a dim that is not known"
        if operator.kind == "irregular":
            if not op.operands or sum(_bytes(t) for t in (*results, *operands)) > self.small_bytes:
                return "its own loops are slow to interpret"
            return ""
        held = sum(_bytes(type_of(v)) for v in op.operands if v.op is not None and v.op.name == "constant")
        growth = 1 if _is_table(op) else self.max_growth
        if sum(map(_bytes, results)) > max(self.small_bytes, growth * held):
            return "the constant would take more memory than computing it is worth"
        work = max(_bytes(t) for t in (*results, *operands))
        if _DIRECT.get(op.name) is not None:
            work = type_of(op.result).size.value
        elif operator.kind == "primitive":
            computation = operator.compute(operands, op.attrs)
            work = product(e for _, e in (*computation.axes, *computation.reduce)).value
        return "" if work <= self.max_work else "evaluating it would take too long"


def _is_of_constants(op: Op) -> bool:
    """Whether an operator reads nothing but constants. Integers to be dequantized are multiplied as they are; others
    are folded when the operator is written out."""
    if op.name in ("full", "dequantize_linear") or op.name not in OPERATORS or op.blocks:
        return False
    return all(map(is_constant, op.operands))


def _is_stored(op: Op) -> bool:
    return op.name == "constant"


def _is_closed(op: Op) -> bool:
    """Whether no attribute mentions a variable."""

    def closed(attr: Any) -> bool:
        if isinstance(attr, tuple | list):
            return all(map(closed, attr))
        return not getattr(attr, "vars", None)

    return all(map(closed, op.attrs.values()))


def _is_table(op: Op) -> bool:
    """Whether only what picks elements by data reads the result, at most after a little elementwise work: few of its
    elements are needed."""
    reached = {op}
    pending = [op]
    while pending:
        users = {u for v in pending.pop().results for u in v.users if not _picks(u)} - reached
        reached |= users
        if len(reached) > TABLE_WORK or not all(map(is_elementwise, users)):
            return False
        pending += users
    return True


def _picks(op: Op) -> bool:
    """Whether it takes elements of its first operand, and the others tell which."""
    return len(op.operands) > 1 and traits_of(op).moves_one


def _bytes(type: TensorType) -> int:
    return int(type.size.value) * type.dtype.bytes
