"""Encoder-decoders compute what transformers computed with them in float64; what is read is encoded once."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontends.decoders.checkpoints import SHOWN, tensor, write_folder
from tests.frontends.decoders.converted import t5_gguf
from tests.frontends.decoders.encoded import IDS, READ, cases, read
from tilewright.frontends.decoders.architectures.registry import ARCHITECTURES
from tilewright.frontends.decoders.load import load_decoder
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.ir.core import Module
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops.define.interp import evaluate_func
from tilewright.runtime.errors import InputError, OptionError

CASES = cases()
PIECES = (3, 1, 1, 2)


def parts(pieces: tuple[int, ...]) -> list[np.ndarray]:
    return np.split(np.array([IDS]), np.cumsum(pieces)[:-1], axis=1)


def stepped(module: Module, given: np.ndarray, pieces: tuple[int, ...]) -> np.ndarray:
    """The logits of all positions by the graph itself, what it keeps handed on."""
    kept = [np.zeros([d.value for d in arg.tensor.shape], arg.tensor.dtype.storage) for arg in module.main.args[2:]]
    found = []
    for ids in parts(pieces):
        logits, *kept = evaluate_func(module.main, module, [ids, given, *kept])
        given = given[..., :0]
        found.append(logits)
    return np.concatenate(found, axis=1)[0]


def check(found: np.ndarray, case: Any) -> None:
    wanted = np.array(case["logits"])
    assert found[:, ::SHOWN].shape == wanted.shape
    assert np.abs(found[:, ::SHOWN] - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("name", CASES)
def test_graphs_compute_what_transformers_computes(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    write_folder(tmp_path, case["config"], case["tensors"])
    module = load_decoder(DecoderSource(tmp_path, logits="all", capacity=16))
    for pieces in ((len(IDS),), PIECES):
        check(stepped(module, read(case["config"]), pieces), case)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.sweep(1)) for name in CASES])
def test_compiled_models_do(tmp_path: Path, name: str, by_night: bool) -> None:
    case = CASES[name]
    write_folder(tmp_path, case["config"], case["tensors"])
    source = DecoderSource(tmp_path, logits="all", capacity=16)
    model = tilewright.compile(source, cache=False, threads=1, verify=by_night)
    for pieces in ((len(IDS),), PIECES, (1,) * len(IDS)):
        given, rows = read(case["config"]), []
        for ids in parts(pieces):
            rows.append(model(ids, given)[0])
            given = given[..., :0]
        check(np.concatenate(rows, axis=1)[0], case)
        model.reset()
    grown = {state.info.name.split(".")[0]: state.counter for state in model.states if state.counter}
    assert grown == {"keys": "past", "values": "past", "cross_keys": "encoded", "cross_values": "encoded"}


def test_all_architectures_with_an_encoder_are_recorded() -> None:
    found = {name for name, architecture in ARCHITECTURES.items() if architecture.encoder is not None}
    assert {case["config"]["model_type"] for case in CASES.values()} == found


def test_older_configs_of_t5_say_by_its_ties_whether_outputs_are_scaled(tmp_path: Path) -> None:
    for name, tied in (("t5", None), ("t5", True), ("t5, gated, with a head", False)):
        case = CASES[name]
        config = {field: value for field, value in case["config"].items() if field != "scale_decoder_outputs"}
        config["tie_word_embeddings"] = tied
        write_folder(tmp_path, config, case["tensors"])
        check(stepped(load_decoder(DecoderSource(tmp_path, logits="all")), read(config), (len(IDS),)), case)


@pytest.mark.parametrize("name", ["t5", "t5, gated, with a head", "t5, more layers in the decoder", "umt5"])
def test_gguf_files_are_the_same_models(tmp_path: Path, name: str) -> None:
    """But for what they do not say: how far distances are told apart, and that tied outputs are not scaled."""
    case = CASES[name]
    tensors = {key: shape for key, shape in case["tensors"].items() if "embed_tokens" not in key}
    config = {key: value for key, value in case["config"].items() if key != "relative_attention_max_distance"}
    config["scale_decoder_outputs"] = "lm_head.weight" not in tensors
    write_folder(tmp_path, config, tensors)
    file = t5_gguf(config, tensors).key("tokenizer.ggml.tokens", "[str]", [f"<{k}>" for k in range(61)])
    found = [
        stepped(load_decoder(DecoderSource(path, logits="all", capacity=16)), read(config), PIECES)
        for path in (tmp_path, file.write(tmp_path / "m.gguf"))
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("t5", "shared.weight", "encoder.embed_tokens.weight"),
        ("bart", "model.shared.weight", "model.decoder.embed_tokens.weight"),
        ("bart", "model.shared.weight", "lm_head.weight"),
    ],
)
def test_a_shared_embedding_is_found_under_any_of_its_names(tmp_path: Path, name: str, old: str, new: str) -> None:
    """Files have tensors that are shared once, under one of the names."""
    case = CASES[name]
    write_folder(tmp_path, case["config"], case["tensors"])
    whole = stepped(load_decoder(DecoderSource(tmp_path, logits="all")), read(case["config"]), (len(IDS),))
    shapes = {named: shape for named, shape in case["tensors"].items() if named != old}
    write_folder(tmp_path, case["config"], shapes, {new: tensor(old, case["tensors"][old])})
    found = stepped(load_decoder(DecoderSource(tmp_path, logits="all")), read(case["config"]), (len(IDS),))
    np.testing.assert_array_equal(found, whole)


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "buckets": ("t5", {"relative_attention_num_buckets": 3}, "'relative_attention_num_buckets' is 3, and must be"),
    "distance": ("t5", {"relative_attention_max_distance": 4}, "'relative_attention_max_distance' is 4, and the 4"),
    "activation": ("t5", {"feed_forward_proj": "gated-elu"}, "the activation 'gated-elu' is not supported"),
    "gate": ("t5", {"feed_forward_proj": "gate-relu"}, "the activation 'gate-relu' is not supported"),
    "gated, and is not": ("t5", {"feed_forward_proj": "gated-relu"}, r"missing: .*wi_0.weight \[40, 32\]"),
    "layers": ("t5", {"num_decoder_layers": 99}, "'num_decoder_layers' is 99, and there are 47 tensors"),
    "aliases": ("t5", {"d_kv": 0}, "'d_kv' is 0, and must be"),
    "fewer layers": ("bart", {"decoder_layers": 1}, "not of this architecture: model.decoder.layers.1"),
    "heads": ("bart", {"decoder_attention_heads": 3}, "'d_model' 32 is no multiple of 'decoder_attention_heads' 3"),
    "inner": ("bart", {"encoder_ffn_dim": None}, "'encoder_ffn_dim' is missing"),
    "positions": ("bart", {"max_position_embeddings": 31}, r"embed_positions.weight is \[34, 32\], and must be \[33,"),
    "mels": ("whisper", {"num_mel_bins": 13}, r"conv1.weight is \[32, 12, 3\], and must be \[32, 13, 3\]"),
    "frames": ("whisper", {"max_source_positions": 21}, r"embed_positions.weight is \[20, 32\], and must be \[21, 32"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_config_is_told_with_its_file_and_field(tmp_path: Path, what: str) -> None:
    name, changed, said = WRONG[what]
    case = CASES[name]
    write_folder(tmp_path, case["config"] | changed, case["tensors"])
    with pytest.raises((ModelError, UnsupportedError), match=said) as caught:
        load_decoder(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["bart", "whisper"])
def test_a_capacity_beyond_learned_positions_is_refused(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    write_folder(tmp_path, case["config"], case["tensors"])
    with pytest.raises(OptionError, match="capacity=33 is more than the 32 positions"):
        load_decoder(DecoderSource(tmp_path, capacity=33))


JUNK: tuple[Any, ...] = (None, 0, -1, 1, 3, 1 << 31, 0.5, float("nan"), True, False, "", "relu", [], {}, {"a": 1})


@pytest.mark.fresh_seeds(2)
def test_any_field_may_be_anything(tmp_path: Path, fresh_seed: int) -> None:
    """Loading ends soon, with a model or an error of the package."""
    rng = np.random.default_rng(fresh_seed)
    for _ in range(10):
        case = CASES[str(rng.choice(list(CASES)))]
        config = dict(case["config"])
        for name in rng.choice(list(config), rng.integers(1, 4)):
            config[str(name)] = JUNK[rng.integers(len(JUNK))]
        write_folder(tmp_path, config, case["tensors"])
        with contextlib.suppress(ModelError, UnsupportedError, OptionError, tilewright.TypeRuleError):
            load_decoder(tmp_path)


def test_what_is_read_is_encoded_once(tmp_path: Path) -> None:
    """Nothing, too much and a second text are refused, and nothing has changed then."""
    case = CASES["bart"]
    write_folder(tmp_path, case["config"], case["tensors"])
    model = tilewright.compile(DecoderSource(tmp_path), cache=False, threads=1)
    nothing, ids = np.zeros((1, 0), np.int64), np.array([IDS])
    with pytest.raises(InputError, match="'encoder_ids' is read once, in the first call"):
        model(ids, nothing)
    with pytest.raises(InputError, match="the encoder has 32 positions, and 'encoder_ids' must fit"):
        model(ids, np.array([[*READ, *READ, *READ]]))
    (first,) = model(ids, np.array([READ]))
    with pytest.raises(InputError, match="'encoder_ids' is read once"):
        model(ids, np.array([READ]))
    assert model.state("past") == len(IDS) and model.state("encoded") == len(READ)
    model(ids, nothing)
    model.reset()
    np.testing.assert_array_equal(model(ids, np.array([READ]))[0], first)
