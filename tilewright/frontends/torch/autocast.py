"""Autocast for composite operators that stay whole. It casts what the operators that it knows are given; these are in a
composite one, where PyTorch would find them, and autocast knows nothing of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

_aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

_RECURRENT = (_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input)
"""Layers of which every product is cast, and with these what they give; the states of GRUs alone keep their type."""

_DECOMPOSED = (_aten.einsum.default,)
"""Operators of which it depends on the operands whether there are products in them."""


@contextmanager
def autocast_of_composites() -> Iterator[None]:
    """While the context lasts, these operators are cast in regions of autocast as their parts would be."""
    kernels = {op: _cast(op) for op in _RECURRENT} | {op: partial(op._op_dk, _COMPOSITE) for op in _DECOMPOSED}
    with torch.library._scoped_library("aten", "IMPL", "AutocastCPU") as library:
        for op, kernel in kernels.items():
            library.impl(op, kernel)
        yield


def _cast(op: torch._ops.OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        lowered, how = pytree.tree_map(_lower, (args, kwargs))
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            found = op(*lowered, **how)
        return tuple(x.to(args[1].dtype) for x in found) if op is _aten.gru.input else found

    return kernel


def _lower(x: Any) -> Any:
    """Floats of 64 bits stay as they are."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype is torch.float64:
        return x
    return x.to(torch.get_autocast_dtype("cpu"))
