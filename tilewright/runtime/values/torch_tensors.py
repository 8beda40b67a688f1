"""Tensors of PyTorch as arrays on the same memory. It is not imported here: who has a tensor has imported it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.values.dtypes import numpy_dtype

_modules = sys.modules

_foreign: dict[Any, tuple[Any, np.dtype] | None] = {}
"""For each dtype of PyTorch that was met: integers of as many bits there, and the dtype here, where NumPy itself does
not have it."""


def is_torch_tensor(value: Any) -> bool:
    """Whether PyTorch is there, and this is a tensor of it."""
    return isinstance(value, getattr(_modules.get("torch"), "Tensor", ()))


def torch_array(tensor: Any) -> np.ndarray:
    """The memory of a tensor as an array, a third of the time that DLPack takes; of a tensor whose elements are to be
    negated or conjugated when they are read, a copy. What needs a gradient is read while none are recorded.

    Whatever PyTorch raises, for tensors that have no memory here, are not dense, or would lose their gradients.
    """
    if tensor.requires_grad and not _modules["torch"].is_grad_enabled():
        tensor = tensor.detach()
    dtype = tensor.dtype
    try:
        known = _foreign[dtype]
    except KeyError:
        known = _foreign[dtype] = _foreign_dtype(dtype)
    try:
        array: np.ndarray = tensor.numpy() if known is None else tensor.view(known[0]).numpy()
    except RuntimeError:
        if not (tensor.is_neg() or tensor.is_conj()):
            raise
        tensor = tensor.resolve_conj().resolve_neg()
        array = tensor.numpy() if known is None else tensor.view(known[0]).numpy()
    return array if known is None else array.view(known[1])


def _foreign_dtype(dtype: Any) -> tuple[Any, np.dtype] | None:
    try:
        found = numpy_dtype(str(dtype).removeprefix("torch."))
    except ArtifactError:  # such as packed ones, whose elements share bytes: PyTorch says that it cannot
        return None
    if found.isbuiltin == 1 or found.itemsize != dtype.itemsize or dtype.is_complex:
        return None
    return getattr(_modules["torch"], f"int{8 * found.itemsize}"), found


def refusal(tensor: Any) -> tuple[str, str]:
    """Why a tensor cannot be read, and what to do about it; ("", "") where that is not known."""
    try:
        layout, device = str(tensor.layout), str(tensor.device)
        if layout != "torch.strided":
            return f"its layout is {layout}", "make it dense: tensor.to_dense()"
        if tensor.is_quantized:
            return "it is quantised", "pass tensor.int_repr() for its integers, or tensor.dequantize()"
        if device == "meta":
            return "it has no elements: its device is meta", "pass a tensor in the CPU's memory"
        if not device.startswith("cpu"):
            return f"it lies on the device {device}", "move it: tensor.cpu()"
        if tensor.requires_grad:
            return "it needs a gradient, which is not computed", "pass tensor.detach(), or call within torch.no_grad()"
    except Exception:  # a class of its own may do anything
        pass
    return "", ""
