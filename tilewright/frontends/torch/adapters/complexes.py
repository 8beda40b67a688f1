"""Complex numbers: adapters for operators of which an operand or the result is complex.

Most need no line of their own: what only moves elements, or is linear, is done to both parts by the adapter for real
numbers, and products of several operands are sums of its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product as every
from types import MappingProxyType
from typing import Any

from tilewright.frontends.torch.adapters import elementwise, index
from tilewright.frontends.torch.adapters.control import HIGHER_ORDER
from tilewright.frontends.torch.adapters.elementwise import as_bool
from tilewright.frontends.torch.node import AtenNode
from tilewright.frontends.torch.registry import ATEN, Adapter, find_adapter, on_complex
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.composites import complex as cx
from tilewright.ops.composites.complex import ComplexPair
from tilewright.ops.source import full
from tilewright.ops.view import expand, reshape, shape_of

Operand = Value | ComplexPair | complex | Any
Held = Value | ComplexPair

# What is done to both parts

_MOVES = (
    "view", "_unsafe_view", "reshape", "view_copy", "_reshape_copy", "flatten", "unflatten", "permute", "permute_copy",
    "transpose", "transpose_copy", "swapaxes", "swapdims", "t", "numpy_T", "mT", "t_copy", "movedim", "moveaxis",
    "expand", "expand_copy", "broadcast_to", "expand_as", "unsqueeze", "unsqueeze_copy", "squeeze", "squeeze_copy",
    "slice", "slice_copy", "select", "select_copy", "narrow", "narrow_copy", "split", "split_with_sizes", "split_copy",
    "split_with_sizes_copy", "chunk", "tensor_split", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk",
    "hsplit", "vsplit", "dsplit", "unbind", "unbind_copy", "cat", "concat", "concatenate", "stack", "flip", "repeat",
    "tile", "constant_pad_nd", "pad", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d", "_pad_circular", "tril", "triu", "diagonal", "diagonal_copy", "roll",
    "unfold", "unfold_copy", "as_strided", "as_strided_copy", "as_strided_scatter", "index_select",
    "index_select_copy", "embedding", "take", "put", "gather", "scatter", "scatter_add", "index_add", "index_copy",
    "index_fill", "slice_scatter", "select_scatter", "diagonal_scatter", "masked_scatter", "repeat_interleave",
    "clone", "alias", "detach", "contiguous", "lift_fresh_copy", "lift_fresh", "positive", "dropout",
    "feature_dropout", "resolve_conj", "resolve_neg", "to_dense", "copy", "zeros", "zeros_like", "new_zeros", "empty",
    "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "_efficientzerotensor",
    "full", "full_like", "new_full", "fill", "scalar_tensor", "upsample_nearest1d", "upsample_nearest2d",
)  # fmt: skip
"""They give elements of what they are given, zeros, or numbers that they are given."""

_LINEAR = ("sum", "mean", "cumsum", "neg", "_neg_view", "upsample_linear1d", "upsample_bilinear2d",
           "avg_pool1d", "avg_pool2d", "avg_pool3d")  # fmt: skip

_BY_SIZE = ("sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "numel", "dim")
"""They read no elements."""


def _part(x: Any, imaginary: bool, name: str) -> Any:
    """An argument as it is for one part of the result: of what is real the imaginary part is 0."""
    if isinstance(x, ComplexPair):
        return x.imaginary if imaginary else x.real
    if isinstance(x, complex):
        return x.imag if imaginary else x.real
    if isinstance(x, tuple):
        return tuple(_part(v, imaginary, name) for v in x)
    if isinstance(x, Value) and imaginary and (type_of(x).dtype.is_float or name not in _PLACES):
        return cx.zeros_like(x) if type_of(x).dtype.is_float else full(value=0, dtype=dt.i64, shape=shape_of(x))
    if isinstance(x, int | float) and imaginary and name in _FILLERS:
        return 0
    return x


_PLACES = ("index", "indices", "mask", "repeats")
"""Arguments that say where, not what."""

_FILLERS = ("value", "fill_value", "s")


def _by_parts(adapter: Adapter) -> Adapter:
    def both(node: AtenNode, **arguments: Any) -> Any:
        if arguments.get("reduce") not in (None, "add", "sum"):
            raise node.refuse("it is not supported for complex numbers")
        real, imaginary = (
            adapter(node, **{name: _part(x, which, name) for name, x in arguments.items()}) for which in (False, True)
        )
        return _paired(real, imaginary)

    return both


def _paired(real: Any, imaginary: Any) -> Any:
    if isinstance(real, tuple):
        return tuple(map(_paired, real, imaginary))
    return ComplexPair(real, imaginary) if isinstance(real, Value) else real


def _of_products(adapter: Adapter, factors: Sequence[str]) -> Adapter:
    """What is linear in each of some arguments: the sum over all choices of parts, each imaginary one of which turns
    the result by a quarter. A bias is added."""

    def summed(node: AtenNode, **arguments: Any) -> Any:
        bias = arguments.get("bias")
        if "bias" in arguments:
            arguments["bias"] = None
        factors_ = [name for name in factors if arguments.get(name) is not None]
        flat = [v for name in factors_ for v in _listed(arguments[name])]
        real: list[Value] = []
        imaginary: list[Value] = []
        for chosen in every(*[(False, True) if isinstance(v, ComplexPair) else (False,) for v in flat]):
            parts = iter([_part(v, which, "") for v, which in zip(flat, chosen, strict=True)])
            given = {name: _like(arguments[name], parts) for name in factors_}
            found, turns = adapter(node, **{**arguments, **given}), sum(chosen) % 4
            (imaginary if turns % 2 else real).append(ew.neg(found) if turns > 1 else found)
        whole = ComplexPair(_total(real), _total(imaginary) if imaginary else cx.zeros_like(real[0]))
        return whole if bias is None else cx.add(whole, _with_axes(node, bias, arguments["weight"]))

    return summed


def _listed(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _like(x: Any, parts: Any) -> Any:
    return tuple(next(parts) for _ in x) if isinstance(x, tuple) else next(parts)


def _total(terms: Sequence[Value]) -> Value:
    found = terms[0]
    for term in terms[1:]:
        found = ew.add(found, term)
    return found


def _with_axes(node: AtenNode, bias: Held, weight: Held) -> Held:
    """A bias of convolutions is one number for each channel."""
    if "conv" not in node.op or not isinstance(bias, ComplexPair):
        return bias
    space = len(shape_of(cx.real_of(weight))) - 2
    return cx.each(bias, lambda v: reshape(v, shape=(*shape_of(v), *[1] * space)))


_PRODUCTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("mm", "bmm", "matmul", "mv", "dot"), ("self", "mat2", "other", "vec", "tensor")),
        **dict.fromkeys(("linear", "convolution", "_convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
                         "conv_transpose2d", "conv_transpose3d"), ("input", "weight")),
        "einsum": ("tensors",), "_trilinear": ("i1", "i2", "i3"),
    }
)  # fmt: skip
"""Operators that are linear in each of some arguments."""


def _real_adapter(name: str) -> Adapter:
    def late(node: AtenNode, **arguments: Any) -> Any:
        found = find_adapter(f"{ATEN}::{name}")
        assert found is not None, name
        return found(node, **arguments)

    return late


for _name in (*_MOVES, *_LINEAR):
    on_complex(_name)(_by_parts(_real_adapter("neg" if _name == "_neg_view" else _name)))
for _name, _factors in _PRODUCTS.items():
    on_complex(_name)(_of_products(_real_adapter(_name), _factors))


@on_complex(*_BY_SIZE)
def size_of(node: AtenNode, self: ComplexPair, **how: Any) -> Any:
    found = find_adapter(node.op.replace("aten.", f"{ATEN}::").rsplit(".", 1)[0])
    assert found is not None
    return found(node, self=self.real, **how)


@on_complex("eye")
def eye(node: AtenNode, **how: Any) -> ComplexPair:
    return cx.as_pair(_real_adapter("eye")(node, **how))


@on_complex("linspace")
def linspace(node: AtenNode, start: Operand, end: Operand, **how: Any) -> ComplexPair:
    adapter = _by_parts(_real_adapter("linspace"))
    return adapter(node, start=_as_complex(start), end=_as_complex(end), **how)


def _as_complex(x: Operand) -> Operand:
    return x if isinstance(x, ComplexPair | complex) else cx.as_pair(x) if isinstance(x, Value) else complex(x)


@on_complex("ones", "ones_like", "new_ones")
def ones(node: AtenNode, **how: Any) -> ComplexPair:
    return cx.as_pair(full(value=1.0, dtype=node.dtype, shape=node.shape))


_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast", "invoke_subgraph", "wrap",
            "wrap_activation_checkpoint", "tag_activation_checkpoint", "checkpoint", "strict_mode")  # fmt: skip
"""Subgraphs that are written out where they are called."""


def _inlined(name: str) -> Adapter:
    def called(node: AtenNode, *positional: Any, **named: Any) -> Any:
        found = find_adapter(f"{HIGHER_ORDER}::{name}")
        assert found is not None, name
        return found(node, *positional, **named)

    return called


for _name in _INLINED:
    on_complex(_name, namespace=HIGHER_ORDER)(_inlined(_name))


# From real numbers and to them


@on_complex("view_as_real", "view_as_real_copy")
def view_as_real(node: AtenNode, self: ComplexPair) -> Value:
    return cx.joined(self)


@on_complex("view_as_complex", "view_as_complex_copy")
def view_as_complex(node: AtenNode, self: Value) -> ComplexPair:
    return cx.apart(self)


@on_complex("view.dtype", "view_copy.dtype")
def parts_in_a_row(node: AtenNode, self: Held, dtype: object) -> Held:
    """Both parts one after the other along the last axis, or what is there as complex numbers."""
    part = type_of(self.real if isinstance(self, ComplexPair) else self).dtype
    if part is not node.dtype:
        raise node.refuse("views of the bits of complex numbers as elements of other sizes")
    if isinstance(self, Value):
        *outer, last = shape_of(self)
        return cx.apart(reshape(self, shape=(*outer, last // 2, 2)))
    *outer, last = shape_of(self.real)
    return self if node.is_complex else reshape(cx.joined(self), shape=(*outer, last * 2))


@on_complex("complex")
def complex_(node: AtenNode, real: Value, imag: Value) -> ComplexPair:
    return cx.pair_of(real, imag)


@on_complex("polar")
def polar(node: AtenNode, abs: Value, angle: Value) -> ComplexPair:
    return cx.polar(abs, angle)


@on_complex("real")
def real(node: AtenNode, self: ComplexPair) -> Value:
    return self.real


@on_complex("imag")
def imaginary(node: AtenNode, self: ComplexPair) -> Value:
    return self.imaginary


@on_complex("_to_copy", "to", "type_as")
def to(node: AtenNode, self: Held, **how: Any) -> Held:
    return _converted(node, self)


@on_complex("convert_element_type", namespace="prims")
def convert_element_type(node: AtenNode, a: Held, dtype: object) -> Held:
    return _converted(node, a)


def _converted(node: AtenNode, x: Held) -> Held:
    """Real numbers are the real parts of complex ones; what is not 0 is true."""
    if node.is_complex:
        return cx.cast(x, node.dtype)
    if node.dtype is dt.bool_:
        return _is_true(x)
    return node.value(cx.real_of(x), node.dtype)


def _is_true(x: Held) -> Value:
    if not isinstance(x, ComplexPair):
        return as_bool(x)
    return ew.or_(as_bool(x.real), as_bool(x.imaginary))


# Arithmetic


def _operands(node: AtenNode, *given: Operand) -> list[Held]:
    """Operands whose parts have the type that the operator computes in: that of the result's parts, or where that is
    no float, the widest of theirs."""
    dtype = node.dtype
    if not dtype.is_float:
        found = {type_of(cx.real_of(x)).dtype for x in given if isinstance(x, ComplexPair)}
        dtype = dt.f64 if dt.f64 in found else dt.f32
    return [_operand(node, x, dtype) for x in given]


def _operand(node: AtenNode, x: Operand, dtype: DType) -> Held:
    if isinstance(x, ComplexPair):
        return cx.cast(x, dtype)
    if isinstance(x, complex):
        if not x.imag:
            return node.value(x.real, dtype)
        return ComplexPair(node.value(x.real, dtype), node.value(x.imag, dtype))
    return node.value(x, dtype)


@on_complex("add", "sub")
def add(node: AtenNode, self: Operand, other: Operand, alpha: Operand = 1) -> Held:
    a, b, factor = _operands(node, self, other, alpha)
    scaled = b if alpha == 1 else _times(b, factor)
    return _sum(a, scaled, node.op.startswith("aten.sub"))


def _sum(a: Held, b: Held, is_difference: bool = False) -> Held:
    if isinstance(a, Value) and isinstance(b, Value):
        return ew.sub(a, b) if is_difference else ew.add(a, b)
    return cx.sub(a, b) if is_difference else cx.add(a, b)


def _times(a: Held, b: Held) -> Held:
    return ew.mul(a, b) if isinstance(a, Value) and isinstance(b, Value) else cx.mul(a, b)


def _complete(node: AtenNode, x: Held) -> ComplexPair:
    """The result: real numbers, of which scalars were complex, and what is not broadcast yet."""
    x = cx.as_pair(x)
    return x if shape_of(x.real) == node.shape else cx.each(x, lambda v: expand(v, shape=node.shape))


@on_complex("rsub")
def rsub(node: AtenNode, self: Operand, other: Operand, alpha: Operand = 1) -> Held:
    a, b, factor = _operands(node, other, self, alpha)
    return _sum(a, b if alpha == 1 else _times(b, factor), True)


@on_complex("mul")
def mul(node: AtenNode, self: Operand, other: Operand) -> Held:
    return _complete(node, _times(*_operands(node, self, other)))


@on_complex("div", "true_divide", "divide")
def div(node: AtenNode, self: Operand, other: Operand) -> Held:
    return cx.div(*_operands(node, self, other))


@on_complex("addcmul")
def addcmul(node: AtenNode, self: Operand, tensor1: Operand, tensor2: Operand, value: Operand = 1) -> Held:
    a, b, c, factor = _operands(node, self, tensor1, tensor2, value)
    product = _times(b, c)
    return cx.add(cx.as_pair(a), product if value == 1 else _times(product, factor))


@on_complex("addcdiv")
def addcdiv(node: AtenNode, self: Operand, tensor1: Operand, tensor2: Operand, value: Operand = 1) -> Held:
    a, b, c, factor = _operands(node, self, tensor1, tensor2, value)
    quotient: Held = cx.div(b, c)
    return cx.add(cx.as_pair(a), quotient if value == 1 else _times(quotient, factor))


@on_complex("lerp")
def lerp(node: AtenNode, self: Operand, end: Operand, weight: Operand) -> Held:
    a, b, w = _operands(node, self, end, weight)
    return cx.add(cx.as_pair(a), _times(w, _sum(b, a, True)))


@on_complex("pow", "float_power")
def pow_(node: AtenNode, self: Operand, exponent: Operand) -> Held:
    known = exponent.real if isinstance(exponent, complex) and not exponent.imag else exponent
    a, b = _operands(node, self, exponent)
    if isinstance(known, int | float) and known == int(known) and abs(known) <= _MOST_SQUARED:
        return cx.power(cx.as_pair(a), int(known))
    if known == 0.5:
        return cx.sqrt(cx.as_pair(a))
    return cx.pow_(a, b)


_MOST_SQUARED = 64
"""The greatest exponent that is computed by products."""


@on_complex("cumprod")
def cumprod(node: AtenNode, self: Held, dim: int, dtype: object = None) -> ComplexPair:
    """By doubling the number of elements that each one is the product of."""
    x = cx.cast(self, node.dtype)
    if not shape_of(x.real):
        return x
    axis = node.axis(dim, len(shape_of(x.real)))
    size, step = shape_of(x.real)[axis], 1
    if not size.is_const:
        raise node.refuse("running products of complex numbers along an axis of unknown size")
    while step < size.value:
        x, step = cx.step_of_scan(x, axis, step), 2 * step
    return x


_UNARY: Mapping[str, Callable[[ComplexPair], Held]] = MappingProxyType(
    {
        "_conj": cx.conj, "conj": cx.conj, "_conj_physical": cx.conj, "conj_physical": cx.conj, "abs": cx.abs_,
        "angle": cx.angle, "sgn": cx.sign, "reciprocal": cx.reciprocal, "square": lambda x: cx.mul(x, x),
        "exp": cx.exp, "log": cx.log, "sqrt": cx.sqrt, "sin": cx.sin, "cos": cx.cos, "tan": cx.tan, "sinh": cx.sinh,
        "cosh": cx.cosh, "tanh": cx.tanh, "asin": cx.asin, "acos": cx.acos, "atan": cx.atan, "asinh": cx.asinh,
        "acosh": cx.acosh, "atanh": cx.atanh, "sigmoid": cx.sigmoid, "expm1": cx.expm1, "log1p": cx.log1p,
        "rsqrt": lambda x: cx.reciprocal(cx.sqrt(x)), "silu": lambda x: cx.mul(x, cx.sigmoid(x)),
        "log2": lambda x: cx.each(cx.log(x), lambda v: ew.mul(v, _like_number(v, 1 / math.log(2)))),
        "log10": lambda x: cx.each(cx.log(x), lambda v: ew.mul(v, _like_number(v, 1 / math.log(10)))),
        "exp2": lambda x: cx.exp(cx.each(x, lambda v: ew.mul(v, _like_number(v, math.log(2))))),
    }
)  # fmt: skip
"""Functions of one operand."""


def _like_number(x: Value, value: float) -> Value:
    return full(value=value, dtype=type_of(x).dtype, shape=())


@on_complex(*_UNARY)
def unary(node: AtenNode, self: Held) -> Held:
    return _UNARY[node.op.split(".")[1]](cx.as_pair(self))


# Comparisons and choices


@on_complex("eq", "ne")
def equal(node: AtenNode, self: Operand, other: Operand) -> Value:
    return (cx.eq if node.op.startswith("aten.eq") else cx.ne)(*_operands(node, self, other))


@on_complex("isnan", "isinf")
def is_special(node: AtenNode, self: ComplexPair) -> Value:
    test = ew.is_nan if node.op.startswith("aten.isnan") else ew.is_inf
    return ew.or_(test(self.real), test(self.imaginary))


@on_complex("isfinite")
def is_finite(node: AtenNode, self: ComplexPair) -> Value:
    return ew.and_(elementwise.isfinite(node, self.real), elementwise.isfinite(node, self.imaginary))


@on_complex("logical_and", "logical_or", "logical_xor", "logical_not", "any", "all")
def logic(node: AtenNode, self: Held, other: Held | None = None, **how: Any) -> Any:
    found = find_adapter(f"{ATEN}::{node.op.split('.')[1]}")
    assert found is not None
    given = {"other": _is_true(other)} if other is not None else {}
    return found(node, self=_is_true(self), **given, **how)


@on_complex("where")
def where(node: AtenNode, condition: Value, self: Operand, other: Operand) -> ComplexPair:
    return _complete(node, cx.select(as_bool(condition), *_operands(node, self, other)))


@on_complex("masked_fill")
def masked_fill(node: AtenNode, self: Operand, mask: Value, value: Operand) -> ComplexPair:
    a, b = _operands(node, self, value)
    return _complete(node, cx.select(as_bool(mask), b, a))


# Positions: masks are counted once


@on_complex("index", "_unsafe_index")
def indexed(node: AtenNode, self: ComplexPair, indices: Sequence[Value | None]) -> ComplexPair:
    places = index.places_of(node, indices)
    return cx.each(self, lambda v: index.index(node, v, places))


@on_complex("index_put", "_unsafe_index_put")
def index_put(
    node: AtenNode, self: Held, indices: Sequence[Value | None], values: Held, accumulate: bool = False,
    unsafe: bool = False,
) -> ComplexPair:  # fmt: skip
    whole, new = cx.cast(self, node.dtype), cx.cast(values, node.dtype)
    one_mask = len(indices) == 1 and index.is_mask(indices[0]) and type_of(new.real).size == 1
    places = indices if one_mask else index.places_of(node, indices)
    parts = [
        index.index_put(node, x, places, y, accumulate)
        for x, y in ((whole.real, new.real), (whole.imaginary, new.imaginary))
    ]
    return ComplexPair(*parts)


@on_complex("masked_select")
def masked_select(node: AtenNode, self: ComplexPair, mask: Value) -> ComplexPair:
    joined = cx.joined(self)
    wide = expand(reshape(mask, shape=(*shape_of(mask), 1)), shape=(*shape_of(mask), 2))
    flat = index.masked_select(node, joined, wide)
    return cx.apart(reshape(flat, shape=(shape_of(flat)[0] // 2, 2)))


# Reductions and products


@on_complex("prod")
def prod(node: AtenNode, self: Held, dim: Any = None, keepdim: bool = False, dtype: object = None) -> ComplexPair:
    x = cx.cast(self, node.dtype)
    axes = node.axes(dim, len(shape_of(x.real)))
    if any(not shape_of(x.real)[a].is_const for a in axes):
        raise node.refuse("products of complex numbers along an axis of unknown size")
    found = cx.reduce_prod(x, axes)
    return cx.each(found, lambda v: reshape(v, shape=node.shape))


@on_complex("logsumexp")
def logsumexp(node: AtenNode, self: ComplexPair, dim: Any, keepdim: bool = False) -> ComplexPair:
    """The greatest real part is taken out of the sum."""
    axes = node.axes(dim, len(shape_of(self.real)))
    top = rd.reduce_max(self.real, axes=axes, keepdims=True) if axes else self.real
    top = ew.select(elementwise.isfinite(node, top), top, _like_number(top, 0.0))
    powers = cx.exp(ComplexPair(ew.sub(self.real, top), self.imaginary))
    total = cx.each(powers, lambda v: rd.reduce_sum(v, axes=axes, keepdims=True)) if axes else powers
    found = cx.log(total)
    whole = ComplexPair(ew.add(found.real, top), found.imaginary)
    return cx.each(whole, lambda v: reshape(v, shape=node.shape))


@on_complex("logaddexp")
def logaddexp(node: AtenNode, self: Operand, other: Operand) -> ComplexPair:
    a, b = (cx.as_pair(x) for x in _operands(node, self, other))
    top = ew.max_(a.real, b.real)
    terms = (cx.exp(ComplexPair(ew.sub(x.real, top), x.imaginary)) for x in (a, b))
    found = cx.log(cx.add(*terms))
    return ComplexPair(ew.add(found.real, top), found.imaginary)


@on_complex("nonzero")
def nonzero(node: AtenNode, self: ComplexPair) -> Value:
    return index.nonzero(node, _is_true(self))


@on_complex("var_mean", "std_mean")
def spread_and_mean(node: AtenNode, self: ComplexPair, **how: Any) -> tuple[Value, ComplexPair]:
    adapter = _real_adapter(node.op.split(".")[1])
    (a, real), (b, imaginary) = (adapter(node, self=x, **how) for x in (self.real, self.imaginary))
    found = ew.add(a, b) if node.op.startswith("aten.var") else cx.abs_(ComplexPair(a, b))
    return found, ComplexPair(real, imaginary)


@on_complex("linalg_vector_norm", "norm")
def norm(node: AtenNode, self: ComplexPair, **how: Any) -> Any:
    found = find_adapter(f"{ATEN}::{node.op.removeprefix('aten.')}")
    assert found is not None
    return found(node, self=node.value(cx.abs_(self), node.dtype), **how)


@on_complex("var", "std")
def spread(node: AtenNode, self: ComplexPair, **how: Any) -> Value:
    """Of real and imaginary parts together."""
    found = find_adapter(f"{ATEN}::{node.op.removeprefix('aten.')}")
    assert found is not None
    a, b = (found(node, self=x, **how) for x in (self.real, self.imaginary))
    return ew.add(a, b) if node.op.startswith("aten.var") else cx.abs_(ComplexPair(a, b))


@on_complex("vdot")
def vdot(node: AtenNode, self: ComplexPair, other: ComplexPair) -> Any:
    found = _of_products(_real_adapter("dot"), _PRODUCTS["dot"])
    return found(node, self=cx.conj(self), tensor=other)


@on_complex("addmm", "baddbmm", "addmv", "addbmm", "addr")
def product_and_sum(
    node: AtenNode, self: Operand, beta: Operand = 1, alpha: Operand = 1, **matrices: Held
) -> ComplexPair:
    """beta * self + alpha * product."""
    factors = _of_products(_real_adapter(node.op.split(".")[1]), tuple(matrices))
    nothing = full(value=0.0, dtype=node.dtype, shape=())
    found: Held = factors(node, self=nothing, beta=0, alpha=1, **matrices)
    added, beta_, alpha_ = _operands(node, self, beta, alpha)
    found = found if alpha == 1 else _times(found, alpha_)
    if beta == 0:
        return cx.as_pair(found)
    return cx.add(cx.as_pair(found), added if beta == 1 else _times(added, beta_))


@on_complex("_assert_tensor_metadata")
def checked(node: AtenNode, **how: Any) -> tuple[()]:
    return ()
