"""The cost model: what it says of measured decisions, what it chooses, and how many decisions it compares."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from tilewright.cost.gemm.cache_blocking import Blocks
from tilewright.cost.gemm.cost_model import MOST_CANDIDATES, Decision, candidates, choose, cycles, why_not_cut
from tilewright.cost.gemm.register_tile import MOST_COLUMNS, GemmShape, Tile, columns_of_panel, registers_used
from tilewright.target.named import NAMED, parse_target
from tilewright.target.target import Target

MEASURED = Path(__file__).parents[2] / "bench" / "calibration"
TARGETS = {"cascadelake": "cascadelake,l3=37748736", "cascadelake-avx2": "x86-64-v3,l2=1048576,l3=37748736"}


@dataclass(frozen=True)
class Layer:
    """A layer with the measured time of each decision, in microseconds."""

    name: str
    shape: GemmShape
    times: dict[Decision, float]


def decision(text: str, lanes: int) -> Decision:
    """`rows,columns,o` or `i` (column tiles outside or inside of lines); `rows,columns,` and the blocks' extents."""
    rows, columns, *rest = text.split(",")
    tile = Tile(int(rows), int(columns), lanes)
    return Decision(tile, None, rest == ["o"]) if len(rest) == 1 else Decision(tile, Blocks(*map(int, rest)))


@lru_cache(maxsize=4)
def layers(file: str) -> list[Layer]:
    found = []
    for entry in json.loads((MEASURED / f"{file}.json").read_text()):
        shape = GemmShape(**entry["contraction"])
        times = {decision(text, shape.lanes): us for text, us in entry["microseconds"].items()}
        found.append(Layer(entry["name"], shape, times))
    return found


SETS = ("second", "third")
"""Draws that the shares are not fitted to."""

WORST, WORST_UNUSUAL = 0.25, 0.75


def drawn(machine: str, set_: str) -> list[Layer]:
    """Layers drawn by chance."""
    return layers(f"{machine}-{set_}")


def is_unusual(layer: Layer) -> bool:
    """Whether it is of a kind that the shares are not fitted to at all: many rows, or vectors along constant rows."""
    return layer.shape.transposed or (layer.shape.lines == 1 and (layer.shape.rows or 0) >= 2048)


def predicted(layer: Layer, target: Target) -> dict[Decision, float]:
    return {d: cycles(layer.shape, d, target) for d in layer.times}


