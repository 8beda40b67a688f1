"""Rules and their driver."""

import numpy as np
import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module
from tilewright.ir.diag import InternalError, Loc, Remark
from tilewright.ir.notes import Outcome, RewriteNotes
from tilewright.ir.rewrite import (
    NoMatch,
    constant_array,
    defining,
    has_one_use,
    rewrite,
    rule,
)
from tilewright.ir.types import tensor

T = tensor(dt.f32, [4])


@rule("neg")
def double_negation(op, builder, ctx):
    inner = defining(op.operands[0], "neg")
    if inner is None:
        return NoMatch("its operand is not a negation")
    return inner.operands[0]


@rule("sub")
def subtraction_adds_negative(op, builder, ctx):
    a, b = op.operands
    minus = builder.emit("neg", [b], [b.type]).result
    return builder.emit("add", [a, minus], [op.result.type]).result


def graph(build):
    """A module whose @main has one argument; `build(builder, x)` gives the value to return."""
    module = Module()
    body = Block([T], ["x"])
    module.add(Func("main", body))
    b = Builder(body, module)
    b.emit("return", [build(b, body.args[0])])
    return module


def names(func):
    return [op.name for op in func.body.ops]


def users_are_consistent(func):
    live = list(func.body.walk())
    values = set(func.args) | {v for op in live for v in op.results}
    for v in values:
        slots = [op for op in live for o in op.operands if o is v]
        assert sorted(map(id, v.users)) == sorted(map(id, slots))
    assert all(o in values for op in live for o in op.operands)


def neg(b, v):
    return b.emit("neg", [v], [T]).result


def test_replaces_until_nothing_applies_and_erases_what_is_dead():
    def build(b, x):
        for _ in range(7):
            x = neg(b, x)
        return x

    module = graph(build)
    assert rewrite(module.main, [double_negation], module) == 3
    assert names(module.main) == ["neg", "return"]
    users_are_consistent(module.main)


def test_new_ops_go_where_the_old_one_was():
    def build(b, x):
        y = b.emit("sub", [x, x], [T]).result
        return b.emit("mul", [y, x], [T]).result

    module = graph(build)
    module.main.body.ops[0].results[0].name = "y"
    module.main.body.ops[0].loc = Loc("n0", "Sub")
    assert rewrite(module.main, [subtraction_adds_negative], module) == 1
    assert names(module.main) == ["neg", "add", "mul", "return"]
    add = module.main.body.ops[1]
    assert add.result.name == "y" and add.loc == Loc("n0", "Sub") and add.parent is module.main.body
    users_are_consistent(module.main)


def test_new_ops_are_visited_too():
    module = graph(lambda b, x: b.emit("sub", [x, neg(b, neg(b, neg(b, x)))], [T]).result)
    assert rewrite(module.main, [subtraction_adds_negative, double_negation], module) == 3
    assert names(module.main) == ["add", "return"]


def test_operands_that_are_read_elsewhere_stay():
    def build(b, x):
        once = neg(b, x)
        return b.emit("add", [neg(b, once), once], [T]).result

    module = graph(build)
    assert rewrite(module.main, [double_negation], module) == 1
    assert names(module.main) == ["neg", "add", "return"]


def test_nested_blocks_are_rewritten_and_outer_definers_die():
    module = Module()
    body = Block([T], ["x"])
    func = module.add(Func("main", body))
    b = Builder(body, module)
    outer = neg(b, body.args[0])
    region = Block()
    with b.inside(region):
        b.emit("yield", [neg(b, outer)])
    b.emit("return", [b.emit("region", [], [T], blocks=[region]).result])
    assert rewrite(func, [double_negation], module) == 1
    assert names(func) == ["region", "return"]
    assert [op.name for op in region.ops] == ["yield"] and region.ops[0].operands == (body.args[0],)
    users_are_consistent(func)


def test_a_rule_may_move_a_block():
    @rule("region")
    def rename(op, builder, ctx):
        return builder.emit("fused", op.operands, [op.result.type], blocks=op.blocks).result

    module = Module()
    body = Block([T], ["x"])
    func = module.add(Func("main", body))
    b = Builder(body, module)
    region = Block()
    with b.inside(region):
        b.emit("yield", [neg(b, body.args[0])])
    b.emit("return", [b.emit("region", [], [T], blocks=[region]).result])
    assert rewrite(func, [rename], module) == 1
    assert names(func) == ["fused", "return"]
    assert [op.name for op in func.body.ops[0].blocks[0].ops] == ["neg", "yield"]
    users_are_consistent(func)


