"""Functions made of the exponential, in single precision.

Each takes the body under construction and the argument and returns the result. Coefficients are minimax fits
(Lawson's iteration on Chebyshev nodes, then rounded to float32 one by one, the rest refitted after each); `error`
in the comments is the fit's relative error before any rounding of the evaluation.
"""

from __future__ import annotations

from tilewright.codegen.vmath.body import Body, Value

LOG2_E = 1.4426950408889634
# ln 2 = LN2_HIGH + LN2_LOW; LN2_HIGH has 15 bits, so that its product with an exponent is exact.
LN2_HIGH = 0.693145751953125
LN2_LOW = 1.428606765330187e-06

# Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits; 254 more adds twice the exponent's bias,
# so that halving the bits yields a biased exponent.
ROUND = 12582912.0
ROUND_TWICE_BIASED = ROUND + 254.0

# (exp(r) - 1) / r on |r| <= 0.3467, error of exp 9.2e-8.
EXPM1_OVER_R = (0.9999997019767761, 0.4999914765357971, 0.16667652130126953, 0.041898176074028015, 0.00828936044126749)


def reduced_expm1(body: Body, r: Value) -> Value:
    """exp(r) - 1 for |r| <= ln(2)/2, with an error relative to exp(r)."""
    return body.polynomial(r, EXPM1_OVER_R) * r


def remainder_of_ln2(body: Body, x: Value, n: Value) -> Value:
    """x - n ln 2 for an integral n."""
    return body.fma(n, -LN2_LOW, body.fma(n, -LN2_HIGH, x))


def exp(body: Body, x: Value) -> Value:
    """e^x; results below the normal range are gradual."""
    # Outside of these bounds the result is 0 or inf; inside, |n| <= 150 fits two powers of two.
    x = body.clamp(x, -104.0, 89.0)
    shifted = body.fma(x, LOG2_E, ROUND_TWICE_BIASED)
    r = remainder_of_ln2(body, x, shifted - ROUND_TWICE_BIASED)
    # 2^n as a product of 2^floor(n/2) and 2^ceil(n/2): 2^n alone leaves the exponent's range at both ends.
    half = shifted.bits >> 1
    low, high = (half << 23).as_float, ((shifted.bits - half) << 23).as_float
    return body.fma(reduced_expm1(body, r), low, low) * high


def sigmoid(body: Body, x: Value) -> Value:
    """1 / (1 + e^-x), computed as h / (h + l e^r) where e^-x = e^r l / h: neither side overflows."""
    x = body.clamp(-x, -104.0, 104.0)
    shifted = body.fma(x, LOG2_E, ROUND_TWICE_BIASED)
    r = remainder_of_ln2(body, x, shifted - ROUND_TWICE_BIASED)
    half = shifted.bits >> 1
    # The integer is n + 254 above the bits of ROUND, which the shift by 23 pushes out; 254 - (n + 254 - half)
    # is the biased exponent of 2^-ceil(n/2).
    low = (half << 23).as_float
    inverse_high = ((half - shifted.bits + 254) << 23).as_float
    return inverse_high / (body.fma(reduced_expm1(body, r), low, low) + inverse_high)
