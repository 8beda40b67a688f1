"""Each token, wait, barrier and number of an event in what the kit makes is needed: a kernel that lacks one is refused
by the verifier. What is accepted computes the same in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.loops.interleave import run_interleaved
from tests.machines.test_toy import kernels as toy_kernels
from tests.machines.toy import TOY
from tests.simulator.chips import CHIPS
from tests.simulator.test_chips import product
from tests.simulator.test_chips import session as chips_session
from tests.simulator.test_npu import TINY, halves, product_kernel
from tests.simulator.test_npu import session as tiny_session
from tilewright.ir.core import Func
from tilewright.ir.diag import VerifyError
from tilewright.ir.verify import verify_func
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.rules import machine_spec
from tilewright.loops.queues.events import events_used
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.options import Options
from tilewright.plugins import Plugin
from tilewright.session import Session
from tilewright.stages import programs
from tilewright.target.machine import Events, Machine

ORDERS = 4
MISSED = ("may not have ended", "nobody waits", "may meet in")


def mutants(func: Func) -> Iterator[Func]:
    """The kernel without one token of a wait or a run, and without one barrier; its order is that of tokens alone."""
    func = func.clone()
    for op in func.body.walk():
        op.attrs.pop("events", None)
    places = [
        (n, k) for n, op in enumerate(func.body.walk())
        for k in range(len(op.operands) if op.name in ("wait", "run") else op.name == "barrier")
    ]  # fmt: skip
    for n, k in places:
        mutant = func.clone()
        op = list(mutant.body.walk())[n]
        op.set_operands([v for i, v in enumerate(op.operands) if i != k])
        if op.name != "run" and not op.operands:
            op.erase()
        yield mutant


def is_refused(func: Func, machine: Machine) -> bool:
    try:
        verify_func(func, machine_spec(machine))
    except VerifyError as error:
        assert any(text in str(error) for text in MISSED), error
        return True
    return False


def check(func: Func, machine: Machine, drawn: np.random.Generator) -> int:
    """How many mutants there are, all of which are refused; the kernel itself computes the same in each order."""
    assert not is_refused(func, machine)
    arrays = [
        drawn.integers(-4, 5, [d.value for d in arg.buffer.shape]).astype(arg.buffer.dtype.storage) for arg in func.args
    ]
    right = [a.copy() for a in arrays]
    run_kernel(func, right, {})
    for seed in range(ORDERS):
        given = [a.copy() for a in arrays]
        run_interleaved(func, given, {}, random.Random(seed))
        assert np.array_equal(given[-1], right[-1])
    plain = replace(machine, events=())
    refused = [is_refused(mutant, plain) for mutant in mutants(func)]
    assert all(refused), f"{refused.count(False)} of {len(refused)} are accepted"
    return len(refused)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("chip", CHIPS)
def test_products_of_chips(chip: str, tmp_path: Path) -> None:
    data, _, _ = product(chip, (16, 16, 16) if chip == "cores" else (24, 32, 48))
    texts = programs(data, "loops", options=Options(target=chip), session=chips_session(tmp_path))
    found = [check(parse_kernel(text), CHIPS[chip], np.random.default_rng(3)) for text in texts.values()]
    assert sum(found) > 3


def test_a_product_on_the_npu(tmp_path: Path) -> None:
    func, _ = product_kernel((48, 96, 64), tmp_path)
    assert check(func, TINY, np.random.default_rng(4)) > 20


@pytest.mark.parametrize("count", [1, 2, 8])
def test_events_with_numbers_of_others(count: int, tmp_path: Path) -> None:
    """However few events there are, a product has its order by them alone. With another number each of them is refused,
    or serves as well: then it computes the same in any order."""
    machine = replace(TINY, name="few", events=(Events("*", "*", count),))
    data, (x, right) = halves(48, 96, 64)
    session = Session(tmp_path, plugins=(Plugin("few", machines=(machine,)),))
    (text,) = programs(data, "loops", options=Options(target="few"), session=session).values()
    func = parse_kernel(text)
    verify_func(func, machine_spec(machine))
    w = numpy_helper.to_array(onnx.load_from_string(data).graph.initializer[0])
    used = events_used(func)
    assert max(used.values()) <= count and len(used) >= 5
    kept = [func]
    for mutant in renumbered(func, used):
        try:
            verify_func(mutant, machine_spec(machine))
        except VerifyError as error:
            assert "may still wait" in str(error)
        else:
            kept.append(mutant)
    for seed, mutant in enumerate(kept[:12]):
        y = np.zeros_like(right)
        run_interleaved(mutant, [x, w, y], {}, random.Random(seed))
        assert np.array_equal(y, right)


def renumbered(func: Func, used: dict[str, int]) -> Iterator[Func]:
    """The kernel with another number for one event, of those that its pair of queues uses."""
    for n, op in enumerate(func.body.walk()):
        for k, (target, number) in enumerate(op.attrs.get("events", ())):
            for other in range(used[f"{op.attrs['queue']} -> {target or 'thread'}"]):
                if other != number:
                    mutant = func.clone()
                    changed = list(mutant.body.walk())[n]
                    events = changed.attrs["events"]
                    changed.attrs["events"] = (*events[:k], (target, other), *events[k + 1 :])
                    yield mutant


NODES = {
    "a chain": ([("Mul", ["x", "x"]), ("Add", ["v0", "x"]), ("Relu", ["v1"])], [6, 700]),
    "sums of rows": ([("ReduceSum", ["x"])], [40, 300]),
    "a transpose": ([("Transpose", ["x"])], [50, 60]),
    "parts behind each other": ([("Neg", ["x"]), ("Concat", ["v0", "x"])], [20, 90]),
    "windows": ([("MaxPool", ["x"])], [1, 3, 12, 14]),
}
ATTRS = {
    "Transpose": {"perm": [1, 0]}, "Concat": {"axis": 0}, "MaxPool": {"kernel_shape": [3, 3], "pads": [1] * 4},
    "ReduceSum": {"keepdims": 1},
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", NODES)
def test_work_of_the_vector_unit_and_copies(name: str, tmp_path: Path) -> None:
    nodes, shape = NODES[name]
    made = [
        helper.make_node(op, [*given, *(["axes"] if op == "ReduceSum" else [])], [f"v{k}"], **ATTRS.get(op, {}))
        for k, (op, given) in enumerate(nodes)
    ]
    graph = helper.make_graph(
        made,
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(made[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([1]), "axes")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    data = onnx.shape_inference.infer_shapes(model).SerializeToString()
    texts = programs(data, "loops", options=Options(target="tiny"), session=tiny_session(tmp_path))
    found = [check(parse_kernel(text), TINY, np.random.default_rng(5)) for text in texts.values()]
    assert sum(found) > 3


@pytest.mark.parametrize("name", ["matmul", "relu"])
def test_barriers_and_tokens_of_the_toy(name: str, tmp_path: Path) -> None:
    for func in toy_kernels(name, tmp_path):
        assert check(func, TOY, np.random.default_rng(7)) >= 8
