"""Checkpoints of GPTQ and AWQ: a layer's weight is several tensors, which become one in a kind of the table.

    qweight i32, qzeros i32, scales f16, g_idx i32      element [i, o] = (code - zero) * scale of the group of i

Codes lie in words of 32 bits, along the inputs (GPTQ) or along the outputs (AWQ, in an order of its own). Inputs of a
group follow one another, or `g_idx` says to which group each belongs (`desc_act`); then columns are stored by groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.frontends.problems import shown
from tilewright.frontends.weights.encode import grouped
from tilewright.frontends.weights.layout import BlockLayout, PlainLayout, Plane
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir import dtype as dt
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType

_BITS = {"gptq": (2, 3, 4, 8), "awq": (4,)}
_SCALES = (dt.f16, dt.bf16, dt.f32)
_AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word the code of each of eight outputs is."""
_REST = ("qzeros", "scales", "g_idx")


@dataclass(frozen=True)
class QuantizationConfig:
    """How a checkpoint is packed: `group` inputs share a scale (0: all), and `shift` was taken from zeros."""

    method: str
    bits: int
    group: int
    shift: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> QuantizationConfig:
        """From `quantization_config` of config.json; UnsupportedError for other methods and layouts."""
        method, bits, group = config.get("quant_method"), config.get("bits"), config.get("group_size")
        form = config.get("checkpoint_format", config.get("version", ""))
        allowed = _BITS.get(method, ()) if isinstance(method, str) else ()
        of_device = method == "awq" and str(form).lower() not in ("", "gemm")
        if not isinstance(method, str) or not isinstance(bits, int) or bits not in allowed or of_device:
            raise UnsupportedError(
                f"weights of the method {method!r:.40} in {bits!r:.40} bits {f'({form!s:.40}) ' if form else ''}"
                "are not supported",
                where="quantization_config of config.json",
                hint="there are gptq (2, 3, 4 and 8 bits) and awq (4 bits, version gemm); or take the model in floats, "
                "and ask for weights of 4 or 8 bits",
            )
        if type(group) is not int or not (group == -1 or 0 < group < 1 << 31):
            raise ModelError(f"group_size is {group!r:.40}, which is no number of inputs", where="quantization_config")
        is_first = method == "gptq" and form != "gptq_v2"
        return cls(method, bits, max(group, 0), 1 if is_first else 0)


