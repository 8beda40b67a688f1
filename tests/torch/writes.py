"""Ways to write to the parameters of a module, most of which PyTorch does not count."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def _fused(optimizer: Any, **how: Any) -> Callable[[Any], None]:
    def step(module: Any) -> None:
        with torch.enable_grad():
            sum(p.sum() for p in module.parameters()).backward()
        optimizer(module.parameters(), 0.1, **how).step()
        module.zero_grad()

    return step


def _other_process(module: Any) -> None:
    """A process that is started with the weights, in shared memory, writes to them; not with PyTorch, whose threads a
    forked process does not have."""
    module.share_memory()
    array = module.weight.detach().numpy()
    child = multiprocessing.get_context("fork").Process(target=lambda: np.add(array, 0.5, out=array))
    child.start()
    child.join()
    assert child.exitcode == 0


def _set(module: Any) -> None:
    module.weight.set_((module.weight * 3).detach())


def _replaced(module: Any) -> None:
    module.weight.data = module.weight.data * 2 + 1


def _new_parameter(module: Any) -> None:
    module.weight = torch.nn.Parameter(module.weight.detach() * 2 + 1)


def _one_element(module: Any) -> None:
    """In the middle, where only a page tells."""
    flat = module.weight.detach().numpy().reshape(-1)
    flat[flat.size // 2] += 2


def _two_signs(module: Any) -> None:
    """Changes that a sum over the elements, or over their bits, would not see."""
    flat = module.weight.detach().numpy().reshape(-1)
    flat[:2] = -flat[:2]


def _exchanged(module: Any) -> None:
    flat = module.weight.detach().numpy().reshape(-1)
    flat[:] = flat[::-1].copy()


WRITES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda m: m.weight.mul_(2),
    "load_state_dict": lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
    ".data in place": lambda m: m.weight.data.mul_(2),
    "moving average": lambda m: m.weight.data.lerp_(torch.randn_like(m.weight), 0.5),
    "init": lambda m: torch.nn.init.uniform_(m.weight.data, -2, 2),
    "copy": lambda m: m.weight.data.copy_(torch.randn_like(m.weight)),
    "foreach": lambda m: torch._foreach_mul_([p.data for p in m.parameters()], 1.5),
    "NumPy": lambda m: m.weight.detach().numpy().fill(0.5),
    "DLPack": lambda m: np.from_dlpack(m.weight.detach()).__setitem__(..., 0.25),
    "out=": lambda m: torch.add(m.weight, 1, out=m.weight.data),
    "fused AdamW": _fused(torch.optim.AdamW, fused=True),
    "fused SGD": _fused(torch.optim.SGD, fused=True),
    "foreach Adam": _fused(torch.optim.Adam, foreach=True),
    "another process": _other_process,
    "set_": _set,
    "another tensor": _replaced,
    "another parameter": _new_parameter,
    "one element": _one_element,
    "two signs": _two_signs,
    "exchanged elements": _exchanged,
    "bias": lambda m: m.bias.data.add_(1),
}
