"""Fusion: the graph is partitioned into regions, each of which becomes one kernel.

Every op starts as a region of its own; regions are then merged along values, consumers in program order, when
one loop nest can compute both sides without repeating costly work. Each merge that is refused leaves its
reason as a remark. Ops with cheap index-free results (`full`, `iota`, `sym_tensor`) are copied into every
region that reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.cost.recompute import is_cheap, one_thread_suffices
from tilewright.graph.algorithms.two_stage_reduction import writes_lines
from tilewright.graph.fusion.attention import attention_parts
from tilewright.graph.fusion.classify import OpClass, OpInfo, classify
from tilewright.graph.fusion.profitability import tiles_by_bands, unblocks_by_bands, windows_by_bands
from tilewright.graph.fusion.region import Region
from tilewright.graph.rewrites.weight_only import is_known, separate_weights
from tilewright.ir.core import Block, Module, Op, Value, replace_in_block
from tilewright.ir.passes import PassContext
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym
from tilewright.ir.types import product

FREE = frozenset({"constant", "return"})
"""Ops that never are in a region."""

SOURCES = frozenset({"full", "iota", "sym_tensor"})
"""Ops without operands that are copied into their readers' regions."""


UNBLOCK = "unblock_channels"
"""The op that takes an image out of its blocks of channels."""


@dataclass(frozen=True)
class Fuse:
    """Partition the main function into `fused` regions."""

    name: ClassVar[str] = "fuse"
    max_ops: int = 64

    def run(self, module: Module, ctx: PassContext) -> None:
        separate_weights(module)
        fusion = _Fusion(module, ctx, self.max_ops)
        fusion.merge_all()
        fusion.merge_attention()
        fusion.rebuild()


