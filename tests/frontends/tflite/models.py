"""Small TFLite models, written with the builder of the package flatbuffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np

from tilewright.frontends.tflite.load import load_tflite
from tilewright.frontends.tflite.schema import ELEMENT_TYPES, OPERATORS, OPTIONS
from tilewright.ir.dtype import DType
from tilewright.ops.define.interp import evaluate_func

TYPES = {t.storage: k for k, t in enumerate(ELEMENT_TYPES) if isinstance(t, DType)}


@dataclass
class Tensor:
    """A tensor, a constant where it has `data`; quantised where it has `scale`."""

    name: str
    shape: Sequence[int]
    dtype: Any = np.float32
    data: np.ndarray | None = None
    scale: Sequence[float] | float | None = None
    zero: Sequence[int] | int = 0
    axis: int = 0
    signature: Sequence[int] | None = None
    variable: bool = False
    type_number: int | None = None


@dataclass
class Node:
    """An operator; operands and results by name, None for an operand that is left out."""

    kind: str
    inputs: Sequence[str | None]
    outputs: Sequence[str]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Graph:
    tensors: Sequence[Tensor]
    nodes: Sequence[Node]
    inputs: Sequence[str]
    outputs: Sequence[str]


def constant(name: str, data: Any, **more: Any) -> Tensor:
    array = np.asarray(data)
    return Tensor(name, array.shape, array.dtype, array, **more)


def written(*graphs: Graph, names: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a model; `names` are those of a signature of the first graph, by tensor."""
    b = flatbuffers.Builder(1 << 16)
    kinds = list(dict.fromkeys(node.kind for g in graphs for node in g.nodes))
    arrays = [t.data for g in graphs for t in g.tensors if t.data is not None]
    codes = _tables(b, [_code(b, kind) for kind in kinds])
    buffers = _tables(b, [_table(b, {}), *[_table(b, {0: _vector(b, _bytes(a), "B")}) for a in arrays]])
    numbers = iter(range(1, len(arrays) + 1))
    made = _tables(b, [_graph(b, g, kinds, numbers) for g in graphs])
    fields = {0: ("I", 3), 1: codes, 2: made, 4: buffers}
    if names is not None:
        fields[7] = _tables(b, [_signature(b, graphs[0], names)])
    b.Finish(_table(b, fields), b"TFL3")
    return bytes(b.Output())


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _code(b: Any, kind: str) -> int:
    if kind.startswith("CUSTOM("):
        name = b.CreateString(kind[7:-1])
        return _table(b, {0: ("b", 32), 1: name, 3: ("i", 32)})
    number = OPERATORS.index(kind)
    return _table(b, {0: ("b", min(number, 127)), 3: ("i", number)})


def _signature(b: Any, graph: Graph, names: Mapping[str, str]) -> int:
    order = [t.name for t in graph.tensors]

    def maps(wanted: Sequence[str]) -> int:
        entries = [(b.CreateString(names[w]), order.index(w)) for w in wanted]
        return _tables(b, [_table(b, {0: name, 1: ("I", n)}) for name, n in entries])

    inputs, outputs, key = maps(graph.inputs), maps(graph.outputs), b.CreateString("serve")
    return _table(b, {0: inputs, 1: outputs, 2: key})


def _graph(b: Any, graph: Graph, kinds: Sequence[str], buffers: Any) -> int:
    order = [t.name for t in graph.tensors]

    def places(names: Sequence[str | None]) -> int:
        return _vector(b, [-1 if n is None else order.index(n) for n in names], "i")

    tensors = _tables(b, [_tensor(b, t, next(buffers) if t.data is not None else 0) for t in graph.tensors])
    nodes = []
    for node in graph.nodes:
        fields = {0: ("I", kinds.index(node.kind)), 1: places(node.inputs), 2: places(node.outputs)}
        if node.kind in OPTIONS:
            number, layout = OPTIONS[node.kind]
            fields |= {3: ("B", number), 4: _options(b, layout, node.options)}
        if node.kind == "VAR_HANDLE":
            fields |= {3: ("B", 111), 4: _table(b, {1: b.CreateString(node.options["name"])})}
        nodes.append(_table(b, fields))
    return _table(b, {0: tensors, 1: places(graph.inputs), 2: places(graph.outputs), 3: _tables(b, nodes)})


def _options(b: Any, layout: str, given: Mapping[str, Any]) -> int:
    fields: dict[int, Any] = {}
    known = {entry.split(":")[0]: entry.split(":")[1].split("=")[0].split("@") for entry in layout.split()}
    for name, value in given.items():
        kind, place = known[name]
        fields[int(place)] = _vector(b, value, kind[1:]) if kind[0] == "[" else (kind, value)
    return _table(b, fields)


