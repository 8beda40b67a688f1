"""What a caller says about outputs: which ones, and arrays of their own to write them to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.errors import InputError, NoMemoryError
from tilewright.runtime.values.dlpack import shared_array
from tilewright.runtime.values.inputs import Shape
from tilewright.runtime.values.torch_tensors import is_torch_tensor, refusal, torch_array


def positions(infos: Sequence[TensorInfo], names: Any) -> list[int]:
    """Which outputs are meant by a list of names, or by None for all; InputError for names that do not exist."""
    if names is not None and (isinstance(names, str) or not isinstance(names, Sequence)):
        raise InputError(
            f"output names must be a list of names, or None for all, not {type(names).__name__}",
            hint=f'such as ["{infos[0].name}"]' if infos else None,
        )
    places = {info.name: index for index, info in enumerate(infos)}
    for name in names or ():
        if not isinstance(name, str) or name not in places:
            raise InputError(f"there is no output {name!r:.80}", hint=_all(infos))
    return [places[name] for name in names] if names else list(range(len(infos)))


def views_of(
    out: Any,
    infos: Sequence[TensorInfo],
    wanted: Sequence[tuple[Shape, np.dtype]],
    inputs: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """The arrays of `out`, or arrays on the memory of its tensors; InputError unless they can take the outputs."""
    if not isinstance(out, tuple | list) or len(out) != len(infos):
        given = f"a {type(out).__name__} of {len(out)}" if isinstance(out, tuple | list) else type(out).__name__
        raise InputError(f"out must be a tuple of {len(infos)} arrays, not {given}", hint=_all(infos))
    views = [_view(value, info) for value, info in zip(out, infos, strict=True)]
    for value, view, (shape, dtype), info in zip(out, views, wanted, infos, strict=True):
        if view.dtype != dtype or view.shape != shape or not view.flags.carray:
            raise InputError(
                f"out for '{info.name}' must be a C-contiguous, writeable {dtype}{list(shape)}, "
                f"given is {_describe(view)}",
                hint=None if value is view or view.flags.writeable else _READ_ONLY,
            )
    others = list(inputs)
    for view, info in zip(views, infos, strict=True):
        if any(np.may_share_memory(view, other) for other in others):
            raise InputError(f"out for '{info.name}' overlaps an input or another output")
        others.append(view)
    return views


_READ_ONLY = "give a NumPy array on the same memory (tensor.numpy()): before 2.1, NumPy takes all tensors for read-only"


def _view(value: Any, info: TensorInfo) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    is_torch = is_torch_tensor(value)
    if not hasattr(value, "__dlpack__") or isinstance(value, np.generic):
        raise InputError(f"out for '{info.name}' must be an array, given is {type(value).__name__}")
    try:
        return torch_array(value) if is_torch else shared_array(value)
    except Exception as error:  # foreign code: anything can come
        why, hint = refusal(value) if is_torch else ("", "")
        raise InputError(
            f"out for '{info.name}': the {type(value).__name__} cannot be written as an array ({why or error})",
            hint=hint or "pass a NumPy array, or a tensor in the CPU's memory",
        ) from error


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}{'' if array.flags.carray else ', not contiguous or read-only'}"


def _all(infos: Sequence[TensorInfo]) -> str:
    return f"the model's outputs are: {', '.join(map(str, infos)) or 'none'}"


def no_memory(shapes: Sequence[tuple[Shape, np.dtype[Any]]], infos: Sequence[TensorInfo]) -> NoMemoryError:
    """The error for outputs of these shapes that cannot be allocated, naming the largest."""
    (shape, dtype), info = max(
        zip(shapes, infos, strict=True), key=lambda found: math.prod(found[0][0]) * found[0][1].itemsize
    )
    return NoMemoryError(
        f"no memory for output '{info.name}': {dtype}{list(shape)}",
        hint="use smaller inputs (batch, sequence length), or a machine with more memory",
    )


def shapes_of(outputs: Sequence[TensorInfo], sizes: Iterable[int]) -> tuple[Shape, ...]:
    """The shapes of outputs, whose `sizes` follow each other; InputError for sizes below 0."""
    rest = iter(sizes)
    whole = [tuple(next(rest) for _ in info.parts.shape) for info in outputs]
    shapes = tuple(s[: len(info.shape)] for s, info in zip(whole, outputs, strict=True))
    for info, shape in zip(outputs, shapes, strict=True):
        if any(size < 0 for size in shape):
            raise InputError(
                f"with these inputs output '{info.name}' would have the shape {list(shape)}",
                hint=f"the model's outputs are: {', '.join(map(str, outputs))}",
            )
    return shapes
