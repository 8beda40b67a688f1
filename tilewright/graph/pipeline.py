"""The passes of the graph level, in the order in which a compilation runs them."""

from __future__ import annotations

from typing import Any

from tilewright.graph.affine import FoldAffine
from tilewright.graph.canonicalize import Canonicalize
from tilewright.graph.dead import DropDead
from tilewright.graph.duplicates import MergeDuplicates
from tilewright.graph.expand import Expand
from tilewright.graph.factors import LiftFactors
from tilewright.graph.fold import Fold
from tilewright.graph.fuse import Fuse
from tilewright.graph.groups import GroupAxis
from tilewright.graph.integer_products import IntegerProducts
from tilewright.graph.layout import BlockChannels
from tilewright.graph.line_sums import LineSums
from tilewright.graph.narrow import NarrowWeights
from tilewright.graph.side_by_side import MergeProducts
from tilewright.graph.winograd import Winograd
from tilewright.ir.passes import Pass

_ALL: tuple[type, ...] = (
    Canonicalize, DropDead, MergeDuplicates, Fold, FoldAffine, IntegerProducts, Expand, NarrowWeights, LiftFactors,
    MergeProducts, BlockChannels, GroupAxis, Winograd, LineSums, Fuse,
)  # fmt: skip

PASSES: dict[str, type] = {p.name: p for p in _ALL}  # type: ignore[attr-defined]
"""Every pass by the name that the text form of a pipeline uses."""


def default_passes(target: Any, options: Any) -> list[Pass]:
    """The passes before fusion, for a target and compile options."""
    return [
        Canonicalize(),
        Fold(),
        Canonicalize(),
        IntegerProducts(),
        Expand(),
        Canonicalize(),
        Fold(),
        FoldAffine(),
        NarrowWeights(),
        LiftFactors(),
        MergeProducts(),
        BlockChannels(),
        GroupAxis(),
        Winograd(),
        Fold(),
        Canonicalize(),
        Fold(),
        LineSums(),
    ]
