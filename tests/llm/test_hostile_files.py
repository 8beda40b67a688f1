"""Files that say anything in any place about a model and its vocabulary: they are read, or an error of the package says
what is wrong; and what was read spells texts, or says that it cannot."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

import tilewright
from tests.frontends.decoders.checkpoints import cases
from tests.frontends.decoders.converted import as_gguf
from tests.frontends.weights.gguf_files import Gguf, value
from tests.llm.checkpoints import CHATML, model_folder, model_gguf
from tests.llm.test_tokens import unigrams
from tests.llm.vocabularies import CONTROL, random_text, scored_metadata, written_folder
from tilewright.frontends.decoders.load import load_decoder
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.llm.vocabulary import read_vocabulary

CASES = {"gemma2": "gemma2", "gemma3": "gemma3", "llama, yarn": "llama", "mixtral": "llama", "mamba2": "mamba2"}
VALUES: list[tuple[str, Any]] = [
    ("u8", 1), ("i32", -1), ("u32", 0), ("u32", 3), ("u32", 46), ("u64", 2**63), ("i64", -(2**63)), ("f32", 0.5),
    ("f64", float("nan")), ("f32", float("inf")), ("bool", True), ("bool", False), ("str", ""), ("str", "linear"),
    ("str", "a" * 3000), ("[str]", []), ("[str]", ["a", "", "a"]), ("[str]", ["<0xZZ>", "\u2581", "a b"] * 300),
    ("[u32]", [1, 2]), ("[i8]", [-1] * 64), ("[f32]", [float("nan")] * 700), ("[i32]", [7] * 700), ("[bool]", [True]),
]  # fmt: skip


def of_vocabulary(metadata: dict[str, Any]) -> Gguf:
    file, kinds = Gguf(), {str: "str", bool: "bool", int: "u32", float: "f32"}
    for name, content in metadata.items():
        inner = content[0] if isinstance(content, list) else content
        kind = "i32" if isinstance(content, list) and isinstance(inner, int) else kinds[type(inner)]
        file.key(name, f"[{kind}]" if isinstance(content, list) else kind, content)
    return file


def files() -> list[Gguf]:
    scored, likely = scored_metadata(), unigrams(**{"tokenizer.ggml.precompiled_charsmap": [0, 0, 0, 0]})
    return [model_gguf(), *map(of_vocabulary, (scored, likely)), *(as_gguf(cases()[n], k) for n, k in CASES.items())]


@pytest.mark.fresh_seeds(2)
def test_any_key_of_a_gguf_file_may_be_anything(tmp_path: Path, fresh_seed: int) -> None:
    rng = random.Random(fresh_seed)
    for base in files():
        for _ in range(6):
            file = copy.deepcopy(base)
            for place in rng.sample(range(len(file.keys)), rng.choice([1, 1, 2, 3])):
                file.keys[place] = (file.keys[place][0], value(*rng.choice(VALUES)))
            path = file.write(tmp_path / "model.gguf")
            with contextlib.suppress(tilewright.TilewrightError):
                load_decoder(DecoderSource(path, capacity=8))
            spelled(path, rng)


def spelled(path: Path, rng: random.Random) -> None:
    """Read the vocabulary, and use it."""
    with contextlib.suppress(tilewright.TilewrightError):
        words = read_vocabulary(path)
        for text in ("", "a", random_text(rng)):
            with contextlib.suppress(tilewright.TilewrightError):
                words.tokenizer.decode(words.tokenizer.encode_read(text), control=True)
        if words.template is not None:
            words.tokenizer.encode_chat(words.template.render([{"role": "user", "content": "Hi"}]))


JUNK: list[Any] = [
    None, True, False, 0, 2, -1, 10**30, 0.5, "", "a", "<|im_end|>", "\ud800", "Sequence", "ByteLevel", [], {}, [[]],
    [None], [1, 2], ["a", 1], {"a": 1}, {"id": "a"}, {"type": "Fuse"}, {"content": "<|im_end|>"},
    [{"name": [], "template": "a"}],
]  # fmt: skip


def junk_in(value: Any, rng: random.Random) -> Any:
    """The value with junk somewhere within it."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return rng.choice(JUNK)
    key: Any = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    value[key] = junk_in(value[key], rng)
    return value


@pytest.mark.fresh_seeds(2)
def test_any_field_of_a_folders_files_may_be_anything(tmp_path: Path, fresh_seed: int) -> None:
    rng = random.Random(fresh_seed)
    told = {
        "tokenizer_config.json": {
            "chat_template": CHATML, "eos_token": {"content": CONTROL[2]}, "bos_token": CONTROL[1],
            "add_bos_token": True,
        },
        "generation_config.json": {
            "eos_token_id": [2], "decoder_start_token_id": 1, "forced_bos_token_id": 1, "bad_words_ids": [[3], [4, 5]],
            "suppress_tokens": [1, 2],
        },
        "chat_template.json": {"chat_template": [{"name": "default", "template": CHATML}]},
    }  # fmt: skip
    for kind in ("bytes", "sentencepiece", "wordpiece", "words"):
        folder = model_folder(tmp_path / kind)
        written_folder(folder, kind)
        (folder / "config.json").write_text(json.dumps({"is_encoder_decoder": True}))
        plain = {name: content for name, content in told.items() if name != "chat_template.json" or kind != "bytes"}
        plain["tokenizer.json"] = json.loads((folder / "tokenizer.json").read_text())
        for _ in range(8):
            name = rng.choice(list(plain))
            for other, content in plain.items():
                changed = junk_in(copy.deepcopy(content), rng) if other == name else content
                (folder / other).write_text(json.dumps(changed))
            spelled(folder, rng)
