"""What a program must obey: one broken program for each rule."""

import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Op
from tilewright.ir.diag import VerifyError
from tilewright.ir.sym import var
from tilewright.ir.text import parse_func
from tilewright.ir.types import ScalarType, tensor
from tilewright.ir.verify import Spec, scalar_op_rule, verify_func

GRAPH = """\
func @f(x: f32[n, 4], y: f32[n, 4]) -> (f32[n, 4]) {
  z = add(x, y) : f32[n, 4]
  u = fused(z) {kind="map"} : f32[n, 4] (a: f32[n, 4]) {
    b = neg(a) : f32[n, 4]
    yield b
  }
  w = mul(u, z) : f32[n, 4]
  return w
}
"""

KERNEL = """\
kernel @k(a: &f32[n], b: &f32[n]) dims(n) {
  for i in 0..n {
    bind j <= 9 = i64(a[i])
    b[j] = a[i] + a[j]
  }
  for i in 0..n {
    b[i] = 0.0
  }
  return
}
"""

ANY_LOOPS = Spec("loops", {n: lambda op: None for n in
                           ("for", "bind", "load", "store", "add", "cast", "const", "return")},
                 declared_dims=True)  # fmt: skip


def problem(func, spec=None):
    with pytest.raises(VerifyError) as e:
        verify_func(func, spec)
    return e.value


def test_legal_programs_pass():
    verify_func(parse_func(GRAPH))
    verify_func(parse_func(KERNEL), ANY_LOOPS)


def test_the_error_names_func_op_line_and_origin():
    func = parse_func(GRAPH, file="g.tw")
    add = func.body.ops[0]
    func.body.ops.remove(add)
    func.body.ops.insert(2, add)
    e = problem(func)
    assert str(e) == (
        "fused: 'z' is used before it is defined\n"
        '    u = fused(z) {kind="map"} : f32[n, 4] (a: f32[n, 4]) {\n'
        "  where: @f, line 2 of its text, from g.tw:3"
    )


def test_a_value_of_a_nested_block_is_not_visible_outside():
    func = parse_func(GRAPH)
    inner = func.body.ops[1].blocks[0].ops[0].result
    mul = func.body.ops[2]
    mul.set_operands([inner, inner])
    assert problem(func).what.startswith("mul: 'b' is not visible here: it belongs to a block that has ended")


def test_an_op_does_not_read_its_own_result():
    func = parse_func(GRAPH)
    add = func.body.ops[0]
    add.set_operands([add.result, add.result])
    assert "add: 'z' is used before it is defined" in problem(func).what


def test_values_of_another_function_are_not_visible():
    func, other = parse_func(GRAPH), parse_func(GRAPH)
    func.body.ops[0].set_operands([other.args[0], func.args[1]])
    assert "'x' is used before it is defined" in problem(func).what


def test_parents():
    func = parse_func(GRAPH)
    func.body.ops[0].parent = None
    assert "add: the op does not have its block as its parent" in problem(func).what
    func = parse_func(GRAPH)
    func.body.ops[1].blocks[0].parent = func.body.ops[0]
    assert "fused: a block does not have the op as its parent" in problem(func).what
    func = parse_func(GRAPH)
    func.body.parent = None
    assert "the body does not have the function as its parent" in problem(func).what


def test_owners():
    func = parse_func(GRAPH)
    func.body.ops[0].results[0].owner = func.body.ops[1]
    assert "add: a result does not have the op as its owner" in problem(func).what
    func = parse_func(GRAPH)
    func.args[0].owner = func.body.ops[1]
    assert "argument x does not have its block as its owner" in problem(func).what


def test_users_must_be_listed():
    func = parse_func(GRAPH)
    x = func.args[0]
    x.users.clear()
    assert problem(func).what.startswith("add: 'x' does not list this op as its user\n    z = add(x, y)")


def test_listed_users_must_read_the_value():
    func = parse_func(GRAPH)
    func.body.ops[0].result.users.append(func.body.ops[-1])
    assert "add: 'z' lists return as its user, which does not read it" in problem(func).what


def test_each_slot_counts_as_a_use():
    func = parse_func(GRAPH.replace("add(x, y)", "add(x, x)"))
    assert len(func.args[0].users) == 2
    func.args[0].users.pop()
    assert "'x' does not list this op as its user" in problem(func).what


def test_terminators():
    func = parse_func(GRAPH)
    func.body.ops.pop().drop()
    assert "the function does not end in a return" in problem(func).what
    func = parse_func(GRAPH)
    Builder(func.body).emit("return")
    assert "return: a return is the last op of its block" in problem(func).what
    func = parse_func(GRAPH.replace("yield b", "return b"))
    assert "return: a return ends a function, a yield a nested block" in problem(func).what
    func = parse_func(GRAPH.replace("return w", "yield w").replace(" -> (f32[n, 4])", "", 1))
    assert "yield: a return ends a function, a yield a nested block" in problem(func).what


def test_ops_of_another_level():
    func = parse_func(KERNEL)
    assert (
        "store: level 'loops' has no such op"
        in problem(func, Spec("loops", {k: v for k, v in ANY_LOOPS.ops.items() if k != "store"})).what
    )


