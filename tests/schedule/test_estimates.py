"""Of several strategies that match the cheapest is tried first: what they estimate, and what finished kernels take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.schedule import scheduling as oracle
from tilewright.cli.commands.explain import trees
from tilewright.cost.roofline import NestWork, ReadOfNest, form_cycles
from tilewright.cost.typical import TypicalSizes
from tilewright.graph.fusion.strategy import Match
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value, current_builder
from tilewright.ir.diag import Remark, ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.stages import Lowered
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import pool
from tilewright.ops import reduce as rd
from tilewright.plugins import Plugin
from tilewright.schedule.defaults import MatchingStrategy, cheapest_first
from tilewright.schedule.estimates import Counted
from tilewright.schedule.sharing import kernels
from tilewright.schedule.steps.pace import pace_of
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.session import Session
from tilewright.target.machine import Machine
from tilewright.target.named import parse_target
from tilewright.target.target import Target

pytestmark = pytest.mark.with_scalar_kernels

TARGETS = ("zen5", "zen3", "neoverse-n1")
EXACT = 1.1
"""By how much the kernel that is estimated to be the cheapest may take longer than another one, in counted cycles:
reads from memory, which bound the products of a vector, are not in them."""


def constant(*shape: int) -> Value:
    name = current_builder().module.add_constant("w", np.ones(shape, np.float32))
    return current_builder().emit("constant", [], [tensor(dt.f32, shape)], {"name": name}).result


Body = Callable[..., Value]
KERNELS: dict[str, tuple[Sequence[tuple[int, ...]], Body]] = {
    "product": ([(64, 96)], lambda x: ct.matmul(x, constant(96, 80))),
    "product and work": ([(64, 96)], lambda x: ew.tanh(ct.matmul(x, constant(96, 80)))),
    "two of the call": ([(48, 64), (64, 40)], ct.matmul),
    "columns along the sum": ([(3, 256), (64, 256)], lambda a, b: ct.matmul(a, b, transpose_b=True)),
    "many rows and columns along the sum": (
        [(96, 64), (96, 64)],
        lambda a, b: ct.matmul(a, b, transpose_b=True),
    ),
    "vector from memory": ([(1, 2048)], lambda x: ct.matmul(x, constant(2048, 3000))),
    "vector and a matrix of the call": ([(500, 300), (300, 1)], ct.matmul),
    "maximum of windows": ([(2, 8, 30, 40)], lambda x: pool.max_pool(x, kernel=(3, 3), strides=(3, 3))),
    "sums of rows": ([(300, 700)], lambda x: rd.reduce_sum(x, axes=(1,))),
    "sums of columns": ([(300, 700)], lambda x: rd.reduce_sum(x, axes=(0,))),
    "rows and their sums": (
        [(60, 300)],
        lambda x: ew.div(x, rd.reduce_sum(ew.exp(x), axes=(1,), keepdims=True)),
    ),
    "all elements": ([(40, 50)], lambda x: rd.reduce_max(x, axes=(0, 1))),
}


@dataclass
class Seen:
    """What was asked for, and the kernels as they were then."""

    asked: list[tuple[list[Strategy], list[Strategy], Lowered]]

    def __call__(
        self, candidates: Sequence[MatchingStrategy], lowered: Lowered, target: Machine, remarks: list[Remark]
    ) -> list[MatchingStrategy]:
        found = cheapest_first(candidates, lowered, target, remarks)
        order = [c.strategy for c in candidates]
        self.asked.append((order, [c.strategy for c in found], lowered.clone()))
        return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_estimates_name_the_strategy_whose_kernel_is_the_fastest(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, body = KERNELS[name]
    seen = Seen([])
    monkeypatch.setattr(kernels, "cheapest_first", seen)
    oracle.scheduled(oracle.build([tensor(dt.f32, shape) for shape in shapes], body), target)
    assert any(len(order) > 1 for order, _, _ in seen.asked)
    for _, found, lowered in seen.asked:
        paces = [p for s in found if (p := pace(s, lowered, target)) is not None]
        assert paces[0] <= EXACT * min(paces)


def pace(strategy: Strategy, lowered: Lowered, target: str) -> float | None:
    """Counted cycles of the kernel that a strategy makes, None where it declines."""
    kernel = lowered.clone()
    try:
        strategy.schedule(Schedule(kernel.func), kernel, parse_target(target))
    except ScheduleError:
        return None
    return pace_of(kernel.func, parse_target(target), TypicalSizes({})).cycles


def test_the_kernel_for_fewer_rows_is_estimated_for_these(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = var("rows", 1, None)
    types = [tensor(dt.f32, (rows, 256)), tensor(dt.f32, (512, 256))]
    module = oracle.build(types, lambda a, b: ct.matmul(a, b, transpose_b=True))
    ctx = oracle.scheduled(module, "zen5")
    assert "contraction" in [r.message for r in ctx.remarks if r.stage == "strategy"]
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert any("vectorize_reduction" in step for step in kernel.info.schedule)  # type: ignore[union-attr]


# The estimates


def nest(elements: float, terms: float, *reads: ReadOfNest, results: int = 64, summed: int = 64) -> NestWork:
    return NestWork(elements, terms, 2, reads, 4, results, summed)


ACROSS = ReadOfNest(1, None, 64 * 64, shared=True, known=False)
ALONG = ReadOfNest(None, 1, 64 * 64, shared=True, known=False)
ZEN = parse_target("zen5")


def test_lanes_are_best_where_operands_lie_together() -> None:
    across, along = nest(64, 64, ACROSS), nest(64, 64, ALONG)
    assert form_cycles("tiles", [across], 0, ZEN) < form_cycles("rows", [across], 0, ZEN)
    assert form_cycles("rows", [along], 0, ZEN) < form_cycles("tiles", [along], 0, ZEN)
    assert form_cycles("plain", [across], 0, ZEN) > 8 * form_cycles("tiles", [across], 0, ZEN)


def test_constants_lie_as_they_are_needed_and_short_axes_leave_lanes_idle() -> None:
    known = ReadOfNest(None, None, 64 * 64, shared=True, known=True)
    assert form_cycles("tiles", [nest(64, 64, known)], 0, ZEN) == form_cycles(
        "tiles", [nest(64, 64, ACROSS)], 0, ZEN
    )
    short = nest(64, 64, ACROSS, results=2)
    assert form_cycles("tiles", [short], 0, ZEN) > 2 * form_cycles("tiles", [nest(64, 64, ACROSS)], 0, ZEN)


def test_windows_shuffle_what_lies_a_few_elements_apart() -> None:
    far, near = (nest(64, 64, ReadOfNest(n, None, 4096, shared=False, known=False)) for n in (None, 3))
    assert form_cycles("windows", [near], 0, ZEN) < form_cycles("windows", [far], 0, ZEN)


def test_what_all_forms_wait_for_is_memory() -> None:
    one, other = (form_cycles(form, [nest(64, 64, ACROSS)], 1e9, ZEN) for form in ("tiles", "plain"))
    assert one == other > 1e6


def test_nothing_is_computed_of_nothing() -> None:
    for form in ("tiles", "windows", "rows", "plain"):
        assert form_cycles(form, [nest(0, 0, ACROSS, results=0), nest(0, 8, ACROSS, summed=0)], 0, ZEN) == 0


# Plugins


def model() -> bytes:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"])], "product",
        [value("a", TensorProto.FLOAT, [16, 32]), value("b", TensorProto.FLOAT, [32, 48])],
        [value("y", TensorProto.FLOAT, [16, 48])],
    )  # fmt: skip
    made: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    return made.SerializeToString()


@dataclass(frozen=True)
class Guess(Strategy):
    """Leaves loops as they are, and says how many cycles that takes."""

    cycles: float | None
    name: str = "guess"

    def match(self, region: FusedRegion) -> Match | NoMatch:
        return Match()

    def estimate(self, counted: Counted, target: Target) -> float | None:
        assert counted.nests and counted.lowered.stages
        return self.cycles

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        s.simplify()


@pytest.mark.parametrize(("cycles", "taken"), [(1.0, "guess"), (1e9, "contraction"), (None, "guess")])
def test_a_plugin_is_compared_by_its_estimate_and_keeps_its_place_without_one(
    cycles: float | None, taken: str, tmp_path: Path
) -> None:
    session = Session(tmp_path, plugins=(Plugin("ours", strategies=(Guess(cycles),)),))
    report = tilewright.compile(model(), session=session, threads=1).report()
    assert [r.message for r in report.remarks if r.stage == "strategy"] == [taken]
    told = next(r.message for r in report.remarks if r.stage == "estimated cycles")
    names = [part.split(" ")[0] for part in told.split(", ")]
    assert {*names} == {"guess", "sliding_window", "dot_product", "contraction", "elementwise"}
    assert names.index("guess") == (0 if taken == "guess" else 4)
    assert f"guess {cycles:.4g}" in told if cycles is not None else "guess," in told


def test_an_estimate_that_fails_is_none(tmp_path: Path) -> None:
    class Failing(Guess):
        def estimate(self, counted: Counted, target: Target) -> float | None:
            raise ZeroDivisionError("no work")

    session = Session(tmp_path, plugins=(Plugin("ours", strategies=(Failing(1.0),)),))
    found = tilewright.compile(model(), session=session, threads=1)
    assert any(
        "ZeroDivisionError: no work" in r.message for r in found.report().remarks if r.kind == "failed"
    )
    a, b = np.ones((16, 32), np.float32), np.ones((32, 48), np.float32)
    np.testing.assert_array_equal(found(a, b)[0], a @ b)
    assert [r.message for r in found.report().remarks if r.stage == "strategy"] == ["contraction"]


def test_explain_says_what_matched_and_what_it_was_estimated_to_take(tmp_path: Path) -> None:
    report = tilewright.compile(model(), session=Session(tmp_path), threads=1).report()
    (tree,) = (t for t in trees(report.remarks, True) if "estimated cycles" in str(t.label))
    (line,) = (str(branch.label) for branch in tree.children)
    first, *others = (part.split(" ") for part in line.split(", "))
    assert float(first[1]) <= min(float(cycles) for _, cycles in others)
