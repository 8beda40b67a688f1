"""Results that are views: which of them must have the layout that PyTorch gives them.

AOTAutograd makes a result that is a view anew, of the tensor that it is a view of. It calls the operators again where
all their arguments are known, and else takes the sizes, the strides and the first element of what it is given for the
result; compiled code would give a copy, whose strides are others.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
from torch.utils import _pytree as pytree


def views_of_results(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The calls between each such result and the tensor that it is a view of, an input or another result, in order."""
    found: set[torch.fx.Node] = set()
    for node in graph.graph.nodes:
        if not _is_result(node) or not _is_view(node):
            continue
        chain, base = chain_of(node)
        if not any(map(_has_sizes, chain)):
            continue
        # Where an input begins in its memory is not known: that may be another place in each call.
        if base.op == "placeholder" or (_is_result(base) and not _is_dense_from_start(node.meta.get("val"))):
            found.update(chain)
    return [node for node in graph.graph.nodes if node in found]


def take_views_of_written_inputs(graph: torch.fx.GraphModule, metadata: ViewAndMutationMeta | None) -> None:
    """Make results that are views of inputs which the graph writes to out of these inputs, and not out of what is
    written: AOTAutograd, which makes them anew when it has written, takes nothing but their place in memory, and what
    is written begins elsewhere."""
    if metadata is None:
        return
    (output,) = graph.graph.find_nodes(op="output")
    inputs = graph.graph.find_nodes(op="placeholder")
    written = len(metadata.mutated_inp_runtime_indices)
    given = list(output.args[0])
    if (len(inputs), len(given)) != (
        len(metadata.input_info),
        written + len(metadata.output_info) + metadata.num_intermediate_bases,
    ):
        return  # tokens, or tensors of tensors
    for k, info in enumerate(metadata.output_info, written):
        if info.output_type not in _OF_INPUTS or not isinstance(given[k], torch.fx.Node):
            continue
        if info.base_idx in metadata.mutated_inp_runtime_indices:
            what = given[metadata.mutated_inp_runtime_indices.index(info.base_idx)]
            given[k] = _taken_of(inputs[info.base_idx], given[k], what)
    output.args = (tuple(given),)
    graph.graph.eliminate_dead_code()
    graph.recompile()


_OF_INPUTS = (OutputType.alias_of_input, OutputType.is_input)


def _taken_of(node: torch.fx.Node, view: torch.fx.Node, what: torch.fx.Node) -> torch.fx.Node:
    """A view of `what`, made of another tensor; itself where it is no view of that."""
    chain, _ = chain_of(view)
    tensors = [*chain, chain[-1].args[0]] if chain else [view]
    if what not in tensors:
        return view
    for old in reversed(chain[: tensors.index(what)]):
        with old.graph.inserting_after(old):
            taken = old.graph.call_function(old.target, (node, *old.args[1:]), old.kwargs)
        taken.meta = _meta_of(old, node)
        node = taken
    return node


def _meta_of(view: torch.fx.Node, node: torch.fx.Node) -> dict[str, Any]:
    """What is known of a view when it is one of another tensor: its strides may be others."""
    args, kwargs = pytree.tree_map_only(
        torch.fx.Node, lambda n: n.meta["val"], ((node, *view.args[1:]), view.kwargs)
    )
    assert callable(view.target)
    return {**view.meta, "val": view.target(*args, **kwargs)}


def chain_of(node: torch.fx.Node) -> tuple[list[torch.fx.Node], torch.fx.Node]:
    """The views that a value is made by, last first, and the tensor that is none."""
    chain: list[torch.fx.Node] = []
    while _is_view(node):
        chain.append(node)
        node = node.args[0]
    return chain, node


def _is_view(node: torch.fx.Node) -> bool:
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    is_part = node.target is operator.getitem and _is_view(node.args[0])
    return is_part or bool(getattr(node.target, "is_view", False))


def _is_result(node: torch.fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _has_sizes(node: torch.fx.Node) -> bool:
    """Whether a number among the arguments of a call is computed from sizes or from data."""
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    values = (x.meta.get("val") if isinstance(x, torch.fx.Node) else x for x in leaves)
    return any(isinstance(x, torch.SymInt) for x in values)


def _is_dense_from_start(value: Any) -> bool:
    """Whether a view has the strides and the first element that a copy has."""
    if not isinstance(value, torch.Tensor) or not same_size(value.storage_offset(), 0):
        return False
    return all(map(same_size, value.stride(), _dense_strides(value.shape)))


def _dense_strides(shape: Sequence[Any]) -> list[Any]:
    strides: list[Any] = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides[: len(shape)]


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are one expression; nothing is assumed of their symbols."""
    a, b = (x.node.expr if isinstance(x, torch.SymInt) else x for x in (a, b))
    return bool(a == b)


def is_size_known(value: torch.Tensor) -> bool:
    """Whether the place of each element in memory is known now."""
    return all(isinstance(n, int) for n in (*value.shape, *value.stride(), value.storage_offset()))
