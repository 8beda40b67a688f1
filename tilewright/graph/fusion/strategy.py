"""What fusion asks of a strategy: which kernels of its form it makes, and what it takes into them.

A strategy is the knowledge of one form of kernel (a contraction with its epilogue, a reduction of rows): it says what
belongs into such a kernel, and how that is scheduled. Fusion knows no form. It asks the strategies that the back end
gives; the room `schedule` has those for CPUs, and adds what scheduling asks (`schedule/strategy.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from tilewright.cost.typical import TypicalSizes
from tilewright.graph.fusion.classify import OpInfo, classify, is_operator
from tilewright.graph.fusion.region import Region
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import Remark, ScheduleError, failure
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym, sym
from tilewright.ops.view import is_consecutive_slice
from tilewright.target.target import Target


@dataclass(frozen=True)
class Match:
    """That a strategy takes what it was asked about. `domain` is the shape that the main loops of the kernel run over
    (() leaves it as it is), `cycles` an estimate of the kernel's time; strategies that have one are compared by it."""

    domain: tuple[Sym, ...] = ()
    cycles: float | None = None


@dataclass
class Facts:
    """What is known of the function while its regions grow, and what sizes are expected to be where they are not
    known. Kernels take parts of tensors that begin anywhere, or (`takes_parts` is not set) none of such."""

    target: Target | None
    order: dict[Op, int]
    typical: TypicalSizes
    takes_parts: bool = True
    regions: dict[Op, Region] = field(default_factory=dict)
    _infos: dict[Op, OpInfo] = field(default_factory=dict)

    def info(self, op: Op) -> OpInfo:
        found = self._infos.get(op)
        if found is None:
            found = self._infos[op] = classify(op)
        return found

    def is_view(self, op: Op) -> bool:
        """Whether what an op gives needs no kernel, where it is the first of one: the operand by another shape, or a
        part of it that no kernel has to write."""
        is_part = self.takes_parts and _is_part(op) and not self._is_given_as_it_is(op)
        return self.info(op).is_alias or is_part

    def _is_given_as_it_is(self, op: Op) -> bool:
        """Whether a value is a result of the function, or is one by another shape: a kernel has to write it."""
        return any(
            not is_operator(user) or (self.info(user).is_alias and self._is_given_as_it_is(user))
            for user in op.result.users
        )

    def region(self, op: Op | None) -> Region | None:
        """The region that computes an op now; None for constants, copied sources and arguments (which have no op)."""
        found = None if op is None else self.regions.get(op)
        return None if found is None else found.root()

    def cost(self, region: Region) -> int:
        """Scalar operations for each element."""
        return sum(self.info(o).cost for o in region.ops)


def _is_part(op: Op) -> bool:
    """Whether an op gives a part of a tensor whose elements follow each other, and which a call alone knows. A kernel
    that is given the part has neither its place nor the size of the whole among its dims, and is that of other parts,
    too."""
    if not op.attrs.keys() >= {"starts", "sizes", "steps"} or not is_consecutive_slice(op):
        return False
    whole, part = op.operands[0].tensor.shape, op.result.tensor.shape
    cut = zip(op.attrs["starts"], part, whole, strict=True)
    return any(n != d and not (sym(start).is_const and n.is_const) for start, n, d in cut)


@dataclass(frozen=True, eq=False)
class Join:
    """Two regions that would be one kernel: `op` of the consumer reads `value`, which the producer computes."""

    producer: Region
    consumer: Region
    value: Value
    op: Op
    facts: Facts

    @property
    def info(self) -> OpInfo:
        """The facts about `op`."""
        return self.facts.info(self.op)

    @property
    def source(self) -> Op:
        """The op that computes the value."""
        assert self.value.op is not None
        return self.value.op

    def has(self, fact: Callable[[OpInfo], bool], region: Region) -> bool:
        """Whether a fact holds of some op of a region."""
        return any(fact(self.facts.info(o)) for o in region.ops)

    def is_only_reader(self) -> bool:
        """Whether only `op` reads the value, apart from ops of the producer."""
        return all(u is self.op or u in self.producer.ops for u in self.value.users)

    def leaves_nothing_else(self) -> bool:
        """Whether nothing but `op` reads what the producer computes."""
        users = (u for o in self.producer.ops for v in o.results for u in v.users)
        return all(u is self.op or u in self.producer.ops for u in users)


