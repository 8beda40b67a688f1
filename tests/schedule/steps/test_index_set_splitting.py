"""Loops cut where an index changes its form: right for any size, and whole vectors between the borders."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import tensor
from tilewright.loops.edit import enclosing_loops, extent_of, is_loop, kind_of, loop_var
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.spec import versions_of
from tilewright.ops import elementwise as ew
from tilewright.ops import view
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.schedule.steps.access import stride_in
from tilewright.target.host import host_target

H, W = var("h", 1), var("w", 1)
MODES = ("reflect", "edge", "wrap")
PADS = {"both ends": (3, 2), "one end": (0, 5), "the other end": (1, 0)}


def padded(mode: str, pads: tuple[int, int]) -> Callable[[Value], Value]:
    before, after = pads
    return lambda x: view.pad(x, before=(0, before, before), after=(0, after, after), mode=mode)


def data(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def by_numpy(x: np.ndarray, mode: str, pads: tuple[int, int]) -> np.ndarray:
    return np.pad(x, ((0, 0), pads, pads), mode=mode)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("width", [4, 15, 16, 17, 64])
@pytest.mark.parametrize("pads", PADS.values(), ids=PADS)
@pytest.mark.parametrize("mode", MODES)
def test_padding_of_known_size(mode: str, pads: tuple[int, int], width: int) -> None:
    x = data(2, 6, width)
    module, _ = oracle.agree([tensor(dt.f32, x.shape)], padded(mode, pads), [x])
    (found,) = oracle.run(module, [x])
    np.testing.assert_array_equal(found, by_numpy(x, mode, pads))


@lru_cache
def of_any_size(mode: str, pads: tuple[int, int]) -> Model:
    module = oracle.build([tensor(dt.f32, (2, H, W))], padded(mode, pads))
    return Model(compile_module(module, Options(), host_target()), 1)


@pytest.mark.sweep
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 3), (4, 5), (5, 4), (6, 7), (7, 16), (2, 40)])
@pytest.mark.parametrize("pads", PADS.values(), ids=PADS)
@pytest.mark.parametrize("mode", MODES)
def test_padding_of_any_size(mode: str, pads: tuple[int, int], size: tuple[int, int]) -> None:
    x = data(2, *size)
    (found,) = of_any_size(mode, pads)(x)
    np.testing.assert_array_equal(found, by_numpy(x, mode, pads))


def test_a_rotation_is_two_copies() -> None:
    x = data(3, 40)

    def rotated(x: Value) -> Value:
        twice = view.concat(x, x, axis=1)
        return view.slice_(twice, starts=(0, 11), sizes=(3, 40))

    module, _ = oracle.agree([tensor(dt.f32, (3, 40))], rotated, [x])
    (found,) = oracle.run(module, [x])
    np.testing.assert_array_equal(found, np.roll(x, -11, axis=1))


def kernel_of(module: Module) -> Func:
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


def long_pieces(kernel: Func) -> list[Op]:
    """Innermost vector loops that run more than once for a row."""
    return [
        op
        for op in versions_of(kernel.body)[0].walk()
        if is_loop(op) and op.attrs["kind"] == "vector" and extent_of(op) == 16
    ]


@pytest.mark.parametrize("target", ["zen3", "cascadelake"])
@pytest.mark.parametrize("size", [(112, 112), (H, W)], ids=["known", "any"])
@pytest.mark.parametrize("mode", MODES)
def test_vectors_between_borders_are_consecutive(mode: str, size: tuple[Sym, Sym], target: str) -> None:
    """No remainder, least or greatest value is computed for a lane: whole vectors are loaded as they lie."""
    module = oracle.build([tensor(dt.f32, (2, *map(sym, size)))], padded(mode, (3, 3)))
    oracle.scheduled(module, target)
    pieces = long_pieces(kernel_of(module))
    assert pieces
    for piece in pieces:
        (load,) = [op for op in piece.walk() if op.name == "load"]
        assert stride_in(load, loop_var(piece)) == 1
        assert not load.attrs.get("guard")
    steps = " ".join(kernel_info(kernel_of(module)).schedule)
    assert "split_range(" in steps


def test_indices_that_repeat_often_are_left_alone() -> None:
    module = oracle.build(
        [tensor(dt.f32, (3, 4))], lambda x: view.pad(x, before=(0, 40), after=(0, 40), mode="wrap")
    )
    oracle.scheduled(module)
    assert "split_range(" not in " ".join(kernel_info(kernel_of(module)).schedule)


# Cases: operands, or slices, of which one is read at a position


def backwards(axis: int, parts: int, width: int) -> Callable[[Value], Value]:
    """Slices of `width` elements of an axis, in the opposite order, and something computed from each."""

    def body(x: Value) -> Value:
        cuts = view.split(x, sizes=(width,) * parts, axis=axis)
        return ew.add(view.concat(*reversed(cuts), axis=axis), 1.0)

    return body


def test_long_pieces_are_each_shared_by_threads() -> None:
    """Though they stand beside each other: what is joined along the outermost axis of more than one element."""
    shapes = [(1, 64, 28, 28), (1, 96, 28, 28), (1, 2, 28, 28)]
    module = oracle.build([tensor(dt.f32, s) for s in shapes], lambda *xs: view.concat(*xs, axis=1))
    oracle.scheduled(module)
    nests = [op for op in kernel_of(module).body.ops if is_loop(op)]
    assert [kind_of(op) for op in nests if extent_of(op).value > 1][:3] == ["parallel", "parallel", "serial"]
    xs = [data(*s) for s in shapes]
    (found,) = oracle.run(module, xs)
    np.testing.assert_array_equal(found, np.concatenate(xs, 1))


@pytest.mark.sweep
@pytest.mark.parametrize("width", [1, 2, 16, 19])
@pytest.mark.parametrize("parts", [2, 5, 24])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_are_copied_each_by_a_loop(axis: int, parts: int, width: int) -> None:
    shape = [3, 4, 5]
    shape[axis] = parts * width
    x = data(*shape)
    module, _ = oracle.agree([tensor(dt.f32, shape)], backwards(axis, parts, width), [x])
    (found,) = oracle.run(module, [x])
    order = np.arange(parts * width).reshape(parts, width)[::-1].ravel()
    np.testing.assert_array_equal(found, np.take(x, order, axis) + 1)
    names = [op.name for op in kernel_of(module).body.walk()]
    is_short = parts * width * math.prod(shape[axis + 1 :]) < 96
    assert ("select" in names) == (parts < 5 and is_short), "few cases of short runs are picked among"


def test_operands_of_unknown_sizes_are_copied_each_by_a_loop() -> None:
    lengths = [var(f"n{k}", 0) for k in range(6)]
    sizes = [3, 0, 1, 40, 17, 2]
    types = [tensor(dt.f32, (2, n, 3)) for n in lengths]
    arrays = [data(2, n, 3) + 100 * k for k, n in enumerate(sizes)]
    module, _ = oracle.agree(types, lambda *xs: view.concat(*xs, axis=1), arrays)
    (found,) = oracle.run(module, arrays)
    np.testing.assert_array_equal(found, np.concatenate(arrays, axis=1))
    assert not any(op.name == "select" for op in kernel_of(module).body.walk())


@pytest.mark.sweep
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("sizes", [(3, 2), (1, 2, 3), (4, 0, 1, 2, 5, 3, 1)])
def test_long_operands_are_read_behind_a_pointer(sizes: tuple[int, ...], axis: int) -> None:
    """A loop over operands that hold many elements each stays one loop, and its threads share it."""
    shapes = [(*(2, 3)[:axis], n, *(2, 3)[axis:], 4, 64) for n in sizes]
    arrays = [data(*shape) + 1000 * k for k, shape in enumerate(shapes)]
    types = [tensor(dt.f32, shape) for shape in shapes]

    def body(*xs: Value) -> Value:
        return ew.mul(view.concat(*xs, axis=axis), 2.0)

    module, _ = oracle.agree(types, body, arrays)
    kernel = kernel_of(module)
    assert sum(is_loop(op) for op in kernel.body.ops) == 1
    text = kernel_ir(kernel, host_target()).text.split(".task(")[0]
    assert len(re.findall(r"= load <", text)) == 1, "one vector is read, whatever the number of operands"
    assert "tw_other" not in text, "what is chosen needs no condition"
    artifact = compile_module(oracle.build(types, body), Options(threads=2), host_target())
    (found,) = Model(artifact, threads=2)(*arrays)
    np.testing.assert_array_equal(found, 2 * np.concatenate(arrays, axis))


@pytest.mark.parametrize("dtype", [dt.f16, dt.i8, dt.bool_])
def test_chosen_elements_are_of_any_type(dtype: DType) -> None:
    numpy_type = np.bool_ if dtype is dt.bool_ else dtype.storage
    arrays = [(data(2, n, 37) % (k + 5)).astype(numpy_type) for k, n in enumerate((3, 1, 2))]
    types = [tensor(dtype, a.shape) for a in arrays]
    artifact = compile_module(
        oracle.build(types, lambda *xs: view.concat(*xs, axis=1)), Options(threads=1), host_target()
    )
    (found,) = Model(artifact, threads=1)(*arrays)
    np.testing.assert_array_equal(found, np.concatenate(arrays, axis=1))


def test_an_operand_that_is_padded_is_chosen_with_its_condition() -> None:
    a, b = data(2, 3, 40), data(2, 5, 40)
    types = [tensor(dt.f32, a.shape), tensor(dt.f32, b.shape)]

    def body(x: Value, y: Value) -> Value:
        padded = view.pad(x, before=(0, 1, 0), after=(0, 1, 0), value=7.0)
        return view.concat(padded, y, axis=1)

    artifact = compile_module(oracle.build(types, body), Options(threads=1), host_target())
    (found,) = Model(artifact, threads=1)(a, b)
    padded = np.pad(a, ((0, 0), (1, 1), (0, 0)), constant_values=7.0)
    np.testing.assert_array_equal(found, np.concatenate([padded, b], axis=1))


def test_what_is_computed_of_one_operand_is_not_computed_for_the_other() -> None:
    """Keys of the past, and the rotated ones of new tokens."""
    past, new = var("p", 0), var("t", 0)

    def body(old: Value, x: Value) -> Value:
        return view.concat(old, ew.max_(ew.mul(x, 0.5), 0.25), axis=2)

    types = [tensor(dt.f32, (2, 4, n, 16)) for n in (past, new)]
    for lengths in ((5, 1), (0, 3), (4, 0), (0, 0)):
        arrays = [data(2, 4, n, 16) for n in lengths]
        module, _ = oracle.agree(types, body, arrays)
        (found,) = oracle.run(module, arrays)
        wanted = np.concatenate([arrays[0], np.maximum(arrays[1] * 0.5, 0.25)], axis=2)
        np.testing.assert_array_equal(found, wanted)
    stores = [op for op in kernel_of(module).body.walk() if op.name == "store"]
    computed = [any(o.name == "max" for o in enclosing_loops(op)[-1].walk()) for op in stores]
    assert sorted(computed) == [False, True], "the past is copied by a loop that computes nothing"


def test_work_that_is_much_code_is_not_repeated_for_each_case() -> None:
    def long(*xs: Value) -> Value:
        y = view.concat(*xs, axis=0)
        for k in range(20):
            y = ew.max_(ew.mul(y, float(k + 2)), 0.5)
        return y

    module = oracle.build([tensor(dt.f32, (4, 16))] * 60, long)
    oracle.scheduled(module)
    stores = [op for op in kernel_of(module).body.walk() if op.name == "store"]
    assert len(stores) == 1


@pytest.mark.parametrize("length", [sym(16000), var("n", 1)], ids=["known", "any"])
@pytest.mark.parametrize("mode", MODES)
def test_a_long_line_is_padded_by_loops(mode: str, length: Sym) -> None:
    """A line that is cut for threads has its borders where the whole line has them."""
    module = oracle.build(
        [tensor(dt.f32, (1, length))], lambda x: view.pad(x, before=(0, 200), after=(0, 200), mode=mode)
    )
    x = data(1, 16000)
    wanted = oracle.expected(module, [x])
    oracle.scheduled(module)
    (found,) = oracle.run(module, [x])
    np.testing.assert_array_equal(found, wanted[0])
    strides = {
        stride_in(load, loop_var(piece))
        for piece in long_pieces(kernel_of(module))
        for load in piece.walk()
        if load.name == "load"
    }
    known = {"reflect": {1, -1}, "edge": {1, 0}, "wrap": {1}}
    assert strides <= ({sym(s) for s in known[mode]} | ({None} if not length.is_const else set()))
