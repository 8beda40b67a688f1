"""Which products and sums are one operation: the kernel says it, whatever LLVM's effort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.codegen.native import kernel, run_kernel
from tests.schedule.scheduling import build
from tilewright.back_end import CpuCode
from tilewright.codegen.cpu.assemble import Effort
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import buffer, tensor
from tilewright.ops import contract, norm
from tilewright.ops import elementwise as ew
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.host import host_target

FUSES = host_target().has_fma
COUNT = 37


def once(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(np.float64)


def product(x: np.ndarray) -> np.ndarray:
    """As it goes into a sum: exact, or rounded where the machine does not fuse."""
    return x if FUSES else once(x)


FORMS: dict[str, tuple[Callable[..., Any], Callable[..., np.ndarray]]] = {
    "a product first": (lambda a, b, c: a * b + c, lambda a, b, c: product(a * b) + c),
    "a product second": (lambda a, b, c: c + a * b, lambda a, b, c: c + product(a * b)),
    "less": (lambda a, b, c: a * b - c, lambda a, b, c: product(a * b) - c),
    "less a product": (lambda a, b, c: c - a * b, lambda a, b, c: c - product(a * b)),
    "of two products the first": (lambda a, b, c: a * b - c * b, lambda a, b, c: product(a * b) - once(c * b)),
    "by a number": (lambda a, b, c: c - a * 0.7, lambda a, b, c: c - product(a * np.float64(np.float32(0.7)))),
}


@pytest.mark.parametrize("effort", [Effort.KERNEL, Effort.LITTLE], ids=lambda e: e.name)
def test_a_product_that_is_read_once_beside_its_sum_is_part_of_it(effort: Effort) -> None:
    """One that is read twice, or computed outside of the loop of the sum, is rounded."""

    def body(t: ScalarBuilder, arrays: list[Array]) -> None:
        *given, apart, twice, outside = arrays
        a, b, c, *results = given
        before = a[0] * b[0]
        with t.loop(COUNT, "i", "vector") as i:
            for (form, _), y in zip(FORMS.values(), results, strict=True):
                y.store((i,), form(a[i], b[i], c[i]))
            p = a[i] * b[i]
            apart.store((i,), p)
            twice.store((i,), p + c[i])
            outside.store((i,), before + c[i])

    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(COUNT).astype(np.float32) for _ in range(3 + len(FORMS) + 3)]
    func = kernel([buffer(dt.f32, [COUNT])] * len(arrays), body, outputs=len(FORMS) + 3)
    run_kernel(func, arrays, effort=effort)
    a, b, c = (x.astype(np.float64) for x in arrays[:3])
    wanted = [of_arrays(a, b, c) for _, of_arrays in FORMS.values()]
    wanted += [a * b, once(a * b) + c, once(a[:1] * b[:1]) + c]
    for found, exact, name in zip(arrays[3:], wanted, [*FORMS, "product", "twice", "outside"], strict=True):
        np.testing.assert_array_equal(found, exact.astype(np.float32), err_msg=name)


def test_the_effort_for_a_kernel_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tiles, rows with a rest, and windows."""

    def body(x: Value, y: Value, pixels: Value, filters: Value) -> tuple[Value, ...]:
        rows = contract.matmul(x, y)
        return rows, norm.softmax(ew.sub(ew.mul(rows, rows), ew.mul(rows, 0.3)), axis=1), contract.conv(pixels, filters)

    rng = np.random.default_rng(4)
    shapes = ((11, 19), (19, 29), (1, 3, 9, 9), (5, 3, 3, 3))
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    found = []
    for effort in (Effort.KERNEL, Effort.LITTLE):
        monkeypatch.setattr(CpuCode, "_effort", lambda code, text, effort=effort: effort)
        module = build([tensor(dt.f32, shape) for shape in shapes], body)
        found.append(Model(compile_module(module, Options(), host_target()), 1)(*arrays))
    for full, little in zip(*found, strict=True):
        np.testing.assert_array_equal(full, little)
