"""What inner loops of the main kernels do in one iteration, in machine code for machines of three kinds.

How many multiply-adds and loads an iteration should have is derived from the kernel's loops: the tile that its
schedule chose. That nothing else gets in between is LLVM's work, which these tests watch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.asm.report import KernelReport, LoopReport, report_assembly
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.compilation import Compilation, Setting
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.core import Func, Op
from tilewright.ir.types import BufferType
from tilewright.loops.edit import extent_of, kind_of, loop_var, loops_in
from tilewright.options import Options
from tilewright.target.named import parse_target
from tilewright.target.target import Target

TARGETS = ("x86-64-v3", "zen3", "x86-64-v4", "cascadelake", "aarch64-neon", "neoverse-n1")
MACHINES = ("zen3", "cascadelake", "neoverse-n1")


@dataclass(frozen=True)
class Case:
    """A model of one operator (or few): nodes over the input `x` and weights by name, all float32."""

    nodes: tuple[Any, ...]
    shape: tuple[int, ...]
    weights: tuple[tuple[str, tuple[int, ...]], ...] = ()
    numerics: str = "default"


def node(op: str, *inputs: str, **attrs: Any) -> Any:
    return helper.make_node(op, inputs, ["y"], **attrs)


def matmul(m: int, k: int, n: int) -> Case:
    return Case((node("MatMul", "x", "w"),), (m, k), (("w", (k, n)),))


def conv(channels: int, filters: int, size: int, kernel: int, *, stride: int = 1, groups: int = 1) -> Case:
    pads = [kernel // 2] * 4
    made = node("Conv", "x", "w", strides=[stride] * 2, pads=pads, group=groups)
    weights = (("w", (filters, channels // groups, kernel, kernel)),)
    return Case((made,), (1, channels, size, size), weights, numerics="strict")


CONTRACTIONS = {
    "matmul": matmul(128, 768, 768),
    "matmul of odd sizes": matmul(101, 333, 77),
    "matrix-vector": matmul(1, 768, 768),
    "matrix-vector in many streams": matmul(1, 768, 6144),
    "two rows": matmul(2, 768, 3072),
    "conv 1x1": conv(64, 256, 28, 1),
    "conv 3x3": conv(64, 64, 28, 3),
    "conv 3x3 of stride 2": conv(64, 64, 28, 3, stride=2),
    "conv 5x5": conv(32, 32, 28, 5),
    "conv 7x7": conv(32, 32, 28, 7),
    "conv 9x9 of few channels": conv(3, 64, 32, 9),
    "stem": conv(3, 64, 56, 7, stride=2),
    "winograd": replace(conv(64, 64, 28, 3), numerics="default"),
    "attention": Case(
        (
            helper.make_node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["x", "k"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
            node("MatMul", "weights", "x"),
        ),
        (12, 128, 64),
    ),
}
SOFTMAX = Case((node("Softmax", "x", axis=-1),), (96, 384))
DEPTHWISE = conv(64, 64, 28, 3, groups=64)
LSTM = Case(
    (helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=256),),
    (16, 1, 256),
    (("w", (1, 1024, 256)), ("r", (1, 1024, 256))),
)
ROWS = {
    "layer norm": Case(
        (node("LayerNormalization", "x", "w", "b"),), (64, 768), (("w", (768,)), ("b", (768,)))
    ),
    "elementwise": Case((helper.make_node("Erf", ["x"], ["e"]), node("Mul", "x", "e")), (64, 1024)),
    "chain": Case(
        (
            helper.make_node("Sigmoid", ["x"], ["s"]),
            helper.make_node("Mul", ["x", "s"], ["t"]),
            node("Tanh", "t"),
        ),
        (64, 1000),
    ),
    "mean": Case((node("ReduceMean", "x", axes=[1]),), (64, 768)),
}


@dataclass(frozen=True)
class Compiled:
    """A kernel and what became of its loops."""

    func: Func
    report: KernelReport

    def machine_loops(self, name: str) -> list[LoopReport]:
        return [loop for loop in self.report.loops if loop.name == name]


def kernels(case: Case, machine: str) -> list[Compiled]:
    """The scheduled kernels of a case, with reports on their machine code."""
    target, options = parse_target(machine), Options(numerics=case.numerics)
    module = load_onnx(model(case))
    Compilation(module, Setting.of(options, target)).run("scheduled")
    funcs = [f for f in module.funcs.values() if f.level == "loops"]
    return [Compiled(f, report_of(f, target)) for f in funcs]


def report_of(func: Func, target: Target) -> KernelReport:
    """The report of a kernel, or of the part of it that threads share where that is one."""
    kernel = kernel_ir(func, target)
    text = assembly(kernel.text, target, comments=True)
    name = f"{func.name}.part0" if kernel.forks else func.name
    return next(r for r in report_assembly(text, target) if r.name == name)


def model(case: Case) -> Any:
    rng = np.random.default_rng(5)
    initializers = [
        numpy_helper.from_array(rng.standard_normal(shape, np.float32), name) for name, shape in case.weights
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, case.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(list(case.nodes), "g", [x], [y], initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made)


@dataclass(frozen=True)
class Expected:
    """What one iteration of a loop of the program needs at least, if vectors are full."""

    multiply_adds: int
    reads: int


def sums_of(func: Func, target: Target) -> Iterator[tuple[str, Expected]]:
    """The innermost loops that add products to a tile of registers, by name."""
    for loop in loops_in(func.body):
        inside = [op for op in loop.walk() if op is not loop and op.name == "for"]
        products = [op for op in loop.walk() if op.name == "mul" and _is_summed(op)]
        if kind_of(loop) != "serial" or not products or any(kind_of(op) == "serial" for op in inside):
            continue
        if extent_of(loop).is_const and extent_of(loop).value == 1:
            continue
        lanes = target.vector_bits // 32
        counts = [_vectors(product, loop, lanes, only=None) for product in products]
        reads = {
            (load.operands[0], load.attrs["idx"]): _vectors(load, loop, lanes, only=load.attrs["idx"])
            for product in products
            for load in _loads(product)
        }
        yield str(loop_var(loop)), Expected(sum(counts), sum(reads.values()))


def _is_summed(product: Op) -> bool:
    adds = [user for user in product.result.users if user.name == "add"]
    stores = [user for add in adds for user in add.result.users if user.name == "store"]
    return any(
        isinstance(s.operands[1].type, BufferType) and s.operands[1].type.space == "reg" for s in stores
    )


def _loads(product: Op) -> list[Op]:
    return [v.op for v in product.operands if v.op is not None and v.op.name == "load"]


def _vectors(op: Op, loop: Op, lanes: int, only: Sequence[Any] | None) -> int:
    """How often `op` happens in one iteration, as operations on vectors; a read only for each address."""
    used = None if only is None else frozenset().union(*(index.vars for index in only))
    around: list[Op] = []
    parent = op.parent.parent
    while parent is not loop:
        if parent.name == "for":
            around.append(parent)
        parent = parent.parent.parent
    extents = []
    for each in around:
        extent = extent_of(each).value
        if used is not None and loop_var(each) not in used:
            continue
        extents.append(-(-extent // lanes) if kind_of(each) == "vector" else extent)
    return prod(extents)


@lru_cache(maxsize=1)
def cases() -> list[Any]:
    all_machines = [pytest.param("matmul", machine, id=f"matmul-{machine}") for machine in TARGETS]
    others = [(name, machine) for name in CONTRACTIONS for machine in MACHINES if name != "matmul"]
    return all_machines + [pytest.param(*pair, id="-".join(pair)) for pair in others]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "machine"), cases())
def test_sums_of_products_do_what_their_tile_says(name: str, machine: str) -> None:
    target = parse_target(machine)
    seen = 0
    for compiled in kernels(CONTRACTIONS[name], machine):
        for loop_name, expected in sums_of(compiled.func, target):
            (loop,) = compiled.machine_loops(loop_name)
            effects = loop.effects
            assert loop.innermost
            assert effects.multiply_adds == expected.multiply_adds
            assert loop.multiply_add_widths == (target.vector_bits,)
            assert effects.arithmetic == effects.multiply_adds, "nothing else is computed"
            assert 0 < effects.loads + effects.broadcasts <= expected.reads
            assert (effects.spills, effects.stores, effects.calls, effects.branches) == (0, 0, 0, 1)
            assert (effects.gathers, effects.scatters, effects.lane_moves) == (0, 0, 0)
            seen += 1
    assert seen, "the case has a sum of products"


@pytest.mark.sweep
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "name", ["matmul", "conv 1x1", "conv 3x3", "conv 3x3 of stride 2", "stem", "winograd", "attention"]
)
def test_the_main_sums_of_products_can_run_near_the_peak(name: str, machine: str) -> None:
    """Tiles for the rows that are left over, which are smaller, may wait for their own sums."""
    target = parse_target(machine)
    for compiled in kernels(CONTRACTIONS[name], machine):
        loops = [one for loop, _ in sums_of(compiled.func, target) for one in compiled.machine_loops(loop)]
        assert not loops or max(loop.peak for loop in loops) >= 0.9


@pytest.mark.parametrize("machine", MACHINES)
def test_depthwise_convolutions_keep_their_sums_in_registers(machine: str) -> None:
    target = parse_target(machine)
    loops = [loop for c in kernels(DEPTHWISE, machine) for loop in c.report.innermost]
    sums = [loop for loop in loops if loop.effects.multiply_adds]
    assert sums
    for loop in sums:
        effects = loop.effects
        assert loop.multiply_add_widths == (target.vector_bits,)
        assert effects.arithmetic == effects.multiply_adds > effects.loads
        assert (effects.spills, effects.stores, effects.gathers, effects.lane_moves) == (0, 0, 0, 0)
        assert loop.peak >= 0.9


@pytest.mark.parametrize("machine", MACHINES)
def test_the_recurrent_product_reads_each_weight_once(machine: str) -> None:
    target = parse_target(machine)
    (product,) = [
        loop
        for c in kernels(LSTM, machine)
        for loop in c.report.innermost
        if c.func.name.endswith("lstm") and loop.effects.multiply_adds == loop.effects.arithmetic > 0
    ]
    effects = product.effects
    assert product.multiply_add_widths == (target.vector_bits,)
    # one operand of each multiply-add is a weight, which is read from memory: this bounds the loop
    assert effects.multiply_adds <= effects.loads <= 2 * effects.multiply_adds + 1
    assert (effects.calls, effects.branches, effects.gathers, effects.lane_moves) == (0, 1, 0, 0)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ROWS)
def test_loops_over_rows_run_in_full_vectors(name: str, machine: str) -> None:
    target = parse_target(machine)
    for compiled in kernels(ROWS[name], machine):
        for loop in compiled.report.innermost:
            effects = loop.effects
            assert max(loop.widths) == target.vector_bits
            # interleaved polynomials hide each other's latency, which is worth a few accesses of the stack
            assert 10 * effects.spills <= (effects.instructions if effects.multiply_adds > 10 else 0)
            assert (effects.calls, effects.branches) == (0, 1)
            assert (effects.gathers, effects.scatters, effects.lane_moves) == (0, 0, 0)


@pytest.mark.parametrize("machine", MACHINES)
def test_interleaved_exponentials_fit_the_registers(machine: str) -> None:
    (kernel,) = kernels(SOFTMAX, machine)
    (exponentials,) = [loop for loop in kernel.report.innermost if loop.effects.multiply_adds]
    effects = exponentials.effects
    # two rows with four polynomials each; with half of them nothing is spilled, and all takes a tenth longer
    assert 6 * effects.spills <= effects.instructions
    assert (effects.calls, effects.branches, effects.gathers, effects.lane_moves) == (0, 1, 0, 0)
