"""Programs that say of a call what PyTorch does not give: a changed file, or one of another version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode


def contradiction(node: torch.fx.Node) -> str:
    """What PyTorch says of a call with these operands where it differs from what the program says of its result; ""
    where they agree, or cannot be compared."""
    target = node.target
    operands = [n.meta.get("val") for n in node.all_input_nodes]
    mode = detect_fake_mode([*operands, node.meta.get("val")])
    if not isinstance(target, torch._ops.OpOverload) or mode is None or any(x is None for x in operands):
        return ""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    try:
        with mode, torch.no_grad():
            found = target(*args, **kwargs)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"PyTorch refuses its operands: {first[:300]}"
    theirs, stated = _tensors(found), _tensors(node.meta.get("val"))
    if len(theirs) == len(stated) and all(map(_agree, theirs, stated)):
        return ""
    return f"PyTorch gives {_shown(theirs)}, and the program says {_shown(stated)}"


def _tensors(result: Any) -> list[torch.Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def _agree(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Sizes that are not known agree with all others: PyTorch may know more of them by now, or less."""
    pairs = zip(a.shape, b.shape, strict=False)
    return a.dtype is b.dtype and a.dim() == b.dim() and all(n == m for n, m in pairs if _is_known(n) and _is_known(m))


def _is_known(size: Any) -> bool:
    return isinstance(size, int)


def _shown(tensors: Sequence[torch.Tensor]) -> str:
    sizes = [", ".join(str(n) if _is_known(n) else "?" for n in x.shape) for x in tensors]
    return ", ".join(f"{x.dtype} [{text}]" for x, text in zip(tensors, sizes, strict=True))
