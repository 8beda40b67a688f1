"""The report of a program, and of one in parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from tilewright.accounts.account import ProgramDecisions, TypesOfProgram
from tilewright.accounts.flow import flow_records
from tilewright.ir.core import Module, Op, Value, substitute
from tilewright.ir.diag import Loc, Remark
from tilewright.ir.sym import Sym, sym
from tilewright.loops.counts import cost
from tilewright.loops.kernel_info import constants_of, kernel_info
from tilewright.program.memory.places import UNSHARED, arena_of, of_thread
from tilewright.program.memory.views import bytes_of
from tilewright.program.states import GROWING, states_of
from tilewright.runtime.report.records import (
    BlockRecord,
    CallRecord,
    IntegerMeaning,
    ProductCount,
    ProductForm,
    ProgramReport,
)

_DENORMALS = {
    "default": "denormal numbers count as zero",
    "strict": "denormal numbers as the calling thread's modes say",
    "fast": "denormal numbers count as zero, products of float32 may be of bfloat16",
}
_ROUNDED = "round_terms("
_FACTORS = "factors="
_ROUNDED_ROWS = "rows are rounded"


def program_report(
    module: Module,
    nodes: int,
    seconds: Mapping[str, float],
    remarks: Iterable[Remark],
    numerics: str,
    types: TypesOfProgram,
    *,
    counted: bool,
    flops: Mapping[Op, Sym],
    decisions: ProgramDecisions,
) -> ProgramReport:
    """What a compilation tells of a program: kernels, bytes, times by stages, types, and why things were not done; with
    `counted` also what each call counts, of which the `flops` of some are known."""
    calls = [op for op in module.main.body.ops if op.name == "call"]
    grown = {name for name, *_ in module.main.attrs.get(GROWING, ())}
    kept = [(state, u) for state, u in states_of(module.main) if state.attrs["name"] in grown]
    filled = {u.operands[1] for _, u in kept} | {v for state, _ in kept for u in state.result.users for v in u.results}
    records = [_call(op, module, filled) for op in calls]
    return ProgramReport(
        nodes=nodes,
        numerics=_numerics(numerics) + _rounding(module),
        kernels=len(calls),
        distinct_kernels=sum(f.level == "loops" for f in module.funcs.values()),
        arena=str(arena_of(module.main) - of_thread(module.main)),
        arena_without_sharing=str(module.main.attrs[UNSHARED] - of_thread(module.main)),
        compile_ms={stage: _milliseconds(time) for stage, time in seconds.items()},
        calls=tuple(_with_counts(records, calls, module, flops) if counted else records),
        products=types.products,
        types=types.kernels,
        layers=types.layers,
        integers=tuple(IntegerMeaning(*row) for row in module.main.attrs.get("integers", ())),
        blocks=decisions.blocks,
        edges=decisions.edges,
        flow=flow_records(module, records),
        loops=decisions.loops,
        schedules=decisions.schedules,
        simulated=decisions.simulated,
        remarks=(*remarks, *decisions.remarks),
    )


def _numerics(numerics: str) -> str:
    return f"{numerics}: {_DENORMALS[numerics]}"


def _rounding(module: Module) -> str:
    """What is said of rows that some kernels round."""
    kernels = [kernel_info(f) for f in module.funcs.values() if f.level == "loops"]
    bits = [info.rounded_rows for info in kernels if any(_ROUNDED in step for step in info.schedule)]
    if not bits:
        return ""
    floats = sum(any(_ROUNDED in step and _FACTORS in step for step in info.schedule) for info in kernels)
    said = f"; {_ROUNDED_ROWS} to {max(bits)} bits, in groups, in {len(bits)} kernels where there are many of them"
    return said + (f" ({floats} of these round weights of short floats, too, both to fewer bits)" if floats else "")


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)


def _call(op: Op, module: Module, filled: Set[Value]) -> CallRecord:
    """Of states that grow and are `filled`, rows are written: those that the call reads."""
    read = sum((bytes_of(v) for v in op.operands if v not in filled), sym(0))
    moved = str(read + sum((read if v in filled else bytes_of(v) for v in op.results), sym(0)))
    kernel = module.funcs[op.attrs["kernel"]]
    types = tuple(f"{v.type}" for v in op.results)
    external, *_ = kernel_info(kernel).external or (None,)
    nodes = _names(op.loc) or tuple(v.name for v in op.results if v.name)
    return CallRecord(kernel.name, op.loc.node, types, moved, nodes=nodes, external=external)


def _names(loc: Loc) -> tuple[str, ...]:
    """What the nodes of a place are called; those without a name by a value that they give."""
    return tuple(dict.fromkeys(name for source in loc.sources if (name := source.node or source.value)))


def _with_counts(
    records: Sequence[CallRecord], calls: Sequence[Op], module: Module, known: Mapping[Op, Sym]
) -> Iterable[CallRecord]:
    """Of each call the operations on floats, as its operators say it (`known`) or as its loops do, whichever are fewer:
    loops pad and compute again, operators such as the transforms of Winograd's algorithm are written with terms that
    are zero. And the bytes of its arguments that loops touch, those of constants apart."""
    costs = {name: cost(module.funcs[name]) for name in {op.attrs["kernel"] for op in calls}}
    for op, entry in zip(calls, records, strict=True):
        kernel = module.funcs[op.attrs["kernel"]]
        dims = dict(zip(kernel.dims, op.attrs["dims"], strict=True))
        found = costs[kernel.name]
        fixed = sum((found.traffic[a].distinct for a in constants_of(kernel) if a in found.traffic), sym(0))
        flops = substitute(found.flops, dims)
        flops = min(flops, known.get(op, flops), key=_for_some_size)
        touched, constant = (str(substitute(amount, dims)) for amount in (found.argument_bytes, fixed))
        yield replace(entry, flops=str(flops), touched_bytes=touched, constant_bytes=constant)


def _for_some_size(amount: Sym) -> int:
    return amount.evaluate(dict.fromkeys((v.name for v in amount.vars), SOME_SIZE))


SOME_SIZE = 8
"""Of dims that are not known, where two amounts are compared."""


def with_more_time(report: ProgramReport, seconds: Mapping[str, float]) -> ProgramReport:
    """The report with seconds of stages that came later."""
    more = {stage: _milliseconds(time) for stage, time in seconds.items()}
    return replace(report, compile_ms=_added([report.compile_ms, more]))


def _added(times: Sequence[Mapping[str, float]]) -> dict[str, float]:
    stages = dict.fromkeys(stage for found in times for stage in found)
    return {stage: round(sum(found.get(stage, 0.0) for found in times), 1) for stage in stages}


def report_of_parts(reports: Sequence[ProgramReport], nodes: int, numerics: str) -> ProgramReport:
    """That of a program in parts, of the reports of these."""
    return ProgramReport(
        nodes=nodes,
        numerics=next((r.numerics for r in reports if _ROUNDED_ROWS in r.numerics), _numerics(numerics)),
        parts=len(reports),
        kernels=sum(r.kernels for r in reports),
        distinct_kernels=sum(r.distinct_kernels for r in reports),
        arena=" and ".join(r.arena for r in reports),
        arena_without_sharing=" and ".join(r.arena_without_sharing for r in reports),
        compile_ms=_added([r.compile_ms for r in reports]),
        calls=tuple(call for r in reports for call in r.calls),
        products=_sums(count for r in reports for count in r.products),
        types=tuple(kernel for r in reports for kernel in r.types),
        layers=tuple(layer for r in reports for layer in r.layers),
        integers=tuple(meaning for r in reports for meaning in r.integers),
        blocks=_blocks_of_parts(reports),
        simulated=tuple(kernel for r in reports for kernel in r.simulated),
        edges=tuple(edge for r in reports for edge in r.edges),
        loops=tuple(loop for r in reports for loop in r.loops),
        schedules=tuple(schedule for r in reports for schedule in r.schedules),
        remarks=tuple(remark for r in reports for remark in r.remarks),
    )


def _blocks_of_parts(reports: Sequence[ProgramReport]) -> tuple[BlockRecord, ...]:
    """With the positions of kernels among the calls of all parts."""
    found, before = [], 0
    for report in reports:
        for block in report.blocks:
            kernels = tuple(tuple(before + number for number in copy) for copy in block.kernels)
            found.append(replace(block, kernels=kernels))
        before += len(report.calls)
    return tuple(found)


def _sums(products: Iterable[ProductCount]) -> tuple[ProductCount, ...]:
    found: dict[ProductForm, str] = {}
    for product in products:
        found[product.form] = _sum(found.get(product.form, "0"), product.count)
    return tuple(ProductCount(form, count) for form, count in found.items())


def _sum(a: str, b: str) -> str:
    if a.isdigit() and b.isdigit():
        return str(int(a) + int(b))
    return b if a == "0" else f"{a} + {b}"
