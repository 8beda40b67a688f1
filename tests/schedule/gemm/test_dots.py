"""Products of bytes in groups: the schedule's program, and machine code that this machine can run, against int64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.schedule.scheduling import build, run
from tilewright.asm.parse import parse_assembly
from tilewright.asm.report import LoopReport, report_assembly
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.compilation import Compilation, Setting
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module
from tilewright.ir.dtype import from_numpy
from tilewright.ir.sym import sym, var
from tilewright.ir.types import BufferType, TensorType
from tilewright.loops.edit import extent_of, is_loop, kind_of, loop_var
from tilewright.loops.products import added_products
from tilewright.ops.contract import matmul_widening
from tilewright.ops.define import constant
from tilewright.ops.quant import conv_integer, matmul_integer
from tilewright.options import Options
from tilewright.passes import PassContext
from tilewright.target.named import parse_target

RNG = np.random.default_rng(7)
INSTRUCTIONS = {
    "cascadelake": "vpdpbusd",
    "x86-64-v4": "vpmaddwd",
    "zen3": "vpmaddwd",
    "x86-64-v3": "vpmaddwd",
    "neoverse-n1": "sdot",
}
SHAPES = [(1, 16, 16), (1, 64, 96), (7, 12, 16), (13, 24, 48), (5, 8, 33), (6, 8, 4), (6, 8, 1), (30, 40, 20)]


def integers(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def scheduled(
    a: np.ndarray, b: np.ndarray, machine: str, rows: bool = True, zero: int = 3
) -> tuple[Module, PassContext]:
    """The kernels of (a - 7) @ (b - zero) with constant b; without `rows` the number of rows is not known."""
    shape = tuple(map(sym, a.shape)) if rows else (var("rows", 1), sym(a.shape[1]))

    def body(x):
        return matmul_integer(x, constant(b), constant(a.dtype.type(7)), constant(b.dtype.type(zero)))

    module = build([TensorType(from_numpy(a.dtype), shape)], body)
    ctx = Compilation(module, Setting.of(Options(), parse_target(machine))).run("scheduled").context
    return module, ctx


def dots(module: Module) -> Iterator[tuple[Func, list]]:
    """The loops of kind `dot`, each with the loops around it up to the one that runs over groups."""
    for func in module.funcs.values():
        if func.level != "loops":
            continue
        for op in func.body.walk():
            if is_loop(op) and kind_of(op) == "dot":
                around = [op]
                while kind_of(around[-1]) != "serial":
                    around.append(around[-1].parent.parent)
                yield func, around


@pytest.mark.sweep
@pytest.mark.parametrize("machine", INSTRUCTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_program_means_the_product(shape, machine):
    m, k, n = shape
    for left, right, rows in ((np.uint8, np.int8, True), (np.int8, np.uint8, False)):
        a, b = integers(left, m, k), integers(right, k, n)
        module, _ = scheduled(a, b, machine, rows)
        assert any(dots(module)) == (n > 1)
        (found,) = run(module, [a])
        np.testing.assert_array_equal(found, (a.astype(np.int64) - 7) @ (b.astype(np.int64) - 3))


@pytest.mark.parametrize("machine", INSTRUCTIONS)
def test_weights_lie_in_groups_of_the_depth(machine):
    module, ctx = scheduled(integers(np.uint8, 9, 64), integers(np.int8, 64, 64), machine)
    group = ctx.target.dots[0].group
    ((_, loops),) = dots(module)
    assert extent_of(loops[0]) == group
    (right,) = [
        op
        for op in loops[0].walk()
        if op.name == "load"
        and {loop_var(o) for o in loops[:2]} <= op.attrs["idx"][-2].vars | op.attrs["idx"][-1].vars
    ]
    type = right.operands[0].type
    assert isinstance(type, BufferType)
    assert type.shape[-1] == group and type.dtype is ctx.target.dots[0].right
    assert right.attrs["idx"][-1] is loop_var(loops[0])
    assert "guard" not in right.attrs


def machine_loops(machine: str, m: int, k: int, n: int, zero: int = 3) -> list[tuple[int, LoopReport, int]]:
    """Innermost loops of products: multiplications that the program asks for, the report, and those in the code."""
    module, ctx = scheduled(integers(np.uint8, m, k), integers(np.int8, k, n), machine, zero=zero)
    found = []
    for func, loops in dots(module):
        text = assembly(kernel_ir(func, ctx.target).text, ctx.target, comments=True)
        report = next(r for r in report_assembly(text, ctx.target) if r.name == func.name)
        blocks = {block.label: block for f in parse_assembly(text) for block in f.blocks}
        vectors = 1
        for loop in loops[1:-1]:
            lanes = ctx.target.vector_bits // 32 if kind_of(loop) == "vector" else 1
            vectors *= -(-extent_of(loop).value // lanes)
        name = str(loop_var(loops[-1]))
        for loop in report.loops:
            if loop.name == name and loop.innermost:
                mnemonics = [i.mnemonic for i in blocks[loop.label].instructions]
                found.append((vectors, loop, mnemonics.count(INSTRUCTIONS[machine])))
    return found


@pytest.mark.parametrize("machine", INSTRUCTIONS)
@pytest.mark.parametrize("shape", [(128, 768, 768), (1, 256, 512)], ids=str)
def test_the_inner_loop_holds_what_its_tile_says(shape, machine):
    loops = machine_loops(machine, *shape)
    assert loops
    for vectors, loop, count in loops:
        effects = loop.effects
        assert count == vectors
        assert (effects.spills, effects.stores, effects.calls, effects.branches) == (0, 0, 0, 1)
        assert max(loop.widths) == parse_target(machine).vector_bits


@pytest.mark.parametrize("rows", [1, 2])
def test_weights_of_a_byte_are_widened_by_the_loads(rows):
    """Two MiB of them, which are in no second-level cache: half the bytes are read, by one instruction more."""
    ((vectors, loop, count),) = machine_loops("zen3", rows, 1024, 2048, zero=0)
    assert count == vectors
    assert loop.effects.spills == 0
    module, ctx = scheduled(integers(np.uint8, rows, 1024), integers(np.int8, 1024, 2048), "zen3", zero=0)
    ((func, _),) = dots(module)
    text = assembly(kernel_ir(func, ctx.target).text, ctx.target)
    widened = [line for line in text.splitlines() if "vpmovsxbw" in line]
    assert len(widened) == vectors // rows
    assert all("(" in line for line in widened), "memory is what they read"


@pytest.mark.parametrize("machine", ["zen3", "x86-64-v4"])
@pytest.mark.parametrize("shape", [(1, 64, 96), (7, 12, 16), (5, 8, 33)], ids=str)
def test_narrow_columns_are_added_up_in_groups(shape, machine):
    m, k, n = shape
    a, b = RNG.integers(-255, 256, (m, k)).astype(np.int16), integers(np.int8, k, n)
    module = build(
        [TensorType(from_numpy(a.dtype), tuple(map(sym, a.shape)))],
        lambda x: matmul_widening(x, constant(b), sums=dt.i32),
    )
    Compilation(module, Setting.of(Options(), parse_target(machine))).run("scheduled")
    assert any(dots(module))
    (found,) = run(module, [a])
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.sweep
@pytest.mark.parametrize("machine", INSTRUCTIONS)
@pytest.mark.parametrize(
    ("space", "kernel"), [((1, 40), (1, 8)), ((40, 1), (8, 1)), ((40, 1), (5, 1)), ((9, 40), (2, 8))]
)
def test_lines_of_an_image_are_multiplied_in_groups_along_any_axis(space, kernel, machine):
    """Filters are filled up to whole groups along the axis that has more than one element, and no further."""
    x, w = integers(np.uint8, 2, 1, *space), integers(np.int8, 16, 1, *kernel)
    strides = tuple(2 if n > 1 else 1 for n in space)
    module = build(
        [TensorType(dt.u8, (sym(2), sym(1), *map(sym, space)))],
        lambda x: conv_integer(x, constant(w), constant(np.uint8(7)), constant(np.int8(0)), strides=strides),
    )
    ctx = Compilation(module, Setting.of(Options(), parse_target(machine))).run("scheduled").context
    ((func, _),) = dots(module)
    (summed,) = added_products(func)
    group = ctx.target.dots[0].group
    terms = kernel[0] * -(-kernel[1] // group) * group if kernel[1] > 1 else -(-kernel[0] // group) * group
    (found,) = run(module, [x])
    assert found.size * terms <= summed.count.value < 1.2 * found.size * terms, "the last tile may overlap"
    windows = np.lib.stride_tricks.sliding_window_view(x[:, 0].astype(np.int64) - 7, kernel, axis=(1, 2))
    wanted = np.einsum("nhwkl,okl->nohw", windows[:, :: strides[0], :: strides[1]], w[:, 0].astype(np.int64))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.sweep
@pytest.mark.parametrize("machine", ["zen4", "sapphirerapids", "cascadelake", "zen3", "neoverse-n1"])
@pytest.mark.parametrize("width", [None, 9, 21])
@pytest.mark.parametrize("zero", [0, 93])
def test_windows_of_each_channel_are_summed_in_groups(zero, width, machine):
    """Where an instruction brings neighbours together; padding is outside of what is read."""
    x, w = integers(np.uint8, 1, 24, 5, width or 13), integers(np.int8, 24, 1, 3, 3)
    shape = (*map(sym, x.shape[:3]), sym(width) if width else var("width", 1))
    module = build(
        [TensorType(dt.u8, shape)],
        lambda x: conv_integer(
            x, constant(w), constant(np.uint8(zero)), constant(np.int8(0)),
            groups=24, pads_begin=(1, 1), pads_end=(1, 1),
        ),
    )  # fmt: skip
    Compilation(module, Setting.of(Options(), parse_target(machine))).run("scheduled")
    loops = [op for f in module.funcs.values() if f.level == "loops" for op in f.body.walk() if is_loop(op)]
    assert any(kind_of(o) == "dot" for o in loops) == (machine in ("zen4", "sapphirerapids"))
    centred = np.pad(x.astype(np.int64) - zero, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(centred, (3, 3), axis=(2, 3))
    (found,) = run(module, [x])
    np.testing.assert_array_equal(found, np.einsum("nchwkl,ckl->nchw", windows, w[:, 0].astype(np.int64)))
