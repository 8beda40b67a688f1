"""Decoders as exporters write them, for one sequence that is continued: what follows from its length is no input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.core import Module
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType

TOKENS = ("input_ids", "ids", "tokens")
_MASKS, _POSITIONS, _FLAGS = ("attention_mask",), ("position_ids", "positions", "cache_position"), ("use_cache_branch",)
_LEAST_OPSET = 11
_PREFIX = "tilewright.decoder."
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def load_exported(
    path: Path,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Module:
    """As `load_onnx`, of `for_one_sequence`. Where all calls are refused for which a symbolic dim has not one size, it
    has this size: a state has no other dims that are open than the one along which it grows."""
    module = load_onnx(path, constants=constants, shapes=shapes, changed=for_one_sequence)
    sizes = dict(_decided(condition for condition, *_ in module.main.attrs.get("assumed", ())))
    if not sizes:
        return module
    known = {
        name: [sizes.get(d, d.value if d.is_const else d.name) for d in value.tensor.shape]
        for name, value in zip(module.main.attrs["inputs"], module.main.args, strict=True)
        if isinstance(value.type, TensorType) and not sizes.keys().isdisjoint(value.type.shape)
    }
    return load_onnx(path, constants=constants, shapes={**(shapes or {}), **known}, changed=for_one_sequence)


def _decided(conditions: Iterable[Sym]) -> Iterator[tuple[Sym, int]]:
    """Dims that must have one size, by conditions that are equations of them alone (and not of a remainder, say)."""
    for condition in conditions:
        if condition.kind == "eq0" and len(condition.vars) == 1:
            (dim,) = condition.vars
            counts = dict(condition.args[0].terms)
            if abs(counts.get(dim, 0)) == 1 and all(term is dim or term.is_const for term in counts):
                yield dim, -counts[dim] * condition.args[0].subs({dim: sym(0)}).value


def for_one_sequence(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which batches are of one sequence, nothing is masked, and tokens stand behind those in the caches: the
    mask, the positions and what chooses a branch without caches are computed from the shapes of the tokens and of a
    cache. A model that has no tokens or no caches with a symbolic length stays as it is."""
    graph = model.graph
    preset = {tensor.name for tensor in graph.initializer}
    inputs = {info.name: info for info in graph.input if info.name not in preset}
    tokens = next((inputs[name] for name in TOKENS if name in inputs), None)
    batch = _name(tokens, 0) if tokens is not None else ""
    cache = next((found for info in inputs.values() if (found := _Cache.of(info, batch)) is not None), None)
    version = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if tokens is None or cache is None or version < _LEAST_OPSET:
        return model
    found = onnx.ModelProto()
    found.CopyFrom(model)
    _fix_batches(found.graph, batch)
    written = _Written(tokens.name, len(_dims(tokens)) - 1, cache, version)
    kept = [info for info in found.graph.input if info.name in preset or not written.computes(info)]
    rest = [written.counted(node, found.graph) or node for node in found.graph.node]
    nodes = [*written.nodes(), *rest]
    for field, values in ((found.graph.input, kept), (found.graph.node, nodes)):
        del field[:]
        field.extend(values)
    return found


@dataclass(frozen=True)
class _Cache:
    """An input with what came before along an axis."""

    name: str
    axis: int

    @classmethod
    def of(cls, info: ValueInfoProto, batch: str) -> _Cache | None:
        """That of an input of floats with a symbolic length; of several symbolic dims the first behind the batch."""
        if info.type.tensor_type.elem_type not in _FLOATS or len(_dims(info)) < 3:
            return None
        open_ones = [k for k, d in enumerate(_dims(info)) if not d.HasField("dim_value") and d.dim_param != batch]
        behind = [k for k in open_ones if k > 0 or batch]
        return cls(info.name, behind[0]) if behind else None


