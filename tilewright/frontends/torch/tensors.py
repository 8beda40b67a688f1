"""Tensors and element types of PyTorch as NumPy's and ours."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from tilewright.frontends.files import digest_of_arrays
from tilewright.ir import dtype as dt
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType

DTYPES: dict[torch.dtype, DType] = {
    torch.bool: dt.bool_, torch.int8: dt.i8, torch.int16: dt.i16, torch.int32: dt.i32, torch.int64: dt.i64,
    torch.uint8: dt.u8, torch.uint16: dt.u16, torch.uint32: dt.u32, torch.uint64: dt.u64,
    torch.float16: dt.f16, torch.bfloat16: dt.bf16, torch.float32: dt.f32, torch.float64: dt.f64,
    torch.float8_e4m3fn: dt.f8e4m3, torch.float8_e4m3fnuz: dt.f8e4m3fnuz, torch.float8_e5m2: dt.f8e5m2,
    torch.float8_e5m2fnuz: dt.f8e5m2fnuz, torch.float8_e8m0fnu: dt.f8e8m0,
}  # fmt: skip

COMPLEX: dict[torch.dtype, DType] = {torch.complex64: dt.f32, torch.complex128: dt.f64}
"""Complex types, by the type of their parts."""

_AS_BYTES = {1: torch.uint8, 2: torch.int16}
"""Integers of the width of types that PyTorch does not hand to NumPy."""

_LEFT_OUT: dict[str, str] = {
    "complex": "use torch.view_as_real on its inputs and results",
    "sparse": "call .to_dense() on it first",
    "nested": "pad it to a dense tensor with torch.nested.to_padded_tensor first",
    "quantized": "use the operators of torch.ao.quantization's PT2E flow, which compute on dense tensors",
    "device": "move the module and its inputs to the CPU with .cpu() first",
}


def dtype_of(dtype: torch.dtype) -> DType:
    """Our name of an element type; UnsupportedError for one that has no counterpart."""
    found = DTYPES.get(dtype)
    if found is None:
        hint = _LEFT_OUT["complex"] if dtype.is_complex else f"those that are: {', '.join(map(str, DTYPES))}"
        raise UnsupportedError(f"tensors of {dtype} are not supported", hint=hint)
    return found


def part_of(dtype: torch.dtype) -> DType:
    """Our name of an element type; of complex numbers that of their parts."""
    return COMPLEX.get(dtype) or dtype_of(dtype)


def require_dense(tensor: torch.Tensor, what: str) -> None:
    """UnsupportedError for a tensor that is no dense one in the CPU's memory."""
    reason = None
    if tensor.is_nested:
        reason = "nested"
    elif tensor.layout != torch.strided:
        reason = "sparse"
    elif tensor.is_quantized:
        reason = "quantized"
    elif tensor.device.type not in ("cpu", "meta"):
        reason = "device"
    if reason is not None:
        kind = f"on the device '{tensor.device}'" if reason == "device" else f"a {reason} tensor"
        raise UnsupportedError(f"{what} is {kind}, which is not supported", hint=_LEFT_OUT[reason])


def require_values(tensor: torch.Tensor, what: str) -> None:
    """UnsupportedError for a tensor that is no dense one in the CPU's memory, or has no elements there."""
    require_dense(tensor, what)
    kind = "a fake tensor" if isinstance(tensor, FakeTensor) else "device 'meta'"
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
        raise UnsupportedError(
            f"{what} has no values ({kind})", hint="load the module's weights, and give inputs on the CPU"
        )


def array_of(tensor: torch.Tensor, what: str) -> np.ndarray:
    """The elements of a tensor, in its own memory where it is contiguous; complex numbers as NumPy has them."""
    require_values(tensor, what)
    dtype = part_of(tensor.dtype)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if dtype.storage.name in ("bfloat16",) or dtype.storage.name.startswith("float8"):
        return plain.view(_AS_BYTES[dtype.bytes]).numpy().view(dtype.storage)
    return plain.numpy()


def digest_of_tensors(tensors: Iterable[tuple[str, torch.Tensor]]) -> bytes:
    """A digest of the elements of tensors, with what each is called in errors."""
    return digest_of_arrays(array_of(tensor, what).reshape(-1).view("u1").data for what, tensor in tensors)
