"""GGUF files in Hugging Face's names: fields of the config from metadata, and names of tensors.

Files of llama.cpp lay some things out in another way. What of these an architecture must know stands in fields of the
config that no config.json has:

- `rope_interleaved`: rows of queries and keys are in the order for pairs of neighbours;
- `norms_plus_one`: weights of norms have the 1 in them that Gemma adds;
- `transposed_weights`: false, where Hugging Face stores [inputs, outputs] (GPT-2);
- `heads_together`: false, where the rows of queries, of keys and of values are together, and not those of a head
  (GPT-NeoX);
- `computed_decay`: the paces of states are there as they are used, and not their logarithms (Mamba).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.frontends.decoders.config import Config
from tilewright.frontends.problems import shown
from tilewright.frontends.weights.gguf import GgufFile
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir.diag import ModelError, UnsupportedError

ROPE_FACTORS = {
    "rope_freqs.weight": "factors",
    "rope_factors_short.weight": "short_factor",
    "rope_factors_long.weight": "long_factor",
}
"""Tensors that are parameters of rotary positions in Hugging Face's configs."""

_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.clamp_kqv": "clip_qkv",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "use_parallel_residual": "use_parallel_residual",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.inner_size": "inner_size",
    "ssm.state_size": "state_size",
    "ssm.time_step_rank": "time_step_rank",
    "ssm.group_count": "n_groups",
    "ssm.dt_b_c_rms": "dt_b_c_rms",
    "decoder_block_count": "num_decoder_layers",
    "attention.relative_buckets_count": "relative_attention_num_buckets",
}
"""Fields of a config by keys of metadata, which begin with the architecture."""

_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
    "blk.#.attn_norm": "model.layers.#.input_layernorm",
    "blk.#.attn_q": "model.layers.#.self_attn.q_proj",
    "blk.#.attn_k": "model.layers.#.self_attn.k_proj",
    "blk.#.attn_v": "model.layers.#.self_attn.v_proj",
    "blk.#.attn_qkv": "model.layers.#.self_attn.qkv_proj",
    "blk.#.attn_output": "model.layers.#.self_attn.o_proj",
    "blk.#.attn_q_norm": "model.layers.#.self_attn.q_norm",
    "blk.#.attn_k_norm": "model.layers.#.self_attn.k_norm",
    "blk.#.ffn_norm": "model.layers.#.post_attention_layernorm",
    "blk.#.ffn_gate": "model.layers.#.mlp.gate_proj",
    "blk.#.ffn_up": "model.layers.#.mlp.up_proj",
    "blk.#.ffn_down": "model.layers.#.mlp.down_proj",
}
_EXPERTS = {
    "blk.#.ffn_gate_inp": "model.layers.#.mlp.gate",
    "blk.#.ffn_gate_exps": "model.layers.#.mlp.experts.*.gate_proj",
    "blk.#.ffn_up_exps": "model.layers.#.mlp.experts.*.up_proj",
    "blk.#.ffn_down_exps": "model.layers.#.mlp.experts.*.down_proj",
    "blk.#.ffn_gate_inp_shexp": "model.layers.#.mlp.shared_expert_gate",
    "blk.#.ffn_gate_shexp": "model.layers.#.mlp.shared_expert.gate_proj",
    "blk.#.ffn_up_shexp": "model.layers.#.mlp.shared_expert.up_proj",
    "blk.#.ffn_down_shexp": "model.layers.#.mlp.shared_expert.down_proj",
}
_GEMMA = {
    "blk.#.post_attention_norm": "model.layers.#.post_attention_layernorm",
    "blk.#.ffn_norm": "model.layers.#.pre_feedforward_layernorm",
    "blk.#.post_ffw_norm": "model.layers.#.post_feedforward_layernorm",
}
_POST_NORMS = {
    "blk.#.post_attention_norm": "model.layers.#.post_attention_layernorm",
    "blk.#.post_ffw_norm": "model.layers.#.post_feedforward_layernorm",
}
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output": "lm_head",
    "output_norm": "transformer.ln_f",
    "blk.#.attn_norm": "transformer.h.#.ln_1",
    "blk.#.attn_qkv": "transformer.h.#.attn.c_attn",
    "blk.#.attn_output": "transformer.h.#.attn.c_proj",
    "blk.#.ffn_norm": "transformer.h.#.ln_2",
    "blk.#.ffn_up": "transformer.h.#.mlp.c_fc",
    "blk.#.ffn_down": "transformer.h.#.mlp.c_proj",
}
_GPT_NEOX = {
    "token_embd": "gpt_neox.embed_in",
    "output": "embed_out",
    "output_norm": "gpt_neox.final_layer_norm",
    "blk.#.attn_norm": "gpt_neox.layers.#.input_layernorm",
    "blk.#.attn_qkv": "gpt_neox.layers.#.attention.query_key_value",
    "blk.#.attn_output": "gpt_neox.layers.#.attention.dense",
    "blk.#.ffn_norm": "gpt_neox.layers.#.post_attention_layernorm",
    "blk.#.ffn_up": "gpt_neox.layers.#.mlp.dense_h_to_4h",
    "blk.#.ffn_down": "gpt_neox.layers.#.mlp.dense_4h_to_h",
}
_MAMBA = {
    "token_embd": "backbone.embeddings",
    "output": "lm_head",
    "output_norm": "backbone.norm_f",
    "blk.#.attn_norm": "backbone.layers.#.norm",
    "blk.#.ssm_in": "backbone.layers.#.mixer.in_proj",
    "blk.#.ssm_conv1d": "backbone.layers.#.mixer.conv1d",
    "blk.#.ssm_x": "backbone.layers.#.mixer.x_proj",
    "blk.#.ssm_dt": "backbone.layers.#.mixer.dt_proj",
    "blk.#.ssm_a": "backbone.layers.#.mixer.A_log",
    "blk.#.ssm_d": "backbone.layers.#.mixer.D",
    "blk.#.ssm_norm": "backbone.layers.#.mixer.norm",
    "blk.#.ssm_out": "backbone.layers.#.mixer.out_proj",
}


