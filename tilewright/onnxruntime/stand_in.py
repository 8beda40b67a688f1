"""Makes this package the `onnxruntime` of a process, for clients that import it by that name."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any

from tilewright.onnxruntime.capi import _pybind_state as _pybind_state
from tilewright.onnxruntime.capi import onnxruntime_inference_collection as onnxruntime_inference_collection
from tilewright.onnxruntime.environment import API_VERSION, MISSING

NAME = "onnxruntime"
_HERE = __name__.rpartition(".")[0]


def replace_onnxruntime() -> None:
    """From now on, `import onnxruntime` gives this package, in this process and those that are forked off it.

    ImportError where the real one was imported before.
    """
    found = sys.modules.get(NAME)
    if found is not None and found is not sys.modules[_HERE]:
        raise ImportError("onnxruntime is imported already: call replace_onnxruntime before anything imports it")
    for name, module in list(sys.modules.items()):
        if name == _HERE or name.startswith(f"{_HERE}.capi"):
            sys.modules[NAME + name.removeprefix(_HERE)] = module
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Distribution(Distribution):
    """What `importlib.metadata` tells of the package that is stood in for."""

    def read_text(self, filename: str) -> str | None:
        known = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {API_VERSION}\n"
        return known if filename in ("METADATA", "PKG-INFO") else None

    def locate_file(self, path: Any) -> Path:
        return Path(__file__).parent / path


class _Finder(DistributionFinder):
    """Finds that distribution, before one that is installed, and no modules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """ModuleNotFoundError with the way on for packages that are not here."""
        package, _, inner = name.partition(".")
        if package == NAME and inner in MISSING:
            raise ModuleNotFoundError(
                f"tilewright's stand-in for onnxruntime has no package '{name}': {MISSING[inner]}", name=name
            )

    def find_distributions(
        self, context: DistributionFinder.Context = importlib.metadata.DistributionFinder.Context()  # noqa: B008
    ) -> Iterator[Distribution]:
        if context.name is None or context.name.lower() == NAME:
            yield _Distribution()
