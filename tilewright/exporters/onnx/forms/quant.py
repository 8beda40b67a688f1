"""Quantised numbers: QuantizeLinear and DequantizeLinear, products of integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilewright.exporters.onnx.forms.contract import pads_of, window
from tilewright.exporters.onnx.forms.registry import direct, form
from tilewright.exporters.onnx.forms.view import reshaped
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter

_SINCE = {
    dt.i8: 10, dt.u8: 10, dt.f8e4m3: 19, dt.f8e4m3fnuz: 19, dt.f8e5m2: 19, dt.f8e5m2fnuz: 19,
    dt.i16: 21, dt.u16: 21, dt.i4: 21, dt.u4: 21, dt.f4e2m1: 23, dt.i2: 25, dt.u2: 25,
}  # fmt: skip
"""The operator set from which on numbers are quantised to a type."""

OTHER_SCALES = 19
"""The operator set from which on scales may be float16 and bfloat16."""
BLOCKS = 21


class ScaleLayout(NamedTuple):
    """How ONNX has scales: for the whole tensor, or for each place along an `axis`, or each `block` of places."""

    axis: int | None = None
    block: int = 0


@form("quantize_linear")
def quantize_linear(w: OnnxWriter, op: Op) -> str | None:
    x, scale, zero = op.operands
    dtype, saturate = op.attrs["dtype"], op.attrs["saturate"]
    if x.tensor.dtype not in (dt.f32, dt.f16, dt.bf16) or not _is_expressible(w, dtype, x.tensor.dtype):
        return None
    if not saturate and not dtype.is_float:
        return None
    given = _parameters(w, x, scale, zero, x.tensor.dtype, dtype)
    if given is None:
        return None
    names, layout = given
    flag = 0 if not saturate else None
    return w.node("QuantizeLinear", w.name(x), *names, saturate=flag, **_attrs(layout))


@form("dequantize_linear")
def dequantize_linear(w: OnnxWriter, op: Op) -> str | None:
    x, scale, zero = op.operands
    dtype = op.attrs["dtype"]
    if dtype not in (dt.f32, dt.f16, dt.bf16):
        return None
    if x.tensor.dtype is dt.i32:
        if (zeros := w.known(zero)) is None or zeros.any() or w.opset < 10:
            return None
    elif not _is_expressible(w, x.tensor.dtype, dtype):
        return None
    given = _parameters(w, x, scale, zero, dtype, x.tensor.dtype, is_known=True)
    if given is None:
        return None
    names, layout = given
    return w.node("DequantizeLinear", w.name(x), *names, **_attrs(layout))


def _is_expressible(w: OnnxWriter, dtype: DType, of: DType) -> bool:
    since = _SINCE.get(dtype)
    return since is not None and w.has(since) and (of is dt.f32 or w.has(OTHER_SCALES))


def _attrs(layout: ScaleLayout) -> dict[str, int | None]:
    return {"axis": layout.axis, "block_size": layout.block or None}


def _parameters(
    w: OnnxWriter, x: Value, scale: Value, zero: Value, scales_in: DType, zeros_in: DType, *, is_known: bool = False
) -> tuple[list[str], ScaleLayout] | None:
    """The scale and the zero point as ONNX has them; None where it cannot. The zero point is left out where it is 0 and
    of u8, or where the type `is_known` without it."""
    shape = x.tensor.shape
    found = _layout(w, shape, scale)
    if found is None:
        return None
    zeros = w.known(zero)
    is_nothing = zeros is not None and not zeros.astype(np.float32).any()
    layout = found
    if not is_nothing:
        own = _layout(w, shape, zero)
        if own is None or (own != found and own != ScaleLayout()):
            return None
    names = [_laid_out(w, shape, scale, layout, scales_in)]
    if is_nothing and (is_known or zeros_in is dt.u8):
        return names, layout
    if is_nothing:
        names.append(_zeros_like(w, shape, scale, layout, zeros_in))
    elif _layout(w, shape, zero) == layout:
        names.append(_laid_out(w, shape, zero, layout, zeros_in))
    else:  # one zero point for all scales
        like = w.node("Shape", names[0])
        names.append(w.node("Expand", _laid_out(w, shape, zero, ScaleLayout(), zeros_in), like))
    return names, layout


def _layout(w: OnnxWriter, shape: Sequence[Sym], v: Value) -> ScaleLayout | None:
    """How numbers that broadcast against a tensor of some shape are laid out."""
    own = (*[1] * (len(shape) - v.tensor.rank), *v.tensor.shape)
    axes = [axis for axis, d in enumerate(own) if d != 1]
    if not axes:
        return ScaleLayout()
    if len(axes) == 1 and own[axes[0]] == shape[axes[0]] and len(shape) > 1:
        return ScaleLayout(axes[0])
    elements = w.known(v)
    if elements is None or tuple(own) != tuple(shape) or v.tensor.rank != len(shape) or not w.has(BLOCKS):
        return ScaleLayout(axes[0]) if len(axes) == 1 and own[axes[0]] == shape[axes[0]] else None
    blocks = {axis: _block(elements, axis) for axis in range(len(shape))}
    axis = max(blocks, key=lambda a: blocks[a])
    return ScaleLayout(axis, blocks[axis])


def _block(elements: np.ndarray, axis: int) -> int:
    """The greatest number of places along an axis that blocks of equal elements have."""
    size = elements.shape[axis]
    moved = np.moveaxis(elements, axis, 0).reshape(size, -1).astype(np.float64)
    if size < 2:
        return 1
    changes = np.flatnonzero((moved[1:] != moved[:-1]).any(axis=1)) + 1
    block = int(np.gcd.reduce(changes)) if changes.size else size
    return block


def _laid_out(w: OnnxWriter, shape: Sequence[Sym], v: Value, layout: ScaleLayout, dtype: DType) -> str:
    """Numbers as ONNX has them, in a dtype."""
    elements = w.known(v)
    v = _as_given(v)
    if elements is not None:
        hint = v.name or f"{v.op.operands[0].name if v.op is not None and v.op.operands else ''}"
        return w.constant(_pressed(elements, layout).astype(dtype.storage), hint)
    name = w.name(v)
    if layout.axis is None and v.tensor.rank > 1:
        name = reshaped(w, name, v.tensor.shape, ())
    elif layout.axis is not None and v.tensor.rank != 1:
        name = reshaped(w, name, v.tensor.shape, (shape[layout.axis],))
    return name if v.tensor.dtype == dtype else w.node("Cast", name, to=w.code(dtype))


def _as_given(v: Value) -> Value:
    """The vector (also one of a single number) that is laid out so that it broadcasts."""
    source = v.op.operands[0] if v.op is not None and v.op.name == "reshape" else None
    return source if source is not None and source.tensor.rank <= 1 else v


def _pressed(elements: np.ndarray, layout: ScaleLayout) -> np.ndarray:
    if layout.axis is None:
        return elements.reshape(())
    if layout.block:
        return np.take(elements, range(0, elements.shape[layout.axis], layout.block), layout.axis)
    return elements.reshape(-1)


def _zeros_like(w: OnnxWriter, shape: Sequence[Sym], scale: Value, layout: ScaleLayout, dtype: DType) -> str:
    elements = w.known(scale)
    if elements is not None:
        return w.constant(np.zeros(_pressed(elements, layout).shape, dtype.storage))
    if layout.axis is None:
        return w.number(0, dtype)
    return w.node("Expand", w.number(0, dtype), w.dims([shape[layout.axis]]))


direct("dynamic_quantize_linear", "DynamicQuantizeLinear", 11)


@form("matmul_integer")
def matmul_integer(w: OnnxWriter, op: Op) -> str | None:
    a, b, a_zero, b_zero = op.operands
    if not all(v.tensor.dtype in (dt.i8, dt.u8) for v in (a, b)):
        return None
    if a_zero.tensor.dtype != a.tensor.dtype or b_zero.tensor.dtype != b.tensor.dtype:
        return None
    names = []
    for zero in (a_zero, b_zero):
        elements = w.known(zero)
        if elements is not None and not elements.any():
            names.append("")
        elif all(d == 1 for d in zero.tensor.shape):
            names.append(reshaped(w, w.name(zero), zero.tensor.shape, ()) if zero.tensor.rank else w.name(zero))
        elif zero is b_zero and zero.tensor.rank == 1:
            names.append(w.name(zero))
        else:
            return None
    return w.node("MatMulInteger", w.name(a), w.name(b), *names)


@form("conv_integer")
def conv_integer(w: OnnxWriter, op: Op) -> str | None:
    x, filters, x_zero, w_zero = op.operands
    space = x.tensor.rank - 2
    begin, end = pads_of(op, space)
    if not all(v.tensor.dtype in (dt.i8, dt.u8) for v in (x, filters)) or x_zero.tensor.dtype != x.tensor.dtype:
        return None
    if w_zero.tensor.dtype != filters.tensor.dtype or not all(p.is_const and p.value >= 0 for p in (*begin, *end)):
        return None
    zeros = w.known(w_zero)
    if any(d != 1 for d in x_zero.tensor.shape) or (
        not all(d == 1 for d in w_zero.tensor.shape) and (zeros is None or zeros.any())
    ):
        return None
    names = [reshaped(w, w.name(x_zero), x_zero.tensor.shape, ()) if x_zero.tensor.rank else w.name(x_zero)]
    if zeros is None or zeros.any():
        names.append(reshaped(w, w.name(w_zero), w_zero.tensor.shape, ()) if w_zero.tensor.rank else w.name(w_zero))
    groups = op.attrs["groups"]
    attrs = window(op, space, begin, end) | {"group": groups if groups != 1 else None}
    return w.node("ConvInteger", w.name(x), w.name(filters), *names, **attrs)
