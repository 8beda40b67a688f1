"""Errors of the vector math functions in float32, in units of the last place, on this machine.

    python bench/ulp.py                     every function, each 257th float32
    python bench/ulp.py exp tanh --step 1   all 2^32 arguments of two functions (minutes each)

The reference is NumPy in float64 (the platform's math library for erf), far more exact than what it judges.
The results do not depend on the machine: IEEE arithmetic with fused multiply-add has one right answer. Functions that
use an instruction which only this machine's kind has are judged in both forms.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from tilewright.codegen.cpu.vmath import (
    SUPPORTED,
    vmath_arity,
    vmath_declarations,
    vmath_function,
    vmath_symbol,
)
from tilewright.target.host import host_target
from tilewright.target.scale import Scale

Floats = npt.NDArray[np.floating]
ELEMENT = {"f32": ("float", np.float32), "f64": ("double", np.float64)}
LANES = 16
CHUNK = 1 << 16
INFINITY_AS_NUMBER = 2.0**128
"""What inf stands for as a float32 result that overflowed by rounding."""
EXPONENT_BITS = 0x7FF << 52
"""Of a float64's bits, those that make it a power of two when the others are cleared."""


@dataclass(frozen=True)
class CompiledMap:
    """A function compiled for this machine and mapped over arrays of its dtype; `engine` keeps its code."""

    engine: llvm.ExecutionEngine
    address: int
    dtype: str
    lanes: int
    arity: int

    def __call__(self, *arguments: Floats) -> Floats:
        """The function of equally long one-dimensional arrays."""
        size = arguments[0].size
        padded = [np.pad(np.asarray(a, ELEMENT[self.dtype][1]), (0, -size % self.lanes)) for a in arguments]
        result = np.empty_like(padded[0])
        run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (self.arity + 1), ctypes.c_int64)(self.address)
        run(*[a.ctypes.data for a in padded], result.ctypes.data, result.size)
        return result[:size]


def compile_map(
    text: str, symbol: str, dtype: str, lanes: int, arity: int, *, fuses: bool = True
) -> CompiledMap:
    """Compile `symbol`, defined or declared in `text`, with a loop that maps it over arrays; unless it `fuses`, as for
    a machine without fused multiply-adds."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    if not fuses:
        text = text.replace("@llvm.fma.", "@llvm.fmuladd.")
        features.update(dict.fromkeys(("fma", "fma4", "avx512f"), False))
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=3
    )
    module = llvm.parse_assembly(text + _loop(symbol, dtype, lanes, arity))
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return CompiledMap(engine, engine.get_function_address("map"), dtype, lanes, arity)


def _loop(symbol: str, dtype: str, lanes: int, arity: int) -> str:
    element = ELEMENT[dtype][0]
    vector = element if lanes == 1 else f"<{lanes} x {element}>"
    alignment = np.dtype(ELEMENT[dtype][1]).itemsize
    pointers = "".join(f"ptr noalias %in{i}, " for i in range(arity))
    loads = [
        line
        for i in range(arity)
        for line in (
            f"  %at{i} = getelementptr {element}, ptr %in{i}, i64 %i",
            f"  %x{i} = load {vector}, ptr %at{i}, align {alignment}",
        )
    ]
    operands = ", ".join(f"{vector} %x{i}" for i in range(arity))
    lines = [
        f"define void @map({pointers}ptr noalias %out, i64 %size) {{",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *loads,
        f"  %y = call {vector} @{symbol}({operands})",
        f"  %to = getelementptr {element}, ptr %out, i64 %i",
        f"  store {vector} %y, ptr %to, align {alignment}",
        f"  %next = add i64 %i, {lanes}",
        "  %more = icmp ult i64 %next, %size",
        "  br i1 %more, label %loop, label %end",
        "end:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines) + "\n"


def compile_vmath(
    name: str, dtype: str, lanes: int = LANES, scale: Scale | None = None, *, fuses: bool = True
) -> CompiledMap:
    """A vector math function as a map over arrays; with `scale`, which this machine must then have, or as where nothing
    `fuses` a product with a sum."""
    text = "\n".join(
        [*vmath_declarations(name, dtype), vmath_function(name, dtype, lanes, scale, fuses=fuses)]
    )
    symbol, arity = vmath_symbol(name, dtype, lanes), vmath_arity(name, dtype)
    return compile_map(text, symbol, dtype, lanes, arity, fuses=fuses)


def references() -> dict[str, Callable[..., Floats]]:
    """Each function in float64."""
    return {
        "acos": np.arccos,
        "acosh": np.arccosh,
        "asin": np.arcsin,
        "asinh": np.arcsinh,
        "atan": np.arctan,
        "atanh": np.arctanh,
        "cos": np.cos,
        "cosh": np.cosh,
        "erf": compile_map("declare double @erf(double)\n", "erf", "f64", 1, 1),
        "exp": np.exp,
        "expm1": np.expm1,
        "log": np.log,
        "log1p": np.log1p,
        "pow": np.power,
        "rsqrt": lambda x: 1.0 / np.sqrt(x),
        "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
        "sin": np.sin,
        "sinh": np.sinh,
        "tan": np.tan,
        "tanh": np.tanh,
    }


def ulp_errors(result: Floats, exact: Floats) -> Floats:
    """The distance of float32 results from float64 references, in units of the last place of the reference.

    A nan on one side only, a wrong sign (also of a zero) and a missed pole count as inf.
    """
    reference = np.clip(exact, -INFINITY_AS_NUMBER, INFINITY_AS_NUMBER)
    binade = (reference.view(np.int64) & EXPONENT_BITS).view(np.float64)
    unit = np.clip(binade, 2.0**-126, INFINITY_AS_NUMBER / 2) * 2.0**-23
    with np.errstate(invalid="ignore"):
        given = np.clip(result.astype(np.float64), -INFINITY_AS_NUMBER, INFINITY_AS_NUMBER)
        errors = np.abs(given - reference) / unit
    nan = np.isnan(exact)
    wrong = (np.isnan(result) != nan) | (~nan & (np.signbit(result) != np.signbit(exact)))
    wrong |= np.isinf(exact) & (result != exact)
    return np.where(wrong, np.inf, np.where(nan, 0.0, errors))


def argument_chunks(step: int) -> Iterator[Floats]:
    """Each `step`-th float32 in the order of the bit patterns, some at a time."""
    for start in range(0, 1 << 32, CHUNK * step):
        patterns = np.arange(start, min(start + CHUNK * step, 1 << 32), step, dtype=np.uint64)
        yield patterns.astype(np.uint32).view(np.float32)


def random_pairs(count: int, seed: int) -> tuple[Floats, Floats]:
    """Bases and exponents for pow, half of these whole, with results all over float32's range."""
    random = np.random.default_rng(seed)
    base = np.exp(random.uniform(-103.0, 88.0, count)) * random.choice([-1.0, 1.0], count)
    near_one = random.random(count) < 0.25
    base[near_one] = 1.0 + random.normal(size=int(near_one.sum())) * 1e-3
    base32 = base.astype(np.float32)
    with np.errstate(divide="ignore"):
        exponent = random.uniform(-104.0, 89.0, count) / np.log(np.abs(base32.astype(np.float64)))
    exponent = np.where(random.random(count) < 0.5, np.rint(exponent), exponent)
    base32 = np.where(exponent == np.rint(exponent), base32, np.abs(base32))
    return base32, exponent.astype(np.float32)