def unpacked(tensors: Mapping[str, StoredTensor], config: QuantizationConfig) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint, with one `x.weight` for each `x.qweight` and what belongs to it. ModelError where
    something is missing or does not fit."""
    found: dict[str, StoredTensor] = {}
    layers = {name.removesuffix("qweight") for name in tensors if name.endswith(".qweight")}
    rest = {layer + name for layer in layers for name in ("qweight", *_REST)}
    for name, tensor in tensors.items():
        if name.endswith(".qweight"):
            layer = name.removesuffix("qweight")
            found[layer + "weight"] = _weight(layer, tensors, config)
        elif name not in rest:
            found[name] = tensor
    return found


def _fail(name: str, what: str) -> ModelError:
    return ModelError(
        what, where=f"tensor '{shown(name)}'", hint="quantization_config in config.json says how weights are packed"
    )


def _weight(layer: str, tensors: Mapping[str, StoredTensor], config: QuantizationConfig) -> StoredTensor:
    scales = _elements(layer + "scales", tensors, 2, _SCALES)
    scale_dtype = dt.from_numpy(scales.dtype)
    groups, outputs = scales.shape
    codes = _codes(layer + "qweight", tensors, config, outputs)
    inputs = codes.shape[1]
    group = config.group or max(inputs, 1)
    if groups != -(-inputs // group):
        raise _fail(layer + "scales", f"{groups} groups of {group} inputs for {inputs} inputs")
    zeros = _zeros(layer + "qzeros", tensors, config, scales.shape)
    order = _order(layer + "g_idx", tensors, inputs, group)
    if order is not None:
        codes = codes[:, np.argsort(order)]  # by the place where they are stored
    half = 1 << config.bits - 1
    kind = grouped(config.bits, group, scale=scale_dtype, zeros=bool((zeros != half).any()))
    layout = kind.layout
    assert isinstance(layout, BlockLayout)
    if groups > 1 and kind.elements != group:
        raise _fail(layer + "scales", f"groups of {group} inputs, whose codes are no whole bytes, are not supported")
    flat = np.pad(codes, ((0, 0), (0, groups * kind.elements - inputs))).reshape(-1, kind.elements)
    blocks = np.zeros((outputs * groups, kind.bytes), np.uint8)
    layout.scale.write(scales.T.reshape(-1, 1), blocks)
    if layout.zeros is None:
        layout.codes.write(flat.astype(np.int16) - half, blocks)
    else:
        layout.codes.write(flat, blocks)
        layout.zeros.write(zeros.T.reshape(-1, 1), blocks)
    return StoredTensor(layer + "weight", (outputs, inputs), kind, blocks.reshape(-1), order)


def _elements(name: str, tensors: Mapping[str, StoredTensor], rank: int, dtypes: tuple[DType, ...]) -> np.ndarray:
    tensor = tensors.get(name)
    if tensor is None:
        raise _fail(name, "the tensor is missing, which a packed weight needs")
    layout = tensor.kind.layout
    if not isinstance(layout, PlainLayout) or layout.dtype not in dtypes or len(tensor.shape) != rank:
        wanted = " or ".join(dtype.name for dtype in dtypes)
        raise _fail(name, f"{tensor.kind}{list(tensor.shape)} in place of {wanted} of rank {rank}")
    found = tensor.elements()
    assert found is not None
    return found


def _codes(name: str, tensors: Mapping[str, StoredTensor], config: QuantizationConfig, outputs: int) -> np.ndarray:
    """u8[outputs, inputs]."""
    words = _elements(name, tensors, 2, (dt.i32,))
    if config.method == "awq":
        codes = _in_order_of_outputs(_fields(words, 4)).T
    else:
        codes = _fields(np.ascontiguousarray(words.T), config.bits)
    if len(codes) != outputs:
        raise _fail(name, f"{len(codes)} outputs, while the scales have {outputs}")
    return codes


def _zeros(
    name: str, tensors: Mapping[str, StoredTensor], config: QuantizationConfig, shape: tuple[int, ...]
) -> np.ndarray:
    """u8[groups, outputs]."""
    zeros = _fields(_elements(name, tensors, 2, (dt.i32,)), config.bits)
    if config.method == "awq":
        zeros = _in_order_of_outputs(zeros)
    zeros = zeros[:, : shape[1]]
    if zeros.shape != shape:
        raise _fail(name, f"zeros of {list(zeros.shape)}, while the scales have {list(shape)}")
    # what was taken from a zero of 0 wrapped around
    return (zeros + np.uint8(config.shift)) & np.uint8((1 << config.bits) - 1)


def _fields(words: np.ndarray, bits: int) -> np.ndarray:
    """Words i32[n, k] as u8[n, 32 * k / bits]: numbers of so many bits, the lowest first."""
    data = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return data
    if 8 % bits == 0:
        return Plane(0, data.shape[1], bits, 1).read(data)
    whole = data.shape[1] * 8 // bits  # as words are full only together, those at the end of a row may be cut
    apart = np.unpackbits(data, axis=1, bitorder="little")[:, : whole * bits].reshape(len(data), whole, bits)
    return np.asarray(apart @ (np.uint8(1) << np.arange(bits, dtype=np.uint8)), np.uint8)


def _in_order_of_outputs(fields: np.ndarray) -> np.ndarray:
    apart = fields.reshape(len(fields), fields.shape[1] // 8, 8)
    return apart[:, :, _AWQ_NIBBLES].reshape(fields.shape)


def _order(name: str, tensors: Mapping[str, StoredTensor], inputs: int, group: int) -> np.ndarray | None:
    """Where each column is stored; None where groups are of neighbours."""
    if name not in tensors:
        return None
    groups = _elements(name, tensors, 1, (dt.i32,))
    plain = np.arange(inputs) // group
    if groups.shape != (inputs,) or not np.array_equal(np.sort(groups), plain):
        raise _fail(name, f"it does not divide {inputs} inputs into groups of {group}")
    if np.array_equal(groups, plain):
        return None
    order = np.empty(inputs, np.int64)
    order[np.argsort(groups, kind="stable")] = np.arange(inputs)
    return order
