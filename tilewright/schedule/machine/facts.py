"""What strategies read from the texts of an accelerator's intrinsics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tilewright.cost.machine.ways import ROLES, MatrixUnit, UnitDim
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.scalar import converted_from
from tilewright.ir.sym import Sym
from tilewright.loops.analysis.deps import accumulation_of
from tilewright.loops.edit import buffer_type, extent_of, is_loop, loop_var
from tilewright.loops.machine.intrinsics import kernel_of
from tilewright.target.machine import Accelerator, Intrinsic


@lru_cache(maxsize=64)
def matrix_units(machine: Accelerator) -> tuple[MatrixUnit, ...]:
    """The intrinsics that add products of two operands to sums: matrices by matrices, by vectors, and vectors by
    vectors, of sizes that are numbers or dims, in any order of loops. Each with what sets such sums to zero."""
    return tuple(unit for i in machine.intrinsics if (unit := _matrix_unit(machine, i)) is not None)


def _matrix_unit(machine: Accelerator, intrinsic: Intrinsic) -> MatrixUnit | None:
    kernel = kernel_of(intrinsic)
    stores = [op for op in kernel.body.walk() if op.name == "store"]
    loops = [op for op in kernel.body.walk() if is_loop(op)]
    found = accumulation_of(stores[0]) if len(stores) == 1 else None
    products = [] if found is None else list(found.products())
    if len(products) != 1 or len(kernel.args) != 3:
        return None
    loads = _loads(products[0].operands)
    roles = None if loads is None else _roles(loops, *loads, stores[0])
    if loads is None or roles is None:
        return None
    if _begins_with(roles, stores[0]) == "n" and "m" in roles.values():  # the other operand has the rows
        loads = loads[::-1]
        roles = {v: {"m": "n", "n": "m"}.get(role, role) for v, role in roles.items()}
    accesses = (*loads, stores[0])
    types = [buffer_type(op.operands[-1]) for op in accesses]
    dims = {roles[loop_var(o)]: _dim(intrinsic, kernel, extent_of(o)) for o in loops}
    if not all(dims.values()):
        return None
    m, n, k = (dims.get(role) or UnitDim() for role in ROLES)
    clear, cleared = _clear_of(machine, intrinsic, stores[0])
    first, second, third = (_fast(op, roles) for op in accesses)
    return MatrixUnit(
        intrinsic, clear, (types[0].dtype, types[1].dtype, types[2].dtype),
        (types[0].space, types[1].space, types[2].space), (m, n, k), cleared,
        "".join(roles[loop_var(o)] for o in loops), (first, second, third),
    )  # fmt: skip


def _loads(factors: Sequence[Value]) -> tuple[Op, Op] | None:
    found = []
    for value in factors:
        source = converted_from(value)
        op = (value if source is None else source).op
        if op is None or op.name != "load" or op.attrs.get("guard"):
            return None
        found.append(op)
    return (found[0], found[1]) if len(found) == 2 and found[0].operands[0] is not found[1].operands[0] else None


def _roles(loops: Sequence[Op], left: Op, right: Op, store: Op) -> dict[Sym, str] | None:
    """Which loop goes along rows, columns and depth; None where one is something else."""
    told = {(True, False, True): "m", (False, True, True): "n", (True, True, False): "k"}
    found: dict[Sym, str] = {}
    for loop in loops:
        v = loop_var(loop)
        role = told.get((_moves(left, v), _moves(right, v), _moves(store, v)))
        if role is None or role in found.values():
            return None
        found[v] = role
    return found


def _moves(op: Op, v: Sym) -> bool:
    return any(v in i.vars for i in op.attrs["idx"])


def _begins_with(roles: dict[Sym, str], op: Op) -> str:
    """The role of the first loop that moves an access."""
    return next((roles[v] for i in op.attrs["idx"] for v in i.vars if v in roles), "")


def _dim(intrinsic: Intrinsic, kernel: Func, extent: Sym) -> UnitDim | None:
    """How far a loop goes; None where neither a number nor bounds of its dim are known."""
    if extent.is_const:
        return UnitDim("", extent.value, extent.value)
    if extent not in kernel.dims or extent.name not in intrinsic.sizes:
        return None
    return UnitDim(extent.name, *intrinsic.sizes[extent.name])


def _fast(op: Op, roles: dict[Sym, str]) -> str:
    """The loop along which an argument's elements must follow each other; "" where its strides are free."""
    type = buffer_type(op.operands[-1])
    for index, stride in zip(op.attrs["idx"], type.strides, strict=True):
        found = [roles[v] for v in index.vars if v in roles]
        if stride == 1 and len(found) == 1:
            return found[0]
    return ""


def _clear_of(machine: Accelerator, unit: Intrinsic, store: Op) -> tuple[Intrinsic | None, tuple[UnitDim, UnitDim]]:
    """The intrinsic that stores zeros into sums of the same kind, on the same queue, and its rows and columns."""
    sums = buffer_type(store.operands[-1])
    for other in machine.intrinsics:
        kernel = kernel_of(other)
        stores = [op for op in kernel.body.walk() if op.name == "store"]
        loops = [op for op in kernel.body.walk() if is_loop(op)]
        if other.queue != unit.queue or len(kernel.args) != 1 or len(stores) != 1 or len(loops) != 2:
            continue
        type, source = buffer_type(kernel.args[0]), stores[0].operands[0].op
        dims = [_dim(other, kernel, extent_of(o)) for o in loops]
        is_zero = source is not None and source.name == "const" and not source.attrs["value"]
        if is_zero and (type.dtype, type.space) == (sums.dtype, sums.space) and dims[0] and dims[1]:
            return other, (dims[0], dims[1])
    return None, (UnitDim(), UnitDim())
