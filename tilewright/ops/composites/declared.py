"""The functions over operators that are listed: on the page of operators, and tried by samples as operators are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

COMPOSITES: dict[str, Callable[..., Any]] = {}
"""By family, which is a file, and name: `special.erfinv`. Filled when their files are imported."""


def composite(function: F) -> F:
    """Declare a function over operators, which stays as it is: it writes operators wherever it is called, and no pass
    sees it. Parameters that are values, complex pairs or sequences of values are its operands, others its attributes;
    the docstring is what the page says."""
    family = function.__module__.rpartition(".")[2]
    COMPOSITES[f"{family}.{function.__name__}"] = function
    return function
