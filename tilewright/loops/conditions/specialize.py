"""Kernels specialised for some dims only, and the kernel for all others beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.ir.core import Func, Op, substitute
from tilewright.ir.sym import Sym, ge0, logical_and, logical_not, sym, var
from tilewright.ir.types import BufferType
from tilewright.loops.edit import (
    fresh_var,
    is_loop,
    kind_of,
    names_in,
    new_if,
    new_loop,
    put_ops,
    refuse,
    rename_vars,
    substitute_in,
    take_ops,
)
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.primitive import primitive
from tilewright.loops.spec import versions_of
from tilewright.loops.storage.axes import merge_alike

LARGEST = 1 << 20
"""Value of a dim up to which kernels are specialised for it."""


@primitive
def specialize(func: Func, extent: Sym, least: int) -> Func:
    """Narrow the dims that `extent` depends on, so that it is `least` or more for certain.

    The kernel is then right only for dims of at least what `KernelInfo.specialized_for` says; `for_other_dims`
    completes it. ScheduleError when the extent depends on anything but dims, or when no bound of these is enough.
    """
    if not extent.vars or not extent.vars <= set(func.dims):
        refuse("specialize", f"{extent} >= {least}", "the extent does not depend on dims alone")
    narrowed = {d: v for d, v in _least(extent, least).items() if d is not v}
    _narrow(func, narrowed)
    info = kernel_info(func)
    least_values = {v.name: v.bounds[0] or 0 for v in narrowed.values()}
    func.info = replace(kernel_info(func), specialized_for={**info.specialized_for, **least_values})
    return func


def specialize_less(func: Func, least_values: Mapping[str, int]) -> bool:
    """Narrow the dims to those of which one at least is less than its value in `least_values`: the one dim that is not
    known to be as large. False where these are several, as nothing is known of any, and where loops that never run for
    so small dims would divide by zero."""
    left = [d for d in func.dims if d.name in least_values and (d.bounds[0] or 0) < least_values[d.name]]
    if len(left) != 1:
        return False
    (dim,) = left
    most = least_values[dim.name] - 1
    if dim.bounds[1] is not None and dim.bounds[1] <= most:
        return True
    narrowed = {dim: var(dim.name, dim.bounds[0], most)}
    if _divides_by_zero(func, narrowed):
        return False
    _narrow(func, narrowed)
    return True


def for_other_dims(func: Func, other: Func, dims: Sequence[Sym]) -> Func:
    """One kernel of `func`, which is specialised for some of its dims, and of `other`, which serves all other dims.

        if n >= 28 { S }
        if n < 28 { S' }

    Both compute the same of the same arguments; `dims` are the dims as they were. ScheduleError when they expect
    another layout of a constant. Where just one of them runs on several threads, the other is one iteration of a
    parallel loop; ScheduleError where threads are of a level of the machine, of which one iteration has no form.
    """
    least = kernel_info(func).specialized_for
    if kernel_info(func).packed != kernel_info(other).packed:
        refuse("for_other_dims", func.name, "the two kernels read a constant in different orders")
    if _is_parallel(func) and not _levels(func) and all(op.name == "return" for op in other.body.ops):
        put_ops(other.body, [new_loop(var("none", 0), sym(0), kind="parallel"), Op("return")])
    if _is_parallel(func) or _is_parallel(other):
        _share_serial_versions(func, other)
    for kernel in (func, other):
        _narrow(kernel, {now: d for now, d in zip(kernel.dims, dims, strict=True) if now is not d})
    condition = logical_and(*(ge0(d - least[d.name]) for d in dims if d.name in least))
    for theirs, ours in zip(other.args, func.args, strict=True):
        merge_alike(other, theirs, func, ours)
        theirs.replace_by(ours)
    first, second = ([op for op in take_ops(f.body) if op.name != "return"] for f in (func, other))
    names = names_in(func)
    names.update(op.attrs["var"].name for op in _binders(first))
    rename_vars(second, names)
    returned = Op("return")
    put_ops(func.body, [new_if([condition], first), new_if([logical_not(condition)], second), returned])
    func.info = replace(kernel_info(func), specialized_for={})
    return func


def _share_serial_versions(*kernels: Func) -> None:
    """Make each version without a parallel loop one iteration of one: one thread runs it. ScheduleError for a version
    whose parallel loops are inside of others."""
    serial = [(k, b) for k in kernels for b in versions_of(k.body) if not _has_parallel(b.ops)]
    for kernel, body in serial:
        if _has_parallel(body.walk()):
            refuse("for_other_dims", kernel.name, "threads share loops inside of others in a part of the versions")
        if any(map(_levels, kernels)) and any(op.name != "return" for op in body.ops):
            refuse("for_other_dims", kernel.name, "threads of the machine's levels share no loop of a version")
    for kernel, body in serial:
        ops = take_ops(body)
        returned = [op for op in ops if op.name == "return"]
        put_ops(body, ops)
        once = fresh_var(names_in(kernel), "once", sym(1))
        iteration = new_loop(once, sym(1), [op for op in ops if op.name != "return"], kind="parallel")
        put_ops(body, [iteration, *returned])


def _least(extent: Sym, wanted: int) -> dict[Sym, Sym]:
    """The dims of `extent` with the smallest common lower bound from which its own follows."""

    def narrowed(low: int) -> dict[Sym, Sym]:
        return {d: var(d.name, max(low, d.bounds[0] or 0), d.bounds[1]) for d in extent.vars}

    def is_enough(low: int) -> bool:
        found = extent.subs(narrowed(low)).bounds[0]
        return found is not None and found >= wanted

    highest = min(LARGEST, *(d.bounds[1] for d in extent.vars if d.bounds[1] is not None), LARGEST)
    if highest < 0 or not is_enough(highest):  # negative values of inputs count as dims, too
        refuse("specialize", f"{extent} >= {wanted}", "no bound of the dims is enough")
    low, high = 0, highest
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return narrowed(low)


def _narrow(func: Func, mapping: Mapping[Sym, Sym]) -> None:
    """Replace dims of a kernel by others of the same names, with other bounds."""
    for value in (*func.args, *(v for op in func.body.walk() for v in op.results)):
        if isinstance(value.type, BufferType):
            value.type = _with_dims(value.type, mapping)
    substitute_in(func.body, mapping)
    func.dims = substitute(func.dims, mapping)
    func.info = replace(kernel_info(func), work=substitute(kernel_info(func).work, mapping))


def _divides_by_zero(func: Func, mapping: Mapping[Sym, Sym]) -> bool:
    try:
        for op in func.body.walk():
            for attr in op.attrs.values():
                substitute(attr, mapping)
    except ZeroDivisionError:
        return True
    return False


def _with_dims(type: BufferType, mapping: Mapping[Sym, Sym]) -> BufferType:
    shape, strides, (offset,) = (
        substitute(attr, mapping) for attr in (type.shape, type.strides, (type.offset,))
    )
    return BufferType(type.dtype, shape, strides, type.space, offset)


def _binders(ops: Sequence[Op]) -> list[Op]:
    return [o for op in ops for o in op.walk() if o.name in ("for", "bind")]


def _is_parallel(func: Func) -> bool:
    """Whether a version of a kernel has loops that threads share around all others."""
    return any(_has_parallel(body.ops) for body in versions_of(func.body))


def _levels(func: Func) -> set[str]:
    """The levels of the machine whose threads share loops; none where these are tasks of the thread pool."""
    return {op.attrs["level"] for op in func.body.walk() if is_loop(op) and op.attrs.get("level")}


def _has_parallel(ops: Iterable[Op]) -> bool:
    return any(is_loop(op) and kind_of(op) == "parallel" for op in ops)
