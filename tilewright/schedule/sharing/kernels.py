"""From fused regions to scheduled kernels: equal regions are lowered and scheduled once.

Each `fused` op of the main function becomes a `call {kernel, dims}`; kernels join the module as Funcs of the
loops level. Constant operands that a schedule wants packed get a packed form here, so packing costs nothing at run
time; the original goes when its last reader has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from tilewright.cost.roofline import SCALAR
from tilewright.cost.typical import TypicalSizes
from tilewright.graph.fusion.otherwise import fused_otherwise, put_in_place
from tilewright.graph.fusion.strategy import Strategies
from tilewright.graph.fusion.unfuse import operators_of, unfused
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Module, Op, Value, replace_in_block
from tilewright.ir.diag import Loc, NoRoomError, Remark, TilewrightError, failure
from tilewright.ir.optional_steps import CHECKED, EXPECTED, OptionalSteps, Part, StepFailed
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.lower import lower_region
from tilewright.loops.machine.rules import spec_of
from tilewright.loops.stages import Lowered
from tilewright.loops.storage.inplace import overwritable
from tilewright.loops.storage.packing import PackedArray, Packing
from tilewright.schedule.defaults import (
    MatchingStrategy,
    cheapest_first,
    matching,
    schedule_kernel,
    schedule_plainly,
    total_work,
)
from tilewright.schedule.edited import EditedSchedules
from tilewright.schedule.inlining import plan_of
from tilewright.schedule.sharing.inline_scalars import write_out_numbers
from tilewright.schedule.sharing.one_copy import chosen_packings, expect_packed, picking_regions
from tilewright.schedule.sharing.regions import Canonical, canonical_regions, own_regions
from tilewright.schedule.steps.pace import has_scalar_loops, pace_of, slow_kernel
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.work.little import little_kernels
from tilewright.target.machine import Machine
from tilewright.target.target import Target

Scheduler = Callable[[Lowered, Sequence[MatchingStrategy]], Lowered]
"""Makes a kernel of loops as they were lowered, and the strategies for it."""

KnownKernels = dict[Any, tuple[Func, tuple[Remark, ...]]]
"""Kernels by what they are made of, with what was told of them: of several programs that one compilation compares."""

_LAST = "bare"
"""The kernel of an operator that nothing takes the place of."""


def schedule_regions(
    module: Module,
    target: Machine,
    strategies: Strategies[Strategy],
    remarks: list[Remark],
    ready: Callable[[Func], None] | None = None,
    step: Callable[[int, int], None] | None = None,
    *,
    optional: OptionalSteps = CHECKED,
    edited: EditedSchedules | None = None,
    numbers: Iterator[int] | None = None,
    strict: bool = False,
    rounded_rows: int = 0,
    known: KnownKernels | None = None,
) -> list[int]:
    """Replace the fused regions of `module.main` by calls of kernels that `strategies` schedule, in place; gives how
    many calls each became.

    `ready` is given each kernel as soon as it is made, so that machine code can be made of it meanwhile. `step`
    is told how many of how many regions have their kernels. Unless `optional` says that failures are errors, a region
    whose schedule fails unexpectedly, or of which `ready` can make no code, becomes a kernel for each of its operators,
    and such a kernel has a simpler schedule; a remark tells of it.
    Kernels of which `edited` has a trace are made by that; ScheduleError where it cannot be. The names of kernels begin
    with one of the `numbers`, by default from 0 on. With `strict` each product is rounded as the model says;
    rows of products by integers may be rounded to so many bits as `rounded_rows` says, 0 for none. Kernels are taken
    from those that are `known`, which gain the others.
    """
    numbers = count() if numbers is None else numbers
    kernels = _Kernels(
        module, target, strategies, remarks, ready, optional, edited, numbers, strict, rounded_rows, known
    )
    return kernels.run(step)


class _BetterApart(Exception):
    """A region that is faster as several kernels."""


class _Kernels:
    """The kernels made so far, by the structure of their regions, and the packed constants."""

    def __init__(
        self,
        module: Module,
        target: Machine,
        strategies: Strategies[Strategy],
        remarks: list[Remark],
        ready: Callable[[Func], None] | None,
        optional: OptionalSteps,
        edited: EditedSchedules | None,
        numbers: Iterator[int],
        strict: bool,
        rounded_rows: int,
        known: KnownKernels | None,
    ) -> None:
        self.module = module
        self.target = target
        self.strategies = strategies
        self.remarks = remarks
        self.ready = ready
        self.optional = optional
        self.edited = edited
        self.numbers = numbers
        self.strict = strict
        self.rounded_rows = rounded_rows
        self.known = known
        self.by_key: dict[Any, Func] = {}
        self.slow: set[Any] = set()
        self.little: set[Any] = set()
        self.same: dict[Sym, Sym] = dict(module.main.attrs.get("same_dims", ()))
        self.packed: dict[tuple[str, Packing], tuple[str, TensorType]] = {}
        self.readers: Counter[str] = Counter()
        self.picking: dict[Op, tuple[int, ...]] = {}

    def run(self, step: Callable[[int, int], None] | None) -> list[int]:
        body = self.module.main.body
        regions = [op for op in body.ops if op.name == "fused"]
        self.optional.run("inline-scalars", lambda: write_out_numbers(regions, self.module))
        self.readers = Counter(_constants_read(body.ops))
        canonical = self._canonical(regions)
        self.little = self.optional.attempt("little-kernels", lambda: self._little(canonical), set)
        self.picking = self.optional.attempt("one-copy", lambda: self._picking(canonical), dict)
        made: dict[Op, list[Op]] = {}
        for region in (*(op for op in regions if op not in self.picking), *self.picking):
            made[region] = [*self._calls(canonical[region])]
            if step is not None:
                step(len(made), len(regions))
        ops = [o for op in body.ops for o in made.get(op, (op,))]
        replace_in_block(body, [op for op in ops if op.name != "constant" or op.result.users])
        return [sum(o.name == "call" for o in made[op]) for op in regions]

    def _picking(self, canonical: Mapping[Op, Canonical]) -> dict[Op, tuple[int, ...]]:
        """The regions that are scheduled last, with the operands that they read as they lie for others."""
        if not isinstance(self.target, Target):
            return {}
        return picking_regions(self.module.main, canonical)

    def _canonical(self, regions: Sequence[Op]) -> Mapping[Op, Canonical]:
        def shared() -> Mapping[Op, Canonical]:
            return canonical_regions(regions, self.same)

        return self.optional.attempt("share-kernels", shared, lambda: own_regions(regions))

    def _little(self, canonical: Mapping[Op, Canonical]) -> set[Any]:
        """The keys of regions that take next to nothing of the program's time."""
        if not isinstance(self.target, Target):
            return set()
        return little_kernels(self.module.main, canonical, self.target)

    def _calls(self, canonical: Canonical) -> Iterator[Op]:
        """The calls that stand for a region, with the ops that make their packed constants: one call or, where no
        kernel can be made of the whole region, one for each of its operators."""
        region = canonical.region
        label = region.attrs["name"]
        if len(operators_of(region)) < 2:
            yield from self._call_of_one(canonical)
            return
        whole = Part("kernel", (canonical.key, "whole"), f"kernel {label}", "each of its operators is a kernel")
        constant = _are_constant(region)
        if (canonical.key, constant) not in self.slow and self.optional.takes(whole):
            try:
                yield from self._call(canonical, whole, partial(self._scheduled_or_apart, canonical))
                return
            except EXPECTED:
                raise
            except _BetterApart:
                self.slow.add((canonical.key, constant))
            except Exception as error:
                self._survive(error, whole)
        self.readers.subtract(_constants_read([region]))
        if (canonical.key, constant) in self.slow:
            yield from self._calls_of_parts(self._parts(region, constant), region)
            return
        singles = self._picking_parts(region, lambda: unfused(region, self.strategies))
        self.readers.update(_constants_read(singles))
        for one in self._canonical(singles).values():
            yield from self._call_of_one(one)

    def _calls_of_parts(self, parts: Block, region: Op) -> Iterator[Op]:
        """The calls for the parts that a region is fused into otherwise, with the aliases between."""
        ops = self._picking_parts(region, lambda: put_in_place(region, parts))
        self.readers.update(_constants_read(ops))
        canonical = self._canonical([op for op in ops if op.name == "fused"])
        for op in ops:
            if op.name == "fused":
                yield from self._calls(canonical[op])
            else:
                yield op

    def _picking_parts(self, region: Op, take_apart: Callable[[], Sequence[Op]]) -> Sequence[Op]:
        """The parts of a region, which pick what it picks."""
        picked = [region.operands[k] for k in self.picking.pop(region, ())]
        parts = take_apart()
        for op in parts if picked else ():
            if found := tuple(k for k, v in enumerate(op.operands) if v in picked):
                self.picking[op] = found
        return parts

    def _parts(self, region: Op, constant: Sequence[bool]) -> Block:
        return fused_otherwise(region, constant, self.strategies, self.target)

    def _scheduled_or_apart(self, canonical: Canonical, lowered: Lowered, found: Sequence[MatchingStrategy]) -> Lowered:
        """The kernel of a whole region. _BetterApart where it would run one element after the other, and its parts as
        kernels of their own would not."""
        remarks: list[Remark] = []
        scheduled = schedule_kernel(lowered, found, self.target, remarks)
        reason = self._why_better_apart(scheduled.func, canonical) or self._why_refused(remarks, canonical)
        if reason:
            self.remarks.append(Remark("fuse", canonical.region.attrs["name"], reason))
            raise _BetterApart
        self.remarks += remarks
        return scheduled

    def _why_better_apart(self, kernel: Func, canonical: Canonical) -> str:
        """Why several kernels take the place of one; "" where they do not, and where a plugin made it one."""
        target = self.target
        if not isinstance(target, Target) or not has_scalar_loops(kernel):
            return ""
        if all(s.name != canonical.region.attrs["strategy"] for s in self.strategies.ours):
            return ""
        sizes = TypicalSizes({})
        whole = pace_of(kernel, target, sizes)
        if not whole.is_below(SCALAR):
            return ""
        parts = self._parts(canonical.detached(), _are_constant(canonical.region))
        regions = [op for op in parts.ops if op.name == "fused"]
        if len(regions) < 2:
            return ""
        cycles = sum(pace_of(self._alone(op).func, target, sizes).cycles for op in regions)
        if cycles >= whole.cycles:
            return ""
        return (
            f"{len(regions)} kernels instead of one, which would compute {whole.loop} one element at a time: "
            f"{cycles / 1e6:.3g} million cycles predicted, {whole.cycles / 1e6:.3g} million as one"
        )

    def _why_refused(self, remarks: Sequence[Remark], canonical: Canonical) -> str:
        """Why the strategy that gathered a region did not schedule it, where nothing else makes a good kernel of it."""
        name = canonical.region.attrs["strategy"]
        owner = self.strategies.find(name)
        if owner is None or not owner.is_needed or any(r.stage == "strategy" and r.message == name for r in remarks):
            return ""
        return next((r.message for r in remarks if r.stage == "schedule"), "") or f"{name} does not schedule it"

    def _alone(self, region: Op) -> Lowered:
        """A kernel for a region that is not used yet."""
        found = matching(region, self.strategies, self.target, [])
        keeps_layout = any(c.strategy.keeps_layout for c in found)
        constants = [k for k, known in enumerate(_are_constant(region)) if known]
        plan = plan_of(region, constants, keeps_layout=keeps_layout)
        lowered = lower_region(region, region.attrs["name"], plan, constants)
        return schedule_kernel(lowered, cheapest_first(found, lowered, self.target, []), self.target, [])

    def _call_of_one(self, canonical: Canonical) -> list[Op]:
        """The call for a region that is not taken apart: by the first of its kernels that can be made."""
        label = f"kernel {canonical.region.attrs['name']}"
        failed: Exception | None = None
        for name, instead, schedule in self._forms():
            part = Part("schedule", (canonical.key, name), label, instead)
            if not self.optional.takes(part) and name != _LAST:
                continue
            try:
                return self._call(canonical, part, schedule)
            except EXPECTED:
                raise
            except Exception as error:
                self._survive(error, part)
                failed = error
        assert failed is not None
        raise failed

    def _forms(self) -> Iterator[tuple[str, str, Scheduler]]:
        """The kernels that an operator can have, the best first: names, what to tell where it fails, schedules."""
        for skipped, name in enumerate(("best", "second", "third")):
            yield name, "it has a simpler schedule", partial(self._scheduled, skipped=skipped)
        yield "plain", "it has no schedule, and is slow", partial(self._plainly, self.strategies.ours[-1:])
        yield _LAST, "nothing is simpler", partial(self._plainly, ())

    def _survive(self, error: Exception, part: Part) -> None:
        """Tell of a kernel that cannot be made, where something takes its place. It is no defect that a machine has no
        room for one."""
        is_expected = isinstance(error, NoRoomError)
        if (self.optional.raises and not is_expected) or isinstance(error, StepFailed):
            raise error
        remark = failure("schedule", part.label, error, part.instead)
        if remark not in self.remarks:
            self.remarks.append(remark)

    def _call(self, canonical: Canonical, part: Part, schedule: Scheduler) -> list[Op]:
        """The call that stands for a region, behind the ops that make its packed constants."""
        region = canonical.region
        constant = _are_constant(region)
        layouts = self._layouts(region)
        key = (canonical.key, constant, part.of, *layouts.items())
        kernel = self.by_key.get(key)
        if kernel is None:
            is_little = canonical.key in self.little
            make = partial(self._kernel, canonical.detached(), constant, part, schedule, is_little, layouts)
            known_by = (key, is_little, _origin(region))
            kernel = make() if self.known is None else self._known(self.known, known_by, part, make)
            self.by_key[key] = kernel
        operands, before = self._pack_operands(region.operands, kernel, part)
        actual = canonical.actual()
        attrs = {"kernel": kernel.name, "dims": tuple(actual[d] for d in kernel.dims)}
        call = Op("call", operands, [v.type for v in region.results], attrs, loc=region.loc)
        for old, new in zip(region.results, call.results, strict=True):
            old.replace_by(new)
        region.drop()
        return [*before, call]

    def _known(self, known: KnownKernels, key: Any, part: Part, make: Callable[[], Func]) -> Func:
        """A kernel that another program of this compilation has, under a name of its own; a new one where none has."""
        found = known.get(key)
        if found is None:
            told = len(self.remarks)
            kernel = make()
            known[key] = kernel.clone(), tuple(self.remarks[told:])
            return kernel
        func, remarks = found
        name = f"k{next(self.numbers)}_{func.name.partition('_')[2]}"
        self.optional.made(name, part)
        self.remarks += [
            replace(r, subject=r.subject.replace(func.name, name), message=r.message.replace(func.name, name))
            for r in remarks
        ]
        kernel = self.module.add(replace(func.clone(), name=name))
        try:
            if self.ready is not None:
                self.ready(kernel)
        except Exception:
            self.module.funcs.pop(name)
            raise
        return kernel

    def _layouts(self, region: Op) -> Mapping[int, Packing]:
        """How constants lie that a region picks from, by operand, where all other kernels read them packed."""
        if region not in self.picking:
            return {}
        picks = (op.operands[k] for op, picked in self.picking.items() if op.operands for k in picked)
        others = self.readers - Counter(v.op.attrs["name"] for v in picks if v.op is not None)
        return chosen_packings(region, self.picking[region], self.packed, others)

    def _kernel(
        self,
        region: Op,
        constant: Sequence[bool],
        part: Part,
        schedule: Scheduler,
        is_little: bool,
        layouts: Mapping[int, Packing],
    ) -> Func:
        name = f"k{next(self.numbers)}_{region.attrs['name']}"
        self.optional.made(name, part)
        candidates = matching(region, self.strategies, self.target, self.remarks)
        constants = [k for k, c in enumerate(constant) if c]
        keeps_layout = any(c.strategy.keeps_layout for c in candidates)
        plan = plan_of(region, constants, keeps_layout=keeps_layout)
        lowered = lower_region(region, name, plan, constants)
        info = kernel_info(lowered.func)
        lowered.func.info = replace(info, rounds_as_written=self.strict, rounded_rows=self.rounded_rows)
        if self.edited is not None and (func := self.edited.scheduled(lowered.func, self.target)) is not None:
            return self._from_trace(func, lowered, self.edited)
        expect_packed(lowered.func, layouts, self.remarks)
        lowered.func.info = replace(kernel_info(lowered.func), little=is_little)
        try:
            found = cheapest_first(candidates, lowered, self.target, self.remarks)
            return self._finished(schedule(lowered, found))
        except Exception:
            self.module.funcs.pop(name, None)
            raise

    def _scheduled(self, lowered: Lowered, found: Sequence[MatchingStrategy], skipped: int = 0) -> Lowered:
        """By its strategies, without the first few."""
        return schedule_kernel(lowered, found[min(skipped, len(found) - 1) :], self.target, self.remarks)

    def _plainly(self, last: Sequence[Strategy], lowered: Lowered, found: Sequence[MatchingStrategy]) -> Lowered:
        return schedule_plainly(lowered, last, self.target)

    def _from_trace(self, func: Func, lowered: Lowered, edited: EditedSchedules) -> Func:
        """What a user's own steps made of a kernel. ScheduleError where it cannot be made into code."""
        func.info = replace(kernel_info(func), work=total_work(lowered))
        self.remarks.append(Remark("schedule", func.name, f"the steps of {edited.file}", "applied"))
        try:
            return self._finished(Lowered(func, []))
        except (MemoryError, TilewrightError):
            raise
        except Exception as error:
            raise edited.not_emitted(func.name, error) from error

    def _finished(self, scheduled: Lowered) -> Func:
        """The kernel as a function of the module, handed on."""
        kernel = self.module.add(scheduled.func)
        if self.optional.verified:
            verify_func(kernel, spec_of(self.target))
        if kernel_info(kernel).external:  # others may read what they have written over
            if self.ready is not None:
                self.ready(kernel)
            return kernel
        pairs = self.optional.attempt("inplace", lambda: overwritable(kernel), lambda: ())
        kernel.info = replace(kernel_info(kernel), inplace=pairs)
        if isinstance(self.target, Target):
            slow = slow_kernel(kernel, self.target, TypicalSizes({}), is_ours=bool(scheduled.stages))
            self.remarks += [] if slow is None else [slow]
        if self.ready is not None:
            self.ready(kernel)
        return kernel

    def _pack_operands(self, operands: Sequence[Value], kernel: Func, part: Part) -> tuple[list[Value], list[Op]]:
        result = list(operands)
        before: list[Op] = []
        released: list[str] = []
        for k, packing in kernel_info(kernel).packed.items():
            source = operands[k].op
            assert source is not None and source.name == "constant", "only constants are packed ahead of time"
            name, type = self._packed_constant(source.attrs["name"], packing)
            self.optional.made(name, part)
            op = Op("constant", [], [type], {"name": name}, loc=source.loc)
            before.append(op)
            result[k] = op.result
            released.append(source.attrs["name"])
        for name in released:  # when nothing can fail any more
            self._release(name)
        return result, before

    def _release(self, name: str) -> None:
        """One reader fewer of an original: the last one's packed copy supersedes it."""
        self.readers[name] -= 1
        if not self.readers[name]:
            del self.module.constants[name]

    def _packed_constant(self, name: str, packing: Packing) -> tuple[str, TensorType]:
        """The packed form of a constant, which is laid out where linking puts it."""
        key = (name, packing)
        if key not in self.packed:
            packed = PackedArray(self.module.constants[name], packing)
            type = TensorType(dt.from_numpy(packed.dtype), tuple(map(sym, packed.shape)))
            self.packed[key] = self.module.add_constant(f"{name}.packed", packed), type
        return self.packed[key]


def _origin(region: Op) -> tuple[str, tuple[Loc, ...]]:
    """What the kernel of a region is called after, and the nodes that reports name for it."""
    return region.attrs["name"], (region.loc, *(op.loc for op in region.blocks[0].ops))


def _are_constant(region: Op) -> tuple[bool, ...]:
    return tuple(v.op is not None and v.op.name == "constant" for v in region.operands)


def _constants_read(ops: Iterable[Op]) -> Iterable[str]:
    """Names of the constants that are operands, once for each operand."""
    for op in ops:
        for v in op.operands:
            if v.op is not None and v.op.name == "constant":
                yield v.op.attrs["name"]
