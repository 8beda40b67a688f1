"""What the file of a compiled model is, without loading it: nothing is mapped, run, or read that is not told."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.storage.container import FORMAT, opened_artifact, read_head
from tilewright.runtime.storage.image import ImageLayout
from tilewright.runtime.storage.records import record


@dataclass(frozen=True)
class PartRecord:
    """Some of the weights: bytes, which follow those of the part before, and their checksum and digest."""

    size: int
    checksum: str
    digest: str = ""


@dataclass(frozen=True)
class SectionRecord:
    """A section of a file: where it is, and its checksum (for code a blake2b-256, for weights a crc32; of a signed
    file's weights the `digest` is a blake2b-256). Weights of several levels have those of their `parts` instead. One in
    the store of a fleet is found there by its digest, `depth` folders above."""

    kind: str
    offset: int
    size: int
    checksum: str
    digest: str = ""
    depth: int = -1
    parts: tuple[PartRecord, ...] = ()


@dataclass(frozen=True)
class ArtifactFile:
    """The file of a compiled model. `digest` is that of header and metadata, and by these of all sections; `signed_by`
    is the public key of who signed it, which nobody has checked ("" where it is not signed). `imports` are the
    functions that its code takes from the system, `functions` those of its own. Of several `levels` these are of the
    first; each has a name, and features that a CPU must have."""

    format: int
    size: int
    digest: str
    signed_by: str
    sections: tuple[SectionRecord, ...]
    metadata_bytes: int
    producer: str
    kind: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    imports: tuple[str, ...]
    functions: int
    levels: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def of(cls, path: Path) -> ArtifactFile:
        """What a file is; ArtifactError for one that is missing, damaged, foreign or too new. Of sections only their
        entries are looked at."""
        with opened_artifact(path) as source:
            head = read_head(source)
            try:
                metadata: Any = json.loads(head.text)
                target, layout = metadata["target"], metadata.get("image")
                image = None if layout is None else record(ImageLayout, layout)
                return cls(
                    format=FORMAT,
                    size=source.size,
                    digest=head.digest.hex(),
                    signed_by="" if head.signature is None else head.signature.fingerprint,
                    sections=tuple(record(SectionRecord, entry) for entry in metadata["sections"]),
                    metadata_bytes=len(head.text),
                    producer=str(metadata["producer"]),
                    kind=str(target["kind"]),
                    triple=str(target["triple"]),
                    cpu=str(target["cpu"]),
                    features=tuple(map(str, target["features"])),
                    imports=() if image is None else image.imports,
                    functions=0 if image is None else len(image.symbols),
                    levels=tuple(
                        (str(level["level"]), tuple(map(str, level["target"]["features"])))
                        for level in (metadata, *metadata.get("levels", ()))
                        if metadata.get("levels")
                    ),
                )
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ArtifactError(
                    f"{path}: the metadata is malformed ({error!r})", hint="compile the model again"
                ) from error
