"""Checkpoints as one record, whatever files they are: a folder of Hugging Face, or a GGUF file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.frontends.decoders.config import Config
from tilewright.frontends.decoders.gguf_names import gguf_config, gguf_tensors
from tilewright.frontends.files import read_file
from tilewright.frontends.weights.folders import read_folder
from tilewright.frontends.weights.gguf import Metadata, read_gguf
from tilewright.frontends.weights.packed import QuantizationConfig, unpacked
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir.diag import ModelError

CONFIG = "config.json"
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
    "d_model": "hidden_size",
    "d_kv": "head_dim",
    "d_ff": "intermediate_size",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
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
    fields, tensors = dict(_json(folder / CONFIG)), read_folder(folder)
    if isinstance(inner := fields.get("text_config"), dict):  # of a model that sees pictures, too
        inherited = {name: fields.get(name) for name in ("tie_word_embeddings", "quantization_config")}
        fields, tensors = {**inherited, **inner}, _of_texts(tensors)
    names = {own: name for name, own in ALIASES.items() if name in fields and own not in fields}
    fields |= {own: fields[name] for own, name in names.items()}
    if isinstance(packing := fields.get("quantization_config"), dict):
        tensors = _unpacked(tensors, QuantizationConfig.of(packing))
    return Checkpoint(folder, Config(fields, str(folder / CONFIG), names), tensors)


def _of_texts(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors of a model's part for texts, under the names that they have in a model of that part alone."""
    found = {}
    for name, tensor in tensors.items():
        if not re.match(r"(model\.)?(vision_tower|multi_modal_projector)\.", name):
            plain = name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)
            found[plain] = tensor
    return found


def _unpacked(tensors: dict[str, StoredTensor], packing: QuantizationConfig) -> dict[str, StoredTensor]:
    """Weights in place of what they are packed in. Layers of GPTQ have biases of zeros where the model has none."""
    empty = {f"{name.removesuffix('.qweight')}.bias" for name in tensors if name.endswith(".qweight")}
    return {
        name: tensor
        for name, tensor in unpacked(tensors, packing).items()
        if name not in empty or tensor.decoded().any()
    }


def _json(path: Path) -> dict[str, Any]:
    text = read_file(path, MAX_JSON_BYTES, "it should be a small file of JSON")
    try:
        fields = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"the file is no JSON: {error!s:.200}", where=str(path), hint="fetch it again"
        ) from error
    if not isinstance(fields, dict):
        raise ModelError("the file is no object of JSON", where=str(path), hint="fetch it again")
    return fields
