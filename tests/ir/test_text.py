"""The text form of programs: what it looks like, and that it reads back."""

from dataclasses import dataclass

import numpy as np
import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.constants import ConstantArrays
from tilewright.ir.core import Block, Builder, Func, Module
from tilewright.ir.diag import InternalError, Loc, TextError
from tilewright.ir.sym import var
from tilewright.ir.text import Record, line_of, parse_func, parse_module, print_func, print_module
from tilewright.ir.types import BufferType, ScalarType, buffer, tensor

GRAPH = """\
constant @w: f32[2, 2] = [1.0, -2.5, inf, nan]
constant @big: f16[512, 2048]
constant @"a/b:c": i64[] = [-3]
constant @words: string[2] = ["a \\"b\\"", "\\u00e9"]
constant @flags: bool[2] = [true, false]
constant @none: f32[0] = []

func @main(x: f32[n, 2], y: bool[]) -> (f32[n, 2], f32[n // 2]) where(1 <= n <= 64) {
  w = constant @w : f32[2, 2]
  c = constant @"a/b:c" : i64[]
  h = matmul(x, w) {transpose_a=false, transpose_b=true} : f32[n, 2]
  a, b = fused(h, x) {shape=[n, 4], size=`n // 2`} : f32[n, 2], f32[n // 2] (p: f32[n, 2], q: f32[n, 2]) {
    v0 = add(p, q) : f32[n, 2]
    v1 = slice(v0) {starts=[0], strange=(1, 2.0, "q\\n", (), (1,), none, f32, -inf)} : f32[n // 2]
    yield v0, v1
  }
  "if"(y) {packed={0: (1, 2), "a": type(&f32[n])}} () {
    yield
  } () {
    yield
  }
  "constant"(y)
  return a, b
}
"""

KERNEL = """\
kernel @k0(x: &f32[n, 512], b: &f32[64], y: &f32[n, 64] strides(128, 1) offset(3)) dims(1 <= n) with {out=1} {
  for io in 0..(n + 5) // 6 parallel {
    for jo <= 7 in 0..8 with {note="x"} {
      alloc acc: reg f32[6, 16]
      for i in 0..6 unroll {
        for j in 0..16 vector {
          acc[i, j] = 0.0
        }
      }
      for k in 0..512 {
        for j in 0..16 vector {
          acc[0, j] += x[6*io, k if 6*io < n, k < 500 else 0.5] * b[j]
        }
      }
      if 6*io < n, jo < 4 {
        t: f32 = acc[0, 0] + b[16*jo]
        y[6*io, 16*jo] = t * (t - 1.0) + select(t < -1.0, 0.0 - t, exp(t))
      }
      bind -inf <= q <= 5 = i32(b[7])
      when bool(true), lanes_reduce.add(acc) > index.f32(q) {
        check f64(f32(1.0)) == f64(acc[0, 0]) else ExecutionError("no \\"luck\\"")
      }
      if n < 5 when b[0] < b[1] {
        y[0, 0 if n >= 2] = neg(max(b[0], b[q]))
      }
    }
  }
  return
}
"""


@pytest.mark.parametrize("text", [GRAPH, KERNEL])
def test_hand_written_programs_print_as_they_are_written(text):
    assert print_module(parse_module(text)) == text


