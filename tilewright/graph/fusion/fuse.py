"""Fusion: the graph is partitioned into regions, each of which becomes one kernel.

Every op starts as a region of its own; regions are then merged along values, consumers in program order, where a
strategy of the back end makes one kernel of both sides (`graph/fusion/strategy.py`). Each merge that is refused leaves
its reason as a remark. Ops without operands (`full`, `iota`, `sym_tensor`), and conditions that follow from these, are
copied into every region that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from operator import methodcaller
from typing import Any, ClassVar

from tilewright.cost.typical import typical_sizes
from tilewright.graph.fusion.classify import OpClass, is_needed_whole, is_operator
from tilewright.graph.fusion.edges import edge_notes
from tilewright.graph.fusion.positions import separate_conditions
from tilewright.graph.fusion.refusals import not_worth, said
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.rules import is_widened_later
from tilewright.graph.fusion.strategy import Facts, FusionStrategy, Join, Match, Strategies, cheapest
from tilewright.graph.match import type_of
from tilewright.graph.quantised.weight_only import separate_weights
from tilewright.ir.core import Block, Module, Op, Value, replace_in_block
from tilewright.ir.diag import failure
from tilewright.ir.notes import EdgeNote
from tilewright.ir.optional_steps import Part
from tilewright.ir.rewrite import NoMatch
from tilewright.passes import PassContext


@dataclass(frozen=True)
class Fuse:
    """Partition the main function into `fused` regions, of which `strategies` (in the order in which they are asked)
    make kernels; those of the names `apart` make none of several operators."""

    name: ClassVar[str] = "fuse"
    strategies: Strategies[Any] = field(repr=False)
    max_ops: int = 64
    apart: frozenset[str] = field(default=frozenset(), repr=False)

    def run(self, module: Module, ctx: PassContext) -> None:
        if any(op.name == "fused" for op in module.main.body.ops):
            return
        separate_weights(module)
        fusion = _Fusion(module, ctx, self.strategies, self.max_ops, self.apart)
        fusion.merge_pairs()
        fusion.merge_groups()
        fusion.leave_apart()
        fusion.tell_edges()
        fusion.rebuild()

    def run_plainly(self, module: Module, ctx: PassContext) -> None:
        """Each operator becomes a region of its own."""
        separate_weights(module)
        fusion = _Fusion(module, ctx, self.strategies, 1)
        fusion.tell_edges()
        fusion.rebuild()


class _Fusion:
    """The regions while they grow."""

    def __init__(
        self,
        module: Module,
        ctx: PassContext,
        strategies: Strategies[Any],
        max_ops: int,
        apart: frozenset[str] = frozenset(),
    ) -> None:
        self.ctx = ctx
        self.strategies = strategies
        self.max_ops = max_ops
        self.apart = apart
        self.body = module.main.body
        conditions = separate_conditions(self.body)
        self.facts = Facts(
            ctx.target,
            {op: n for n, op in enumerate(self.body.ops)},
            typical_sizes(type_of(v) for v in module.main.args),
            ctx.part_align == 1,
        )
        self.of = self.facts.regions
        self.unclaimed: set[Op] = set()  # by failing strategies alone
        self.refused: dict[tuple[Value, Op], NoMatch] = {}  # why values are not read within a kernel
        self.made: dict[Region, Op] = {}
        for op in self.body.ops:
            is_copied = op in conditions or (self.facts.info(op).is_source and not is_needed_whole(op))
            if is_operator(op) and not is_copied:
                self.of[op] = self._alone(op)

    def _alone(self, op: Op) -> Region:
        """The region of one op."""
        info = self.facts.info(op)
        claimed = cheapest(self.strategies.answers(lambda s: Match(info.domain) if s.claims(op, info) else None))
        if isinstance(claimed, tuple):
            return Region([op], claimed[0], info.kind, info.domain)
        assert self.strategies.failed, f"no strategy makes a kernel of {op.name}"
        self.unclaimed.add(op)
        return Region([op], self.strategies.ours[-1], info.kind, info.domain)

    def region(self, op: Op) -> Region:
        return self.of[op].root()

    # Merging

    def merge_pairs(self) -> None:
        for op in self.body.ops:
            if op not in self.of:
                continue
            for value in self._producers(op):
                producer, consumer = self.region(_owner(value)), self.region(op)
                if producer is not consumer and self.unclaimed.isdisjoint((op, *producer.ops)):
                    self._survive(partial(self._join, Join(producer, consumer, value, op, self.facts)), consumer)

    def merge_groups(self) -> None:
        for op in self.body.ops:
            if op in self.of:
                self._survive(partial(self._gather, op), self.region(op))

    def _survive(self, action: Callable[[], None], region: Region) -> None:
        """What fails where regions are merged costs this kernel alone."""

        def tell(error: Exception) -> None:
            self.ctx.remarks.append(failure("fuse", str(region), error, "it stays a kernel of its own"))

        self.ctx.optional.survive(action, tell)

    def leave_apart(self) -> None:
        """Take regions apart that a compilation went wrong with."""
        for region in dict.fromkeys(map(self.region, self.of)):
            anchor = region.ops[-1]
            part = Part("fuse", (anchor.loc, *(o.name for o in region.ops)), str(region), "each operator is a kernel")
            if len(region.ops) > 1 and not self.ctx.optional.takes(part):
                for op in region.ops:
                    self.of[op] = self._alone(op)

    def _gather(self, op: Op) -> None:
        """Make one region of those of which a strategy makes one kernel, the last that of `op`."""
        answers = self._answers(methodcaller("gather", op, self.facts))
        for strategy, answer in answers:
            if isinstance(answer, NoMatch):
                self.ctx.remark("fuse", f"{strategy.name} {op.loc}", answer.reason)
        found = cheapest(answers)
        if isinstance(found, tuple):
            strategy, group = found
            for producer, consumer in zip(group.regions, group.regions[1:], strict=False):
                self._merge(producer, consumer, strategy, Match())

    def _answers(self, question: Callable[[FusionStrategy], Any]) -> list[tuple[FusionStrategy, Any]]:
        """What the strategies answer that may make kernels of several operators."""
        return self.strategies.answers(lambda s: None if s.name in self.apart else question(s))

    def _producers(self, op: Op) -> list[Value]:
        """Operands that regions compute; contractions and reductions first, since they gain most."""
        values = [v for v in dict.fromkeys(op.operands) if v.op is not None and v.op in self.of]
        return sorted(values, key=lambda v: self.region(_owner(v)).kind is OpClass.ELEMENTWISE)

    def _join(self, join: Join) -> None:
        """Make the two regions one, or say why they stay two."""
        found = self._answer(join)
        if isinstance(found, NoMatch):
            self.ctx.remark("fuse", f"{join.producer} into {join.consumer}", found.reason)
            self.refused[join.value, join.op] = found
        else:
            self._merge(join.producer, join.consumer, *found)

    def _answer(self, join: Join) -> tuple[FusionStrategy, Match] | NoMatch:
        producer, consumer = join.producer, join.consumer
        if len(producer.ops) + len(consumer.ops) > self.max_ops:
            return not_worth(f"the kernel would have more than {self.max_ops} operators, which take long to compile")
        if is_widened_later(join):
            return not_worth("the tensor of few bits is stored anyway, and each reader converts it")
        found = cheapest(self._answers(methodcaller("join", join)))
        if found is None:
            first, second = (r.strategy.name.replace("_", " ") for r in (producer, consumer))
            return not_worth(f"a {second} cannot start before the whole {first} is done")
        if isinstance(found, tuple) and (between := self._between(producer, consumer)) is not None:
            blocker = said(between.ops[-1])
            why = "a third kernel needs the one and is needed by the other, so that it has to run between them"
            return NoMatch(why, "", (blocker,), again=inf)
        return found

    def _between(self, producer: Region, consumer: Region) -> Region | None:
        """Another region that depends on the producer, and from which the consumer is computed."""
        first = min(self.facts.order[o] for o in producer.ops)
        seen: set[Region] = {producer, consumer}
        pending = [r for r in self._feeders(consumer) if r is not producer]
        while pending:
            region = pending.pop()
            if region in seen:
                continue
            seen.add(region)
            if max(self.facts.order[o] for o in region.ops) < first:
                continue
            for feeder in self._feeders(region):
                if feeder is producer:
                    return region
                pending.append(feeder)
        return None

    def _feeders(self, region: Region) -> list[Region]:
        owners = (v.op for o in region.ops for v in o.operands)
        found = {self.region(o): None for o in owners if o is not None and o in self.of}
        found.pop(region, None)
        return list(found)

    def _merge(self, producer: Region, consumer: Region, strategy: FusionStrategy, match: Match) -> None:
        consumer.strategy, consumer.domain = strategy, match.domain or consumer.domain
        consumer.kind = max(producer.kind, consumer.kind, key=lambda kind: kind.value)
        consumer.ops = sorted((*producer.ops, *consumer.ops), key=lambda o: self.facts.order[o])
        producer.merged_into = consumer
        self.ctx.remark("fuse", str(consumer), "one kernel", applied=True)

    def tell_edges(self) -> None:
        """Note of each value between operators whether it stays within a kernel, and why."""
        nothing: list[EdgeNote] = []
        self.ctx.edges += self.ctx.optional.attempt(
            "edges", lambda: edge_notes(self.body.ops, self.facts, self._refusal, self.made), lambda: nothing
        )

    def _refusal(self, value: Value, op: Op) -> NoMatch:
        """Why a value goes from one kernel to another: what was answered when these were to be joined, and otherwise
        what is answered now, when both have become what they are."""
        found: Any = self.refused.get((value, op))
        if found is None:
            found = self._answer(Join(self.region(_owner(value)), self.region(op), value, op, self.facts))
        return found if isinstance(found, NoMatch) else NoMatch("each of the two was joined with others before")

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
        return [*before, self._fused(region), *after]

    def _leading_aliases(self, region: Region) -> list[Op]:
        """Reshapes of values from outside, and parts of them: they need no kernel."""
        found: list[Op] = []
        for op in list(region.ops):
            if not self.facts.is_view(op) or self._is_loose(op.operands[0]) or op.operands[0].op in region.ops:
                continue
            region.ops.remove(op)
            found.append(op)
        return found

    def _is_loose(self, value: Value) -> bool:
        """Whether a source is copied into its readers' regions, so that no tensor of it exists outside."""
        op = value.op
        return op is not None and self._is_copied(op)

    def _is_copied(self, op: Op) -> bool:
        """Whether an op is a source that has no region of its own."""
        return is_operator(op) and op not in self.of

    def _trailing_aliases(self, region: Region) -> list[Op]:
        """Reshapes whose results are read outside only."""
        found: list[Op] = []
        for op in reversed(list(region.ops)):
            is_read_inside = any(u in region.ops for v in op.results for u in v.users)
            if self.facts.info(op).is_alias and not is_read_inside and not self._is_loose(op.operands[0]):
                region.ops.remove(op)
                found.append(op)
        return found[::-1]

    def _fused(self, region: Region) -> Op:
        """The `fused` op of a region; takes over its results."""
        inside = set(region.ops)
        sources = self._copied_for(region.ops)
        reads = dict.fromkeys(
            v
            for o in region.ops
            for v in o.operands
            if v.op not in inside and (v.op is None or v.op not in sources)
        )
        writes_all = region.kind is OpClass.OPAQUE  # its loops fill every result, read or not
        outputs = [
            v for o in region.ops for v in o.results if writes_all or any(u not in inside for u in v.users)
        ]
        block = Block([v.type for v in reads], [v.name for v in reads])
        values: dict[Value, Value] = dict(zip(reads, block.args, strict=True))
        for op in (*sources, *region.ops):
            assert op is not None
            block.append(op.clone(values))
        block.append(Op("yield", [values[v] for v in outputs]))
        anchor = self._anchor(region)
        attrs = {"strategy": region.strategy.name, "name": region.strategy.label or _label(region, anchor)}
        loc = anchor.loc.joined(*(op.loc for op in region.ops))
        fused = Op("fused", list(reads), [v.type for v in outputs], attrs, [block], loc)
        self.made[region] = fused
        for old, new in zip(outputs, fused.results, strict=True):
            new.name = old.name
            outside = [u for u in old.users if u not in inside]
            for user in outside:
                user.set_operands([new if v is old else v for v in user.operands])
        for op in reversed(region.ops):
            op.drop()
        return fused

    def _copied_for(self, ops: Sequence[Op]) -> dict[Op, None]:
        """What some ops read that has no region of its own, in an order in which it can be computed."""
        found: dict[Op, None] = {}
        for op in ops:
            for source in (v.op for v in op.operands):
                if source is not None and source not in found and self._is_copied(source):
                    found |= self._copied_for([source])
                    found[source] = None
        return found

    def _anchor(self, region: Region) -> Op:
        """The op that gives a kernel its name and its place in the source."""
        return next((op for op in region.ops if self._claims(region, op)), region.ops[-1])

    def _claims(self, region: Region, op: Op) -> bool:
        return self.strategies.ask(region.strategy, lambda s: s.claims(op, self.facts.info(op)), False)


def _label(region: Region, anchor: Op) -> str:
    """A short name for the kernel: its anchor and what follows it."""
    names = [
        anchor.name,
        *dict.fromkeys(o.name for o in region.ops if o is not anchor and o.name != anchor.name),
    ]
    return "_".join(names[:4])


def _owner(value: Value) -> Op:
    assert value.op is not None
    return value.op
