"""Errors of the vector math functions in float64, in units of the last place, on this machine.

    python bench/ulp64.py                       every function, a million arguments
    python bench/ulp64.py exp tanh --chunks 999  more of them, of two functions

Arguments are random: of all magnitudes, where the function is neither constant nor a pole, and near multiples of pi/2.
The reference is NumPy in long doubles of 80 bits, which x86-64 has; its own error is a few thousandths of a unit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np

from bench.ulp import Floats, compile_vmath
from tilewright.codegen.cpu.vmath import SUPPORTED

IS_AVAILABLE = np.finfo(np.longdouble).nmant == 63
"""Whether a long double has more bits than what it judges."""
CHUNK = 1 << 16
LARGEST_EXPONENT, SMALLEST_EXPONENT = 1024, -1074

CIRCULAR = ("sin", "cos", "tan")
RANGES = {
    "acos": 1.0, "asin": 1.0, "atanh": 1.0, "cosh": 711.0, "erf": 6.5, "exp": 746.0, "expm1": 710.0,
    "sigmoid": 746.0, "sinh": 711.0, "tanh": 21.0,
}  # fmt: skip
"""Magnitudes up to which functions are neither constant nor a pole, where they are that at all."""


def _erf(x: Floats) -> Floats:
    """2/sqrt(pi) e^(-x^2) sum(2^n x^(2n+1) / (1 * 3 * ... * (2n+1))), all of whose terms have one sign."""
    x = np.clip(x, -7, 7)
    term = total = x
    for n in range(1, 220):
        term = term * (2 * x * x) / (2 * n + 1)
        total = total + term
    return total * np.exp(-x * x) * (2 / np.sqrt(np.arctan(np.longdouble(1)) * 4))


REFERENCES: dict[str, Callable[..., Floats]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": _erf,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sin": np.sin,
    "sinh": np.sinh,
    "tan": np.tan,
    "tanh": np.tanh,
}
"""Each function, of long doubles."""


def ulp_errors(result: Floats, exact: Floats) -> Floats:
    """The distance of float64 results from long doubles, in units of the last place of these.

    A nan on one side only, a wrong sign of anything but a zero and a missed pole count as inf.
    """
    exponent = np.where(exact == 0, SMALLEST_EXPONENT, np.frexp(exact)[1])
    largest = np.ldexp(np.longdouble(1), LARGEST_EXPONENT)
    unit = np.ldexp(np.longdouble(1), np.clip(exponent, SMALLEST_EXPONENT + 53, LARGEST_EXPONENT) - 53)
    with np.errstate(invalid="ignore", over="ignore"):
        given, wanted = (np.clip(x.astype(np.longdouble), -largest, largest) for x in (result, exact))
        errors = np.abs(given - wanted) / unit
    nan = np.isnan(exact)
    wrong = (np.isnan(result) != nan) | (~nan & (np.signbit(result) != np.signbit(exact)))
    wrong |= np.isinf(exact) & (result != exact)
    return np.where(wrong, np.inf, np.where(nan, 0.0, errors)).astype(np.float64)


def arguments(name: str, seed: int) -> tuple[Floats, ...]:
    """`CHUNK` arguments, or pairs of them."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << 64, CHUNK // 4, np.uint64).view(np.float64)
    most = RANGES.get(name, 100.0)
    within = random.uniform(-most, most, CHUNK // 4)
    near = np.exp(random.uniform(-60, np.log(most), CHUNK // 4)) * random.choice([-1.0, 1.0], CHUNK // 4)
    if name in CIRCULAR:
        turns = np.floor(np.exp(random.uniform(0, np.log(2.0**30), CHUNK // 4)))
        special = (turns * (np.pi / 2)) * (1 + random.integers(-3, 4, CHUNK // 4) * 2.0**-52)
    else:
        special = 1.0 + np.exp(random.uniform(-36, 0, CHUNK // 4)) * random.choice([-1.0, 1.0], CHUNK // 4)
    x = np.concatenate([bits, within, near, special])
    if name != "pow":
        return (x,)
    base = np.where(np.isnan(x), 2.0, np.abs(x))
    with np.errstate(all="ignore"):
        reach = random.uniform(-760, 720, CHUNK) / np.log(base)
    y = np.where(np.isfinite(reach) & (random.random(CHUNK) < 0.9), reach, random.uniform(-10, 10, CHUNK))
    return base, np.where(random.random(CHUNK) < 0.3, np.rint(y), y)


def worst_error(
    name: str, seeds: range, lanes: int = 8, *, fuses: bool = True
) -> tuple[float, tuple[float, ...]]:
    """The largest error of a function over the arguments of some seeds, and where it is met."""
    function, reference = compile_vmath(name, "f64", lanes, fuses=fuses), REFERENCES[name]
    worst, where = 0.0, (0.0,)
    for seed in seeds:
        operands = arguments(name, seed)
        with np.errstate(all="ignore"):
            exact = reference(*[operand.astype(np.longdouble) for operand in operands])
        errors = ulp_errors(function(*operands), exact)
        index = int(np.argmax(errors))
        if errors[index] > worst:
            worst, where = float(errors[index]), tuple(float(operand[index]) for operand in operands)
    return worst, where


def main() -> int:
    """Print a line for each function asked for; 1 if one exceeds its documented bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SUPPORTED), metavar="name", help="functions to check")
    parser.add_argument("--chunks", type=int, default=16, help=f"how many times {CHUNK} arguments")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    exceeded = False
    for name in options.names:
        worst, where = worst_error(name, range(options.seed, options.seed + options.chunks))
        bound = SUPPORTED[name]["f64"]
        exceeded |= worst > bound
        at = ", ".join(f"{argument!r}" for argument in where)
        print(f"{name:10s} {worst:7.4f} ulp at {at:46s} {'EXCEEDS' if worst > bound else 'within'} {bound}", flush=True)
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
