"""Recompute or store: what may be computed once for each of its readers, and what one thread may go over alone."""

from __future__ import annotations

CHEAP = 6
"""Scalar operations that may be repeated for each reader rather than stored."""

LONGEST_OF_WEIGHTS = 16
"""Scalar operations for an element of weights that a product computes of constants: for a panel of columns, or for one
tile of rows. What elements share is among them, as the scales of K-quants are, which are products themselves."""

LONGEST_INLINED = 8
"""Ops of a computation that may be written into several readers: about what one element of a store and a load take."""

MOST_FOR_ONE_THREAD = 1 << 14
"""Elements that one thread may go over alone."""


def is_cheap(operations: int) -> bool:
    """Whether so many scalar operations for an element may be repeated for each reader."""
    return operations <= CHEAP


def weights_are_cheap(operations: int) -> bool:
    """Whether products may compute their weights by so many scalar operations for an element."""
    return operations <= LONGEST_OF_WEIGHTS


def may_be_repeated(ops: int, costly: bool, shared: bool) -> bool:
    """Whether a computation of so many ops for an element is written into several readers. It is `shared` where these
    are loops over its elements, which become one loop, so that LLVM computes an element once for all of them."""
    return (shared or not costly) and ops <= LONGEST_INLINED


def one_thread_suffices(elements: int) -> bool:
    """Whether one thread may go over so many elements alone."""
    return elements <= MOST_FOR_ONE_THREAD
