"""Writes `recorded.json`: small models of transformers, whose weights follow from their names by a formula, and what
they compute in float64. Run where transformers is installed: python -m tests.frontends.decoders.record
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.frontends.decoders.checkpoints import IDS, RECORDED, SHOWN, VOCABULARY, write_folder

DROPPED = ("transformers_version", "architectures", "dtype", "use_cache", "initializer_range")
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_ROPE = {"rope_theta": 10000.0}
_LINEAR = _ROPE | {"rope_type": "linear", "factor": 3.0}
_LLAMA3 = _ROPE | {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
_YARN = _ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_LONG = _ROPE | {
    "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 6,
}  # fmt: skip
_MAMBA = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 6, "time_step_rank": 3}
_MAMBA2 = _MAMBA | {"num_heads": 8, "head_dim": 8, "state_size": 10, "n_groups": 2, "chunk_size": 4}
_GPT2 = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama with biases, tied": ("Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama, linear": ("Llama", {"rope_parameters": _LINEAR}),
    "llama 3": ("Llama", {"rope_parameters": _LLAMA3, "head_dim": 16}),
    "llama, yarn": ("Llama", {"rope_parameters": _YARN, "head_dim": 16}),
    "mistral": ("Mistral", {"sliding_window": 4}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4}),
    "smollm3 with windows": ("SmolLM3", {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 3}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 24}),
    "gemma3": (
        "Gemma3Text",
        {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16, "num_hidden_layers": 6},
    ),
    "phi3": ("Phi3", {"sliding_window": 5, "rope_parameters": _ROPE | {"partial_rotary_factor": 0.5}}),
    "phi3, long": ("Phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 6}),
    "stablelm": ("StableLm", {"use_qkv_bias": True, "rope_parameters": _ROPE | {"partial_rotary_factor": 0.25}}),
    "stablelm 2": (
        "StableLm",
        {
            "use_parallel_residual": True, "qk_layernorm": True,
            "rope_parameters": _ROPE | {"partial_rotary_factor": 0.25},
        },
    ),
    "gpt2": ("GPT2", _GPT2),
    "gpt2, scaled by layer": ("GPT2", _GPT2 | {"scale_attn_by_inverse_layer_idx": True, "n_inner": 48}),
    "gpt_neox": ("GPTNeoX", {"num_key_value_heads": 4}),
    "gpt_neox, one after the other": ("GPTNeoX", {"num_key_value_heads": 4, "use_parallel_residual": False}),
    "olmo": ("Olmo", {"clip_qkv": 0.5}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {"sliding_window": 4, "num_hidden_layers": 4}),
    "granite": (
        "Granite",
        {
            "embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.3,
            "attention_multiplier": 0.2,
        },
    ),
    "mamba": ("Mamba", _MAMBA),
    "mamba with biases": ("Mamba", _MAMBA | {"use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "expand": 3}),
    "falcon_mamba": ("FalconMamba", _MAMBA),
    "mamba2": ("Mamba2", _MAMBA2),
    "mamba2 with limits": (
        "Mamba2",
        _MAMBA2 | {"n_groups": 1, "time_step_limit": [0.4, 0.9], "tie_word_embeddings": True, "use_bias": True},
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 3}),
    "qwen2_moe": (
        "Qwen2Moe",
        {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 20, "mlp_only_layers": [0],
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "num_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True,
            "head_dim": 8,
        },
    ),
    "qwen2_moe with windows": (
        "Qwen2Moe",
        {
            "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 24, "max_window_layers": 2,
            "shared_expert_intermediate_size": 20, "use_sliding_window": True, "sliding_window": 4,
        },
    ),
    "qwen3_moe with windows": (
        "Qwen3Moe",
        {
            "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 24, "head_dim": 8,
            "use_sliding_window": True, "sliding_window": 4,
        },
    ),
}  # fmt: skip


def recorded(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The config, the shapes of the tensors in its files, and some logits of all positions."""
    import torch
    import transformers
    from safetensors import safe_open

    common = {} if kind == "GPT2" or "Mamba" in kind else _COMMON
    config = getattr(transformers, f"{kind}Config")(**{**common, **fields})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
        said = json.loads((path / "config.json").read_text())
        with safe_open(path / "model.safetensors", "pt") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
        write_folder(path, said, shapes)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, attn_implementation="eager", experts_implementation="eager"
        )
        with torch.no_grad():
            logits = model.double().eval()(torch.tensor([IDS]), use_cache=False).logits[0].numpy()
    kept = {name: value for name, value in said.items() if name not in DROPPED and "dropout" not in name}
    numbers = [[float(f"{x:.8g}") for x in row] for row in logits[:, ::SHOWN]]
    return {"config": kept, "tensors": shapes, "logits": numbers}


if __name__ == "__main__":
    found = {name: recorded(*case) for name, case in CASES.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in found.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")

