"""The ONNX front end. This module imports neither onnx nor the translation, which a model that the cache has does not
need."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.frontends.exported import ExportedDecoder
from tilewright.frontends.files import CHUNK, DIGEST_BYTES, digest_of_file, first_bytes, open_regular
from tilewright.frontends.front_end import Remember

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.core import Module

_KEY = b"\n\x08location\x12"
_LOCATION = re.compile(_KEY + rb"(?:([\x01-\x7f])|([\x80-\xff])([\x01-\x1f]))", re.DOTALL)
"""What ONNX calls the name of a file that holds a tensor's data, as protobuf has it: the key, and the size of the
value. Others may look like this, as an input of a node does: files of such a name are read in vain."""
_LONGEST = 4200
"""Bytes of a key with the longest value."""

_IR_VERSION, _NEXT_FIELDS = 0x08, b"\x12\x1a\x22\x28\x32\x3a\x42"
"""Tags of protobuf: the first field of a model, the version (a small number), and those that may come after it."""


class OnnxFrontEnd:
    """Files of any suffix that begin as ONNX's do, their bytes, ModelProto objects, and decoders in these forms."""

    name = "onnx"
    formats = "ONNX (.onnx files, their bytes, onnx.ModelProto)"

    def accepts(self, source: Any) -> bool:
        if isinstance(source, ExportedDecoder):
            return self.accepts(source.source)
        if (isinstance(source, Path) and source.suffix == ".onnx") or type(source).__name__ == "ModelProto":
            return True
        begins = first_bytes(source, 3)
        return (
            len(begins) == 3
            and begins[0] == _IR_VERSION
            and 0 < begins[1] < 128
            and begins[2] in _NEXT_FIELDS
        )

    def digest(self, source: Any, remember: Remember) -> bytes:
        """Of a file with data outside also that of the files which it names."""
        if isinstance(source, bytes):
            return source
        if isinstance(source, ExportedDecoder):
            return self.digest(source.source, remember) + b"decoder"
        if not isinstance(source, Path):
            return bytes(source.SerializeToString())
        found = remember(source, _digest_and_others)
        for name in json.loads(found[DIGEST_BYTES:]):
            other = source.parent / name
            found += remember(other, digest_of_file) if other.is_file() else b"none"
        return found

    def load(
        self,
        source: Any,
        *,
        constants: Mapping[str, np.ndarray],
        shapes: Mapping[str, Sequence[int | str]],
    ) -> Module:
        from tilewright.frontends.onnx.load import load_onnx

        if not isinstance(source, ExportedDecoder):
            return load_onnx(source, constants=constants, shapes=shapes)
        from tilewright.frontends.exported.one_sequence import settled

        return settled(
            lambda known: load_onnx(
                source.source, constants=constants, shapes={**shapes, **known}, is_decoder=True
            )
        )


def _digest_and_others(path: Path) -> bytes:
    """The digest of the file's bytes, and the names of others that may belong to it, as JSON."""
    names: set[str] = set()
    before = b""
    with open_regular(path) as file:  # read and not mapped: somebody may be writing over it
        while piece := file.read(CHUNK):
            both = before + piece
            for match in _LOCATION.finditer(both) if _KEY in both else ():  # which is looked for ten times as fast
                short, low, high = match.groups()
                size = short[0] if short else (low[0] & 127) + 128 * high[0]
                name = both[match.end() : match.end() + size]
                if len(name) == size and b"\0" not in name:
                    names.add(name.decode(errors="surrogateescape"))
            before = both[-_LONGEST:]
    return digest_of_file(path) + json.dumps(sorted(names)).encode()
