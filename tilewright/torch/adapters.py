"""Operators of users: how a custom operator of PyTorch's becomes a program of ours."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontends.torch import adapters as adapters  # complete before any of a user's is registered
from tilewright.frontends.torch.registry import Adapter, aten
from tilewright.runtime.errors import OptionError


def adapter(*names: str) -> Callable[[Adapter], Adapter]:
    """The decorated function translates custom operators, given as "library::name" or "library::name.overload":

        @tilewright.torch.adapter("mylib::scaled_relu")
        def scaled_relu(node, x, factor):
            return mul(relu(x), node.value(factor, node.dtype))

    Its parameters are `node` and those of the operator's schema; tensors are Values, to be given to operators of
    `tilewright.ops`. What it writes is fused as all else is. Custom operators without an adapter run in PyTorch under
    `torch.compile`, and are an UnsupportedError elsewhere. OptionError for a name without a library.
    """
    for name in names:
        if name.count("::") != 1 or not all(name.split("::")):
            raise OptionError(f"the operator name {name!r} is not allowed", hint='give "library::name"')

    def register(fn: Adapter) -> Adapter:
        for name in names:
            library, _, operator = name.partition("::")
            aten(operator, namespace=library)(fn)
        return fn

    return register
