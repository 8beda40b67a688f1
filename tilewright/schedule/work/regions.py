"""What a region of a fused graph computes and moves, before it is scheduled."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.cost.core import Source, source_of
from tilewright.cost.roofline import KernelWork
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym, minimum
from tilewright.ir.types import TensorType
from tilewright.schedule.work.operators import OperatorCounts, bytes_of, total
from tilewright.target.target import Target

Evaluate = Callable[[Sym], int | None]
"""The value of a formula for some sizes; None where one is not known."""


class CountedRegion:
    """One region, its operators counted."""

    def __init__(self, op: Op, counts: OperatorCounts) -> None:
        self.op = op
        (body,) = op.blocks
        self.works = [(inner, counts.of(inner)) for inner in body.ops[:-1]]
        read: dict[Value, list[Sym]] = {}
        for inner, work in self.works:
            for value, size in zip(inner.operands, work.read, strict=True):
                read.setdefault(value, []).append(size)
        self.read = [
            minimum(total(read.get(arg, ())), bytes_of(arg)) if read.get(arg) != [bytes_of(arg)] else bytes_of(arg)
            for arg in body.args
        ]

    @property
    def moved(self) -> Sym:
        return total((*self.read, *map(bytes_of, self.op.results)))

    def operator(self, evaluate: Evaluate) -> str:
        """The operator of the model with the most work in it."""
        known = [(evaluate(total((*w.products.values(), w.operations))) or 0, o) for o, w in self.works]
        return source_operator(max(known, key=lambda entry: entry[0])[1])

    def work(self, target: Target, weights_from: Source, evaluate: Evaluate) -> KernelWork | None:
        """Numbers for the cost model; None where a dim is not known."""
        products: dict[int, float] = {}
        operations = 0
        for _, counted in self.works:
            for element, count in counted.products.items():
                products[element] = products.get(element, 0) + (evaluate(count) or 0)
            operations += evaluate(counted.operations) or 0
        moved: list[tuple[float, Source]] = []
        tensors = (*self.op.operands, *self.op.results)
        for value, size in zip(tensors, (*self.read, *map(bytes_of, self.op.results)), strict=True):
            known, whole = evaluate(size), evaluate(bytes_of(value))
            if known is None or whole is None:
                return None
            is_weight = value.op is not None and value.op.name == "constant"
            moved.append((known, weights_from if is_weight else source_of(whole, target)))
        known_products = {element: n for element, n in products.items() if n}
        return KernelWork(known_products, operations, element_of(self.op.results), tuple(moved))


def source_operator(op: Op) -> str:
    """The name of the model's operator that an op comes from."""
    return op.loc.op or op.name


def element_of(results: Iterable[Value]) -> int:
    """Bytes of the largest element among the results."""
    return max((v.type.dtype.bytes for v in results if isinstance(v.type, TensorType)), default=1)