class _Written:
    """The nodes that compute inputs from the shapes of the tokens and of a cache."""

    def __init__(self, tokens: str, axis: int, cache: _Cache, version: int) -> None:
        self._tokens, self._axis, self._cache, self._version = tokens, axis, cache, version
        self._made: list[NodeProto] = []
        self._counts: list[NodeProto] = []
        self._masks: dict[str, ValueInfoProto] = {}

    def computes(self, info: ValueInfoProto) -> bool:
        """Whether the value of an input follows; it is computed then."""
        kinds: dict[tuple[str, ...], Callable[[ValueInfoProto], None]] = {
            _MASKS: self._mask, _POSITIONS: self._positions, _FLAGS: self._flag,
        }  # fmt: skip
        make = next((make for names, make in kinds.items() if info.name in names), None)
        rank = len(_dims(info))
        if make is None or (info.name not in _FLAGS and rank not in (1, 2)):
            return False
        make(info)
        return True

    def nodes(self) -> list[NodeProto]:
        """In the order in which they are computed."""
        return [*self._lengths(), *self._made, *self._counts] if self._made else []

    def counted(self, node: NodeProto, graph: onnx.GraphProto) -> NodeProto | None:
        """In place of the sum of a mask along its positions their number, which is known without looking."""
        mask = self._masks.get(node.input[0]) if node.op_type == "ReduceSum" and node.input else None
        if mask is None or len(_dims(mask)) != 2 or _axes(node, graph) not in ([1], [-1]):
            return None
        keeps = next((attribute.i for attribute in node.attribute if attribute.name == "keepdims"), 1)
        shape, cast = (f"{node.output[0]}.{what}" for what in ("shape", "cast"))
        self._counts += [
            _constant(shape, np.array([1, 1] if keeps else [1])),
            _node("Cast", [_own("total")], cast, to=mask.type.tensor_type.elem_type),
        ]
        return helper.make_node("Reshape", [_own(cast), _own(shape)], [node.output[0]], name=node.name)

    def _lengths(self) -> Iterator[NodeProto]:
        for name, source, axis in (("steps", self._tokens, self._axis), ("past", self._cache.name, self._cache.axis)):
            yield _node("Shape", [source], f"{name}.shape")
            yield _constant(f"{name}.axis", np.array([axis]))
            yield _node("Gather", [_own(f"{name}.shape"), _own(f"{name}.axis")], name, axis=0)
        yield _node("Add", [_own("past"), _own("steps")], "total")

    def _mask(self, info: ValueInfoProto) -> None:
        """Ones for all positions."""
        self._masks[info.name] = info
        shape = self._shape(info, "total")
        value = helper.make_tensor("", info.type.tensor_type.elem_type, [1], [1])
        self._made.append(_node("ConstantOfShape", [shape], info.name, value=value, is_own=False))

    def _positions(self, info: ValueInfoProto) -> None:
        """Those behind the past."""
        shape, name = self._shape(info, "steps"), info.name
        first, last = (self._scalar(f"{name}.{what}", what) for what in ("past", "total"))
        self._made += [
            _constant(f"{name}.one", np.array(1)),
            _node("Range", [first, last, _own(f"{name}.one")], f"{name}.range"),
            _node("Cast", [_own(f"{name}.range")], f"{name}.cast", to=info.type.tensor_type.elem_type),
            _node("Reshape", [_own(f"{name}.cast"), shape], name, is_own=False),
        ]

    def _flag(self, info: ValueInfoProto) -> None:
        """The branch with caches."""
        array = np.ones([1] * len(_dims(info)), np.bool_)
        self._made.append(_constant(info.name, array, is_own=False))

    def _shape(self, info: ValueInfoProto, length: str) -> str:
        """The name of [1, length], or of [length]."""
        if len(_dims(info)) == 1:
            return _own(length)
        one, shape = f"{info.name}.batch", f"{info.name}.shape"
        self._made += [_constant(one, np.array([1])), _node("Concat", [_own(one), _own(length)], shape, axis=0)]
        return _own(shape)

    def _scalar(self, name: str, of: str) -> str:
        none = f"{name}.none"
        self._made += [
            _constant(none, np.zeros(0, np.int64)), _node("Reshape", [_own(of), _own(none)], f"{name}.number")
        ]  # fmt: skip
        return _own(f"{name}.number")


def _axes(node: NodeProto, graph: onnx.GraphProto) -> list[int] | None:
    """Those of a reduction, where they are written down."""
    for attribute in node.attribute:
        if attribute.name == "axes":
            return list(attribute.ints)
    if len(node.input) < 2:
        return None
    for tensor in graph.initializer:
        if tensor.name == node.input[1] and not tensor.external_data:
            return numpy_helper.to_array(tensor).reshape(-1).tolist()
    constants = (each for each in graph.node if each.op_type == "Constant" and each.output[0] == node.input[1])
    for attribute in (attribute for each in constants for attribute in each.attribute):
        if attribute.name in ("value_ints", "value_int"):
            return list(attribute.ints) or [attribute.i]
        if attribute.name == "value" and not attribute.t.external_data:
            return numpy_helper.to_array(attribute.t).reshape(-1).tolist()
    return None


def _own(name: str) -> str:
    return _PREFIX + name


def _node(op: str, inputs: Sequence[str], output: str, *, is_own: bool = True, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs, [_own(output) if is_own else output], **attributes)


def _constant(name: str, value: np.ndarray, *, is_own: bool = True) -> NodeProto:
    return _node("Constant", [], name, is_own=is_own, value=numpy_helper.from_array(value, ""))


def _dims(info: ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    return info.type.tensor_type.shape.dim


def _name(info: ValueInfoProto, axis: int) -> str:
    """That of a symbolic dim; "" for others."""
    dims = _dims(info)
    return dims[axis].dim_param if len(dims) > 1 and not dims[axis].HasField("dim_value") else ""


def _fix_batches(graph: onnx.GraphProto, batch: str) -> None:
    """One sequence: where the dim is named, and where the first one of tokens and what goes with them is open."""
    for info in graph.input:
        dims = _dims(info)
        for axis, dim in enumerate(dims):
            is_first = axis == 0 and len(dims) > 1 and not dim.HasField("dim_value")
            if is_first or (batch and dim.dim_param == batch):
                dim.dim_value = 1
