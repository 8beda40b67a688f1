"""Turns what a caller passes into arrays that native code can read, or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.errors import InputError
from tilewright.runtime.values.dlpack import shared_array
from tilewright.runtime.values.dtypes import is_integer
from tilewright.runtime.values.torch_tensors import is_torch_tensor, refusal, torch_array

INDICES = "indices"
"""Of what is attached to an artefact: for each input whose elements are looked up the numbers of rows that these are
below, each a number or a text of dims."""

Shape = tuple[int, ...]


def check_named(inputs: Any) -> Mapping[str, Any]:
    """`inputs`, if that is a mapping; InputError otherwise."""
    if isinstance(inputs, Mapping):
        return inputs
    raise InputError(
        f"inputs by name must be a dict of names to arrays, not {type(inputs).__name__}",
        hint='call run({"x": x}), or model(x) for inputs by position',
    )


def place_named(
    infos: Sequence[TensorInfo], args: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Arguments in the order of the inputs; InputError for missing, extra, unknown or doubled ones."""
    if len(args) > len(infos):
        raise InputError(f"{len(args)} positional inputs given, {len(infos)} expected", hint=_all(infos))
    if not args and len(named) == len(infos):  # the usual way is short, as small models take microseconds
        try:
            return tuple([named[info.name] for info in infos])
        except KeyError:
            pass  # which one is said below
    names = [info.name for info in infos]
    for name in named:
        if name not in names:
            raise InputError(f"there is no input {name!r:.80}", hint=_all(infos))
        if name in names[: len(args)]:
            raise InputError(f"input '{name}' is given both by position and by name", hint=_all(infos))
    missing = [info for info in infos[len(args) :] if info.name not in named]
    if missing:
        raise InputError(f"missing inputs: {', '.join(map(str, missing))}", hint=_all(infos))
    return args + tuple(named[name] for name in names[len(args) :])


def _all(infos: Sequence[TensorInfo]) -> str:
    return f"the model's inputs are: {', '.join(map(str, infos)) or 'none'}"


def as_array(value: Any, info: TensorInfo, dtype: np.dtype) -> np.ndarray:
    """`value` as a C-contiguous, aligned array of `dtype`, copied only where its memory does not fit.

    Arrays and tensors must have the dtype already; Python numbers and lists are converted when no value
    changes in kind or overflows. InputError otherwise.
    """
    if is_torch_tensor(value):
        array = _from_torch(value, info)
    elif isinstance(value, (bool, int, float, complex, list, tuple)) and not isinstance(value, np.generic):
        return _from_python(value, info, dtype)
    else:
        array = _from_foreign(value, info)
    if array.dtype is not dtype and array.dtype != dtype:
        raise InputError(
            f"input '{info.name}' must be {dtype}, the given array is {array.dtype}{list(array.shape)}",
            hint=f'convert it, if that is meant: .astype("{dtype}")',
        )
    flags = array.flags
    # copy() and not ascontiguousarray(), which makes vectors of scalars
    return array if flags.c_contiguous and flags.aligned else array.copy(order="C")


def _from_torch(value: Any, info: TensorInfo) -> np.ndarray:
    try:
        return torch_array(value)
    except Exception as error:  # foreign code: anything can come
        why, hint = refusal(value)
        raise InputError(
            f"input '{info.name}': the {type(value).__name__} cannot be read as an array ({why or error})",
            hint=hint or "pass a tensor in the CPU's memory, or a NumPy array",
        ) from error


def _from_foreign(value: Any, info: TensorInfo) -> np.ndarray:
    try:
        if isinstance(value, (np.ndarray, np.generic)):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return shared_array(value)
        if hasattr(value, "__array__"):
            return np.asarray(value)
    except Exception as error:  # foreign code: anything can come
        raise InputError(
            f"input '{info.name}': the {type(value).__name__} cannot be read as an array ({error})",
            hint="pass a NumPy array, or a tensor in the CPU's memory that needs no gradient (tensor.detach().cpu())",
        ) from error
    raise InputError(
        f"input '{info.name}' must be an array, not {type(value).__name__}", hint=f"expected is {info}"
    )


def _from_python(value: Any, info: TensorInfo, dtype: np.dtype) -> np.ndarray:
    try:
        found = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise InputError(f"input '{info.name}': {error}", hint=f"expected is {info}") from error
    if found.size and found.dtype.kind not in _accepted_kinds(dtype):
        raise InputError(
            f"input '{info.name}' must be {dtype}, the given values are {found.dtype}",
            hint=f"expected is {info}",
        )
    with np.errstate(all="ignore"):
        array = found.astype(dtype, order="C")
        if is_integer(dtype):
            fits = bool((array.astype(found.dtype) == found).all())
        else:
            wide = array if dtype.kind == "c" else array.astype(np.float64)
            fits = bool((np.isfinite(wide) == np.isfinite(found)).all())
    if not fits:
        raise InputError(
            f"input '{info.name}': a value is out of the range of {dtype}", hint=f"expected is {info}"
        )
    return array


def _accepted_kinds(dtype: np.dtype) -> str:
    if dtype.kind == "b":
        return "b"
    return "iu" if is_integer(dtype) else "iufc" if dtype.kind == "c" else "iuf"


def check_shapes(infos: Sequence[TensorInfo], shapes: Sequence[Shape]) -> None:
    """InputError unless ranks and fixed dims fit and every symbolic name has one value over all inputs.

    Dims that are expressions are left to the model's own `tw_plan`.
    """
    bound: dict[str, tuple[int, str]] = {}
    for info, shape in zip(infos, shapes, strict=True):
        if len(shape) != len(info.shape):
            raise InputError(
                f"input '{info.name}' must have {len(info.shape)} dims, the given shape is {list(shape)}",
                hint=f"expected is {info}",
            )
        for axis, (wanted, size) in enumerate(zip(info.shape, shape, strict=True)):
            if isinstance(wanted, str):
                known, source = bound.setdefault(wanted, (size, info.name))
                because = f" ({wanted} = {known} by input '{source}')"
            else:
                known, because = wanted, ""
            if size != known:
                raise InputError(
                    f"input '{info.name}': dim {axis} must be {known}{because}, "
                    f"the given shape is {list(shape)}",
                    hint=f"expected is {info}",
                )
