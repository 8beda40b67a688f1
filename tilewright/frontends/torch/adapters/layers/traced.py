"""Higher-order operators that PyTorch defines by a function over other operators: the function is traced, once the
types of the operands are known, and the graph that it gives is translated in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from tilewright.frontends.torch.capture import decompositions_kept
from tilewright.frontends.torch.node import AtenNode
from tilewright.ir.core import Value


def call_traced(node: AtenNode, function: Callable[..., Any], given: Sequence[Any], told: Sequence[Any]) -> Any:
    """What `function` gives for arguments: `given` has Values in the places of tensors, `told` what PyTorch says of
    them. Subgraphs among the arguments are called as functions."""
    values, tree = pytree.tree_flatten(tuple(given))
    fakes = pytree.tree_leaves(tuple(told))
    places = [k for k, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
    fixed = [fake if isinstance(fake, torch.SymInt) else v for v, fake in zip(values, fakes, strict=True)]

    def of_tensors(*tensors: Any) -> list[Any]:
        leaves = list(fixed)
        for k, tensor in zip(places, tensors, strict=True):
            leaves[k] = tensor
        found = function(*pytree.tree_unflatten(leaves, tree))
        return [x for x in pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]

    examples = [fakes[k] for k in places]
    mode = detect_fake_mode(examples)
    with torch.no_grad(), mode or nullcontext(), decompositions_kept() as table:
        graph = make_fx(torch.func.functionalize(of_tensors), decomposition_table=table)(*examples)
    arguments: list[Value] = [values[k] for k in places]
    return node.body(graph)(*arguments)