def test_parsed_graph():
    module = parse_module(GRAPH)
    n = var("n", 1, 64)
    assert module.constants["w"].tolist()[0] == [1.0, -2.5] and np.isnan(module.constants["w"][1, 1])
    assert module.constants["big"].shape == (512, 2048) and module.constants["big"].strides == (0, 0)
    assert module.constants["big"].dtype == np.float16 and not module.constants["big"].any()
    assert module.constants["a/b:c"] == -3 and module.constants["a/b:c"].dtype == np.int64
    assert module.constants["words"].tolist() == ['a "b"', "é"]
    func = module.main
    assert func.level == "graph" and func.attrs == {}
    assert func.args[0].type == tensor(dt.f32, [n, 2]) and func.args[1].type == tensor(dt.bool_, [])
    w, _, h, fused, other, _, end = func.body.ops
    assert (w.name, w.attrs) == ("constant", {"name": "w"})
    assert h.operands == (func.args[0], w.result) and h.attrs == {"transpose_a": False, "transpose_b": True}
    assert h.loc == Loc(file="text", line=11)
    assert fused.attrs == {"shape": (n, 4), "size": n // 2}
    assert fused.blocks[0].ops[1].attrs["strange"] == (1, 2.0, "q\n", (), (1,), None, dt.f32, -np.inf)
    assert fused.blocks[0].ops[2].operands == (fused.blocks[0].ops[0].result, fused.blocks[0].ops[1].result)
    assert other.attrs == {"packed": {0: (1, 2), "a": buffer(dt.f32, [n])}} and len(other.blocks) == 2
    assert end.operands == fused.results and [v.name for v in fused.results] == ["a", "b"]


def test_parsed_kernel():
    func = parse_func(KERNEL)
    n = var("n", 1)
    assert func.level == "loops" and (func.dims, func.attrs) == ((n,), {"out": 1})
    y = func.args[2].type
    assert y == BufferType(dt.f32, (n, 64), (128, 1), "global", 3)
    (outer,) = (op for op in func.body.ops if op.name == "for")
    assert outer.attrs == {"var": var("io"), "extent": (n + 5) // 6, "kind": "parallel"}
    (jo,) = outer.blocks[0].ops
    assert jo.attrs == {"var": var("jo", 0, 7), "extent": 8, "kind": "serial", "note": "x"}
    assert " ".join(op.name for op in jo.blocks[0].ops) == (
        "alloc for for if load cast bind const lanes_reduce index gt if load load lt if"
    )
    accumulate = jo.blocks[0].ops[2].blocks[0].ops[0].blocks[0].ops
    assert [op.name for op in accumulate] == ["load", "load", "load", "mul", "add", "store"]
    old, x, b, product, total, store = accumulate
    assert product.operands == (x.result, b.result) and total.operands == (old.result, product.result)
    assert store.operands == (total.result, jo.blocks[0].ops[0].result) and store.attrs == old.attrs
    io, k = var("io"), var("k")
    assert x.attrs["idx"] == (6 * io, k) and len(x.attrs["guard"]) == 2 and x.attrs["other"] == 0.5
    arithmetic = jo.blocks[0].ops[3].blocks[0].ops
    assert " ".join(op.name for op in arithmetic) == (
        "load load add const sub mul const lt const sub exp select add store"
    )
    assert arithmetic[6].attrs == {"value": -1.0} and arithmetic[6].result.type == ScalarType(dt.f32)


def kernel_with(build):
    """A kernel of two f32 buffers a and b; `build(builder, a, b)` writes its body."""
    body = Block([buffer(dt.f32, [8]), buffer(dt.f32, [8])], ["a", "b"])
    func = Func("k", body, "loops")
    b = Builder(body)
    build(b, *body.args)
    b.emit("return")
    return func


def load(b, buf, i):
    return b.emit("load", [buf], [ScalarType(dt.f32)], {"idx": (var("z") * 0 + i,)}).result


def body_of(func):
    text = print_func(func)
    assert print_func(parse_func(text)) == text
    return [line.strip() for line in text.splitlines()[1:-2]]


def order_of(func):
    return [op.name for op in func.body.walk()]


F = ScalarType(dt.f32)


def test_a_load_is_not_moved_over_a_store():
    def build(b, a, c):
        early = load(b, a, 0)
        b.emit("store", [load(b, c, 1), a], [], {"idx": (var("z") * 0,)})
        b.emit("store", [early, c], [], {"idx": (var("z") * 0,)})

    func = kernel_with(build)
    assert body_of(func) == ["v0: f32 = a[0]", "a[0] = b[1]", "b[0] = v0"]
    assert order_of(parse_func(print_func(func))) == order_of(func)


def test_the_order_of_reads_is_free():
    def build(b, a, c):
        x, y = load(b, a, 0), load(b, c, 0)
        b.emit("store", [b.emit("sub", [y, x], [F]).result, a], [], {"idx": (var("z") * 0,)})

    assert body_of(kernel_with(build)) == ["a[0] = b[0] - a[0]"]


def test_an_outer_expression_is_not_pulled_into_a_loop():
    def build(b, a, c):
        x = load(b, a, 0)
        inner = Block()
        b.emit("for", [], [], {"var": var("i"), "extent": var("z") * 0 + 8, "kind": "serial"}, [inner])
        with b.inside(inner):
            b.emit("store", [x, c], [], {"idx": (var("i"),)})

    assert body_of(kernel_with(build)) == ["v0: f32 = a[0]", "for i in 0..8 {", "b[i] = v0", "}"]


def test_long_expressions_are_broken_into_lines():
    def build(b, a, c):
        total = load(b, a, 0)
        for _ in range(2000):
            total = b.emit("add", [total, load(b, a, 1)], [F]).result
            total = b.emit("exp", [total], [F]).result
        b.emit("store", [total, c], [], {"idx": (var("z") * 0,)})

    lines = body_of(kernel_with(build))
    assert len(lines) > 50 and max(map(len, lines)) < 200


def test_parentheses():
    def build(b, a, c):
        x, y, z = (load(b, a, i) for i in range(3))
        left = b.emit("sub", [b.emit("sub", [x, y], [F]).result, z], [F]).result
        x, y, z = (load(b, a, i) for i in range(3))
        right = b.emit("sub", [x, b.emit("sub", [y, z], [F]).result], [F]).result
        less = b.emit("lt", [left, right], [ScalarType(dt.bool_)]).result
        flag = b.emit("const", [], [ScalarType(dt.bool_)], {"value": True}).result
        same = b.emit("eq", [less, flag], [ScalarType(dt.bool_)]).result
        b.emit("check", [same], [], {"kind": "ExecutionError", "message": "m"})

    assert body_of(kernel_with(build)) == [
        'check (a[0] - a[1] - a[2] < a[0] - (a[1] - a[2])) == true else ExecutionError("m")'
    ]


def test_ops_that_do_not_fit_their_notation_print_in_the_general_one():
    def build(b, a, c):
        x = load(b, a, 0)
        b.emit("load", [a], [ScalarType(dt.f64)], {"idx": (var("z") * 0,)})  # not the dtype of the buffer
        b.emit("load", [a], [F], {"idx": ()})  # not its rank
        b.emit("add", [x, x, x], [F])
        b.emit("add", [x, x], [ScalarType(dt.i8)])
        b.emit("add", [x, x], [F], {"fast": True})
        b.emit("store", [x, c], [], {"idx": (var("z") * 0,), "volatile": True})
        b.emit("for", [], [], {"extent": 3}, [Block()])
        b.emit("if", [], [], {"guard": ()}, [Block()])
        b.emit("return", [x], [], {"early": 1})
        b.emit("odd name!", [x], [F])
        b.emit("loc", [x])
        b.emit("offset", [x])

    assert body_of(kernel_with(build)) == [
        "v0: f32 = a[0]",
        "v1 = load(a) {idx=[0]} : f64",
        "v2 = load(a) {idx=()} : f32",
        "v3 = add(v0, v0, v0) : f32",
        "v4 = add(v0, v0) : i8",
        "v5 = add(v0, v0) {fast=true} : f32",
        "store(v0, b) {idx=[0], volatile=true}",
        '"for"() {extent=3} () {',
        "}",
        '"if"() {guard=()} () {',
        "}",
        '"return"(v0) {early=1}',
        'v6 = "odd name!"(v0) : f32',
        '"loc"(v0)',
        '"offset"(v0)',
    ]


def test_names_are_made_unique_and_legal():
    module = Module()
    body = Block([tensor(dt.f32, [])] * 7, ["x", "x", "x_1", "/enc/layer.0/Add:0", "for", "7up", "v9"])
    module.add(Func("main", body))
    Builder(body).emit("return", body.args)
    text = print_module(module)
    assert (
        "(x: f32[], x_1: f32[], x_1_1: f32[], enc_layer_0_Add_0: f32[], for_1: f32[], n7up: f32[], v0: f32[])"
        in text
    )
    assert print_module(parse_module(text)) == text


def test_locations_print_on_request():
    text = (
        "kernel @k(a: &f32[8]) dims() {\n"
        '  for i in 0..8 loc("n1", "Relu") {\n'
        '    a[i] = max(a[i], 0.0) loc("", "Relu")\n'
        "  }\n"
        '  x = frob(a) : f32[8] loc("n\\"2", "") (y: f32) {\n'
        "    yield\n"
        "  }\n"
        "  return\n"
        "}\n"
    )
    module = parse_module(text, file="a.tw")
    loop, frob, end = module.funcs["k"].body.ops
    assert loop.loc == Loc("n1", "Relu") and {op.loc for op in loop.blocks[0].ops} == {Loc("", "Relu")}
    assert frob.loc == Loc('n"2') and end.loc == Loc(file="a.tw", line=8)
    assert print_module(module, locs=True) == text
    assert "loc(" not in print_module(module)


def test_one_name_means_another_variable_in_another_loop():
    text = KERNEL.replace(
        "alloc", "for k <= 3 in 0..4 {\n        acc2: f32 = b[2*k + 1]\n      }\n      alloc"
    )
    func = parse_func(text)
    inner = func.body.ops[0].blocks[0].ops[0].blocks[0].ops
    assert inner[0].attrs["var"] is var("k", 0, 3) and inner[3].attrs["var"] is var("k")
    (first,) = inner[0].blocks[0].ops
    assert first.attrs["idx"] == (2 * var("k", 0, 3) + 1,)
    assert print_func(parse_func(print_func(func))) == print_func(func)


def test_functions_of_other_levels():
    text = 'func "gpu" @f(x: f32) -> (f32) with {grid=(1, 2)} {\n  return x\n}\n'
    assert parse_func(text).level == "gpu"
    assert print_func(parse_func(text)) == text


@pytest.mark.parametrize("dtype", dt.ALL)
def test_constants_of_every_dtype_read_back(dtype, check_round_trip):
    values = {"bool": [True, False, True], "string": ["", "é\n", '"']}.get(dtype.kind, [0, 1, 3])
    if dtype.kind == "float":
        values = [0.25, -1.5, 3]
    elif dtype.kind == "int":
        values = [-(2 ** (dtype.bits - 1)), -1, 2 ** (dtype.bits - 1) - 1]
    elif dtype.kind == "uint":
        values = [0, 1, 2**dtype.bits - 1]
    wide = np.array(values, {"int": np.int64, "uint": np.uint64}.get(dtype.kind))
    array = wide.astype(dtype.storage)
    module = Module(constants=ConstantArrays({"c": array}))
    back = parse_module(check_round_trip(module)).constants["c"]
    assert back.dtype == array.dtype and repr(back.tolist()) == repr(array.tolist())


def test_f32_elements_read_back_exactly():
    array = np.array([0.1, 1e-45, 3.4028235e38, -0.0, np.pi], np.float32)
    back = parse_module(print_module(Module(constants=ConstantArrays({"c": array})))).constants["c"]
    assert back.tobytes() == array.tobytes()


def test_numpy_numbers_in_attributes():
    func = kernel_with(
        lambda b, a, c: b.emit("f", [a], [], {"x": np.float64(0.5), "y": np.int32(3), "z": np.bool_(True)})
    )
    assert body_of(func) == ["f(a) {x=0.5, y=3, z=true}"]


def test_an_attribute_without_a_text_form_is_an_error():
    func = kernel_with(lambda b, a, c: b.emit("f", [a], [], {"x": object()}))
    with pytest.raises(InternalError, match="an attribute of type object has no text form"):
        print_func(func)


def test_line_of_an_op():
    func = parse_func(KERNEL)
    io = func.body.ops[0]
    assert line_of(func, io) == (2, "for io in 0..(n + 5) // 6 parallel {")
    assert line_of(func, func.body.ops[-1])[1] == "return"


@dataclass(frozen=True)
class Tile:
    rows: int
    order: tuple[int, ...] = ()


def test_dataclasses_in_attributes():
    body = "with {t=Tile{rows=3, order=(1, 0)}, u={1: Tile{rows=4}}} {\n  return\n}\n"
    text = f"kernel @k() dims() {body}"
    unknown = parse_func(text)
    assert unknown.attrs["t"] == Record("Tile", (("rows", 3), ("order", (1, 0))))
    assert print_func(unknown) == text
    known = parse_func(text, records={"Tile": Tile})
    assert (known.attrs["t"], known.attrs["u"]) == (Tile(3, (1, 0)), {1: Tile(4)})
    assert print_func(known) == text
    with pytest.raises(TextError, match=r"this is no Tile: .*wors") as e:
        parse_func(text.replace("rows=3", "wors=3"), records={"Tile": Tile})
    assert e.value.where == "text:1:28"


def test_comments_and_layout_are_free():
    text = "# a program\nfunc @f(x: f32[n]) -> (f32[n]) { y = neg(x) : f32[n] # negative\n return y }"
    assert print_func(parse_func(text)) == (
        "func @f(x: f32[n]) -> (f32[n]) {\n  y = neg(x) : f32[n]\n  return y\n}\n"
    )
