"""`torch.compile(module, backend="tilewright")`: PyTorch finds the backend by the package's entry point.

    compiled = torch.compile(module, backend="tilewright", options={"threads": 2})
    print(tilewright.torch.explain(module, x))

Importing this module imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.torch.backend import backend as backend
from tilewright.torch.watch import refresh as refresh

if TYPE_CHECKING:
    from tilewright.torch.adapters import adapter as adapter
    from tilewright.torch.explain import Explanation as Explanation
    from tilewright.torch.explain import explain as explain

_HOMES = {
    "Explanation": "tilewright.torch.explain",
    "adapter": "tilewright.torch.adapters",
    "explain": "tilewright.torch.explain",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a graph that the cache has needs no adapters."""
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tilewright.torch' has no attribute '{name}'")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