class _Fusion:
    """The regions while they grow."""

    def __init__(self, module: Module, ctx: PassContext, max_ops: int) -> None:
        self.module = module
        self.ctx = ctx
        self.max_ops = max_ops
        self.body = module.main.body
        self.order = {id(op): n for n, op in enumerate(self.body.ops)}
        self.info: dict[Op, OpInfo] = {}
        self.of: dict[Op, Region] = {}
        for op in self.body.ops:
            if op.name in FREE or (op.name in SOURCES and not self._leaves(op)):
                continue
            info = classify(op)
            self.info[op] = info
            self.of[op] = Region([op], info.kind, info.domain, len(self.of))

    def _leaves(self, op: Op) -> bool:
        """Whether a source is itself a result of the function, or read by an irregular op."""
        return any(
            u.name == "return" or classify(u).kind is OpClass.IRREGULAR for v in op.results for u in v.users
        )

    def region(self, op: Op) -> Region:
        return self.of[op].root()

    # Merging

    def merge_all(self) -> None:
        for op in self.body.ops:
            if op not in self.of:
                continue
            for value in self._producers(op):
                producer, consumer = self.region(_owner(value)), self.region(op)
                if producer is consumer:
                    continue
                reason = self._refusal(producer, consumer, value, op)
                if reason:
                    self.ctx.remark("fuse", f"{producer} into {consumer}", reason)
                else:
                    self._merge(producer, consumer)

    def merge_attention(self) -> None:
        """Scores, softmax and the product with the values become one kernel where that is possible."""
        for op in self.body.ops:
            if op not in self.of or self.region(op).kind is not OpClass.CONTRACTION:
                continue
            found = attention_parts(op, self.region, self.of)
            if isinstance(found, NoMatch):
                self.ctx.remark("fuse", f"attention {op.loc}", found.reason)
            elif found is not None:
                self._merge(found.scores, found.weights)
                self._merge(found.weights, found.values)
                found.values.kind = OpClass.ATTENTION

    def _producers(self, op: Op) -> list[Value]:
        """Operands that regions compute; contractions and reductions first, since they gain most."""
        values = [v for v in dict.fromkeys(op.operands) if v.op is not None and v.op in self.of]
        return sorted(values, key=lambda v: self.region(_owner(v)).kind is OpClass.MAP)

    def _refusal(self, producer: Region, consumer: Region, value: Value, op: Op) -> str:
        """Why the two regions cannot be one kernel; "" when they can."""
        if OpClass.IRREGULAR in (producer.kind, consumer.kind):
            return "an operator with loops of its own is a kernel alone"
        if len(producer.ops) + len(consumer.ops) > self.max_ops:
            return f"the kernel would have more than {self.max_ops} operators"
        reason = self._rule(producer, consumer, value, op)
        if not reason and self._makes_cycle(producer, consumer):
            return "another kernel lies between the two"
        return reason

    def _rule(self, producer: Region, consumer: Region, value: Value, op: Op) -> str:
        if self.info[op].is_tiled:
            return self._into_tiles(producer, value, op)
        if producer.kind is OpClass.TILED:
            return self._after_tiles(producer, consumer)
        if any(self.info[o].sums_lines for o in producer.ops) and producer.kind is not OpClass.REDUCE:
            return "the kernel has summed its lines already"
        if self.info[op].slides and producer.kind is OpClass.CONTRACTION:
            return self._into_windows(producer, op)
        if self.info[op].sums_lines and producer.kind in (OpClass.CONTRACTION, OpClass.BANDED):
            return self._lines_of_windows(producer, consumer, value)
        if producer.kind is OpClass.UNBLOCKED:
            return "the image has left its blocks"
        if op.name == UNBLOCK and producer.kind is OpClass.CONTRACTION:
            return self._out_of_blocks(producer, op)
        if consumer.kind in (OpClass.CONTRACTION, OpClass.TILED):
            return self._into_contraction(producer, value, op)
        if consumer.kind is OpClass.MAP:
            if producer.kind is OpClass.MAP:
                return self._map_into_map(producer, consumer, value, op)
            if producer.kind is OpClass.ROW:
                return self._row_with_map(producer, consumer, op)
            return self._epilogue(producer, consumer, value, op)
        if producer.kind is OpClass.MAP:
            return self._into_reduction(producer, consumer, value, op)
        if producer.kind is OpClass.ROW and consumer.kind is OpClass.ROW:
            same = _rows_agree(producer.domain, consumer.domain)
            return "" if same else "the two reduce rows of different shapes"
        return f"a {consumer.kind.value} cannot start before the whole {producer.kind.value} is done"

    def _into_contraction(self, producer: Region, value: Value, op: Op) -> str:
        """Only pure index maps are read through, and maps of constants: anything else would be computed once for each
        tile. What computes whole tiles is stored, for a band of the image at a time."""
        if self.info[op].kind is OpClass.CONTRACTION and all(self.info[o].is_tiled for o in producer.ops):
            return tiles_by_bands(op, self.ctx.target)
        moves = all(self.info[o].is_index_map for o in producer.ops)
        if producer.kind is not OpClass.MAP or not (moves or self._is_weight(producer, value, op)):
            return "its elements would be computed again for every tile of the contraction"
        if not self.info[op].reads_through:
            return f"{op.name} reads its operands in their own layout"
        if any(
            u not in producer.ops and u is not op for o in producer.ops for v in o.results for u in v.users
        ):
            return "the reordered tensor is needed elsewhere too"
        return ""

    def _is_weight(self, producer: Region, value: Value, op: Op) -> bool:
        """Whether a map gives the right operand of a contraction from constants alone: each element then serves all
        rows, and may be computed for a panel of columns at a time."""
        known = all(is_known(v) for o in producer.ops for v in o.results)
        return known and value is op.operands[1] and is_cheap(_cost_of(producer, self.info))

    def _into_tiles(self, producer: Region, value: Value, op: Op) -> str:
        """Tiles are computed from a part of the sums of a contraction, as soon as these are complete."""
        bare = all(self.info[o].is_tiled or self.info[o].kind is OpClass.CONTRACTION for o in producer.ops)
        if producer.kind is not OpClass.CONTRACTION or not bare or not self.info[op].reads_once:
            return "its elements would be computed again for every tile"
        return "" if len(value.users) == 1 else "the sums are needed elsewhere too"

    def _into_windows(self, producer: Region, op: Op) -> str:
        """Windows are summed over a band of lines of a contraction's result as soon as these are complete."""
        if self._is_read_beside(producer, op):
            return "the tensor is needed elsewhere too"
        (sums,) = [o for o in producer.ops if self.info[o].kind is OpClass.CONTRACTION]
        if self.info[sums].slides:
            return "it sums windows itself, and is as much bound by memory"
        if self.ctx.target is None:
            return "the caches are not known"
        return windows_by_bands(sums, op, self.ctx.target)

    def _out_of_blocks(self, producer: Region, op: Op) -> str:
        """The result of a contraction leaves its blocks of channels a band of lines at a time."""
        if self._is_read_beside(producer, op):
            return "the tensor is needed in its own layout too"
        if any(u.name != "return" for u in op.result.users):
            return "what reads it may change its layout in a kernel of its own"
        if not is_cheap(_cost_of(producer, self.info)):
            return "its elementwise work would be written out for each row of a square of elements"
        (sums,) = [o for o in producer.ops if self.info[o].kind is OpClass.CONTRACTION]
        if self.info[sums].slides:
            return "it sums windows itself, and is as much bound by memory"
        if self.ctx.target is None:
            return "the caches are not known"
        return unblocks_by_bands(sums, self.ctx.target)

    def _lines_of_windows(self, producer: Region, consumer: Region, value: Value) -> str:
        """Lines are summed as soon as a kernel of windows has written them."""
        last = _owner(value)
        if len(consumer.ops) > 1 or not self.info[last].is_pointwise or not writes_lines(value):
            return "what it sums is not written line by line"
        if last is not max(producer.ops, key=lambda o: self.order[id(o)]):
            return "the kernel has written them before its end"
        return ""

    def _after_tiles(self, producer: Region, consumer: Region) -> str:
        """Elementwise work on tiles while they are in the first-level cache."""
        for op in consumer.ops:
            if not self.info[op].is_pointwise or self.info[op].domain != producer.domain:
                return f"{op.name} does not follow the tiles"
        return ""

    def _map_into_map(self, producer: Region, consumer: Region, value: Value, op: Op) -> str:
        if _size(producer.domain) == _size(consumer.domain) and self.info[op].is_pointwise:
            return ""
        only_reader = all(u is op or u in producer.ops for u in value.users)
        if self.info[op].branches:
            cheap = only_reader and is_cheap(_cost_of(producer, self.info))
            return "" if cheap else f"every branch of {op.name} would compute it"
        if only_reader and self.info[op].reads_once:
            return ""
        if only_reader and is_cheap(_cost_of(producer, self.info)):
            return ""
        return "its elements would be computed several times"

    def _row_with_map(self, producer: Region, consumer: Region, op: Op) -> str:
        if not _rows_agree(producer.domain, consumer.domain):
            return "its rows are not those of the reduction"
        if _size(producer.domain) == 1 and not _is_small(_size(consumer.domain)):
            return "one row leaves nothing to run in parallel"
        if not (self.info[op].is_pointwise or self.info[op].is_bijective):
            return f"{op.name} reads the rows in another order"
        return ""

    def _epilogue(self, producer: Region, consumer: Region, value: Value, op: Op) -> str:
        """Elementwise work on the result of a contraction or reduction, while it is in registers."""
        if any(u is not op for u in value.users) and self._feeds_rows_only(op):
            return "the reduction that reads it computes it from the same tensor"
        if _size(consumer.domain) != _size(producer.domain):
            return "it does not have one element for each of the result"
        if any(self.info[o].branches or not self.info[o].is_bijective for o in consumer.ops):
            return f"{op.name} moves elements in a way that the tile loops cannot follow"
        if self._moves(consumer) and self._is_read_beside(producer, op):
            return "the tensor is needed in its own layout too"
        views = [self.order[id(o)] for o in producer.ops if self._moves_elements(o)]
        if self.info[op].is_pointwise and self.order[id(_owner(value))] < max(views, default=-1):
            return "the kernel has moved the elements already"
        return ""

    def _moves(self, region: Region) -> bool:
        """Whether an op of the region changes the positions of elements."""
        return any(map(self._moves_elements, region.ops))

    def _moves_elements(self, op: Op) -> bool:
        return self.info[op].kind is OpClass.MAP and not self.info[op].is_pointwise

    def _is_read_beside(self, region: Region, op: Op) -> bool:
        """Whether results of the region have readers other than itself and `op`."""
        users = (u for o in region.ops for v in o.results for u in v.users)
        return any(u is not op and u not in region.ops for u in users)

    def _feeds_rows_only(self, op: Op) -> bool:
        """Whether reductions of rows are the only readers."""
        users = [u for v in op.results for u in v.users]
        return all(u in self.info and self.info[u].kind is OpClass.ROW for u in users)

    def _into_reduction(self, producer: Region, consumer: Region, value: Value, op: Op) -> str:
        if self.info[op].is_windowed:
            return "its elements would be computed again for every window"
        if consumer.kind is OpClass.ROW:
            return (
                ""
                if _rows_agree(consumer.domain, producer.domain)
                else "its rows are not those of the reduction"
            )
        only_reader = all(u is op or u in producer.ops for u in value.users)
        if not only_reader:
            return "the tensor is needed elsewhere too"
        return ""

    def _makes_cycle(self, producer: Region, consumer: Region) -> bool:
        """Whether some other region depends on the producer and feeds the consumer."""
        first = min(self.order[id(o)] for o in producer.ops)
        seen: set[Region] = {producer, consumer}
        pending = [r for r in self._feeders(consumer) if r is not producer]
        while pending:
            region = pending.pop()
            if region in seen:
                continue
            seen.add(region)
            if max(self.order[id(o)] for o in region.ops) < first:
                continue
            for feeder in self._feeders(region):
                if feeder is producer:
                    return True
                pending.append(feeder)
        return False

    def _feeders(self, region: Region) -> list[Region]:
        owners = (v.op for o in region.ops for v in o.operands)
        found = {self.region(o): None for o in owners if o is not None and o in self.of}
        found.pop(region, None)
        return list(found)

    def _merge(self, producer: Region, consumer: Region) -> None:
        main = producer if _rank(producer.kind) >= _rank(consumer.kind) else consumer
        if main.kind is OpClass.CONTRACTION and any(self.info[o].is_tiled for o in consumer.ops):
            consumer.kind = OpClass.TILED
        elif producer.kind is OpClass.CONTRACTION and any(self.info[o].slides for o in consumer.ops):
            consumer.kind = OpClass.BANDED
        elif producer.kind is OpClass.CONTRACTION and any(o.name == UNBLOCK for o in consumer.ops):
            consumer.kind = OpClass.UNBLOCKED
        else:
            consumer.domain, consumer.kind = main.domain, main.kind
        consumer.ops = sorted((*producer.ops, *consumer.ops), key=lambda o: self.order[id(o)])
        producer.merged_into = consumer
        self.ctx.remark("fuse", str(consumer), "one kernel", applied=True)

    # Rebuilding

    def rebuild(self) -> None:
        """Replace the ops by regions, each placed after all that it reads."""
        regions = list(dict.fromkeys(self.region(op) for op in self.of))
        placed: list[Op] = [op for op in self.body.ops if op.name == "constant"]
        loose = [
            op for op in self.body.ops if op.name != "constant" and op not in self.of and op.name != "return"
        ]
        done: set[Region] = set()
        for region in regions:
            self._place(region, placed, done)
        (final,) = [op for op in self.body.ops if op.name == "return"]
        replace_in_block(self.body, [*placed, final])
        for op in reversed(loose):
            op.drop()

    def _place(self, region: Region, placed: list[Op], done: set[Region]) -> None:
        pending = [region]
        while pending:
            current = pending[-1]
            missing = [r for r in self._feeders(current) if r not in done] if current not in done else []
            if missing:
                pending += missing
                continue
            pending.pop()
            if current not in done:
                done.add(current)
                placed += self._emit(current)

    def _emit(self, region: Region) -> list[Op]:
        """The ops that stand for a region: aliases before it, the `fused` op, aliases after it."""
        before = self._leading_aliases(region)
        after = self._trailing_aliases(region)
        if not region.ops:
            return [*before, *after]
        return [*before, _fused(region), *after]

    def _leading_aliases(self, region: Region) -> list[Op]:
        """Reshapes of values from outside: they need no kernel."""
        found: list[Op] = []
        for op in list(region.ops):
            if op.name != "reshape" or self._is_loose(op.operands[0]) or op.operands[0].op in region.ops:
                continue
            region.ops.remove(op)
            found.append(op)
        return found

    def _is_loose(self, value: Value) -> bool:
        """Whether a source is copied into its readers' regions, so that no tensor of it exists outside."""
        op = value.op
        return op is not None and op.name in SOURCES and op not in self.of

    def _trailing_aliases(self, region: Region) -> list[Op]:
        """Reshapes whose results are read outside only."""
        found: list[Op] = []
        for op in reversed(list(region.ops)):
            is_read_inside = any(u in region.ops for v in op.results for u in v.users)
            if op.name == "reshape" and not is_read_inside and not self._is_loose(op.operands[0]):
                region.ops.remove(op)
                found.append(op)
        return found[::-1]


