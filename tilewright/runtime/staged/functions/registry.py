"""Functions that the host calls between parts of native code, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.runtime.errors import ArtifactError, TilewrightError

HostFunction = Callable[..., tuple[Any, ...]]

FUNCTIONS: dict[str, Callable[..., HostFunction]] = {}
"""Each takes the parameters of a step by name, and gives what is called with the values of its operands, and gives a
tuple of results."""


HANDS_ON: set[str] = set()
"""Functions whose results may be what they are given, or hold it, as a list holds its elements. Those of others share
no memory with it."""


def hands_on(function: HostFunction) -> HostFunction:
    """Note that results of a function may be what it is given, or hold it."""
    HANDS_ON.add(function.__name__)
    return function


def host_function(function: HostFunction) -> HostFunction:
    """Register a function under its name, which takes operands and, by name, parameters."""
    FUNCTIONS[function.__name__] = lambda **parameters: partial(function, **parameters)
    return function


def prepared(make: Callable[..., HostFunction]) -> Callable[..., HostFunction]:
    """Register a function under its name, which takes parameters and gives the function of the operands: it is called
    once, when a model is loaded."""
    FUNCTIONS[make.__name__] = make
    return make


def bound(name: str, parameters: Mapping[str, Any]) -> HostFunction:
    """The function of a step; ArtifactError for an unknown one, and for parameters that it does not take."""
    again = "compile the model again, or install the version of tilewright that it was compiled with"
    if name not in FUNCTIONS:
        raise ArtifactError(f"the model calls the function '{name:.80}', which does not exist", hint=again)
    try:
        return FUNCTIONS[name](**{key: _parameter(value) for key, value in parameters.items()})
    except TilewrightError:
        raise
    except Exception as error:  # whatever parameters of another version may cause
        raise ArtifactError(f"the function '{name}' does not take its parameters ({error})", hint=again) from error


def _parameter(value: Any) -> Any:
    """A parameter of its JSON data, which has no infinities (see `StagedProgram.record`)."""
    if isinstance(value, Mapping):
        return float(value["float"])
    return [_parameter(v) for v in value] if isinstance(value, list) else value
