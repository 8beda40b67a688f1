"""The scalar functions that kernels in C call, each written once in a file: what one element of an operation is.

Their names are those of the operations with the dtype behind, `max_f32`, and of conversions `i8_from_f32`. Most are
traced from the definitions that code for LLVM is made of (`traced.py`), so that both give the same bits.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial

import numpy as np

from tilewright.codegen.c.spelling import c_type, literal, unsigned_type
from tilewright.codegen.c.traced import traced
from tilewright.codegen.cpu.kernel.convert import convert, is_narrow, narrow, reinterpret
from tilewright.codegen.cpu.kernel.functions import absolute
from tilewright.codegen.cpu.kernel.scalars import apply_scalar
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.codegen.cpu.vmath import functions as vmath
from tilewright.codegen.cpu.vmath import trigonometric
from tilewright.ir import dtype as dt
from tilewright.ir.diag import InternalError, UnsupportedError
from tilewright.ir.dtype import BY_NAME, DType
from tilewright.ir.scalar import SCALAR_OPS

_LIBRARY = frozenset({"sin", "cos", "tan", "asinh", "acosh", "atanh", "atan2", "atan2f"})
"""Functions of the C library that are called under their own names."""

_TABLES: Mapping[str, Mapping[str, vmath.Function]] = {"f32": vmath.SINGLE, "f64": vmath.DOUBLE}
_NAME = re.compile(r"(?P<op>[a-z_0-9]+)_(?P<dtype>bool|bf16|[iuf]\d\w*)\Z")


class Definition:
    """A function of C: its text, and the names of those that it calls."""

    def __init__(self, text: str, needs: Iterable[str] = ()) -> None:
        self.text, self.needs = text, tuple(needs)


def definitions(names: Iterable[str]) -> list[str]:
    """The texts of all functions of these names, each after those that it calls."""
    found: dict[str, str] = {}
    seen = set(_LIBRARY)

    def visit(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        definition = definition_of(name)
        for needed in definition.needs:
            visit(needed)
        found[name] = definition.text

    for name in sorted(set(names)):
        visit(name)
    return list(found.values())


@lru_cache(maxsize=1024)
def definition_of(name: str) -> Definition:
    """The function of a name."""
    if name in _WRITTEN:
        return _WRITTEN[name]
    matched = _NAME.match(name)
    if matched is None or matched["dtype"] not in BY_NAME:
        raise InternalError(f"there is no function {name} in C")
    op, dtype = matched["op"], BY_NAME[matched["dtype"]]
    to, is_conversion, _ = op.partition("_from")
    if is_conversion and to in BY_NAME:
        return _conversion(name, BY_NAME[to], dtype)
    if is_conversion and to.removesuffix("_bits") in BY_NAME:
        return _made(name, [("x", dtype)], partial(reinterpret, to=BY_NAME[to.removesuffix("_bits")]))
    if (lanes := _LANES.match(op)) is not None:
        return _of_lanes(name, lanes["op"], int(lanes["count"]), dtype)
    return _operation(name, op, dtype)


_LANES = re.compile(r"(?P<op>[a-z]+)_of_(?P<count>\d+)\Z")


def _of_lanes(name: str, op: str, count: int, dtype: DType) -> Definition:
    """All elements of an array combined: halves onto halves, in the order of `scalars.horizontal`."""
    needs, both = [], "{} " + ("*" if op == "mul" else "+") + " {}"
    if not dtype.is_float or dtype.bits < 32 or op not in ("add", "mul"):
        needs, both = [f"{op}_{dtype.name}"], f"{op}_{dtype.name}({{}}, {{}})"
    type = c_type(dtype)
    head = f"static inline {type} {name}(const {type} *x) {{"
    if count & (count - 1) or count < 4:
        return Definition(f"{head} return {_combined([f'x[{k}]' for k in range(count)], both)}; }}", needs)
    half, source = count // 2, "x"
    lines = [head, f"  {type} sums[{half}];"]
    while half > 1:
        step = both.format(f"{source}[k]", f"{source}[k + {half}]")
        lines.append(f"  for (int k = 0; k < {half}; k++) sums[k] = {step};")
        half, source = half // 2, "sums"
    return Definition("\n".join([*lines, f"  return {both.format('sums[0]', 'sums[1]')};", "}"]), needs)


def _combined(items: list[str], both: str) -> str:
    while len(items) > 1:
        half = 1 << (len(items) - 1).bit_length() - 1
        low, high = items[:half], items[half:]
        if len(high) < half:
            pairs = [f"({both.format(a, b)})" for a, b in zip(low[: len(high)], high, strict=True)]
            return f"({both.format(_combined(pairs, both), _combined(low[len(high) :], both))})"
        items = [f"({both.format(a, b)})" for a, b in zip(low, high, strict=True)]
    return items[0]


def _operation(name: str, op: str, dtype: DType) -> Definition:
    """A scalar operation on operands of a dtype."""
    kind = "float" if dtype in (dt.f32, dt.f64) else "int" if dtype.is_int else ""
    if (own := _OWN[kind].get(op)) is not None:
        return own(name, dtype)
    if is_narrow(dtype):
        return _in_f32(name, op, dtype)
    function = _TABLES.get(dtype.name, {}).get(op)
    if function is not None:
        return _elementary(name, function, dtype)
    scalar = SCALAR_OPS[op]
    arguments = _arguments(scalar.arity, dtype)
    result = scalar.result_dtype(tuple(d for _, d in arguments))

    def build(*operands: Reg) -> Reg:
        return apply_scalar(op, operands, result)

    return _made(name, arguments, build)


def _in_f32(name: str, op: str, dtype: DType) -> Definition:
    """An operation on narrow floats, computed in float32 and rounded."""
    scalar = SCALAR_OPS[op]
    arguments = _arguments(scalar.arity, dtype)
    wide, back = f"f32_from_{dtype.name}", f"{dtype.name}_from_f32"
    call = f"{op}_f32({', '.join(f'{wide}({a})' for a, _ in arguments)})"
    is_flag = scalar.result == "bool"
    body = [f"return {call if is_flag else f'{back}({call})'};"]
    type = c_type(scalar.result_dtype((dtype,)))
    return Definition(_text(name, type, arguments, body), [f"{op}_f32", wide, *([] if is_flag else [back])])


def _arguments(arity: int, dtype: DType) -> list[tuple[str, DType]]:
    return list(zip("xyz"[:arity], [dtype] * arity, strict=True))


def _extremum_of_integers(compare: Callable[[Reg, Reg], Reg], name: str, dtype: DType) -> Definition:
    return _made(name, _arguments(2, dtype), lambda a, b: compare(a, b).select(a, b))


def _without_counter(name: str, dtype: DType) -> Definition:
    raise UnsupportedError("plain C has no counter of cycles, which random numbers without a seed begin with",
                           hint="give a seed")  # fmt: skip


def _made(name: str, arguments: list[tuple[str, DType]], build: Callable[..., Reg]) -> Definition:
    body, result, needs = traced(build, arguments, _callee)
    words = set(re.findall(r"\w+", " ".join(body)))
    body = [*(f"(void){a};" for a, _ in arguments if a not in words), *body]
    return Definition(_text(name, _returned(result), arguments, body), needs)


def _returned(dtype: DType) -> str:
    return c_type(dtype)


def _text(name: str, type: str, arguments: list[tuple[str, DType]], body: list[str]) -> str:
    parameters = ", ".join(f"{c_type(d)} {a}" for a, d in arguments)
    if len(body) == 1 and len(body[0]) < 90:
        return f"static inline {type} {name}({parameters}) {{ {body[0]} }}"
    return "\n".join([f"static inline {type} {name}({parameters}) {{", *(f"  {line}" for line in body), "}"])


def _callee(symbol: str, dtype: DType) -> str:
    """What C calls a function that code for LLVM calls `symbol`."""
    if (found := re.fullmatch(r"tw_(\w+)_(f32|f64)x1", symbol)) is not None:
        return f"{found[1]}_{found[2]}"
    if symbol.startswith("tw_power_"):
        return f"pow_{dtype.name}"
    if symbol in _LIBRARY:
        return symbol
    raise InternalError(f"there is no C for the function {symbol}")


def _extremum(sign: str, name: str, dtype: DType) -> Definition:
    """The less or the greater of two floats, nan if either is; of zeros either one."""
    return Definition(
        _text(name, c_type(dtype), _arguments(2, dtype), [f"return x {sign} y || x != x ? x : y;"])
    )


def _elementary(name: str, function: vmath.Function, dtype: DType) -> Definition:
    def build(*operands: Reg) -> Reg:
        near = function.build(*operands)
        if function.far is None:
            return near
        is_far = function.is_far
        far = is_far(*operands) if is_far else absolute(operands[0]) >= function.far_from
        return far.select(_far(name, function, operands), near)

    return _made(name, _arguments(function.arity, dtype), build)


def _far(name: str, function: vmath.Function, operands: tuple[Reg, ...]) -> Reg:
    (x, *_) = operands
    op = name.removesuffix("_f32")
    if f"{op}_far_f32" in _WRITTEN:
        return x.text.call(x.dtype, 1, f"tw_{op}_far_f32x1", x)
    assert function.far is not None
    return function.far(*operands)


def _conversion(name: str, to: DType, source: DType) -> Definition:
    """A conversion of an element, as `cast` has it."""
    if source.is_float and source.bits <= 8:
        if to is not dt.f32:
            return _by_way_of_f32(name, to, source)
        values = np.arange(256, dtype=np.uint8).view(source.storage).astype(np.float32)
        return _table(name, [float(v) for v in values], to, "x")
    if to in (dt.f32, dt.f64) and source is dt.f16 and to is dt.f64:
        return _by_way_of_f32(name, to, source)
    if to.is_float and to.bits < 32 and source is dt.f32:
        return _made(name, [("x", source)], lambda x: narrow(x, to))
    return _made(name, [("x", source)], lambda x: convert(x, to))


def _by_way_of_f32(name: str, to: DType, source: DType) -> Definition:
    first = f"f32_from_{source.name}"
    if to is dt.f64:
        return Definition(
            f"static inline double {name}(uint{8 * source.bytes}_t x) {{ return {first}(x); }}", [first]
        )
    second = f"{to.name}_from_f32"
    text = _text(name, c_type(to), [("x", source)], [f"return {second}({first}(x));"])
    return Definition(text, [first, second])


def _table(name: str, values: list[float], dtype: DType, at: str) -> Definition:
    spelled = [literal(dtype, v) if np.isfinite(v) else "0" for v in values]
    items = [", ".join(spelled[k : k + 8]) for k in range(0, 256, 8)]
    special = [
        f"  if (x == {k}) return {literal(dtype, v)};" for k, v in enumerate(values) if not np.isfinite(v)
    ]
    lines = [
        f"static inline {c_type(dtype)} {name}(uint8_t x) {{",
        f"  static const {c_type(dtype)} table[256] = {{",
    ]
    lines += [f"    {row}," for row in items] + ["  };", *special, f"  return table[{at}];", "}"]
    return Definition("\n".join(lines), ["f32_of_bits"])


def _power(name: str, dtype: DType) -> Definition:
    """Square and multiply; a base of 1 or -1 keeps its powers when the exponent is negative, others give 0."""
    type, bits = c_type(dtype), unsigned_type(dtype)
    wide = "uint64_t" if dtype.bytes == 8 else "uint32_t"
    lines = [f"static inline {type} {name}({type} x, {type} y) {{"]
    if dtype.kind == "int":
        lines.append("  if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 ? -1 : 1) : 0;")
    lines += [
        f"  {wide} square = ({wide})x, product = 1;",
        f"  for ({bits} left = ({bits})y; left; left = ({bits})(left >> 1)) {{",
        "    if (left & 1) product *= square;",
        "    square *= square;",
        "  }",
    ]
    if dtype.bits >= 8:
        return Definition("\n".join([*lines, f"  return ({type})product;", "}"]))
    wrap = f"{dtype.name}_from_{byte_of(dtype).name}"
    return Definition("\n".join([*lines, f"  return {wrap}(({type})product);", "}"]), [wrap])


def byte_of(dtype: DType) -> DType:
    """The integer of a byte in which an integer of fewer bits lies; others themselves."""
    return (dt.i8 if dtype.kind == "int" else dt.u8) if dtype.is_int and dtype.bits < 8 else dtype


def _bits(name: str, source: str, to: str) -> Definition:
    text = f"""static inline {to} {name}({source} x) {{
  union {{ {source} from; {to} to; }} bits = {{x}};
  return bits.to;
}}"""
    return Definition(text)


_ANY: dict[str, Callable[[str, DType], Definition]] = {"ticks": _without_counter}
_OWN: Mapping[str, Mapping[str, Callable[[str, DType], Definition]]] = {
    "float": {**_ANY, "min": partial(_extremum, "<"), "max": partial(_extremum, ">")},
    "int": {
        **_ANY,
        "min": partial(_extremum_of_integers, operator.lt),
        "max": partial(_extremum_of_integers, operator.gt),
        "pow": _power,
    },
    "": _ANY,
}
"""Operations that are not spelled as for LLVM."""

_F32_FROM_F16 = """static inline float f32_from_f16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, size = x & 0x7fffu;
  if (size >= 0x7c00) return f32_of_bits(sign | 0x7f800000u | (size & 0x3ff) << 13 | (size > 0x7c00 ? 0x400000u : 0));
  if (size >= 0x400) return f32_of_bits(sign | ((size << 13) + 0x38000000u));
  return f32_of_bits(sign | bits_of_f32((float)size * 0x1p-24f)); /* a denormal number, or zero */
}"""

_F16_FROM_F32 = """static inline uint16_t f16_from_f32(float x) {
  const uint32_t bits = bits_of_f32(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (size >> 13 & 0x3ff));
  if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
  if (size >= 0x38800000) return (uint16_t)(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
  /* adding 0.5 rounds to multiples of 2^-24, and leaves the multiple in the low bits */
  return (uint16_t)(sign | (bits_of_f32(f32_of_bits(size) + 0.5f) - 0x3f000000));
}"""

_FAR_QUADRANT = """/* The quadrant of a large x (modulo 4), and what is left of it: Payne and Hanek (1983). */
static int32_t far_quadrant(float x, float *left) {
  static const uint32_t two_over_pi[9] = {TWO_OVER_PI, 0};
  const uint32_t bits = bits_of_f32(x), mantissa = (bits & 0x7fffff) | 0x800000, start = 280 - (bits >> 23 & 0xff);
  uint32_t product[4];
  uint64_t carry = 0;
  for (int k = 0; k < 4; k++) {
    const uint32_t *at = two_over_pi + (start >> 5) + k;
    const uint32_t word = start & 31 ? at[0] >> (start & 31) | at[1] << (32 - (start & 31)) : at[0];
    carry += (uint64_t)word * mantissa;
    product[k] = (uint32_t)carry;
    carry >>= 32;
  }
  const int32_t quadrant = (int32_t)((product[3] + 0x20000000) >> 30);
  const uint64_t high = product[3] << 2 | product[2] >> 30, low = product[2] << 2 | product[1] >> 30;
  const float rest = (float)((double)(int64_t)(high << 32 | low) * UNIT);
  *left = fmaf(x, 0.0f, x < 0.0f ? -rest : rest); /* 0 * inf is nan */
  return x < 0.0f ? -quadrant : quadrant;
}"""
_FAR_QUADRANT = _FAR_QUADRANT.replace(
    "TWO_OVER_PI", ", ".join(f"{trigonometric.TWO_OVER_PI_BITS >> 32 * k & 0xFFFFFFFF:#x}" for k in range(8))
).replace("UNIT", repr(float(np.pi / 2.0 * 2.0**-64)))


def _far_circular(name: str, of: str, turned: str) -> Definition:
    text = f"""static float {name}(float x) {{
  float left;
  const int32_t quadrant = far_quadrant(x, &left);
  return {of}(quadrant{turned}, left);
}}"""
    return Definition(text, ["far_quadrant", of])


_QUADRANT = [("q", dt.i32), ("r", dt.f32)]
_WRITTEN: dict[str, Definition] = {
    "bits_of_f32": _bits("bits_of_f32", "float", "uint32_t"),
    "bits_of_f64": _bits("bits_of_f64", "double", "uint64_t"),
    "f32_of_bits": _bits("f32_of_bits", "uint32_t", "float"),
    "f64_of_bits": _bits("f64_of_bits", "uint64_t", "double"),
    "f32_from_f16": Definition(_F32_FROM_F16, ["f32_of_bits", "bits_of_f32"]),
    "f16_from_f32": Definition(_F16_FROM_F32, ["f32_of_bits", "bits_of_f32"]),
    "far_quadrant": Definition(_FAR_QUADRANT, ["bits_of_f32"]),
    "sin_far_f32": _far_circular("sin_far_f32", "sine_of_quadrant", ""),
    "cos_far_f32": _far_circular("cos_far_f32", "sine_of_quadrant", " + 1"),
    "tan_far_f32": _far_circular("tan_far_f32", "tangent_of_quadrant", ""),
    "sine_of_quadrant": _made("sine_of_quadrant", _QUADRANT, trigonometric.sine_of_quadrant),
    "tangent_of_quadrant": _made("tangent_of_quadrant", _QUADRANT, trigonometric.tangent_of_quadrant),
    "floor_div": Definition(
        "/* a / b towards minus infinity */\n"
        "static inline int64_t floor_div(int64_t a, int64_t b) {\n"
        "  if (b == 0) return a;\n"
        "  return a / b - (a % b != 0 && (a < 0) != (b < 0));\n}"
    ),
    "floor_mod": Definition(
        "/* a - b * floor(a / b) */\n"
        "static inline int64_t floor_mod(int64_t a, int64_t b) {\n"
        "  if (b == 0) return 0;\n"
        "  const int64_t left = a % b;\n"
        "  return left != 0 && (left < 0) != (b < 0) ? left + b : left;\n}"
    ),
    "plus": Definition(
        "/* a + b, or the nearest number that there is */\n"
        "static inline int64_t plus(int64_t a, int64_t b) {\n"
        "  if (b > 0) return a > INT64_MAX - b ? INT64_MAX : a + b;\n"
        "  return a < INT64_MIN - b ? INT64_MIN : a + b;\n}"
    ),
    "times": Definition(
        "/* a * b, or the nearest number that there is */\n"
        "static inline int64_t times(int64_t a, int64_t b) {\n"
        "  const int is_negative = (a < 0) != (b < 0);\n"
        "  const uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;\n"
        "  if (y && x > INT64_MAX / y) return is_negative ? INT64_MIN : INT64_MAX;\n"
        "  return is_negative ? -(int64_t)(x * y) : (int64_t)(x * y);\n}"
    ),
    "fail": Definition(
        "/* The first error of a kernel is the one that is told. */\n"
        "static void fail(int32_t *error, int32_t number) {\n  if (!*error) *error = number;\n}"
    ),
    "min_size": Definition(
        "static inline ptrdiff_t min_size(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }"
    ),
    "max_size": Definition(
        "static inline ptrdiff_t max_size(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }"
    ),
}
"""Functions that are written by hand."""
