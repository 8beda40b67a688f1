"""What the kernels of a model have to do in a call, and how long this machine takes for that at least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.diag import TextError
from tilewright.ir.sym import var
from tilewright.ir.symbolic.parse import parse_sym
from tilewright.profiling.records import MachineRates, PeakRate, ReadRate
from tilewright.runtime.report.records import CallRecord, ProductForm, TypesOfKernel


@dataclass(frozen=True, slots=True)
class CallWork:
    """What a call of a kernel does at least: operations on floats, multiply-adds by their form, bytes of constants, and
    bytes of all else. None is what depends on sizes that are not known."""

    flops: int | None
    products: Mapping[ProductForm, int]
    constant_bytes: int | None
    other_bytes: int | None

    @property
    def operations(self) -> int | None:
        """Those on floats, and two for each product of integers."""
        if self.flops is None:
            return None
        return self.flops + 2 * sum(n for form, n in self.products.items() if form.adds_integers)

    @property
    def bytes(self) -> int | None:
        """All that is touched."""
        if self.constant_bytes is None or self.other_bytes is None:
            return None
        return self.constant_bytes + self.other_bytes


@dataclass(frozen=True, slots=True)
class RooflineBound:
    """The least time in seconds, and what sets it: a dtype, or the name of a level of memory."""

    seconds: float
    by: str


def amount(text: str | None, sizes: Mapping[str, int]) -> int | None:
    """An amount of a report for sizes of dims; None where it was not counted, or others are needed."""
    if text is None:
        return None
    if text.isdecimal():
        return int(text)
    try:
        return parse_sym(text, lambda name: var(name, None)).evaluate(sizes)
    except (KeyError, TextError, ValueError):
        return None


def works(calls: Sequence[CallRecord], types: Iterable[TypesOfKernel], sizes: Mapping[str, int]) -> list[CallWork]:
    """Of each call of a report. Products are counted for all calls of a kernel together, which do alike."""
    by_kernel = {t.kernel: t for t in types}
    return [_work(call, by_kernel.get(call.kernel), sizes) for call in calls]


def _work(call: CallRecord, types: TypesOfKernel | None, sizes: Mapping[str, int]) -> CallWork:
    products: dict[ProductForm, int] = {}
    for product in () if types is None else types.products:
        count = amount(product.count, sizes)
        if count is not None and types is not None:
            products[product.form] = count // max(types.calls, 1)
    touched, constant = amount(call.touched_bytes, sizes), amount(call.constant_bytes, sizes)
    other = None if touched is None or constant is None else touched - constant
    return CallWork(amount(call.flops, sizes), products, constant, other)


def bound(work: CallWork, machine: MachineRates, threads: int, all_constants: int) -> RooflineBound | None:
    """The larger of the time for the arithmetic and that for moving memory, on so many threads.

    Constants come from the level that holds those of the whole model, as they are read once for each call of it; other
    values from the level that holds what this kernel touches.
    """
    if work.flops is None or work.constant_bytes is None or work.other_bytes is None:
        return None
    computed, dtype = _computing(work, machine, threads)
    of_constants, of_others = (_level(n, machine, threads) for n in (all_constants, work.other_bytes))
    moved = work.constant_bytes / _rate(of_constants, machine, threads)
    moved += work.other_bytes / _rate(of_others, machine, threads)
    slowest = of_constants if work.constant_bytes > work.other_bytes else of_others
    return RooflineBound(max(computed, moved) / 1e9, dtype if computed >= moved else slowest.level)


def _computing(work: CallWork, machine: MachineRates, threads: int) -> tuple[float, str]:
    """Nanoseconds of the arithmetic, and the dtype that has most of it. What is no product of a known form counts as
    operations on f32."""
    assert work.flops is not None
    found: dict[str, float] = {}
    left = work.flops
    for form, count in work.products.items():
        peak = _peak(form, machine)
        found[peak.dtype] = found.get(peak.dtype, 0.0) + 2 * count / _rate(peak, machine, threads)
        left -= 0 if form.adds_integers else 2 * count
    plain = next(peak for peak in machine.peaks if peak.dtype == "f32")
    found["f32"] = found.get("f32", 0.0) + max(left, 0) / _rate(plain, machine, threads)
    return sum(found.values()), max(found, key=lambda dtype: found[dtype])


def _peak(form: ProductForm, machine: MachineRates) -> PeakRate:
    """That of the instruction; else of the dtype in which sums are added up, or of f32."""
    by_instruction = (p for p in machine.peaks if form.instruction and p.instruction == form.instruction)
    by_dtype = (p for p in machine.peaks if p.dtype == form.sums and not p.instruction)
    of_f32 = (p for p in machine.peaks if p.dtype == "f32")
    return next(peak for peaks in (by_instruction, by_dtype, of_f32) for peak in peaks)


def _level(size: int, machine: MachineRates, threads: int) -> ReadRate:
    """The level that holds so many bytes; each thread has caches of its own but for the last one, which all share."""
    *inner, last = machine.reads
    for k, level in enumerate(inner):
        copies = threads if k < len(inner) - 1 else 1
        if level.bytes is not None and size <= level.bytes * copies:
            return level
    return last


def _rate(of: PeakRate | ReadRate, machine: MachineRates, threads: int) -> float:
    """Of so many threads: between that of one and that of all, in proportion."""
    if machine.threads < 2:
        return max(of.one, 1e-9)
    share = min(max(threads - 1, 0) / (machine.threads - 1), 1.0)
    return max(of.one + share * (of.every - of.one), 1e-9)
