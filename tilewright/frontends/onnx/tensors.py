"""TensorProto to NumPy, with the checks that a file from anywhere needs, and external data."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilewright.frontends.files import open_regular
from tilewright.frontends.problems import shown
from tilewright.ir import dtype as dt
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType

_BY_NAME = {
    "FLOAT": dt.f32,
    "DOUBLE": dt.f64,
    "FLOAT16": dt.f16,
    "BFLOAT16": dt.bf16,
    "BOOL": dt.bool_,
    "INT2": dt.i2,
    "INT4": dt.i4,
    "INT8": dt.i8,
    "INT16": dt.i16,
    "INT32": dt.i32,
    "INT64": dt.i64,
    "UINT2": dt.u2,
    "UINT4": dt.u4,
    "UINT8": dt.u8,
    "UINT16": dt.u16,
    "UINT32": dt.u32,
    "UINT64": dt.u64,
    "FLOAT8E4M3FN": dt.f8e4m3,
    "FLOAT8E4M3FNUZ": dt.f8e4m3fnuz,
    "FLOAT8E5M2": dt.f8e5m2,
    "FLOAT8E5M2FNUZ": dt.f8e5m2fnuz,
    "FLOAT8E8M0": dt.f8e8m0,
    "FLOAT6E2M3": dt.f6e2m3,
    "FLOAT6E3M2": dt.f6e3m2,
    "FLOAT4E2M1": dt.f4e2m1,
    "STRING": dt.string,
}
DTYPES: Mapping[int, DType] = {
    code: _BY_NAME[name] for name, code in TensorProto.DataType.items() if name in _BY_NAME
}
"""Element types of ONNX, as far as the package knows them, that have a counterpart."""

ELEM_TYPES: Mapping[DType, int] = {ours: theirs for theirs, ours in DTYPES.items()}

MAX_RANK = 64
MAX_SPARSE_ELEMENTS = 2**28


def dtype_of(elem_type: int, where: str) -> DType:
    """The element type of an ONNX code; ModelError when there is none, UnsupportedError for a new one."""
    if elem_type in DTYPES:
        return DTYPES[elem_type]
    if elem_type in TensorProto.DataType.values() and elem_type != TensorProto.UNDEFINED:
        raise UnsupportedError(
            f"element type {TensorProto.DataType.Name(elem_type)} is not supported",
            where=where,
            hint=f"supported: {', '.join(d.name for d in DTYPES.values())}",
        )
    raise ModelError(
        f"{elem_type} is not an element type of ONNX", where=where, hint="export the model again"
    )


def to_array(proto: TensorProto, folder: Path | None) -> np.ndarray:
    """The elements of a tensor; external data is read from inside `folder`."""
    where = f"tensor '{shown(proto.name)}'"
    dtype = dtype_of(proto.data_type, where)
    shape = _checked_shape(proto.dims, where)
    if proto.HasField("segment"):
        raise UnsupportedError("tensors stored in segments are not supported", where=where)
    if proto.data_location == TensorProto.EXTERNAL:
        return _external(proto, dtype, shape, folder, where)
    if proto.HasField("raw_data"):
        return _of_bytes(proto, np.frombuffer(proto.raw_data, np.uint8), dtype, shape, where)
    try:
        array = np.asarray(numpy_helper.to_array(proto))
    except (ValueError, TypeError, UnicodeDecodeError, OverflowError) as e:
        raise ModelError(
            f"the file does not hold the elements of {dtype}{list(shape)}: {e}",
            where=where,
            hint="the file is damaged",
        ) from e
    return array.reshape(shape)


def _of_bytes(
    proto: TensorProto, data: np.ndarray, dtype: DType, shape: tuple[int, ...], where: str
) -> np.ndarray:
    """The elements of a tensor stored as bytes: a view of them, where elements are whole bytes."""
    if dtype is dt.string or len(data) != _byte_count(dtype, shape):
        raise ModelError(
            f"{dtype}{list(shape)} takes {_byte_count(dtype, shape)} bytes, the file has {len(data)}",
            where=where,
            hint="the file is damaged",
        )
    if dtype.bits < 8:
        packed = TensorProto(data_type=proto.data_type, dims=shape, raw_data=data.tobytes())
        return np.asarray(numpy_helper.to_array(packed)).reshape(shape)
    return data.view(dtype.storage).reshape(shape)


def _byte_count(dtype: DType, shape: tuple[int, ...]) -> int:
    return (math.prod(shape) * dtype.bits + 7) // 8


def from_sparse(proto: onnx.SparseTensorProto, folder: Path | None) -> np.ndarray:
    """A sparse tensor made dense."""
    where = f"sparse tensor '{shown(proto.values.name)}'"
    shape = _checked_shape(proto.dims, where)
    count = math.prod(shape)
    if count > MAX_SPARSE_ELEMENTS:
        raise UnsupportedError(
            f"a sparse tensor of {count} elements is not supported (at most {MAX_SPARSE_ELEMENTS})",
            where=where,
        )
    values, indices = to_array(proto.values, folder).reshape(-1), to_array(proto.indices, folder)
    if indices.ndim == 2 and indices.shape == (values.size, len(shape)):
        columns, limits = indices, np.array(shape)
    elif indices.shape == values.shape:
        columns, limits = indices[:, None], np.array([count])
    else:
        raise ModelError(f"{values.size} values with indices of shape {list(indices.shape)}", where=where)
    if ((columns < 0) | (columns >= limits)).any():
        raise ModelError(f"an index lies outside of {list(shape)}", where=where)
    flat = np.ravel_multi_index(tuple(columns.T), tuple(limits))
    dense = np.zeros(count, values.dtype)
    dense[flat] = values
    return dense.reshape(shape)


def _checked_shape(dims: object, where: str) -> tuple[int, ...]:
    shape = tuple(int(d) for d in dims)  # type: ignore[attr-defined]
    if len(shape) > MAX_RANK:
        raise ModelError(f"rank {len(shape)} is above {MAX_RANK}", where=where)
    if any(d < 0 for d in shape) or math.prod(d for d in shape if d) >= 2**47:
        raise ModelError(f"the shape {list(shape)} is not possible", where=where, hint="the file is damaged")
    return shape


def _external(
    proto: TensorProto, dtype: DType, shape: tuple[int, ...], folder: Path | None, where: str
) -> np.ndarray:
    """Read the elements from a file beside the model."""
    keys: dict[str, str] = {}
    for entry in proto.external_data:
        if entry.key in keys:
            raise ModelError(f"external data gives '{shown(entry.key)}' twice", where=where)
        keys[entry.key] = entry.value
    path = _external_path(keys.get("location", ""), folder, where)
    needed = _byte_count(dtype, shape)
    offset = _number(keys.get("offset", "0"), "offset", where)
    length = _number(keys.get("length", str(needed)), "length", where)
    have = path.stat().st_size
    if length != needed or offset + needed > have:
        raise ModelError(
            f"{dtype}{list(shape)} takes {needed} bytes; the external data is {length} bytes "
            f"at offset {offset} of a file of {have}",
            where=f"{where} in {path.name}",
            hint="the data file is truncated or belongs to another model",
        )
    return _of_bytes(proto, _read(path, offset, needed, where), dtype, shape, where)


def _read(path: Path, offset: int, size: int, where: str) -> np.ndarray:
    """Bytes of a file, copied and not mapped: the process would end if somebody cut a mapped file off meanwhile."""
    data = np.empty(size, np.uint8)
    try:
        with open_regular(path) as file:
            file.seek(offset)
            found = file.readinto(data.data)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}", where=where) from error
    if found != size:
        raise ModelError(
            f"the file has only {found} of {size} bytes from {offset} on",
            where=f"{where} in {path.name}",
            hint="it was changed while it was read; compile again when it is complete",
        )
    return data


def _external_path(location: str, folder: Path | None, where: str) -> Path:
    """The data file; it must be a regular file inside `folder`, links followed."""
    if folder is None:
        raise ModelError(
            "the model has external data, but was not given as a file",
            where=where,
            hint="give the model's path",
        )
    problem = ""
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or len(location) > 4096:
        problem = "is not a file name"
    elif location.startswith(("/", "\\", "~")) or ":" in parts[0] or ".." in parts:
        problem = "must be relative and stay inside of the model's folder"
    else:
        try:
            root, path = os.path.realpath(folder), os.path.realpath(folder / location)
            if os.path.commonpath([root, path]) != root:
                problem = "is a link out of the model's folder"
            elif not os.path.isfile(path):
                problem = "is not a regular file" if os.path.exists(path) else "does not exist"
            else:
                return Path(path)
        except (OSError, ValueError) as e:
            problem = f"cannot be opened: {e}"
    raise ModelError(
        f"external data location '{shown(location)}' {problem}",
        where=where,
        hint="put the data file beside the model",
    )


def _number(text: str, what: str, where: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise ModelError(f"external data {what} '{shown(text)}' is not a number of bytes", where=where)
    return int(text)
