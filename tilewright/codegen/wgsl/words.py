"""Functions of WGSL that are written by hand: integers of two words, floats as bits, and what no instruction has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tilewright.codegen.cpu.vmath.trigonometric import TWO_OVER_PI_BITS

_TEXTS = """
fn f32_of_bits(x: u32) -> f32 { return bitcast<f32>(x); }
fn is_nan_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn is_inf_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn exact_f32(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ told[63].z); }
fn copysign_f32(x: f32, y: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(y) & 0x80000000u));
}
fn min_f32(x: f32, y: f32) -> f32 { return select(y, x, x < y || is_nan_f32(x)); }
fn max_f32(x: f32, y: f32) -> f32 { return select(y, x, x > y || is_nan_f32(x)); }
fn ne_f32(x: f32, y: f32) -> bool { return !(x == y); }
fn rem_f32(x: f32, y: f32) -> f32 {
  let size = bitcast<u32>(x) & 0x7fffffffu;
  let divisor = bitcast<u32>(y) & 0x7fffffffu;
  if (size >= 0x7f800000u || divisor > 0x7f800000u || divisor == 0u) { return f32_of_bits(0x7fc00000u); }
  if (size < divisor) { return x; }
  var left = select(size & 0x7fffffu, (size & 0x7fffffu) | 0x800000u, size >= 0x800000u);
  let taken = select(divisor & 0x7fffffu, (divisor & 0x7fffffu) | 0x800000u, divisor >= 0x800000u);
  let low = max(divisor >> 23u, 1u);
  for (var steps = max(size >> 23u, 1u) - low; steps > 0u; steps--) { left = (left % taken) << 1u; }
  left = left % taken;
  let up = min(countLeadingZeros(left) - 8u, low - 1u);
  let moved = left << up;
  let bits = select(moved, (moved & 0x7fffffu) | ((low - up) << 23u), moved >= 0x800000u);
  return bitcast<f32>((bitcast<u32>(x) & 0x80000000u) | select(bits, 0u, left == 0u));
}
fn high_f32(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u); }
fn pow_f32(x: f32, y: f32) -> f32 {
  let ax = abs(x);
  let ay = abs(y);
  if (y == 0.0f || x == 1.0f) { return 1.0f; }
  if (is_nan_f32(x) || is_nan_f32(y)) { return f32_of_bits(0x7fc00000u); }
  let whole = ay >= 8388608.0f || trunc(y) == y;
  let odd = whole && ay < 16777216.0f && (u32(min(ay, 16777216.0f)) & 1u) == 1u;
  let negative = (bitcast<u32>(x) >> 31u) == 1u;
  let sign = select(0u, 0x80000000u, negative && odd);
  if (ax == 0.0f || is_inf_f32(x) || (ay > 2147483648.0f && ax != 1.0f)) {
    return f32_of_bits(sign | select(0u, 0x7f800000u, (ax > 1.0f) == (y > 0.0f)));
  }
  if (negative && !whole) { return f32_of_bits(0x7fc00000u); }
  if (ax == 1.0f) { return select(1.0f, -1.0f, sign != 0u); }
  let tiny = bitcast<u32>(ax) < 0x800000u;
  let bits = bitcast<u32>(select(ax, ax * 16777216.0f, tiny));
  let moved = (bits - 0x3f3504f3u) & 0xff800000u;
  let power = f32(bitcast<i32>(moved) >> 23u) - select(0.0f, 24.0f, tiny);
  let f = bitcast<f32>(bits - moved) - 1.0f;
  let sum_high = high_f32(2.0f + f);
  let sum_low = f - (sum_high - 2.0f);
  let s = f / (2.0f + f);
  let s_high = high_f32(s);
  let s_low = ((f - s_high * sum_high) - s_high * sum_low) / (2.0f + f);
  let z = s * s;
  let rest = s_low + s * z * (0.33333334f + z * (0.2f + z * (0.14285715f + z * (0.11111111f + z * 0.09090909f))));
  let p_high = high_f32(s_high + rest);
  let p_low = (s_high - p_high) + rest;
  let log_high = p_high * 2.884765625f;
  let log_low = p_low * 2.88539f + p_high * 0.0006244568f;
  let t_high = high_f32(power + (log_high + log_low));
  let t_low = (log_high - (t_high - power)) + log_low;
  let y_high = high_f32(y);
  let high = t_high * y_high;
  let low = t_high * (y - y_high) + t_low * y;
  if (high + low > 129.0f) { return f32_of_bits(sign | 0x7f800000u); }
  if (high + low < -160.0f) { return f32_of_bits(sign); }
  let n = round(high + low);
  let r = (high - n) + low;
  let near = 1.0f + r * (0.6931472f + r * (0.2402265f + r * (0.05550411f + r * (0.009618129f
    + r * (0.0013333558f + r * (0.0001540353f + r * (1.5252734e-05f)))))));
  let half = i32(n) / 2;
  let size = near * exp2_of(bitcast<u32>(half)) * exp2_of(bitcast<u32>(i32(n) - half));
  return bitcast<f32>(bitcast<u32>(size) | sign);
}
fn atan2_of(y: f32, x: f32) -> f32 {
  let ax = abs(x);
  let ay = abs(y);
  if (is_nan_f32(x) || is_nan_f32(y)) { return f32_of_bits(0x7fc00000u); }
  var angle = 0.0f;
  if (is_inf_f32(x) && is_inf_f32(y)) {
    angle = 0.7853982f;
  } else if (ay > ax) {
    angle = 1.5707964f - atan_f32(ax / ay);
  } else if (ay > 0.0f) {
    angle = atan_f32(ay / ax);
  }
  if ((bitcast<u32>(x) >> 31u) == 1u) { angle = (3.1415927f - angle) - 8.742278e-08f; }
  return copysign_f32(angle, y);
}
fn sinh_f32(x: f32) -> f32 {
  let a = abs(x);
  let half = exp_f32(a * 0.5f);
  let less = expm1_f32(min(a, 80.0f));
  return copysign_f32(select(0.5f * (less + less / (less + 1.0f)), (0.5f * half) * half, !(a < 80.0f)), x);
}
fn cosh_f32(x: f32) -> f32 {
  let half = exp_f32(abs(x) * 0.5f);
  let whole = exp_f32(min(abs(x), 80.0f));
  return select(0.5f * (whole + 1.0f / whole), (0.5f * half) * half, !(abs(x) < 80.0f));
}
fn asinh_f32(x: f32) -> f32 {
  let a = abs(x);
  if (!(a < 4096.0f)) { return copysign_f32(log_f32(a) + 0.6931472f, x); }
  return copysign_f32(log1p_f32(a + a * a / (1.0f + sqrt(a * a + 1.0f))), x);
}
fn acosh_f32(x: f32) -> f32 {
  if (x < 1.0f) { return f32_of_bits(0x7fc00000u); }
  if (!(x < 4096.0f)) { return log_f32(x) + 0.6931472f; }
  let t = x - 1.0f;
  return log1p_f32(t + sqrt(2.0f * t + t * t));
}
fn atanh_f32(x: f32) -> f32 {
  let a = abs(x);
  return copysign_f32(0.5f * log1p_f32(2.0f * a / (1.0f - a)), x);
}
fn floor_div(a: i32, b: i32) -> i32 {
  if (b == 0) { return a; }
  return a / b - select(0, 1, a % b != 0 && (a < 0) != (b < 0));
}
fn floor_mod(a: i32, b: i32) -> i32 {
  if (b == 0) { return 0; }
  return a - b * floor_div(a, b);
}
fn f32_from_f16(x: u32) -> f32 {
  let sign = (x & 0x8000u) << 16u;
  let size = x & 0x7fffu;
  if (size >= 0x7c00u) {
    return bitcast<f32>(sign | 0x7f800000u | ((size & 0x3ffu) << 13u) | select(0u, 0x400000u, size > 0x7c00u));
  }
  if (size >= 0x400u) { return bitcast<f32>(sign | ((size << 13u) + 0x38000000u)); }
  return bitcast<f32>(sign | bitcast<u32>(f32(size) * 5.9604645e-08f));
}
fn f16_from_f32(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u | ((size >> 13u) & 0x3ffu); }
  if (size >= 0x477ff000u) { return sign | 0x7c00u; }
  if (size >= 0x38800000u) { return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u); }
  return sign | (bitcast<u32>(bitcast<f32>(size) + 0.5f) - 0x3f000000u);
}
fn product_64(a: u32, b: u32) -> vec2<u32> {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let mid = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let other = (a & 0xffffu) * (b >> 16u) + (mid & 0xffffu);
  return vec2<u32>((other << 16u) | (low & 0xffffu), (a >> 16u) * (b >> 16u) + (mid >> 16u) + (other >> 16u));
}
fn add_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}
fn sub_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}
fn mul_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = product_64(a.x, b.x);
  return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}
