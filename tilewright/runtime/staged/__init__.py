"""Staged programs: models that the host runs part by part. Its modules are imported when a model needs them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.runtime.staged import check as check
    from tilewright.runtime.staged import host_values as host_values
    from tilewright.runtime.staged import native as native
    from tilewright.runtime.staged import program as program
    from tilewright.runtime.staged import run as run


def __getattr__(name: str) -> Any:
    """Import a module when it is first asked for: most models are of one part."""
    if name not in ("check", "host_values", "native", "program", "run"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from importlib import import_module

    return import_module(f"{__name__}.{name}")
