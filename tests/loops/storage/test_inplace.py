"""Results in the place of arguments: what may share memory, what must not, and that sharing changes no result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir.core import Func
from tilewright.loops.kernel_info import kernel_info, parse_kernel
from tilewright.loops.storage.inplace import copied, overwritable
from tilewright.ops.define.loop_programs import run_kernel

SAFE = {
    "elementwise": """
        for i in 0..12 parallel { for j in 0..8 vector { y[i, j] = x[i, j] * 2.0 } }""",
    "read twice before the write": """
        for i in 0..12 { for j in 0..8 { y[i, j] = x[i, j] * x[i, j] } }""",
    "rows are summed before they are written": """
        for i in 0..12 parallel {
          alloc s: reg f32[1]
          s[0] = 0.0
          for j in 0..8 { s[0] += x[i, j] }
          for j in 0..8 { y[i, j] = x[i, j] - s[0] }
        }""",
    "a row is read from its end, then written": """
        for i in 0..12 parallel {
          alloc t: scratch f32[8]
          for j in 0..8 { t[7 - j] = x[i, j] }
          for j in 0..8 { y[i, j] = t[j] }
        }""",
    "two loops made one": """
        for f in 0..96 parallel { y[f // 8, f % 8] = x[f // 8, f % 8] + 1.0 }""",
    "three loops made one, with vectors": """
        for f in 0..24 parallel { for j in 0..4 vector {
          y[f // 2, 4 * (f % 2) + j] = x[f // 2, 4 * (f % 2) + j] + 1.0
        } }""",
    "a guarded tail": """
        for f in 0..6 parallel { for i in 0..5 unroll { if 5 * (f % 3) + i < 12 { for j in 0..4 vector {
          y[5 * (f % 3) + i, 4 * (f // 3) + j] = x[5 * (f % 3) + i, 4 * (f // 3) + j] + 1.0
        } } } }""",
    "a tail in a loop of its own": """
        for i in 0..12 parallel {
          for j in 0..4 vector { y[i, j] = x[i, j] + 1.0 }
          for j in 0..4 { y[i, j + 4] = x[i, j + 4] + 1.0 }
        }""",
}

UNSAFE = {
    "a stencil": """
        for i in 0..11 parallel { for j in 0..8 { y[i, j] = x[i, j] + x[i + 1, j] } }""",
    "a stencil backwards": """
        for i in 0..11 { for j in 0..8 { y[i + 1, j] = x[i, j] } }""",
    "the neighbours of a row": """
        for i in 0..12 { for j in 0..8 { y[i, j] = x[i, j] + x[i, (j + 1) % 8] } }""",
    "written, then read": """
        for i in 0..12 { for j in 0..8 {
          y[i, j] = 0.0
          y[i, j] = y[i, j] + x[i, j]
        } }""",
    "rows that overlap are computed twice": """
        for f in 0..3 parallel { for i in 0..5 { for j in 0..8 vector {
          y[min(5 * f, 7) + i, j] = x[min(5 * f, 7) + i, j] + 1.0
        } } }""",
    "overlapping steps": """
        for f in 0..3 { for i in 0..6 { for j in 0..8 { y[3 * f + i, j] = x[3 * f + i, j] + 1.0 } } }""",
    "a loop that the index does not know": """
        for k in 0..2 { for i in 0..12 { for j in 0..8 { y[i, j] = x[i, j] + 1.0 } } }""",
    "a remainder by a loop variable": """
        for f in 0..12 { for g in 0..8 { y[f, g % (f + 1)] = x[f, g % (f + 1)] + 1.0 } }""",
    "a part of a flat loop is missing": """
        for f in 0..192 { y[f // 16, f % 8] = x[f // 16, f % 8] + 1.0 }""",
    "every row reads all rows": """
        for i in 0..12 parallel { for j in 0..8 {
          alloc s: reg f32[1]
          s[0] = 0.0
          for k in 0..12 { s[0] += x[k, j] }
          y[i, j] = s[0]
        } }""",
    "reversed": """
        for i in 0..12 { for j in 0..8 { y[i, j] = x[11 - i, j] } }""",
    "a tail that starts too early": """
        for i in 0..12 parallel {
          for j in 0..5 { y[i, j] = x[i, j] + 1.0 }
          for j in 0..4 { y[i, j + 4] = x[i, j + 4] + 1.0 }
        }""",
}


def kernel(body: str) -> Func:
    return parse_kernel(
        "kernel @k(x: &f32[12, 8], y: &f32[12, 8]) dims() with {outputs=1} {" + body + "\n return\n}"
    )


@pytest.mark.parametrize("body", SAFE.values(), ids=SAFE)
def test_a_result_may_replace_what_is_read_before(body: str) -> None:
    func = kernel(body)
    assert overwritable(func) == ((0, 1),)
    x = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)
    apart, both = np.zeros_like(x), x.copy()
    run_kernel(func, [x, apart], {})
    run_kernel(func, [both, both], {})
    np.testing.assert_array_equal(both, apart)


