"""Which function translates which operator: one `@adapter("Clip", since=11)` for each meaning it has had."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.frontends.onnx.schema import default_attributes, schema_of
from tilewright.ir.outside import Definitions
from tilewright.ops.define import OPERATORS, OnnxBinding, Operator

if TYPE_CHECKING:
    from tilewright.frontends.onnx.node import Node

Adapter = Callable[["Node"], Any]
"""Translates a node: gives the result Value, or a tuple of them (None for an output that is not wanted)."""

_ADAPTERS: dict[tuple[str, str], list[tuple[int, Adapter]]] = {}

DEFINITIONS = Definitions()
"""Sealed when the adapters are imported: later ones are part of the key of the cache."""


def adapter(*names: str, since: int = 1, domain: str = "") -> Callable[[Adapter], Adapter]:
    """The function translates operators `names` from opset `since` on, to the next declared one."""

    def register(fn: Adapter) -> Adapter:
        for name in names:
            _add(domain, name, since, fn)
        DEFINITIONS.note(domain, names, since, fn)
        return fn

    return register


def _add(domain: str, name: str, since: int, fn: Adapter) -> None:
    versions = _ADAPTERS.setdefault((domain, name), [])
    assert all(v != since for v, _ in versions), f"{name}-{since} has two adapters"
    versions.append((since, fn))
    versions.sort(key=lambda v: v[0])


_binding = threading.Lock()


def bind_operators() -> None:
    """Make adapters of the one-to-one bindings that operators declare, where no adapter is declared."""
    with _binding:
        declared = set(_ADAPTERS)
        for operator in list(OPERATORS.values()):
            for binding in operator.onnx_bindings:
                if (binding.domain, binding.name) not in declared:
                    _add(binding.domain, binding.name, binding.since, _bound(operator, binding))


def _bound(operator: Operator, binding: OnnxBinding) -> Adapter:
    def translate(node: Node) -> Any:
        schema = schema_of(node.op, node.version, node.domain)
        defaults = default_attributes(schema) if schema is not None else {}
        attrs = {}
        for theirs, ours in binding.attrs:
            value = node.attr(theirs, defaults.get(theirs))
            if value is not None:
                attrs[ours] = value
        return operator(*[v for v in node.inputs if v is not None], **attrs)

    return translate


def find_adapter(domain: str, op: str, version: int) -> Adapter | None:
    """The newest adapter that is not newer than `version`."""
    if (domain, op) not in _ADAPTERS:
        bind_operators()  # it may be one that a user has defined since
    found = None
    for since, fn in _ADAPTERS.get((domain, op), ()):
        if since <= version:
            found = fn
    return found


def translated() -> dict[tuple[str, str], tuple[int, ...]]:
    """The opset versions in which each (domain, operator) got the meanings that are translated."""
    return {key: tuple(since for since, _ in versions) for key, versions in _ADAPTERS.items()}
