"""Random products whose rows are rounded to integers (`activations`), by weights as those of the fuzzer `narrow`.

Each result is as far from that of float64 as half a step of its rows' groups allows, for rows of all sizes: tiny ones,
some that are zero, and elements of very different sizes beside each other. One that is infinite or no number changes no
other row; where weights are integers times scales, its results are those of float32. Where rows are rounded for any
number of them, each has the bits that it has alone.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tests.fuzz.narrow import Array, Narrow, Program
from tests.fuzz.registry import Tried
from tilewright.compiler import compile_module
from tilewright.cost.narrow_weights import LEAST_ROUNDED_ROWS, ROUNDED_GROUP
from tilewright.ir.core import Module
from tilewright.ir.sym import Sym, sym
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.sums.round_terms import SMALLEST
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

ROWS = (0, 1, 2, 7, 8, 9, 10, 15, 16, 17, 33, 70)
TARGETS = ("host,l2=1024", "host,l2=1024,cores=1", "host,l2=1024,l3=2048")
SIZES = ("plain", "plain", "rows apart", "tiny", "half zeros", "spiky")


class RoundedProgram(Program):
    """A program whose rows are rounded to integers of `digits` bits where they are many."""

    def __init__(self, narrow: Narrow, shape: tuple[Sym, ...], digits: int) -> None:
        super().__init__(narrow, shape)
        self.digits = digits
        self.plain = not any(word in said for said in narrow.said for word in ("zeros", "minimum"))

    def room(self, x: Array) -> Array:
        """Half a step of each element: no group is larger than `ROUNDED_GROUP`, wherever it begins."""
        beside = ROUNDED_GROUP - 1
        sizes = np.abs(x.astype(np.float64))
        padded = np.pad(sizes, [(0, 0)] * (x.ndim - 1) + [(beside, beside)])
        largest = np.maximum(sliding_window_view(padded, 2 * beside + 1, -1).max(-1), SMALLEST)
        steps = largest / (2 ** (self.digits - 1) - 1)
        rounded = 0.51 * (steps @ np.abs(self.exact)) + 2e-6 * (largest @ self.size)
        return super().room(x) + self.times * (rounded + 2e-6 * sizes.sum(-1, keepdims=True) * self.size.max(initial=0))

    def check_infinite(self, model: Model, x: Array, value: float, rng: np.random.Generator) -> None:
        """The results of a row with one infinite element are those of its product."""
        before = x.reshape(-1, x.shape[-1])
        row, column = rng.integers(len(before)), rng.integers(x.shape[-1])
        before[row, column] = value
        found = model(x)[0].reshape(len(before), -1)[row]
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(found, (value * self.exact[column]).astype(np.float32))


    def check_bits(self, model: Model, shape: tuple[Sym, ...], rng: np.random.Generator) -> None:
        """A row has the bits that it has alone, among few and among many."""
        x = rng.standard_normal([d.value if d.is_const else max(ROWS) for d in shape]).astype(np.float32)
        axis = next(k for k, d in enumerate(shape) if not d.is_const)
        whole = model(x)[0]
        for rows in ROWS:
            few = model(np.take(x, range(rows), axis))[0]
            np.testing.assert_array_equal(few, np.take(whole, range(rows), axis), err_msg=f"{rows} rows")


def drawn(narrow: Narrow, shape: list[int]) -> Array:
    x = narrow.rng.standard_normal(shape).astype(np.float32)
    match narrow.random.choice(SIZES):
        case "rows apart":
            x *= (10.0 ** narrow.rng.integers(-12, 12, (*shape[:-1], 1))).astype(np.float32)
        case "tiny":
            x *= np.float32(1e-38)
        case "half zeros":
            x[..., : shape[-1] // 2] = 0
        case "spiky":
            x *= (10.0 ** narrow.rng.integers(-4, 4, shape)).astype(np.float32)
    return x


def is_rounded(module: Module) -> bool:
    kernels = [f for f in module.funcs.values() if f.level == "loops"]
    return any("round_terms(" in step for kernel in kernels for step in kernel_info(kernel).schedule)


def are_all_rounded(module: Module) -> bool:
    """Whether rows of all products are, however many there are."""
    written = ["".join(kernel_info(f).schedule) for f in module.funcs.values() if f.level == "loops"]
    counts = [(text.count("cache_write("), text.count("round_terms(")) for text in written]
    return any(sums for sums, _ in counts) and all(sums == rounded for sums, rounded in counts)


def fuzz(seed: int) -> Tried:
    """Compile one product and run it for several numbers of rows."""
    narrow = Narrow(seed)
    shape = tuple(sym(d) for d in (*narrow.data(), narrow.depth))
    digits, threads = narrow.random.choice((16, 16, 8)), narrow.random.choice((1, 2))
    program, target = RoundedProgram(narrow, shape, digits), narrow.random.choice(TARGETS)
    narrow.said += [f"x {list(map(str, shape))}", f"{digits} bits", f"{threads} threads", target]
    try:
        options = Options(cache=False, compile_threads=1, verify=True, activations=f"int{digits}")
        model = Model(compile_module(program.module, options, parse_target(target)), threads)
        rounded = is_rounded(program.module)
        for rows in ROWS if any(not d.is_const for d in shape) else (0, 0):
            known = [d.value if d.is_const else rows for d in shape]
            program.check(model, drawn(narrow, known))
            if not narrow.chance(0.4) or not np.prod(known):
                continue
            x, value = narrow.rng.standard_normal(known).astype(np.float32), narrow.random.choice((np.inf, -np.inf))
            program.check_special(model, x, narrow.random.choice((np.nan, value)), narrow.rng)
            if program.plain and program.after == "" and (digits == 16 or known[-2] < LEAST_ROUNDED_ROWS):
                program.check_infinite(model, x, value, narrow.rng)
        always = are_all_rounded(program.module)
        if always and any(not d.is_const for d in shape):
            program.check_bits(model, shape, narrow.rng)
    except Exception as error:
        error.add_note(", ".join(narrow.said))
        raise
    return Counter({(f"{digits} bits", "always" if always else "rounded" if rounded else "as they are"): 1})
