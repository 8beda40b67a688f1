"""From fused regions to scheduled kernels: equal regions are lowered and scheduled once.

Each `fused` op of the main function becomes a `call {kernel, dims}`; kernels join the module as Funcs of the loops
level. Constant operands that a schedule wants packed are repacked here, so packing costs nothing at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.core import Block, Func, Module, Op, Value, replace_in_block, substitute
from tilewright.ir.diag import Remark
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import TensorType
from tilewright.loops.lower import lower_region
from tilewright.loops.packing import apply_packing
from tilewright.schedule.defaults import schedule_kernel
from tilewright.target.target import Target


def schedule_regions(module: Module, target: Target, remarks: list[Remark]) -> None:
    """Replace the fused regions of `module.main` by calls of scheduled kernels, in place."""
    _Kernels(module, target, remarks).run()


class _Kernels:
    """The kernels made so far, by the structure of their regions, and the packed constants."""

    def __init__(self, module: Module, target: Target, remarks: list[Remark]) -> None:
        self.module = module
        self.target = target
        self.remarks = remarks
        self.by_key: dict[Any, Func] = {}
        self.packed: dict[tuple[str, Any], str] = {}

    def run(self) -> None:
        body = self.module.main.body
        ops: list[Op] = []
        for op in body.ops:
            if op.name != "fused":
                ops.append(op)
                continue
            call, before = self._call(op)
            ops += [*before, call]
        replace_in_block(body, ops)

    def _call(self, region: Op) -> tuple[Op, list[Op]]:
        """The call that stands for `region`, and the ops that make its packed constants."""
        dims = _dims(region)
        canonical = {d: var(f"n{k}", *d.bounds) for k, d in enumerate(dims)}
        constant = tuple(v.op is not None and v.op.name == "constant" for v in region.operands)
        key = (_structure(region, canonical), constant)
        kernel = self.by_key.get(key)
        if kernel is None:
            kernel = self._kernel(_renamed(region, canonical), constant)
            self.by_key[key] = kernel
        operands, before = self._pack_operands(region.operands, kernel)
        actual = {c: d for d, c in canonical.items()}
        attrs = {"kernel": kernel.name, "dims": tuple(actual[d] for d in kernel.attrs["dims"])}
        call = Op("call", operands, [v.type for v in region.results], attrs, loc=region.loc)
        for old, new in zip(region.results, call.results, strict=True):
            old.replace_by(new)
        region.drop()
        return call, before

    def _kernel(self, region: Op, constant: Sequence[bool]) -> Func:
        name = f"k{len(self.by_key)}_{region.attrs.get('name', region.attrs.get('kind', 'fused'))}"
        lowered = lower_region(region, name)
        lowered.func.attrs["constants"] = tuple(k for k, c in enumerate(constant) if c)
        scheduled = schedule_kernel(lowered, region.attrs.get("kind", "map"), self.target, self.remarks)
        return self.module.add(scheduled.func)

    def _pack_operands(self, operands: Sequence[Value], kernel: Func) -> tuple[list[Value], list[Op]]:
        result = list(operands)
        before: list[Op] = []
        for k, packing in kernel.attrs.get("packed", {}).items():
            source = operands[k].op
            assert source is not None and source.name == "constant", "only constants are packed ahead of time"
            name = self._packed_constant(source.attrs["name"], packing)
            array = self.module.constants[name]
            assert isinstance(operands[k].type, TensorType)
            type = TensorType(operands[k].type.dtype, tuple(map(sym, array.shape)))
            op = Op("constant", [], [type], {"name": name}, loc=source.loc)
            before.append(op)
            result[k] = op.result
        return result, before

    def _packed_constant(self, name: str, packing: Any) -> str:
        key = (name, packing)
        if key not in self.packed:
            array = np.ascontiguousarray(apply_packing(self.module.constants[name], packing))
            self.packed[key] = self.module.add_constant(f"{name}.packed", array)
        return self.packed[key]


def _dims(region: Op) -> tuple[Sym, ...]:
    """Variables that the region's types and attributes mention, in a fixed order."""
    seen: dict[Sym, None] = {}

    def visit(x: Any) -> None:
        if isinstance(x, Sym):
            seen.update(dict.fromkeys(sorted(x.vars, key=str)))
        elif isinstance(x, tuple):
            for item in x:
                visit(item)
        elif isinstance(x, TensorType):
            visit(x.shape)

    for value in (*region.blocks[0].args, *region.results):
        visit(value.type)
    for op in region.blocks[0].ops:
        for attr in op.attrs.values():
            visit(attr)
    return tuple(seen)


def _structure(region: Op, canonical: dict[Sym, Sym]) -> Any:
    """A hashable description of what the region computes, equal for regions that can share a kernel."""
    numbers: dict[Value, int] = {a: k for k, a in enumerate(region.blocks[0].args)}
    rows: list[Any] = [region.attrs.get("kind"), *(_type_key(a, canonical) for a in region.blocks[0].args)]
    for op in region.blocks[0].ops:
        attrs = tuple((k, substitute(v, canonical)) for k, v in sorted(op.attrs.items()))
        rows.append((op.name, tuple(numbers[v] for v in op.operands), attrs))
        for v in op.results:
            numbers[v] = len(numbers)
            rows.append(_type_key(v, canonical))
    return tuple(rows)


def _type_key(value: Value, canonical: dict[Sym, Sym]) -> Any:
    assert isinstance(value.type, TensorType)
    return value.type.dtype.name, substitute(value.type.shape, canonical)


def _renamed(region: Op, canonical: dict[Sym, Sym]) -> Op:
    """A copy of the region over canonical dims, detached from the graph."""

    def rename(value: Value) -> TensorType:
        assert isinstance(value.type, TensorType)
        return TensorType(value.type.dtype, substitute(value.type.shape, canonical))

    (old,) = region.blocks
    block = Block([rename(a) for a in old.args], [a.name for a in old.args])
    values: dict[Value, Value] = dict(zip(old.args, block.args, strict=True))
    for op in old.ops:
        attrs = {k: substitute(v, canonical) for k, v in op.attrs.items()}
        copy = Op(op.name, [values[v] for v in op.operands], [rename(v) for v in op.results], attrs, loc=op.loc)
        for before, after in zip(op.results, copy.results, strict=True):
            after.name = before.name
            values[before] = after
        block.append(copy)
    return Op("fused", [], [rename(v) for v in region.results], region.attrs, [block], region.loc)
