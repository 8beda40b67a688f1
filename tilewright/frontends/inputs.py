"""Inputs of models: their symbolic dims as variables, and the shapes and values that callers give for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np

from tilewright.frontends.problems import shown
from tilewright.ir.core import Module, substitute
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import HostType, TensorType, Type, require_possible_size
from tilewright.runtime.errors import OptionError

MAX_DIM = 2**40
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_LIKE_LOOP_VARIABLE = re.compile(r"[A-Za-z]+[0-9]+$")
_KEPT: ContextVar[bool] = ContextVar("states_are_kept", default=False)


Bounds = tuple[int, int | None]
"""The least and the greatest size that a dim may have; None where nothing bounds it."""


class Declared(NamedTuple):
    """An input as its model declares it. A dim is a number, a name, or None where it is left open; the shape is None
    where not even the rank is known. An input that is no tensor has a type instead of a dtype, and no shape.
    `is_complex` ones are tensors of parts of this dtype with an axis more, of 2, the last, which the shape leaves out.
    """

    dtype: DType | HostType
    shape: tuple[int | str | None, ...] | None = None
    is_complex: bool = False


class SymbolicDims:
    """Gives one variable to each symbolic dim; names of the file become identifiers, and stay different. Those named in
    `bounds` have sizes within these."""

    def __init__(self, bounds: Mapping[str, Bounds] | None = None) -> None:
        self._bounds = bounds or {}
        self._by_param: dict[str, Sym] = {}
        self._taken: set[str] = set()

    def named(self, param: str) -> Sym:
        """The variable of the dim `param` (any text: it is a name, never evaluated)."""
        if param not in self._by_param:
            self._by_param[param] = self._fresh(param, self._bounds.get(param, (0, None)))
        return self._by_param[param]

    def unnamed(self, owner: str, axis: int) -> Sym:
        """A variable of its own for a dim that the file leaves open."""
        return self._fresh(f"{owner}_{axis}")

    def _fresh(self, wanted: str, bounds: Bounds = (0, None)) -> Sym:
        name = re.sub(r"[^A-Za-z0-9_]+", "_", wanted[:60]).strip("_") or "dim"
        if not _PLAIN.match(name) or name.startswith("val_"):
            name = f"dim_{name}"
        if _LIKE_LOOP_VARIABLE.match(name):  # `d0`, `i1`... are what bodies call their iteration variables
            name = re.sub(r"([0-9]+)$", r"_\1", name)
        unique, n = name, 1
        while unique in self._taken:
            n += 1
            unique = f"{name}_v{n}"
        self._taken.add(unique)
        return var(unique, *bounds)


def types_of(
    inputs: Mapping[str, Declared], shapes: Mapping[str, Sequence[int | str]], bounds: Mapping[str, Bounds]
) -> dict[str, Type]:
    """The types of the inputs, with `shapes` in place of those declared, and `bounds` of dims by their names."""
    _check_names(inputs, shapes, "shapes=")
    dims = SymbolicDims(bounds)
    return {name: _type_of(name, declared, dims, shapes.get(name)) for name, declared in inputs.items()}


def _type_of(name: str, declared: Declared, dims: SymbolicDims, given: Sequence[int | str] | None) -> Type:
    where = f"graph input '{shown(name)}'"
    if isinstance(declared.dtype, HostType):
        if given is not None:
            raise ModelError(f"shapes= gives a shape for {declared.dtype}", where=where, hint="leave it out")
        return declared.dtype
    shape = declared.shape if given is None else given
    if shape is None:
        raise UnsupportedError(
            "the input's rank is unknown", where=where, hint=f"pass shapes={{'{shown(name)}': [...]}}"
        )
    if declared.shape is not None and len(declared.shape) != len(shape):
        raise ModelError(
            f"shapes= gives {list(shape)}, but the input has rank {len(declared.shape)}",
            where=where,
            hint="give one dim for each axis",
        )
    axes = tuple(_dim(d, name, k, dims, where) for k, d in enumerate(shape))
    type = TensorType(declared.dtype, (*axes, sym(2)) if declared.is_complex else axes)
    try:
        require_possible_size(type)
    except ValueError as error:
        raise ModelError(str(error), where=where, hint="pass shapes= with the real sizes") from error
    return type


def _dim(dim: int | str | None, owner: str, axis: int, dims: SymbolicDims, where: str) -> Sym:
    if dim is None:
        return dims.unnamed(owner, axis)
    if isinstance(dim, str):
        return dims.named(dim)
    if not 0 <= dim <= MAX_DIM:
        raise ModelError(f"the dim {dim} is not possible", where=where, hint=f"dims are 0 to {MAX_DIM}")
    return sym(dim)


def constants_of(
    types: Mapping[str, Type], constants: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The values that a caller binds inputs to, checked against their types; of complex ones the parts along a last
    axis."""
    _check_names(types, constants, "constants=")
    return {name: _checked(name, _parts(value), types[name]) for name, value in constants.items()}