def worst_error(
    name: str, step: int, scale: Scale | None = None, *, fuses: bool = True
) -> tuple[float, tuple[float, ...]]:
    """The largest error of a float32 function over each `step`-th argument, and where it is met."""
    function, reference = compile_vmath(name, "f32", scale=scale, fuses=fuses), references()[name]
    arguments: Iterable[tuple[Floats, ...]]
    if function.arity == 2:
        arguments = [random_pairs(CHUNK, seed) for seed in range(max(1, (1 << 32) // (step * CHUNK)))]
    else:
        arguments = ((chunk,) for chunk in argument_chunks(step))
    worst, where = 0.0, (0.0,) * function.arity
    for operands in arguments:
        with np.errstate(all="ignore"):
            exact = reference(*[operand.astype(np.float64) for operand in operands])
        errors = ulp_errors(function(*operands), exact)
        index = int(np.argmax(errors))
        if errors[index] > worst:
            worst, where = float(errors[index]), tuple(float(operand[index]) for operand in operands)
    return worst, where


def forms(name: str) -> list[Scale | None]:
    """The instructions for which the function's text differs: none, and this machine's where it makes use of it."""
    scale = host_target().scale
    is_used = vmath_function(name, "f32", LANES, scale) != vmath_function(name, "f32", LANES)
    return [None, scale] if is_used else [None]


def main() -> int:
    """Print a line for each function asked for; 1 if one exceeds its documented bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", default=list(SUPPORTED), metavar="name", help="functions to check"
    )
    parser.add_argument("--step", type=int, default=257, help="check each step-th float32 (1: all)")
    options = parser.parse_args()
    exceeded = False
    for name in options.names:
        for scale in forms(name):
            worst, where = worst_error(name, options.step, scale)
            bound = SUPPORTED[name]["f32"]
            exceeded |= worst > bound
            verdict = "EXCEEDS" if worst > bound else "within"
            arguments = ", ".join(f"{argument:.9g}" for argument in where)
            form = "scaled" if scale else ""
            print(
                f"{name:10s} {form:6s} {worst:7.4f} ulp at {arguments:24s} {verdict} its bound of {bound}",
                flush=True,
            )
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
