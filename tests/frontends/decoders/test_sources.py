"""What is given as a language model: GGUF files and folders, with fewer bits, and as any command takes it."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tests.frontends.decoders.checkpoints import IDS, cases, tensor, write_folder
from tests.frontends.decoders.converted import write_gguf
from tests.frontends.decoders.test_architectures import check, stepped
from tests.frontends.weights.gguf_files import Gguf
from tests.frontends.weights.test_packed import Layer
from tilewright import DecoderSource
from tilewright.cli.app import commands
from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.decoders.config import Config
from tilewright.frontends.decoders.load import load_decoder
from tilewright.frontends.decoders.rotary import Rotary
from tilewright.frontends.weights.encode import encoded
from tilewright.frontends.weights.forms import WeightForm
from tilewright.ir.core import Block, Builder, Func, Module
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops import elementwise as ew
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.source import iota
from tilewright.runtime.errors import OptionError
from tilewright.viewer.hierarchy import path_of
from tilewright.viewer.nodes import SourceNodes

CASES = cases()
GGUF = {
    "llama": "llama", "llama with biases, tied": "llama", "llama, linear": "llama", "llama, yarn": "llama",
    "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma": "gemma", "gemma3": "gemma3", "phi3": "phi3",
    "phi3, long": "phi3", "smollm3": "smollm3", "stablelm": "stablelm", "stablelm 2": "stablelm", "gpt2": "gpt2",
    "gpt_neox": "gptneox", "gpt_neox, one after the other": "gptneox", "olmo": "olmo", "olmo2": "olmo2",
    "granite": "granite", "mixtral": "llama", "mamba": "mamba", "falcon_mamba": "mamba", "mamba2": "mamba2",
}  # fmt: skip


@pytest.mark.parametrize("name", GGUF)
def test_gguf_files_are_the_same_models(tmp_path: Path, name: str) -> None:
    path = write_gguf(tmp_path / "model.gguf", CASES[name], GGUF[name])
    module = load_decoder(DecoderSource(path, logits="all", capacity=16))
    check(stepped(module, (4, 1, 6)), CASES[name])


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "qwen2_moe with windows", "mamba2"])
def test_nodes_stand_in_layers_and_read_what_is_before_them(tmp_path: Path, name: str) -> None:
    """Profiles and pages show them by their names."""
    folder = write_folder(tmp_path, CASES[name]["config"], CASES[name]["tensors"])
    nodes = SourceNodes(load_decoder(DecoderSource(folder, capacity=16)))
    assert all(read < k for k, placed in enumerate(nodes.placed()) for read in placed.reads)
    views = nodes.views([0] * len(nodes.placed()), {}, {})
    layers = {path[:2] for path in map(path_of, (view.name for view in views)) if len(path) > 1}
    prefix, each = {"gpt2": ("transformer", "h"), "mamba2": ("backbone", "layers")}.get(name, ("model", "layers"))
    assert layers == {(prefix, f"{each}.{k}") for k in range(2)}
    if name == "llama":
        linear = [view.name for view in views if view.operator == "Linear" and "layers.1" in view.name]
        assert linear == [f"model/layers.1/{n}_proj" for n in ("self_attn/q", "self_attn/k", "self_attn/v",
                          "self_attn/o", "mlp/gate", "mlp/up", "mlp/down")]  # fmt: skip


UNSAID: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "mistral": {"sliding_window": None},
    "qwen2_moe": {"mlp_only_layers": []},
}
"""What of recorded cases GGUF files cannot say, and what programs take for granted instead."""


@pytest.mark.parametrize("name", UNSAID)
def test_gguf_files_are_the_same_models_as_folders(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    config = case["config"] | UNSAID[name]
    tensors = {key: shape for key, shape in case["tensors"].items() if name != "qwen2_moe" or ".0.mlp." not in key}
    if name == "qwen2_moe":  # whose first layer has no experts in the recorded case
        tensors |= {key.replace(".1.mlp.", ".0.mlp."): shape for key, shape in tensors.items() if ".1.mlp." in key}
    write_folder(tmp_path, config, tensors)
    kind = {"mistral": "llama", "qwen2_moe": "qwen2moe"}.get(name, name)
    path = write_gguf(tmp_path / "model.gguf", {"config": config, "tensors": tensors}, kind)
    found = [stepped(load_decoder(DecoderSource(p, logits="all", capacity=16)), (4, 1, 6)) for p in (tmp_path, path)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_errors_of_gguf_files_name_their_keys(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    file = Gguf().key("general.architecture", "str", "llama").key("llama.block_count", "u32", 0)
    file.write(path)
    with pytest.raises(ModelError, match=r"'llama.context_length' is missing.*\n.*model.gguf"):
        load_decoder(path)
    file.key("llama.context_length", "u32", 8).write(path)
    with pytest.raises(ModelError, match=r"'tokenizer.ggml.tokens' is missing"):
        load_decoder(path)
    file.key("tokenizer.ggml.tokens", "[str]", ["a", "b"]).key("llama.vocab_size", "u32", 3).write(path)
    with pytest.raises(ModelError, match=r"'llama.vocab_size' is 3, and 'tokenizer.ggml.tokens' has 2 entries"):
        load_decoder(path)
    Gguf().write(path)
    with pytest.raises(ModelError, match=r"'general.architecture' is missing"):
        load_decoder(path)
    Gguf().key("general.architecture", "str", "bert").write(path)
    with pytest.raises(UnsupportedError, match="the architecture 'bert' is not supported"):
        load_decoder(path)
    file.key("llama.feed_forward_length", "[u32]", [3, 4]).write(path)
    with pytest.raises(UnsupportedError, match=r"'llama.feed_forward_length' differs from layer to layer"):
        load_decoder(path)


@pytest.mark.parametrize("key", ["vocab_size", "expert_count", "rope.scaling.type", "rope.dimension_count"])
@pytest.mark.parametrize("values", [[], [3, 4]])
def test_lists_in_place_of_single_values_are_told(tmp_path: Path, key: str, values: list[int]) -> None:
    path = tmp_path / "model.gguf"
    file = Gguf().key("general.architecture", "str", "llama").key("tokenizer.ggml.tokens", "[str]", ["a", "b"])
    file.key(f"llama.{key}", "[u32]", values).write(path)
    with pytest.raises(UnsupportedError, match=f"'llama.{key}' differs from layer to layer"):
        load_decoder(path)


def folder(path: Path, name: str = "llama") -> Path:
    return write_folder(path / name, CASES[name]["config"], CASES[name]["tensors"])


def test_logits_are_those_of_the_last_position_unless_all_are_wanted(tmp_path: Path) -> None:
    path = folder(tmp_path)
    last, every = (tilewright.compile(DecoderSource(path, logits=x), cache=False, threads=1) for x in ("last", "all"))
    assert last.outputs[0].shape == (1, 61)
    ids = np.array([IDS])
    np.testing.assert_allclose(last(ids)[0], every(ids)[0][:, -1], rtol=1e-5, atol=1e-6)


def test_a_path_is_enough_and_the_cache_knows_it_again(tmp_path: Path) -> None:
    path, session = folder(tmp_path), tilewright.Session(tmp_path / "cache")
    model = tilewright.compile(str(path), session=session, threads=1)
    assert model.state("keys.0").shape == (1, 2, 64, 8)  # the context that the config has
    assert {state.way for state in model.states if state.info.name != "past"} == {"in place"}
    of_config = tilewright.compile(path / "config.json", session=session, threads=1)
    ids = np.array([IDS])
    np.testing.assert_array_equal(model(ids)[0], of_config(ids)[0])
    end = DecoderFrontEnd()

    def digest(source: object) -> bytes:
        return end.digest(source, lambda path, find: find(path))

    sources = (path, DecoderSource(path), DecoderSource(path, 8), DecoderSource(path, 8, "all"))
    known = [digest(source) for source in sources]
    assert known[0] == known[1] and len({*known}) == 3
    assert digest(DecoderSource(path, weights="int8")) not in known
    os.truncate(path / "model.safetensors", 1000)
    assert digest(path) != known[0]


def test_who_wants_to_hand_caches_on_names_no_states(tmp_path: Path) -> None:
    path = DecoderSource(folder(tmp_path), capacity=8)
    model = tilewright.compile(path, states={"past": "next.past"}, cache=False, threads=1)
    assert [info.name for info in model.inputs][:2] == ["ids", "keys.0"]
    nodes = [call.nodes for call in model.artifact.summary().calls]
    assert all(nodes) and not any("llama" in name for each in nodes for name in each)  # which is no part of the model
    assert any("rotary_emb" in each for each in nodes)


@pytest.mark.parametrize(
    "weights", ["float32", "float16", "bfloat16", "int8", "int4", "int8:row", "int4:64", "int4:min", "int4:row:min"]
)
def test_weights_of_fewer_bits(tmp_path: Path, weights: str) -> None:
    """As if the file had had what they stand for, in float32: matrices alone, and of the vocabulary 8 bits at least."""
    path, case = folder(tmp_path), CASES["llama"]
    wanted = {}
    for name, shape in case["tensors"].items():
        array = tensor(name, shape)
        form = WeightForm.of(weights)
        kind = "int8" if form.type == "int4" and shape[0] == 61 else form.type
        wanted[name] = encoded(array, kind, form.group, form.minimum).decoded() if array.ndim == 2 else array
    write_folder(tmp_path / "rounded", case["config"], case["tensors"], wanted)
    module = load_decoder(DecoderSource(path, capacity=16, logits="all", weights=weights))
    again = load_decoder(DecoderSource(tmp_path / "rounded", capacity=16, logits="all"))
    np.testing.assert_allclose(stepped(module, (11,)), stepped(again, (11,)), rtol=1e-4, atol=1e-4)
    kinds = {np.dtype(array.dtype).name for array in module.constants.values()}
    assert kinds & {"float16", "bfloat16", "int8", "int4"} == {
        "float32": set(), "float16": {"float16"}, "bfloat16": {"bfloat16"}, "int8": {"int8", "float16"},
        "int8:row": {"int8", "float16"}, "int4": {"int8", "int4", "float16"}, "int4:64": {"int8", "int4", "float16"},
    }.get(weights, {"float16"})  # fmt: skip


def test_weights_of_forms_by_names(tmp_path: Path) -> None:
    """The first pattern that fits a name counts; what none fits stays."""
    path, case = folder(tmp_path), CASES["llama"]
    forms = {"*.down_proj.weight": "int8", "model.layers.1.*": "bfloat16", "*.mlp.*": "int4:64"}
    wanted = {}
    for name, shape in case["tensors"].items():
        array = tensor(name, shape)
        form = next((form for pattern, form in forms.items() if fnmatchcase(name, pattern)), None)
        if array.ndim == 2 and form is not None:
            kind, _, group = form.partition(":")
            array = encoded(array, kind, int(group or 32)).decoded()
        wanted[name] = array
    write_folder(tmp_path / "rounded", case["config"], case["tensors"], wanted)
    source = DecoderSource(path, capacity=16, logits="all", weights=forms)
    assert source.weights == tuple(forms.items()) and hash(source)
    again = load_decoder(DecoderSource(tmp_path / "rounded", capacity=16, logits="all"))
    np.testing.assert_allclose(stepped(load_decoder(source), (11,)), stepped(again, (11,)), rtol=1e-4, atol=1e-4)
    with pytest.raises(OptionError, match=r"patterns that no tensor has: \*\.nothing(.*\n)+.*names are such as"):
        load_decoder(DecoderSource(path, weights={"*.nothing": "int8"}))


@pytest.mark.parametrize(
    ("weights", "form"),
    [("int4", WeightForm("int4")), ("int4:32", WeightForm("int4")), ("int8:row", WeightForm("int8", 0)),
     ("int4:128:min", WeightForm("int4", 128, True)), ("int4:min", WeightForm("int4", 32, True)),
     ("bfloat16", WeightForm("bfloat16"))],
)  # fmt: skip
def test_texts_of_forms(weights: str, form: WeightForm) -> None:
    assert WeightForm.of(weights) == form == WeightForm.of(str(form))


@pytest.mark.parametrize("weights", ["int5", "int4:48", "float32:32", "int4:min:32", "", 4, {"*": "int5"}, {1: "int4"}])
def test_forms_that_there_are_not(weights: Any) -> None:
    with pytest.raises(OptionError, match=r"weights=.* is not allowed(.*\n)*.*int4"):
        DecoderSource("model.gguf", weights=weights)


def test_weights_of_fewer_bits_stay_as_they_are(tmp_path: Path) -> None:
    path, case = folder(tmp_path), CASES["llama"]
    narrow = {n: tensor(n, shape).astype(np.float16) for n, shape in case["tensors"].items()}
    write_folder(path, case["config"], case["tensors"], narrow)
    stored = {weights: load_decoder(DecoderSource(path, weights=weights)) for weights in (None, "float16", "float32")}
    kinds = {weights: {c.dtype.name for c in module.constants.values()} for weights, module in stored.items()}
    assert kinds[None] == kinds["float16"] == {"float16", "float64"}  # angles are float64
    assert kinds["float32"] == {"float16", "float32", "float64"}  # norms are no matrices


def test_angles_are_right_at_large_positions() -> None:
    rotary = Rotary.of(Config({"rope_theta": 10000.0}, "here"), 8, 1 << 20)
    module, block = Module(), Block()
    with Builder(block, module) as builder:
        turn = rotary.at(ew.add(iota(shape=(3,), axis=0), 1_000_000))
        builder.emit("return", [turn.cos, turn.sin])
    cos, sin = evaluate_func(module.add(Func("main", block, "graph", {})), module, [])
    angles = np.arange(1_000_000, 1_000_003)[:, None] * 10000.0 ** (-np.arange(4) / 4)
    for found, wanted in ((cos, np.cos(angles)), (sin, np.sin(angles))):
        assert np.abs(found - np.concatenate([wanted, wanted], 1)).max() < 1e-6


def test_commands_take_them(tmp_path: Path) -> None:
    path = folder(tmp_path)
    for command in (["check", str(path)], ["show", str(path), "--level", "graph"], ["explain", str(path)]):
        result = CliRunner().invoke(commands, command)
        assert result.exit_code == 0, result.output
        assert "keys.1" in result.output or command[0] != "show"


def test_the_part_for_texts_of_models_that_see_pictures(tmp_path: Path) -> None:
    case = CASES["gemma3"]
    config = {"model_type": "gemma3", "text_config": case["config"], "vision_config": {}}
    for before, others in (("language_model.", "vision_tower.x"), ("model.language_model.", "model.vision_tower.x")):
        own = {name: tensor(name, shape) for name, shape in case["tensors"].items()}
        named = {
            before + name if before == "language_model." else name.replace("model.", before, 1): array
            for name, array in own.items()
        }
        write_folder(tmp_path, config, {}, {**named, others: np.zeros(3, np.float32)})
        check(stepped(load_decoder(DecoderSource(tmp_path, capacity=16, logits="all")), (11,)), case)


def test_folders_of_gptq(tmp_path: Path) -> None:
    """One layer is packed, as that tool does it, with a bias of zeros that the model does not have."""
    case, layer = CASES["llama"], Layer(5, inputs=32, outputs=32, group=32)
    name = "model.layers.1.self_attn.o_proj"
    own = {key: tensor(key, shape) for key, shape in case["tensors"].items()}
    plain = write_folder(tmp_path / "plain", case["config"], {}, {**own, f"{name}.weight": layer.expected()})
    del own[f"{name}.weight"]
    own |= {f"{name}.{key.removeprefix('a.')}": stored.elements() for key, stored in layer.tensors.items()}
    own[f"{name}.bias"] = np.zeros(32, np.float32)
    packed = write_folder(tmp_path / "packed", {**case["config"], "quantization_config": layer.config}, {}, own)
    found, wanted = (
        stepped(load_decoder(DecoderSource(path, capacity=16, logits="all")), (11,)) for path in (packed, plain)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_folders_of_other_models(tmp_path: Path) -> None:
    """The error says which architectures there are."""
    path = folder(tmp_path)
    (path / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(UnsupportedError, match="'vit' is not supported"):
        tilewright.compile(path)
