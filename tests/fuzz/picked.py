"""Random products by narrow weights that data pick: whole matrices of a stack, or rows of a matrix that a product reads
as well (a tied embedding). Each gives what NumPy computes in float64, and places beyond the end are refused."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tests.fuzz.narrow import CODES, FLOATS, Array, Narrow, number, wide
from tests.fuzz.registry import Tried
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.diag import ExecutionError
from tilewright.ir.sym import sym, var
from tilewright.ir.types import tensor
from tilewright.ops import contract, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

DEPTHS = (1, 7, 16, 24, 32, 48, 64, 96, 128, 160, 256)
COLUMNS = (1, 5, 16, 31, 32, 48, 70, 100, 257)
TARGETS = ("host,l2=1024", "host,l2=1024,cores=1", "host,l2=1024,l3=2048")
LEAST_ELEMENTS, MOST_ELEMENTS = 30_000, 400_000
CALLS = 6


class Picked:
    """One random program: `exact` are all weights, `size` how large what each is the sum of is."""

    def __init__(self, seed: int) -> None:
        self.narrow = Narrow(seed)
        self.random, self.rng = self.narrow.random, self.narrow.rng
        self.stacked = self.narrow.chance(0.7)
        self.matrices, self.depth = self.random.choice((1, 1, 2, 3, 5, 8)), self.random.choice(DEPTHS)
        self.matrices = self.matrices if self.stacked else 1
        each = self.depth * self.matrices
        columns = self.random.choice(COLUMNS)
        if self.narrow.chance(0.7):
            columns = max(columns, LEAST_ELEMENTS // each)
        self.columns = max(1, min(columns, MOST_ELEMENTS // each))
        self.turned = self.narrow.chance(0.5)
        self.count = self.random.choice((var("n", 0), var("n", 0), sym(1), sym(3), sym(0)))
        self.rows = self.random.choice((var("rows", 0), var("rows", 0), sym(1), sym(2), sym(9)))
        self.index = self.random.choice((dt.i64, dt.i32))
        self.said = [
            f"{'matrices' if self.stacked else 'rows'} of {self.matrices} x {self.depth} x {self.columns}",
            f"{'turned, ' if self.turned else ''}{self.count} picked by {self.index}, for {self.rows} rows",
        ]
        self.module = Module()
        before = (self.count,) if self.stacked else ()
        types = [tensor(dt.f32, (*before, self.rows, self.depth)), tensor(self.index, (self.count,))]
        block = Block(types, ["x", "at"])
        with Builder(block, self.module) as builder:
            builder.emit("return", self._results(*block.args))
        self.module.add(Func("main", block))

    @property
    def places(self) -> int:
        """How many there are to pick from."""
        return self.exact.shape[0]

    def _results(self, x: Value, at: Value) -> tuple[Value, ...]:
        weights = self._weights()
        if self.stacked:
            return (contract.matmul(x, gather(weights, at, axis=0), transpose_b=self.turned),)
        return contract.matmul(x, weights, transpose_b=self.turned), gather(weights, at, axis=0)

    def _weights(self) -> Value:
        matrix = (self.columns, self.depth) if self.turned else (self.depth, self.columns)
        shape = (self.matrices, *matrix) if self.stacked else matrix
        if self.narrow.chance(0.15):
            stored = self.rng.standard_normal(shape).astype(self.random.choice(FLOATS))
        else:
            dtype = self.random.choice(CODES)
            stored = self.narrow.codes(dtype, shape, self.random.randint(1, dtype.bits))
        self.said += [f"of {stored.dtype}", *self.narrow.said[1:]]
        value = wide(constant(stored, "w"))
        self.exact = stored.astype(np.float64)
        self.size = np.abs(self.exact)
        if self.narrow.chance(0.7):
            scale, numbers = self._scales(shape)
            value, self.exact, self.size = ew.mul(value, scale), self.exact * numbers, self.size * np.abs(numbers)
        if self.narrow.chance(0.3):
            self.said.append("less a half")
            value, self.exact, self.size = ew.sub(value, number(0.5)), self.exact - 0.5, self.size + 0.5
        return value

    def _scales(self, shape: tuple[int, ...]) -> tuple[Value, Array]:
        """Of groups along the sum, and of all elements."""
        axis = len(shape) - (1 if self.turned else 2)
        group = self.random.choice([g for g in (8, 16, 32, 64, 128, self.depth) if self.depth % g == 0])
        groups = (*shape[:axis], self.depth // group, *shape[axis + 1 :])
        stored = (0.05 * self.rng.uniform(-1, 1, groups)).astype(self.random.choice(FLOATS))
        self.said.append(f"scales of {group} as {stored.dtype}")
        apart = (*groups[: axis + 1], 1, *groups[axis + 1 :])
        spread = (*groups[: axis + 1], group, *groups[axis + 1 :])
        value = view.expand(view.reshape(wide(constant(stored, "scale")), shape=apart), shape=spread)
        return view.reshape(value, shape=shape), np.repeat(stored.astype(np.float64), group, axis)

    # Calls

    def call(self, model: Model, *, rounded: bool) -> str:
        """One call with random sizes and places, some of them beyond the end; what came of it."""
        count = self.count.value if self.count.is_const else self.random.choice((0, 1, 2, 3, 7, 8, 9, 17))
        rows = self.rows.value if self.rows.is_const else self.random.choice((0, 1, 2, 4, 8, 9, 10, 16, 33))
        x = self.rng.standard_normal((*((count,) if self.stacked else ()), rows, self.depth)).astype(np.float32)
        at = self.rng.integers(-self.places, self.places, count).astype(self.index.storage)
        if count and self.narrow.chance(0.3):
            far = (self.places, -self.places - 1, 10**9, np.iinfo(at.dtype).max, np.iinfo(at.dtype).min)
            at[self.random.randrange(count)] = self.random.choice(far)
        beyond = bool(((at < -self.places) | (at >= self.places)).any())
        try:
            found = model(x, at)
        except ExecutionError as error:
            assert beyond, f"{at} of {self.places} are refused: {error}"
            return "refused"
        if beyond:
            assert self.stacked and not found[0].size, f"{at} of {self.places} are accepted"
            return "not read"
        self._check(x, at, found, rounded=rounded)
        return "agree"

    def _check(self, x: Array, at: Array, found: list[Array], *, rounded: bool) -> None:
        exact, size = (each[at] if self.stacked else each for each in (self.exact, self.size))
        if self.turned:
            exact, size = np.swapaxes(exact, -1, -2), np.swapaxes(size, -1, -2)
        wanted, sizes = x.astype(np.float64) @ exact, np.abs(x).astype(np.float64)
        room = 2e-6 * (sizes @ size) + 1e-6
        if rounded:
            room += 5e-5 * sizes.max(initial=0) * size.sum(-2, keepdims=True)
            room += 1e-6 * sizes.sum(-1, keepdims=True) * size.max(initial=0)
        assert found[0].shape == wanted.shape
        far = np.argwhere(~(np.abs(found[0] - wanted) <= room))
        assert not len(far), f"x {x.shape}, {at}: {len(far)} of {wanted.size} differ, first {far[0]}: " + (
            f"{found[0][tuple(far[0])]}, not {wanted[tuple(far[0])]}"
        )
        if not self.stacked:
            np.testing.assert_allclose(found[1], self.exact[at], rtol=1e-5, atol=1e-5)


def fuzz(seed: int) -> Tried:
    """Compile one program and call it several times."""
    program = Picked(seed)
    numerics, activations = program.random.choice((("default", "int16"), ("default", None), ("strict", None)))
    threads, target = program.random.choice((1, 2)), program.random.choice(TARGETS)
    program.said += [numerics, str(activations), f"{threads} threads", target]
    options = {"numerics": numerics} if activations is None else {"numerics": numerics, "activations": activations}
    tried: Tried = Counter()
    try:
        compiled = compile_module(
            program.module, Options(cache=False, compile_threads=1, verify=True, **options), parse_target(target)
        )
        model = Model(compiled, threads)
        for _ in range(CALLS):
            outcome = program.call(model, rounded=activations is not None)
            tried["matrices" if program.stacked else "rows", outcome] += 1
    except Exception as error:
        error.add_note(", ".join(program.said))
        raise
    return tried
