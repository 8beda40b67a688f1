"""tilewright compiles trained models to native code and runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tilewright.api import compile as compile
    from tilewright.options import Options as Options
    from tilewright.runtime import Model as Model
    from tilewright.runtime import load as load
    from tilewright.runtime.errors import TilewrightError as TilewrightError

_HOMES = {
    "compile": "tilewright.api",
    "Options": "tilewright.options",
    "Model": "tilewright.runtime",
    "load": "tilewright.runtime",
    "TilewrightError": "tilewright.runtime.errors",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import tilewright` stays quick."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tilewright' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
