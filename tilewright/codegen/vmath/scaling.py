"""Products with powers of two by the target's instruction, for any number of lanes."""

from __future__ import annotations

from tilewright.codegen.vmath.body import Value, llvm_type
from tilewright.target.scale import Scale


def multiply_by_power(scale: Scale, x: Value, n: Value, keep: Value) -> Value:
    """`keep ? x * 2^n : 0` for f32 numbers x, whole f32 numbers n and flags `keep` (i1).

    Vectors of more lanes than a call takes, or of a number that none has, go in parts; few lanes with zeros beside
    them.
    """
    lanes = x.body.lanes
    widths = [width for width, *_ in scale.calls]
    if lanes in widths:
        return _call(scale, x, n, keep)
    if lanes < widths[-1]:
        wide = [_part(value, 0, widths[-1]) for value in (x, n, keep)]
        return _part(_call(scale, *wide), 0, lanes)
    half = 1 << (lanes - 1).bit_length() - 1
    low = [_part(value, 0, half) for value in (x, n, keep)]
    high = [_part(value, half, lanes - half) for value in (x, n, keep)]
    return _joined(multiply_by_power(scale, *low), multiply_by_power(scale, *high))


def _call(scale: Scale, x: Value, n: Value, keep: Value) -> Value:
    body = x.body
    _, name, bits, rest = next(call for call in scale.calls if call[0] == body.lanes)
    flags = _part(keep, 0, bits)
    mask = flags.body.emit(f"i{bits}", f"bitcast {flags.typed} to i{bits}").name
    vector = llvm_type("f32", body.lanes)
    return body.emit(
        "f32", f"call {vector} @{name}({x.typed}, {n.typed}, {vector} zeroinitializer, i{bits} {mask}{rest})"
    )


def _part(value: Value, start: int, count: int) -> Value:
    """`count` lanes of a value from `start` on, zeros beyond its last."""
    body = value.body
    if (start, count) == (0, body.lanes):
        return value
    part = body.of_lanes(count)
    if body.lanes == 1:
        vector = llvm_type(value.kind, count)
        return part.emit(value.kind, f"insertelement {vector} zeroinitializer, {value.typed}, i32 0")
    if count == 1:
        return part.emit(value.kind, f"extractelement {value.typed}, i32 {start}")
    lanes = ", ".join(f"i32 {min(start + k, body.lanes)}" for k in range(count))
    zeros = f"{llvm_type(value.kind, body.lanes)} zeroinitializer"
    return part.emit(value.kind, f"shufflevector {value.typed}, {zeros}, <{count} x i32> <{lanes}>")


def _joined(low: Value, high: Value) -> Value:
    """The lanes of `low`, then those of `high`, which are at most as many."""
    high_lanes = high.body.lanes
    high = _part(high, 0, low.body.lanes)
    whole = low.body.of_lanes(low.body.lanes + high_lanes)
    lanes = ", ".join(f"i32 {k}" for k in range(whole.lanes))
    return whole.emit(low.kind, f"shufflevector {low.typed}, {high.typed}, <{whole.lanes} x i32> <{lanes}>")
