"""Whole LLVM functions around the instructions of a body."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.codegen.cpu.kernel.functions import absolute, any_lane
from tilewright.codegen.cpu.kernel.lanes import memory_type, vector
from tilewright.codegen.cpu.kernel.text import Reg, Text
from tilewright.codegen.cpu.vmath.functions import Function
from tilewright.ir.dtype import BY_NAME, DType
from tilewright.target.scale import Scale

_ARGUMENTS = ("x", "y")


def function_text(
    function: Function, symbol: str, dtype: str, lanes: int, scale: Scale | None, fuses: bool
) -> str:
    """The definition of `symbol` on `lanes` elements of `dtype`, after those of its helpers."""
    element = BY_NAME[dtype]
    text = Text(scale, fuses=fuses)
    names = _ARGUMENTS[: function.arity]
    arguments = [text.named(f"%{name}", element, lanes) for name in names]
    result = function.build(*arguments)
    helpers = ""
    if function.far is None:
        lines = [*text.lines, f"  ret {result.typed}"]
    else:
        helpers = _far_text(function.far, symbol, element, lanes, names)
        is_far = function.is_far
        far = is_far(*arguments) if is_far else absolute(arguments[0]) >= function.far_from
        lines = _with_far_lanes(result, arguments, far, symbol)
    return helpers + _definition(symbol, element, lanes, names, "alwaysinline", lines)


def _definition(
    symbol: str, dtype: DType, lanes: int, names: tuple[str, ...], attributes: str, lines: list[str]
) -> str:
    type = vector(memory_type(dtype), lanes)
    parameters = ", ".join(f"{type} %{name}" for name in names)
    head = f"define internal {type} @{symbol}({parameters}) {attributes} nounwind {{"
    return "\n".join([head, "entry:", *lines, "}"]) + "\n\n"


def _with_far_lanes(near: Reg, arguments: list[Reg], far: Reg, symbol: str) -> list[str]:
    """The lines so far and the return of `near`, with lanes whose arguments are far taken from the helper."""
    anywhere = any_lane(far).name
    return [
        *near.text.lines,
        f"  br i1 {anywhere}, label %rare, label %done",
        "rare:",
        f"  %each = call {near.type} @{symbol}_far({', '.join(x.typed for x in arguments)})",
        f"  %mixed = select {far.typed}, {near.type} %each, {near.typed}",
        "  br label %done",
        "done:",
        f"  %result = phi {near.type} [ {near.name}, %entry ], [ %mixed, %rare ]",
        f"  ret {near.type} %result",
    ]


def _far_text(
    far: Callable[..., Reg], symbol: str, dtype: DType, lanes: int, names: tuple[str, ...]
) -> str:
    """The helper `<symbol>_far`: the expensive computation for each lane in turn, far or not."""
    one = Text()
    result = far(*[one.named(f"%{name}", dtype) for name in names])
    scalar = f"{symbol}_far" if lanes == 1 else f"{symbol}_far_lane"
    text = _definition(scalar, dtype, 1, names, "noinline cold", [*one.lines, f"  ret {result.typed}"])
    if lanes == 1:
        return text
    element = memory_type(dtype)
    type = vector(element, lanes)
    loop = [
        "  br label %loop",
        "loop:",
        "  %lane = phi i32 [ 0, %entry ], [ %next, %loop ]",
        f"  %partial = phi {type} [ poison, %entry ], [ %all, %loop ]",
        *[f"  %one_{name} = extractelement {type} %{name}, i32 %lane" for name in names],
        f"  %value = call {element} @{scalar}({', '.join(f'{element} %one_{name}' for name in names)})",
        f"  %all = insertelement {type} %partial, {element} %value, i32 %lane",
        "  %next = add i32 %lane, 1",
        f"  %more = icmp ult i32 %next, {lanes}",
        "  br i1 %more, label %loop, label %end",
        "end:",
        f"  ret {type} %all",
    ]
    return text + _definition(f"{symbol}_far", dtype, lanes, names, "noinline cold", loop)
