"""Checkpoints as one record, whatever files they are: a folder of Hugging Face, or a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontends.decoders.config import Config
from tilewright.frontends.decoders.gguf_names import gguf_config, gguf_tensors
from tilewright.frontends.files import read_file
from tilewright.frontends.problems import shown
from tilewright.frontends.weights.gguf import Metadata, read_gguf
from tilewright.frontends.weights.kinds import KINDS
from tilewright.frontends.weights.layout import PlainLayout
from tilewright.frontends.weights.safetensors import read_safetensors
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir.diag import ModelError
from tilewright.ir.dtype import from_numpy

CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
ALIASES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_pct": "partial_rotary_factor",
    "rotary_emb_base": "rope_theta",
    "hidden_activation": "hidden_act",
}
"""Fields that some architectures call otherwise."""
MAX_JSON_BYTES = 100_000_000


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """`config` and `tensors` are in Hugging Face's names; `path` is the file, or the folder. `metadata` is that of a
    GGUF file, which has the vocabulary and the template; folders have files for these."""

    path: Path
    config: Config
    tensors: Mapping[str, StoredTensor]
    metadata: Metadata | None = None


def read_checkpoint(path: Path) -> Checkpoint:
    """ModelError for files that are missing or damaged, or that belong to something else than a language model."""
    if path.is_dir() or path.name == CONFIG:
        return _read_folder(path.parent if path.name == CONFIG else path)
    file = read_gguf(path)
    tensors = gguf_tensors(file)
    return Checkpoint(path, gguf_config(file, tensors), tensors, file.metadata)


def _read_folder(folder: Path) -> Checkpoint:
    fields = dict(_json(folder / CONFIG))
    if isinstance(inner := fields.get("text_config"), dict):  # of a model that sees pictures, too
        fields = {**inner, "tie_word_embeddings": inner.get("tie_word_embeddings", fields.get("tie_word_embeddings"))}
    names = {own: name for name, own in ALIASES.items() if name in fields and own not in fields}
    fields |= {own: fields[name] for own, name in names.items()}
    return Checkpoint(folder, Config(fields, str(folder / CONFIG), names), _tensors(folder))


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    """Of the single file, or of all shards that the index names."""
    if (folder / SINGLE).is_file():
        return _stored(folder / SINGLE)
    index = folder / INDEX
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if len(files) == 1:
            return _stored(files[0])
        what = f"neither {SINGLE} nor {INDEX} is there"
        raise ModelError(what, where=str(folder), hint="give a folder with the weights as .safetensors")
    places = _json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ModelError("'weight_map' is no object of names of files", where=str(index), hint="fetch the file again")
    found: dict[str, StoredTensor] = {}
    for name in dict.fromkeys(places.values()):
        if Path(name).name != name:
            raise ModelError(f"'weight_map' names '{shown(name)}', which is no file of the folder", where=str(index))
        if not (folder / name).is_file():
            raise ModelError(f"the file '{shown(name)}' is missing", where=str(index), hint="fetch all files")
        found |= _stored(folder / name)
    missing = [name for name in places if name not in found]
    if missing:
        listed = ", ".join(shown(name) for name in missing[:20])
        raise ModelError(
            f"tensors are in none of the files: {listed}", where=str(index), hint="fetch all files again, of one model"
        )
    return found


def _stored(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file, views of it."""
    found: dict[str, StoredTensor] = {}
    for name, array in read_safetensors(path).items():
        kind = _KINDS[from_numpy(array.dtype)]
        found[name] = StoredTensor(name, array.shape, kind, array.reshape(-1).view(np.uint8))
    return found


_KINDS = {kind.layout.dtype: kind for kind in KINDS.values() if isinstance(kind.layout, PlainLayout)}


def _json(path: Path) -> dict[str, Any]:
    text = read_file(path, MAX_JSON_BYTES, "it should be a small file of JSON")
    try:
        fields = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the file is no JSON: {error!s:.200}", where=str(path), hint="fetch it again") from error
    if not isinstance(fields, dict):
        raise ModelError("the file is no object of JSON", where=str(path), hint="fetch it again")
    return fields
