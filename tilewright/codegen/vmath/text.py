"""Whole LLVM functions around the instructions of a body."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.codegen.vmath.body import Body, Value, element_type, llvm_type
from tilewright.codegen.vmath.functions import Function
from tilewright.target.scale import Scale

_ARGUMENTS = ("x", "y")


def function_text(function: Function, symbol: str, dtype: str, lanes: int, scale: Scale | None) -> str:
    """The definition of `symbol` on `lanes` elements of `dtype`, after those of its helpers."""
    body = Body(lanes, scale)
    names = _ARGUMENTS[: function.arity]
    result = function.build(body, *(body.argument(dtype, name) for name in names))
    lines = [*body.lines, f"  ret {result.typed}"]
    helpers = ""
    if function.far is not None:
        helpers = _far_text(function.far, symbol, dtype, lanes)
        lines = _with_far_lanes(result, function.far_from, symbol)
    return helpers + _definition(symbol, dtype, lanes, names, "alwaysinline", lines)


def _definition(
    symbol: str, dtype: str, lanes: int, names: tuple[str, ...], attributes: str, lines: list[str]
) -> str:
    vector = llvm_type(dtype, lanes)
    parameters = ", ".join(f"{vector} %{name}" for name in names)
    head = f"define internal {vector} @{symbol}({parameters}) {attributes} nounwind {{"
    return "\n".join([head, "entry:", *lines, "}"]) + "\n\n"


def _with_far_lanes(near: Value, bound: float, symbol: str) -> list[str]:
    """The body of `near` and its return, with lanes whose argument is far taken from the helper."""
    body, lanes, vector = near.body, near.body.lanes, llvm_type(near.kind, near.body.lanes)
    x = body.argument(near.kind, "x")
    far = body.abs(x) >= bound
    anywhere = (
        far if lanes == 1 else body.emit("i1", f"call i1 @llvm.vector.reduce.or.v{lanes}i1({far.typed})")
    )
    return [
        *body.lines,
        f"  br i1 {anywhere.name}, label %rare, label %done",
        "rare:",
        f"  %each = call {vector} @{symbol}_far({x.typed})",
        f"  %mixed = select {far.typed}, {vector} %each, {near.typed}",
        "  br label %done",
        "done:",
        f"  %result = phi {vector} [ {near.name}, %entry ], [ %mixed, %rare ]",
        f"  ret {vector} %result",
    ]


def _far_text(far: Callable[[Body, Value], Value], symbol: str, dtype: str, lanes: int) -> str:
    """The helper `<symbol>_far`: the expensive computation for each lane in turn, far or not."""
    body = Body(1)
    result = far(body, body.argument(dtype, "x"))
    scalar = f"{symbol}_far" if lanes == 1 else f"{symbol}_far_lane"
    text = _definition(scalar, dtype, 1, ("x",), "noinline cold", [*body.lines, f"  ret {result.typed}"])
    if lanes == 1:
        return text
    vector, element = llvm_type(dtype, lanes), element_type(dtype)
    loop = [
        "  br label %loop",
        "loop:",
        "  %lane = phi i32 [ 0, %entry ], [ %next, %loop ]",
        f"  %partial = phi {vector} [ poison, %entry ], [ %all, %loop ]",
        f"  %one = extractelement {vector} %x, i32 %lane",
        f"  %value = call {element} @{scalar}({element} %one)",
        f"  %all = insertelement {vector} %partial, {element} %value, i32 %lane",
        "  %next = add i32 %lane, 1",
        f"  %more = icmp ult i32 %next, {lanes}",
        "  br i1 %more, label %loop, label %end",
        "end:",
        f"  ret {vector} %all",
    ]
    return text + _definition(f"{symbol}_far", dtype, lanes, ("x",), "noinline cold", loop)
