"""From fused regions to scheduled kernels: equal regions are lowered and scheduled once.

Each `fused` op of the main function becomes a `call {kernel, dims}`; kernels join the module as Funcs of the
loops level. Constant operands that a schedule wants packed get a packed form here, so packing costs nothing at run
time; the original goes when its last reader has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tilewright.graph.fusion.strategy import Strategies
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Op, Value, replace_in_block
from tilewright.ir.diag import Remark, TilewrightError
from tilewright.ir.switches import CHECKED, Switches
from tilewright.ir.sym import sym
from tilewright.ir.types import TensorType
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.lower import lower_region
from tilewright.loops.machine.rules import spec_of
from tilewright.loops.stages import Lowered
from tilewright.loops.storage.inplace import overwritable
from tilewright.loops.storage.packing import PackedArray, Packing
from tilewright.schedule.defaults import matching, schedule_kernel, schedule_plainly, total_work
from tilewright.schedule.edited import EditedSchedules
from tilewright.schedule.sharing.inline_scalars import write_out_numbers
from tilewright.schedule.sharing.regions import Canonical, canonical_regions, own_regions
from tilewright.schedule.strategy import Strategy
from tilewright.target.machine import Machine


def schedule_regions(
    module: Module,
    target: Machine,
    strategies: Strategies[Strategy],
    remarks: list[Remark],
    ready: Callable[[Func], None] | None = None,
    step: Callable[[int, int], None] | None = None,
    *,
    switches: Switches = CHECKED,
    edited: EditedSchedules | None = None,
    numbers: Iterator[int] | None = None,
) -> None:
    """Replace the fused regions of `module.main` by calls of kernels that `strategies` schedule, in place.

    `ready` is given each kernel as soon as it is made, so that machine code can be made of it meanwhile. `step`
    is told how many of how many regions have their kernels. Unless `switches` say that programs are checked, a kernel
    whose schedule fails unexpectedly, or cannot be made into code by `ready`, gets a plain schedule, and a remark.
    Kernels of which `edited` has a trace are made by that; ScheduleError where it cannot be. The names of kernels begin
    with one of the `numbers`, by default from 0 on.
    """
    _Kernels(module, target, strategies, remarks, ready, switches, edited, count() if numbers is None else numbers).run(
        step
    )


class _Kernels:
    """The kernels made so far, by the structure of their regions, and the packed constants."""

    def __init__(
        self,
        module: Module,
        target: Machine,
        strategies: Strategies[Strategy],
        remarks: list[Remark],
        ready: Callable[[Func], None] | None,
        switches: Switches,
        edited: EditedSchedules | None,
        numbers: Iterator[int],
    ) -> None:
        self.module = module
        self.target = target
        self.strategies = strategies
        self.remarks = remarks
        self.ready = ready
        self.switches = switches
        self.edited = edited
        self.numbers = numbers
        self.by_key: dict[Any, Func] = {}
        self.packed: dict[tuple[str, Packing], tuple[str, TensorType]] = {}
        self.readers: Counter[str] = Counter()

    def run(self, step: Callable[[int, int], None] | None) -> None:
        body = self.module.main.body
        regions = [op for op in body.ops if op.name == "fused"]
        attempt = self.switches.attempt
        self.switches.run("inline-scalars", lambda: write_out_numbers(regions, self.module))
        self.readers = Counter(_constants_read(body.ops))
        canonical = attempt("share-kernels", lambda: canonical_regions(regions), lambda: own_regions(regions))
        ops: list[Op] = []
        done = 0
        for op in body.ops:
            if op.name != "fused":
                ops.append(op)
                continue
            call, before = self._call(canonical[op])
            ops += [*before, call]
            done += 1
            if step is not None:
                step(done, len(regions))
        replace_in_block(body, [op for op in ops if op.name != "constant" or op.result.users])

    def _call(self, canonical: Canonical) -> tuple[Op, list[Op]]:
        """The call that stands for a region, and the ops that make its packed constants."""
        region = canonical.region
        constant = tuple(v.op is not None and v.op.name == "constant" for v in region.operands)
        key = (canonical.key, constant)
        kernel = self.by_key.get(key)
        if kernel is None:
            kernel = self._kernel(canonical.detached(), constant)
            self.by_key[key] = kernel
        operands, before = self._pack_operands(region.operands, kernel)
        actual = canonical.actual()
        attrs = {"kernel": kernel.name, "dims": tuple(actual[d] for d in kernel.dims)}
        call = Op("call", operands, [v.type for v in region.results], attrs, loc=region.loc)
        for old, new in zip(region.results, call.results, strict=True):
            old.replace_by(new)
        region.drop()
        return call, before

    def _kernel(self, region: Op, constant: Sequence[bool]) -> Func:
        name = f"k{next(self.numbers)}_{region.attrs['name']}"
        found = matching(region, self.strategies, self.target, self.remarks)
        constants = [k for k, c in enumerate(constant) if c]
        keeps_layout = any(s.keeps_layout for s in found)
        lowered = lower_region(region, name, constants, keeps_layout=keeps_layout)
        if self.edited is not None and (func := self.edited.scheduled(lowered.func, self.target)) is not None:
            return self._from_trace(func, lowered, self.edited)
        if self.switches.plain:
            return self._finished(schedule_plainly(lowered, found, self.target, self.remarks, None))
        try:
            return self._finished(schedule_kernel(lowered, found, self.target, self.remarks))
        except MemoryError:
            raise
        except Exception as error:
            if self.switches.checked:
                raise
            self.module.funcs.pop(name, None)
            return self._finished(schedule_plainly(lowered, found, self.target, self.remarks, error))

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
        if self.switches.checked:
            verify_func(kernel, spec_of(self.target))
        pairs = self.switches.attempt("inplace", lambda: overwritable(kernel), lambda: ())
        kernel.info = replace(kernel_info(kernel), inplace=pairs)
        if self.ready is not None:
            self.ready(kernel)
        return kernel

    def _pack_operands(self, operands: Sequence[Value], kernel: Func) -> tuple[list[Value], list[Op]]:
        result = list(operands)
        before: list[Op] = []
        for k, packing in kernel_info(kernel).packed.items():
            source = operands[k].op
            assert source is not None and source.name == "constant", "only constants are packed ahead of time"
            name, type = self._packed_constant(source.attrs["name"], packing)
            self._release(source.attrs["name"])
            op = Op("constant", [], [type], {"name": name}, loc=source.loc)
            before.append(op)
            result[k] = op.result
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


def _constants_read(ops: Iterable[Op]) -> Iterable[str]:
    """Names of the constants that are operands, once for each operand."""
    for op in ops:
        for v in op.operands:
            if v.op is not None and v.op.name == "constant":
                yield v.op.attrs["name"]