fn and_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return a & b; }
fn or_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return a | b; }
fn xor_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return a ^ b; }
fn shl_64(a: vec2<u32>, by: vec2<u32>) -> vec2<u32> {
  let n = by.x & 63u;
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  if (n == 0u) { return a; }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}
fn lshr_64(a: vec2<u32>, by: vec2<u32>) -> vec2<u32> {
  let n = by.x & 63u;
  if (n >= 32u) { return vec2<u32>(a.y >> (n - 32u), 0u); }
  if (n == 0u) { return a; }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}
fn ashr_64(a: vec2<u32>, by: vec2<u32>) -> vec2<u32> {
  let n = by.x & 63u;
  let high = bitcast<i32>(a.y);
  if (n >= 32u) { return vec2<u32>(bitcast<u32>(high >> (n - 32u)), bitcast<u32>(high >> 31u)); }
  if (n == 0u) { return a; }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), bitcast<u32>(high >> n));
}
fn divided_64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  var left = vec2<u32>(0u, 0u);
  var quotient = a;
  for (var k = 0; k < 64; k++) {
    let out = left.y >> 31u;
    left = vec2<u32>((left.x << 1u) | (quotient.y >> 31u), (left.y << 1u) | (left.x >> 31u));
    quotient = vec2<u32>(quotient.x << 1u, (quotient.y << 1u) | (quotient.x >> 31u));
    if (out == 1u || !ult_64(left, b)) {
      left = sub_64(left, b);
      quotient.x |= 1u;
    }
  }
  return vec4<u32>(quotient, left);
}
fn abs_64(a: vec2<u32>) -> vec2<u32> { return select(a, sub_64(vec2<u32>(0u, 0u), a), a.y >= 0x80000000u); }
fn udiv_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divided_64(a, b).xy; }
fn urem_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divided_64(a, b).zw; }
fn sdiv_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let found = divided_64(abs_64(a), abs_64(b)).xy;
  return select(found, sub_64(vec2<u32>(0u, 0u), found), ((a.y ^ b.y) >> 31u) == 1u);
}
fn srem_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let found = divided_64(abs_64(a), abs_64(b)).zw;
  return select(found, sub_64(vec2<u32>(0u, 0u), found), (a.y >> 31u) == 1u);
}
fn eq_64(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x == b.x && a.y == b.y; }
fn ne_64(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x != b.x || a.y != b.y; }
fn ult_64(a: vec2<u32>, b: vec2<u32>) -> bool { return a.y < b.y || (a.y == b.y && a.x < b.x); }
fn ugt_64(a: vec2<u32>, b: vec2<u32>) -> bool { return ult_64(b, a); }
fn ule_64(a: vec2<u32>, b: vec2<u32>) -> bool { return !ult_64(b, a); }
fn uge_64(a: vec2<u32>, b: vec2<u32>) -> bool { return !ult_64(a, b); }
fn slt_64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return bitcast<i32>(a.y) < bitcast<i32>(b.y) || (a.y == b.y && a.x < b.x);
}
fn sgt_64(a: vec2<u32>, b: vec2<u32>) -> bool { return slt_64(b, a); }
fn sle_64(a: vec2<u32>, b: vec2<u32>) -> bool { return !slt_64(b, a); }
fn sge_64(a: vec2<u32>, b: vec2<u32>) -> bool { return !slt_64(a, b); }
fn f32_from_u64(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return f32(a.x); }
  let zeros = countLeadingZeros(a.y);
  let moved = shl_64(a, vec2<u32>(zeros, 0u));
  return f32(moved.y | select(0u, 1u, moved.x != 0u)) * exp2_of(32u - zeros);
}
fn exp2_of(n: u32) -> f32 { return bitcast<f32>((n + 127u) << 23u); }
fn f32_from_i64(a: vec2<u32>) -> f32 {
  let size = f32_from_u64(abs_64(a));
  return select(size, -size, a.y >= 0x80000000u);
}
fn whole_u64(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let exponent = (bits >> 23u) & 0xffu;
  let whole = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  if (exponent < 127u) { return vec2<u32>(0u, 0u); }
  if (exponent >= 150u) { return shl_64(whole, vec2<u32>(exponent - 150u, 0u)); }
  return lshr_64(whole, vec2<u32>(150u - exponent, 0u));
}
fn whole_i64(x: f32) -> vec2<u32> {
  let size = whole_u64(abs(x));
  return select(size, sub_64(vec2<u32>(0u, 0u), size), x < 0.0f);
}
fn size_of_i64(a: vec2<u32>) -> i32 {
  let low = bitcast<i32>(a.x);
  if (a.y == bitcast<u32>(low >> 31u)) { return low; }
  return select(2147483647, -2147483647, a.y >= 0x80000000u);
}
fn far_sin(x: f32, turn: i32) -> f32 {
  let left = far_quadrant(x);
  return sine_of_quadrant(bitcast<i32>(left.x) + turn, bitcast<f32>(left.y));
}
fn sin_far_f32(x: f32) -> f32 { return far_sin(x, 0); }
fn cos_far_f32(x: f32) -> f32 { return far_sin(x, 1); }
fn tan_far_f32(x: f32) -> f32 {
  let left = far_quadrant(x);
  return tangent_of_quadrant(bitcast<i32>(left.x), bitcast<f32>(left.y));
}
var<private> two_over_pi: array<u32, 9> = array<u32, 9>(TWO_OVER_PI, 0u);
fn far_quadrant(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) { return vec2<u32>(0u, 0x7fc00000u); }
  let mantissa = (bits & 0x7fffffu) | 0x800000u;
  let start = 280u - ((bits >> 23u) & 0xffu);
  var product: array<u32, 4>;
  var carry = 0u;
  for (var k = 0u; k < 4u; k++) {
    let at = (start >> 5u) + k;
    let by = start & 31u;
    var word = two_over_pi[at];
    if (by != 0u) { word = (word >> by) | (two_over_pi[at + 1u] << (32u - by)); }
    let found = add_64(product_64(word, mantissa), vec2<u32>(carry, 0u));
    product[k] = found.x;
    carry = found.y;
  }
  let quadrant = (product[3] + 0x20000000u) >> 30u;
  let high = (product[3] << 2u) | (product[2] >> 30u);
  let low = (product[2] << 2u) | (product[1] >> 30u);
  let rest = f32_from_i64(vec2<u32>(low, high)) * 8.515304e-20f;
  if (x < 0.0f) { return vec2<u32>(0u - quadrant, bitcast<u32>(-rest)); }
  return vec2<u32>(quadrant, bitcast<u32>(rest));
}
"""


def _split(texts: str) -> dict[str, str]:
    found: dict[str, str] = {}
    pending = ""
    for part in texts.strip().split("\nfn "):
        part = part if part.startswith("fn ") else f"fn {part}"
        part, _, private = part.partition("\nvar<private>")
        name = part[3:].partition("(")[0]
        found[name] = pending + part
        pending = f"var<private>{private}\n" if private else ""
    return found


_WORDS = ", ".join(f"{TWO_OVER_PI_BITS >> 32 * k & 0xFFFFFFFF:#x}u" for k in range(8))
WRITTEN: Mapping[str, str] = MappingProxyType(_split(_TEXTS.replace("TWO_OVER_PI", _WORDS)))
"""Functions by name."""
ITERATIONS: Mapping[str, int] = MappingProxyType({"rem_f32": 254, "divided_64": 64, "far_quadrant": 4})
"""Those of functions with a loop, at most."""
