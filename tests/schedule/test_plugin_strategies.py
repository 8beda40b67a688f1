"""Strategies of plugins: they are asked by fusion and by scheduling, and one that fails costs a remark and no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.schedule import scheduling as oracle
from tilewright.cli.commands.explain import trees
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.graph.match import shape_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op
from tilewright.ir.diag import Remark, ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.types import tensor
from tilewright.loops.stages import Lowered
from tilewright.ops import elementwise as ew
from tilewright.options import Options, Request
from tilewright.passes import PassContext
from tilewright.plugins import Plugin
from tilewright.runtime import Model
from tilewright.schedule.rows.reduction import Reduction
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.strategies import STRATEGIES
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.session import Session
from tilewright.stages import programs
from tilewright.target.named import parse_target
from tilewright.target.target import Target

pytestmark = pytest.mark.with_scalar_kernels

RNG = np.random.default_rng(5)


@dataclass(frozen=True)
class TinyProducts(Strategy):
    """Many products of tiny matrices: each is written out, and threads share the many."""

    name = "tiny_products"
    most: int = 4

    def claims(self, op: Op, info: OpInfo) -> bool:
        if not info.is_matrix_product or len(info.domain) != 3:
            return False
        depth = shape_of(op.operands[0])[-1]
        return all(d.is_const and d.value <= self.most for d in (*info.domain[1:], depth))

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        (stage,) = lowered.stages
        many, *tiny = stage.axes
        s.parallel(many)
        for loop in (*stage.reduce, *reversed(tiny)):
            s.unroll(loop)


class Columns(Strategy):
    """A reduction of columns, and elementwise work on each column with what comes out: two kernels with ours."""

    name = "columns"

    def join(self, join: Join) -> Match | NoMatch | None:
        if not isinstance(join.producer.strategy, Reduction) or join.consumer.kind is not OpClass.ELEMENTWISE:
            return None
        if len(join.consumer.domain) != 2 or join.source.attrs["axes"] != (0,):
            return NoMatch("it is no matrix whose columns are reduced")
        return Match(join.consumer.domain)

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        if [st.kind for st in lowered.stages] != ["reduce", "map"]:
            raise ScheduleError("it is not one reduction with elementwise work after it")
        sums, work = lowered.stages
        row, column = work.axes
        s.reorder(column, row)
        s.compute_at(sums.buffer, column, space="reg")
        s.parallel(column)


def model(*nodes: onnx.NodeProto, **shapes: list[int | str]) -> bytes:
    """A model of float32 inputs of these shapes, whose result is y."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    axes = numpy_helper.from_array(np.array([0]), "axes")
    graph = helper.make_graph(list(nodes), "model", inputs, [result], [axes])
    opset = [helper.make_opsetid("", 18)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=9)
    return onnx.shape_inference.infer_shapes(made).SerializeToString()


PRODUCTS = model(helper.make_node("MatMul", ["a", "b"], ["y"]), a=["n", 3, 2], b=["n", 2, 4])
CENTRED = model(
    helper.make_node("ReduceMax", ["x", "axes"], ["greatest"]),
    helper.make_node("Sub", ["x", "greatest"], ["y"]),
    x=["n", 70],
)


def compiled(source: bytes, folder: Path, *strategies: object, **options: Any) -> Model:
    plugin = Plugin("ours", strategies=strategies)  # type: ignore[arg-type]
    return tilewright.compile(source, session=Session(folder, plugins=(plugin,)), **options)


def remarks(found: Model, kind: str) -> list[tuple[str, str, str]]:
    return [(r.stage, r.subject, r.message) for r in found.report().remarks if r.kind == kind]


def run_products(found: Model) -> None:
    a, b = RNG.standard_normal((7, 3, 2), np.float32), RNG.standard_normal((7, 2, 4), np.float32)
    np.testing.assert_allclose(found(a, b)[0], np.einsum("nij,njk->nik", a, b, dtype=np.float64), rtol=1e-5, atol=1e-6)


