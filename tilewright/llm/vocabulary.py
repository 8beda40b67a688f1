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
_USUAL, _TOOLS = "default", "tool_use"
"""Names of templates, where a model has several: for chats, and for chats with tools."""
_KEYS = {_USUAL: _KEY, _TOOLS: f"{_KEY}.{_TOOLS}"}
_MOST_BYTES = 2**24


@dataclass(frozen=True)
class LateTemplate:
    """A chat template that is read when it is first used: texts alone need no jinja2. Chats with tools have another
    text, where the model has one for them."""

    text: str
    names: Mapping[str, str]
    source: str
    with_tools: str | None = None

    def render(self, messages: Sequence[Message], /, **variables: Any) -> str:
        """See `ChatTemplate.render`."""
        has_tools = bool(variables.get("tools")) and self.with_tools is not None
        return (self._for_tools if has_tools else self._template).render(messages, **variables)

    @cached_property
    def _template(self) -> Template:
        return needing_extra(lambda: self._made(self.text))

    @cached_property
    def _for_tools(self) -> Template:
        return needing_extra(lambda: self._made(self.with_tools or ""))

    def _made(self, text: str) -> Template:
        from tilewright.llm.templates import ChatTemplate

        return ChatTemplate(text, self.names, self.source)


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
    for path in (folder / "chat_template.jinja", folder / "chat_template.json"):
        if path.is_file():
            return Vocabulary(tokenizer, _late(_templates_of(path), names, str(path)))
    found = _named(read_json(config).get("chat_template"), str(config))
    return Vocabulary(tokenizer, _late(found, names, str(config)))


def _templates_of(path: Path) -> dict[str, str]:
    if path.suffix == ".json":
        return _named(read_json(path).get("chat_template"), str(path))
    others = path.parent / "additional_chat_templates" / f"{_TOOLS}.jinja"
    own = {_USUAL: _text_of(path)}
    return own | {_TOOLS: _text_of(others)} if others.is_file() else own


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelError(f"the chat template cannot be read: {error}", where=str(path)) from None


def _named(template: Any, source: str) -> dict[str, str]:
    """Templates by their names: of a text alone, or of a list of several."""
    found: dict[str, Any]
    if isinstance(template, list):
        found = {str(t.get("name")): t.get("template") for t in template if isinstance(t, Mapping)}
    else:
        found = {} if template is None else {_USUAL: template}
    for text in found.values():
        if not isinstance(text, str):
            raise ModelError(f"the chat template is no text: {short_name(repr(text), 80)}", where=source)
    return found


def _late(templates: Mapping[str, str], names: Mapping[str, str], source: str) -> LateTemplate | None:
    """The template for chats, or the first of them all; None where there is none."""
    text = templates.get(_USUAL, next(iter(templates.values()), None))
    return None if text is None else LateTemplate(text, names, source, templates.get(_TOOLS))


def _gguf_template(metadata: Mapping[str, Any], tokenizer: Tokenizer, source: str) -> LateTemplate | None:
    texts = {name: metadata[key] for name, key in _KEYS.items() if key in metadata}
    if _USUAL not in texts:
        return None
    wrong = next((name for name, text in texts.items() if not isinstance(text, str)), None)
    if wrong is not None:
        raise ModelError(f"{_KEYS[wrong]} is not a text", where=source)
    tokens = {
        f"{name}_token": token
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if isinstance(token := metadata.get(f"tokenizer.ggml.{key}_token_id"), int)
    }
    names = {name: found for name, token in tokens.items() if (found := tokenizer.control_text(token))}
    return _late(texts, {"bos_token": "", "eos_token": "", **names}, source)


def _is_gguf(path: Path) -> bool:
    try:
        return path.suffix == ".gguf" or (path.is_file() and first_bytes(path, 4) == MAGIC)
    except (OSError, ValueError):
        return False
