"""Inputs and outputs as ONNX Runtime describes them, for programs that were written for it."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.runtime.artifact import Dim, TensorInfo

_TYPES = {
    "float32": "float",
    "float64": "double",
    "float8_e8m0fnu": "float8e8m0",
    "float6_e2m3fn": "float6e2m3",
    "float6_e3m2fn": "float6e3m2",
    "float4_e2m1fn": "float4e2m1",
}


@dataclass(frozen=True)
class NodeArg:
    """An input or output: `type` is a text such as "tensor(float)", and dims that are not fixed are texts, or None
    where a file says nothing about them (`tilewright.onnxruntime`)."""

    name: str
    shape: list[Dim | None]
    type: str

    @classmethod
    def of(cls, info: TensorInfo) -> NodeArg:
        """The same facts under the other names."""
        return cls(info.name, list(info.shape), _type(info))


_SHORT = {"sequence": "seq", "optional": "optional"}


def _type(info: TensorInfo) -> str:
    dtype = _TYPES.get(info.dtype, info.dtype.replace("_", ""))
    if info.element is None:
        return f"tensor({dtype})"
    element = _type(info.element)
    return f"map({dtype},{element})" if info.kind == "map" else f"{_SHORT[info.kind]}({element})"
