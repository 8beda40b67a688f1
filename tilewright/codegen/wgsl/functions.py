"""The scalar functions that kernels in WGSL call: what one element of an operation is, `max_f32` or `i8_from_f32`.

Most are traced from the definitions that code for LLVM is made of (`traced.py`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial

import numpy as np

from tilewright.codegen.cpu.kernel.convert import convert, is_narrow, narrow, reinterpret
from tilewright.codegen.cpu.kernel.functions import absolute
from tilewright.codegen.cpu.kernel.scalars import apply_scalar
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.codegen.cpu.vmath import functions as vmath
from tilewright.codegen.cpu.vmath import trigonometric
from tilewright.codegen.wgsl.iterations import Iterations
from tilewright.codegen.wgsl.spelling import is_wide, literal, wgsl_type
from tilewright.codegen.wgsl.traced import traced
from tilewright.codegen.wgsl.words import ITERATIONS, WRITTEN
from tilewright.ir import dtype as dt
from tilewright.ir.diag import InternalError, UnsupportedError
from tilewright.ir.dtype import BY_NAME, DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import sym

_NAME = re.compile(r"(?P<op>[a-z_0-9]+)_(?P<dtype>bool|bf16|[iuf]\d\w*)\Z")
_CALLED = re.compile(r"(\w+)\(")
_TRACED = frozenset({"atan_f32", "exp_f32", "expm1_f32", "log_f32", "log1p_f32"})
_QUADRANT = [("q", dt.i32), ("r", dt.f32)]
_OF_QUADRANTS: Mapping[str, Callable[..., Reg]] = {
    "sine_of_quadrant": trigonometric.sine_of_quadrant,
    "tangent_of_quadrant": trigonometric.tangent_of_quadrant,
}


class WgslFunction:
    """A function of WGSL: its text, and the names of those that it calls."""

    def __init__(self, text: str, needs: Iterable[str]) -> None:
        self.text, self.needs = text, tuple(needs)


def definitions(names: Iterable[str]) -> list[str]:
    """The texts of all functions of these names, and of those that they call."""
    found: dict[str, str] = {}
    pending = sorted(set(names))
    while pending:
        name = pending.pop()
        if name not in found:
            definition = definition_of(name)
            found[name] = definition.text
            pending += definition.needs
    return [found[name] for name in sorted(found)]


@lru_cache(maxsize=1024)
def iterations_of(name: str) -> Iterations:
    """Those of the loops of a function and of what it calls."""
    own = BY_NAME[name[4:]].bits if name.startswith(("pow_i", "pow_u")) else ITERATIONS.get(name, 0)
    found = Iterations().repeated(sym(own)) if own else Iterations()
    for needed in definition_of(name).needs:
        found = found.after(iterations_of(needed))
    return found


@lru_cache(maxsize=1024)
def definition_of(name: str) -> WgslFunction:
    """The function of a name."""
    if name in WRITTEN:
        text = WRITTEN[name]
        called = dict.fromkeys(_CALLED.findall(text))
        ours = [c for c in called if c in WRITTEN or c in _OF_QUADRANTS or c in _TRACED]
        return WgslFunction(text, [c for c in ours if c != name])
    if name in _OF_QUADRANTS:
        return _made(name, _QUADRANT, _OF_QUADRANTS[name])
    matched = _NAME.match(name)
    if matched is None or matched["dtype"] not in BY_NAME:
        raise InternalError(f"there is no function {name} in WGSL")
    op, dtype = matched["op"], BY_NAME[matched["dtype"]]
    to, is_conversion, _ = op.partition("_from")
    if is_conversion and to in BY_NAME:
        return _conversion(name, BY_NAME[to], dtype)
    if is_conversion and to.removesuffix("_bits") in BY_NAME:
        return _made(name, [("x", dtype)], partial(reinterpret, to=BY_NAME[to.removesuffix("_bits")]))
    return _operation(name, op, dtype)


def _operation(name: str, op: str, dtype: DType) -> WgslFunction:
    """A scalar operation on operands of a dtype."""
    if (own := _OWN["int" if dtype.is_int else ""].get(op)) is not None:
        return own(name, dtype)
    if is_narrow(dtype):
        return _in_f32(name, op, dtype)
    function = vmath.SINGLE.get(op) if dtype is dt.f32 else None
    if function is not None:
        return _elementary(name, function, dtype)
    scalar = SCALAR_OPS[op]
    arguments = _arguments(scalar.arity, dtype)
    result = scalar.result_dtype(tuple(d for _, d in arguments))
    return _made(name, arguments, lambda *operands: apply_scalar(op, operands, result))


def _in_f32(name: str, op: str, dtype: DType) -> WgslFunction:
    """An operation on narrow floats, computed in float32 and rounded."""
    scalar = SCALAR_OPS[op]
    arguments = _arguments(scalar.arity, dtype)
    wide, back = f"f32_from_{dtype.name}", f"{dtype.name}_from_f32"
    call = f"{op}_f32({', '.join(f'{wide}({a})' for a, _ in arguments)})"
    is_flag = scalar.result == "bool"
    body = [f"return {call if is_flag else f'{back}({call})'};"]
    result = dt.bool_ if is_flag else dtype
    return WgslFunction(_text(name, result, arguments, body), [f"{op}_f32", wide, *([] if is_flag else [back])])


def _arguments(arity: int, dtype: DType) -> list[tuple[str, DType]]:
    return list(zip("xyz"[:arity], [dtype] * arity, strict=True))


def _extremum(compare: Callable[[Reg, Reg], Reg], name: str, dtype: DType) -> WgslFunction:
    return _made(name, _arguments(2, dtype), lambda a, b: compare(a, b).select(a, b))


def _without_counter(name: str, dtype: DType) -> WgslFunction:
    raise UnsupportedError("a GPU has no counter of cycles, which random numbers without a seed begin with",
                           hint="give a seed")  # fmt: skip


def _made(name: str, arguments: list[tuple[str, DType]], build: Callable[..., Reg]) -> WgslFunction:
    body, result, needs = traced(build, arguments, _callee)
    return WgslFunction(_text(name, result, arguments, body), needs)


def _text(name: str, result: DType, arguments: list[tuple[str, DType]], body: list[str]) -> str:
    parameters = ", ".join(f"{a}: {wgsl_type(d)}" for a, d in arguments)
    return "\n".join([f"fn {name}({parameters}) -> {wgsl_type(result)} {{", *(f"  {line}" for line in body), "}"])


def _callee(symbol: str, dtype: DType) -> str:
    """What WGSL calls a function that code for LLVM calls `symbol`."""
    if (found := re.fullmatch(r"tw_(\w+)_f32x1", symbol)) is not None:
        return f"{found[1]}_f32"
    if symbol.startswith("tw_power_"):
        return f"pow_{dtype.name}"
    if symbol in ("atan2f", "fmodf"):
        return {"atan2f": "atan2_of", "fmodf": "rem_f32"}[symbol]
    raise InternalError(f"there is no WGSL for the function {symbol}")


def _elementary(name: str, function: vmath.Function, dtype: DType) -> WgslFunction:
    op = name.removesuffix("_f32")

    def inner(*operands: Reg) -> Reg:
        near = function.build(*operands)
        if function.far is None:
            return near
        is_far = function.is_far
        far = is_far(*operands) if is_far else absolute(operands[0]) >= function.far_from
        (x, *_) = operands
        by_hand = f"{op}_far_f32" in WRITTEN
        value = x.text.call(dtype, 1, f"tw_{op}_far_f32x1", x) if by_hand else function.far(*operands)
        return far.select(value, near)

    def build(*operands: Reg) -> Reg:
        """Missing numbers stay missing, whatever a driver makes of comparisons."""
        found = inner(*operands)
        for x in operands:
            found = x.is_nan().select(x, found)
        return found

    return _made(name, _arguments(function.arity, dtype), build)


def _conversion(name: str, to: DType, source: DType) -> WgslFunction:
    """A conversion of an element, as `cast` has it."""
    if source.is_float and source.bits <= 8:
        if to is dt.f32:
            return _table(name, np.arange(256, dtype=np.uint8).view(source.storage).astype(np.float32))
        first, second = f"f32_from_{source.name}", f"{to.name}_from_f32"
        text = _text(name, to, [("x", source)], [f"return {second}({first}(x));"])
        return WgslFunction(text, [first, second])
    if to.is_float and to.bits < 32 and source is dt.f32:
        return _made(name, [("x", source)], lambda x: narrow(x, to))
    return _made(name, [("x", source)], lambda x: convert(x, to))


def _table(name: str, values: np.ndarray) -> WgslFunction:
    bits = ", ".join(f"{v:#x}u" for v in values.view(np.uint32))
    return WgslFunction(
        f"var<private> {name}_table: array<u32, 256> = array<u32, 256>({bits});\n"
        f"fn {name}(x: u32) -> f32 {{ return bitcast<f32>({name}_table[x & 255u]); }}",
        (),
    )


def _power(name: str, dtype: DType) -> WgslFunction:
    """Square and multiply; a base of 1 or -1 keeps its powers when the exponent is negative, others give 0."""
    type, one, zero = wgsl_type(dtype), literal(dtype, 1), literal(dtype, 0)
    multiply = "mul_64({}, {})" if is_wide(dtype) else "({} * {})"
    low = "left.x" if is_wide(dtype) else "u32(left)"
    lines = [f"fn {name}(x: {type}, y: {type}) -> {type} {{"]
    if dtype.kind == "int":
        minus = literal(dtype, -1)
        same = "eq_64({}, {})" if is_wide(dtype) else "({} == {})"
        negative = "slt_64(y, vec2<u32>(0u, 0u))" if is_wide(dtype) else "y < 0i"
        odd = "(y.x & 1u) == 1u" if is_wide(dtype) else "(y & 1i) == 1i"
        lines += [
            f"  if ({negative}) {{",
            f"    if ({same.format('x', one)}) {{ return x; }}",
            f"    if ({same.format('x', minus)}) {{ return select({one}, x, {odd}); }}",
            f"    return {zero};",
            "  }",
        ]
    half = "lshr_64(left, vec2<u32>(1u, 0u))" if is_wide(dtype) else "left >> 1u"
    left = "left.x | left.y" if is_wide(dtype) else "u32(left)"
    lines += [
        "  var square = x;",
        f"  var product = {one};",
        "  var left = y;",
        f"  while (({left}) != 0u) {{",
        f"    if (({low} & 1u) == 1u) {{ product = {multiply.format('product', 'square')}; }}",
        f"    square = {multiply.format('square', 'square')};",
        f"    left = {half};",
        "  }",
        f"  return {_wrapped('product', dtype)};",
        "}",
    ]
    needs = ["mul_64", "lshr_64", "eq_64", "slt_64"] if is_wide(dtype) else []
    return WgslFunction("\n".join(lines), needs)


def _wrapped(text: str, dtype: DType) -> str:
    if dtype.bits >= 32:
        return text
    return f"({text} & {(1 << dtype.bits) - 1}u)" if dtype.kind == "uint" else (
        f"(({text} << {32 - dtype.bits}u) >> {32 - dtype.bits}u)"
    )  # fmt: skip


_ANY: dict[str, Callable[[str, DType], WgslFunction]] = {"ticks": _without_counter}
_OWN: Mapping[str, Mapping[str, Callable[[str, DType], WgslFunction]]] = {
    "int": {
        **_ANY,
        "min": partial(_extremum, operator.lt),
        "max": partial(_extremum, operator.gt),
        "pow": _power,
    },
    "": _ANY,
}
"""Operations that are not spelled as for LLVM."""
