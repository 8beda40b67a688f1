"""The TFLite front end. This module imports nothing of the translation, which a model that the cache has does not
need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.frontends.files import digest_of_file, first_bytes
from tilewright.frontends.front_end import Remember

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.core import Module

_IDENTIFIER = b"TFL3"


class TfliteFrontEnd:
    """Files of the suffix .tflite or with TFLite's identifier, and their bytes."""

    name = "tflite"
    formats = "TFLite (.tflite files, their bytes)"

    def accepts(self, source: Any) -> bool:
        if isinstance(source, Path) and source.suffix == ".tflite":
            return True
        return first_bytes(source, 8)[4:] == _IDENTIFIER

    def digest(self, source: Any, remember: Remember) -> bytes:
        return source if isinstance(source, bytes) else remember(source, digest_of_file)

    def load(
        self,
        source: Any,
        *,
        constants: Mapping[str, np.ndarray],
        shapes: Mapping[str, Sequence[int | str]],
    ) -> Module:
        from tilewright.frontends.tflite.load import load_tflite

        return load_tflite(source, constants=constants, shapes=shapes)
