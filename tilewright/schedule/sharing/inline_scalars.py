"""Numbers that all regions of one form share become part of their kernel; others stay operands, so that regions that
differ in nothing else share one."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tilewright.graph.fusion.classify import has_own_loops
from tilewright.ir.core import Module, Op, replace_in_block
from tilewright.ir.rewrite import constant_array
from tilewright.schedule.sharing.regions import canonical_regions


def write_out_numbers(regions: Sequence[Op], module: Module) -> None:
    """Replace operands of one element, where it is the same in all regions alike, by that element, in place: in the
    kernel's text it needs no register while something else is computed."""
    groups: dict[Any, list[Op]] = defaultdict(list)
    for region, canonical in canonical_regions(regions).items():
        if not any(map(has_own_loops, region.blocks[0].ops)):
            groups[canonical.key].append(region)
    for group in groups.values():
        for k in reversed(range(len(group[0].operands))):
            numbers = {_number(region, k, module) for region in group}
            if len(numbers) == 1 and None not in numbers:
                for region in group:
                    _write_out(region, k, module)
    unread = [op for op in module.main.body.ops if op.name == "constant" and not op.result.users]
    for op in unread:
        module.constants.pop(op.attrs["name"], None)
    replace_in_block(module.main.body, [op for op in module.main.body.ops if op not in unread])


def _number(region: Op, k: int, module: Module) -> str | None:
    """Operand k as text that is equal for equal numbers only; None when it is not a known number."""
    value = region.operands[k]
    is_constant = value.op is not None and value.op.name == "constant"
    if not is_constant or value.tensor.rank or value.tensor.dtype.kind not in ("float", "int", "uint", "bool"):
        return None
    array = constant_array(value, module)
    number = None if array is None else array.item()
    return repr(number) if isinstance(number, int | float) and not math.isnan(number) else None


def _write_out(region: Op, k: int, module: Module) -> None:
    array = constant_array(region.operands[k], module)
    assert array is not None
    (body,) = region.blocks
    argument = body.args[k]
    attrs = {"value": array.item(), "dtype": argument.tensor.dtype, "shape": ()}
    full = Op("full", [], [argument.tensor], attrs, loc=region.loc)
    argument.replace_by(full.result)
    full.parent = body
    body.ops.insert(0, full)
    body.args = (*body.args[:k], *body.args[k + 1 :])
    region.set_operands([v for n, v in enumerate(region.operands) if n != k])
