"""Outputs as tensors of another package, on the memory of the arrays that a model makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.errors import OptionError
from tilewright.runtime.values.dlpack import FOREIGN
from tilewright.runtime.values.dtypes import numpy_dtype

Convert = Callable[[Any], Any]


class _Computes(Protocol):
    @property
    def outputs(self) -> tuple[TensorInfo, ...]: ...

    def __call__(self, /, *args: Any, out: Sequence[Any] | None = None, **named: Any) -> tuple[np.ndarray, ...]: ...

    def run(self, inputs: Mapping[str, Any], *, out: Sequence[Any] | None = None) -> tuple[np.ndarray, ...]: ...


class TensorModel:
    """A model whose outputs are tensors of a package, made by `Model.with_outputs`: `model` is the one that computes.

    A tensor is the memory of the array that the model made, without a copy. It serves a later call once the tensor and
    all else that shares it are gone.
    """

    def __init__(self, model: _Computes, package: Any) -> None:
        """OptionError for what is no package of tensors, and for outputs of a dtype that it lacks."""
        self.model = model
        self._converts = tuple([_convert(package, info) for info in model.outputs])
        self._package = str(getattr(package, "__name__", package))

    def __repr__(self) -> str:
        return f"<{repr(self.model)[1:-1]}, outputs of {self._package}>"

    def __call__(self, /, *args: Any, out: Sequence[Any] | None = None, **named: Any) -> tuple[Any, ...]:
        """As a call of the model. What stands in `out` is given back as it is."""
        results = self.model(*args, out=out, **named) if named or out is not None else self.model(*args)
        return results if out is not None else tuple([f(r) for f, r in zip(self._converts, results, strict=True)])

    def run(self, inputs: Mapping[str, Any], *, out: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """As a call with names, for names that are no Python identifiers."""
        results = self.model.run(inputs, out=out)
        return self._converted(results) if out is None else results

    def run_dict(self, inputs: Mapping[str, Any], *, out: Sequence[Any] | None = None) -> dict[str, Any]:
        """As `run`, with the outputs by their names."""
        results = self.run(inputs, out=out)
        return {info.name: result for info, result in zip(self.model.outputs, results, strict=True)}

    def _converted(self, results: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([convert(array) for convert, array in zip(self._converts, results, strict=True)])


def _convert(package: Any, info: TensorInfo) -> Convert:
    """What makes of an output what the package has for it."""
    if info.element is not None:
        convert = _convert(package, info.element)
        return lambda value: _each(convert, value)
    if info.dtype == "string":
        return lambda array: array
    dtype = numpy_dtype(info.dtype)
    shared: Any = getattr(package, "from_dlpack", None)
    if shared is None:
        raise OptionError(
            f"{package!r:.80} makes no tensors: it has no from_dlpack",
            hint="give a module such as torch, jax.numpy or numpy",
        )
    if package is np:
        return lambda array: array
    # PyTorch's own way takes half of the time that its from_dlpack takes
    shared = _with_strides(package, getattr(package, "from_numpy", shared), info)
    if dtype.isbuiltin == 1:
        return _checked(package, shared, info)
    theirs = getattr(package, info.dtype, None) if info.dtype in FOREIGN else None
    if theirs is None:
        raise _lacks(package, info)
    bits = np.dtype(f"i{dtype.itemsize}")
    return lambda array: shared(array.view(bits)).view(theirs)


def _with_strides(package: Any, shared: Convert, info: TensorInfo) -> Convert:
    """The same function, but for arrays without elements: those of NumPy have strides of 0, which PyTorch would keep
    where its own tensors count an axis without elements as one with one."""
    make = getattr(package, "empty", None)
    is_never_empty = info.kind == "tensor" and all(isinstance(n, int) and n > 0 for n in info.shape)
    if is_never_empty or make is None or not hasattr(package, "from_numpy"):
        return shared

    def convert(array: Any) -> Any:
        found = shared(array)
        return found if array.size else make(array.shape, dtype=found.dtype)

    return convert


def _checked(package: Any, shared: Convert, info: TensorInfo) -> Convert:
    """The same function; OptionError where the package has no tensors of the output's dtype."""
    try:
        shared(np.zeros((), info.dtype))
    except Exception as error:  # foreign code: anything can come
        raise _lacks(package, info) from error
    return shared


def _lacks(package: Any, info: TensorInfo) -> OptionError:
    name = getattr(package, "__name__", "the package")
    return OptionError(
        f"{name} has no tensors of the output {info}", hint="call the model itself, which gives arrays of NumPy"
    )


def _each(convert: Convert, value: Any) -> Any:
    """The elements of a list or a map converted; an optional that is empty stays so."""
    if isinstance(value, list):
        return [convert(v) for v in value]
    if isinstance(value, dict):
        return {k: _each(convert, v) if isinstance(v, list) else v for k, v in value.items()}
    return None if value is None else convert(value)
