"""What tells one graph of Dynamo's from another, before it is made functional."""

from __future__ import annotations

import enum
import hashlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import SymTypes

from tilewright.frontends.torch.origins import module_path

_PLAIN: tuple[Any, ...] = (int, float, complex, bool, str, type(None), types.EllipsisType, enum.Enum)
_PLAIN += (torch.dtype, torch.device, torch.layout, torch.memory_format)
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_LIBRARIES = ("torch", "math", "_operator", "builtins")


class NoIdentityError(Exception):
    """A graph holds what has no text that tells its meaning."""


def graph_identity(graph: torch.fx.GraphModule, inputs: Sequence[Any], frozen: Sequence[bool]) -> str | None:
    """The same for graphs that mean the same, in any process with the same PyTorch: a digest of the operators, of the
    types of the inputs, and of the modes that PyTorch is in. The values of parameters are no part of it. None for
    graphs with tensors or functions of the user's in them."""
    digest = hashlib.sha256()
    try:
        for part in (torch.__version__, *_modes(), *_inputs(graph, inputs, frozen), *_nodes(graph)):
            digest.update(part.encode() + b"\n")
    except NoIdentityError:
        return None
    return digest.hexdigest()


def _modes() -> Iterator[str]:
    """What decides the meaning of operators beside the graph; Dynamo guards all of it."""
    yield f"{torch.is_grad_enabled()} {torch.is_inference_mode_enabled()} {torch.get_default_dtype()}"
    yield f"{torch.is_autocast_enabled('cpu')} {torch.get_autocast_dtype('cpu')} {torch.is_autocast_cache_enabled()}"
    yield f"{torch.are_deterministic_algorithms_enabled()}"


def _inputs(graph: torch.fx.GraphModule, inputs: Sequence[Any], frozen: Sequence[bool]) -> Iterator[str]:
    """The types of inputs, with the symbols of their sizes and what is known of these."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(inputs):
        raise NoIdentityError
    symbols: dict[Any, Any] = {}
    for node, x, is_frozen in zip(placeholders, inputs, frozen, strict=True):
        known = node.meta.get("example_value")
        if isinstance(x, torch.Tensor):
            if type(x) not in _TENSORS or not isinstance(known, torch.Tensor) or x.layout != torch.strided:
                raise NoIdentityError
            sizes = [_size(n, symbols) for n in (*known.shape, *known.stride(), known.storage_offset())]
            yield f"{is_frozen} {x.dtype} {x.device} {x.is_conj()} {x.is_neg()} {x.requires_grad} {sizes}"
        elif isinstance(x, (int, float, bool, *SymTypes)):
            yield f"{type(x).__name__} {_size(known if known is not None else x, symbols)}"
        else:
            raise NoIdentityError
    for symbol, environment in sorted(symbols.items(), key=lambda pair: str(pair[0])):
        yield f"{symbol} {environment.var_to_range.get(symbol)}"


def _size(n: Any, symbols: dict[Any, Any]) -> str:
    if isinstance(n, SymTypes):
        symbols.update(dict.fromkeys(n.node.expr.free_symbols, n.node.shape_env))
        return str(n.node.expr)
    return repr(n)


def _nodes(graph: torch.fx.GraphModule) -> Iterator[str]:
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            child = getattr(graph, str(node.target), None)
            if not isinstance(child, torch.fx.GraphModule):
                raise NoIdentityError
            yield f"{node.name} graph {node.target}"
            yield from _nodes(child)
        elif node.op == "call_module":
            raise NoIdentityError
        else:
            target = node.target if isinstance(node.target, str) else _function(node.target)
            yield f"{node.op} {node.name} {target} {_text(node.args)} {_text(node.kwargs)} {module_path(node)}"


def _function(target: Any) -> str:
    """The name of a function of PyTorch's or Python's, which means the same as long as these do."""
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        if str(target).partition(".")[0] not in ("aten", "prims"):
            raise NoIdentityError
        return str(target)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher {target.name()}"
    short = getattr(target, "__name__", "")
    if getattr(torch.nn.functional, short, None) is target:
        return f"torch.nn.functional.{short}"
    module, name = getattr(target, "__module__", None) or "torch", getattr(target, "__qualname__", "<nameless>")
    if str(module).partition(".")[0] not in _LIBRARIES or "<" in name:
        raise NoIdentityError
    return f"{module}.{name}"


def _text(value: Any) -> str:
    if isinstance(value, torch.fx.Node):
        return value.name
    if isinstance(value, slice):
        return f"slice({_text(value.start)}, {_text(value.stop)}, {_text(value.step)})"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__} {value!r}"
    raise NoIdentityError
