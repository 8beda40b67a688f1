"""Loads and stores: tails, strides, gathers, guards, masks, private and scratch memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.codegen.native import kernel, run_kernel
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.diag import InternalError
from tilewright.ir.sym import Sym, ceildiv, lt, sym, var
from tilewright.ir.types import BufferType, buffer
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.target.host import host_target
from tilewright.target.named import NAMED
from tilewright.target.target import Target

n = var("n", 0)
GUARD = 64


def _fenced(size: int, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """An array between fences of a marker, and the whole memory, so that a stray store is seen."""
    whole = np.full(size + 2 * GUARD, 77, dtype)
    return whole, whole[GUARD : GUARD + size]


def _fences_hold(whole: np.ndarray) -> bool:
    return bool((whole[:GUARD] == 77).all() and (whole[-GUARD:] == 77).all())


@pytest.fixture(params=["host", "x86-64-v3"])
def target(request: pytest.FixtureRequest) -> Target:
    host = host_target()
    return host if request.param == "host" or host.arch != "x86_64" else NAMED["x86-64-v3"]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100])
def test_masked_tail(size: int, target: Target) -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(ceildiv(n, 16), "i") as i, t.loop(16, "j", "vector") as j, t.when(lt(16 * i + j, n)):
            a[1].store((16 * i + j,), a[0][16 * i + j] * 2.0)

    x = np.arange(size, dtype=np.float32)
    whole, y = _fenced(size)
    run_kernel(kernel([buffer(dt.f32, [n])] * 2, body, dims=[n]), [x, y], [size], target=target)
    np.testing.assert_array_equal(y, 2 * x)
    assert _fences_hold(whole)


@pytest.mark.parametrize("lanes", [8, 16, 32])
@pytest.mark.parametrize("first, last", [(0, 70), (5, 70), (40, 41), (33, 33), (-9, 80)])
def test_lanes_between_two_limits(lanes: int, first: int, last: int, target: Target) -> None:
    low, high = var("low"), var("high")

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(-(-70 // lanes), "i") as i, t.loop(lanes, "j", "vector") as j:
            at = lanes * i + j
            with t.when(lt(at, sym(70)), lt(low, at + 1), lt(at, high)):
                a[1].store((at,), a[0][at] * 2.0)

    x = np.arange(70, dtype=np.float32)
    whole, y = _fenced(70)
    func = kernel([buffer(dt.f32, [70])] * 2, body, dims=[low, high])
    run_kernel(func, [x, y], [first, last], target=target)
    held = (x >= first) & (x < last)
    np.testing.assert_array_equal(y, np.where(held, 2 * x, 77))
    assert _fences_hold(whole)


def test_conditions_of_lanes_are_bits_where_there_are_mask_registers() -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(ceildiv(n, 16), "i") as i, t.loop(16, "j", "vector") as j, t.when(lt(16 * i + j, n)):
            a[1].store((16 * i + j,), a[0][16 * i + j] * 2.0)

    func = kernel([buffer(dt.f32, [n])] * 2, body, dims=[n])
    bits = "bitcast i16"
    assert bits in kernel_ir(func, NAMED["x86-64-v4"]).text
    assert bits not in kernel_ir(func, NAMED["x86-64-v3"]).text


@pytest.mark.parametrize("extent", [1, 3, 7, 12, 24, 100])
def test_any_constant_extent_is_cut_into_vectors(extent: int) -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(3, "i") as i, t.loop(extent, "j", "vector") as j:
            a[1].store((i, j), a[0][i, j] + t.index(j).cast(dt.f32))

    x = np.random.default_rng(0).standard_normal((3, extent), np.float32)
    y = np.zeros_like(x)
    run_kernel(kernel([buffer(dt.f32, [3, extent])] * 2, body), [x, y])
    np.testing.assert_array_equal(y, x + np.arange(extent, dtype=np.float32))


@pytest.mark.parametrize(
    ("index", "number"),
    [
        (lambda i: i // (1 << 64), 1 << 64),
        (lambda i: i // 3**41, 3**41),
        (lambda i: i * (1 << 63), 1 << 63),
        (lambda i: i + (1 << 90), 1 << 90),
        (lambda i: s.minimum(i, 1 << 63), 1 << 63),
    ],
)
def test_an_index_that_needs_more_than_64_bits_is_an_error(index: Callable[[Sym], Sym], number: int) -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(n, "i") as i:
            a[1].store((index(i),), a[0][i])

    with pytest.raises(InternalError, match=f"the index {number} does not fit 64 bits"):
        kernel_ir(kernel([buffer(dt.f32, [n])] * 2, body, dims=[n]), NAMED["x86-64-v3"])


Index = Callable[[Sym], Sym]
PATTERNS: dict[str, Index] = {
    "constant": lambda j: sym(5),
    "forward": lambda j: j + 3,
    "backward": lambda j: 20 - j,
    "stride2": lambda j: 2 * j + 1,
    "stride3": lambda j: 3 * j,
    "stride4": lambda j: 4 * j + 3,
    "stride5": lambda j: 5 * j,
    "stride-2": lambda j: 40 - 2 * j,
    "floordiv": lambda j: j // 3,
    "mod": lambda j: (j + 5) % 7,
    "square": lambda j: j * j // 4,
    "signed": lambda j: (j - 8) // 3 + 10,
    "signed mod": lambda j: (j - 8) % 5,
}


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [dt.f32, dt.i8, dt.bool_, dt.f64, dt.bf16], ids=str)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_loads_of_every_pattern(pattern: str, dtype: dt.DType, target: Target) -> None:
    index = PATTERNS[pattern]

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", "vector") as j:
            a[1].store((j,), a[0][index(j)])

    where = [index(var("q", 0)).evaluate({"q": k}) for k in range(16)]
    size = max(where) + 1  # nothing readable after the last element that is asked for
    x = (np.arange(size) % 100).astype(dtype.storage)
    y = np.zeros(16, dtype.storage)
    run_kernel(kernel([buffer(dtype, [size]), buffer(dtype, [16])], body), [x, y], target=target)
    np.testing.assert_array_equal(y.astype(np.float32), x[where].astype(np.float32))


@pytest.mark.parametrize(
    "pattern",
    [p for p in PATTERNS if p not in ("constant", "floordiv", "mod", "square", "signed", "signed mod")],
)
@pytest.mark.parametrize("active", [0, 1, 9, 16])
def test_masked_accesses_of_every_pattern(pattern: str, active: int, target: Target) -> None:
    index = PATTERNS[pattern]

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", "vector") as j, t.when(lt(j, n)):
            a[1].store((index(j),), a[0][index(j)] + 1.0)

    size = 1 + max(index(var("q", 0)).evaluate({"q": k}) for k in range(16))
    x = np.arange(size, dtype=np.float32)
    whole, y = _fenced(size)
    expected = y.copy()
    for k in range(active):
        at = index(var("q", 0)).evaluate({"q": k})
        expected[at] = x[at] + 1
    run_kernel(kernel([buffer(dt.f32, [size])] * 2, body, dims=[n]), [x, y], [active], target=target)
    np.testing.assert_array_equal(y, expected)
    assert _fences_hold(whole)


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_masked_strides_are_loads_of_whole_vectors(name: str, stride: int) -> None:
    """The first and last windows of an image read every second element, some of them outside."""

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", "vector") as j:
            inside = (lt(0, j), lt(stride * j, n))
            a[1].store((j,), a[0].load((stride * j,), guard=inside, other=-1.0))

    func = kernel([buffer(dt.f32, [n]), buffer(dt.f32, [16])], body, dims=[n])
    text = kernel_ir(func, NAMED[name]).text
    assert text.count("call <16 x float> @llvm.masked.load") == stride
    assert "gather" not in text
    x, y = np.arange(2 * stride + 1, dtype=np.float32), np.zeros(16, np.float32)
    run_kernel(func, [x, y], [len(x)], target=NAMED["x86-64-v3"])
    np.testing.assert_array_equal(y, [-1.0, stride, 2 * stride] + [-1.0] * 13)


def test_strided_buffers_with_an_offset_and_symbolic_strides() -> None:
    m = var("m", 1)
    type = BufferType(dt.f32, (n, m), (sym(1), n), "global", sym(2))  # column by column, two elements in

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(n, "i") as i, t.loop(m, "j") as j:
            a[1].store((i, j), a[0][i, j])

    x = np.arange(2 + 5 * 7, dtype=np.float32)
    y = np.zeros((5, 7), np.float32)
    run_kernel(kernel([type, buffer(dt.f32, [n, m])], body, dims=[n, m]), [x, y], [5, 7])
    np.testing.assert_array_equal(y, x[2:].reshape(7, 5).T)


@pytest.mark.parametrize("kind", ["vector", "serial", "unroll"])
def test_guarded_loads_pad(kind: str) -> None:
    """Padding of 3 on the left and 5 on the right with a number; nothing outside is read."""

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", kind) as j:
            inside = (lt(2, j), lt(j - 3, 8))
            a[1].store((j,), a[0].load((j - 3,), guard=inside, other=-1.5))

    x = np.arange(8, dtype=np.float32)
    y = np.zeros(16, np.float32)
    run_kernel(kernel([buffer(dt.f32, [8]), buffer(dt.f32, [16])], body), [x, y])
    np.testing.assert_array_equal(y, np.pad(x, (3, 5), constant_values=-1.5))


@pytest.mark.parametrize("row", [0, 1])
def test_a_guard_for_all_lanes_reads_nothing_where_false(row: int) -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", "vector") as j:
            far = 1 << 40  # would fault
            value = a[0].load((far * n, j), guard=(lt(n, 1),), other=3)
            one = a[0].load((far * n, 2), guard=(lt(n, 1),), other=4)
            backward = a[0].load((far * n, 15 - j), guard=(lt(n, 1),), other=5)
            spread = a[0].load((far * n, 3 * j), guard=(lt(n, 1),), other=6)
            gathered = a[0].load((far * n, j * j), guard=(lt(n, 1),), other=7)
            for k, v in enumerate((value, one, backward, spread, gathered)):
                a[1].store((k, j), v)

    x = np.arange(256, dtype=np.int32).reshape(1, 256)
    y = np.zeros((5, 16), np.int32)
    run_kernel(kernel([buffer(dt.i32, [1, 256]), buffer(dt.i32, [5, 16])], body, dims=[n]), [x, y], [row])
    k = np.arange(16)
    real = np.stack([k, 0 * k + 2, 15 - k, 3 * k, k * k])
    np.testing.assert_array_equal(y, real if row == 0 else np.arange(3, 8)[:, None] + 0 * k)


def test_indices_from_data() -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", "vector") as j:
            k = t.bind(a[1][j], "k", 0, 99)
            a[2].store((j,), a[0][k, 2])

    x = np.random.default_rng(1).standard_normal((100, 3), np.float32)
    rows = np.random.default_rng(2).integers(0, 100, 16)
    y = np.zeros(16, np.float32)
    run_kernel(
        kernel([buffer(dt.f32, [100, 3]), buffer(dt.i64, [16]), buffer(dt.f32, [16])], body), [x, rows, y]
    )
    np.testing.assert_array_equal(y, x[rows, 2])


def test_scatter_through_data() -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", "vector") as j:
            k = t.bind(a[1][j], "k", 0, 15)
            a[2].store((k,), a[0][j])

    x = np.random.default_rng(1).standard_normal(16, np.float32)
    order = np.random.default_rng(2).permutation(16).astype(np.int32)
    y = np.zeros(16, np.float32)
    run_kernel(
        kernel([buffer(dt.f32, [16]), buffer(dt.i32, [16]), buffer(dt.f32, [16])], body), [x, order, y]
    )
    np.testing.assert_array_equal(y[order], x)


def test_each_lane_has_its_own_registers() -> None:
    """A reduction over rows inside of a vector loop over columns, with a condition that differs between
    lanes."""

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", "vector") as j:
            acc = t.alloc(dt.f32, (1,), "reg")
            acc.store((0,), 0.0)
            with t.loop(n, "k") as k, t.when(a[0][k, j] > 0.0):
                acc.store((0,), acc[0] + a[0][k, j])
            a[1].store((j,), acc[0])

    x = np.random.default_rng(1).standard_normal((9, 16), np.float32)
    y = np.zeros(16, np.float32)
    run_kernel(kernel([buffer(dt.f32, [n, 16]), buffer(dt.f32, [16])], body, dims=[n]), [x, y], [9])
    np.testing.assert_allclose(y, np.maximum(x, 0).sum(0), rtol=1e-6)


@pytest.mark.parametrize("lanes", [1, 3, 4, 12, 16, 32])
@pytest.mark.parametrize("combine", ["add", "max"])
def test_lanes_reduce(lanes: int, combine: str) -> None:
    from tilewright.ir.types import ScalarType
    from tilewright.ops.define.scalar_builder import Scalar

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        acc = t.alloc(dt.f32, (lanes,), "reg")
        with t.loop(lanes, "j", "vector") as j:
            acc.store((j,), a[0][0, j])
        with t.loop(5, "k") as k, t.loop(lanes, "j", "vector") as j:
            acc.store((j,), t.apply(combine, acc[j], a[0][k + 1, j]))
        op = t.builder.emit("lanes_reduce", [acc.value], [ScalarType(dt.f32)], {"combine": combine})
        a[1].store((0,), Scalar(t, op.result))

    x = np.random.default_rng(1).standard_normal((6, lanes), np.float32)
    y = np.zeros(1, np.float32)
    run_kernel(kernel([buffer(dt.f32, [6, lanes]), buffer(dt.f32, [1])], body), [x, y])
    expected = x.astype(np.float64).sum() if combine == "add" else x.max()
    np.testing.assert_allclose(y[0], expected, rtol=1e-5)


@pytest.mark.parametrize("combine", ["and", "or"])
def test_lanes_reduce_of_booleans(combine: str) -> None:
    from tilewright.ir.types import ScalarType
    from tilewright.ops.define.scalar_builder import Scalar

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(4, "i") as i:
            lanes = t.alloc(dt.bool_, (8,), "reg")
            with t.loop(8, "j", "vector") as j:
                lanes.store((j,), a[0][i, j])
            op = t.builder.emit("lanes_reduce", [lanes.value], [ScalarType(dt.bool_)], {"combine": combine})
            a[1].store((i,), Scalar(t, op.result))

    x = np.array([[False] * 8, [True] * 8, [True] + [False] * 7, [True] * 7 + [False]])
    y = np.zeros(4, bool)
    run_kernel(kernel([buffer(dt.bool_, [4, 8]), buffer(dt.bool_, [4])], body), [x, y])
    np.testing.assert_array_equal(y, x.all(1) if combine == "and" else x.any(1))


def test_scratch_memory_of_symbolic_size() -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(3, "i", "parallel") as i:
            first, second = t.alloc(dt.f32, (n,)), t.alloc(dt.f32, (n,))
            with t.loop(n, "j") as j:
                first.store((j,), a[0][i, j] + 1.0)
                second.store((j,), a[0][i, j] * 2.0)
            with t.loop(n, "j") as j:
                a[1].store((i, j), first[n - 1 - j] + second[j])

    x = np.random.default_rng(1).standard_normal((3, 21), np.float32)
    y = np.zeros_like(x)
    compiled, _ = run_kernel(
        kernel([buffer(dt.f32, [3, n])] * 2, body, dims=[n]), [x, y], [21], slices=[(0, 1), (1, 3)]
    )
    np.testing.assert_allclose(y, x[:, ::-1] + 1 + 2 * x, rtol=1e-6)
    assert compiled.scratch.evaluate({"n": 21}) == 256


def test_a_loop_that_lanes_cannot_run_runs_serially() -> None:
    """All iterations add to one element."""

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", "vector") as j:
            a[1].store((0,), a[1][0] + a[0][j])

    x = np.arange(16, dtype=np.float32)
    y = np.zeros(1, np.float32)
    run_kernel(kernel([buffer(dt.f32, [16]), buffer(dt.f32, [1])], body), [x, y])
    assert y[0] == 120


def test_four_bit_integers_take_a_byte() -> None:
    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with t.loop(16, "j", "vector") as j:
            a[1].store((j,), a[0][j] + 7)

    x = np.arange(-8, 8).astype(dt.i4.storage)
    y = np.zeros(16, dt.i4.storage)
    run_kernel(kernel([buffer(dt.i4, [16])] * 2, body), [x, y])
    assert [int(v) for v in y] == [(v + 7 + 8) % 16 - 8 for v in range(-8, 8)]


@pytest.mark.parametrize("step", [0, 1])
def test_conditions_and_indices_that_lose_the_lane_once_unrolled(step: int) -> None:
    """For u = 0, `u * j` is 0 in all lanes, though the expression mentions the lane."""

    def body(t: ScalarBuilder, a: list[Array]) -> None:
        with (
            t.loop(2, "u", "unroll") as u,
            t.loop(16, "j", "vector") as j,
            t.when(lt(u * j, n), lt(j, 16 * u + 20)),
        ):
            a[1].store((u, j), a[0][u * j])

    x, y = np.arange(16, dtype=np.float32), np.full((2, 16), -1, np.float32)
    run_kernel(kernel([buffer(dt.f32, [16]), buffer(dt.f32, [2, 16])], body, dims=[n]), [x, y], [5 * step])
    k = np.arange(16)
    expected = [np.where(0 * k < 5 * step, x[0], -1), np.where(k < 5 * step, x, -1)]
    np.testing.assert_array_equal(y, expected)
