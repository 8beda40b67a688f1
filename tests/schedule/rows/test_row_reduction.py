"""Row kernels: sums in several vectors, few passes over a row, no single elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.edit import body_of, buffer_type, enclosing_loops, extent_of, kind_of, loops_in
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce

RNG = np.random.default_rng(2)


def softmax(x: Value) -> Value:
    e = ew.exp(ew.sub(x, reduce.reduce_max(x, axes=(1,), keepdims=True)))
    return ew.div(e, reduce.reduce_sum(e, axes=(1,), keepdims=True))


def softmax_kernel(width: int, target: str = "x86-64-v3") -> Func:
    x = RNG.standard_normal((5, width)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, (5, width))], softmax, [x], target)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64-neon"])
@pytest.mark.parametrize("width", [3, 16, 40, 63, 64, 65, 127, 197, 384, 387])
def test_every_element_of_a_row_is_in_a_vector(width: int, target: str) -> None:
    innermost = [
        o
        for o in loops_in(softmax_kernel(width, target).body)
        if not any(c.name == "for" for c in body_of(o).ops)
    ]
    assert innermost and all(kind_of(o) == "vector" for o in innermost)


def test_sums_run_in_several_vectors() -> None:
    # four registers of the 16 where exponentials are summed: each needs several more while it is computed
    sums = [o for o in softmax_kernel(384).body.walk() if o.name == "lanes_reduce"]
    assert [o.operands[0].type.size.value for o in sums] == [64, 32]  # type: ignore[union-attr]


@pytest.mark.parametrize("width", [9, 17, 65, 513])
def test_one_element_left_over_is_no_vector(width: int) -> None:
    sums = [o for o in softmax_kernel(width).body.walk() if o.name == "lanes_reduce"]
    assert sums and all(o.operands[0].type.size.value > 1 for o in sums)  # type: ignore[union-attr]


def test_a_softmax_passes_over_its_row_three_times_without_scratch_for_it() -> None:
    kernel = softmax_kernel(384)
    (row,) = (o for o in loops_in(kernel.body) if kind_of(o) == "parallel")
    passes = [o for o in body_of(row).ops if o.name == "for" and kind_of(o) == "serial"]
    assert [extent_of(o).value for o in passes] == [6, 12, 24]
    sizes = [o.result.type.size.value for o in kernel.body.walk() if o.name == "alloc"]  # type: ignore[union-attr]
    assert max(sizes) <= 64


def sums_of(kernel: Func) -> list[int]:
    return [o.operands[0].type.size.value for o in kernel.body.walk() if o.name == "lanes_reduce"]  # type: ignore[union-attr]


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], target: str = "x86-64-v3") -> Func:
    x = RNG.standard_normal(shape).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, shape)], lambda v: reduce.reduce_sum(v, axes=axes), [x], target)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def test_images_are_summed_as_one_row() -> None:
    kernel = reduced((3, 8, 7, 7), (2, 3))
    assert sums_of(kernel) == [16]  # three iterations of 16 and one element, not seven of 4 and 3


def test_images_of_a_batch_that_is_summed_are_one_row_each() -> None:
    """Also where the whole sum is too long for one loop."""
    kernel = reduced((17, 2, 41, 65), (0, 2, 3))
    assert [d.value for d in buffer_type(kernel.args[0]).shape] == [17, 2, 41 * 65]


def test_very_long_rows_are_sums_of_sums() -> None:
    kernel = reduced((2, 512, 64), (1, 2))
    extents = [extent_of(o).value for o in loops_in(kernel.body)]
    assert 512 in extents


@pytest.mark.parametrize("target", ["x86-64-v3", "cascadelake", "aarch64-neon"])
@pytest.mark.parametrize("shape", [(4, 3, 64), (4, 3, 61), (2, 5, 3), (600, 2, 128)])
def test_sums_along_memory_and_over_outer_axes_copy_nothing(shape: tuple[int, ...], target: str) -> None:
    kernel = reduced(shape, (0, 2), target)
    scratch = [op for op in kernel.body.walk() if op.name == "alloc" and op.result.type.space == "scratch"]  # type: ignore[union-attr]
    assert sum(op.result.type.size.value for op in scratch) <= 1  # type: ignore[union-attr]
    if shape == (4, 3, 64):
        lanes = [o for o in kernel.body.walk() if o.name == "lanes_reduce"]
        assert len(lanes) == 1
        assert len([o for o in loops_in(kernel.body) if o in enclosing_loops(lanes[0])]) == 1


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("rows", [1, 37])
def test_reductions_of_a_whole_tensor_run_in_vectors_beside_what_follows_them(
    rows: int, keepdims: bool
) -> None:
    def scales(x: Value, factors: Value) -> tuple[Value, Value]:
        high, low = (f(x, axes=(0, 1), keepdims=keepdims) for f in (reduce.reduce_max, reduce.reduce_min))
        return ew.mul(ew.sub(high, low), factors), ew.add(high, low)

    arrays = [RNG.standard_normal(s).astype(np.float32) for s in ((rows, 384), (48,))]
    module, _ = oracle.agree([tensor(dt.f32, a.shape) for a in arrays], scales, arrays)
    innermost = [
        o
        for f in module.funcs.values()
        if f.level == "loops"
        for o in loops_in(f.body)
        if not any(c.name == "for" for c in body_of(o).ops)
    ]
    assert len(innermost) >= 3 and all(kind_of(o) == "vector" for o in innermost if extent_of(o) != 1)


def interleaved(kernel: Func) -> list[int]:
    """The factors by which rows were jammed."""
    steps = kernel_info(kernel).schedule
    jams = [k for k, step in enumerate(steps) if step.startswith("unroll_and_jam")]
    splits = [[step for step in steps[:k] if step.startswith("split")][-1] for k in jams]
    return [int(step.partition("factor=")[2].partition(",")[0]) for step in splits]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("target", ["x86-64-v3", "cascadelake"])
@pytest.mark.parametrize(
    ("rows", "width", "together"),
    [
        (131, 5, 4),
        (130, 40, 4),
        (65, 40, 2),
        (63, 40, 1),
        (128, 200, 4),
        (128, 300, 4),
        (128, 960, 2),
        (128, 1500, 2),
        (128, 1000, 1),
    ],
)
def test_short_rows_are_interleaved(rows: int, width: int, together: int, target: str) -> None:
    x = RNG.standard_normal((rows, width)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, x.shape)], softmax, [x], target)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert interleaved(kernel) == [together] * (together > 1)


@pytest.mark.parametrize(("rows", "together"), [(130, 2), (131, 1)])
def test_long_rows_from_memory_run_in_twos_only_where_these_lie_apart(
    rows: int, together: int
) -> None:
    module = oracle.build([tensor(dt.f32, (rows, 400))], softmax)
    oracle.scheduled(module, "x86-64-v3,l2=65536")
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    steps = kernel_info(kernel).schedule
    assert [step.startswith("unroll_and_jam") for step in steps].count(True) == together - 1
    assert any("strided_split" in step for step in steps) == (together == 2)


@pytest.mark.parametrize("rows", [1, 3, 4, 6])
def test_unknown_numbers_of_rows_leave_some_over(rows: int) -> None:
    x = RNG.standard_normal((rows, 40)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, (var("n", 1), 40))], softmax, [x])
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert interleaved(kernel) == [4]


def test_rows_of_unknown_length_run_one_by_one() -> None:
    x = RNG.standard_normal((70, 40)).astype(np.float32)
    module, ctx = oracle.agree([tensor(dt.f32, (70, var("n", 1)))], softmax, [x])
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert interleaved(kernel) == []
    assert any("rows run one by one: their length is not known" in str(r) for r in ctx.remarks)


@pytest.mark.sweep
@pytest.mark.parametrize("body", [softmax, lambda v: reduce.reduce_min(v, axes=(1,))], ids=["softmax", "least"])
@pytest.mark.parametrize("length", [1, 3, 16, 17, 33, 64, 65, 130])
@pytest.mark.parametrize("target", ["x86-64-v3", "cascadelake", "aarch64-neon"])
def test_short_rows_of_unknown_length(body: Callable[[Value], Value], length: int, target: str) -> None:
    x = RNG.standard_normal((9, length)).astype(np.float32)
    oracle.agree([tensor(dt.f32, (var("rows"), var("n")))], body, [x], target)


def test_rows_of_unknown_length_that_few_vectors_hold_are_gone_over_under_masks() -> None:
    """One vector at a time, whose lanes are reduced once, and four rows at a time."""
    x = RNG.standard_normal((9, 5)).astype(np.float32)
    types = [tensor(dt.f32, (var("rows"), var("n")))]
    module, _ = oracle.agree(types, lambda v: reduce.reduce_min(v, axes=(1,)), [x], "cascadelake")
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    long, short = (op for op in kernel.body.ops if op.name == "if")
    lanes = [
        [o.operands[0].type.size.value for o in part.walk() if o.name == "lanes_reduce"]  # type: ignore[union-attr]
        for part in (long, short)
    ]
    assert lanes == [[64, 16], [16] * 5]
    assert all(kind_of(o) == "vector" for o in innermost_of(kernel))


@pytest.mark.parametrize(("length", "lanes"), [(3, 4), (7, 8), (8, 8), (11, 16), (15, 16), (16, 16)])
def test_short_rows_are_one_vector(length: int, lanes: int) -> None:
    """Under a mask where they are no power of two: the lanes of several pieces would be reduced piece by piece."""
    assert set(sums_of(reduced((9, length), (1,), "cascadelake"))) == {lanes}


def test_sums_along_memory_read_what_each_row_has_one_of() -> None:
    """As the variance of channels reads their means: lanes run along the sum."""

    def body(x: Value, means: Value) -> Value:
        gaps = ew.sub(x, means)
        return reduce.reduce_sum(ew.mul(gaps, gaps), axes=(0, 2))

    x, means = RNG.standard_normal((4, 24, 64)).astype(np.float32), RNG.standard_normal((1, 24, 1)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, a.shape) for a in (x, means)], body, [x, means])
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert sums_of(kernel)


def test_interleaved_rows_have_fewer_sums_each() -> None:
    """Four registers of sums in all, as for one row."""
    x = RNG.standard_normal((128, 120)).astype(np.float32)
    module, _ = oracle.agree(
        [tensor(dt.f32, x.shape)], lambda v: reduce.reduce_sum(v, axes=(1,)), [x], "cascadelake"
    )
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert max(sums_of(kernel)) == 16


def innermost_of(kernel: Func) -> list[Op]:
    return [o for o in loops_in(kernel.body) if not any(c.name == "for" for c in body_of(o).walk())]


def scaled_softmax(x: Value) -> Value:
    """As the softmax of a model is computed: with a product for each element, not a quotient."""
    e = ew.exp(ew.sub(x, reduce.reduce_max(x, axes=(1,), keepdims=True)))
    return ew.mul(e, ew.div(1.0, reduce.reduce_sum(e, axes=(1,), keepdims=True)))


def test_one_long_row_is_passed_over_once_for_each_of_its_three_kernels() -> None:
    x = RNG.standard_normal((1, 20000)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, x.shape)], scaled_softmax, [x])
    kernels = [f for f in module.funcs.values() if f.level == "loops"]
    assert len(kernels) == 3  # threads share the last
    for kernel in kernels:
        assert all(kind_of(o) == "vector" for o in innermost_of(kernel))
    for kernel in kernels[:2]:  # the largest element; exponentials and their sum
        assert len([o for o in loops_in(kernel.body) if kind_of(o) == "serial"]) == 1


@pytest.mark.parametrize("shape", [(1, 20000), (37, 40), (5, 387)])
def test_sums_between_two_results_are_part_of_the_row(shape: tuple[int, int]) -> None:
    def body(x: Value) -> tuple[Value, Value]:
        e = ew.exp(x)
        return e, ew.div(1.0, reduce.reduce_sum(e, axes=(1,), keepdims=True))

    x = RNG.standard_normal(shape).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, shape)], body, [x])
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert all(kind_of(o) == "vector" for o in innermost_of(kernel))
    rows = [o for o in loops_in(kernel.body) if kind_of(o) == "parallel"]
    assert len(rows) == (shape[0] > 1)


def test_one_row_of_unknown_length() -> None:
    x = RNG.standard_normal((1, 517)).astype(np.float32)
    oracle.agree([tensor(dt.f32, (1, var("n", 1)))], scaled_softmax, [x])


@pytest.mark.parametrize(
    ("rows", "apart"),
    [(128, 0), (1024, 4), (1026, 2), (1025, 0)],
    ids=["in a cache", "from memory", "a multiple of two", "no multiple"],
)
def test_interleaved_rows_from_memory_lie_far_apart(rows: int, apart: int) -> None:
    module = oracle.build([tensor(dt.f32, (rows, 96))], softmax)
    oracle.scheduled(module, "x86-64-v3,l2=32768")
    (func,) = (f for name, f in module.funcs.items() if name != "main")
    steps = kernel_info(func).schedule
    assert any(step.startswith("unroll_and_jam") for step in steps)
    found = [step for step in steps if step.startswith("strided_split")]
    assert len(found) == (apart > 0) and all(step.endswith(f"parts={apart})") for step in found)


@pytest.mark.parametrize("size", [(0, 3), (1, 1), (5, 7), (28, 28), (160, 161)], ids=str)
@pytest.mark.parametrize("combine", [reduce.reduce_sum, reduce.reduce_max])
def test_images_of_unknown_size_are_one_line(combine: object, size: tuple[int, int]) -> None:
    """Lines of an image may be short; sums of long ones are cut into parts all the same. Those of small integers are
    exact in any order."""
    h, w = var("h", 0), var("w", 0)
    x = RNG.integers(-9, 10, (2, 3, *size)).astype(np.float32)

    def body(x: Value) -> Value:
        return combine(x, axes=(2, 3))  # type: ignore[operator, no-any-return]

    module, _ = oracle.agree([tensor(dt.f32, (2, 3, h, w))], body, [x])
    kernels = [f for f in module.funcs.values() if f.level == "loops"]
    steps = [step for kernel in kernels for step in kernel_info(kernel).schedule]
    assert any(step.startswith("collapse(r") for step in steps)
    parts = [step for step in steps if "factor=24576" in step]
    assert len(parts) == (1 if combine is reduce.reduce_sum else 0)


ALL = (0, 1, 2, 3)


def spread(x: Value) -> Value:
    return ew.div(x, ew.sub(reduce.reduce_max(x, axes=ALL), reduce.reduce_min(x, axes=ALL)))


@pytest.mark.parametrize(
    "body", [lambda x: reduce.reduce_max(x, axes=ALL), lambda x: reduce.reduce_sum(x, axes=ALL), spread]
)
def test_whole_tensors_are_lines_however_short_their_last_axis(body: Callable[[Value], Value]) -> None:
    """What is computed of each element in the same kernel, too."""
    x = RNG.standard_normal((13, 9, 1, 2)).astype(np.float32)
    module, _ = oracle.agree([tensor(dt.f32, x.shape)], body, [x])
    for kernel in (f for f in module.funcs.values() if f.level == "loops"):
        shapes = [[d for d in buffer_type(arg).shape if d != 1] for arg in kernel.args]
        assert all(len(shape) <= 1 for shape in shapes)