def _tensor(b: Any, t: Tensor, buffer: int) -> int:
    number = TYPES[np.dtype(t.dtype)] if t.type_number is None else t.type_number
    fields: dict[int, Any] = {0: _vector(b, t.shape, "i"), 1: ("b", number), 2: ("I", buffer)}
    fields[3] = b.CreateString(t.name)
    if t.scale is not None:
        scales = np.atleast_1d(np.asarray(t.scale, np.float32))
        zeros = np.broadcast_to(np.asarray(t.zero, np.int64), scales.shape)
        parts = {2: _vector(b, scales, "f"), 3: _vector(b, zeros, "q")}
        fields[4] = _table(b, parts | {6: ("i", t.axis)})
    if t.signature is not None:
        fields[7] = _vector(b, t.signature, "i")
    if t.variable:
        fields[5] = ("?", True)
    return _table(b, fields)


def _vector(b: Any, values: Any, kind: str) -> int:
    form = {"B": "u1", "i": "<i4", "f": "<f4", "q": "<i8"}[kind]
    return int(b.CreateNumpyVector(np.asarray(list(values) if not isinstance(values, np.ndarray) else values, form)))


def _tables(b: Any, offsets: Sequence[int]) -> int:
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return int(b.EndVector())


_PREPEND = {
    "b": "PrependInt8", "B": "PrependUint8", "i": "PrependInt32", "I": "PrependUint32", "f": "PrependFloat32",
    "?": "PrependBool", "q": "PrependInt64",
}  # fmt: skip


def _table(b: Any, fields: Mapping[int, Any]) -> int:
    """A table of numbers, given with their kind, and of offsets."""
    b.StartObject(max(fields, default=-1) + 1)
    for number, value in fields.items():
        if isinstance(value, tuple):
            getattr(b, _PREPEND[value[0]])(value[1])
            b.Slot(number)
        else:
            b.PrependUOffsetTRelativeSlot(number, value, 0)
    return int(b.EndObject())


def run(data: bytes, *arrays: np.ndarray, **options: Any) -> list[np.ndarray]:
    """The outputs of a model, interpreted."""
    module = load_tflite(data, **options)
    return evaluate_func(module.main, module, list(arrays))


def node_model(
    kind: str,
    arrays: Sequence[np.ndarray | Tensor | None],
    result: Any = np.float32,
    options: Mapping[str, Any] | None = None,
    known: Sequence[int] = (),
    results: int = 1,
) -> bytes:
    """A model of one operator. Arrays at the positions `known` are constants, the others inputs; `result` is the dtype
    of the results, or the first as a Tensor."""
    tensors: list[Tensor] = []
    names: list[str | None] = []
    for k, given in enumerate(arrays):
        if given is None:
            names.append(None)
            continue
        tensor = given if isinstance(given, Tensor) else constant(f"x{k}", given)
        if k not in known and not isinstance(given, Tensor):
            tensor = Tensor(f"x{k}", given.shape, given.dtype)
        tensors.append(tensor)
        names.append(tensor.name)
    outputs = [f"y{k}" for k in range(results)]
    dtypes = result if isinstance(result, tuple) else (result,) * results
    made = [r if isinstance(r, Tensor) else Tensor(n, (), r) for n, r in zip(outputs, dtypes, strict=True)]
    outputs = [t.name for t in made]
    inputs = [t.name for t in tensors if t.data is None and not t.variable]
    node = Node(kind, names, outputs, options or {})
    return written(Graph([*tensors, *made], [node], inputs, outputs))


def check(
    kind: str,
    arrays: Sequence[np.ndarray | None],
    wanted: np.ndarray | Sequence[np.ndarray],
    options: Mapping[str, Any] | None = None,
    known: Sequence[int] = (),
    **tolerance: float,
) -> None:
    """One operator gives what is wanted, in the dtypes of `wanted` but for floats, which are f32."""
    expected = list(wanted) if isinstance(wanted, list | tuple) else [np.asarray(wanted)]
    dtypes = tuple(np.dtype(np.float32) if w.dtype.kind == "f" else w.dtype for w in expected)
    data = node_model(kind, arrays, dtypes if len(dtypes) > 1 else dtypes[0], options, known, len(expected))
    given = [a for k, a in enumerate(arrays) if a is not None and k not in known]
    found = run(data, *given)
    assert len(found) == len(expected)
    for f, w in zip(found, expected, strict=True):
        assert f.shape == w.shape, (kind, f.shape, w.shape)
        np.testing.assert_allclose(f, w, **{"rtol": 1e-5, "atol": 1e-5, **tolerance})
