"""Recorded checkpoints as GGUF files, laid out as llama.cpp's converter does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.frontends.decoders.checkpoints import tensor
from tests.frontends.weights.gguf_files import Gguf

Tensors = dict[str, np.ndarray]
_LLAMA = {
    "model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
}  # fmt: skip
_LLAMA |= {
    f"mlp.shared_expert{end}": f"ffn_{name}_shexp"
    for end, name in (("_gate", "gate_inp"), (".gate_proj", "gate"), (".up_proj", "up"), (".down_proj", "down"))
}
_MIXTRAL = {
    "block_sparse_moe.gate": "ffn_gate_inp", "block_sparse_moe.w1": "ffn_gate", "block_sparse_moe.w2": "ffn_down",
    "block_sparse_moe.w3": "ffn_up",
}  # fmt: skip
_POST_NORMS = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_STABLELM = {f"self_attn.{x}_layernorm.norms": f"attn_{x}_norm" for x in "qk"}
_INTERLEAVED = ("llama", "smollm3", "olmo", "granite")
"""Architectures whose queries and keys lie for pairs of neighbours."""
_GEMMA = _LLAMA | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_GPT = {
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "gpt_neox.embed_in": "token_embd", "embed_out": "output",
    "gpt_neox.final_layer_norm": "output_norm", "input_layernorm": "attn_norm",
    "attention.query_key_value": "attn_qkv", "attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
}  # fmt: skip
_MAMBA = {
    "backbone.embeddings": "token_embd", "lm_head": "output", "backbone.norm_f": "output_norm", "norm": "attn_norm",
    "mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d", "mixer.x_proj": "ssm_x", "mixer.dt_proj": "ssm_dt",
    "mixer.out_proj": "ssm_out", "mixer.norm": "ssm_norm",
}  # fmt: skip
_NUMBERS = {
    "state_size": "ssm.state_size", "conv_kernel": "ssm.conv_kernel", "n_groups": "ssm.group_count",
    "num_hidden_layers": "block_count", "n_layer": "block_count", "max_position_embeddings": "context_length",
    "n_positions": "context_length", "hidden_size": "embedding_length", "n_embd": "embedding_length",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
    "n_head": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length", "sliding_window": "attention.sliding_window",
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "layer_norm_eps": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon", "clip_qkv": "attention.clamp_kqv",
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
    "num_experts": "expert_count", "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "use_parallel_residual": "use_parallel_residual",
}  # fmt: skip


def write_gguf(path: Path, case: Mapping[str, Any], name: str) -> Path:
    """A recorded case of the architecture `name` of llama.cpp."""
    return as_gguf(case, name).write(path)


def as_gguf(case: Mapping[str, Any], name: str) -> Gguf:
    """The same, before it is written."""
    config = case["config"]
    file = Gguf().key("general.architecture", "str", name)
    file.key("tokenizer.ggml.tokens", "[str]", [f"<{k}>" for k in range(config["vocab_size"])])
    for field, key in _NUMBERS.items():
        if (number := config.get(field)) is not None:
            kinds = {bool: "bool", int: "u32"}
            file.key(f"{name}.{key}", kinds.get(type(number), "f32"), number)
    if name.startswith("mamba"):
        file.key(f"{name}.ssm.inner_size", "u32", int(config["expand"] * config["hidden_size"]))
        rank = config["num_heads"] if name == "mamba2" else config["time_step_rank"]
        file.key(f"{name}.ssm.time_step_rank", "u32", rank).key(f"{name}.context_length", "u32", 1 << 20)
        file.key(f"{name}.ssm.dt_b_c_rms", "bool", config["model_type"] == "falcon_mamba")
        file.key(f"{name}.attention.layer_norm_rms_epsilon", "f32", config["layer_norm_epsilon"])
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    if "rope_theta" in rope:
        file.key(f"{name}.rope.freq_base", "f32", rope["rope_theta"])
    if rope.get("rope_type") in ("linear", "yarn"):
        file.key(f"{name}.rope.scaling.type", "str", rope["rope_type"])
        file.key(f"{name}.rope.scaling.factor", "f32", rope["factor"])
        if "original_max_position_embeddings" in rope:
            file.key(f"{name}.rope.scaling.original_context_length", "u32", rope["original_max_position_embeddings"])
    if "partial_rotary_factor" in rope:
        size = config["hidden_size"] // config["num_attention_heads"]
        file.key(f"{name}.rope.dimension_count", "u32", int(size * rope["partial_rotary_factor"]))
    own = {key: tensor(key, shape) for key, shape in case["tensors"].items()}
    if rope.get("rope_type") == "longrope":
        file.key(f"{name}.rope.scaling.original_context_length", "u32", rope["original_max_position_embeddings"])
        for part in ("long", "short"):
            factors = np.array(rope[f"{part}_factor"], np.float32)
            file.tensor(f"rope_factors_{part}.weight", factors.shape, "F32", factors.tobytes())
    for key, array in _laid_out(config, _stacked(own), name).items():
        file.tensor(key, array.shape, "F32", np.ascontiguousarray(array, np.float32).tobytes())
    return file


def _stacked(own: Tensors) -> Tensors:
    """Experts in one tensor for each matrix."""
    found: Tensors = {}
    for name, array in own.items():
        before, marker, after = name.partition(".norms." if ".norms." in name else ".experts.")
        if marker == ".norms.":  # of each head
            heads = sum(other.startswith(f"{before}.norms.") for other in own)
            found[f"{before}.norms.weight"] = np.stack([own[f"{before}.norms.{k}.weight"] for k in range(heads)])
            continue
        if not marker:
            found[name] = array
        elif after.startswith("0."):
            after = after.removeprefix("0.")
            count = sum(other.startswith(f"{before}.experts.") and other.endswith(after) for other in own)
            found[f"{before}.{after}"] = np.stack([own[f"{before}.experts.{k}.{after}"] for k in range(count)])
    return found


def _laid_out(config: Mapping[str, Any], own: Tensors, name: str) -> Tensors:
    if name.startswith("mamba"):
        return _laid_out_of_mamba(own, config.get("n_groups"))
    kind = config["model_type"]
    names = _GEMMA if name in ("gemma2", "gemma3") else _GPT if name.startswith("gpt") else _LLAMA
    names = names | {"mixtral": _MIXTRAL, "olmo2": _POST_NORMS, "stablelm": _STABLELM}.get(kind, {})
    found: Tensors = {}
    for key, array in own.items():
        stem, _, end = key.rpartition(".")
        layer = next((part for part in key.split(".") if part.isdigit()), None)
        short = stem if layer is None else stem.partition(f".{layer}.")[2]
        heads = config.get("num_key_value_heads" if short.endswith("k_proj") else "num_attention_heads")
        if name in _INTERLEAVED and short.endswith(("q_proj", "k_proj")):
            array = _for_neighbours(array, heads)
        if name.startswith("gemma") and short.endswith("norm"):
            array = array + 1
        if name == "gpt2" and array.ndim == 2 and layer is not None:
            array = array.T
        if name == "gptneox" and short.endswith("query_key_value"):
            apart = array.reshape(heads, 3, -1, *array.shape[1:])
            array = np.moveaxis(apart, 1, 0).reshape(array.shape)
        new = names[short] + ("_exps" if array.ndim == 3 else "")
        found[f"blk.{layer}.{new}.{end}" if layer else f"{new}.{end}"] = array
    return found


def _laid_out_of_mamba(own: Tensors, groups: int | None) -> Tensors:
    found: Tensors = {}
    for key, array in own.items():
        layer = next((part for part in key.split(".") if part.isdigit()), None)
        short = key if layer is None else key.partition(f".{layer}.")[2]
        column = array if groups is None else array.reshape(-1, 1)
        named = {
            "mixer.A_log": ("ssm_a", -np.exp(column)), "mixer.D": ("ssm_d", column),
            "mixer.dt_bias": ("ssm_dt.bias", array),
        }  # fmt: skip
        stem, _, end = short.rpartition(".")
        if short not in named:
            if array.ndim == 3 or (stem == "mixer.norm" and groups is not None):
                array = array.reshape(array.shape[0] if array.ndim == 3 else groups, -1)
            named[short] = (f"{_MAMBA[stem]}.{end}", array)
        new, laid = named[short]
        found[f"blk.{layer}.{new}" if layer else new] = laid
    return found


def _for_neighbours(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of two halves of each head in turn."""
    shape: Sequence[int] = array.shape
    return array.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


