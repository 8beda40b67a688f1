"""One fault in any stage of a compilation: it costs what failed, is told, and no more than twice the work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright import compilation, compiler, link
from tilewright.codegen.cpu import assemble
from tilewright.graph.fusion import fuse
from tilewright.ir.core import Func, Op
from tilewright.loops.lower import Lowered
from tilewright.loops.storage.packing import PackedArray
from tilewright.program.memory import storage
from tilewright.runtime import Model
from tilewright.runtime.errors import PerformanceWarning
from tilewright.schedule.sharing import kernels
from tilewright.schedule.strategies import STRATEGIES

pytestmark = pytest.mark.without_room_for_zones  # arenas are compared

RNG = np.random.default_rng(17)
WIDTHS = (48, 64, 40, 56, 32, 48)
X = RNG.standard_normal((24, WIDTHS[0])).astype(np.float32)


def network() -> onnx.ModelProto:
    """Layers of different widths, each a product, a bias, an activation and a softmax; the last two are independent."""
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    before = "x"
    for k, (n, m) in enumerate(pairwise(WIDTHS)):
        weights |= {f"w{k}": RNG.standard_normal((n, m)) / 8, f"b{k}": RNG.standard_normal(m)}
        nodes += [
            helper.make_node("MatMul", [before, f"w{k}"], [f"p{k}"], name=f"product{k}"),
            helper.make_node("Add", [f"p{k}", f"b{k}"], [f"s{k}"], name=f"bias{k}"),
            helper.make_node("Tanh", [f"s{k}"], [f"t{k}"], name=f"activation{k}"),
            helper.make_node("Softmax", [f"t{k}"], [f"h{k}"], name=f"softmax{k}", axis=-1),
        ]
        before = f"h{k}"
    weights |= {"u": RNG.standard_normal((WIDTHS[-1], 8)), "v": RNG.standard_normal((WIDTHS[-1], 8))}
    nodes += [helper.make_node("MatMul", [before, name], [f"y{name}"], name=f"last_{name}") for name in "uv"]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(X.shape))],
        [helper.make_tensor_value_info(f"y{name}", TensorProto.FLOAT, [X.shape[0], 8]) for name in "uv"],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


NETWORK = network()


def compiled(**options: Any) -> Model:
    return tilewright.compile(NETWORK, cache=False, threads=1, profile=True, **options)


@dataclass(frozen=True)
class Work:
    """What a call of the model does, without a clock: kernels, bytes that they touch, and bytes of the arena."""

    kernels: int
    touched: int
    arena: int

    @classmethod
    def of(cls, model: Model) -> Work:
        data = model.report()
        return cls(data.kernels, sum(int(c.touched_bytes or 0) for c in data.calls), int(data.arena))


@pytest.fixture(scope="module")
def sound() -> Work:
    return Work.of(compiled())


@pytest.fixture(scope="module")
def expected() -> list[np.ndarray]:
    return list(onnxruntime.InferenceSession(NETWORK.SerializeToString()).run(None, {"x": X}))


@pytest.fixture
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Without what makes such failures errors of tests."""
    monkeypatch.setattr(compiler, "failures_are_errors", lambda options: options.verify or options.strict)
    yield monkeypatch


Fault = Callable[[pytest.MonkeyPatch], None]


def raising(
    patch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool], after: bool = False
) -> None:
    """A function that raises for some arguments; with `after` when it has done its work."""
    function = getattr(owner, name)

    def faulty(*arguments: Any, **named: Any) -> Any:
        if after:
            result = function(*arguments, **named)
        if when(*arguments):
            raise IndexError("a fault of the test")
        return result if after else function(*arguments, **named)

    patch.setattr(owner, name, faulty)


def joining_two_regions(patch: pytest.MonkeyPatch) -> None:
    raising(patch, fuse._Fusion, "_answer", lambda self, join: join.op.loc.node == "activation2")


def schedules_of_one_kernel(patch: pytest.MonkeyPatch) -> None:
    for strategy in {type(s) for s in STRATEGIES.ours}:
        raising(patch, strategy, "schedule", lambda self, s, lowered, *_: _is_of(lowered, "matmul", WIDTHS[2]))


def _is_of(lowered: Lowered, name: str, width: int) -> bool:
    """Whether it is the kernel of several operators whose result has rows of a width."""
    func = lowered.func
    return name in func.name and "add" in func.name and str(func.args[-1].type.shape[-1]) == str(width)


def one_strategy(patch: pytest.MonkeyPatch) -> None:
    contraction = next(type(s) for s in STRATEGIES.ours if s.name == "contraction")
    raising(patch, contraction, "schedule", lambda self, s, lowered, *_: _is_of(lowered, "matmul", WIDTHS[3]))


