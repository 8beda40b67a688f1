"""What files say about text: the tokeniser of a model, and its chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tilewright.frontends.files import first_bytes
from tilewright.frontends.weights.gguf import MAGIC, read_gguf
from tilewright.ir.diag import ModelError
from tilewright.llm.extras import needing_extra
from tilewright.llm.prompts import Message, Template
from tilewright.llm.tokens.gguf import gguf_tokenizer
from tilewright.llm.tokens.json_files import read_json
from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.runtime.errors import short_name

_KEY = "tokenizer.chat_template"
_MOST_BYTES = 2**24


@dataclass(frozen=True)
class LateTemplate:
    """A chat template that is read when it is first used: texts alone need no jinja2."""

    text: str
    names: Mapping[str, str]
    source: str

    def render(self, messages: Sequence[Message], /, **variables: Any) -> str:
        """See `ChatTemplate.render`."""
        return self._template.render(messages, **variables)

    @cached_property
    def _template(self) -> Template:
        return needing_extra(self._made)

    def _made(self) -> Template:
        from tilewright.llm.templates import ChatTemplate

        return ChatTemplate(self.text, self.names, self.source)


@dataclass(frozen=True)
class Vocabulary:
    """A tokeniser, and the chat template that belongs to it, None where there is none."""

    tokenizer: Tokenizer
    template: LateTemplate | None

    def with_template(self, text: str | None) -> Template | None:
        """The template, or another text in its place."""
        if text is None:
            return self.template
        names = self.template.names if self.template else {}
        return LateTemplate(text, names, "the given template")


def read_vocabulary(path: Path) -> Vocabulary:
    """Of a GGUF file, of a folder with a tokenizer.json, or of a file in one.

    ModelError for what is missing or damaged, UnsupportedError for vocabularies of unknown kinds and for packages that
    are not installed.
    """
    if _is_gguf(path):
        metadata = read_gguf(path).metadata
        tokenizer = needing_extra(lambda: gguf_tokenizer(metadata, str(path)))
        return Vocabulary(tokenizer, _gguf_template(metadata, tokenizer, str(path)))
    if not path.exists():
        raise ModelError("the file does not exist", where=str(path), hint="check the path")
    folder = path if path.is_dir() else path.parent
    return needing_extra(lambda: _of_folder(folder))


def _of_folder(folder: Path) -> Vocabulary:
    from tilewright.llm.tokens.folder import folder_tokenizer, special_names

    tokenizer = folder_tokenizer(folder)
    config = folder / "tokenizer_config.json"
    names = special_names(folder)
    for name in ("chat_template.jinja", "chat_template.json"):
        if (folder / name).is_file():
            text = _text_of(folder / name)
            return Vocabulary(tokenizer, LateTemplate(text, names, str(folder / name)))
    found = _chosen(read_json(config).get("chat_template"), str(config))
    return Vocabulary(tokenizer, None if found is None else LateTemplate(found, names, str(config)))


def _text_of(path: Path) -> str:
    if path.suffix == ".json":
        return _chosen(read_json(path).get("chat_template"), str(path)) or ""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"the chat template cannot be read: {error}", where=str(path)) from None


def _chosen(template: Any, source: str) -> str | None:
    """A text, or of several by their names the one called "default"."""
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, Mapping)}
        template = named.get("default", next(iter(named.values()), None))
    if template is not None and not isinstance(template, str):
        raise ModelError(f"the chat template is no text: {short_name(repr(template), 80)}", where=source)
    return template


def _gguf_template(metadata: Mapping[str, Any], tokenizer: Tokenizer, source: str) -> LateTemplate | None:
    text = metadata.get(_KEY)
    if text is None:
        return None
    if not isinstance(text, str):
        raise ModelError(f"{_KEY} is not a text", where=source)
    tokens = {
        f"{name}_token": token
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if isinstance(token := metadata.get(f"tokenizer.ggml.{key}_token_id"), int)
    }
    names = {name: found for name, token in tokens.items() if (found := tokenizer.control_text(token))}
    return LateTemplate(text, {"bos_token": "", "eos_token": "", **names}, source)


def _is_gguf(path: Path) -> bool:
    try:
        return path.suffix == ".gguf" or (path.is_file() and first_bytes(path, 4) == MAGIC)
    except (OSError, ValueError):
        return False
