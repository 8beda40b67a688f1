"""The rules of the loops level: each broken once."""

from __future__ import annotations

import re

import pytest

from tests.loops import programs
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op
from tilewright.ir.diag import TextError, VerifyError
from tilewright.ir.sym import Sym, ge0, sym, var
from tilewright.ir.text import parse_func, print_func
from tilewright.ir.types import ScalarType, buffer
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import KernelInfo, parse_kernel
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.loops.storage.packing import Packing
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder

F64 = ScalarType(dt.f64)


@pytest.mark.parametrize(
    "func", [programs.matmul(3, 4, 5), programs.convolution(2, 2, 4, 3, 1)], ids=["matmul", "convolution"]
)
def test_lowered_kernels_are_legal(func: programs.Func) -> None:
    verify_func(func, LOOPS_SPEC)


def test_condition_on_indices_is_a_bool() -> None:
    """As `concat` of tensors of any dtype makes them, to choose an operand."""
    text = "kernel @k(y: &f32[10]) dims() with {outputs=1} {\n  for i in 0..10 {\n"
    text += "    y[i] = select(index.bool(i < 5), f32(1.0), f32(2.0))\n  }\n  return\n}\n"
    verify_func(parse_kernel(text), LOOPS_SPEC)


def broken_loop(t: ScalarBuilder, **attrs: object) -> None:
    with t.loop(4):
        loop = t.builder.block.parent
    assert isinstance(loop, Op)
    loop.attrs.update(attrs)


def nested(t: ScalarBuilder, outer: str, inner: str) -> None:
    with t.loop(4, kind=outer), t.loop(4, kind=inner):
        pass


def shared_value(t: ScalarBuilder, y: Array, value: Scalar | int) -> None:
    """A loop that threads share in every iteration of another, and which stores a value."""
    with t.loop(3), t.loop(4, kind="parallel") as j:
        y.store((j,), value)


def shared_place(t: ScalarBuilder, y: Array, place: Sym) -> None:
    with t.loop(3), t.loop(4, kind="parallel") as j:
        y.store((place + j,), 1)


def loop_with(t: ScalarBuilder, op: Op, kind: str = "vector") -> None:
    with t.loop(4, kind=kind):
        t.builder.block.append(op)


