"""Custom operators that have no adapter: those written in Python over other operators are decomposed into these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

_OWN = ("aten", "prims", "prim")
_KEYS = ("CPU", "CompositeExplicitAutograd")

Decomposition = Callable[..., Any]


def custom_decompositions(
    graph: torch.fx.GraphModule, kept: Callable[[Any], bool]
) -> dict[Any, Decomposition]:
    """The Python kernels of custom operators in a graph, by operator, of those that can be traced: they are called with
    fake tensors, and what reads values or leaves PyTorch fails."""
    found: dict[Any, Decomposition] = {}
    failed: set[Any] = set()
    for node in _nodes(graph):
        op = node.target
        if not isinstance(op, torch._ops.OpOverload) or op.namespace in _OWN or op in failed or kept(op):
            continue
        if not _is_in_python(op) or not _is_traced(op, node):
            failed.add(op)
            found.pop(op, None)
        else:
            found[op] = _kernel(op)
    return found


def _nodes(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from (node for node in module.graph.nodes if node.op == "call_function")


def _is_in_python(op: torch._ops.OpOverload) -> bool:
    name = op._schema.name.partition("::")[2] + (f".{op._overloadname}" if op._overloadname != "default" else "")
    return not op._schema.is_mutable and any(
        f"{op.namespace}/{name}/{key}" in torch.library._impls for key in _KEYS
    )


def _kernel(op: torch._ops.OpOverload) -> Decomposition:
    """What the dispatcher calls for tensors in the CPU's memory."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return lambda *args, **kwargs: op.redispatch(keys, *args, **kwargs)


def _is_traced(op: torch._ops.OpOverload, node: torch.fx.Node) -> bool:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    mode = torch._guards.detect_fake_mode(tensors) or FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            if mode.shape_env is None:
                _kernel(op)(*args, **kwargs)
            else:
                with mode.shape_env.ignore_fresh_unbacked_symbols():
                    _kernel(op)(*args, **kwargs)
    except Exception:
        return False
    return True
