"""Products by weights of at most 8 bits whose rows are rounded to one or two bytes: weights are taken apart in
registers, for one row as for many, and a row's bits do not depend on the others."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tests.schedule.gemm.test_rounded_rows import WITH_DOTS, bound, f32, product_of, scales, scheduled, spread
from tilewright.compiler import compile_module
from tilewright.cost.gemm.register_tile import GemmShape, columns_of_byte_panel
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Value
from tilewright.ir.sym import sym, var
from tilewright.ir.types import tensor
from tilewright.loops.edit import buffer_type
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

N = var("n", 0)
RNG = np.random.default_rng(31)


def only_kernel(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def is_of_bytes(kernel: Func) -> bool:
    """Whether rows are rounded to bytes, which codes without a sign multiply, for any number of them."""
    rounded = [step for step in kernel_info(kernel).schedule if "round_terms(" in step]
    return len(rounded) == 5 and not any("pack(" in step for step in kernel_info(kernel).schedule)


def tables(kernel: Func, groups: int) -> list[tuple[str, str]]:
    """Memory and dtype of what a kernel allocates with three axes or more, but for tables of so many groups: sums of
    groups, codes, panels."""
    types = [buffer_type(op.result) for op in kernel.body.walk() if op.name == "alloc"]
    return [(t.space, t.dtype.name) for t in types if t.rank > 2 and t.shape[-1] != groups]


@pytest.mark.sweep
@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("rows", [N, sym(1), sym(8), sym(40)], ids=str)
def test_sums_and_codes_are_in_registers_for_any_number_of_rows(rows: object, bits: int) -> None:
    kernel = scheduled(product_of("4 bits", 128, 768, rows), rounded_rows=bits)
    steps = [step.strip() for step in kernel_info(kernel).schedule]
    made = [step for step in steps if step.startswith("round_terms(")]
    assert len(made) == (5 if rows is N else 1), "with tiles for many rows, 8, 4, 2 and 1"
    assert all(("pieces=2" in step) == (bits == 16) for step in made)
    assert not any(step.startswith("pack(") for step in steps)
    memory = tables(kernel, 128 // 32)
    assert ("reg", "i32") in memory
    assert all(space == "reg" or dtype == "i8" for space, dtype in memory), "but for rows, which are bytes"


@pytest.mark.sweep(2)
@pytest.mark.parametrize("activations", ["int16", "int8"])
@pytest.mark.parametrize("kind", ["4 bits", "8 bits", "minima", "two levels", "scales of columns"])
def test_the_bits_of_a_row_do_not_depend_on_others(kind: str, activations: str) -> None:
    depth, columns = 128, 200
    module = product_of(kind, depth, columns)
    (w,) = oracle.expected(module, [np.eye(depth, dtype=np.float32)])
    model = Model(compile_module(module, Options(activations=activations), parse_target("host,l2=1024")), 2)
    assert is_of_bytes(only_kernel(module))
    x = RNG.standard_normal((41, depth)).astype(np.float32)
    (all_rows,) = model(x)
    off = np.abs(all_rows - x.astype(np.float64) @ w)
    assert np.all(
        off <= bound(x.astype(np.float64), w.astype(np.float64), 16 if activations == "int16" else 8)
    )
    for rows in (0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 14):
        (few,) = model(x[:rows])
        np.testing.assert_array_equal(few, all_rows[:rows])
    for number in (0, 40):
        np.testing.assert_array_equal(model(x[number:][:1])[0][0], all_rows[number])


@pytest.mark.parametrize(("columns", "panel"), [(2048, 64), (768, 96), (1000, 96), (96 * 7, 96), (80, 80)])
def test_panels_divide_columns_where_they_are_not_much_narrower(columns: int, panel: int) -> None:
    """Of panels that do not, the last one is multiplied as a whole, and results are stored under a condition."""
    target = parse_target("zen4")
    shape = GemmShape(rows=None, columns=columns // 16, depth=128, lanes=16)
    assert 16 * columns_of_byte_panel(1, shape, target) == panel


def test_special_rows_are_alone() -> None:
    """What is not finite stays in its own row, zeros give zeros, and the largest numbers stay finite."""
    module = product_of("8 bits", 64, 768)
    model = Model(compile_module(module, Options(activations="int16"), parse_target("host,l2=1024")), 1)
    assert is_of_bytes(only_kernel(module))
    x = RNG.standard_normal((6, 64)).astype(np.float32)
    (plain,) = model(x)
    x[1, 3], x[2, 40], x[3] = np.nan, -np.inf, 0
    x[4] *= 1e30
    (found,) = model(x)
    assert np.isnan(found[1]).all() and not np.isfinite(found[2]).any()
    assert not found[3].any() and np.isfinite(found[4]).all()
    np.testing.assert_array_equal(found[[0, 5]], plain[[0, 5]])


def test_halves_of_bytes_lie_four_apart() -> None:
    """One byte has two elements that instructions for groups of four take in two steps."""
    w = RNG.integers(0, 16, (768, 384)).astype(np.int8)

    def body(x: Value) -> Value:
        return contract.matmul(x, ew.mul(f32(w), spread(scales(24, 384), 768)))

    module = oracle.build([tensor(dt.f32, (N, 768))], body)
    (wanted,) = oracle.expected(module, [np.eye(768, dtype=np.float32)])
    options, target = Options(activations="int16"), parse_target("host,l2=1024,l3=2048")
    model = Model(compile_module(module, options, target), 1)
    kernel = only_kernel(module)
    (packing,) = (p for p in kernel_info(kernel).packed.values() if p.fields)
    assert packing.factors[0] == (2, 4) and packing.order[-2:] == (2, 1)
    x = RNG.standard_normal((9, 768)).astype(np.float32)
    exact = x.astype(np.float64) @ wanted
    assert np.all(np.abs(model(x)[0] - exact) <= bound(x.astype(np.float64), wanted.astype(np.float64), 16))


MORE_PLANES = [(0, 2, 16), (-2, 2, 16), (-4, 3, 32), (-16, 5, 32), (0, 6, 16)]


@pytest.mark.parametrize(
    ("low", "bits", "group"),
    [(0, 5, 32), (-32, 6, 16), *(pytest.param(*p, marks=pytest.mark.sweep(1)) for p in MORE_PLANES)],
)
def test_planes_are_joined_in_registers(low: int, bits: int, group: int) -> None:
    """Codes whose planes share bytes with others in different ways; one row has the bits that it has among many."""
    depth, columns = 96, 320
    w = RNG.integers(low, low + (1 << bits), (depth, columns)).astype(np.int8 if low else np.uint8)
    w[0, :2] = low, low + (1 << bits) - 1

    def body(x: Value) -> Value:
        return contract.matmul(x, ew.mul(f32(w), spread(scales(depth // group, columns), depth)))

    module = oracle.build([tensor(dt.f32, (N, depth))], body)
    (wanted,) = oracle.expected(module, [np.eye(depth, dtype=np.float32)])
    options, target = Options(activations="int16"), parse_target("host,l2=512,l3=1024")
    model = Model(compile_module(module, options, target), 1)
    kernel = only_kernel(module)
    assert sum("round_terms(" in step for step in kernel_info(kernel).schedule) == 5, "of few rows and of many"
    packed = [p.fields for p in kernel_info(kernel).packed.values() if not p.words]
    assert sorted(n for n in packed if n) == {2: [2], 3: [1, 2], 5: [1, 4], 6: [2, 4]}[bits]
    x = RNG.standard_normal((11, depth)).astype(np.float32)
    (all_rows,) = model(x)
    off = np.abs(all_rows - x.astype(np.float64) @ wanted)
    assert np.all(off <= bound(x.astype(np.float64), wanted.astype(np.float64), 16))
    for rows in (1, 2, 4, 8):
        np.testing.assert_array_equal(model(x[:rows])[0], all_rows[:rows])


def test_planes_longer_than_groups_are_multiplied_as_words() -> None:
    """A byte of 3 bits has an element of eight instructions, and groups of 16 end after four."""
    w = RNG.integers(0, 8, (96, 320)).astype(np.uint8)

    def body(x: Value) -> Value:
        return contract.matmul(x, ew.mul(f32(w), spread(scales(6, 320), 96)))

    module = oracle.build([tensor(dt.f32, (N, 96))], body)
    compile_module(module, Options(activations="int16"), parse_target("host,l2=512,l3=1024"))
    packings = kernel_info(only_kernel(module)).packed.values()
    assert [p.words for p in packings if p.fields] == [True, True]


def requests_of_few(dtype: dt.DType, target: str = WITH_DOTS, bits: int = 16) -> list[str]:
    """What kernels of one to eight rows ask memory for."""
    w = RNG.integers(0, 8, (128, 768)).astype(dtype.storage)

    def body(x: Value) -> Value:
        return contract.matmul(x, ew.mul(f32(w), spread(scales(4, 768), 128)))

    kernel = scheduled(oracle.build([tensor(dt.f32, (N, 128))], body), target, bits)
    steps = [step.strip() for step in kernel_info(kernel).schedule]
    few = steps[steps.index("otherwise {") :]
    return [step for step in few if step.startswith("prefetch(") and not step.startswith("prefetch(x")]


def test_panels_that_few_rows_read_are_asked_for() -> None:
    """Those of one or two rows some steps before, those of more, which read a panel in parts, a panel before."""
    asked = requests_of_few(dt.i4)
    assert sum("distance=" not in step for step in asked) >= 2
    assert sum("distance=" in step for step in asked) >= 2


@pytest.mark.parametrize("target, bits, lines", [("zen4", 8, 16), ("zen4", 16, 128), ("zen5", 8, 128)])
def test_how_far_ahead_narrow_weights_are_asked_for_is_a_fact(target: str, bits: int, lines: int) -> None:
    lines_of_step = 6 if bits == 8 else 4  # of panels with as many vectors of columns, each of 4 bytes
    asked = {step.partition("distance=")[2] for step in requests_of_few(dt.i4, target, bits) if "distance=" in step}
    assert asked == {f"{-(-lines // lines_of_step)})"}


def test_one_row_and_two_do_not_ask_for_whole_bytes() -> None:
    """Which they multiply as they come: requests would only take turns with loads."""
    asked = requests_of_few(dt.i8)
    assert len(asked) >= 2 and not any("distance=" in step for step in asked)


def test_depths_of_no_whole_groups_are_multiplied_as_words() -> None:
    steps = kernel_info(scheduled(product_of("scales of columns", 66, 96))).schedule
    assert any("round_terms(" in step for step in steps) and not any("pieces=" in step for step in steps)


def test_one_row_and_two_do_not_ask_for_bfloat16() -> None:
    """Which they only extend: four rows do, as they multiply in bursts."""
    w = RNG.standard_normal((768, 384)).astype(dt.bf16.storage)
    asked = {}
    for rows in (1, 2, 4):
        module = oracle.build([tensor(dt.f32, (sym(rows), 768))], lambda x: contract.matmul(x, f32(w)))
        steps = kernel_info(scheduled(module, "zen4,l2=1024,l3=2048")).schedule
        asked[rows] = sum("prefetch(" in step for step in steps)
    assert asked[1] == asked[2] == 0 < asked[4]
