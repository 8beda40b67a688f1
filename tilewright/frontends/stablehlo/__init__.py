"""The StableHLO front end: programs exported from JAX, portable artefacts and text. This module imports neither jaxlib
nor the translation, which a model that the cache has does not need."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.frontends.files import digest_of_file, file_mentions, first_bytes
from tilewright.frontends.front_end import Remember
from tilewright.runtime.errors import OptionError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.core import Module

BYTECODE = b"ML\xefR"
"""The first bytes of MLIR's bytecode, which portable artefacts of StableHLO are."""

_SUFFIXES = (".mlir", ".stablehlo", ".mlirbc", ".jaxexport")
_TEXT = re.compile(rb"(\s|//[^\n]*\n|#[^\n]*\n)*(module\b|func\.func\b|builtin\.module\b)")
_FLATBUFFER_ROOTS = range(16, 256, 4)
"""Where the root table of an export of JAX may begin: behind a table of less than 60 fields."""


class StablehloFrontEnd:
    """`jax.export.Exported` objects, what they serialise to, portable artefacts of StableHLO, and its text."""

    name = "stablehlo"
    formats = "StableHLO (jax.export.Exported, its bytes, portable artefacts, .mlir text)"

    def accepts(self, source: Any) -> bool:
        if _is_exported(source) or (isinstance(source, Path) and source.suffix in _SUFFIXES):
            return True
        begins = first_bytes(source, 4096)
        return begins.startswith(BYTECODE) or bool(_TEXT.match(begins)) or _may_be_export(source, begins)

    def digest(self, source: Any, remember: Remember) -> bytes:
        if isinstance(source, bytes):
            return source
        if isinstance(source, Path):
            return remember(source, digest_of_file)
        digest = hashlib.blake2b(bytes(source.mlir_module_serialized), digest_size=20)
        digest.update(repr((source.fun_name, source.in_avals, source.module_kept_var_idx)).encode())
        return digest.digest()

    def load(
        self,
        source: Any,
        *,
        constants: Mapping[str, np.ndarray],
        shapes: Mapping[str, Sequence[int | str]],
    ) -> Module:
        try:
            from tilewright.frontends.stablehlo.load import load_stablehlo
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "jaxlib":
                raise
            raise OptionError(
                "models of StableHLO are read by the MLIR bindings of jaxlib, which is not installed",
                hint="pip install jaxlib",
            ) from error
        return load_stablehlo(source, constants=constants, shapes=shapes)


def _is_exported(source: Any) -> bool:
    return type(source).__name__ == "Exported" and hasattr(source, "mlir_module_serialized")


def _may_be_export(source: Any, begins: bytes) -> bool:
    """Whether bytes may be an export of JAX: a flatbuffer without an identifier, which holds a portable artefact."""
    if len(begins) < 64 or int.from_bytes(begins[:4], "little") not in _FLATBUFFER_ROOTS:
        return False
    marker = BYTECODE + b"\rStableHLO_v"
    try:
        return marker in source if isinstance(source, bytes) else file_mentions(source, marker)
    except (OSError, ValueError):
        return False
