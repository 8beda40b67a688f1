"""Whether parameters hold what code was made with, however they were written to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from tilewright.runtime.errors import OptionError
from tilewright.torch.watch import Span, Watch

WATCHED, FROZEN = "watched", "frozen"


def weights_option(given: Any) -> str:
    """The option `weights`: "watched", where each call sees any write to a parameter, or "frozen", where it sees those
    that PyTorch counts. OptionError for another."""
    if given not in (WATCHED, FROZEN):
        raise OptionError(
            f"weights={given!r} is not allowed",
            hint=f"'{WATCHED}' sees all writes to parameters; '{FROZEN}' those that PyTorch counts, and what others "
            "wrote when tilewright.torch.refresh() is called",
        )
    return str(given)


def without_weights(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are the compiler's."""
    return {name: value for name, value in options.items() if name != "weights"}


Key = tuple[Any, ...]
"""What tells parameters in a call from those of the last one: the address of each, and where writes are counted and not
watched, how often it was written to."""


def key_of(weights: str, places: Sequence[int]) -> Callable[[Sequence[Any]], Key]:
    """What gives the key of the parameters at some places of a call's arguments."""
    if not places:
        return lambda args: ()
    take = itemgetter(*places) if len(places) > 1 else lambda args: (args[places[0]],)
    address = torch.Tensor.data_ptr
    if weights == WATCHED:
        return lambda args: tuple(map(address, take(args)))
    return lambda args: tuple([(x.data_ptr(), x._version) for x in take(args)])


def addresses_in(key: Key) -> tuple[int, ...]:
    return tuple(entry[0] if isinstance(entry, tuple) else entry for entry in key)


def is_readable(x: Any) -> bool:
    """Whether this is a tensor whose elements lie in the memory of this process."""
    return (
        isinstance(x, torch.Tensor)
        and x.device.type == "cpu"
        and x.layout == torch.strided
        and not isinstance(x, FakeTensor)
    )


def watch(tensors: Iterable[torch.Tensor], weights: str) -> Watch:
    return Watch([_span(tensor) for tensor in tensors], trusts=weights == FROZEN)


def _span(tensor: torch.Tensor) -> Span:
    """The memory between the first and the last element."""
    if not tensor.numel():
        return 0, 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.itemsize