def regret(layer: Layer, target: Target) -> float:
    """The time of the choice, or of the decision that the model likes best of the measured ones, beyond the least of
    all measured ones, relative to it."""
    costs = predicted(layer, target)
    taken = choose(layer.shape, target).decision
    if taken not in layer.times:
        taken = min(costs, key=costs.__getitem__)
    return layer.times[taken] / min(layer.times.values()) - 1


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's, of lists without ties."""
    ranks = [np.argsort(np.argsort(x)) for x in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


@pytest.mark.parametrize("set_", SETS)
@pytest.mark.parametrize("machine", TARGETS)
def test_regret_on_layers_drawn_by_chance(machine: str, set_: str) -> None:
    target = parse_target(TARGETS[machine])
    usual = [regret(layer, target) for layer in drawn(machine, set_) if not is_unusual(layer)]
    others = [regret(layer, target) for layer in drawn(machine, set_) if is_unusual(layer)]
    assert len(usual) >= 30 and len(others) >= (10 if set_ == "third" else 0)
    assert np.median(usual) <= 0.05 and max(usual) <= WORST
    assert max(others, default=0) <= WORST_UNUSUAL


@pytest.mark.parametrize("set_", SETS)
@pytest.mark.parametrize("machine", TARGETS)
def test_ranks_on_layers_drawn_by_chance(machine: str, set_: str) -> None:
    target = parse_target(TARGETS[machine])
    found = [
        rank_correlation(list(predicted(layer, target).values()), list(layer.times.values()))
        for layer in drawn(machine, set_)
        if len(layer.times) > 2
    ]
    assert np.median(found) >= 0.75


@pytest.mark.parametrize("set_", SETS)
@pytest.mark.parametrize("machine", TARGETS)
def test_most_choices_were_measured(machine: str, set_: str) -> None:
    target = parse_target(TARGETS[machine])
    known = [choose(layer.shape, target).decision in layer.times for layer in drawn(machine, set_)]
    assert np.mean(known) >= 0.8


MATMUL = GemmShape(
    rows=128, columns=48, depth=768, lanes=16, stride=3072, run=16, outer_depth=768, packed=True
)
POINTWISE = GemmShape(
    rows=3136, columns=16, depth=64, lanes=16, stride=64, outer_depth=4, exact_columns=True, packed=True
)
SHAPES = {
    "a layer of BERT": MATMUL,
    "a decoder's row": replace(MATMUL, rows=1, stride=0, run=0, uncut="it has no rows"),
    "a deep layer": replace(MATMUL, depth=3072, stride=12288, outer_depth=3072),
    "a pointwise convolution": POINTWISE,
    "a convolution 3x3": replace(POINTWISE, rows=14, lines=14, depth=2304, outer_depth=16, windows=7.0),
    "a large batch": replace(POINTWISE, lines=8),
    "rows of unknown number": replace(MATMUL, rows=None, uncut="the number of rows is not known"),
    "nothing known": GemmShape(rows=None, columns=None, depth=None, lanes=16),
    "odd": GemmShape(rows=33, columns=9, depth=65, lanes=16, stride=260, run=4, outer_depth=65),
}
NAMES = ("x86-64-v4", "zen3", "aarch64-neon", "zen3,cores=64")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_few_decisions_are_compared_and_all_fit_the_registers(shape: GemmShape, name: str) -> None:
    target = parse_target(name)
    found = candidates(shape, target)
    assert 1 <= len(found) <= MOST_CANDIDATES
    for d in found:
        assert registers_used(d.tile, shape.element, target) <= target.vector_registers or d.tile.rows == 1
    assert choose(shape, target).decision in found


@pytest.mark.parametrize(("name", "sums"), [("x86-64-v4", 20), ("zen3", 8), ("aarch64-neon", 12)])
@pytest.mark.parametrize("kind", ["a layer of BERT", "a pointwise convolution", "a convolution 3x3"])
def test_large_tiles_fill_the_registers(name: str, sums: int, kind: str) -> None:
    """Sums enough for two FMA units of four cycles' latency, and more where registers allow."""
    target = parse_target(name)
    tile = choose(SHAPES[kind], target).decision.tile
    assert tile.rows * tile.columns * max(1, 512 // target.vector_bits) >= sums


@pytest.mark.parametrize("name", NAMES)
def test_a_row_alone_reads_each_column_once(name: str) -> None:
    choice = choose(SHAPES["a decoder's row"], parse_target(name))
    assert choice.decision.tile.rows == 1 and choice.decision.blocks is None


@pytest.mark.parametrize("columns", [1, 3, 4, 20])
def test_panels_of_widened_weights_are_never_the_whole_matrix(columns: int) -> None:
    """Also on machines that take longer for a vector than the least that it takes elsewhere."""
    for name, target in NAMED.items():
        lanes = target.f32_lanes
        shape = GemmShape(None, 65536 // lanes, 768, lanes, widened=2)
        found = columns_of_panel(Tile(9, columns, lanes), shape, target)
        assert found % columns == 0 and found <= max(MOST_COLUMNS, columns), name


@pytest.mark.parametrize(("depth", "cores", "columns"), [(1536, 1, 8), (1536, 2, 4), (40, 2, 8)])
def test_every_core_has_a_tile_where_there_is_work_enough(depth: int, cores: int, columns: int) -> None:
    """A row of 128 columns: one tile is best for one core, and for a short sum."""
    shape = GemmShape(rows=1, lines=1, columns=8, depth=depth, outer_depth=depth, around=1, lanes=16)
    tile = choose(shape, parse_target(f"cascadelake,cores={cores}")).decision.tile
    assert tile.columns == columns


def test_rows_that_crowd_the_cache_are_copied_in_blocks() -> None:
    assert choose(SHAPES["a deep layer"], parse_target("x86-64-v4")).decision.blocks is not None


def test_more_of_the_same_takes_longer() -> None:
    target = parse_target("zen3")
    for shape in (MATMUL, POINTWISE):
        assert shape.rows is not None
        once, twice = (choose(replace(shape, rows=n * shape.rows), target).cycles for n in (1, 2))
        assert 1.5 * once < twice < 2.5 * once


def test_reasons_have_figures() -> None:
    choice = choose(POINTWISE, parse_target("x86-64-v4"))
    assert choice.decision.blocks is None
    (first, *_) = choice.missed
    assert first.startswith("tile ") and "million cycles predicted" in first and str(choice.decision) in first
    assert "without blocks" in why_not_cut(POINTWISE, choice)
    assert why_not_cut(replace(POINTWISE, uncut="it has no rows"), choice) == "it has no rows"
