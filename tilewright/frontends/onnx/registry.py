"""Which function translates which operator: one `@adapter("Clip")` for each meaning it has had."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.ir.outside import Definitions
from tilewright.ops.define import OPERATORS, OnnxBinding, Operator

if TYPE_CHECKING:
    from tilewright.frontends.onnx.node import Node

Adapter = Callable[["Node"], Any]
"""Translates a node: gives the result Value, or a tuple of them (None for an output that is not wanted). Operands that
do not fit are for the operators to refuse; it checks what these do not see: attributes, and what is known now."""

_Table = dict[tuple[str, str], list[tuple[range, Adapter]]]
"""By domain and operator, the versions of the operator set and what translates it there, the newest first."""

_LOADED_WHEN_USED = {
    "ai.onnx.ml": "tilewright.frontends.onnx.adapters.ml",
    "com.microsoft": "tilewright.frontends.onnx.adapters.microsoft",
}
"""Packages of adapters that most models do not need, by their domains."""

_NEWEST = 10**6
_ADAPTERS: _Table = {}
_HOST_ADAPTERS: _Table = {}
"""For nodes with operands that native code cannot read."""

_BOUND: _Table = {}

_loading = threading.RLock()


def load_domain(domain: str) -> None:
    """Import the adapters of a domain, where these load when they are used."""
    if domain in _LOADED_WHEN_USED:
        with _loading, DEFINITIONS.of_the_package():
            importlib.import_module(_LOADED_WHEN_USED[domain])


def load_all() -> None:
    """Import the adapters of all domains."""
    for domain in _LOADED_WHEN_USED:
        load_domain(domain)


DEFINITIONS = Definitions()
"""Sealed when the adapters are imported: later ones are part of the key of the cache."""


def adapter(
    *names: str, since: int = 1, until: int = _NEWEST, domain: str = "", takes: str = "tensors"
) -> Callable[[Adapter], Adapter]:
    """The function translates operators `names` from opset `since` on, to the next declared one or `until`: nodes all
    of whose operands are "tensors" of numbers, those with an operand that only the "host" has, or "all"."""
    tables = {"tensors": [_ADAPTERS], "host": [_HOST_ADAPTERS], "all": [_ADAPTERS, _HOST_ADAPTERS]}[takes]

    def register(fn: Adapter) -> Adapter:
        if not fn.__module__.startswith("tilewright."):
            load_domain(domain)  # so that a second adapter of an operator is an error of whoever adds it
        for table in tables:
            for name in names:
                _add(table, (domain, name), range(since, until + 1), fn)
        DEFINITIONS.note(domain, names, since, until, takes, fn)
        return fn

    return register


def _add(table: _Table, key: tuple[str, str], versions: range, fn: Adapter) -> None:
    found = table.setdefault(key, [])
    assert all(v[0] != versions[0] for v, _ in found), f"{key[1]}-{versions[0]} has two adapters"
    found.append((versions, fn))
    found.sort(key=lambda entry: -entry[0][0])


_CONDITIONS: dict[tuple[str, str], Callable[[Node], None]] = {}


def condition(name: str, domain: str = "") -> Callable[[Callable[[Node], None]], Callable[[Node], None]]:
    """The function raises where the operands of a node with this operator do not fit, or demands that they do, before
    the decomposition of the specification, which takes that for granted, is used."""

    def register(fn: Callable[[Node], None]) -> Callable[[Node], None]:
        assert (domain, name) not in _CONDITIONS, f"{name} has two conditions"
        _CONDITIONS[domain, name] = fn
        DEFINITIONS.note(domain, (name,), fn)
        return fn

    return register


def find_condition(domain: str, op: str) -> Callable[[Node], None] | None:
    """What must hold of a node before its decomposition is used; None where it says so itself."""
    load_domain(domain)
    return _CONDITIONS.get((domain, op))


_REFUSED: dict[tuple[str, str], str] = {}


def refuse(reason: str, *names: str, domain: str = "") -> None:
    """Nodes with these operators, which are known, are refused with the reason."""
    for name in names:
        _REFUSED[domain, name] = reason


def refusal(domain: str, op: str) -> str | None:
    """Why an operator that is known is refused; None where no decision about it was made."""
    load_domain(domain)
    return _REFUSED.get((domain, op))


def refused() -> dict[tuple[str, str], str]:
    """Why each operator is refused that is known and not translated."""
    load_all()
    return dict(_REFUSED)


_binding = threading.Lock()


def bind_operators() -> None:
    """Make adapters of the one-to-one bindings that operators declare."""
    with _binding:
        done = set(_BOUND)
        for operator in list(OPERATORS.values()):
            for binding in operator.onnx_bindings:
                key = (binding.domain, binding.name)
                if key not in done:
                    _add(_BOUND, key, range(binding.since, _NEWEST), _translation(operator, binding))


def _translation(operator: Operator, binding: OnnxBinding) -> Adapter:
    def translate(node: Node) -> Any:
        attrs = {}
        for theirs, ours in binding.attrs:
            value = node.attr(theirs, None)
            if theirs == "axis" and value is not None and value < 0:
                if value < -node.rank(0):
                    raise ValueError(f"axis {value} does not exist: the tensor has {node.rank(0)} axes")
                value += node.rank(0)
            if value is not None:
                attrs[ours] = value
        return operator(*node.given, **attrs)

    return translate


def bound(node: Node) -> Any:
    """What the operator gives that declares the node's ONNX operator as its own; in a model of an earlier opset than
    that of the ONNX operator, the first one that does."""
    key = ("", node.op)
    fn = _newest(_BOUND, key, node.version) or _BOUND[key][-1][1]
    return fn(node)


def find_adapter(domain: str, op: str, version: int) -> Adapter | None:
    """The newest adapter that is not newer than `version`; where there is none, a binding."""
    load_domain(domain)
    key = (domain, op)
    if key not in _ADAPTERS and key not in _BOUND:
        bind_operators()  # it may be one that a user has defined since
    return _newest(_ADAPTERS, key, version) or _newest(_BOUND, key, version)


def find_host_adapter(domain: str, op: str, version: int) -> Adapter | None:
    """The same for a node with an operand that only the host has."""
    load_domain(domain)
    return _newest(_HOST_ADAPTERS, (domain, op), version)


def _newest(table: _Table, key: tuple[str, str], version: int) -> Adapter | None:
    return next((fn for versions, fn in table.get(key, ()) if version in versions), None)


def translated() -> set[tuple[str, str]]:
    """Domain and name of each operator that is translated."""
    load_all()
    return {*_ADAPTERS, *_HOST_ADAPTERS, *_BOUND}
