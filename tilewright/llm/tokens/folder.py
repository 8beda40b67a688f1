"""The tokeniser of a folder as Hugging Face has them: tokenizer.json, and what the configurations beside it say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.ir.diag import ModelError
from tilewright.llm.tokens.json_files import read_json
from tilewright.llm.tokens.library import LibraryText
from tilewright.llm.tokens.tokenizer import ANSWER_ENDS, Special, Tokenizer

FILE = "tokenizer.json"


def folder_tokenizer(folder: Path) -> Tokenizer:
    """ModelError where the folder has no tokenizer.json, or a damaged one; UnsupportedError for kinds that are not
    known."""
    path = folder / FILE
    if not path.is_file():
        others = [
            name for name in ("tokenizer.model", "vocab.json", "spiece.model") if (folder / name).exists()
        ]
        raise ModelError(
            f"the folder has no {FILE}" + (f", only {', '.join(others)}" if others else ""),
            where=str(folder),
            hint="say where the vocabulary is (tokenizer=, --tokenizer): a GGUF file, or a folder that has one; "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes it",
        )
    library = LibraryText(path)
    spelling, leading_space = library.spelling()
    config = read_json(folder / "tokenizer_config.json")
    control = {token for token, added in library.added.items() if added.special}
    named = {key: library.names[name] for key, name in special_names(folder).items() if name in library.names}
    control |= set(named.values())
    begin = library.lead[0] if library.lead else named.get("bos_token")
    asked = config.get("add_bos_token") is True or bool(library.lead)
    ends = _ends(folder, library, control)
    ends |= {named[key] for key in ("eos_token",) if key in named}
    size = max(library.names.values(), default=-1) + 1
    special = Special(
        frozenset(control | ends),
        frozenset(library.added),
        begin,
        frozenset(ends),
        begins=asked and begin is not None,
        lead=tuple(library.lead),
        trail=tuple(library.trail),
        **_of_answers(folder, library),
    )
    return Tokenizer(size, library.name, spelling, library, special, leading_space, str(path))


def _ends(folder: Path, library: LibraryText, control: set[int]) -> set[int]:
    """Tokens that end an answer: those that the configurations name, and those that usually do."""
    found = {token for token in control if library.name(token) in ANSWER_ENDS}
    for name in ("generation_config.json", "config.json"):
        told = read_json(folder / name).get("eos_token_id")
        for token in told if isinstance(told, list) else [told]:
            if isinstance(token, int) and not isinstance(token, bool) and library.name(token) is not None:
                found.add(token)
    return found


def _of_answers(folder: Path, library: LibraryText) -> dict[str, Any]:
    """What answers of an encoder-decoder begin with, and what is in none of them."""
    told = read_json(folder / "config.json") | {
        name: value for name, value in read_json(folder / "generation_config.json").items() if value is not None
    }
    if not told.get("is_encoder_decoder", "decoder_start_token_id" in told):
        return {}
    start = _known(library, told.get("decoder_start_token_id", told.get("bos_token_id")))
    bad = told.get("bad_words_ids")
    words = [word for word in bad if isinstance(word, list) and len(word) == 1] if isinstance(bad, list) else []
    kept_out = told.get("suppress_tokens")
    alone = [word[0] for word in words] + (kept_out if isinstance(kept_out, list) else [])
    never = [token for word in alone for token in _known(library, word)]
    return {"start": start, "forced": _known(library, told.get("forced_bos_token_id")), "never": frozenset(never)}


def _known(library: LibraryText, token: Any) -> tuple[int, ...]:
    """A token that a configuration names, where it is one."""
    is_number = isinstance(token, int) and not isinstance(token, bool)
    return (token,) if is_number and library.name(token) is not None else ()


def _content(token: Any) -> str:
    """The name of a special token: a text, or an object with one."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else ""


def special_names(folder: Path) -> dict[str, str]:
    """The names of special tokens, such as bos_token, as chat templates ask for them."""
    config = read_json(folder / "tokenizer_config.json")
    keys = ("bos_token", "eos_token", "unk_token", "pad_token")
    return {key: name for key in keys if (name := _content(config.get(key)))}
