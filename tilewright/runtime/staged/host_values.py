"""What goes into a staged model and comes out of it: arrays, and strings, sequences, optionals and maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.errors import InputError
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.runtime.values.inputs import as_array, check_shapes
from tilewright.runtime.values.outputs import views_of

_ndarray = np.ndarray  # a name without a dot is found faster, and small models take microseconds


def as_value(value: Any, info: TensorInfo) -> Any:
    """What a caller gives for an input, as the steps of a model take it: arrays as `as_array` makes them, of strings
    arrays of objects; lists for sequences, dicts for maps, None for an empty optional. InputError otherwise."""
    return _READERS[info.kind](value, info)


def as_arrays(args: Sequence[Any], infos: Sequence[TensorInfo], dtypes: Sequence[np.dtype]) -> list[np.ndarray]:
    """The values of inputs that all are tensors, each as `as_array` makes it."""
    arrays = list(args)
    for index, dtype in enumerate(dtypes):
        value = arrays[index]
        if type(value) is not _ndarray or value.dtype is not dtype or not value.flags.carray:
            arrays[index] = as_array(value, infos[index], dtype)
    return arrays


def _tensor(value: Any, info: TensorInfo) -> np.ndarray:
    return _strings(value, info) if info.dtype == "string" else as_array(value, info, numpy_dtype(info.dtype))


def _strings(value: Any, info: TensorInfo) -> np.ndarray:
    try:
        array = np.asarray(value, object)
    except ValueError as error:  # lists of different lengths
        raise InputError(f"input '{info.name}': {error}", hint=f"expected is {info}") from error
    wrong = next((type(e).__name__ for e in array.flat if not isinstance(e, str)), "")
    if not wrong:
        return array if array.flags.c_contiguous else array.copy(order="C")
    hint = "decode them, such as with numpy.char.decode" if wrong == "bytes" else f"expected is {info}"
    raise InputError(f"input '{info.name}' must hold strings, not {wrong}", hint=hint)


def _sequence(value: Any, info: TensorInfo) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise InputError(f"input '{info.name}' must be a list, not {type(value).__name__}", hint=f"expected is {info}")
    return [_element(v, info, f"[{k}]") for k, v in enumerate(value)]


def _optional(value: Any, info: TensorInfo) -> Any:
    return None if value is None else _element(value, info, "")


def _map(value: Any, info: TensorInfo) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"input '{info.name}' must be a dict, not {type(value).__name__}", hint=f"expected is {info}")
    kinds = str if info.dtype == "string" else (int, np.integer)
    wrong = next((k for k in value if not isinstance(k, kinds) or isinstance(k, bool)), None)
    if wrong is not None:
        raise InputError(f"input '{info.name}' has the key {wrong!r:.80}", hint=f"expected is {info}")
    found = {k if isinstance(k, str) else int(k): _element(v, info, f"[{k!r:.80}]") for k, v in value.items()}
    return {k: v.item() if isinstance(v, np.ndarray) else v for k, v in found.items()}


def _element(value: Any, info: TensorInfo, place: str) -> Any:
    assert info.element is not None
    own = replace(info.element, name=f"{info.name}{place}")
    found = as_value(value, own)
    if own.kind == "tensor":
        if len(own.shape) != found.ndim:
            check_shapes([own], [found.shape])
        open_dims = tuple(n if d == "?" else d for d, n in zip(own.shape, found.shape, strict=True))
        check_shapes([replace(own, shape=open_dims)], [found.shape])
    return found


_READERS: Mapping[str, Callable[[Any, TensorInfo], Any]] = {
    "tensor": _tensor,
    "unranked": _tensor,
    "sequence": _sequence,
    "optional": _optional,
    "map": _map,
}


def as_parts(values: Sequence[Any], infos: Sequence[TensorInfo]) -> list[Any]:
    """The values as steps have them: of complex numbers the parts, along a last axis, in the same memory."""
    pairs = zip(values, infos, strict=True)
    return [v[..., None].view(info.parts.dtype) if info.is_complex else v for v, info in pairs]


def as_given(results: Sequence[Any], infos: Sequence[TensorInfo]) -> tuple[Any, ...]:
    """Results of steps as callers have them."""
    pairs = zip(results, infos, strict=True)
    return tuple([np.ascontiguousarray(r).view(info.dtype)[..., 0] if info.is_complex else r for r, info in pairs])


def described(value: Any) -> str:
    """A value in a message: the dtype and shape of an array, or how many there are of what."""
    if isinstance(value, np.ndarray):
        return f"{'string' if value.dtype == object else value.dtype}{list(value.shape)}"
    if value is None:
        return "None"
    return f"{type(value).__name__} of {len(value)}"


def own_copies(results: tuple[Any, ...], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The results, so that nothing in them is part of an input, or there twice."""
    if len(results) == 1 and type(only := results[0]) is _ndarray:
        for value in inputs:  # a loop here, as calls and generators would take longer than a small model
            if value is only or (type(value) is not _ndarray and _holds(value, only)):
                break
        else:
            if only.flags.writeable:
                return results
        return (only.copy(),)
    seen = {id(array) for value in inputs for array in _arrays(value)}

    def own(value: Any) -> Any:
        if isinstance(value, list):
            return [own(v) for v in value]
        if isinstance(value, dict):
            return {key: own(v) for key, v in value.items()}
        if not isinstance(value, np.ndarray):
            return value
        if id(value) in seen or not value.flags.writeable:
            value = value.copy()
        seen.add(id(value))
        return value

    return tuple([own(r) for r in results])


def _holds(value: Any, array: np.ndarray) -> bool:
    return any(found is array for found in _arrays(value))


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _arrays(part)


def write_to(out: Any, infos: Sequence[TensorInfo], results: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Copy the results to the arrays of `out`; InputError for those that do not fit, and for what is no array."""
    other = next((info for info in infos if info.kind not in ("tensor", "unranked")), None)
    if other is not None:
        raise InputError(f"out= takes arrays, and the output {other} is none", hint="call the model without out=")
    given = [array for value in inputs for array in _arrays(value)]
    views = views_of(out, infos, [(r.shape, r.dtype) for r in results], given)
    for view, result in zip(views, results, strict=True):
        np.copyto(view, result)
