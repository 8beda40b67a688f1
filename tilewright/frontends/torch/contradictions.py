"""Programs that say of a call what PyTorch does not give: a changed file, or one of another version."""

from __future__ import annotations

from collections.abc import Iterable
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
    theirs, stated = _types(found), _types(node.meta.get("val"))
    return "" if theirs == stated else f"PyTorch gives {', '.join(theirs)}, and the program says {', '.join(stated)}"


def _types(result: Any) -> list[str]:
    """Of tensors the dtype and the sizes, as far as these are numbers."""
    leaves: Iterable[Any] = torch.utils._pytree.tree_leaves(result)
    return [
        f"{x.dtype} [{', '.join(str(n) if isinstance(n, int) else '?' for n in x.shape)}]"
        for x in leaves
        if isinstance(x, torch.Tensor)
    ]
