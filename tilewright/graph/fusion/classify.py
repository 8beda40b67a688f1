"""What kind of loops an op needs, read off its definition: fusion asks nothing else about an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from tilewright.cost.elementwise import COSTLY_OPERATIONS, weighted_operations
from tilewright.graph.match import is_constant, shape_of
from tilewright.ir.core import Op
from tilewright.ir.scalar import scalar_operation
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.ops.define import OPERATORS, Compute, Operator


class OpClass(Enum):
    """What loops an op needs, the weightiest last. ELEMENTWISE: each element on its own. ROW_REDUCTION: reduces
    trailing axes. REDUCTION: reduces others, or windows. CONTRACTION: sums products of two operands. OPAQUE: brings its
    own loops."""

    ELEMENTWISE = 0
    ROW_REDUCTION = 1
    REDUCTION = 2
    CONTRACTION = 3
    OPAQUE = 4


@dataclass(frozen=True)
class OpInfo:
    """Facts about one op.

    domain: the result's shape; for a ROW_REDUCTION its axes without the reduced ones.
    is_source: has no operands, so that every reader may compute it again.
    is_alias: its result lies in memory as its operand does.
    is_pointwise: element i of the result depends on the elements i of operands of the same shape.
    is_index_map: moves elements without computing (and without selecting).
    is_bijective: a one-to-one map of positions (elementwise, transpose, reshape by splitting axes).
    changes_last_axis: an index map whose result has another axis last than the operand.
    unblocks_channels: an index map that takes the operand's last axis, blocks of another one, back into that axis.
    reads_once: every operand element is read at most once.
    selects_by_position: which operand is read, or none, depends on the position (concat, pad).
    is_windowed: a reduction that reads elements several times.
    is_sliding_window: a reduction whose windows lie along the axes of an operand, one for each element of the result.
    reads_through: a contraction that can read an operand through an index map.
    is_matrix_product: a contraction of rows of the left operand with columns of the right one, or batches of these.
    reads_rows: a matrix product whose left operand has the reduced axis last.
    is_tiled: computes whole tiles of its result at once.
    sums_lines: adds up the axis before the last, and no other.
    cost: scalar operations for each element.
    """

    kind: OpClass
    domain: tuple[Sym, ...]
    is_source: bool = False
    is_alias: bool = False
    is_pointwise: bool = False
    is_index_map: bool = False
    is_bijective: bool = False
    changes_last_axis: bool = False
    unblocks_channels: bool = False
    reads_once: bool = False
    selects_by_position: bool = False
    is_windowed: bool = False
    is_sliding_window: bool = False
    reads_through: bool = False
    is_matrix_product: bool = False
    reads_rows: bool = False
    is_tiled: bool = False
    sums_lines: bool = False
    cost: int = 0


def is_operator(op: Op) -> bool:
    """Whether it computes something: constants and ends of blocks do not."""
    return op.name in OPERATORS


def has_own_loops(op: Op) -> bool:
    """Whether it is an operator that brings its own loops."""
    return is_operator(op) and OPERATORS[op.name].kind != "primitive"


def is_needed_whole(source: Op) -> bool:
    """Whether what has no operands is itself a result of the function, or read by an operator with loops of its own:
    readers cannot compute it again."""
    users = (u for v in source.results for u in v.users)
    return any(not is_operator(u) or has_own_loops(u) for u in users)


def classify(op: Op) -> OpInfo:
    """The facts about a graph op."""
    operator = OPERATORS.get(op.name)
    if operator is None or operator.kind != "primitive":
        return OpInfo(OpClass.OPAQUE, shape_of(op.results[0]) if op.results else ())
    types = [v.type for v in op.operands]
    compute = operator.compute(types, op.attrs)  # type: ignore[arg-type]
    known = tuple(is_constant(v) for v in op.operands) if _positions_are_data(compute) else ()
    return _of_computation(operator, compute, known)


@lru_cache(maxsize=2048)
def _positions_are_data(compute: Compute) -> bool:
    return any(o.name == "bind" for o in compute.body.ops)


@lru_cache(maxsize=2048)  # computations are shared, and the layers of a model have the same ones
def _of_computation(operator: Operator, compute: Compute, known: tuple[bool, ...]) -> OpInfo:
    """Of operands that are `known` constants (told only where positions are data)."""
    return _reduction(compute) if compute.combine else _elementwise(operator, compute, known)


def _elementwise(operator: Operator, compute: Compute, known: tuple[bool, ...]) -> OpInfo:
    if compute.tiles:
        return _tiles(compute)
    loads = _loads_of_tensors(compute, known)
    others = [
        o for o in compute.body.ops if o.name not in ("load", "yield", "const", "index", "bind", "check")
    ]
    once = _of_matrices(compute) if _positions_are_data(compute) else ()
    size = product(compute.shape)
    axes = tuple(v for v, _ in compute.axes)
    guarded = any(o.attrs.get("guard") for o in loads)
    plain = all(_is_affine(o.attrs["idx"]) for o in loads)
    copies = not others and len(loads) == 1 and not guarded and not known
    moves = copies and plain
    covers = [product(o.operands[0].type.shape) == size for o in loads]  # type: ignore[attr-defined]
    pointwise = plain and not guarded and all(_is_identity(o, axes, compute) for o in loads)
    return OpInfo(
        OpClass.ELEMENTWISE,
        compute.shape,
        is_source=not compute.body.args,
        is_alias=operator.is_alias,
        is_pointwise=pointwise,
        is_index_map=moves,
        is_bijective=pointwise or (moves and all(covers)),
        changes_last_axis=moves and _changes_last_axis(loads[0].attrs["idx"], compute),
        unblocks_channels=copies and _unblocks_channels(loads[0].attrs["idx"]),
        reads_once=plain and not guarded and all(covers),
        selects_by_position=guarded,
        cost=weighted_operations([o.name for o in others if o not in once])
        + COSTLY_OPERATIONS * _picked(compute, loads),
    )


def _of_matrices(compute: Compute) -> set[Op]:
    """What finds positions for whole matrices of the result: once for all of their elements."""
    within = {v for v, _ in compute.axes[-2:]}
    found: set[Op] = set()
    for op in reversed(compute.body.ops):
        users = [user for result in op.results for user in result.users]
        if op.name in ("bind", "check") or (users and found.issuperset(users)):
            found.add(op)
    moved = any(not within.isdisjoint(i.vars) for o in found for i in o.attrs.get("idx", ()))
    return set() if moved or len(compute.axes) < 3 else found


def _picked(compute: Compute, loads: Sequence[Op]) -> int:
    """How many loads read the elements of a line that data tell, which vectors gather one by one."""
    bound = {o.attrs["var"] for o in compute.body.ops if o.name == "bind"}
    return sum(not bound.isdisjoint(last.vars) for o in loads for last in o.attrs["idx"][-1:])


def _loads_of_tensors(compute: Compute, known: tuple[bool, ...]) -> list[Op]:
    """All loads but those of tables: of constants, at positions that are all data, and in range by themselves."""
    body = compute.body
    loads = [o for o in body.ops if o.name == "load"]
    tables = {a for a, is_known in zip(body.args, known, strict=False) if is_known}
    if not tables or any(o.name == "check" for o in body.ops):
        return loads
    data = {o.attrs["var"] for o in body.ops if o.name == "bind"}
    return [o for o in loads if o.operands[0] not in tables or not all(i in data for i in o.attrs["idx"])]


def _tiles(compute: Compute) -> OpInfo:
    loads = [o for o in compute.body.ops if o.name == "load"]
    read = product(count for _, count in compute.domain) * len(loads)
    once = all(read == product(o.operands[0].type.shape) for o in loads)  # type: ignore[attr-defined]
    guarded = any(o.attrs.get("guard") for o in loads)
    return OpInfo(
        OpClass.ELEMENTWISE,
        compute.shape,
        is_tiled=True,
        reads_once=once and not guarded,
        selects_by_position=guarded,
        cost=len(compute.body.ops),
    )


def _changes_last_axis(idx: tuple[Sym, ...], compute: Compute) -> bool:
    """Whether the last axis of the result counts along another axis of the operand than the last."""
    last = next((v for v, extent in reversed(compute.axes) if extent != 1), None)
    return last is not None and any(last in i.vars for i in idx[:-1])


def _unblocks_channels(idx: tuple[Sym, ...]) -> bool:
    """Whether the last index counts within blocks of an axis whose blocks an index counts that is not next to it."""
    return bool(idx) and idx[-1].kind == "mod" and any(_counts_blocks(i, idx[-1]) for i in idx[:-2])


def _counts_blocks(i: Sym, within: Sym) -> bool:
    return i.kind == "floordiv" and i.args == within.args


def _is_affine(idx: tuple[Sym, ...]) -> bool:
    return all(i.kind in ("const", "var", "add", "mul") and _polynomial(i) for i in idx)


def _polynomial(i: Sym) -> bool:
    return all(a.kind in ("const", "var") or (a.kind in ("add", "mul") and _polynomial(a)) for a in i.args)


def _is_identity(load: Op, axes: tuple[Sym, ...], compute: Compute) -> bool:
    """A load at the result's own position, with broadcasting of axes of extent 1."""
    idx: tuple[Sym, ...] = load.attrs["idx"]
    own = axes[len(axes) - len(idx) :] if len(idx) <= len(axes) else ()
    if len(own) != len(idx):
        return False
    return all(i == a or i == 0 for i, a in zip(idx, own, strict=True))