def _t5(is_gated: bool) -> dict[str, str]:
    """Layers of the encoder, whose parts have numbers, and of the decoder, where what reads the encoder is between."""
    found = {
        "token_embd": "shared",
        "output": "lm_head",
        "enc.output_norm": "encoder.final_layer_norm",
        "dec.output_norm": "decoder.final_layer_norm",
    }
    attention = {"q": "q", "k": "k", "v": "v", "o": "o", "rel_b": "relative_attention_bias"}
    parts = (
        ("enc", "attn", "encoder.block.#.layer.0", "SelfAttention"),
        ("dec", "attn", "decoder.block.#.layer.0", "SelfAttention"),
        ("dec", "cross_attn", "decoder.block.#.layer.1", "EncDecAttention"),
    )
    for side, kind, layer, name in parts:
        found[f"{side}.blk.#.{kind}_norm"] = f"{layer}.layer_norm"
        found |= {f"{side}.blk.#.{kind}_{own}": f"{layer}.{name}.{theirs}" for own, theirs in attention.items()}
    for side, layer in (("enc", "encoder.block.#.layer.1"), ("dec", "decoder.block.#.layer.2")):
        dense = f"{layer}.DenseReluDense"
        found[f"{side}.blk.#.ffn_norm"] = f"{layer}.layer_norm"
        found[f"{side}.blk.#.ffn_gate"] = f"{dense}.wi_0"
        found[f"{side}.blk.#.ffn_up"] = f"{dense}.{'wi_1' if is_gated else 'wi'}"
        found[f"{side}.blk.#.ffn_down"] = f"{dense}.wo"
    return found


@dataclass(frozen=True)
class _Form:
    """What files of an architecture are in Hugging Face's terms: the `model_type`, names of tensors, and `fields` that
    follow from the architecture alone."""

    model_type: str
    tensors: Mapping[str, str] = field(default_factory=lambda: _LLAMA)
    fields: Mapping[str, Any] = field(default_factory=dict)