def _parts(value: object) -> object:
    array = np.asarray(value)
    return np.stack([array.real, array.imag], axis=-1) if array.dtype.kind == "c" else value


def _check_names(inputs: Mapping[str, object], given: Mapping[str, object], option: str) -> None:
    for name in given:
        if name not in inputs:
            raise ModelError(
                f"{option} names '{shown(name)}', which is no input of the model",
                hint=f"inputs: {', '.join(map(shown, inputs)) or 'none'}",
            )


def _checked(name: str, value: object, type: Type) -> np.ndarray:
    if not isinstance(type, TensorType):
        raise UnsupportedError(
            f"constants= gives a value for an input that is {type}: only tensors may be constants",
            where=f"graph input '{shown(name)}'",
            hint="give it when the model is called",
        )
    array = _as_python_has(np.asarray(value), type.dtype)
    fits = array.ndim == type.rank and all(
        not d.is_const or d.value == n for d, n in zip(type.shape, array.shape, strict=True)
    )
    if array.dtype != type.dtype.storage or not fits:
        raise ModelError(
            f"constants= gives {array.dtype}{list(array.shape)} for an input of type {type}",
            where=f"graph input '{shown(name)}'",
            hint="give an array of the input's shape and dtype",
        )
    return array


def _as_python_has(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Arrays of the types that NumPy gives to Python's numbers (int64, float64), in the dtype of their input: integers
    must survive, floats must stay finite where they are. As they are where that fails, and of any other type."""
    if not (array.dtype == np.int64 and (dtype.is_int or dtype.is_float)) and not (
        array.dtype == np.float64 and dtype.is_float
    ):
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(dtype.storage)
        if array.dtype == np.int64:
            survives = np.array_equal(converted.astype(np.int64), array)
        else:
            survives = np.array_equal(np.isfinite(converted.astype(np.float64)), np.isfinite(array))
    return converted if survives else array


# Frequent sizes


def shapes_with(module: Module, sizes: Mapping[str, int]) -> dict[str, tuple[int | str, ...]]:
    """The shapes for which a variant for frequent sizes is compiled: those of the inputs of a module that was imported
    with symbolic dims, with `sizes` in place of the dims of these names. OptionError for sizes that no call can
    have."""
    main = module.main
    names = main.attrs.get("inputs", tuple(a.name for a in main.args))
    tensors = {name: a.type for name, a in zip(names, main.args, strict=True) if isinstance(a.type, TensorType)}
    dims = {str(d): d for type in tensors.values() for d in type.shape if d.kind == "var"}
    for name, size in sizes.items():
        if name not in dims:
            known = f"its symbolic dims are: {', '.join(dims)}" if dims else "all its dims are fixed"
            raise OptionError(f"the model has no symbolic dim '{shown(name)}'; {known}")
        if size > MAX_DIM:
            raise OptionError(f"the size {size} of '{name}' is not possible", hint=f"the most is {MAX_DIM}")
    fixed = {dims[name]: sym(size) for name, size in sizes.items()}
    for condition, message, node, operator in main.attrs.get("assumed", ()):
        holds = substitute(condition, fixed)
        if holds.is_const and not holds.value:
            raise OptionError(
                f"the general program refuses these sizes: {message} (in node '{shown(node)}', {operator})",
                hint="leave them out, or compile a model of its own for these shapes",
            )
    # all names are given, also of inputs without such a dim: variables must not get other names than before
    parts = main.attrs.get("complex_inputs", ())
    return {
        name: tuple(_as_given(fixed.get(d, d)) for d in (type.shape[:-1] if name in parts else type.shape))
        for name, type in tensors.items()
        if not type.is_static
    }


def _as_given(dim: Sym) -> int | str:
    return dim.value if dim.is_const else str(dim)


# States of operators


@contextmanager
def keeping_states(kept: bool) -> Iterator[None]:
    """Within, whether states of operators become inputs and outputs behind those of the model, as its variables do;
    else they are what they are before the first call, in each call."""
    token = _KEPT.set(kept)
    try:
        yield
    finally:
        _KEPT.reset(token)


def are_states_kept() -> bool:
    return _KEPT.get()
