"""Which function translates which operator: one `@adapter("Clip")` for each meaning it has had."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tilewright.frontends.adapters import EVERY, AdapterTable, LatePackages
from tilewright.ir.outside import Definitions
from tilewright.ops.define import OPERATORS

if TYPE_CHECKING:
    from tilewright.frontends.onnx.node import Node

Adapter = Callable[["Node"], Any]
"""Translates a node: gives the result Value, or a tuple of them (None for an output that is not wanted). Operands that
do not fit are for the operators to refuse; it checks what these do not see: attributes, and what is known now."""

Key = tuple[str, str]
"""Domain and name of an operator."""

DEFINITIONS = Definitions()
"""Sealed when the adapters are imported: later ones are part of the key of the cache."""

_LATE = LatePackages(DEFINITIONS, {
    "": "tilewright.frontends.onnx.adapters.rare",
    "ai.onnx.ml": "tilewright.frontends.onnx.adapters.ml",
    "ai.onnx.preview.training": "tilewright.frontends.onnx.adapters.rare",
    "com.microsoft": "tilewright.frontends.onnx.adapters.microsoft",
})  # fmt: skip
load_all = _LATE.load_all


def _load_domain(key: Key) -> None:
    _LATE.load(key[0])


_ADAPTERS: AdapterTable[Key, Adapter] = AdapterTable(DEFINITIONS, load_rest=_load_domain)
_HOST_ADAPTERS: AdapterTable[Key, Adapter] = AdapterTable(DEFINITIONS, load_rest=_load_domain)
"""For nodes with operands that native code cannot read."""

_CONDITIONS: AdapterTable[Key, Callable[[Node], None]] = AdapterTable(DEFINITIONS, "conditions", _load_domain)
_REFUSED: dict[Key, str] = {}


def adapter(
    *names: str, since: int = 1, until: int = EVERY[-1], domain: str = "", takes: str = "tensors"
) -> Callable[[Adapter], Adapter]:
    """The function translates operators `names` from opset `since` on, to the next declared one or `until`: nodes all
    of whose operands are "tensors" of numbers, those with an operand that only the "host" has, or "all"."""
    tables = {"tensors": [_ADAPTERS], "host": [_HOST_ADAPTERS], "all": [_ADAPTERS, _HOST_ADAPTERS]}[takes]
    keys = [(domain, name) for name in names]

    def register(fn: Adapter) -> Adapter:
        for table in tables:
            table.adds(keys, takes, versions=range(since, until + 1))(fn)
        return fn

    return register


def condition(name: str, domain: str = "") -> Callable[[Callable[[Node], None]], Callable[[Node], None]]:
    """The function raises where the operands of a node with this operator do not fit, or demands that they do, before
    the decomposition of the specification, which takes that for granted, is used."""
    return _CONDITIONS.adds([(domain, name)])


def find_condition(domain: str, op: str) -> Callable[[Node], None] | None:
    """What must hold of a node before its decomposition is used; None where it says so itself."""
    return _CONDITIONS.find((domain, op))


def refuse(reason: str, *names: str, domain: str = "") -> None:
    """Nodes with these operators, which are known, are refused with the reason."""
    for name in names:
        _REFUSED[domain, name] = reason


def refusal(domain: str, op: str) -> str | None:
    """Why an operator that is known is refused; None where no decision about it was made."""
    _LATE.load(domain)
    return _REFUSED.get((domain, op))


def refused() -> dict[Key, str]:
    """Why each operator is refused that is known and not translated."""
    load_all()
    return dict(_REFUSED)


_binding = threading.Lock()


def bind_operators() -> None:
    """Make adapters of the one-to-one bindings that operators declare."""
    with _binding:
        done = _ADAPTERS.bound()
        for operator in list(OPERATORS.values()):
            for binding in operator.onnx_bindings:
                key = (binding.domain, binding.name)
                if key not in done:
                    renamed = {ours: theirs for theirs, ours in binding.attrs}
                    _ADAPTERS.bind(key, _translation(operator, renamed), range(binding.since, EVERY.stop))


def _translation(function: Callable[..., Any], renamed: Mapping[str, str]) -> Adapter:
    def translate(node: Node) -> Any:
        return node.applied(function, **renamed)

    translate.__module__ = function.__module__
    return translate


def binds(
    table: Mapping[str, Callable[..., Any]], *, since: int = 1, domain: str = "", **renamed: str
) -> None:
    """Operators of these names are these functions: operands are positional parameters, attributes keyword-only ones
    of the same names, or of those that are `renamed` (ours="theirs")."""
    for name, function in table.items():
        adapter(name, since=since, domain=domain)(_translation(function, renamed))


def bound(node: Node) -> Any:
    """What the operator gives that declares the node's ONNX operator as its own; in a model of an earlier opset than
    that of the ONNX operator, the first one that does."""
    return _ADAPTERS.binding(("", node.op), node.version)(node)


def find_adapter(domain: str, op: str, version: int) -> Adapter | None:
    """The newest adapter that is not newer than `version`; where there is none, a binding."""
    key = (domain, op)
    if key not in _ADAPTERS:
        bind_operators()  # it may be one that a user has defined since
    return _ADAPTERS.find(key, version=version)


def find_host_adapter(domain: str, op: str, version: int) -> Adapter | None:
    """The same for a node with an operand that only the host has."""
    return _HOST_ADAPTERS.find((domain, op), version=version)


def translated() -> set[Key]:
    """Domain and name of each operator that is translated."""
    load_all()
    return {*_ADAPTERS, *_HOST_ADAPTERS}
