"""How results of a graph lie in memory, as eager PyTorch has them: their strides, and which of them share elements.

Compiled code writes each of its outputs densely and in order. A result whose axes lie in another order is an output
with its axes in that order, looked at the other way round; several views of one tensor are that tensor as an output,
and views of it; what has gaps between its elements is copied to memory that has them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tilewright.torch.views import chain_of, is_size_known, same_size

Ints = tuple[int, ...]


class Layout(NamedTuple):
    """How a result is made of an output: "view": the memory seen with a size, strides and a first element; "axes": the
    axes in another order; "spread": copied to memory with these strides, where those in `offset`'s place that are
    repeated have one element."""

    kind: str
    size: Ints = ()
    stride: Ints = ()
    offset: int = 0

    def of(self, output: torch.Tensor) -> torch.Tensor:
        if self.kind == "axes":
            return output.permute(self.size)
        if self.kind == "view":
            return output.as_strided(self.size, self.stride, self.offset)
        spread = torch.empty_strided(self.size, self.stride, dtype=output.dtype)
        once = tuple(1 if step == 0 else n for n, step in zip(self.size, self.stride, strict=True))
        spread.as_strided(once, self.stride).copy_(output.permute(_order(self.stride, inverse=True)))
        return spread


@dataclass(frozen=True, eq=False)
class Stored:
    """An output of compiled code: a value, of whose repeated axes one element is taken, with its axes in an order."""

    node: torch.fx.Node
    order: Ints = ()
    single: Ints = ()


@dataclass(frozen=True)
class Layouts:
    """The outputs that compiled code gives, and which of them each result is made of, and how."""

    stored: tuple[Stored, ...]
    results: tuple[tuple[int, Layout | None], ...]


def layouts_of(results: Sequence[torch.fx.Node], is_part: bool) -> Layouts:
    """Of the results of a graph that are tensors or numbers. AOTAutograd makes those of a whole graph that are views of
    inputs; a part of one gives what others read."""
    bases = {r: chain_of(r)[1] for r in results}
    stored: dict[tuple[torch.fx.Node, Ints, Ints], int] = {}

    def place(what: Stored) -> int:
        return stored.setdefault((what.node, what.order, what.single), len(stored))

    found: list[tuple[int, Layout | None]] = []
    for r in results:
        value, base = r.meta.get("val"), bases[r]
        if not isinstance(value, torch.Tensor) or (base.op == "placeholder" and not is_part):
            found.append((place(Stored(r)), None))
            continue
        shares = (
            base.op != "placeholder" and sum(b is base for b in {k: bases[k] for k in results}.values()) > 1
        )
        what, layout = (_as_view(r, base) if shares else None) or _alone(r, base)
        found.append((place(what), layout))
    return Layouts(tuple(Stored(*key) for key in stored), tuple(found))


def eager_views(graph: torch.fx.GraphModule, is_split: bool) -> list[torch.fx.Node]:
    """The calls that make results which PyTorch must make: views whose place in memory is not known now, what these are
    views of where it has gaps, and all views where the graph is split into parts."""
    results = [node for node in graph.graph.nodes if any(user.op == "output" for user in node.users)]
    bases = {r: chain_of(r) for r in results}
    found: dict[torch.fx.Node, None] = {}
    for r, (chain, base) in bases.items():
        if base.op == "placeholder":
            continue
        shares = sum(other is base for _, other in bases.values()) > 1
        known = _as_view(r, base) is not None if shares else _is_laid_out(r)
        if is_split or not known:
            found.update(dict.fromkeys(chain))
            if not _is_laid_out(base) and base.target is not operator.getitem:
                found.update(dict.fromkeys((base, *_views_of_inputs(base))))
    return [node for node in graph.graph.nodes if node in found]


def _views_of_inputs(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The views of inputs that a call takes: a copy that keeps their gaps must see them as they are."""
    chains = [chain_of(operand) for operand in node.all_input_nodes]
    return [view for chain, base in chains if base.op == "placeholder" for view in chain]