def _reduction(compute: Compute) -> OpInfo:
    body = compute.body.ops
    loads = [o for o in body if o.name == "load"]
    products = [o for o in body if scalar_operation(o).linear == "each"]
    sources = {o.operands[0] for o in loads}
    if compute.combine == "add" and len(products) == 1 and len(sources) == 2 and len(loads) == 2:
        guarded = any(o.attrs.get("guard") for o in loads)
        found = _matrix_product(loads, compute)
        return OpInfo(
            OpClass.CONTRACTION,
            compute.shape,
            reads_through=not guarded,
            is_sliding_window=_is_sliding_window(loads, compute),
            is_matrix_product=found is not None,
            reads_rows=bool(found),
        )
    reduced = product(e for _, e in compute.reduce)
    windowed = any(product(o.operands[0].type.shape) != product(compute.shape) * reduced for o in loads)  # type: ignore[attr-defined]
    if len(loads) == 1 and not windowed and _reduces_suffix(loads[0], compute):
        return OpInfo(OpClass.ROW_REDUCTION, compute.shape)
    return OpInfo(
        OpClass.REDUCTION,
        compute.shape,
        is_windowed=windowed,
        is_sliding_window=_is_sliding_window(loads, compute),
        sums_lines=compute.combine == "add" and len(body) == 2 and _reduces_lines(loads, compute),
    )


