"""Functions that the host calls between parts of native code, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Each takes the values of its operands and its parameters by name, and gives a tuple of results."""


def host_function(function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Register a function under its name."""
    FUNCTIONS[function.__name__] = function
    return function