BROKEN = {
    "kind 'fast' is none of serial, parallel, vector, unroll": lambda t, x, y: broken_loop(t, kind="fast"),
    "has no attribute speed": lambda t, x, y: broken_loop(t, speed=1),
    "a loop of kind unroll has a constant extent, not n": lambda t, x, y: broken_loop(
        t, kind="unroll", extent=var("n")
    ),
    "a vector loop has 1 to 64 lanes, not 65": lambda t, x, y: broken_loop(t, kind="vector", extent=sym(65)),
    "a vector loop holds no loops but unrolled ones": lambda t, x, y: nested(t, "vector", "serial"),
    "a vector loop holds no alloc": lambda t, x, y: loop_with(
        t, Op("alloc", [], [buffer(dt.f64, (4,), "reg")])
    ),
    "it is in the parallel loop 'i1'; around a parallel loop all are serial": lambda t, x, y: nested(
        t, "parallel", "parallel"
    ),
    "it is in the unroll loop 'i1'; around a parallel loop all are serial": lambda t, x, y: nested(
        t, "unroll", "parallel"
    ),
    "it uses a f64 from outside, which other threads do not have": lambda t, x, y: shared_value(t, y, x[0]),
    "it uses registers from outside, '', which other threads do not have": lambda t, x, y: shared_value(
        t, t.alloc(dt.f64, (4,), "reg"), 1
    ),
    "it uses 'b1' from outside, which other threads do not have": lambda t, x, y: shared_place(
        t, y, t.bind(t.index(2), "b")
    ),
    "the guard is a tuple of conditions": lambda t, x, y: t.builder.emit(
        "if", [], [], {"guard": 1}, [programs.Block()]
    ),
    "operands are bool scalars": lambda t, x, y: t.builder.emit(
        "if", [x[0].value], [], {"guard": ()}, [programs.Block()]
    ),
    "gives a buffer in one of scratch, reg": lambda t, x, y: t.alloc(dt.f64, (3,), "global"),
    "buffers in 'reg' have a constant size": lambda t, x, y: t.alloc(dt.f64, (var("n"),), "reg"),
    "needs 1 index expressions for &f64[8]": lambda t, x, y: t.builder.emit(
        "load", [x.value], [F64], {"idx": (sym(0), sym(0))}
    ),
    "the 'other' of a guarded load is a number": lambda t, x, y: t.builder.emit(
        "load", [x.value], [F64], {"idx": (sym(0),), "guard": (ge0(var("n") - 2),), "other": "zero"}
    ),
    "gives f64, not f32": lambda t, x, y: t.builder.emit(
        "load", [x.value], [ScalarType(dt.f32)], {"idx": (sym(0),)}
    ),
    "stores i64 into &f64[8]": lambda t, x, y: t.builder.emit(
        "store", [t.index(3).value, y.value], [], {"idx": (sym(0),)}
    ),
    "takes a one-dimensional register buffer": lambda t, x, y: t.builder.emit(
        "lanes_reduce", [x.value], [F64], {"combine": "add"}
    ),
    "'sub' is not an associative operation": lambda t, x, y: t.builder.emit(
        "lanes_reduce", [t.alloc(dt.f64, (4,), "reg").value], [F64], {"combine": "sub"}
    ),
    "the value is a number, not 'one'": lambda t, x, y: t.const("one", dt.f64),
    "gives an integer or a bool, not f64": lambda t, x, y: t.index(3, dt.f64),
    "takes an integer, not f64": lambda t, x, y: t.bind(x[0], "b"),
    "takes a bool, not f64": lambda t, x, y: t.check(x[0], "ExecutionError", "no"),
    "lacks the attribute message": lambda t, x, y: t.builder.emit(
        "check", [(x[0] < 1).value], [], {"kind": "E"}
    ),
    "has no such op": lambda t, x, y: t.builder.emit("matmul"),
    "converts a scalar to a scalar": lambda t, x, y: t.builder.emit("cast", [x.value], [F64]),
    "reinterprets a scalar as one of equally many bits": lambda t, x, y: t.bitcast(x[0], dt.i32),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_broken_rule(problem: str) -> None:
    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        BROKEN[problem](t, x, y)

    func = programs.kernel([(8,)], [(8,)], body, [var("n")])
    with pytest.raises(VerifyError) as caught:
        verify_func(func, LOOPS_SPEC)
    assert problem in str(caught.value)


def test_threads_may_share_a_loop_beside_others_and_in_serial_loops() -> None:
    def body(t: ScalarBuilder, x: Array, y: Array) -> None:
        sums = t.alloc(dt.f64, (8,))
        with t.loop(8, kind="parallel") as i:
            sums.store((i,), x[i])
        with t.loop(3) as s, t.loop(8, kind="parallel") as i:
            sums.store((i,), sums[i] + x[(i + s) % 8])
        with t.loop(8) as i:
            y.store((i,), sums[i])

    verify_func(programs.kernel([(8,)], [(8,)], body), LOOPS_SPEC)


def test_alloc_whose_size_depends_on_a_loop() -> None:
    def body(t: ScalarBuilder, y: Array) -> None:
        with t.loop(4) as i:
            t.alloc(dt.f64, (i + 1,))

    with pytest.raises(VerifyError, match="depends on a loop"):
        verify_func(programs.kernel([], [(8,)], body), LOOPS_SPEC)


def test_kernel_arguments_are_global_buffers() -> None:
    func = programs.kernel([(8,)], [(8,)], lambda t, x, y: None)
    func.args[0].type = buffer(dt.f64, (8,), "scratch")
    with pytest.raises(VerifyError, match="argument 'x0' is a global buffer"):
        verify_func(func, LOOPS_SPEC)


def test_variables_are_declared() -> None:
    func = programs.kernel([(8,)], [(8,)], lambda t, x, y: y.store((var("stray"),), 1))
    with pytest.raises(VerifyError, match="variable 'stray' is not declared here"):
        verify_func(func, LOOPS_SPEC)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ("outputs=3", "'outputs' is how many of the 2 arguments are results, not 3"),
        ("outputs=1, constants=(1,)", "'constants' are positions of operands, of which there are 1, not (1,)"),
        ("outputs=1, packed={1: Packing{factors=((),), order=(0,)}}", "'packed' are positions of operands"),
        ("outputs=1, inplace=((1, 0),)", "'inplace' are pairs of operand and result, not ((1, 0),)"),
        ('outputs=1, specialized_for={"m": 4}', "'specialized_for' names m, which is no dim"),
    ],
)
def test_what_is_known_of_a_kernel_fits_it(known: str, message: str) -> None:
    func = parse_kernel(f"kernel @k(x: &f32[n], y: &f32[n]) dims(n) with {{{known}}} {{\n  return\n}}\n")
    with pytest.raises(VerifyError, match=re.escape(message)):
        verify_func(func, LOOPS_SPEC)


def test_a_kernel_without_its_record_is_refused() -> None:
    func = parse_func("kernel @k(x: &f32[4]) dims() with {outputs=1} {\n  return\n}\n")
    with pytest.raises(VerifyError, match="what is known of a kernel is in its KernelInfo"):
        verify_func(func, LOOPS_SPEC)


@pytest.mark.parametrize("known", ["", "with {outputs=1, outptus=1}"])
def test_text_of_a_kernel_names_known_fields(known: str) -> None:
    with pytest.raises(TextError, match="this is no KernelInfo"):
        parse_kernel(f"kernel @k(x: &f32[4]) dims() {known} {{\n  return\n}}\n")


def test_all_that_is_known_of_a_kernel_is_in_its_text() -> None:
    info = KernelInfo(
        outputs=1, origin=("a b",), constants=(1,), packed={1: Packing(((), (4,)), (1, 0, 2))},
        specialized_for={"n": 4}, schedule=("split(i)",), work=5 * var("n"), inplace=((0, 2),),
    )  # fmt: skip
    func = programs.matmul(var("n"), 4, 4, dims=[var("n")])
    func.info = info
    again = parse_kernel(print_func(func))
    assert again.info == info and print_func(again) == print_func(func)
