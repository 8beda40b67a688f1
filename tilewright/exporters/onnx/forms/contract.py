"""Products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tilewright.exporters.onnx.forms.registry import form, rewritten
from tilewright.exporters.onnx.forms.view import padded
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import conv as conv_operator
from tilewright.ops.contract import matmul as matmul_operator
from tilewright.ops.view import reshape, transpose

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter


@form("matmul")
def matmul(w: OnnxWriter, op: Op) -> str | None:
    """MatMul; of two matrices of which one is transposed, Gemm."""
    a, b = op.operands
    ways = op.attrs["transpose_a"], op.attrs["transpose_b"]
    if not w.takes("MatMul", a, b):
        return None
    if any(ways) and a.tensor.rank == b.tensor.rank == 2 and a.tensor.dtype.is_float:
        return w.node("Gemm", w.name(a), w.name(b), transA=int(ways[0]) or None, transB=int(ways[1]) or None)
    return w.node("MatMul", *[_turned(w, v, way) for v, way in zip((a, b), ways, strict=True)])


def _turned(w: OnnxWriter, x: Value, is_turned: bool) -> str:
    if not is_turned:
        return w.name(x)
    rank = x.tensor.rank
    perm = (*range(rank - 2), rank - 1, rank - 2)
    return w.composed(lambda: transpose(x, perm=perm))[0]


@rewritten("matmul")
def matmul_of_narrow_numbers(op: Op) -> Value | None:
    """Sums of narrow numbers are kept in wide ones, which are cut in the end."""
    dtype = op.result.tensor.dtype
    if dtype.accumulator == dtype:
        return None
    wide = [ew.cast(v, dtype=dtype.accumulator) for v in op.operands]
    return ew.cast(matmul_operator(*wide, **op.attrs), dtype=dtype)


@rewritten("matmul_widening")
def matmul_widening(op: Op) -> Value:
    wide = [ew.cast(v, dtype=op.attrs["sums"]) for v in op.operands]
    product: Value = matmul_operator(*wide, transpose_b=op.attrs["transpose_b"])
    return product


def window(op: Op, space: int, begin: Sequence[Sym], end: Sequence[Sym]) -> dict[str, Any]:
    """The attributes of a window; those that are the default are left out."""
    strides, dilations = (tuple(op.attrs.get(name, ())) or (1,) * space for name in ("strides", "dilations"))
    pads = [p.value for p in (*begin, *end)]
    return {
        "strides": list(strides) if set(strides) != {1} else None,
        "dilations": list(dilations) if set(dilations) != {1} else None,
        "pads": pads if any(pads) else None,
    }


def pads_of(op: Op, space: int) -> tuple[tuple[Sym, ...], tuple[Sym, ...]]:
    """What is put before and after the axes of space."""
    begin, end = (
        tuple(map(sym, op.attrs[name])) or (sym(0),) * space for name in ("pads_begin", "pads_end")
    )
    return begin, end


def with_plain_pads(
    w: OnnxWriter, op: Op, x: str, value: float = 0, most: Sequence[Sym] | None = None
) -> tuple[str, tuple[Sym, ...], tuple[Sym, ...]]:
    """The data and what is left to be padded: pads that depend on dims, that are below 0 or that reach `most` are put
    to the data."""
    tensor = op.operands[0].tensor
    space = tensor.rank - 2
    begin, end = pads_of(op, space)
    limits = [None] * space if most is None else list(most)
    is_plain = all(
        p.is_const and p.value >= 0 and (n is None or (n.is_const and p.value < n.value))
        for b, a, n in zip(begin, end, limits, strict=True)
        for p in (b, a)
    )
    if is_plain:
        return x, begin, end
    zero = (sym(0), sym(0))
    moved = padded(w, x, (*zero, *begin), (*zero, *end), "constant", value, tensor.dtype)
    return moved, (sym(0),) * space, (sym(0),) * space


@form("add")
def convolution_with_bias(w: OnnxWriter, op: Op) -> str | None:
    """A convolution and a number for each channel of what it gives, which nothing else reads."""
    sums, bias = op.operands
    write = _CONVOLUTIONS.get(sums.op.name) if sums.op is not None else None
    if sums.op is None or write is None or len(sums.users) > 1 or sums.tensor.shape != op.result.tensor.shape:
        return None
    if bias.tensor.rank != sums.tensor.rank - 1:
        return None
    channels, *others = bias.tensor.shape
    if channels != sums.tensor.shape[1] or any(d != 1 for d in others):
        return None
    return write(w, sums.op, bias)


def _vector(w: OnnxWriter, bias: Value | None) -> tuple[str, ...]:
    """The bias of channels as a vector."""
    if bias is None:
        return ()
    source = bias.op.operands[0] if bias.op is not None and bias.op.name == "reshape" else bias
    if source.tensor.rank == 1:
        return (w.name(source),)
    elements = w.known(bias)
    if elements is not None:
        return (w.constant(elements.reshape(-1), bias.name),)
    return w.composed(lambda: reshape(bias, shape=bias.tensor.shape[:1]))


@form("conv")
def conv(w: OnnxWriter, op: Op) -> str | None:
    return _conv(w, op)


def _conv(w: OnnxWriter, op: Op, bias: Value | None = None) -> str | None:
    x, filters = op.operands
    if op.attrs["sums"] is not None or not w.takes("Conv", *op.operands):
        return None
    data, begin, end = with_plain_pads(w, op, w.name(x))
    groups = op.attrs["groups"]
    attrs = window(op, x.tensor.rank - 2, begin, end) | {"group": groups if groups != 1 else None}
    names = data, w.name(filters), *_vector(w, bias)
    return w.node("Conv", *names, kernel_shape=_kernel(filters.tensor.shape[2:]), **attrs)


def _kernel(shape: Sequence[Sym]) -> list[int] | None:
    return [d.value for d in shape] if all(d.is_const for d in shape) else None


@rewritten("conv")
def conv_of_mixed_types(op: Op) -> Value | None:
    sums = op.attrs["sums"]
    if sums is None:
        return None
    return conv_operator(*[ew.cast(v, dtype=sums) for v in op.operands], **{**op.attrs, "sums": None})


@form("conv_transpose")
def conv_transpose(w: OnnxWriter, op: Op) -> str | None:
    return _conv_transpose(w, op)


def _conv_transpose(w: OnnxWriter, op: Op, bias: Value | None = None) -> str | None:
    x, filters = op.operands
    space = x.tensor.rank - 2
    begin, end = pads_of(op, space)
    extra = tuple(map(sym, op.attrs["output_padding"])) or (sym(0),) * space
    strides = tuple(op.attrs["strides"]) or (1,) * space
    if not all(p.is_const and p.value >= 0 for p in (*begin, *end, *extra)):
        return None
    is_short = all(more.value < stride for more, stride in zip(extra, strides, strict=True))
    if not is_short or not w.takes("ConvTranspose", *op.operands):
        return None
    groups = op.attrs["groups"]
    attrs = window(op, space, begin, end) | {"group": groups if groups != 1 else None}
    attrs["output_padding"] = [p.value for p in extra] if any(p != 0 for p in extra) else None
    names = w.name(x), w.name(filters), *_vector(w, bias)
    return w.node("ConvTranspose", *names, kernel_shape=_kernel(filters.tensor.shape[2:]), **attrs)


_CONVOLUTIONS = {"conv": _conv, "conv_transpose": _conv_transpose}


DILATED_MEANS = 19
"""The operator set from which on AveragePool has dilations."""


def _kernel_of(op: Op) -> list[int] | None:
    """The sizes of a window of pooling that ONNX can say."""
    return _kernel(tuple(map(sym, op.attrs["kernel"])))


@form("max_pool")
def max_pool(w: OnnxWriter, op: Op) -> str | None:
    (x,), kernel = op.operands, _kernel_of(op)
    dtype = x.tensor.dtype
    if kernel is None or not w.takes("MaxPool", x) or any(k < 1 for k in kernel):
        return None
    least = float("-inf") if dtype.is_float else 0 if dtype.kind == "uint" else -128
    data, begin, end = with_plain_pads(w, op, w.name(x), least, tuple(map(sym, kernel)))
    return w.node("MaxPool", data, kernel_shape=kernel, **window(op, x.tensor.rank - 2, begin, end))


@form("sum_pool")
def sum_pool(w: OnnxWriter, op: Op) -> str | None:
    """The mean of the window, in which padding counts, times its size."""
    (x,), kernel = op.operands, _kernel_of(op)
    if kernel is None or not _has_means(w, op, kernel):
        return None
    data, begin, end = with_plain_pads(w, op, w.name(x), 0, tuple(map(sym, kernel)))
    attrs = window(op, x.tensor.rank - 2, begin, end)
    means = w.node("AveragePool", data, kernel_shape=kernel, count_include_pad=1 if attrs["pads"] else None, **attrs)
    size = 1
    for k in kernel:
        size *= k
    return w.node("Mul", means, w.number(size, x.tensor.dtype))


def _has_means(w: OnnxWriter, op: Op, kernel: Sequence[int]) -> bool:
    dilations = set(op.attrs["dilations"]) or {1}
    is_known = w.takes("AveragePool", *op.operands) and all(k >= 1 for k in kernel)
    return is_known and (dilations == {1} or w.opset >= DILATED_MEANS)


@form("average_pool")
def average_pool(w: OnnxWriter, op: Op) -> str | None:
    (x,), kernel = op.operands, _kernel_of(op)
    space = x.tensor.rank - 2
    begin, end = pads_of(op, space)
    if kernel is None or not _has_means(w, op, kernel) or any(sym(p) != 0 for p in op.attrs["overhang"]):
        return None
    for b, a, k in zip(begin, end, kernel, strict=True):
        if not all(p.is_const and 0 <= p.value < k for p in (b, a)):
            return None
    if space and kernel == [d.value if d.is_const else -1 for d in x.tensor.shape[2:]] and not any(
        p != 0 for p in (*begin, *end)
    ):
        return w.node("GlobalAveragePool", w.name(x))
    attrs = window(op, space, begin, end)
    counted = 1 if op.attrs["include_pad"] and attrs["pads"] else None
    return w.node("AveragePool", w.name(x), kernel_shape=kernel, count_include_pad=counted, **attrs)
