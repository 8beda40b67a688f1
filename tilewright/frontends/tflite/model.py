"""A TFLite file as records: subgraphs of tensors and operators. What is decoded here is checked; numbers of tensors and
subgraphs are checked where they are used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontends.files import read_file
from tilewright.frontends.problems import shown
from tilewright.frontends.tflite.flatbuffer import Reader, Table
from tilewright.frontends.tflite.schema import operator_name, options_of
from tilewright.frontends.tflite.sparse import SparseLevel, Sparsity
from tilewright.ir.diag import ModelError

Source = str | os.PathLike[str] | bytes

MAX_FILE_BYTES = 2**36
_VERSION = 3
_MAX_RANK = 32


@dataclass(frozen=True)
class QuantizedAs:
    """What the integers of a tensor stand for: (n - zero) * scale, with one scale or one for each place on `axis`."""

    scales: np.ndarray
    zeros: np.ndarray
    axis: int

    def same_as(self, other: QuantizedAs) -> bool:
        same_axis = self.axis == other.axis or self.scales.size == 1
        pairs = ((self.scales, other.scales), (self.zeros, other.zeros))
        return same_axis and all(np.array_equal(a, b) for a, b in pairs)


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor as the file declares it. `shape` has -1 for a dim that calls choose, or is None where the rank is open;
    `data` are the bytes of a constant."""

    name: str
    number: int
    type: int
    shape: tuple[int, ...] | None
    data: np.ndarray | None
    quantization: QuantizedAs | None
    sparsity: Sparsity | None
    is_variable: bool


@dataclass(frozen=True)
class OperatorInfo:
    """One operator; -1 stands for an operand that is left out."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class SubgraphInfo:
    tensors: tuple[TfliteTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[OperatorInfo, ...]


@dataclass(frozen=True)
class ModelInfo:
    """The first subgraph is the model's; `input_names` and `output_names` are those of its signature, by tensor."""

    subgraphs: tuple[SubgraphInfo, ...]
    input_names: Mapping[int, str]
    output_names: Mapping[int, str]


def read_model(source: Source) -> ModelInfo:
    """The model at a path, or of a file's bytes. ModelError where it is missing, too large, damaged or not TFLite."""
    if isinstance(source, bytes):
        return _model(Reader(source, "the given bytes"))
    data = read_file(Path(source), MAX_FILE_BYTES, "split the model")
    return _model(Reader(data, str(source)))


def _model(reader: Reader) -> ModelInfo:
    if len(reader.data) < 8 or reader.data[4:8] != b"TFL3":
        reader.damaged("it does not begin as one" if reader.data else "the file is empty")
    root = reader.root()
    if root.integer(0, "I") != _VERSION:
        reader.damaged(f"version {root.integer(0, 'I')} of the format is unknown")
    names = [operator_name(code) for code in root.tables(1)]
    buffers = [_buffer(buffer, reader) for buffer in root.tables(4)]
    subgraphs = tuple(_subgraph(graph, names, buffers) for graph in root.tables(2))
    if not subgraphs:
        reader.damaged("it has no subgraph")
    for signature in root.tables(7):
        if signature.integer(4, "I") == 0:
            inputs, outputs = ({t.integer(1, "I"): t.text(0) for t in signature.tables(k)} for k in (0, 1))
            return ModelInfo(subgraphs, inputs, outputs)
    return ModelInfo(subgraphs, {}, {})


def _buffer(buffer: Table, reader: Reader) -> np.ndarray | None:
    """The bytes of a buffer, in the file's tables or, of a large model, behind them; None where there are none."""
    offset, size = buffer.integer(1, "Q"), buffer.integer(2, "Q")
    if offset > 1:
        return np.frombuffer(reader.part(offset, size), np.uint8)
    data = buffer.array(0, "u1")
    return data if data.size else None


def _subgraph(graph: Table, names: list[str], buffers: list[np.ndarray | None]) -> SubgraphInfo:
    reader = graph.reader
    tensors = tuple(_tensor(t, k, buffers) for k, t in enumerate(graph.tables(0)))
    operators = tuple(_operator(o, names) for o in graph.tables(3))
    inputs, outputs = graph.ints(1), graph.ints(2)
    for numbers in (inputs, outputs, *(o.inputs for o in operators), *(o.outputs for o in operators)):
        if any(not -1 <= n < len(tensors) for n in numbers):
            reader.damaged("it refers to a tensor that does not exist")
    if -1 in inputs or -1 in outputs:
        reader.damaged("an input or output of a subgraph is left out")
    return SubgraphInfo(tensors, inputs, outputs, operators)


def _tensor(tensor: Table, number: int, buffers: list[np.ndarray | None]) -> TfliteTensor:
    name = tensor.text(3)
    shape: tuple[int, ...] | None = tensor.ints(7) or tensor.ints(0)
    if len(shape or ()) > _MAX_RANK or any(d < -1 for d in shape or ()):
        raise ModelError(f"the tensor '{shown(name)}' has the shape {list(shape or ())}")
    buffer = tensor.integer(2, "I")
    if buffer >= max(len(buffers), 1):
        tensor.reader.damaged(f"the tensor '{shown(name)}' refers to a buffer that does not exist")
    if tensor.integer(10, "I"):
        raise ModelError(
            f"the elements of the tensor '{shown(name)}' lie in another file, which is not supported",
            hint="export the model as one file",
        )
    data = buffers[buffer] if buffer else None
    if not shape and not tensor.integer(8, "?") and data is None:
        shape = () if tensor.has(0) else None
    sparsity = tensor.table(6)
    return TfliteTensor(
        name,
        number,
        tensor.integer(1, "b"),
        shape,
        data,
        _quantization(tensor.table(4), name),
        None if sparsity is None else _sparsity(sparsity),
        bool(tensor.integer(5, "?")),
    )


def _quantization(table: Table | None, name: str) -> QuantizedAs | None:
    if table is None:
        return None
    if table.integer(4, "B") > 1:
        raise ModelError(f"the tensor '{shown(name)}' is quantised in a way that is not known")
    scales, zeros = table.array(2, "f4"), table.array(3, "i8")
    if not scales.any():
        return None
    if zeros.size not in (0, 1, scales.size) or not np.all(np.isfinite(scales)) or scales.min() < 0:
        raise ModelError(f"the tensor '{shown(name)}' has no possible scales and zero points")
    return QuantizedAs(
        scales, np.resize(zeros, scales.size) if zeros.size else np.zeros(scales.size, np.int64), table.integer(6)
    )


_INDICES = {1: "i4", 2: "u2", 3: "u1"}


def _sparsity(table: Table) -> Sparsity:
    return Sparsity(table.ints(0), table.ints(1), tuple(map(_level, table.tables(2))))


def _level(table: Table) -> SparseLevel:
    if table.integer(0, "b") == 0:
        return SparseLevel(table.integer(1), None, None)

    def vector(kind: int, values: int) -> np.ndarray:
        found = table.table(values)
        form = _INDICES.get(table.integer(kind, "B"))
        if found is None or form is None:
            table.reader.damaged("a sparse tensor has no indices")
        return found.array(0, form).astype(np.int64)

    return SparseLevel(0, vector(2, 3), vector(4, 5))


def _operator(operator: Table, names: list[str]) -> OperatorInfo:
    code = operator.integer(0, "I")
    if code >= len(names):
        operator.reader.damaged("an operator refers to a code that does not exist")
    return OperatorInfo(names[code], operator.ints(1), operator.ints(2), options_of(operator, names[code]))
