"""Copying an operand into the order in which it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import ZERO, Sym, ge0
from tilewright.ir.types import ScalarType
from tilewright.ir.types import buffer as dense
from tilewright.loops.analysis.bounds import follows, holds
from tilewright.loops.analysis.deps import accesses
from tilewright.loops.analysis.fields import field_bits
from tilewright.loops.analysis.region import in_bounds, new_tile, refuse_in_vector, region_of, tile_axes
from tilewright.loops.edit import (
    body_of,
    buffer_type,
    describe,
    enclosing,
    enclosing_loops,
    insert_after,
    insert_at,
    names_in,
    nest_of,
    places_of,
    ranges_at,
    ranges_of,
    refuse,
)
from tilewright.loops.kernel_info import kernel_info, operands_of
from tilewright.loops.primitive import primitive
from tilewright.loops.storage.packing import Packing, identity_packing


@dataclass(frozen=True, eq=False)
class Packed:
    """The packed tile and the loops that fill it, outermost first, one for each axis of the tile."""

    buffer: Value
    fill: list[Op] = field(default_factory=list)


@primitive
def pack(
    func: Func,
    buffer: Value,
    loop: Op,
    packing: Packing | None = None,
    space: str = "scratch",
    only: Sequence[Op] = (),
) -> Packed:
    """Copy what one iteration of `loop` reads of `buffer` into a tile at its start, laid out by `packing`.

        for io { for k { for ii { S(A[6*io + ii, k]) } } }

    becomes, with the axes exchanged (`Packing(((), ()), (1, 0))`),

        for io {
          p = alloc scratch [K, 6]
          for k { for ii { p[k, ii] = A[6*io + ii, k] } }
          for k { for ii { S(p[k, ii]) } }
        }

    With `only`, just these loads use the tile. Elements outside of the buffer are zeros in the tile, so conditions
    that only keep a load inside of the buffer (with `other` 0) are dropped at the uses. ScheduleError when the
    loop writes the buffer, or the part that it reads has no known bounds or sizes.
    """
    refuse_in_vector("pack", buffer, [*enclosing_loops(loop), loop])
    found = [a for a in accesses(body_of(loop)) if a.buffer is buffer]
    if not found:
        refuse("pack", buffer, f"{describe(loop)} does not read it")
    if any(a.write for a in found):
        refuse("pack", buffer, f"{describe(loop)} writes it")
    found = [a for a in found if not only or a.op in only]
    if buffer.op is not None and loop in enclosing_loops(buffer.op):
        refuse("pack", buffer, f"it is allocated inside of {describe(loop)}")
    type = buffer_type(buffer)
    packing = packing or identity_packing(type.rank)
    if packing.rank != type.rank:
        refuse("pack", buffer, f"the packing is for rank {packing.rank}")
    if packing.fields:
        refuse("pack", buffer, "only constants are packed in fields of bytes or words")
    around = ranges_of([*enclosing_loops(loop), loop])
    region = region_of("pack", buffer, found, around)
    tile_shape = packing.shape(region.sizes)
    tile = new_tile("pack", buffer, tile_shape, space)
    for a in found:
        _drop_bounds(a.op, type.shape, type.shape, {})
        idx = tuple(i - s for i, s in zip(a.idx, region.start, strict=True))
        a.op.set_operands([tile])
        a.op.attrs["idx"] = packing.index(idx)
        if "other" not in a.op.attrs and not in_bounds(a.op.attrs["idx"], tile_shape, ranges_at(a.op)):
            a.op.attrs.pop("guard", None)  # any value will do where its conditions do not hold
    axes = tile_axes(names_in(func), buffer_type(tile).shape)
    inner = tuple(v for v, _ in axes)
    source = tuple(s + p for s, p in zip(region.start, packing.position(inner), strict=True))
    within = around | {v: (v * 0, n - 1) for v, n in axes}
    given = [c for op in enclosing(loop) if op.name == "if" for c in op.attrs["guard"]]
    limits = tuple(c for c in in_bounds(source, type.shape, within) if not follows(c, given, within))
    read: dict[str, object] = {"idx": source}
    if limits:
        read |= {"guard": limits, "other": 0}
    load = Op("load", [buffer], [ScalarType(type.dtype)], read)
    store = Op("store", [load.result, tile], [], {"idx": inner})
    fill = nest_of(axes, [load, store])
    assert tile.op is not None
    insert_at(body_of(loop), 0, [tile.op, *([fill[0]] if fill else [load, store])])
    return Packed(tile, fill)


@primitive
def pack_argument(func: Func, buffer: Value, packing: Packing) -> Value:
    """Expect an input argument in packed layout: for operands that are constant, so that packing costs
    nothing.

        S(B[k, 32*jo + ji])    ->    S(Bp[jo, k, ji])        with Packing(((), (32,)), (1, 0, 2))

    The argument's type changes and `KernelInfo.packed` (argument index -> Packing) tells the caller to pass
    `apply_packing(array, packing)`. Conditions that only keep a load inside of the buffer are dropped
    where the added zeros take their part.

    With `fields` in the packing as many elements of so few bits as fit a byte share it, of which a load takes its part

        S(B[k, 32*jo + ji])    ->    S(i4(Bp[jo, k // 2, ji] >> 4*(k % 2)))      for B: i4, Bp: u8

    and with `words` as many as fit a word of 32 bits; flags have a bit each.

    ScheduleError for outputs, buffers that are not dense or packed already, and for fields of elements that have not as
    many bits, or of loads that give another number than 0 where their conditions do not hold.
    """
    type = buffer_type(buffer)
    index = _argument_index(func, buffer)
    info = kernel_info(func)
    if index in info.packed:
        refuse("pack_argument", buffer, "it is packed already")
    if packing.rank != type.rank:
        refuse("pack_argument", buffer, f"the packing is for rank {packing.rank}")
    if not type.is_dense or type.offset is not ZERO:
        refuse("pack_argument", buffer, "it is not dense")
    if packing.fields:
        _check_bits(buffer, packing)
    padded = packing.padded(type.shape)
    for op in places_of(buffer):
        _drop_bounds(op, type.shape, padded, ranges_at(op))
        if packing.shared is not None and op.name == "load":
            _take_field(op, packing.shared, packing.shift(op.attrs["idx"]))
        op.attrs["idx"] = packing.index(op.attrs["idx"])
    buffer.type = dense(packing.shared or type.dtype, packing.shape(type.shape))
    func.info = replace(info, packed={**info.packed, index: packing})
    return buffer


def _check_bits(buffer: Value, packing: Packing) -> None:
    dtype = buffer_type(buffer).dtype
    if field_bits(dtype) != packing.fields:
        refuse("pack_argument", buffer, f"its elements are {dtype}, and not fields of {packing.fields} bits")
    if any(op.attrs.get("other", 0) != 0 for op in places_of(buffer)):
        refuse("pack_argument", buffer, "a load stands for another number than 0 where its conditions do not hold")


def _take_field(load: Op, shared: DType, shift: Sym) -> None:
    """Make a load of an element one of what it shares with others, which the element is taken from."""
    whole, element = ScalarType(shared), load.result.scalar
    readers = list(dict.fromkeys(load.result.users))
    by = Op("index", [], [whole], {"expr": shift}, loc=load.loc)
    moved = Op("shr", [load.result, by.result], [whole], loc=load.loc)
    made = [by, moved]
    if element.dtype is dt.bool_:
        one = Op("const", [], [whole], {"value": 1}, loc=load.loc)
        made += [one, Op("and", [moved.result, one.result], [whole], loc=load.loc)]
    taken = Op("cast", [made[-1].result], [element], loc=load.loc)
    for reader in readers:
        reader.set_operands([taken.result if v is load.result else v for v in reader.operands])
    load.result.type = whole
    insert_after(load, [*made, taken])


def _argument_index(func: Func, buffer: Value) -> int:
    operands = operands_of(func)
    if buffer not in operands:
        refuse("pack_argument", buffer, "it is not an input argument")
    return operands.index(buffer)


def _drop_bounds(
    load: Op, shape: tuple[Sym, ...], padded: tuple[Sym, ...], ranges: dict[Sym, tuple[Sym, Sym]]
) -> None:
    """Remove the conditions of a load that only keep its index below `shape`, where zeros follow up to
    `padded`.

    With `padded` equal to `shape` the caller provides zeros all around, so the lower limits go as well.
    """
    guard: tuple[Sym, ...] = load.attrs.get("guard", ())
    if not guard or load.attrs.get("other", 0) != 0:
        return
    if padded is not shape and "other" not in load.attrs and not in_bounds(load.attrs["idx"], padded, ranges):
        load.attrs.pop("guard")  # any value will do where its conditions do not hold
        return
    droppable: set[Sym] = set()
    for i, n, reach in zip(load.attrs["idx"], shape, padded, strict=True):
        if padded is shape:
            droppable |= {ge0(i), ge0(n - 1 - i)}
        elif holds(ge0(reach - 1 - i), ranges) is True:
            droppable.add(ge0(n - 1 - i))
    left = tuple(c for c in guard if c not in droppable)
    if left:
        load.attrs["guard"] = left
        return
    load.attrs.pop("guard")
    load.attrs.pop("other", None)