def one_question(patch: pytest.MonkeyPatch) -> None:
    row_reduction = next(type(s) for s in STRATEGIES.ours if s.name == "row_reduction")
    raising(patch, row_reduction, "join", lambda self, join: "softmax1" in str(join.op.loc))


def lowering_of_one_region(patch: pytest.MonkeyPatch) -> None:
    def is_third(region: Op, *_: Any) -> bool:
        return len(region.blocks[0].ops) > 3 and str(region.results[0].tensor.shape[-1]) == str(WIDTHS[3])

    raising(patch, kernels, "lower_region", is_third)


def packing_of_one_constant(patch: pytest.MonkeyPatch) -> None:
    raising(patch, kernels, "PackedArray", lambda array, *_: array.shape == (WIDTHS[1], WIDTHS[2]))


def sample_of_a_packed_constant(patch: pytest.MonkeyPatch) -> None:
    raising(patch, PackedArray, "first", lambda self, *_: self.array.shape == (WIDTHS[2], WIDTHS[3]))


def writing_a_packed_constant(patch: pytest.MonkeyPatch) -> None:
    raising(patch, PackedArray, "write", lambda self, *_: self.array.shape == (WIDTHS[3], WIDTHS[4]))


def text_of_one_kernel(patch: pytest.MonkeyPatch) -> None:
    def is_fused(func: Func, *_: Any) -> bool:
        return "matmul_add" in func.name and str(func.args[-1].type.shape[-1]) == str(WIDTHS[3])

    raising(patch, tilewright.back_end, "kernel_ir", is_fused, after=True)


def code_of_one_kernel(patch: pytest.MonkeyPatch) -> None:
    raising(patch, assemble, "_object_of", lambda unit, *_: unit.kernel.startswith("k2_") and "_" in unit.kernel[3:])


def memory_plan(patch: pytest.MonkeyPatch) -> None:
    raising(patch, storage, "plan_arena", lambda *_: True)


def constants_of_one_fused_kernel(patch: pytest.MonkeyPatch) -> None:
    """A stage that programs need, and which fails because of what one region is."""
    raising(
        patch, link, "lay_out_constants",
        lambda module, *_: any(
            op.name == "call" and "matmul_add" in op.attrs["kernel"] and op.loc.node == "product2"
            and len(op.operands) > 2 for op in module.main.body.ops
        ),
    )  # fmt: skip


def linking_after_a_step(patch: pytest.MonkeyPatch) -> None:
    """A stage that programs need, and which fails because of what an optional step did."""
    raising(patch, link, "make_program", lambda module, *_: any("concurrent" in o.attrs for o in module.main.body.ops))


def text_of_the_program(patch: pytest.MonkeyPatch) -> None:
    raising(patch, tilewright.back_end, "program_ir", lambda program, *_: len(program.steps) < 14)


def remarks_on_memory(patch: pytest.MonkeyPatch) -> None:
    raising(patch, compilation, "over_budget", lambda *_: True)


def splitting_into_parts(patch: pytest.MonkeyPatch) -> None:
    raising(patch, compilation.SplitGraph, "run", lambda *_: True)


def concurrent(patch: pytest.MonkeyPatch) -> None:
    raising(patch, tilewright.back_end, "group_concurrent_kernels", lambda *_: True, after=True)


FAULTS: tuple[Fault, ...] = (
    joining_two_regions, schedules_of_one_kernel, one_strategy, one_question,
    lowering_of_one_region, packing_of_one_constant, sample_of_a_packed_constant, writing_a_packed_constant,
    text_of_one_kernel, code_of_one_kernel, memory_plan, remarks_on_memory,
    constants_of_one_fused_kernel, splitting_into_parts,
    concurrent, text_of_the_program,
)  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.with_scalar_kernels
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_one_fault_costs_little(
    as_for_users: pytest.MonkeyPatch, sound: Work, expected: list[np.ndarray], fault: Fault, threads: int
) -> None:
    fault(as_for_users)
    with pytest.warns(PerformanceWarning, match="please report this with the model") as warned:
        model = compiled(compile_threads=threads)
    assert len([w for w in warned if w.category is PerformanceWarning]) == 1
    for y, wanted in zip(model(X), expected, strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-6)
    work = Work.of(model)
    assert work.kernels <= 2 * sound.kernels
    assert work.touched <= 2 * sound.touched
    assert work.arena <= 2 * sound.arena
    said = [r.message for r in model.report().remarks if r.kind == "failed"]
    assert said and all("IndexError: a fault of the test" in message for message in said)