def _fused(region: Region) -> Op:
    """The `fused` op of a region; takes over its results."""
    inside = set(region.ops)
    sources = dict.fromkeys(
        v.op
        for o in region.ops
        for v in o.operands
        if v.op is not None and v.op not in inside and v.op.name in SOURCES
    )
    reads = dict.fromkeys(
        v
        for o in region.ops
        for v in o.operands
        if v.op not in inside and (v.op is None or v.op not in sources)
    )
    writes_all = region.kind is OpClass.IRREGULAR  # its loops fill every result, read or not
    outputs = [
        v for o in region.ops for v in o.results if writes_all or any(u not in inside for u in v.users)
    ]
    block = Block([v.type for v in reads], [v.name for v in reads])
    values: dict[Value, Value] = dict(zip(reads, block.args, strict=True))
    for op in (*sources, *region.ops):
        assert op is not None
        block.append(op.clone(values))
    block.append(Op("yield", [values[v] for v in outputs]))
    anchor = _anchor(region)
    attrs = {"kind": region.kind.value, "name": _label(region, anchor)}
    fused = Op("fused", list(reads), [v.type for v in outputs], attrs, [block], anchor.loc)
    for old, new in zip(outputs, fused.results, strict=True):
        new.name = old.name
        outside = [u for u in old.users if u not in inside]
        for user in outside:
            user.set_operands([new if v is old else v for v in user.operands])
    for op in reversed(region.ops):
        op.drop()
    return fused


