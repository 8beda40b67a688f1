"""Containers of arguments and results of a program, by the specification that PyTorch keeps of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from torch.utils import _pytree as pytree


def tree_of_numbers(spec: Any) -> Any:
    """The containers of a specification with the numbers of their leaves in them. A class that its package cannot make
    of numbers, such as a cache that looks into its tensors, is a dict where its context has names of its parts, and a
    list of them else."""
    try:
        return pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    except Exception:  # whatever a package does
        return _plain(spec, count())


def names_in(context: Any, parts: int) -> list[str] | None:
    """The names of so many parts, where the context of a container is these, or begins with them."""
    begins = context[:1] if isinstance(context, list | tuple) else ()
    for found in (context, *begins):
        if isinstance(found, list | tuple) and len(found) == parts and all(isinstance(name, str) for name in found):
            return list(found)
    return None


def _plain(spec: Any, numbers: Iterator[int]) -> Any:
    if spec.is_leaf():
        return next(numbers)
    parts = [_plain(part, numbers) for part in spec.children()]
    names = names_in(spec.context, len(parts))
    return parts if names is None else dict(zip(names, parts, strict=True))
