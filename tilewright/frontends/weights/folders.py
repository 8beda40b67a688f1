"""Files and folders of .safetensors as the weights of a language model.

Apart from the reader of arrays, which every process needs that looks at a model: the table of kinds is for few.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from tilewright.frontends.files import open_regular
from tilewright.frontends.problems import shown
from tilewright.frontends.weights.kinds import KINDS
from tilewright.frontends.weights.safetensors import LEAST_ROOM, SUFFIX, damaged, mapped_tensors, parsed
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir.diag import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_INDEX_BYTES = 1 << 26


def read_stored(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name: views of the mapped file in kinds of single elements. Errors as of
    `read_safetensors`."""
    return {
        entry.name: StoredTensor(entry.name, entry.shape, KINDS[entry.dtype], np.frombuffer(data, np.uint8))
        for entry, data in mapped_tensors(path)
    }


def read_folder(folder: Path) -> dict[str, StoredTensor]:
    """The weights of a folder of Hugging Face: those that the index names, each in its file, or those of the only file.

    ModelError for what is missing, damaged or contradictory: each file that the index names must be there with the
    tensors that it should have. UnsupportedError as for a file.
    """
    try:
        names = sorted(path.name for path in folder.iterdir() if path.name.endswith((SUFFIX, INDEX)))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"the folder cannot be read: {reason}", where=str(folder), hint="check the path") from error
    if INDEX in names:
        return _indexed(folder)
    if SINGLE not in names and len(names) != 1:
        raise ModelError(
            f"the folder has {len(names)} {SUFFIX} files and no {INDEX}, so that it is not known which belong together",
            where=str(folder),
            hint=f"fetch the whole folder, or give one file the name {SINGLE}" if names else "fetch the whole folder",
        )
    return read_stored(folder / (SINGLE if SINGLE in names else names[0]))


def _indexed(folder: Path) -> dict[str, StoredTensor]:
    path = folder / INDEX
    places = _index(path)
    files = {name: read_stored(folder / name) for name in sorted(set(places.values()))}
    missing = [tensor for tensor, file in places.items() if tensor not in files[file]]
    if missing:
        name = missing[0]
        what = f"'{shown(name)}' is not in {shown(places[name])}, where the index says that it is"
        more = f", and so are {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ModelError(what + more, where=str(path), hint="fetch the whole folder again")
    return {tensor: files[file][tensor] for tensor, file in places.items()}


def _index(path: Path) -> dict[str, str]:
    """The file of each tensor: names of files of the folder."""
    try:
        with open_regular(path) as file:
            text = file.read(MAX_INDEX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"the index cannot be read: {reason}", where=str(path), hint="check the path") from error
    if len(text) > MAX_INDEX_BYTES:
        damaged(f"the index has more than {MAX_INDEX_BYTES} bytes", path)
    places = parsed(text, LEAST_ROOM, path, "the index").get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        damaged("the index has no weight_map of names of tensors to names of files", path)
    for name in set(places.values()):
        if not name.endswith(SUFFIX) or name != os.path.basename(name) or "\0" in name or "\\" in name:
            damaged(f"the index names the file '{shown(name)}', which is no {SUFFIX} file of this folder", path)
    return places
