"""Files of ONNX models: constants within the model, or in a file beside it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tilewright.exporters.onnx.scope import OnnxConstants, reads_of
from tilewright.frontends.onnx.tensors import ELEM_TYPES
from tilewright.ir import dtype as dt
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.storage.files import replacing, write_slices

MOST_BYTES = (1 << 31) - (1 << 20)
"""Of a model in one file, which protobuf limits to 2 GB."""

LEAST_BESIDE = 1024
"""Bytes of a constant from which on it lies beside the model: shapes and axes stay where tools look for them."""

ALIGNED = 4096
"""Offsets of constants beside the model, so that they can be mapped."""

SUFFIX = ".data"


@dataclass
class OnnxWeights:
    """The constants that a graph reads, by name."""

    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, graph: onnx.GraphProto, constants: OnnxConstants) -> Self:
        read = {name for node in graph.node for name in reads_of(node)} | {output.name for output in graph.output}
        return cls({name: array for name, array in constants.arrays.items() if name in read})

    @property
    def bytes(self) -> int:
        return sum(_bytes_of(array) for array in self.arrays.values())

    def add_to(self, graph: onnx.GraphProto) -> None:
        """The constants as initializers within the graph."""
        for name, array in self.arrays.items():
            graph.initializer.append(_tensor(name, array))


def _bytes_of(array: np.ndarray) -> int:
    """Bytes as ONNX stores them: of less than 8 bits several in a byte."""
    return (array.size * dt.from_numpy(array.dtype).bits + 7) // 8


def _tensor(name: str, array: np.ndarray) -> TensorProto:
    dtype = dt.from_numpy(array.dtype)
    raw = bytes(_raw(array))
    return TensorProto(name=name, data_type=ELEM_TYPES[dtype], dims=array.shape, raw_data=raw)


def _raw(array: np.ndarray) -> memoryview | bytes:
    """The elements as ONNX stores them: in row-major order, those of less than 8 bits several in a byte."""
    if dt.from_numpy(array.dtype).bits < 8:
        content: bytes = numpy_helper.from_array(array).raw_data
        return content
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def save_model(model: onnx.ModelProto, weights: OnnxWeights, path: Path, external_data: bool | None = None) -> None:
    """Write the model with its constants, whole or not at all: within it, or with `external_data` (None: where it
    would have 2 GB or more) in a file beside it."""
    size = weights.bytes + model.ByteSize()
    if external_data or (external_data is None and size > MOST_BYTES):
        _save_beside(model, weights, path)
        return
    if size > MOST_BYTES:
        raise ArtifactError(
            f"cannot write {path}: a file of ONNX holds less than 2 GB, and the model has {size:,} bytes",
            hint="have its weights in a file beside it: external_data=True (--external-data)",
        )
    with replacing(path) as file:
        _write_whole(model, weights, file)


def _save_beside(model: onnx.ModelProto, weights: OnnxWeights, path: Path) -> None:
    path = Path(os.path.realpath(path))
    data = path.with_name(path.name + SUFFIX)
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    with replacing(path) as file, replacing(data) as constants:  # the data take their place first
        for name, array in weights.arrays.items():
            is_short = _bytes_of(array) < LEAST_BESIDE
            tensor = _tensor(name, array) if is_short else _put_beside(name, array, data.name, constants)
            proto.graph.initializer.append(tensor)
        write_slices(file, proto.SerializeToString())
        file.flush()
        with contextlib.suppress(OSError):  # a model that is replaced would find other weights in its file
            path.unlink(missing_ok=True)


def _write_whole(model: onnx.ModelProto, weights: OnnxWeights, file: BinaryIO) -> None:
    """The bytes of the model with its constants, without a copy of these: a field of a message of Protocol Buffers is a
    number, a length and the content."""
    head = onnx.ModelProto()
    head.CopyFrom(model)
    head.ClearField("graph")
    graph = model.graph.SerializeToString()
    fields = [_field_of(name, array) for name, array in weights.arrays.items()]
    length = len(graph) + sum(len(begin) + _bytes_of(array) for begin, array in fields)
    number = onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number
    file.write(head.SerializeToString() + _begin(number, length) + graph)
    for begin, array in fields:
        file.write(begin)
        write_slices(file, _raw(array))


def _field_of(name: str, array: np.ndarray) -> tuple[bytes, np.ndarray]:
    """What stands before the elements of an initializer, and the elements."""
    dtype = dt.from_numpy(array.dtype)
    told = TensorProto(name=name, data_type=ELEM_TYPES[dtype], dims=array.shape).SerializeToString()
    raw = TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number
    before = told + _begin(raw, _bytes_of(array))
    number = onnx.GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
    return _begin(number, len(before) + _bytes_of(array)) + before, array


_LENGTH_DELIMITED = 2


def _begin(number: int, length: int) -> bytes:
    """The beginning of a field that has a length."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(length)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _put_beside(name: str, array: np.ndarray, location: str, file: BinaryIO) -> TensorProto:
    """Write the elements of a constant at the end of a file; gives the constant as the model has it."""
    file.write(b"\0" * (-file.tell() % ALIGNED))
    offset = file.tell()
    write_slices(file, _raw(array))
    tensor = TensorProto(
        name=name, data_type=ELEM_TYPES[dt.from_numpy(array.dtype)], dims=array.shape,
        data_location=TensorProto.EXTERNAL,
    )  # fmt: skip
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(_bytes_of(array)))):
        tensor.external_data.add(key=key, value=value)
    return tensor