def _matrix_product(loads: list[Op], compute: Compute) -> bool | None:
    """Whether the left operand of a matrix product has the reduced axis last; None when it is no such product."""
    args = compute.body.args
    idx = {o.operands[0]: o.attrs["idx"] for o in loads}
    if len(compute.reduce) != 1 or len(compute.axes) < 2 or len(args) != 2 or set(idx) != set(args):
        return None
    *_, row, column = (v for v, _ in compute.axes)
    k = compute.reduce[0][0]
    left, right = (idx[a] for a in args)
    if min(len(left), len(right)) < 2 or not all(i.kind in ("var", "const") for i in (*left, *right)):
        return None
    if column in left or row in right or k in left[:-2] or k in right[:-2]:
        return None
    return left[-1] is not row and left[-2] is not k


def _reduces_lines(loads: list[Op], compute: Compute) -> bool:
    """Whether the body is one load, and the reduced axis is the one before the last of what it reads."""
    reduced = {v for v, _ in compute.reduce}
    flags = [i in reduced for load in loads for i in load.attrs["idx"]]
    return len(loads) == 1 and flags[-2:] == [True, False] and sum(flags) == 1


def _is_sliding_window(loads: list[Op], compute: Compute) -> bool:
    """Whether an operand is read with all axes of the result, and along some of them with a reduced one as well."""
    live = {v for v, extent in compute.axes if extent != 1}
    reduced = {v for v, _ in compute.reduce}
    return any(
        live <= frozenset[Sym]().union(*(i.vars for i in o.attrs["idx"]))
        and any(i.vars & live and i.vars & reduced for i in o.attrs["idx"])
        for o in loads
    )


def _reduces_suffix(load: Op, compute: Compute) -> bool:
    """Whether the operand's trailing axes are the reduced ones."""
    reduced = {v for v, _ in compute.reduce}
    flags = [i in reduced for i in load.attrs["idx"] if i != 0]
    return bool(flags) and flags == sorted(flags) and flags[-1]
