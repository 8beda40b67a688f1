"""Random products of data by weights that are stored in few bits: each gives what NumPy computes in float64.

The weights are expressions of narrow constants, as front ends make them: codes of 1 to 8 bits, for levels or as they
are, or 16-bit floats, zero points, scales and minima of groups or columns, scales of two levels, columns in another
order, several readers. Rows are few, many or unknown, and there may be axes before them.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.fuzz.registry import Tried
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import tensor
from tilewright.ops import contract, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

Array = np.ndarray

ROWS = (0, 1, 2, 3, 5, 8, 9, 17, 33)
GROUPS = (8, 16, 32, 48, 64, 128)
CODES = (dt.i4, dt.u4, dt.i4, dt.u4, dt.i8, dt.u8)
FLOATS = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
TARGETS = ("host,l2=1024", "host,l2=1024,cores=1")
LEAST_ELEMENTS = 20_000
"""More than what is folded however few bits it has."""


@dataclass(frozen=True)
class Weights:
    """A matrix as a value, as numbers, and how large what each of these is the sum of is."""

    value: Value
    exact: Array
    size: Array


class Narrow:
    """One random product."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        group = self.random.choice(GROUPS)
        self.depth = group * self.random.randint(1, 512 // group) if self.chance(0.85) else self.random.randint(20, 300)
        self.group = group if self.depth % group == 0 else self.depth
        least = -(-LEAST_ELEMENTS // self.depth)
        self.columns = least + self.random.randint(0, 200)
        self.said: list[str] = [f"depth {self.depth}, columns {self.columns}, groups of {self.group}"]

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    # Weights

    def weights(self, *, turned: bool) -> Weights:
        shape = (self.columns, self.depth) if turned else (self.depth, self.columns)
        found = self.of_floats(shape) if self.chance(0.1) else self.of_codes(shape, turned)
        if self.chance(0.1):
            order, axis = self.rng.permutation(self.depth), int(turned)
            self.said.append("in another order")
            ordered = gather(found.value, constant(order.astype(np.int64)), axis=axis, in_range=True)
            found = Weights(ordered, *(np.take(each, order, axis) for each in (found.exact, found.size)))
        self.said.append("rows are columns" if turned else "columns last")
        return found

    def of_floats(self, shape: tuple[int, int]) -> Weights:
        dtype = self.random.choice(FLOATS[1:])
        stored = self.rng.standard_normal(shape).astype(dtype)
        self.said.append(f"of {dtype}")
        exact = stored.astype(np.float64)
        return Weights(wide(constant(stored)), exact, np.abs(exact))

    def of_codes(self, shape: tuple[int, int], turned: bool) -> Weights:
        dtype = self.random.choice(CODES)
        bits = dtype.bits if self.chance(0.4) else self.random.randint(1, dtype.bits)
        codes = self.codes(dtype, shape, bits)
        value, exact = wide(constant(codes, "w")), codes.astype(np.float64)
        size = np.abs(exact)
        before = self.chance(0.4)
        if before:
            value, zeros = self.moved(value, shape, turned, dtype)
            exact, size = exact - zeros, size + np.abs(zeros)
        if self.chance(0.9):
            scale, numbers = self.shared(shape, turned, 0.05)
            factors = (value, scale) if self.chance(0.8) else (scale, value)
            value, exact, size = ew.mul(*factors), exact * numbers, size * np.abs(numbers)
        if not before and self.chance(0.4):
            minimum, numbers = self.shared(shape, turned, 0.5)
            added = self.chance(0.5)
            self.said.append("minimum added" if added else "minimum subtracted")
            value = ew.add(value, minimum) if added else ew.sub(value, minimum)
            exact, size = exact + numbers if added else exact - numbers, size + np.abs(numbers)
        return Weights(value, exact, size)

    def codes(self, dtype: dt.DType, shape: tuple[int, ...], bits: int) -> Array:
        """Integers of so many bits, or bytes of few levels."""
        self.said.append(f"{dtype.name} in {bits} bits")
        if not self.chance(0.2):
            return self.integers(dtype, shape, bits)
        book = self.rng.choice(np.arange(-128, 128), self.random.randint(1, 16), replace=False).astype(np.int8)
        self.said.append(f"of {len(book)} levels")
        return book[self.rng.integers(0, len(book), shape)]

    def integers(self, dtype: dt.DType, shape: tuple[int, ...], bits: int = 0) -> Array:
        bits = bits or dtype.bits
        low = -(1 << bits - 1) if dtype.kind == "int" else 0
        return self.rng.integers(low, low + (1 << bits), shape).astype(dtype.storage)

    def moved(self, value: Value, shape: tuple[int, int], turned: bool, dtype: dt.DType) -> tuple[Value, Array]:
        """Less zero points: of groups, of columns, or one; and these."""
        kind = self.random.choice(("groups", "columns", "one"))
        self.said.append(f"zeros of {kind}")
        if kind == "one":
            zero = float(self.random.randint(-8, 15))
            return ew.sub(value, number(zero)), np.array(zero)
        stored = self.integers(dtype, self.shape_of_groups(turned, 1 if kind == "columns" else self.groups))
        zeros = wide(constant(stored, "zero"))
        return ew.sub(value, self.spread(zeros, shape, turned)), self.repeated(stored.astype(float), turned)

    @property
    def groups(self) -> int:
        return self.depth // self.group

    def shape_of_groups(self, turned: bool, groups: int) -> tuple[int, int]:
        return (self.columns, groups) if turned else (groups, self.columns)

    def spread(self, value: Value, shape: tuple[int, ...], turned: bool) -> Value:
        """Numbers of groups as those of elements."""
        axis, dims = int(turned), [d.value for d in value.tensor.shape]
        repeats = self.depth // dims[axis]
        if repeats == self.depth and self.chance(0.5):
            return value
        apart = list(dims)
        apart.insert(axis + 1, 1)
        spread = list(apart)
        spread[axis + 1] = repeats
        return view.reshape(view.expand(view.reshape(value, shape=tuple(apart)), shape=tuple(spread)), shape=shape)

    def repeated(self, numbers: Array, turned: bool) -> Array:
        axis = int(turned)
        return np.repeat(numbers, self.depth // numbers.shape[axis], axis)

    def shared(self, shape: tuple[int, int], turned: bool, size: float) -> tuple[Value, Array]:
        """Floats of groups, of columns, of both with small integers between, or one."""
        kind = self.random.choice(("groups", "groups", "columns", "two levels", "one"))
        dtype = self.random.choice(FLOATS)
        self.said.append(f"{dtype} of {kind}")
        if kind == "one":
            one = np.float32(size * self.random.uniform(0.5, 2))
            return number(one), np.array(one, np.float64)
        if kind == "two levels" and self.groups % 2 == 0:
            stored = (size / 8 * self.rng.uniform(0.1, 1, self.shape_of_groups(turned, self.groups // 2))).astype(dtype)
            factor = self.rng.integers(-16, 16, self.shape_of_groups(turned, self.groups)).astype(np.int8)
            axis = int(turned)
            apart = list(stored.shape)
            apart.insert(axis + 1, 1)
            pairs = list(apart)
            pairs[axis + 1] = 2
            outer = view.expand(view.reshape(wide(constant(stored, "scale")), shape=tuple(apart)), shape=tuple(pairs))
            value = ew.mul(view.reshape(outer, shape=factor.shape), wide(constant(factor, "factor")))
            numbers = np.repeat(stored.astype(float), 2, axis) * factor
        else:
            count = 1 if kind == "columns" else self.groups
            stored = (size * self.rng.uniform(-1, 1, self.shape_of_groups(turned, count))).astype(dtype)
            if self.chance(0.2):
                stored[self.rng.random(stored.shape) < 0.3] = 0
            value, numbers = wide(constant(stored, "scale")), stored.astype(float)
        return self.spread(value, shape, turned), self.repeated(numbers, turned)

    # The product

    def data(self) -> list[Sym | int]:
        """The axes before the depth."""
        rows = self.random.choice(ROWS) if self.chance(0.5) else var("rows", 0)
        return [*(self.random.choice((1, 2, 3)) for _ in range(self.random.choice((0, 0, 1, 2)))), rows]

    def product(self, x: Value, weights: Weights, *, turned: bool) -> Value:
        if not turned:
            return contract.matmul(x, weights.value)
        if self.chance(0.5):
            return contract.matmul(x, view.transpose(weights.value, perm=(1, 0)))
        return contract.matmul(x, weights.value, transpose_b=True)


def number(value: float | np.float32) -> Value:
    return constant(np.array(value, np.float32))


def wide(value: Value) -> Value:
    return value if value.tensor.dtype is dt.f32 else ew.cast(value, dtype=dt.f32)


def fuzz(seed: int) -> Tried:
    """Compile one product and run it for several numbers of rows."""
    narrow = Narrow(seed)
    shape = tuple(sym(d) for d in (*narrow.data(), narrow.depth))
    program = Program(narrow, shape)
    numerics, threads = narrow.random.choice(("default", "default", "strict")), narrow.random.choice((1, 2))
    target = narrow.random.choice(TARGETS)
    narrow.said += [f"x {list(map(str, shape))}", numerics, f"{threads} threads", target]
    try:
        options = Options(cache=False, compile_threads=1, verify=True, numerics=numerics)
        model = Model(compile_module(program.module, options, parse_target(target)), threads)
        for rows in ROWS if any(not d.is_const for d in shape) else (0,):
            x = narrow.rng.standard_normal([d.value if d.is_const else rows for d in shape]).astype(np.float32)
            program.check(model, x)
            if x.size and narrow.chance(0.3):
                program.check_special(model, x, narrow.random.choice((np.nan, np.inf, -np.inf)), narrow.rng)
    except Exception as error:
        error.add_note(", ".join(narrow.said))
        raise
    return Counter({(narrow.said[1], numerics): 1})


class Program:
    """Data times weights, and what else the model computes of them."""

    def __init__(self, narrow: Narrow, shape: tuple[Sym, ...]) -> None:
        self.module = Module()
        block = Block([tensor(dt.f32, shape)], ["x"])
        turned, self.picked = narrow.chance(0.6), narrow.chance(0.2)
        self.after = narrow.random.choice(("", "", "relu", "bias", "twice", "other"))
        self.index = narrow.rng.integers(0, min(narrow.depth, narrow.columns), 5)
        with Builder(block, self.module) as builder:
            (x,) = block.args
            weights = narrow.weights(turned=turned)
            self.matrix = weights.exact
            self.exact, self.size = (each.T if turned else each for each in (weights.exact, weights.size))
            found = narrow.product(x, weights, turned=turned)
            match self.after:
                case "relu":
                    found = ew.max_(found, 0.0)
                case "bias":
                    self.bias = narrow.rng.standard_normal(narrow.columns).astype(np.float32)
                    found = ew.add(found, constant(self.bias))
                case "twice":
                    found = ew.add(found, narrow.product(ew.mul(x, number(2)), weights, turned=turned))
                case "other":
                    other = narrow.weights(turned=turned)
                    found = ew.sub(found, narrow.product(x, other, turned=turned))
                    self.exact = self.exact - (other.exact.T if turned else other.exact)
                    self.size = self.size + (other.size.T if turned else other.size)
            picked = [gather(weights.value, constant(self.index), axis=0, in_range=True)] if self.picked else []
            builder.emit("return", (found, *picked))
        self.module.add(Func("main", block))
        narrow.said.append(f"then {self.after or 'nothing'}{', and rows picked' if self.picked else ''}")

    @property
    def times(self) -> int:
        return 3 if self.after == "twice" else 1

    def room(self, x: Array) -> Array:
        """How far results for these rows may be off."""
        return 1e-6 * self.times * (np.abs(x).astype(np.float64) @ self.size) + 1e-6

    def check(self, model: Model, x: Array) -> None:
        """The model computes it up to rounding: a sum may be as far off as its terms are large."""
        found, *picked = model(x)
        wanted = self.times * (x.astype(np.float64) @ self.exact)
        room = self.room(x)
        if self.after == "bias":
            wanted = wanted + self.bias
        if self.after == "relu":
            wanted = np.maximum(wanted, 0)
        assert found.shape == wanted.shape, f"{found.shape}, not {wanted.shape}"
        far = np.argwhere(~(np.abs(found - wanted) <= room + 1e-6 * np.abs(wanted)))
        assert not len(far), f"x {x.shape}: {len(far)} of {found.size} differ, first {far[0]}: " + (
            f"{found[tuple(far[0])]}, not {wanted[tuple(far[0])]}"
        )
        for rows in picked:
            np.testing.assert_allclose(rows, self.matrix[self.index], rtol=1e-5, atol=1e-5)

    def check_special(self, model: Model, x: Array, value: float, rng: np.random.Generator) -> None:
        """A number in one row that is none, or infinite, changes no other row; none of the sums with it is finite."""
        before, changed = model(x)[0].reshape(-1, self.exact.shape[1]), x.copy()
        rows = changed.reshape(-1, x.shape[-1])
        row, column = rng.integers(len(rows)), rng.integers(x.shape[-1])
        rows[row, column] = value
        after = model(changed)[0].reshape(before.shape)
        others = np.arange(len(rows)) != row
        np.testing.assert_array_equal(after[others], before[others])
        if self.after not in ("relu", "other"):
            assert not np.isfinite(after[row]).any(), f"{value} in row {row} of {x.shape}: {after[row]}"
