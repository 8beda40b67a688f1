"""Results in the place of arguments: which values share memory, and that results stay right."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Op, Value
from tilewright.ir.sym import sym
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.view import reshape
from tilewright.options import Options
from tilewright.program.memory.places import annotate, broken_plan
from tilewright.program.memory.storage import Pairs, Storage, assign_storage
from tilewright.runtime import Model
from tilewright.target.named import parse_target

SHAPE = (16, 16)
BYTES = 16 * 16 * 4


class Program:
    """A main function of calls of kernels that may write their result over their first argument (`over`) or not
    (`apart`)."""

    def __init__(self, inputs: int = 1) -> None:
        self.block = Block([tensor(dt.f32, SHAPE)] * inputs, [f"x{k}" for k in range(inputs)])
        self.inplace: dict[str, Pairs] = {}

    def call(self, kernel: str, *operands: Value) -> Value:
        op = Op("call", list(operands), [tensor(dt.f32, SHAPE)], {"kernel": kernel, "dims": ()})
        if kernel == "over":
            self.inplace["over"] = [(0, len(operands))]
        return self.block.append(op).result

    def storage(self, *results: Value) -> Storage:
        self.block.append(Op("return", list(results)))
        return assign_storage(Func("main", self.block), self.inplace)


def test_a_chain_in_place_needs_one_tensor() -> None:
    p = Program()
    a = p.call("apart", p.block.args[0])
    b = p.call("over", a)
    c = p.call("over", b)
    storage = p.storage(p.call("over", c))
    assert storage.arena.total == BYTES
    assert storage.places[a] == storage.places[b] == storage.places[c]
    assert storage.arena.unshared == 3 * BYTES


def test_a_kernel_that_does_not_allow_it_gets_memory_of_its_own() -> None:
    p = Program()
    a = p.call("apart", p.block.args[0])
    storage = p.storage(p.call("apart", p.call("apart", a)))
    assert storage.arena.total == 2 * BYTES


def test_what_is_read_again_is_not_overwritten() -> None:
    p = Program()
    a = p.call("apart", p.block.args[0])
    b = p.call("over", a)
    storage = p.storage(p.call("apart", b, a))
    assert storage.places[a] != storage.places[b]


def test_what_is_read_under_another_name_is_not_overwritten() -> None:
    p = Program()
    a = p.call("apart", p.block.args[0])
    reshaped = p.block.append(Op("reshape", [a], [tensor(dt.f32, (256,))], {"shape": (sym(256),)})).result
    p.inplace["over"] = [(0, 2)]
    b = p.block.append(
        Op("call", [a, reshaped], [tensor(dt.f32, SHAPE)], {"kernel": "over", "dims": ()})
    ).result
    storage = p.storage(p.call("apart", b))
    assert storage.places[a] != storage.places[b]


def test_inputs_are_not_overwritten_and_outputs_are_written_directly() -> None:
    p = Program()
    a = p.call("over", p.block.args[0])
    b = p.call("over", a)
    storage = p.storage(b)
    assert storage.places[a].base == "arena"
    assert storage.places[b].base == "output"
    assert storage.places[p.block.args[0]].base == "input"


def residual_network(width: int) -> tuple[Module, np.ndarray, np.ndarray]:
    """x + tanh(x w) three times over, with x changed before and a reshape between."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((37, width)).astype(np.float32)
    w = [(rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32) for _ in range(3)]
    block = Block([tensor(dt.f32, x.shape)], ["x"])
    module = Module()
    with Builder(block, module) as b:
        h = ew.tanh(matmul(block.args[0], constant(w[0], "w")))
        wanted = np.tanh(x.astype(np.float64) @ w[0])
        for m in w:
            h = ew.add(h, ew.tanh(matmul(h, constant(m, "w"))))
            wanted = wanted + np.tanh(wanted @ m)
            h = reshape(reshape(h, shape=(37 * width,)), shape=x.shape)
        b.emit("return", [matmul(h, constant(w[0], "w"))])
    module.add(Func("main", block, "graph"))
    return module, x, wanted @ w[0]


@pytest.mark.sweep
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [16, 48, 83])
def test_residual_sums_are_right(width: int, threads: int) -> None:
    module, x, wanted = residual_network(width)
    model = Model(compile_module(module, Options(), parse_target("host")), threads)
    for _ in range(2):
        np.testing.assert_allclose(model(x)[0], wanted, rtol=2e-4, atol=2e-4)


def test_calls_at_the_same_time_share_no_memory() -> None:
    p = Program(2)
    a = p.call("apart", p.block.args[0])
    one, other = p.call("over", a), p.call("over", p.block.args[1])
    for op in p.block.ops[1:3]:
        op.attrs["concurrent"] = 0
    last = p.call("over", one)
    storage = p.storage(p.call("apart", last, other))
    assert len({storage.places[v].offset for v in (a, one, other)}) == 3
    assert storage.places[last] == storage.places[one]


def test_writing_over_what_a_call_at_the_same_time_reads_is_found() -> None:
    p = Program(2)
    a, b = (p.call("apart", x) for x in p.block.args)
    one, other = p.call("apart", a), p.call("apart", b)
    for op in p.block.ops[2:]:
        op.attrs["concurrent"] = 0
    storage = p.storage(one, other)
    module = Module()
    module.add(Func("main", p.block, "program"))
    annotate(module.main, storage)
    assert broken_plan(module) is None
    last = p.block.ops[3]
    last.attrs["at"] = (storage.places[a],)
    assert broken_plan(module) == ("writes a value over a value, which is still needed", last)


def test_writing_over_what_a_later_call_reads_tells_of_both() -> None:
    p = Program(1)
    a = p.call("apart", p.block.args[0])
    b, c = p.call("apart", a), p.call("apart", a)
    storage = p.storage(b, c)
    module = Module()
    module.add(Func("main", p.block, "program"))
    annotate(module.main, storage)
    writer = p.block.ops[1]
    writer.attrs["at"] = (storage.places[a],)
    wrong, op = broken_plan(module) or ("", None)
    assert op is writer and "which is still needed: line 4 has `v2 = call(v0)" in wrong


def test_inputs_that_an_output_may_overwrite() -> None:
    """The last call that reads an input may write its result there."""
    p = Program(2)
    second = p.block.args[1]
    a = p.call("apart", second)
    b = p.call("over", second)
    assert p.storage(a, b).overwrites == ((1, 1),)
    p = Program()
    b = p.call("over", p.block.args[0])
    assert p.storage(b, p.call("apart", p.block.args[0])).overwrites == ()
    p = Program()
    assert p.storage(p.call("over", p.block.args[0], p.block.args[0])).overwrites == ()
    p = Program()
    inner = p.call("over", p.block.args[0])
    assert p.storage(p.call("over", inner)).overwrites == ()
