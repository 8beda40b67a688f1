"""Writes `recorded_encoders.json`: small encoder-decoders of transformers, and what they compute in float64. Run where
transformers is installed: python -m tests.frontends.decoders.record_encoders
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.frontends.decoders.checkpoints import SHOWN, VOCABULARY, write_folder
from tests.frontends.decoders.encoded import IDS, READ, RECORDED, features
from tests.frontends.decoders.record import DROPPED

_T5: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10, "decoder_start_token_id": 0,
}  # fmt: skip
_BART: dict[str, Any] = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 48, "max_position_embeddings": 32,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_WHISPER = _BART | {
    "max_target_positions": 32, "max_source_positions": 20, "num_mel_bins": 12, "suppress_tokens": None,
    "begin_suppress_tokens": None,
}  # fmt: skip
_HEAD = {"lm_head.weight": [VOCABULARY, 32]}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, list[int]]]] = {
    "t5": ("T5", _T5, {}),
    "t5, other buckets": ("T5", _T5 | {"relative_attention_num_buckets": 7, "relative_attention_max_distance": 5}, {}),
    "t5, more layers in the decoder": ("T5", _T5 | {"num_layers": 1, "num_decoder_layers": 3, "d_kv": 5}, {}),
    "t5, gated, with a head": (
        "T5", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, _HEAD,
    ),
    "t5, gated by silu": ("T5", _T5 | {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False}, {}),
    "mt5": ("MT5", _T5 | {"feed_forward_proj": "gated-gelu"}, {}),
    "umt5": ("UMT5", _T5 | {"feed_forward_proj": "gated-gelu"}, {}),
    "bart": ("Bart", _BART, {}),
    "bart, scaled": ("Bart", _BART | {"scale_embedding": True, "activation_function": "relu", "decoder_layers": 3}, {}),
    "mbart": ("MBart", _BART | {"scale_embedding": True}, {}),
    "marian": ("Marian", _BART | {"scale_embedding": True, "activation_function": "swish"}, {}),
    "marian, two vocabularies": (
        "Marian", _BART | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 47}, {},
    ),
    "pegasus": ("Pegasus", _BART, {}),
    "m2m_100": ("M2M100", _BART | {"scale_embedding": True}, {}),
    "whisper": ("Whisper", _WHISPER, {}),
    "whisper, more layers in the encoder": ("Whisper", _WHISPER | {"encoder_layers": 3, "decoder_layers": 1}, {}),
}  # fmt: skip


def recorded(kind: str, fields: Mapping[str, Any], more: Mapping[str, list[int]]) -> dict[str, Any]:
    """The config, the shapes of the tensors in its files and of `more`, and some logits of all positions."""
    import torch
    import transformers
    from safetensors import safe_open

    made = getattr(transformers, f"{kind}MTModel", None) or getattr(transformers, f"{kind}ForConditionalGeneration")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        made(getattr(transformers, f"{kind}Config")(**fields)).save_pretrained(path)
        said = json.loads((path / "config.json").read_text())
        with safe_open(path / "model.safetensors", "pt") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())} | dict(more)
        write_folder(path, said, shapes)
        model = made.from_pretrained(path, attn_implementation="eager").double().eval()
        is_speech = kind == "Whisper"
        given = torch.tensor(features(said)).double() if is_speech else torch.tensor([READ])
        name = "input_features" if is_speech else "input_ids"
        with torch.no_grad():
            logits = model(**{name: given}, decoder_input_ids=torch.tensor([IDS]), use_cache=False).logits[0].numpy()
    kept = {name: value for name, value in said.items() if name not in DROPPED and "dropout" not in name}
    numbers = [[float(f"{x:.8g}") for x in row] for row in logits[:, ::SHOWN]]
    return {"config": kept, "tensors": shapes, "logits": numbers}


if __name__ == "__main__":
    found = {name: recorded(*case) for name, case in CASES.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in found.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
