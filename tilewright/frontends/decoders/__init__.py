"""The front end of language models: checkpoints of Hugging Face, and GGUF files. This module imports nothing of the
translation, which a model that the cache has does not need."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.frontends.decoders.source import DecoderSource
from tilewright.frontends.files import digest_of_file, first_bytes
from tilewright.frontends.front_end import Remember

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.core import Module

CONFIG = "config.json"
_GGUF = b"GGUF"


class DecoderFrontEnd:
    """GGUF files, folders with a config.json and weights as .safetensors, and DecoderSource objects."""

    name = "decoders"
    formats = "language models (.gguf files, folders of Hugging Face with config.json and .safetensors)"

    def accepts(self, source: Any) -> bool:
        if isinstance(source, DecoderSource):
            return True
        if not isinstance(source, Path):
            return False
        try:
            if source.name == CONFIG or source.is_dir():
                return bool(files_of_folder(source))
        except (OSError, ValueError):
            return False
        return source.suffix == ".gguf" or first_bytes(source, 4) == _GGUF

    def digest(self, source: Any, remember: Remember) -> bytes:
        """Of the files, and of what of the model is wanted."""
        wanted = DecoderSource.of(source)
        path = Path(wanted.path)
        files = files_of_folder(path) if path.is_dir() or path.name == CONFIG else parts_of_file(path)
        found = b"".join(remember(file, digest_of_file) for file in files)
        for name, weights in sorted((wanted.importance or {}).items()):
            found += f"{name}:{weights.shape}".encode() + hashlib.blake2b(weights.tobytes(), digest_size=16).digest()
        kinds = f"{wanted.logits};{wanted.weights};{wanted.hidden}"
        asked = f"{wanted.capacity};{kinds};{wanted.sequences};{wanted.caches}"
        return found + f"{[file.name for file in files]}{asked}".encode()

    def load(
        self,
        source: Any,
        *,
        constants: Mapping[str, np.ndarray],
        shapes: Mapping[str, Sequence[int | str]],
    ) -> Module:
        from tilewright.frontends.decoders.load import load_decoder

        return load_decoder(source, constants=constants, shapes=shapes)


def files_of_folder(path: Path) -> list[Path]:
    """The files that say what the graph of a folder is, or of the one that a config lies in; none where it is no folder
    of a model."""
    folder = path.parent if path.name == CONFIG else path
    weights = sorted(folder.glob("*.safetensors"))
    if not weights or not (folder / CONFIG).is_file():
        return []
    return [folder / CONFIG, *sorted(folder.glob("*.safetensors.index.json")), *weights]


def parts_of_file(path: Path) -> list[Path]:
    """A GGUF file, or all parts of one that is split."""
    stem, marker, count = path.stem.rpartition("-of-")
    first = stem[:-6] if marker and stem[-6:-5] == "-" and stem[-5:].isdigit() and count.isdigit() else ""
    return sorted(path.parent.glob(f"{first}-[0-9][0-9][0-9][0-9][0-9]-of-{count}.gguf")) if first else [path]
