"""Small vocabularies, made here: what files of real models have, in their forms."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = (Path(__file__).parents[2] / "docs" / "states.md").read_text() * 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PARTS = [
    "the", "Hello", "world", "don't", "I'LL", "3.14", "12345", "é", "日本語", "🙂", "👨\u200d👩\u200d👧", "ß", "½",
    "x²", "안녕", "नमस्ते", "_x", "foo_bar();", "\u00a0", "--", "…", "a\u0301", "<|im_end|>", "<0x0A>", "  ", "\n", "\t",
    "\r\n", "\n\n", " ",
]  # fmt: skip


def random_text(rng: random.Random) -> str:
    """Words, signs and spaces of several scripts."""
    return "".join(rng.choice(PARTS) + rng.choice(["", " ", "  "]) for _ in range(rng.randrange(1, 12)))


@cache
def byte_level(digits: bool = False) -> Tokenizer:
    """A byte-level vocabulary, learned from a page; `digits`: with each digit by itself, as SmolLM2 has it."""
    found = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    alone = pre_tokenizers.Digits(individual_digits=True)
    found.pre_tokenizer = pre_tokenizers.Sequence([alone, level]) if digits else level
    found.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    found.train_from_iterator([TEXT], trainer)
    return found


def byte_level_metadata(pre: str = "smollm") -> dict[str, Any]:
    """The metadata of a GGUF file for `byte_level(digits=True)`."""
    model = json.loads(byte_level(digits=True).to_str())["model"]
    names = sorted(model["vocab"], key=model["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": [3 if name in CONTROL else 1 for name in names],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def scored_metadata(seed: int = 0, *, space: bool = True) -> dict[str, Any]:
    """The metadata of a GGUF file with scores: pieces of a text, some of the same score, and all bytes."""
    rng = random.Random(seed)
    text = TEXT[:4000].replace(" ", "▁")
    pieces = dict.fromkeys(text)
    for _ in range(1500):
        at = rng.randrange(len(text))
        pieces[text[at : at + rng.randrange(2, 6)]] = None
    special = ["<unk>", "<s>", "</s>"]
    of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    names = [*special, *of_bytes, *pieces, "<|user|>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4]
    scores = [0.0] * 259 + [float(-rng.randrange(len(pieces) // 2)) for _ in pieces] + [0.0]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": space,
    }


def written_folder(folder: Path, kind: str) -> Tokenizer:
    """A folder with the tokenizer.json of a kind; the same as the package reads it."""
    found = _OF_KIND[kind]()
    folder.mkdir(parents=True, exist_ok=True)
    found.save(str(folder / "tokenizer.json"))
    return found


def _sentencepiece() -> Tokenizer:
    found = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    found.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ends = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    found.decoder = decoders.Sequence(ends)
    of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[*special, *of_bytes], show_progress=False)
    found.train_from_iterator(TEXT[:3000].split(), trainer)
    # the pieces for bytes are ordinary tokens that no text spells
    state = json.loads(found.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] in special]
    return Tokenizer.from_str(json.dumps(state))


def _wordpiece() -> Tokenizer:
    found = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer(lowercase=True)
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=600, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    found.train_from_iterator([TEXT], trainer)
    return found


def _words() -> Tokenizer:
    """Whole words without a decoder, as many little models have them."""
    found = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(vocab_size=400, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    found.train_from_iterator([TEXT], trainer)
    found.add_tokens(["state-of"])
    return found


_OF_KIND = {
    "bytes": byte_level,
    "digits": lambda: byte_level(digits=True),
    "sentencepiece": _sentencepiece,
    "wordpiece": _wordpiece,
    "words": _words,
}
