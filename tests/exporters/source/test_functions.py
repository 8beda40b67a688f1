"""Scalar functions and conversions in C: the same bits as native code, for all dtypes, and nothing that C leaves
undefined."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.codegen.native import kernel, run_kernel
from tests.exporters.source.c_source import run_in_c
from tilewright.codegen.cpu.kernel.scalars import apply_scalar
from tilewright.codegen.cpu.kernel.text import Text
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.types import buffer
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.target.host import host_target
from tilewright.target.named import parse_target

FUSED = parse_target("x86-64-v3") if {"avx2", "fma"} <= set(host_target().features) else None
"""This machine without instructions of its own for exponentials, whose results differ."""

NUMBERS = tuple(d for d in dt.ALL if d is not dt.string)
LIBRARY = ("atan2", "acosh", "asinh", "atanh")
"""What the C library computes has the C library's bits."""


@pytest.fixture(autouse=True)
def compiler() -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc)")


def operations(dtype: DType) -> list[str]:
    """The scalar operations that a dtype has."""
    found = []
    for name, op in SCALAR_OPS.items():
        if name in ("ticks", "quotient", *(LIBRARY if dtype is dt.f64 else ("atan2",))):
            continue
        text = Text()
        operands = [text.named(f"%x{k}", dtype) for k in range(op.arity)]
        if op.conditions:
            operands[0] = text.named("%c", dt.bool_)
        try:
            apply_scalar(name, operands, op.result_dtype(tuple(o.dtype for o in operands)))
        except UnsupportedError:
            continue
        found.append(name)
    return found


def elements(dtype: DType, count: int = 64) -> np.ndarray:
    """Special values, and some of all sizes."""
    random = np.random.default_rng(dtype.bits)
    if dtype.kind == "bool":
        return random.random(count) < 0.5
    if dtype.is_int:
        low = -(1 << dtype.bits - 1) if dtype.kind == "int" else 0
        high = low + (1 << dtype.bits) - 1
        some = [low, high, low + 1, high - 1, 0, 1, 2 % (high + 1), high // 2]
        small = random.integers(max(low, -9), min(high, 9) + 1, count // 2)
        wide = [int(v) for v in random.integers(0, 1 << 62, count)]
        every = [*some, *map(int, small), *(low + v % (high - low + 1) for v in wide)]
        return np.array(every[:count], np.int64 if dtype is not dt.u64 else np.uint64).astype(dtype.storage)
    with np.errstate(all="ignore"):
        special = np.array([0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 88.7, -104, 7e4, -3e9])
        sizes = np.exp(random.uniform(-8, 8, count)) * random.choice([-1, 1], count)
        return np.concatenate([special, sizes])[:count].astype(dtype.storage)


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    """The same bits, of NaN any, and of zeros either."""
    if found.dtype.kind in "biu" or found.dtype.name.startswith(("int", "uint")):
        return found.tobytes() == wanted.tobytes()
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    return bool(np.array_equal(a, b, equal_nan=True))


def compare(func: Func, inputs: list[np.ndarray], outputs: list[tuple[str, np.ndarray]], folder: Path) -> None:
    native, in_c = ([o.copy() for _, o in outputs] for _ in range(2))
    run_kernel(func, [*inputs, *native], target=FUSED)
    assert run_in_c(func, [*inputs, *in_c], folder) == 0
    wrong = [n for (n, _), a, b in zip(outputs, in_c, native, strict=True) if not same(a, b)]
    assert wrong == [], wrong


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_operations_have_the_bits_of_native_code(dtype: DType, tmp_path: Path) -> None:
    x = elements(dtype)
    y = np.roll(x, 5)
    if dtype.is_int:
        y[y == 0] = 1
    names = operations(dtype)
    results = [SCALAR_OPS[name].result_dtype((dtype, dtype, dtype)) for name in names]

    def body(t: ScalarBuilder, args: list[Array]) -> None:
        with t.loop(len(x), "i") as i:
            a, b, flag = args[0][i], args[1][i], args[2][i]
            for k, name in enumerate(names):
                op = SCALAR_OPS[name]
                operands = [flag, a, b] if op.conditions else [a, b, a][: op.arity]
                args[3 + k].store((i,), t.apply(name, *operands))

    flags = np.arange(len(x)) % 3 == 0
    types = [buffer(d, [len(x)]) for d in (dtype, dtype, dt.bool_, *results)]
    func = kernel(types, body, outputs=len(names))
    outputs = [(name, np.zeros(len(x), d.storage)) for name, d in zip(names, results, strict=True)]
    compare(func, [x, y, flags], outputs, tmp_path)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_conversions_have_the_bits_of_native_code(source: DType, tmp_path: Path) -> None:
    x = elements(source)
    alike = [d for d in NUMBERS if d.bits == source.bits]

    def body(t: ScalarBuilder, args: list[Array]) -> None:
        with t.loop(len(x), "i") as i:
            for k, to in enumerate(NUMBERS):
                args[1 + k].store((i,), args[0][i].cast(to))
            for k, to in enumerate(alike):
                args[1 + len(NUMBERS) + k].store((i,), t.bitcast(args[0][i], to))

    types = [buffer(d, [len(x)]) for d in (source, *NUMBERS, *alike)]
    func = kernel(types, body, outputs=len(types) - 1)
    outputs = [(str(d), np.zeros(len(x), d.storage)) for d in (*NUMBERS, *alike)]
    compare(func, [x], outputs, tmp_path)
