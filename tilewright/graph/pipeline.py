"""The passes of the graph level, in the order in which a compilation runs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright.graph.algorithms.large_windows import PlainWindows
from tilewright.graph.algorithms.padding_lines import PaddingLines
from tilewright.graph.algorithms.split_depth import SplitDepth
from tilewright.graph.algorithms.two_stage_reduction import TwoStageReduction
from tilewright.graph.algorithms.winograd import Winograd
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.fusion.strategy import Strategies
from tilewright.graph.integer.integer_only import IntegerOnly
from tilewright.graph.layout.block_channels import BlockChannels
from tilewright.graph.layout.grouped_conv import GroupedConv
from tilewright.graph.layout.recurrent_steps import RecurrentSteps
from tilewright.graph.layout.strided_lines import StridedLines
from tilewright.graph.precision.narrow_products import NarrowProducts
from tilewright.graph.precision.widen_floats import WidenFloats
from tilewright.graph.quantised.byte_tables import ByteTables
from tilewright.graph.quantised.integer_products import IntegerProducts
from tilewright.graph.quantised.unit_integers import UnitIntegers
from tilewright.graph.quantised.weight_only import WeightOnly
from tilewright.graph.rewrites.affine import FoldAffine
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.dead import DropDead
from tilewright.graph.rewrites.duplicates import MergeDuplicates
from tilewright.graph.rewrites.expand import Expand
from tilewright.graph.rewrites.fold import Fold
from tilewright.graph.rewrites.hoist_scales import HoistScales
from tilewright.graph.rewrites.horizontal_fusion import HorizontalFusion
from tilewright.graph.rewrites.joined_parts import SinkIntoParts
from tilewright.graph.units.unit_padding import UnitGrain, UnitPadding
from tilewright.graph.units.unit_products import UnitProducts
from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.passes import Pass, PassOptions

_ALL: tuple[type, ...] = (
    Canonicalize, DropDead, MergeDuplicates, Fold, FoldAffine, IntegerProducts, ByteTables, Expand, WeightOnly,
    HoistScales, HorizontalFusion, SinkIntoParts, BlockChannels, PlainWindows, StridedLines, GroupedConv,
    PaddingLines, RecurrentSteps, Winograd, SplitDepth, TwoStageReduction, WidenFloats, NarrowProducts, IntegerOnly,
    UnitIntegers, UnitPadding, UnitProducts,
)  # fmt: skip


def passes_by_name(strategies: Strategies[Any]) -> dict[str, Callable[..., Pass]]:
    """Every pass by the name that the text form of a pipeline uses; fusion asks `strategies`."""
    plain = {p.name: p for p in _ALL}  # type: ignore[attr-defined]
    return plain | {Fuse.name: partial(Fuse, strategies=strategies)}


def default_passes(
    options: PassOptions, *, by_groups: bool = False, units: frozenset[DType] = frozenset()
) -> list[Pass]:
    """The passes before fusion; each asks the target of its context where that decides. `by_groups` says that groups of
    threads share rows, as on GPUs, `units` which numbers units of matrix products multiply."""
    floats = frozenset(dtype for dtype in units if dtype.is_float)
    bytes_: list[Pass] = [UnitIntegers(along_depth=True)] if dt.i8 in units else []
    canonicalize = Canonicalize(heads_apart=by_groups)
    only_integers: list[Pass] = [IntegerOnly(), canonicalize, Fold()]
    return [
        WidenFloats(floats),
        RecurrentSteps(),
        canonicalize,
        Fold(),
        canonicalize,
        *bytes_,
        *(only_integers if options.integer_only else []),
        IntegerProducts(),
        Expand(),
        canonicalize,
        Fold(),
        ByteTables(),
        SinkIntoParts(),
        FoldAffine(),
        WeightOnly(),
        HoistScales(by_groups),
        HorizontalFusion(),
        NarrowProducts(),
        BlockChannels(units=units),
        PlainWindows(),
        StridedLines(units),
        GroupedConv(),
        PaddingLines(),
        Winograd(),
        *([SplitDepth()] if by_groups else []),
        Fold(),
        canonicalize,
        Fold(),
        TwoStageReduction(by_groups),
    ]


def accelerator_passes(options: PassOptions, grains: tuple[UnitGrain, ...]) -> list[Pass]:
    """The passes before fusion for machines of the kind "accelerator": no layout of a CPU. `grains` say what their
    units multiply, and in blocks of which sizes."""
    integers: list[Pass] = [UnitIntegers()] if any(g.dtypes == ("i8", "i8", "i32") for g in grains) else []
    return [
        RecurrentSteps(),
        Canonicalize(),
        Fold(),
        Canonicalize(),
        *integers,
        Expand(),
        Canonicalize(),
        Fold(),
        FoldAffine(),
        UnitProducts(),
        UnitPadding(grains),
        MergeDuplicates(),
        Canonicalize(),
        Fold(),
    ]


KEPT = Fold(max_growth=1)
"""Constants that would take more memory when folded, as floats of few bits do, are left as they are."""


def constant_weights() -> list[Pass]:
    """For tools that change weights: passes after which these are constants, those that are moved, and those with a
    normalisation behind them."""
    return [KEPT, FoldAffine(divisions=False, fold=KEPT), MergeDuplicates(), DropDead()]
