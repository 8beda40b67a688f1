"""Attention whose scores and masks are functions of positions (torch.nn.attention.flex_attention)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.frontends.torch.node import AtenNode
from tilewright.frontends.torch.registry import aten
from tilewright.ir.core import Value


@aten("flex_attention", namespace="higher_order")
def flex_attention(
    node: AtenNode, query: Value, key: Value, value: Value, score_mod: Any, block_mask: Sequence[Any], scale: float,
    kernel_options: Mapping[str, Any], score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
) -> tuple[Value, ...]:  # fmt: skip
    """As PyTorch's definition has it: all scores are computed, then changed and masked, blocks of zeros too."""
    from torch._higher_order_ops.flex_attention import math_attention

    from tilewright.frontends.torch.adapters.layers.traced import call_traced

    given = [query, key, value, score_mod, tuple(block_mask), scale, score_mod_other_buffers, mask_mod_other_buffers]
    told = [*node.operands[:6], *(tuple(x) for x in node.operands[7:9])]
    told += [()] * (8 - len(told))

    def dense(q: Any, k: Any, v: Any, mod: Any, mask: Any, scale: float, ours: Any, theirs: Any) -> Any:
        return math_attention(q, k, v, mod, mask, scale, {}, ours, theirs)

    found: tuple[Value, ...] = call_traced(node, dense, given, told)
    return found
