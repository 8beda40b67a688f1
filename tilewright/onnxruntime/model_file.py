"""What a session tells of an ONNX file without the onnx package: names, types, declared dims and metadata.

The file is read in protobuf's wire format, https://protobuf.dev/programming-guides/encoding, with the field numbers of
onnx.proto3. Nodes and weights are passed over, so that a file costs as little time as it has nodes.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.onnxruntime.element_types import text_of
from tilewright.runtime.storage.files import open_at_once
from tilewright.runtime.values.node_arg import NodeArg

Wire = bytes | mmap.mmap
NO_VERSION = 2**63 - 1
"""What ONNX Runtime gives as the version of a model that has none."""


@dataclass(frozen=True)
class ModelMetadata:
    """What a file says about itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = NO_VERSION
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Overrides:
    """Sizes for dims by their name, and by their denotation, such as "DATA_BATCH"."""

    by_name: Mapping[str, int] = field(default_factory=dict)
    by_denotation: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelFile:
    """Inputs that a feed must have, inputs with an initializer, which a feed may have (not before version 4 of the
    format), and outputs, as declared; `shapeless` are the outputs without a declared shape."""

    inputs: tuple[NodeArg, ...]
    overridable: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    shapeless: frozenset[str]
    metadata: ModelMetadata
    has_outside_data: bool

    @property
    def names_of_dims(self) -> set[str]:
        return {dim for arg in (*self.inputs, *self.overridable) for dim in arg.shape if isinstance(dim, str)}


@dataclass(frozen=True)
class _Field:
    """A field of a message: its number, its value if that is a number, and where field and content lie."""

    number: int
    value: int
    begin: int
    content: int
    end: int