def _as_view(r: torch.fx.Node, base: torch.fx.Node) -> tuple[Stored, Layout | None] | None:
    """A result as a view of the tensor that others are views of, too; None where that is not known now."""
    value, whole = r.meta["val"], base.meta.get("val")
    if not isinstance(whole, torch.Tensor) or not (is_size_known(value) and is_size_known(whole)):
        return None
    if (
        value.dtype is not whole.dtype
        or value.is_conj() != whole.is_conj()
        or value.is_neg() != whole.is_neg()
    ):
        return None
    order = _order(whole.stride())
    if not _is_dense(whole, order):
        return None
    offset = int(value.storage_offset()) - int(whole.storage_offset())
    layout = Layout("view", tuple(value.shape), tuple(value.stride()), offset)
    is_plain = r is base and _in_order(order) and tuple(whole.stride()) == _strides(whole.shape)
    return Stored(base, () if _in_order(order) else order), None if is_plain else layout


def _alone(r: torch.fx.Node, base: torch.fx.Node) -> tuple[Stored, Layout | None]:
    """A result that shares its memory with no other."""
    value = r.meta["val"]
    order = _order(value.stride())
    dense = () if _in_order(order) else order
    if not is_size_known(value):
        inverse = tuple(order.index(k) for k in range(len(order)))
        return Stored(r, dense), Layout("axes", inverse) if dense else None
    size, stride = tuple(value.shape), tuple(value.stride())
    if stride == _strides(size):
        return Stored(r), None
    if _is_dense(value, order):
        return Stored(r, dense), Layout("view", size, stride)
    if _is_apart(value, order):
        single = tuple(k for k, (n, step) in enumerate(zip(size, stride, strict=True)) if n > 1 and step == 0)
        return Stored(r, dense, single), Layout("spread", size, stride)
    return _as_view(r, base) or (Stored(r), None)


def _is_laid_out(r: torch.fx.Node) -> bool:
    """Whether a result alone can be given the strides that it has."""
    value = r.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return True
    order = _order(value.stride())
    if _is_dense(value, order):
        return True
    return is_size_known(value) and _is_apart(value, order)


def _order(stride: Sequence[Any], *, inverse: bool = False) -> Ints:
    """The axes by their strides, the largest first; those of unknown size by what is expected of it."""
    steps = [_hint(step) for step in stride]
    order = tuple(sorted(range(len(steps)), key=lambda k: -steps[k]))
    return tuple(order.index(k) for k in range(len(order))) if inverse else order


def _hint(n: Any) -> int:
    if not isinstance(n, torch.SymInt):
        return int(n)
    hint = n.node.hint if n.node.has_hint() else None
    return int(hint) if hint is not None else 1


def _in_order(order: Ints) -> bool:
    return order == tuple(range(len(order)))


def _is_dense(value: torch.Tensor, order: Ints) -> bool:
    """Whether elements follow each other without gaps when the axes are in this order. Where one element or none is
    along an axis, its stride means nothing."""
    if is_size_known(value) and not value.numel():
        return True
    expected: Any = 1
    for axis in reversed(order):
        n, step = value.shape[axis], value.stride(axis)
        if same_size(n, 1):
            continue
        if not same_size(step, expected):
            return False
        expected = expected * n
    return True


def _is_apart(value: torch.Tensor, order: Ints) -> bool:
    """Whether no two elements lie in one place, but for axes along which all do."""
    extent = 1
    for axis in reversed(order):
        n, step = value.shape[axis], value.stride(axis)
        if n == 1 or step == 0:
            continue
        if step < extent:
            return False
        extent += (n - 1) * step
    return True


def _strides(shape: Sequence[int]) -> Ints:
    """As PyTorch gives them to a tensor that it makes: an axis without elements counts as one with one."""
    found: list[int] = []
    step = 1
    for n in reversed(shape):
        found.insert(0, step)
        step *= max(n, 1)
    return tuple(found)