def test_an_op_without_results_is_replaced_by_nothing():
    @rule("check")
    def drop_check(op, builder, ctx):
        return ()

    def build(b, x):
        b.emit("check", [x])
        return x

    module = graph(build)
    assert rewrite(module.main, [drop_check], module) == 1
    assert names(module.main) == ["return"]


def test_reasons_become_remarks_for_what_is_left():
    module = graph(lambda b, x: neg(b, neg(b, neg(b, x))))
    module.main.body.ops[2].loc = Loc("last", "Neg")
    notes = RewriteNotes()
    remarks = notes.remarks
    rewrite(module.main, [double_negation], module, remarks, stage="clean", within=notes)
    assert remarks == [
        Remark("clean", "double_negation at neg of node 'last' (Neg)", "its operand is not a negation")
    ]
    place = Loc("last", "Neg")
    assert notes.outcomes == [Outcome("clean", "double_negation", "its operand is not a negation", "neg", place)]


def test_a_refusal_may_be_raised_from_anywhere_in_a_rule():
    def operand_of(op, name):
        inner = defining(op.operands[0], name)
        if inner is None:
            raise NoMatch(f"its operand is not a {name}")
        return inner.operands[0]

    @rule("neg")
    def cancel(op, builder, ctx):
        builder.emit("exp", op.operands, [T])  # written before the refusal: it leaves no trace
        return operand_of(op, "neg")

    module = graph(lambda b, x: neg(b, neg(b, neg(b, x))))
    remarks = []
    assert rewrite(module.main, [cancel], module, remarks, stage="clean") == 1
    assert names(module.main) == ["neg", "return"]
    assert [(r.subject, r.message) for r in remarks] == [("cancel at neg", "its operand is not a neg")]
    users_are_consistent(module.main)


def test_ops_emitted_by_a_rule_that_then_refuses_leave_no_trace():
    @rule("neg")
    def hesitate(op, builder, ctx):
        builder.emit("exp", op.operands, [T])
        return NoMatch("changed its mind")

    module = graph(neg)
    assert rewrite(module.main, [hesitate], module) == 0
    assert names(module.main) == ["neg", "return"]
    assert len(module.main.args[0].users) == 1


def test_rules_that_never_end_are_reported():
    @rule("neg")
    def forth(op, builder, ctx):
        return builder.emit("exp", op.operands, [T]).result

    @rule("exp")
    def back(op, builder, ctx):
        return builder.emit("neg", op.operands, [T]).result

    module = graph(neg)
    module.main.body.ops[0].loc = Loc("n7", "Neg")
    with pytest.raises(InternalError, match=r"rewriting @main does not .* rule '(forth|back)'") as e:
        rewrite(module.main, [forth, back], module)
    assert e.value.where == "node 'n7' (Neg)"


def test_a_rule_that_grows_the_program_for_ever_is_reported():
    @rule("neg")
    def grow(op, builder, ctx):
        return neg(builder, builder.emit("exp", op.operands, [T]).result)

    module = graph(neg)
    with pytest.raises(InternalError, match="rule 'grow' was applied"):
        rewrite(module.main, [grow], module)


def test_a_replacement_of_another_type_is_reported():
    @rule("neg")
    def wrong(op, builder, ctx):
        return builder.emit("cast", op.operands, [tensor(dt.f16, [4])]).result

    module = graph(neg)
    with pytest.raises(InternalError, match=r"rule 'wrong' replaced neg -> \(f32\[4\]\) by \(f16\[4\]\)"):
        rewrite(module.main, [wrong], module)


def test_rules_without_names_see_every_op_in_the_order_given():
    seen = []

    @rule()
    def look(op, builder, ctx):
        seen.append(op.name)

    module = graph(neg)
    assert rewrite(module.main, [look, double_negation], module) == 0
    assert seen == ["neg", "return"]


def test_matching_helpers():
    module = Module()
    body = Block([T], ["x"])
    module.add(Func("main", body))
    b = Builder(body, module)
    module.constants["c"] = np.array([1.5, 2.5], np.float32)
    module.constants["one"] = np.array([[3.5]], dt.bf16.storage)
    x = body.args[0]
    c = b.emit("constant", [], [tensor(dt.f32, [2])], {"name": "c"}).result
    full = b.emit("full", [], [tensor(dt.i32, [2, 3])], {"value": 7, "dtype": dt.i32}).result
    b.emit("mul", [x, full], [T])
    assert constant_array(c, module).tolist() == [1.5, 2.5]
    assert constant_array(full, module).tolist() == [[7, 7, 7], [7, 7, 7]]
    assert constant_array(full, module).dtype == np.int32
    assert constant_array(x, module) is None
    assert has_one_use(x) and not has_one_use(c)
    assert defining(full, "constant") is None and defining(x, "full") is None
