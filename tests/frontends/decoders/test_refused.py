"""Checkpoints that are incomplete, contradictory or of unknown kinds: each error names the file and the field."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontends.decoders import encoded
from tests.frontends.decoders.checkpoints import cases, tensor, write_folder, write_safetensors
from tilewright.frontends.decoders.config import MAX_COUNT
from tilewright.frontends.decoders.load import load_decoder
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.runtime.errors import InputError, OptionError

CASES = cases() | encoded.cases()
Change = Callable[[dict[str, Any], dict[str, Any]], object]


def folder(path: Path, name: str = "llama", change: Change = lambda config, tensors: None) -> Path:
    case = copy.deepcopy(CASES[name])
    change(case["config"], case["tensors"])
    return write_folder(path / "model", case["config"], case["tensors"])


def field(name: str, value: Any) -> Change:
    return lambda config, tensors: config.update({name: value})


def without(name: str) -> Change:
    return lambda config, tensors: config.pop(name)


WRONG: dict[str, tuple[str, Change, str]] = {
    "unknown": ("llama", field("model_type", "lama"), "the architecture 'lama' is not supported"),
    "no type": ("llama", without("model_type"), "'model_type' is missing"),
    "no width": ("llama", without("hidden_size"), "'hidden_size' is missing"),
    "no context": ("llama", without("max_position_embeddings"), "'max_position_embeddings' is missing"),
    "null": ("llama", field("intermediate_size", None), "'intermediate_size' is missing"),
    "text": ("llama", field("hidden_size", "32"), "'hidden_size' is '32', and must be a whole number"),
    "no layers": ("llama", field("num_hidden_layers", 0), "'num_hidden_layers' is 0, and must be a whole number"),
    "huge": ("llama", field("num_hidden_layers", 1 << 40), "'num_hidden_layers' is 1099511627776"),
    "many": ("llama", field("num_hidden_layers", 999), "'num_hidden_layers' is 999, and there are 21 tensors"),
    "wide": ("llama", field("head_dim", 1 << 20), "'head_dim' is 1048576"),
    "heads": ("llama", field("num_key_value_heads", 3), "'num_attention_heads' 4 cannot share 'num_key_value_heads' 3"),
    "width": ("phi3", field("num_attention_heads", 6), "'hidden_size' 32 is no multiple of 'num_attention_heads' 6"),
    "epsilon": ("llama", field("rms_norm_eps", 0), "'rms_norm_eps' is 0, and must be a number above 0"),
    "nan": ("llama", field("rms_norm_eps", float("nan")), "'rms_norm_eps' is nan, and must be a finite number"),
    "beyond floats": ("llama", field("rms_norm_eps", 10**400), "'rms_norm_eps' is 1000.*must be a finite number"),
    "taps": ("mamba", field("conv_kernel", MAX_COUNT), "'conv_kernel' is 2147483647, .* from 1 to 256"),
    "channels": ("mamba", field("expand", 1e308), r"'expand' is 1e\+308, and must be a number that makes"),
    "no channels": ("mamba", field("expand", 0.001), "'expand' is 0.001, and must be a number that makes"),
    "paces": ("mamba2", field("time_step_limit", [0, 10**400]), "'time_step_limit' is .* must be two numbers"),
    "angles": ("marian", field("d_model", 1 << 30), "'d_model' is 1073741824"),
    "flag": ("llama", field("attention_bias", 1), "'attention_bias' is 1, and must be true or false"),
    "activation": ("llama", field("hidden_act", "tanhh"), "the activation 'tanhh' is not supported"),
    "alias": ("gpt2", field("n_head", 0), "'n_head' is 0"),
    "window": ("gemma3", without("sliding_window"), "'sliding_window' is missing"),
    "layers": ("gemma3", field("layer_types", ["full_attention"]), "'layer_types' is .* must be a list of 6 entries"),
    "places": ("qwen2_moe", field("mlp_only_layers", "0"), "'mlp_only_layers' is '0', and must be a list of whole"),
    "far places": ("qwen2_moe", field("mlp_only_layers", [9]), "must be a list of whole numbers below 2"),
    "no decoder": ("gemma3", field("use_bidirectional_attention", True), "whose tokens see those behind them"),
    "kind of layer": ("qwen3", field("layer_types", ["linear", "linear"]), "'layer_types' has 'linear'"),
    "rope": ("llama", field("rope_parameters", {"rope_type": "dynamic"}), "positions of the kind 'dynamic' are not"),
    "rope's field": ("llama", field("rope_parameters", {"rope_type": "llama3"}), "'factor' is missing"),
    "rope's order": (
        "llama",
        field(
            "rope_parameters",
            {
                "rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                "original_max_position_embeddings": 8,
            },
        ),
        "'high_freq_factor' 4 is not above 'low_freq_factor' 4",
    ),
    "rope's list": (
        "phi3, long",
        lambda config, tensors: config["rope_parameters"].update(long_factor=[1.0]),
        "'long_factor' is .* must be a list of 4 entries",
    ),
    "rope's part": (
        "phi3",
        field("rope_parameters", {"partial_rotary_factor": 0.1}),
        "'partial_rotary_factor': 0.1 of the 8 elements of a head cannot be rotated in pairs",
    ),
    "rope is text": ("llama", field("rope_parameters", "default"), "'rope_parameters' is 'default', and must be an"),
    "experts": ("mixtral", field("num_experts_per_tok", 9), "'num_experts_per_tok' is 9, and there are 3 experts"),
    "vocabulary": ("llama", field("vocab_size", 60), r"embed_tokens.weight is \[61, 32\], and must be \[60, 32\]"),
    "packed": ("llama", field("quantization_config", {"quant_method": "bitsandbytes"}), "method 'bitsandbytes'"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_config_is_told_with_its_file_and_field(tmp_path: Path, what: str) -> None:
    name, change, said = WRONG[what]
    path = folder(tmp_path, name, change)
    with pytest.raises((ModelError, UnsupportedError), match=said) as caught:
        load_decoder(path)
    assert str(path) in str(caught.value) or "quantization_config" in str(caught.value)


JUNK: tuple[Any, ...] = (
    None, 0, -1, 1, 3, 1 << 14, 1 << 30, MAX_COUNT, 1 << 60, 10**400, 0.5, 1e308, float("nan"), True, False, "", "relu",
    [], [1], [0, 10**400], {}, {"a": 1},
)  # fmt: skip


@pytest.mark.fresh_seeds(2)
def test_any_field_may_be_anything(tmp_path: Path, fresh_seed: int) -> None:
    """Loading ends soon, with a model or an error of the package."""
    rng = np.random.default_rng(fresh_seed)
    names = list(CASES)
    for _ in range(20):
        case = copy.deepcopy(CASES[names[rng.integers(len(names))]])
        config = case["config"]
        for name in rng.choice(list(config), rng.integers(1, 4)):
            config[str(name)] = JUNK[rng.integers(len(JUNK))]
        path = write_folder(tmp_path, config, case["tensors"])
        with contextlib.suppress(ModelError, UnsupportedError, OptionError, tilewright.TypeRuleError):
            load_decoder(path)


def test_the_nearest_architectures_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"the nearest that are known: .*qwen3.*; all: bart, .*gemma, gemma2"):
        load_decoder(folder(tmp_path, "llama", field("model_type", "qwen3.5")))


def test_all_tensors_that_do_not_fit_are_named_at_once(tmp_path: Path) -> None:
    def change(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        del tensors["model.norm.weight"], tensors["model.layers.1.self_attn.k_proj.weight"]
        tensors["model.layers.0.mlp.up_proj.weight"] = [32, 40]
        tensors["model.layers.0.mlp.up_proj.bias"] = [40]

    path = folder(tmp_path, "llama", change)
    with pytest.raises(ModelError) as caught:
        load_decoder(path)
    text = str(caught.value)
    assert r"missing: model.layers.1.self_attn.k_proj.weight [16, 32], model.norm.weight [32]" in text
    assert "of another shape: model.layers.0.mlp.up_proj.weight is [32, 40], and must be [40, 32]" in text
    assert "not of this architecture: model.layers.0.mlp.up_proj.bias" in text
    assert str(path) in text


def test_tensors_without_a_meaning_may_be_there(tmp_path: Path) -> None:
    def change(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = [4]
        config["tie_word_embeddings"] = True  # the head is there a second time

    load_decoder(folder(tmp_path, "llama", change))


def test_files_that_are_missing_or_no_json(tmp_path: Path) -> None:
    path = folder(tmp_path)
    for text, said in ((b"{", "the file is no JSON"), (b"[]", "no object of JSON"), (b"\xff", "no JSON")):
        (path / "config.json").write_bytes(text)
        with pytest.raises(ModelError, match=said):
            load_decoder(path)
    (path / "config.json").unlink()
    with pytest.raises(ModelError, match=r"a folder of transformers without config\.json\n"):
        tilewright.compile(path)
    (path / "model.safetensors").rename(path / "tokenizer.json")
    with pytest.raises(ModelError, match=r"without config\.json and without weights as \.safetensors"):
        tilewright.compile(path)
    (path / "tokenizer.json").rename(path / "model.gguf")
    with pytest.raises(ModelError, match=r"a folder, which holds model\.gguf"):
        tilewright.compile(path)


def sharded(path: Path) -> Path:
    """The same model in two files and an index."""
    whole = CASES["llama"]["tensors"]
    halves = [dict(list(whole.items())[k::2]) for k in range(2)]
    names = [f"model-0000{k + 1}-of-00002.safetensors" for k in range(2)]
    folder(path)
    (path / "model" / "model.safetensors").unlink()
    for name, half in zip(names, halves, strict=True):
        write_safetensors(path / "model" / name, {n: tensor(n, shape) for n, shape in half.items()})
    places = {n: name for name, half in zip(names, halves, strict=True) for n in half}
    (path / "model" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return path / "model"


def test_shards_are_one_model(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    load_decoder(path)
    load_decoder(path / "config.json")
    (path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00001-of-00002\.safetensors"):
        load_decoder(path)


def test_options_that_are_not_possible(tmp_path: Path) -> None:
    path = folder(tmp_path)
    for wrong in ({"capacity": 0}, {"capacity": True}, {"capacity": 1 << 40}, {"logits": "first"}, {"weights": "int3"}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))}="):
            DecoderSource(path, **wrong)
    names: list[tuple[Any, str]] = [
        ([1], r"importance=\[1\] is not allowed"), ({3: np.ones(3, np.float32)}, "dict of names to arrays"),
        ({"a": [1.0]}, "importance= of 'a'"), ({"a": np.ones((2, 2))}, "importance= of 'a'"),
        ({"a": np.array([1.0, np.nan])}, "finite numbers from 0 on"), ({"a": np.array([-1.0])}, "from 0 on"),
        ({"a": np.array([1e300])}, "finite"), ({"a": np.array(["x"])}, "importance= of 'a'"),
    ]  # fmt: skip
    for given, said in names:
        with pytest.raises(OptionError, match=said):
            DecoderSource(path, weights="int4", importance=given)
    ones = np.ones(3, np.float32)
    with pytest.raises(OptionError, match="importance= has names that no tensor has: a"):
        load_decoder(DecoderSource(path, weights="int4", importance={"a": ones}))
    given = {"model.layers.0.mlp.up_proj.weight": ones}
    with pytest.raises(OptionError, match=r"up_proj.weight' has 3 numbers, and the tensor is \[40, 32\]"):
        load_decoder(DecoderSource(path, weights="int4", importance=given))
    with pytest.raises(OptionError, match="path=3"):
        DecoderSource(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="constants= were given for a language model"):
        tilewright.compile(path, constants={"ids": np.zeros((1, 1), np.int64)})
    with pytest.raises(OptionError, match="more than the 64 positions"):
        load_decoder(DecoderSource(folder(tmp_path, "gpt2"), capacity=65))


def test_calls_that_do_not_fit(tmp_path: Path) -> None:
    model = tilewright.compile(DecoderSource(folder(tmp_path), capacity=4), cache=False, threads=1)
    model(np.array([[1, 2, 3]]))
    with pytest.raises(InputError, match="the cache has 4 positions"):
        model(np.array([[1, 2]]))
    (logits,) = model(np.array([[1]]))
    assert logits.shape == (1, 61) and model.state("past") == 4
    with pytest.raises(InputError, match="the cache has 4 positions"):
        model(np.array([[1]]))
    model.reset()
    with pytest.raises(InputError):
        model(np.zeros((1, 0), np.int64))
    for token in (61, -62):
        with pytest.raises(tilewright.ExecutionError, match="out of range"):
            model(np.array([[token]]))
    model.reset()
    model(np.array([[1, 2]]))
    for token in (61, -62):
        with pytest.raises(tilewright.ExecutionError, match="out of range"):
            model(np.array([[token]]))
        assert model.state("past") == 2, "nothing is lost"
    model(np.array([[3]]))
