"""What one call of a fused graph reads and writes where it keeps states: of a cache the rows that are there, not its
whole capacity, of tables the rows that are looked up, and of weights the bits that they are stored in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tilewright.cost.core import Source, source_of
from tilewright.cost.roofline import KernelWork, kernel_cycles
from tilewright.graph.fusion.classify import OpClass, classify
from tilewright.ir.core import Block, Module, Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.program.states import GROWING, STATES
from tilewright.schedule.work.operators import OperatorCounts, total
from tilewright.schedule.work.regions import Evaluate, element_of
from tilewright.target.target import Target


def stored_bytes(type: object, elements: Sym | None = None) -> Sym:
    """Of a tensor, or of so many of its elements; those of less than a byte share bytes."""
    if not isinstance(type, TensorType):
        return sym(0)
    count = type.size if elements is None else elements
    return count * type.dtype.bytes if type.dtype.bits >= 8 else (count * type.dtype.bits + 7) // 8


@dataclass(frozen=True)
class RegionTraffic:
    """One region: the bytes of each operand that are read, and of each result that are written; its work in products
    by the bytes of what is multiplied, and the `share` of their time as floats that they take; other operations, each
    with elements computed and elements there are."""

    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    read: tuple[Sym, ...]
    written: tuple[Sym, ...]
    products: tuple[Mapping[int, Sym], ...]
    operations: tuple[tuple[Sym, Sym, Sym], ...]
    kept: frozenset[Value]
    """Constants and states: what is there from call to call."""
    share: float = 1

    def work(self, target: Target, kept_in: Source, evaluate: Evaluate) -> KernelWork | None:
        """Numbers for the cost model; None where a dim is not known."""
        products: dict[int, float] = {}
        for counted in self.products:
            for element, count in counted.items():
                products[element] = products.get(element, 0) + self.share * (evaluate(count) or 0)
        operations = 0.0
        for count, computed, there in self.operations:
            all_of_it = evaluate(there) or 0
            share = min(1.0, (evaluate(computed) or 0) / all_of_it) if all_of_it else 0.0
            operations += share * (evaluate(count) or 0)
        moved: list[tuple[float, Source]] = []
        for value, size in zip((*self.operands, *self.results), (*self.read, *self.written), strict=True):
            known, whole = evaluate(size), evaluate(stored_bytes(value.type))
            if known is None or whole is None:
                return None
            moved.append((known, kept_in if value in self.kept else source_of(whole, target)))
        known_products = {element: n for element, n in products.items() if n}
        return KernelWork(known_products, operations, element_of(self.results), tuple(moved))


@dataclass(frozen=True)
class CallTraffic:
    """All regions of a graph, and the bytes of its weights."""

    regions: tuple[RegionTraffic, ...]
    weights: Sym

    @property
    def read(self) -> Sym:
        return total(size for region in self.regions for size in region.read)

    @property
    def written(self) -> Sym:
        return total(size for region in self.regions for size in region.written)

    def cycles(self, target: Target, threads: int, evaluate: Evaluate) -> float | None:
        """An estimate for one call; None where a dim is not known."""
        kept_in = source_of(evaluate(self.weights) or 0, target)
        works = [region.work(target, kept_in, evaluate) for region in self.regions]
        known = [work for work in works if work is not None]
        return sum(kernel_cycles(w, target, threads) for w in known) if len(known) == len(works) else None


def region_traffic(module: Module, counts: OperatorCounts, rounded: Callable[[Op], float | None]) -> CallTraffic:
    """Of a graph that fusion has cut into regions. `rounded` is the share of the time of products of floats that those
    of a region take whose rows are rounded; None of others."""
    main = module.main
    names = [name for name, *_ in main.attrs.get(STATES, ())]
    first_state, first_updated = len(main.args) - len(names), len(main.returns) - len(names)
    grows = {name for name, *_ in main.attrs.get(GROWING, ())}
    grown = {v for name, v in zip(names, main.returns[first_updated:], strict=True) if name in grows}
    states = {*main.args[first_state:], *grown}
    regions = tuple(_of_region(op, counts, states, grown, rounded(op)) for op in main.body.ops if op.name == "fused")
    constants = [op.result for op in main.body.ops if op.name == "constant" and op.result.users]
    return CallTraffic(regions, total(stored_bytes(v.type) for v in constants))


def _of_region(
    op: Op, counts: OperatorCounts, states: Collection[Value], grown: Collection[Value], rounded: float | None
) -> RegionTraffic:
    """`grown` are states into which rows were put, which are written where they are. Where rows are `rounded`, codes of
    weights are multiplied as they are, and made no floats."""
    (body,) = op.blocks
    *inner, end = body.ops
    in_place = {v for r, v in zip(op.results, end.operands, strict=True) if r in grown}
    needed = _needed(body, counts, in_place)
    works = [(o, counts.of(o)) for o in inner]
    floats = set() if rounded is None else _made_of_constants(op)
    read = tuple(stored_bytes(arg.type, needed.get(arg, sym(0))) for arg in body.args)
    rows = {v: stored_bytes(v.op.operands[1].type) for v in in_place if v.op is not None}
    written = tuple(rows[v] if v in rows else stored_bytes(v.type) for v in end.operands)
    operations = tuple(
        (w.operations, needed.get(o.results[0], sym(0)), _elements(o.results[0]))
        for o, w in works if o.results and o not in floats
    )  # fmt: skip
    kept = {v for v in op.operands if v in states or (v.op is not None and v.op.name == "constant")}
    kept |= {r for r in op.results if r in grown}
    return RegionTraffic(
        tuple(op.operands), tuple(op.results), read, written, tuple(w.products for _, w in works), operations,
        frozenset(kept), 1 if rounded is None else rounded,
    )  # fmt: skip


def _made_of_constants(region: Op) -> set[Op]:
    """The ops of a region that constants alone decide."""
    (body,) = region.blocks
    given = zip(region.operands, body.args, strict=True)
    known = {arg for value, arg in given if value.op is not None and value.op.name == "constant"}
    found: set[Op] = set()
    for op in body.ops[:-1]:
        if known.issuperset(op.operands):
            found.add(op)
            known.update(op.results)
    return found


def _needed(body: Block, counts: OperatorCounts, in_place: Collection[Value]) -> dict[Value, Sym]:
    """How many elements of each value of a region are read: of what only a part is taken from, that part alone is
    computed."""
    *inner, end = body.ops
    needed: dict[Value, Sym] = {v: _elements(v) for v in end.operands}
    for op in reversed(inner):
        for k, value in enumerate(op.operands):
            if isinstance(value.type, TensorType):
                found = _read_by(op, k, counts, needed, in_place)
                before = needed.get(value)
                most = _elements(value)
                if before is None or found is most:
                    needed[value] = found
                elif before is not most and before is not found:
                    needed[value] = before + found
    return needed


def _read_by(
    op: Op, k: int, counts: OperatorCounts, needed: Mapping[Value, Sym], in_place: Collection[Value]
) -> Sym:
    """Elements of the operand `k` that an op reads for what is needed of its result."""
    value, result = op.operands[k], op.results[0]
    size, wanted = _elements(value), needed.get(result, sym(0))
    if result in in_place:
        return sym(0) if k == 0 else size
    info = classify(op)
    if info.kind is not OpClass.ELEMENTWISE:
        return size
    if info.is_index_map and not _repeats(op):
        return wanted  # a part, or all of it in another order
    if counts.of(op).read[k] != _whole(value):
        return wanted  # rows that are looked up, each time that they are
    return size if wanted is _elements(result) else _share(size, wanted, _elements(result))


def _repeats(op: Op) -> bool:
    """Whether some axis of the result leaves the place where an index map reads as it is."""
    compute = OPERATORS[op.name].compute([v.tensor for v in op.operands], op.attrs)
    places = [i for o in compute.body.ops for i in o.attrs.get("idx", ())]
    read = frozenset[Sym]().union(*(i.vars for i in places))
    return any(axis not in read for axis, extent in compute.domain if extent != 1)


def _share(size: Sym, wanted: Sym, of: Sym) -> Sym:
    """What of `size` elements belongs to those wanted of a result: all of them where that is no whole number."""
    if not of.is_const or not of.value:
        return size
    found = (wanted * size) // of
    return size if "floordiv" in {term.kind for term, _ in found.terms} else found


def _whole(value: Value) -> Sym:
    """The bytes that `OperatorCounts` has for all of it."""
    return value.tensor.size * value.tensor.dtype.bytes


def _elements(value: Value) -> Sym:
    return value.type.size if isinstance(value.type, TensorType) else sym(0)