def test_rules_of_ops_and_functions():
    func = parse_func(KERNEL)
    rules = dict(ANY_LOOPS.ops)
    rules["cast"] = lambda op: "casts are not for today" if op.result.type == ScalarType(dt.i64) else None
    e = problem(func, Spec("loops", rules))
    assert e.what == "cast: casts are not for today\n    bind j <= 9 = i64(a[i])"
    assert e.where == "@k, line 3 of its text, from text:3"
    e = problem(func, Spec("loops", ANY_LOOPS.ops, lambda f: f"{len(f.args)} arguments are too many"))
    assert (e.what, e.where) == ("2 arguments are too many", "@k")


def test_variables_must_be_declared():
    func = parse_func(KERNEL.replace("b[i] = 0.0", "b[j] = 0.0"))
    assert "store: idx: variable 'j' is not declared here" in problem(func, ANY_LOOPS).what
    func = parse_func(KERNEL.replace("for i in 0..n", "for i in 0..m", 1))
    assert "for: extent: variable 'm' is not declared here" in problem(func, ANY_LOOPS).what
    func = parse_func(KERNEL.replace("b: &f32[n]", "b: &f32[2*n + m]"))
    assert "type: variable 'm' is not declared here" in problem(func, ANY_LOOPS).what
    verify_func(func)  # a level that does not ask for declarations


def test_a_variable_is_not_declared_twice():
    func = parse_func(KERNEL.replace("bind j <= 9", "bind i <= 9"))
    assert "bind: variable i is declared already" in problem(func).what
    func = parse_func(KERNEL)
    func.dims = (var("n"), var("n", 1))
    assert "dim n is declared twice" in problem(func).what


def test_a_name_has_one_meaning():
    func = parse_func(KERNEL)
    store = func.body.ops[1].blocks[0].ops[-1]
    store.attrs["idx"] = (var("i", 0, 3),)
    assert "store: idx: there are two variables 'i', with different bounds" in problem(func).what


def test_dims_and_loop_variables_are_variables():
    func = parse_func(KERNEL)
    func.dims = (var("n") + 1,)
    assert "'dims' is not a tuple of variables" in problem(func).what
    func = parse_func(KERNEL)
    func.body.ops[0].attrs["var"] = var("i") + 1
    assert "for: the attribute 'var' is not a variable" in problem(func).what


def test_types_are_types():
    func = Func("f", Block())
    func.body.append(Op("odd", [], ["f32"]))
    Builder(func.body).emit("return")
    assert "odd: 'f32' is no type of a value" in problem(func).what


@pytest.mark.parametrize(
    ("name", "operands", "result", "attrs", "message"),
    [
        ("add", [dt.f32, dt.f32], dt.f32, {}, None),
        ("lt", [dt.f32, dt.f32], dt.bool_, {}, None),
        ("select", [dt.bool_, dt.i8, dt.i8], dt.i8, {}, None),
        ("add", [dt.f32], dt.f32, {}, "takes 2 scalars, not (f32)"),
        ("add", [dt.f32, dt.f64], dt.f32, {}, "operands have different dtypes: f32, f64"),
        ("add", [dt.f32, dt.f32], dt.f64, {}, "the result is f32, not f64"),
        ("lt", [dt.f32, dt.f32], dt.f32, {}, "the result is bool, not f32"),
        ("select", [dt.f32, dt.f32, dt.f32], dt.f32, {}, "the condition is f32, not bool"),
        ("exp", [dt.f32], dt.f32, {"fast": True}, "has one result, no attributes and no blocks"),
    ],
)
def test_scalar_op_rule(name, operands, result, attrs, message):
    block = Block([ScalarType(d) for d in operands])
    assert scalar_op_rule(Op(name, block.args, [ScalarType(result)], attrs)) == message


def test_scalar_op_rule_wants_scalars():
    block = Block([tensor(dt.f32, [2])])
    assert scalar_op_rule(Op("exp", block.args, [ScalarType(dt.f32)])) == "takes 1 scalars, not (f32[2])"


def test_a_program_that_cannot_be_printed_is_reported_all_the_same():
    func = parse_func(GRAPH)
    func.body.ops[0].attrs["x"] = object()
    func.body.ops[0].parent = None
    e = problem(func)
    assert "the op does not have its block as its parent" in e.what and e.where == "@f, from text:2"


@pytest.mark.parametrize("size", ["9223372036854775807*n", "n * 1099511627776 // 3", "(n // 2) % 9223372036854775808"])
def test_expressions_stay_within_64_bits(size: str) -> None:
    func = parse_func(KERNEL.replace("for i in 0..n {", f"for i in 0..{size} {{", 1))
    message = problem(func, ANY_LOOPS).what
    assert message.startswith("for: extent: the values of '") and "' need more than 64 bits" in message
    func = parse_func(KERNEL.replace("b: &f32[n]", f"b: &f32[{size}]"))
    assert "type: the values of '" in problem(func, ANY_LOOPS).what