@dataclass(frozen=True)
class Group:
    """Regions that become one kernel together, each feeding the next one."""

    regions: tuple[Region, ...]
    cycles: float | None = None


class FusionStrategy(Protocol):
    """What fusion knows of a strategy. An answer of None means that the question is none of its business.

    `name` stands in the program (`fused {strategy="contraction"}`) and in remarks, and no other strategy has it.
    `label` names its kernels; "" lets them be named by their operators.
    """

    @property
    def name(self) -> str: ...

    @property
    def label(self) -> str: ...

    def claims(self, op: Op, info: OpInfo) -> bool:
        """Whether a kernel of this op alone has the strategy's form. Of the strategies that do, the first is taken."""

    def join(self, join: Join) -> Match | NoMatch | None:
        """Whether the strategy makes one kernel of two regions, which then are its own, or why it does not."""

    def gather(self, op: Op, facts: Facts) -> Group | NoMatch | None:
        """More than two regions, the last that of `op`, of which the strategy makes one kernel; asked when no two
        regions are joined any more."""


Answer = TypeVar("Answer", Match, Group)


def cheapest(
    answers: Iterable[tuple[FusionStrategy, Answer | NoMatch | None]],
) -> tuple[FusionStrategy, Answer] | NoMatch | None:
    """The match to take: the first, unless a later one is estimated to be faster; else the first reason."""
    best: tuple[FusionStrategy, Answer] | None = None
    reason: NoMatch | None = None
    for strategy, answer in answers:
        if isinstance(answer, NoMatch):
            reason = reason or answer
        elif answer is not None and (best is None or is_faster(answer.cycles, best[1].cycles)):
            best = strategy, answer
    return best or reason


def is_faster(cycles: float | None, than: float | None) -> bool:
    """Whether an estimate is below another one; False where there are not two to compare."""
    return cycles is not None and than is not None and cycles < than


S = TypeVar("S", bound=FusionStrategy)
A = TypeVar("A")


@dataclass(frozen=True, eq=False)
class Strategies(Generic[S]):
    """The strategies of a compilation: `outside` are those of plugins (each after the plugin's name), which are asked
    before ours. What one raises is told in `remarks`, and costs the one question; a strategy of a plugin is not asked
    again. With `checked` what one of ours raises is an error."""

    ours: tuple[S, ...]
    outside: tuple[tuple[str, S], ...] = ()
    remarks: list[Remark] = field(default_factory=list)
    checked: bool = True
    failed: set[str] = field(default_factory=set)

    def __iter__(self) -> Iterator[S]:
        every = (*(strategy for _, strategy in self.outside), *self.ours)
        if not self.failed:
            return iter(every)
        silent = self.failed - {strategy.name for strategy in self.ours}
        return (strategy for strategy in every if strategy.name not in silent)

    def find(self, name: str) -> S | None:
        """The strategy of a name."""
        return next((s for s in self if s.name == name), None)

    def answers(self, question: Callable[[S], A]) -> list[tuple[S, A | None]]:
        """What each strategy answers."""
        try:
            return [(s, question(s)) for s in self]
        except (ScheduleError, MemoryError):
            raise
        except Exception:  # of one of them
            return [(s, self.ask(s, question, None)) for s in self]

    def ask(self, strategy: S, question: Callable[[S], A], instead: A) -> A:
        """The answer of a strategy; `instead` where it fails. A ScheduleError is an answer, too."""
        try:
            return question(strategy)
        except (ScheduleError, MemoryError):
            raise
        except Exception as error:
            plugin = next((plugin for plugin, s in self.outside if s is strategy), None)
            if plugin is None and self.checked:
                raise
            self.failed.add(strategy.name)
            subject = f"strategy '{strategy.name}'" + ("" if plugin is None else f" of plugin '{plugin}'")
            stage = "strategy" if plugin is None else "plugins"
            what = "it is taken for no answer" if plugin is None else "the strategy is not asked any more"
            remark = failure(stage, subject, error, what)
            if remark not in self.remarks:
                self.remarks.append(remark)
            return instead
