"""Which function translates which ATen operator: `@aten("convolution")`, or a binding that an operator declares."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tilewright.frontends.adapters import AdapterTable, signature_of
from tilewright.ir.outside import Definitions
from tilewright.ops.define import OPERATORS

if TYPE_CHECKING:
    from tilewright.frontends.torch.node import AtenNode

Adapter = Callable[..., Any]
"""`adapter(node, **arguments)`: the arguments are named as ATen's schema names them; tensors are Values, sizes Syms,
dtypes ours. It gives the result Value, or a tuple of them (None for one that is not wanted)."""

ATEN = "aten"

ALIASES = {
    "__and__": "bitwise_and", "__or__": "bitwise_or", "__xor__": "bitwise_xor", "absolute": "abs", "arccos": "acos",
    "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "linalg_matmul": "matmul",
    "multiply": "mul", "negative": "neg", "not_equal": "ne", "special_erf": "erf", "special_expit": "sigmoid",
    "special_expm1": "expm1", "special_log1p": "log1p", "special_logsumexp": "logsumexp", "subtract": "sub",
}  # fmt: skip
"""Second names of ATen operators, with the same overloads and arguments. PyTorch could decompose them into the first
ones, for which it traces a whole exported program once more."""

DEFINITIONS = Definitions()
"""Sealed when the adapters are imported: later ones are part of the key of the cache."""


_ADAPTERS: AdapterTable[str, Adapter] = AdapterTable(DEFINITIONS)
_COMPLEX: AdapterTable[str, Adapter] = AdapterTable(DEFINITIONS, "adapters for complex numbers")


def aten(*names: str, namespace: str = ATEN) -> Callable[[Adapter], Adapter]:
    """The function translates operators `names` ("sum", which means all of its overloads but those that have an adapter
    of their own, or "sum.dim_IntList") of a namespace of `torch.ops`, such as that of custom operators. A name may have
    a namespace of its own ("prims::gcd")."""
    return _ADAPTERS.adds([_full(name, namespace) for name in names])


def on_complex(*names: str, namespace: str = ATEN) -> Callable[[Adapter], Adapter]:
    """The function translates operators of which an operand or the result is complex: such tensors are ComplexPairs."""
    return _COMPLEX.adds([_full(name, namespace) for name in names], "complex")


def _full(name: str, namespace: str = ATEN) -> str:
    return name if "::" in name else f"{namespace}::{name}"


_binding = threading.Lock()


def bind_operators() -> None:
    """Make adapters of the one-to-one bindings that operators declare."""
    with _binding:
        done = _ADAPTERS.bound()
        for operator in list(OPERATORS.values()):
            for binding in operator.torch_bindings:
                name = _full(binding.name)
                if name not in done:
                    _ADAPTERS.bind(name, _translation(operator, dict(binding.attrs)))
                    done.add(name)


def _translation(function: Callable[..., Any], renamed: Mapping[str, str]) -> Adapter:
    """`renamed` are our names of attributes, by those of the arguments."""
    same = {name: name for name in signature_of(function).attributes if name not in renamed.values()}
    names = {**same, **renamed}

    def translate(node: AtenNode, **arguments: Any) -> Any:
        attrs = {ours: arguments[theirs] for theirs, ours in names.items() if arguments.get(theirs) is not None}
        return function(*node.promoted(*(a for name, a in arguments.items() if name not in names)), **attrs)

    translate.__module__ = function.__module__
    return translate


def binds(table: Mapping[str, Callable[..., Any]], **renamed: str) -> None:
    """Operators of these names are these functions: tensors and numbers, promoted to one dtype, are positional
    parameters in order, other arguments keyword-only ones of the same names, or of those that are `renamed`
    (ours="theirs")."""
    for name, function in table.items():
        aten(name)(_translation(function, {theirs: ours for ours, theirs in renamed.items()}))


def find_adapter(name: str) -> Adapter | None:
    """What translates "aten::sum.dim_IntList": an adapter or binding of the overload, or of all of "aten::sum"."""
    if not _ADAPTERS.bound():
        bind_operators()
    found = _ADAPTERS.find(*_meant_by(name))
    if found is None:
        bind_operators()  # it may be one that a user has defined since
        found = _ADAPTERS.find(*_meant_by(name))
    return found


def find_complex(name: str) -> Adapter | None:
    """What translates an operator whose operands or result are complex."""
    return _COMPLEX.find(*_meant_by(name))


def _meant_by(name: str) -> tuple[str, str]:
    """The name and that of all of its overloads; of an operator that has two names, by the first one."""
    packet, dot, overload = name.removeprefix(f"{ATEN}::").partition(".")
    if packet in ALIASES:
        name = f"{ATEN}::{ALIASES[packet]}{dot}{overload}"
    return name, name.partition(".")[0]


def translated() -> set[str]:
    """The operators that are translated, as "aten::sum" or "aten::sum.dim_IntList"."""
    bind_operators()
    return {*_ADAPTERS, *_COMPLEX, *(f"{ATEN}::{name}" for name in ALIASES)}