def run_centred(found: Model) -> None:
    x = RNG.standard_normal((9, 70), np.float32)
    np.testing.assert_array_equal(found(x)[0], x - x.max(axis=0))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_operator_that_a_plugin_claims_gets_its_schedule(tmp_path: Path, threads: int) -> None:
    found = compiled(PRODUCTS, tmp_path, TinyProducts(), threads=threads, verify=True)
    assert ("strategy", "k0_matmul", "tiny_products") in remarks(found, "applied")
    run_products(found)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_plugin_makes_one_kernel_of_what_ours_leave_apart(tmp_path: Path, threads: int) -> None:
    plain = compiled(CENTRED, tmp_path, threads=threads)
    found = compiled(CENTRED, tmp_path, Columns(), threads=threads, verify=True)
    assert (plain.report().kernels, found.report().kernels) == (2, 1)
    assert ("strategy", "k0_sub_reduce_max", "columns") in remarks(found, "applied")
    run_centred(plain)
    run_centred(found)


def test_its_name_stands_in_the_program_and_in_explain(tmp_path: Path) -> None:
    session = Session(tmp_path, plugins=(Plugin("ours", strategies=(Columns(),)),))
    assert 'strategy="columns"' in programs(CENTRED, "graph", session=session)["main"]
    report = tilewright.compile(CENTRED, session=session).report()
    (tree,) = (t for t in trees(report.remarks, True) if "strategy" in str(t.label))
    assert [str(reason.label) for reason in tree.children] == ["columns"]


def test_a_plugins_strategies_are_part_of_the_key_of_the_cache(tmp_path: Path) -> None:
    keys = {
        Session(tmp_path, plugins=plugins).key(Request.of(PRODUCTS, None, None), Options())
        for plugins in (
            (),
            (Plugin("ours", strategies=(TinyProducts(),)),),
            (Plugin("ours", strategies=(TinyProducts(most=2),)),),
            (Plugin("ours", strategies=(TinyProducts(), Columns())),),
        )
    }
    assert len(keys) == 4 and None not in keys


def test_the_cheaper_one_is_taken_and_among_equals_that_of_the_plugin(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Estimated(Strategy):
        name: str
        cycles: float

        def match(self, region: FusedRegion) -> Match:
            return Match(cycles=self.cycles)

        def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
            s.simplify()

    slow, fast = Estimated("slow", 10.0), Estimated("fast", 5.0)
    found = compiled(PRODUCTS, tmp_path, slow, fast)
    assert ("strategy", "k0_matmul", "fast") in remarks(found, "applied")
    run_products(found)


class InJoin(Columns):
    def join(self, join: Join) -> Match:
        raise IndexError("no such region")


class InSchedule(Columns):
    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        raise IndexError("no such loop")


class Illegal(Columns):
    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        super().schedule(s, lowered, target)
        lowered.stages[1].axes[0].attrs["kind"] = "fast"


FAILURES = {InJoin: "IndexError: no such region", InSchedule: "IndexError: no such loop", Illegal: "kind 'fast'"}


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("verify", [False, True])
def test_a_strategy_that_fails_is_named_and_not_asked_again(
    tmp_path: Path, kind: type[Strategy], verify: bool
) -> None:
    found = compiled(CENTRED, tmp_path, kind(), verify=verify)
    ((stage, subject, message),) = remarks(found, "failed")
    assert (stage, subject) == ("plugins", "strategy 'columns' of plugin 'ours'")
    assert FAILURES[kind] in message and "the strategy is not asked any more" in message
    run_centred(found)


def test_a_strategy_of_the_wrong_type_or_with_a_name_of_ours_is_left_out(tmp_path: Path) -> None:
    class Contraction(Columns):
        name = "contraction"

    for strategy, reason in (
        (SimpleNamespace(name="half"), "its strategy 'half' is no tilewright.schedule.strategy.Strategy"),
        (Contraction(), "strategy 'contraction' exists already"),
    ):
        found = compiled(CENTRED, tmp_path, strategy)
        assert [reason in message for _, _, message in remarks(found, "failed")] == [True]
        run_centred(found)


def test_a_program_of_a_strategy_that_is_not_there_is_told() -> None:
    module = oracle.build([tensor(dt.f32, (4, 6))], lambda x: ew.exp(x))
    Fuse(STRATEGIES).run(module, PassContext())
    (region,) = (op for op in module.main.body.ops if op.name == "fused")
    region.attrs = region.attrs | {"strategy": "lost"}
    told: list[Remark] = []
    schedule_regions(module, parse_target("x86-64-v3"), STRATEGIES, told)
    assert "there is no strategy 'lost', which fusion chose" in [r.message for r in told]
    assert ("k0_exp", "elementwise") in [(r.subject, r.message) for r in told if r.kind == "applied"]
