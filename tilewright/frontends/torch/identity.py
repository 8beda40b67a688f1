"""What tells one captured program from another: its operators, its places in the source, its weights."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from tilewright.frontends.torch.capture import Captured
from tilewright.frontends.torch.origins import module_path
from tilewright.frontends.torch.tensors import digest_of_tensors, require_dense


def digest_of(captured: Captured) -> bytes:
    """Another one for another graph, other types of inputs, or other weights."""
    digest = hashlib.blake2b(digest_size=20)
    for part in (captured.inputs, captured.outputs, sorted(captured.dims.items()), captured.guards, torch.__version__):
        digest.update(repr(part).encode())
    _add_graph(digest, captured.graph)
    for name, (target, tensor) in captured.state.items():
        require_dense(tensor, f"'{target}'")
        digest.update(f"{name}:{target}:{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(captured.weights)
    return digest.digest()


def _add_graph(digest: Any, graph: torch.fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        kind = f"{value.dtype}{tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        digest.update(f"{node.format_node()};{node.args};{node.kwargs};{kind};{module_path(node)};".encode())
    for name, child in graph.named_children():
        digest.update(name.encode())
        if isinstance(child, torch.fx.GraphModule):
            _add_graph(digest, child)
    own = (*graph.named_parameters(recurse=False), *graph.named_buffers(recurse=False))
    digest.update(repr([name for name, _ in own]).encode() + digest_of_tensors(own))
