"""Products and convolutions with what is done to their operands and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.frontends.onnx.adapters.contract import group_of, require_to_be_added, scaled
from tilewright.frontends.onnx.adapters.microsoft.activation import activated
from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft, require_ranks
from tilewright.frontends.onnx.adapters.window import window_of
from tilewright.frontends.onnx.node import Node
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import gelu
from tilewright.ops.composites.products import matrix_product, with_bias
from tilewright.ops.view import shape_of, transpose


@microsoft("FusedMatMul", "TransposeMatMul")
def fused_matmul(node: Node) -> Value:
    """alpha * A' B', where ' moves the first axis behind those of the batch and exchanges the last two axes."""
    product = matrix_product(*[_turned(node, k, name) for k, name in enumerate("AB")])
    return scaled(product, node.attr("alpha", 1.0), node)


@microsoft("FusedMatMulActivation")
def fused_matmul_activation(node: Node) -> Value:
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    given = [node.attr(name) for name in names if node.has(name)]
    return activated(node, fused_matmul(node), lambda count: given[:count])


@microsoft("GemmFastGelu")
def gemm_fast_gelu(node: Node) -> Value:
    product, bias = matrix_product(node.input(0), node.input(1)), node.optional(2)
    if bias is not None:
        require_to_be_added(node, product)
    return gelu(product if bias is None else ew.add(product, bias), approximate="tanh")


def _turned(node: Node, k: int, name: str) -> Value:
    x, rank = node.input(k), node.rank(k)
    order = list(range(rank))
    if node.flag(f"transBatch{name}", 0) and rank >= 3:
        order = [*order[1:-1], 0, order[-1]]
    if node.flag(f"trans{name}", 0) and rank >= 2:
        order[-2:] = order[:-3:-1]
    return x if order == sorted(order) else transpose(x, perm=tuple(order))


@microsoft("FusedGemm")
def fused_gemm(node: Node) -> Value:
    """activation(alpha * A' B' + beta * C)."""
    require_ranks(node, input0=2, input1=2)
    transposed = {f"transpose_{x.lower()}": node.flag(f"trans{x}", 0) for x in "AB"}
    result = scaled(
        contract.matmul(node.input(0), node.input(1), **transposed), node.attr("alpha", 1.0), node
    )
    beta = node.attr("beta", 1.0)
    if (added := node.optional(2)) is not None and beta:
        require_to_be_added(node, result)
        result = ew.add(result, scaled(added, beta, node))
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    given = [node.attr(name) for name in names if node.has(name)]
    return activated(node, result, lambda count: given[:count])


@microsoft("FusedConv")
def fused_conv(node: Node) -> Value:
    """activation(conv(X, W) + B + Z)."""
    result = _conv(node, node.input(0), node.input(1))
    if (added := node.optional(3)) is not None:
        _demand_sum(node, shape_of(result))
        result = ew.add(result, added)
    return activated(node, result, lambda count: node.attr("activation_params", ()))


def _demand_sum(node: Node, shape: Sequence[Sym]) -> None:
    """What is added, operand 3, has the shape of the result: it is not broadcast."""
    listed = ", ".join(map(str, shape))
    node.demand_shape(3, shape, f"{node.op}: input 3 is {node.type(3)} for a result [{listed}]")


def _conv(node: Node, x: Value, w: Value) -> Value:
    window = window_of(node, shape_of(w)[2:], shape_of(x)[2:])
    result = contract.conv(x, w, **window.sliding, groups=group_of(node))
    return with_bias(result, node.optional(2))


@microsoft("NhwcConv", "NhwcFusedConv")
def nhwc_conv(node: Node) -> Value:
    """Images [n, h, w, c]; filters have their channels where the kernel says they are, behind its axes or before."""
    require_ranks(node, input0=4, input1=4)
    result = _conv(node, _channels_first(node.input(0)), _filters(node))
    if (added := node.optional(3)) is not None:
        n, c, h, w = shape_of(result)
        _demand_sum(node, (n, h, w, c))
        result = ew.add(result, _channels_first(added))
    result = activated(node, result, lambda count: node.attr("activation_params", ()))
    return transpose(result, perm=(0, 2, 3, 1))


def _channels_first(x: Value) -> Value:
    return transpose(x, perm=(0, 3, 1, 2))


def _filters(node: Node) -> Value:
    """Filters [m, c / group, h, w]: documents say that they are given so, and some programs write [m, h, w, c /
    group]."""
    w, shape = node.input(1), node.shape(1)
    channels, kernel = node.shape(0)[3], node.attr("kernel_shape", None)

    def fits(own: object, space: tuple[object, ...]) -> bool:
        return own == channels // node.attr("group", 1) and kernel in (None, space)

    first = fits(shape[1], tuple(d.value if d.is_const else d for d in shape[2:]))
    last = fits(shape[3], tuple(d.value if d.is_const else d for d in shape[1:3]))
    if first == last:
        raise UnsupportedError(
            f"{node.op}: it cannot be seen which axis of {node.type(1)} holds the channels"
        )
    return w if first else _channels_first(w)


@microsoft("ConvTransposeWithDynamicPads")
def conv_transpose_with_pads(node: Node) -> Value:
    """A transposed convolution whose pads are an operand, which must be known."""
    group, kernel = group_of(node), node.shape(1)[2:]
    window = window_of(node, kernel, node.shape(0)[2:], transposed=True)
    if node.optional(2) is not None:
        pads, n = node.symbols(2), len(kernel)
        if len(pads) != 2 * n:
            raise ModelError(f"{node.op} has {len(pads)} pads for {n} spatial axes")
        window = replace(window, pads_begin=pads[:n], pads_end=pads[n:])
    extra = node.attr("output_padding", (0,) * len(kernel))
    result = contract.conv_transpose(
        node.input(0), node.input(1), **window.sliding, output_padding=extra, groups=group
    )
    return with_bias(result, node.optional(3))
