"""Values of symbolic dims at call time: from the shapes of the inputs, and from small integer inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tilewright.ir.core import Block, Func, Value
from tilewright.ir.diag import InputError
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import TensorType

MAX_ELEMENTS = 256
"""Integer inputs of at most this many elements may determine shapes."""

SIZES = "sizes"
"""The input of a part of a staged program whose elements are the values of variables."""


def input_variables(value: Value) -> np.ndarray | None:
    """The variables `val_<name>_<i>` that stand for the elements of a graph input, as an array of Syms.

    None where the input cannot determine shapes: it must be a small integer scalar or vector of static size. A
    function that says in `elements` which variables its inputs hold has no others.
    """
    type, owner = value.type, value.owner.parent if isinstance(value.owner, Block) else None
    if isinstance(owner, Func) and (elements := owner.attrs.get("elements")) is not None:
        return np.array(elements[value.name], object) if value.name in elements else None
    if (
        not isinstance(type, TensorType)
        or not type.is_static
        or type.rank > 1
        or type.dtype.kind not in ("int", "uint")
    ):
        return None
    size = type.size.value
    if size > MAX_ELEMENTS or not value.name:
        return None
    name = re.sub(r"\W", lambda c: f"_{ord(c[0]):x}_", value.name, flags=re.ASCII)
    symbols = np.empty(size, object)
    symbols[:] = [var(f"val_{name}_{i}", None) for i in range(size)]
    return symbols.reshape([d.value for d in type.shape])


def is_input_value(variable: Sym) -> bool:
    """Does the variable stand for an element of an input, and not for a dim?"""
    return variable.name.startswith("val_")


def bound_dims(args: Sequence[Value], arrays: Sequence[np.ndarray]) -> dict[str, int]:
    """The value of every variable that the inputs determine; InputError where a shape does not fit."""
    env: dict[str, int] = {}
    for arg, array in zip(args, arrays, strict=True):
        type = arg.tensor
        if array.ndim != type.rank or array.dtype != type.dtype.storage:
            _misfit(arg, array)
        for d, size in zip(type.shape, array.shape, strict=True):
            if d.kind == "var" and env.setdefault(d.name, size) != size:
                _misfit(arg, array, f" (dim '{d}' is {env[d.name]} by another input)")
        if (symbols := input_variables(arg)) is not None and symbols.shape == array.shape:
            env |= {v.name: int(x) for v, x in zip(symbols.flat, array.flat, strict=True)}
    for arg, array in zip(args, arrays, strict=True):
        for d, size in zip(arg.tensor.shape, array.shape, strict=True):
            if all(v.name in env for v in d.vars) and d.evaluate(env) != size:
                _misfit(arg, array)
    return env


def _misfit(arg: Value, array: np.ndarray, why: str = "") -> None:
    raise InputError(
        f"input '{arg.name}' must be {arg.type}, not {array.dtype}{list(array.shape)}{why}",
        hint="give an array of that dtype and shape",
    )
