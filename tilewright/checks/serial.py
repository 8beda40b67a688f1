"""What of a call over many positions has to wait for the position before it: recurrent operators do, and all else
computes all positions at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.graph.fusion.classify import OpClass, classify
from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ops.define import OPERATORS
from tilewright.ops.traits.derive import traits_of
from tilewright.schedule.work.operators import OperatorCounts


@dataclass(frozen=True)
class SerialWork:
    """Of one call: its floating-point operations, those that wait for the position before, and the products of matrices
    on the longest chain of which each needs the one before it. No number of cores takes fewer steps than these."""

    flops: int
    waiting: int
    steps: int

    @property
    def share(self) -> float:
        """Of the operations that wait."""
        return self.waiting / self.flops if self.flops else 0.0


def serial_work(
    operators: Sequence[Op], counts: OperatorCounts, dims: Mapping[str, Sym], steps: Sym, past: Sym | None
) -> Callable[[int], SerialWork]:
    """A function of the positions of a call behind none. It holds what is counted, and none of the ops."""
    flops = [(counts.of(op).flops, _is_recurrent(op)) for op in operators]
    chain = [(_Chain.of(op), tuple(op.operands), tuple(op.results)) for op in operators]

    def at(positions: int) -> SerialWork:
        known = {steps.name: positions} | ({} if past is None else {past.name: 0})
        known |= {name: size.evaluate(known) for name, size in dims.items()}
        counted = [(f.evaluate(known), waits) for f, waits in flops]
        longest: dict[Value, int] = {}
        for own, operands, results in chain:
            found = max((longest.get(v, 0) for v in operands), default=0) + own.evaluate(known)
            longest.update(dict.fromkeys(results, found))
        waiting = sum(f for f, waits in counted if waits)
        return SerialWork(sum(f for f, _ in counted), waiting, max(longest.values(), default=0))

    return at


def _is_recurrent(op: Op) -> bool:
    return traits_of(op).has_state


@dataclass(frozen=True)
class _Chain:
    """Products one after the other in an op: some, and one for each position of recurrent ones."""

    products: int = 0
    positions: tuple[Sym, ...] = ()

    @classmethod
    def of(cls, op: Op) -> _Chain:
        if _is_recurrent(op):
            return cls(0, (op.operands[0].tensor.shape[0],))
        if OPERATORS[op.name].kind == "primitive":
            return cls(int(classify(op).kind is OpClass.CONTRACTION))
        return cls(0) if OPERATORS[op.name].kind == "irregular" else cls._of_composite(op)

    @classmethod
    def _of_composite(cls, op: Op) -> _Chain:
        block = Block([v.type for v in op.operands])
        with Builder(block, Module()):
            OPERATORS[op.name].expand(block.args, op.attrs)
        longest: dict[Value, int] = {}
        for inner in block.ops:
            before = max((longest.get(v, 0) for v in inner.operands), default=0)
            own = cls.of(inner).products if inner.name in OPERATORS else 0
            longest.update(dict.fromkeys(inner.results, before + own))
        return cls(max(longest.values(), default=0))

    def evaluate(self, known: Mapping[str, int]) -> int:
        return self.products + sum(size.evaluate(known) for size in self.positions)