def _anchor(region: Region) -> Op:
    """The op that gives a kernel its name and its place in the source."""
    kind = OpClass.CONTRACTION if region.kind is OpClass.ATTENTION else region.kind
    return next((o for o in region.ops if classify(o).kind is kind), region.ops[-1])


def _label(region: Region, anchor: Op) -> str:
    """A short name for the kernel: its anchor and what follows it."""
    if region.kind is OpClass.ATTENTION:
        return region.kind.value
    names = [
        anchor.name,
        *dict.fromkeys(o.name for o in region.ops if o is not anchor and o.name != anchor.name),
    ]
    return "_".join(names[:4])


def _owner(value: Value) -> Op:
    assert value.op is not None
    return value.op


def _size(shape: tuple[Sym, ...]) -> Sym:
    return product(shape)


def _cost_of(region: Region, info: dict[Op, OpInfo]) -> int:
    """Scalar operations for each element."""
    return sum(info[o].cost for o in region.ops)


def _rank(kind: OpClass) -> int:
    return list(OpClass).index(kind)


def _is_small(size: Sym) -> bool:
    return size.is_const and one_thread_suffices(size.value)


def _rows_agree(rows: tuple[Sym, ...], other: tuple[Sym, ...]) -> bool:
    """Whether a tensor of shape `other` consists of whole rows: the row axes are its leading axes."""
    lead = [d for d in rows if d != 1]
    return [d for d in other if d != 1][: len(lead)] == lead