def open_wire(source: bytes | Path) -> Wire:
    """The bytes of a model, or of a file, which is mapped; OSError where it cannot be read."""
    if isinstance(source, bytes):
        return source
    with open(source, "rb", opener=open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{source} is not a regular file")
        if source.stat().st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def read_model_file(wire: Wire, overrides: Overrides = Overrides()) -> ModelFile | None:
    """None for a model without a graph, ValueError for what is no message of protobuf."""
    graph, metadata, told = None, dict[str, str](), dict[int, str]()
    version, format_version = NO_VERSION, 0
    for part in _fields(wire, 0, len(wire)):
        match part.number:
            case 1:
                format_version = part.value
            case 2 | 4 | 6:
                told[part.number] = _text(wire, part)
            case 5:
                version = part.value
            case 7:
                graph = part
            case 14:
                entry = {f.number: _text(wire, f) for f in _fields(wire, part.content, part.end)}
                metadata[entry.get(1, "")] = entry.get(2, "")
    if graph is None:
        return None
    found = _Graph(wire, overrides)
    found.read(graph)
    named = [arg for arg, _ in found.inputs]
    return ModelFile(
        tuple(arg for arg in named if arg.name not in found.preset),
        tuple(arg for arg in named if arg.name in found.preset and format_version >= 4),
        tuple(arg for arg, _ in found.outputs),
        frozenset(arg.name for arg, has_shape in found.outputs if not has_shape),
        ModelMetadata(
            told.get(2, ""), found.name, told.get(4, ""), told.get(6, ""), found.description, version, metadata
        ),
        found.has_outside_data,
    )


def without_initializers(wire: Wire, names: set[str]) -> bytes:
    """The same model, in which inputs of these names have no initializer, so that they must be fed."""
    parts = []
    for part in _fields(wire, 0, len(wire)):
        if part.number != 7:
            parts.append(wire[part.begin : part.end])
            continue
        kept = b"".join(
            wire[f.begin : f.end]
            for f in _fields(wire, part.content, part.end)
            if f.number not in (5, 15) or _name_of_initializer(wire, f) not in names
        )
        parts.append(b"\x3a" + _varint_of(len(kept)) + kept)
    return b"".join(parts)


def _name_of_initializer(wire: Wire, part: _Field) -> str:
    """Of a TensorProto, or of a SparseTensorProto, whose values have the name."""
    values = (f for f in _fields(wire, part.content, part.end) if f.number == 1)
    return _text_at(wire, next(values, part) if part.number == 15 else part, 8)


class _Graph:
    """What is read of a GraphProto."""

    def __init__(self, wire: Wire, overrides: Overrides) -> None:
        self._wire = wire
        self._overrides = overrides
        self.name = self.description = ""
        self.inputs: list[tuple[NodeArg, bool]] = []
        self.outputs: list[tuple[NodeArg, bool]] = []
        self.preset: set[str] = set()
        self.has_outside_data = False

    def read(self, graph: _Field) -> None:
        for part in _fields(self._wire, graph.content, graph.end):
            match part.number:
                case 2:
                    self.name = _text(self._wire, part)
                case 10:
                    self.description = _text(self._wire, part)
                case 5:
                    self._initializer(part)
                case 11:
                    self.inputs.append(self._declared(part))
                case 12:
                    self.outputs.append(self._declared(part))
                case 15:
                    for values in _fields(self._wire, part.content, part.end):
                        if values.number == 1:
                            self._initializer(values)

    def _initializer(self, tensor: _Field) -> None:
        for part in _fields(self._wire, tensor.content, tensor.end):
            if part.number == 8:
                self.preset.add(_text(self._wire, part))
            self.has_outside_data |= part.number == 13

    def _declared(self, info: _Field) -> tuple[NodeArg, bool]:
        """An input or output, and whether it has a shape."""
        name, kind, shape = "", "", None
        for part in _fields(self._wire, info.content, info.end):
            if part.number == 1:
                name = _text(self._wire, part)
            elif part.number == 2:
                for tensor in _fields(self._wire, part.content, part.end):
                    if tensor.number == 1:
                        kind, shape = self._tensor(tensor)
        return NodeArg(name, shape or [], kind), shape is not None

    def _tensor(self, kind: _Field) -> tuple[str, list[int | str | None] | None]:
        element, shape = 0, None
        for part in _fields(self._wire, kind.content, kind.end):
            if part.number == 1:
                element = part.value
            elif part.number == 2:
                shape = [self._dim(dim) for dim in _fields(self._wire, part.content, part.end)]
        return text_of(element), shape

    def _dim(self, dim: _Field) -> int | str | None:
        size: int | str | None = None
        for part in _fields(self._wire, dim.content, dim.end):
            if part.number == 1:
                size = part.value if part.value >= 0 else None
            elif part.number == 2:
                name = _text(self._wire, part)
                size = self._overrides.by_name.get(name, name or None)
        if not isinstance(size, int):
            size = self._overrides.by_denotation.get(_text_at(self._wire, dim, 3), size)
        return size


def _fields(wire: Wire, at: int, end: int) -> Iterator[_Field]:
    while at < end:
        begin = at
        tag, at = _varint(wire, at, end)
        value, content = 0, at
        match tag & 7:
            case 0:
                value, at = _varint(wire, at, end)
            case 1:
                at += 8
            case 5:
                at += 4
            case 2:
                length, content = _varint(wire, at, end)
                at = content + length
            case kind:
                raise ValueError(f"a field of the unknown kind {kind}")
        if at > end or tag < 8:
            raise ValueError("a field that ends behind its message")
        yield _Field(tag >> 3, value, begin, content, at)


def _varint(wire: Wire, at: int, end: int) -> tuple[int, int]:
    """A number of up to 64 bits with a sign, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise ValueError("a number that ends behind its message")
        byte = wire[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            value &= 2**64 - 1
            return value - 2**64 if value >> 63 else value, at
    raise ValueError("a number of more than 64 bits")


def _varint_of(value: int) -> bytes:
    digits = []
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def _text(wire: Wire, part: _Field) -> str:
    return wire[part.content : part.end].decode(errors="replace")


def _text_at(wire: Wire, message: _Field, number: int) -> str:
    """The text of a field of a message, "" where it has none."""
    found = (_text(wire, f) for f in _fields(wire, message.content, message.end) if f.number == number)
    return next(found, "")