_T5 = (
    ("SelfAttention.relative_attention_bias", "attn_rel_b"), ("SelfAttention.", "attn_"),
    ("EncDecAttention.", "cross_attn_"),
    ("DenseReluDense.wi_0", "ffn_gate"), ("DenseReluDense.wi_1", "ffn_up"), ("DenseReluDense.wi", "ffn_up"),
    ("DenseReluDense.wo", "ffn_down"),
)  # fmt: skip
_T5_NUMBERS = {
    "d_model": "embedding_length", "d_ff": "feed_forward_length", "num_layers": "block_count",
    "num_decoder_layers": "decoder_block_count", "num_heads": "attention.head_count", "d_kv": "attention.key_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
    "relative_attention_num_buckets": "attention.relative_buckets_count",
    "decoder_start_token_id": "decoder_start_token_id",
}  # fmt: skip


def t5_gguf(config: Mapping[str, Any], tensors: Mapping[str, Sequence[int]]) -> Gguf:
    """An encoder-decoder of T5's kin."""
    file = Gguf().key("general.architecture", "str", "t5").key("t5.context_length", "u32", 512)
    for field, key in _T5_NUMBERS.items():
        file.key(f"t5.{key}", "u32" if isinstance(config[field], int) else "f32", config[field])
    for key, shape in tensors.items():
        array = np.ascontiguousarray(tensor(key, shape), np.float32)
        file.tensor(_t5_name(key), array.shape, "F32", array.tobytes())
    return file


def _t5_name(key: str) -> str:
    side, _, rest = key.partition(".")
    if side in ("shared", "lm_head"):
        return {"shared": "token_embd", "lm_head": "output"}[side] + f".{rest}"
    if rest.startswith("final_layer_norm"):
        return f"{side[:3]}.output_norm.weight"
    _, block, _, layer, *own = rest.split(".")
    kinds = ("attn", "ffn") if side == "encoder" else ("attn", "cross_attn", "ffn")
    name = ".".join(own).removesuffix(".weight")
    if name == "layer_norm":
        name = f"{kinds[int(layer)]}_norm"
    for theirs, ours in _T5:
        name = name.replace(theirs, ours)
    return f"{side[:3]}.blk.{block}.{name}.weight"