_INTERLEAVED = {"rope_interleaved": True}
_FORMS: dict[str, _Form] = {
    "llama": _Form("llama", fields=_INTERLEAVED),
    "mistral": _Form("mistral", fields=_INTERLEAVED),
    "smollm3": _Form("smollm3", fields=_INTERLEAVED),
    "qwen2": _Form("qwen2"),
    "qwen3": _Form("qwen3"),
    "qwen2moe": _Form("qwen2_moe", _LLAMA | _EXPERTS),
    "qwen3moe": _Form("qwen3_moe", _LLAMA | _EXPERTS, {"norm_topk_prob": True}),
    "gemma": _Form("gemma", fields={"norms_plus_one": True}),
    "gemma2": _Form("gemma2", _LLAMA | _GEMMA, {"norms_plus_one": True}),
    "gemma3": _Form("gemma3_text", _LLAMA | _GEMMA, {"norms_plus_one": True}),
    "phi3": _Form("phi3", _LLAMA | {"blk.#.ffn_up": "model.layers.#.mlp.gate_up_proj"}),
    "stablelm": _Form(
        "stablelm",
        _LLAMA
        | {
            "blk.#.attn_q_norm": "model.layers.#.self_attn.q_layernorm.norms.*",
            "blk.#.attn_k_norm": "model.layers.#.self_attn.k_layernorm.norms.*",
        },
    ),
    "gpt2": _Form("gpt2", _GPT2, {"transposed_weights": False}),
    "gptneox": _Form("gpt_neox", _GPT_NEOX, {"heads_together": False}),
    "olmo": _Form("olmo", fields=_INTERLEAVED),
    "olmo2": _Form("olmo2", _LLAMA | _POST_NORMS),
    "granite": _Form("granite", fields=_INTERLEAVED),
    "mamba": _Form("mamba", _MAMBA, {"computed_decay": True}),
    "mamba2": _Form(
        "mamba2", _MAMBA | {"blk.#.ssm_dt.bias": "backbone.layers.#.mixer.dt_bias"}, {"computed_decay": True}
    ),
}
_MIXTRAL = _Form(
    "mixtral",
    _LLAMA
    | {
        "blk.#.ffn_gate_inp": "model.layers.#.block_sparse_moe.gate",
        "blk.#.ffn_gate_exps": "model.layers.#.block_sparse_moe.experts.*.w1",
        "blk.#.ffn_up_exps": "model.layers.#.block_sparse_moe.experts.*.w3",
        "blk.#.ffn_down_exps": "model.layers.#.block_sparse_moe.experts.*.w2",
    },
    _INTERLEAVED,
)


_LAYER = re.compile(r"((?:enc\.|dec\.)?)blk\.(\d+)\.")


def gguf_tensors(file: GgufFile) -> dict[str, StoredTensor]:
    """The tensors of a file by Hugging Face's names; those that have none keep their own."""
    names = _form(file).tensors
    found: dict[str, StoredTensor] = {}
    for name, tensor in file.tensors.items():
        stem, dot, end = name.rpartition(".")
        layer = _LAYER.match(name)
        number = layer[2] if layer else ""
        whole, known = (names.get(_LAYER.sub(r"\1blk.#.", part)) for part in (name, stem))
        new = f"{known.replace('#', number)}{dot}{end}" if known is not None else name
        new = new if whole is None else whole.replace("#", number)
        found |= {part.name: part for part in _apart(replace(tensor, name=new))}
    return found


def _apart(tensor: StoredTensor) -> list[StoredTensor]:
    """The parts of a tensor that holds those of all experts or heads along its first axis (`*` in its name): views."""
    if "*" not in tensor.name or len(tensor.shape) < 2 or not tensor.shape[0]:
        return [tensor]
    return [
        StoredTensor(tensor.name.replace("*", str(k)), tensor.shape[1:], tensor.kind, data)
        for k, data in enumerate(np.split(tensor.data, tensor.shape[0]))
    ]


def gguf_config(file: GgufFile, tensors: Mapping[str, StoredTensor]) -> Config:
    """The config of a file; errors name the keys of its metadata."""
    form, prefix = _form(file), _architecture(file)
    names = {field: f"{prefix}.{key}" for key, field in _FIELDS.items()}
    fields: dict[str, Any] = {
        own: _plain(file, f"{prefix}.{key}") for key, own in _FIELDS.items() if f"{prefix}.{key}" in file.metadata
    }
    fields = {"rope_theta": 10000.0} | fields | {**form.fields, "model_type": form.model_type}
    fields["vocab_size"] = _vocabulary(file, prefix)
    names["vocab_size"] = "tokenizer.ggml.tokens"
    head = "embed_out.weight" if form.model_type == "gpt_neox" else "lm_head.weight"
    fields["tie_word_embeddings"] = head not in tensors
    biased = {end: any(name.endswith(f"{end}.bias") for name in tensors) for end in _BIASED}
    fields |= {field: biased[end] for end, field in _BIASED.items()}
    fields["attention_bias"] |= fields.pop("query_key_value_bias")
    fields["use_qkv_bias"] = fields["attention_bias"]
    fields["qk_layernorm"] = any(".q_layernorm." in name for name in tensors)
    fields["rope_parameters"] = _rope(file, prefix, fields)
    for name, own in ROPE_FACTORS.items():
        if name in tensors:
            fields["rope_parameters"][own] = tensors[name].decoded().ravel().tolist()
    if "long_factor" in fields["rope_parameters"]:
        fields["rope_parameters"]["rope_type"] = "longrope"
    _add_windows(file, prefix, fields)
    return Config(fields, str(file.path), names)


