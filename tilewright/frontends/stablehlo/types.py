"""Types, constants and places of MLIR as ours."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxlib.mlir import ir

from tilewright.frontends.problems import shown
from tilewright.ir import dtype as dt
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType

DTYPES = MappingProxyType(
    {
        "i1": dt.bool_, "i2": dt.i2, "i4": dt.i4, "i8": dt.i8, "i16": dt.i16, "i32": dt.i32, "i64": dt.i64,
        "ui2": dt.u2, "ui4": dt.u4, "ui8": dt.u8, "ui16": dt.u16, "ui32": dt.u32, "ui64": dt.u64,
        "f16": dt.f16, "bf16": dt.bf16, "f32": dt.f32, "f64": dt.f64,
        "f8E4M3FN": dt.f8e4m3, "f8E4M3FNUZ": dt.f8e4m3fnuz, "f8E5M2": dt.f8e5m2, "f8E5M2FNUZ": dt.f8e5m2fnuz,
        "f8E8M0FNU": dt.f8e8m0, "f6E2M3FN": dt.f6e2m3, "f6E3M2FN": dt.f6e3m2, "f4E2M1FN": dt.f4e2m1,
    }
)  # fmt: skip

_COMPLEX = re.compile(r"complex<(f32|f64)>$")


class TensorLike(NamedTuple):
    """A tensor's type: dims are None where they are dynamic; `is_complex` where elements are pairs of `dtype`."""

    dtype: DType
    shape: tuple[int | None, ...]
    is_complex: bool = False


def tensor_type(type: ir.Type) -> TensorLike:
    """UnsupportedError for what is no ranked tensor of a type that we have."""
    if not isinstance(type, ir.RankedTensorType):
        raise UnsupportedError(f"a value of type {shown(str(type))} is not supported")
    element = str(type.element_type)
    if found := _COMPLEX.match(element):
        return TensorLike(DTYPES[found[1]], _dims(type), True)
    if element not in DTYPES:
        raise UnsupportedError(f"elements of type {shown(element)} are not supported")
    return TensorLike(DTYPES[element], _dims(type))


def _dims(type: ir.RankedTensorType) -> tuple[int | None, ...]:
    return tuple(None if type.is_dynamic_dim(k) else type.get_dim_size(k) for k in range(type.rank))


def text_of(attribute: Any) -> str:
    """The value of an attribute that is a name; ModelError where it is no text."""
    try:
        return str(attribute.value)
    except (RuntimeError, UnicodeDecodeError, AttributeError, TypeError) as error:
        raise ModelError("a name is no text", hint="export the model again") from error


class Constant(NamedTuple):
    """The elements of a constant: one where all are the same."""

    array: np.ndarray
    is_splat: bool


_VALUE = re.compile(r"dense<(.*)>\s*:\s*tensor<", re.DOTALL)
_NUMBER = re.compile(r"\(([^,()]+),([^,()]+)\)")


def constant_of(op: ir.Operation) -> Constant:
    """The value of an op that is a constant; complex numbers as NumPy has them."""
    type = tensor_type(op.results[0].type)
    shape = tuple(d or 0 for d in type.shape)
    if type.is_complex:
        return Constant(_complex_elements(op, type, shape), False)
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.DenseElementsAttr):
        if attribute.is_splat and type.dtype.bits >= 8:
            element = attribute.get_splat_value()
            return Constant(np.array(_scalar(element, type.dtype), type.dtype.storage), True)
        return Constant(_elements(attribute, type.dtype, shape), False)
    if isinstance(attribute, ir.DenseResourceElementsAttr):
        raise UnsupportedError("constants that are resources of the file are not supported")
    raise UnsupportedError(f"a constant that is {shown(str(attribute))} is not supported")


def _scalar(element: Any, dtype: DType) -> Any:
    value = element.value
    return value & ((1 << dtype.bits) - 1) if dtype.kind == "uint" else value


def _elements(attribute: Any, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.array(attribute)
    except TypeError:  # NumPy has no such type
        array = _from_text(attribute, dtype)
    if array.dtype != dtype.storage and array.dtype.itemsize == dtype.bytes:
        array = array.view(dtype.storage)
    return np.array(array, dtype.storage).reshape(shape)


_HEX = re.compile(r'dense<"0x([0-9A-Fa-f]*)">')


def _from_text(attribute: Any, dtype: DType) -> np.ndarray:
    """Many elements are printed as the bytes that they have, a few each for itself."""
    found = _HEX.match(str(attribute))
    if found is None:
        return _from_numbers(str(attribute), dtype)
    data = np.frombuffer(bytes.fromhex(found[1]), np.uint8)
    if dtype.bits < 8:
        return data.view(np.int8 if dtype.kind == "int" else np.uint8).astype(dtype.storage)
    return data.view(dtype.storage)


_ELEMENT = re.compile(r"-?0x[0-9A-Fa-f]+|-?[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?")


def _from_numbers(text: str, dtype: DType) -> np.ndarray:
    """Of floats that have no digits the bits are printed."""
    listed = text.partition("<")[2].rpartition(">")[0].rpartition(":")[0].rpartition(">")[0]
    return np.array([_number(n, dtype) for n in _ELEMENT.findall(listed)], np.float64).astype(dtype.storage)


def _complex_elements(op: ir.Operation, type: TensorLike, shape: tuple[int, ...]) -> np.ndarray:
    """The bindings have no attribute for them: their text is read."""
    storage = np.dtype(np.complex64 if type.dtype is dt.f32 else np.complex128)
    text = op.get_asm(print_generic_op_form=False)
    found = _VALUE.search(text)
    if found is None:
        raise ModelError("a complex constant has no elements")
    if bits := re.match(r'"0x([0-9A-Fa-f]*)"$', found[1].strip()):
        return np.frombuffer(bytes.fromhex(bits[1]), storage).reshape(shape)
    numbers = [complex(_number(a, type.dtype), _number(b, type.dtype)) for a, b in _NUMBER.findall(found[1])]
    flat = np.array(numbers, storage)
    return np.full(shape, flat[0]) if flat.size == 1 else flat.reshape(shape)


def _number(text: str, dtype: DType) -> float:
    text = text.strip()
    if text.startswith("0x"):
        return float(np.array(int(text, 16), f"u{dtype.bytes}").view(dtype.storage))
    return float(text)



class SourcePlace(NamedTuple):
    """Where an op comes from: the path of scopes that it was written in, and a line."""

    path: str = ""
    file: str = ""
    line: int = 0


_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"(?::(\d+))?')
_CALL = re.compile(
    r"(^|/)(?:p?jit|xla_call|core_call|checkpoint|closed_call|custom_[jv][vj]p(?:_call)?)(?:\([^()]*\))?(?=/|$)"
)


def place_of(location: ir.Location) -> SourcePlace:
    """The first name and the first line that a location tells."""
    try:
        text = str(location)[:4000]
    except (RuntimeError, UnicodeDecodeError):  # it is for readers alone
        return SourcePlace()
    path, file, line = "", "", 0
    for name, number in _QUOTED.findall(text):
        if number and not file:
            file, line = name, int(number)
        elif not number and not path and not file:
            path = name
        if path and file:
            break
    return SourcePlace(_without_calls(path), file, line)


def _without_calls(path: str) -> str:
    """Scopes as the model has them: what JAX adds for its own transformations says nothing."""
    found = path.rstrip(":")
    while (shorter := _CALL.sub(r"\1", found, count=1)) != found:
        found = shorter
    return re.sub(r"//+", "/", found).strip("/")
