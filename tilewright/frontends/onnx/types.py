"""Types of ONNX as types of the program, and back."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, helper

from tilewright.frontends.onnx.tensors import ELEM_TYPES, dtype_of
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import sym
from tilewright.ir.types import ANY_DIM, HostType, TensorType, Type

_KINDS = {"sequence_type": "sequence", "optional_type": "optional"}


def element_type(proto: onnx.TypeProto, where: str) -> Type:
    """The type of an element, and of an input that is no tensor. Only its fixed dims are kept, a tensor of which not
    even the rank is declared is one for the host. UnsupportedError for others."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        tensor = proto.tensor_type
        dtype = dtype_of(tensor.elem_type, where)
        if not tensor.HasField("shape"):
            return HostType("tensor", dtype)
        dims = (sym(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else ANY_DIM for d in tensor.shape.dim)
        return TensorType(dtype, tuple(dims))
    if kind in _KINDS:
        return HostType(_KINDS[kind], None, element_type(getattr(proto, kind).elem_type, where))
    if kind == "map_type":
        value = element_type(proto.map_type.value_type, where)
        if isinstance(value, HostType) and value.kind == "tensor" and value.dtype is not None:
            value = TensorType(value.dtype, ())  # one number or string, whose shape many leave out
        return HostType("map", dtype_of(proto.map_type.key_type, where), value)
    raise UnsupportedError(f"a value of type {kind} is not supported", where=where)


def is_like(declared: Type, found: Type) -> bool:
    """Whether a value may be declared so: the same kinds and element types, whatever the dims. A loop that begins with
    an optional may give what that holds."""
    if isinstance(found, HostType) and found.kind == "optional" and getattr(declared, "kind", "") != "optional":
        assert found.element is not None
        return is_like(declared, found.element)
    if getattr(declared, "dtype", None) != getattr(found, "dtype", None):
        return False
    if isinstance(declared, HostType) and isinstance(found, HostType) and declared.element and found.element:
        return declared.kind == found.kind and is_like(declared.element, found.element)
    return getattr(declared, "element", None) is getattr(found, "element", None) is None


_NAMES: Mapping[str, str] = {"sequence": "seq", "optional": "optional"}


def onnx_type(type: Type) -> str:
    """How schemas spell a type: `tensor(float)`, `seq(tensor(float))`, `map(string, float)`."""
    if isinstance(type, HostType) and type.element is not None:
        element = onnx_type(type.element)
        if type.kind == "map":
            assert type.dtype is not None
            return f"map({_name(type)}, {element.removeprefix('tensor(').removesuffix(')')})"
        return f"{_NAMES[type.kind]}({element})"
    return f"tensor({_name(type)})"


def _name(type: Type) -> str:
    assert isinstance(type, TensorType | HostType) and type.dtype is not None
    return TensorProto.DataType.Name(ELEM_TYPES[type.dtype]).lower()


def type_proto(type: Type | None) -> onnx.TypeProto:
    """The type as the specification's functions take it; an empty one for a value that is left out."""
    if type is None:
        return onnx.TypeProto()
    if isinstance(type, TensorType):
        shape = [d.value if d.is_const else None for d in type.shape]
        return helper.make_tensor_type_proto(ELEM_TYPES[type.dtype], shape)
    assert isinstance(type, HostType)
    if type.element is None:
        assert type.dtype is not None
        return helper.make_tensor_type_proto(ELEM_TYPES[type.dtype], None)
    if type.kind == "map":
        assert type.dtype is not None
        return helper.make_map_type_proto(ELEM_TYPES[type.dtype], type_proto(type.element))
    make = helper.make_sequence_type_proto if type.kind == "sequence" else helper.make_optional_type_proto
    return make(type_proto(type.element))
