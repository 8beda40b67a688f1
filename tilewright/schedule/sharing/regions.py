"""Which fused regions are the same but for names and numbers, so that one kernel serves them all.

Dims get canonical names. The constant starts of slices of a region's operands become dims too where several
regions differ in nothing else: the steps of an unrolled recurrence then share one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import TensorType
from tilewright.schedule.sharing.canonical_dims import CanonicalDims, canonical_dims, own_dims

FEWEST_STARTS = 3
"""Different starts from which on they become a dim: a constant start saves an addition or two per row."""

# The position of a `slice` in the body of its region, and one of its axes.
Site = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Canonical:
    """A region over canonical dims: `starts` are the variables that stand for constant starts of slices, `key` is equal
    for regions that can share a kernel."""

    region: Op
    dims: CanonicalDims
    starts: Mapping[Site, Sym] = field(default_factory=dict)

    @property
    def key(self) -> Any:
        numbers: dict[Value, int] = {a: k for k, a in enumerate(self._body.args)}
        rows: list[Any] = [self.region.attrs["strategy"], *map(self._type_key, self._body.args)]
        for k, op in enumerate(self._body.ops):
            attrs = tuple(sorted(self._attrs(k, op).items(), key=lambda item: item[0]))
            rows.append((op.name, tuple(numbers[v] for v in op.operands), attrs))
            for v in op.results:
                numbers[v] = len(numbers)
                rows.append(self._type_key(v))
        return tuple(rows)

    def actual(self) -> dict[Sym, Sym]:
        """What each canonical variable stands for in this region."""
        values = dict(self.dims.actual)
        for (k, axis), start in self.starts.items():
            values[start] = sym(self._body.ops[k].attrs["starts"][axis])
        return values

    def detached(self) -> Op:
        """A copy of the region over canonical variables, without operands."""
        block = Block([self._type(a) for a in self._body.args], [a.name for a in self._body.args])
        values: dict[Value, Value] = dict(zip(self._body.args, block.args, strict=True))
        for k, op in enumerate(self._body.ops):
            types = [self._type(v) for v in op.results]
            copy = Op(op.name, [values[v] for v in op.operands], types, self._attrs(k, op), loc=op.loc)
            for before, after in zip(op.results, copy.results, strict=True):
                after.name = before.name
                values[before] = after
            block.append(copy)
        results = [self._type(v) for v in self.region.results]
        return Op("fused", [], results, self.region.attrs, [block], self.region.loc)

    @property
    def _body(self) -> Block:
        return self.region.blocks[0]

    def _attrs(self, k: int, op: Op) -> dict[str, Any]:
        attrs = {name: self.dims.of(value) for name, value in op.attrs.items()}
        if op.name == "stretch":
            attrs["of"] = ""  # words for users
        for (slice, axis), start in self.starts.items():
            if slice == k:
                attrs["starts"] = (*attrs["starts"][:axis], start, *attrs["starts"][axis + 1 :])
        return attrs

    def _type(self, value: Value) -> TensorType:
        return TensorType(value.tensor.dtype, self.dims.of(value.tensor.shape))

    def _type_key(self, value: Value) -> Any:
        type = self._type(value)
        return type.dtype.name, type.shape


def canonical_regions(regions: Sequence[Op], same: Mapping[Sym, Sym] | None = None) -> dict[Op, Canonical]:
    """Every region over canonical dims. `same` has what stands for dims that are equal to others."""
    plain = {region: Canonical(region, canonical_dims(region, same)) for region in regions}
    groups: dict[Any, list[Canonical]] = {}
    for region in plain.values():
        if sites := _constant_starts(region.region):
            opened = Canonical(region.region, region.dims, dict.fromkeys(sites, _ANY_START))
            groups.setdefault((opened.key, tuple(sites)), []).append(region)
    for group in groups.values():
        starts = _differing_starts([_constant_starts(member.region) for member in group])
        plain |= {member.region: Canonical(member.region, member.dims, starts) for member in group}
    return plain


def own_regions(regions: Sequence[Op]) -> dict[Op, Canonical]:
    """Every region over the dims of the model, for a kernel of its own."""
    return {region: Canonical(region, own_dims(region)) for region in regions}


_ANY_START = var("start", None)


def _differing_starts(starts: Sequence[Mapping[Site, int]]) -> dict[Site, Sym]:
    """A variable for each site at which the regions of a group differ; none where few of them do."""
    if len({tuple(s.values()) for s in starts}) < FEWEST_STARTS:
        return {}
    found: dict[Site, Sym] = {}
    for site in starts[0]:
        values = [s[site] for s in starts]
        if min(values) < max(values):
            found[site] = var(f"start{len(found)}", min(values), max(values))
    return found


def _constant_starts(region: Op) -> dict[Site, int]:
    """The constant starts of slices that read an operand of the region: these only move an address.

    Starts of slices of what the region computes are left alone: there they may end up in divisions.
    """
    found: dict[Site, int] = {}
    for k, op in enumerate(region.blocks[0].ops):
        if op.name == "slice" and op.operands[0].op is None:
            starts = enumerate(map(sym, op.attrs["starts"]))
            found |= {(k, axis): start.value for axis, start in starts if start.is_const}
    return found