@pytest.mark.parametrize("body", UNSAFE.values(), ids=UNSAFE)
def test_a_result_must_not_replace_what_is_read_later(body: str) -> None:
    assert overwritable(kernel(body)) == ()


def test_a_transposed_read_is_unsafe() -> None:
    text = "for i in 0..8 { for j in 0..8 { y[i, j] = x[j, i] } }"
    assert (
        overwritable(
            parse_kernel(
                f"kernel @k(x: &f32[8, 8], y: &f32[8, 8]) dims() with {{outputs=1}} {{{text}\n return\n}}"
            )
        )
        == ()
    )


def test_tensors_of_other_types_and_constants_stay() -> None:
    text = "for i in 0..8 { for j in 0..8 { y[i, j] = x[i, j] + w[i, j] + b[j] } }"
    args = "x: &f32[8, 8], w: &f32[8, 8], b: &f32[8], y: &f32[8, 8]"
    func = parse_kernel(f"kernel @k({args}) dims() with {{outputs=1, constants=(1,)}} {{{text}\n return\n}}")
    assert overwritable(func) == ((0, 3),)


def test_dims_need_not_be_known() -> None:
    row, column = "f // ((m + 3) // 4)", "4 * (f % ((m + 3) // 4)) + j"
    text = f"""for f in 0..n * ((m + 3) // 4) parallel {{ for j in 0..4 vector {{
        if {column} < m {{ y[{row}, {column}] = x[{row}, {column}] }} }} }}"""
    func = parse_kernel(
        f"kernel @k(x: &f32[n, m], y: &f32[n, m]) dims(n, m) with {{outputs=1}} {{{text}\n return\n}}"
    )
    assert overwritable(func) == ((0, 1),)


def test_flat_rows_of_unknown_lengths_need_no_long_proofs() -> None:
    line = "((n1 + 3) // 8 * ((n2 + 15) // 48))"
    body = "".join(
        f"""
        for c in 0..2 {{ for v in 0..16 vector {{
          y[({row}) // {line}, ({row}) % {line}, 16 * c + v] = x[({row}) // {line}, ({row}) % {line}, 16 * c + v] + 1
        }} }}"""
        for row in ("4 * i", "4 * i + 1", "4 * i + 2", "4 * i + 3")
    )
    func = parse_kernel(
        f"kernel @k(x: &f32[n0, {line}, 32], y: &f32[n0, {line}, 32]) dims(n0, n1, n2) with {{outputs=1}} {{"
        f" for i in 0..n0 * {line} // 4 {{ {body} }} return }}"
    )
    assert overwritable(func) == ((0, 1),)


@pytest.mark.parametrize(
    ("nest", "expected"),
    [
        ("for i in 0..12 { for j in 0..8 vector { y[i, j] = x[i, j] } }", (0, 1)),
        ("for i in 0..12 parallel { for j in 0..4 { y[i, j] = x[i, j]\n y[i, j + 4] = x[i, j + 4] } }", (0, 1)),
        ("for i in 0..12 { for j in 0..8 { y[i, j] = x[i, j] * 2.0 } }", None),
        ("for i in 0..12 { for j in 0..8 { y[i, j] = x[i, j]\n y[i, 0] = 1.0 } }", None),
        ("for i in 0..12 { for j in 0..7 { y[i, j] = x[i, j + 1] } }", None),
    ],
)
def test_nests_that_only_copy(nest: str, expected: tuple[int, int] | None) -> None:
    func = kernel(nest)
    assert copied(func, func.body.ops[0]) is None  # they may not be in the same memory
    func.info = replace(kernel_info(func), inplace=((0, 1),))
    assert copied(func, func.body.ops[0]) == expected
