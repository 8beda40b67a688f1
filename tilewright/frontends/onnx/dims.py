"""Symbolic dims of the file as Sym variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import onnx

from tilewright.frontends.errors import shown
from tilewright.frontends.onnx.tensors import dtype_of
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import TensorType

MAX_DIM = 2**40
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_LIKE_LOOP_VARIABLE = re.compile(r"[A-Za-z]+[0-9]+$")


class Dims:
    """Gives one variable to each symbolic dim; names of the file become identifiers, and stay different."""

    def __init__(self) -> None:
        self._by_param: dict[str, Sym] = {}
        self._taken: set[str] = set()

    def named(self, param: str) -> Sym:
        """The variable of dim_param `param` (any text: it is a name, never evaluated)."""
        if param not in self._by_param:
            self._by_param[param] = self._fresh(param)
        return self._by_param[param]

    def unnamed(self, owner: str, axis: int) -> Sym:
        """A variable of its own for a dim that the file leaves open."""
        return self._fresh(f"{owner}_{axis}")

    def _fresh(self, wanted: str) -> Sym:
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
        return var(unique, 0, None)


def input_type(
    info: onnx.ValueInfoProto, dims: Dims, overrides: Mapping[str, Sequence[int | str]]
) -> TensorType:
    """The type of a graph input, its shape replaced by `overrides[name]` where given."""
    where = f"graph input '{shown(info.name)}'"
    kind = info.type.WhichOneof("value")
    if kind is None:
        raise ModelError("the input has no type", where=where, hint="export the model again")
    if kind != "tensor_type":
        raise UnsupportedError(f"an input of type {kind} is not supported; only tensors are", where=where)
    tensor = info.type.tensor_type
    dtype = dtype_of(tensor.elem_type, where)
    if dtype.kind == "string":
        raise UnsupportedError("string tensors are not supported", where=where)
    if info.name in overrides:
        return TensorType(dtype, _override(overrides[info.name], tensor, dims, where))
    if not tensor.HasField("shape"):
        raise UnsupportedError(
            "the input's rank is unknown", where=where, hint=f"pass shapes={{'{shown(info.name)}': [...]}}"
        )
    return TensorType(
        dtype, tuple(_dim(d, info.name, k, dims, where) for k, d in enumerate(tensor.shape.dim))
    )


def _dim(dim: onnx.TensorShapeProto.Dimension, owner: str, axis: int, dims: Dims, where: str) -> Sym:
    if dim.HasField("dim_value"):
        return _const(dim.dim_value, where) if dim.dim_value != -1 else dims.unnamed(owner, axis)
    # exporters write "?" for dims that they know nothing about, which need not be equal
    is_named = any(c.isalnum() for c in dim.dim_param)
    return dims.named(dim.dim_param) if is_named else dims.unnamed(owner, axis)


def _override(
    shape: Sequence[int | str], declared: onnx.TypeProto.Tensor, dims: Dims, where: str
) -> tuple[Sym, ...]:
    if declared.HasField("shape") and len(declared.shape.dim) != len(shape):
        raise ModelError(
            f"shapes= gives {list(shape)}, but the input has rank {len(declared.shape.dim)}",
            where=where,
            hint="give one dim for each axis",
        )
    return tuple(dims.named(d) if isinstance(d, str) else _const(d, where) for d in shape)


def _const(value: int, where: str) -> Sym:
    if not 0 <= value <= MAX_DIM:
        raise ModelError(f"the dim {value} is not possible", where=where, hint=f"dims are 0 to {MAX_DIM}")
    return sym(value)