_BIASED = {
    "self_attn.q_proj": "attention_bias",
    "query_key_value": "query_key_value_bias",
    "mlp.gate_proj": "mlp_bias",
}
"""Tensors whose biases say what a config says otherwise."""


def _add_windows(file: GgufFile, prefix: str, fields: dict[str, Any]) -> None:
    """Which layers have windows, and scales of scores, that files leave to the program."""
    sliding = file.metadata.get(f"{prefix}.attention.sliding_window_pattern")
    if isinstance(sliding, int) and not isinstance(sliding, bool):
        fields["sliding_window_pattern"] = sliding
    elif isinstance(sliding, np.ndarray):
        kinds = ("full_attention", "sliding_attention")
        fields["layer_types"] = [kinds[bool(slides)] for slides in sliding]
    size, heads, width = (fields.get(name) for name in ("head_dim", "num_attention_heads", "hidden_size"))
    largest = {"gemma2": 46, "gemma3": 62}.get(prefix)  # of 27 billion weights, whose scale is that of the whole width
    if size and largest is not None:
        fields["query_pre_attn_scalar"] = size
        if fields.get("num_hidden_layers") == largest and isinstance(width, int) and isinstance(heads, int) and heads:
            fields["query_pre_attn_scalar"] = width // heads


def _form(file: GgufFile) -> _Form:
    prefix = _architecture(file)
    if prefix == "llama" and _plain(file, "llama.expert_count"):
        return _MIXTRAL
    if prefix == "t5":  # files say by their tensors alone which of its kin it is
        is_gated, of_each = "enc.blk.0.ffn_gate.weight" in file.tensors, "dec.blk.1.attn_rel_b.weight" in file.tensors
        feeds = {"feed_forward_proj": "gated-gelu" if is_gated else "relu"}
        return _Form("umt5" if of_each else "t5", _t5(is_gated), feeds)
    return _FORMS.get(prefix) or _Form(prefix)


def _architecture(file: GgufFile) -> str:
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelError("'general.architecture' is missing", where=str(file.path), hint="it is no language model")
    return name


def _plain(file: GgufFile, key: str) -> Any:
    """A value of metadata, None where it is missing; of an array with a number for each layer that number, if all are
    the same."""
    value = file.metadata.get(key)
    if not isinstance(value, np.ndarray):
        return value
    if not value.size or (value != value[0]).any():
        raise UnsupportedError(
            f"'{shown(key)}' differs from layer to layer: {value.tolist()!s:.100}", where=str(file.path)
        )
    return value[0].item()


def _vocabulary(file: GgufFile, prefix: str) -> Any:
    count = _plain(file, f"{prefix}.vocab_size")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and hasattr(tokens, "__len__"):
        if count is not None and count != len(tokens):
            raise ModelError(
                f"'{prefix}.vocab_size' is {count!r:.40}, and 'tokenizer.ggml.tokens' has {len(tokens)} entries",
                where=str(file.path),
                hint="the file contradicts itself: fetch it again",
            )
        return len(tokens)
    return count


def _rope(file: GgufFile, prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of rotary positions."""
    found = dict[str, Any]()
    if "rope_theta" in fields:
        found["rope_theta"] = fields["rope_theta"]
    kind = _plain(file, f"{prefix}.rope.scaling.type")
    if kind is not None and kind != "none":
        found["rope_type"] = kind
    pairs = {
        "rope.scaling.factor": "factor",
        "rope.scaling.original_context_length": "original_max_position_embeddings",
        "rope.scaling.attn_factor": "attention_factor",
        "rope.scaling.yarn_beta_fast": "beta_fast",
        "rope.scaling.yarn_beta_slow": "beta_slow",
    }
    found |= {own: _plain(file, f"{prefix}.{key}") for key, own in pairs.items()}
    heads, width, size = (fields.get(name) for name in ("num_attention_heads", "hidden_size", "head_dim"))
    if size is None and isinstance(heads, int) and isinstance(width, int) and heads > 0:
        size = width // heads
    said = _plain(file, f"{prefix}.rope.dimension_count")
    turned = size if said is None else said
    if isinstance(turned, int) and isinstance(size, int) and size:
        turned = turned / size
    found["partial_rotary_factor"] = turned
    return found
