"""One small language model with a vocabulary and a chat template, as a folder and as a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.frontends.decoders.checkpoints import tensor, write_folder
from tests.frontends.weights.gguf_files import Gguf
from tests.llm.vocabularies import byte_level_metadata, written_folder

WIDTH, INNER, LAYERS, HEADS = 32, 40, 2, 4
ROWS, NAMED = 704, 700
"""Folders have rows without a token, GGUF files do not."""
CONTEXT = 256
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONFIG: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "max_position_embeddings": CONTEXT,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": ROWS,
    "eos_token_id": 2,
}
_OF_LAYER = {
    "input_layernorm.weight": ("attn_norm.weight", (WIDTH,)),
    "post_attention_layernorm.weight": ("ffn_norm.weight", (WIDTH,)),
    "self_attn.q_proj.weight": ("attn_q.weight", (WIDTH, WIDTH)),
    "self_attn.k_proj.weight": ("attn_k.weight", (WIDTH // 2, WIDTH)),
    "self_attn.v_proj.weight": ("attn_v.weight", (WIDTH // 2, WIDTH)),
    "self_attn.q_proj.bias": ("attn_q.bias", (WIDTH,)),
    "self_attn.k_proj.bias": ("attn_k.bias", (WIDTH // 2,)),
    "self_attn.v_proj.bias": ("attn_v.bias", (WIDTH // 2,)),
    "self_attn.o_proj.weight": ("attn_output.weight", (WIDTH, WIDTH)),
    "mlp.gate_proj.weight": ("ffn_gate.weight", (INNER, WIDTH)),
    "mlp.up_proj.weight": ("ffn_up.weight", (INNER, WIDTH)),
    "mlp.down_proj.weight": ("ffn_down.weight", (WIDTH, INNER)),
}


def tensors() -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Names in folders, names in GGUF files, and shapes."""
    yield "model.embed_tokens.weight", "token_embd.weight", (ROWS, WIDTH)
    yield "model.norm.weight", "output_norm.weight", (WIDTH,)
    for layer in range(LAYERS):
        for name, (short, shape) in _OF_LAYER.items():
            yield f"model.layers.{layer}.{name}", f"blk.{layer}.{short}", shape


def model_folder(folder: Path) -> Path:
    """A folder of Hugging Face, its vocabulary that of `byte_level(digits=True)`."""
    write_folder(folder, CONFIG, {name: shape for name, _, shape in tensors()})
    written_folder(folder, "digits")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": CHATML, "eos_token": {"content": "<|im_end|>"}, "bos_token": None})
    )
    return folder


def model_file(path: Path, **keys: tuple[str, Any]) -> Path:
    """A GGUF file with the same weights, its vocabulary that of `byte_level(digits=True)`; `keys` are further ones,
    with underscores for dots."""
    return model_gguf(**keys).write(path)


def model_gguf(**keys: tuple[str, Any]) -> Gguf:
    """The same, before it is written."""
    file = Gguf().key("general.architecture", "str", "qwen2")
    numbers = {
        "block_count": LAYERS,
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 2,
    }
    for name, number in numbers.items():
        file.key(f"qwen2.{name}", "u32", number)
    file.key("qwen2.attention.layer_norm_rms_epsilon", "f32", 1e-6).key(
        "qwen2.rope.freq_base", "f32", 10000.0
    )
    kinds = {str: "str", bool: "bool", int: "u32"}
    for name, value in {**byte_level_metadata(), "tokenizer.chat_template": CHATML}.items():
        if isinstance(value, list):
            file.key(name, "[str]" if isinstance(value[0], str) else "[i32]", value)
        else:
            file.key(name, kinds[type(value)], value)
    for name, (kind, value) in keys.items():
        file.key(name.replace("_", "."), kind, value)
    for name, short, shape in tensors():
        rows = tensor(name, shape)[:NAMED] if shape[0] == ROWS else tensor(name, shape)
        file.tensor(short, rows.shape, "F32", rows.tobytes())
    return file
