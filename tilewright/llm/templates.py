"""Chat templates: texts of a checkpoint that make one prompt of the messages of a chat, in the language of jinja2.

They come with the weights, and so from strangers. They run in jinja2's sandbox, on copies of plain data, with limits on
time, on what they write and on every value on the way (`guarded.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.parser import Parser

from tilewright.ir.diag import ModelError
from tilewright.llm.guarded import GuardedEnvironment, LimitError, within
from tilewright.runtime.errors import InputError, TilewrightError, short_name

MOST_SECONDS = 5.0
MOST_CHARACTERS = 2**24
"""Of a template, of each text that it makes, and of what it writes."""

Message = Mapping[str, Any]


class RefusedByTemplateError(Exception):
    """What `raise_exception` of a template raises."""


@dataclass(frozen=True)
class ChatTemplate:
    """`text` in jinja2's language; `names` are those of special tokens, such as bos_token; `source` names the file in
    errors."""

    text: str
    names: Mapping[str, str]
    source: str

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        written: Callable[[str], str] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt for messages, each with a "role" and a "content". `add_generation_prompt`: it ends where the
        answer begins; `tools` and `variables` are what the template makes of them; `written` changes each text of the
        messages (see `Tokenizer.typed`).

        InputError for messages that are none, or that the template refuses; ModelError for a template that is wrong,
        or that takes too long or writes too much.
        """
        chat = [_message(message, n, written) for n, message in enumerate(_listed(messages))]
        given = {**self.names, **variables, "tools": tools, "messages": chat}
        data = {name: _plain(value, None, name) for name, value in given.items()}
        data["add_generation_prompt"] = bool(add_generation_prompt)
        return self._guarded(lambda: _limited(self._template.generate(data)), "the chat template fails")

    @cached_property
    def _template(self) -> jinja2.Template:
        if len(self.text) > MOST_CHARACTERS:
            raise ModelError(f"the chat template has {len(self.text)} characters", where=self.source)
        environment = _environment()
        return self._guarded(lambda: environment.from_string(self.text), "the chat template cannot be read")

    def _guarded(self, run: Callable[[], Any], wrong: str) -> Any:
        try:
            return within(MOST_SECONDS, run)
        except TilewrightError:
            raise
        except RefusedByTemplateError as error:
            raise InputError(
                f"the chat template refuses these messages: {short_name(str(error), 500)}",
                hint="give messages in the order and with the roles that the model was trained with",
            ) from None
        except (LimitError, RecursionError, MemoryError) as error:
            told = str(error) or f"it goes too deep ({type(error).__name__})"
            raise ModelError(f"{wrong}: {told}", where=self.source, hint=_OTHER) from None
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None)
            where = self.source + (f", line {line} of the template" if line else "")
            raise ModelError(f"{wrong}: {short_name(str(error), 500)}", where=where, hint=_OTHER) from None
        except Exception as error:
            # an expression of the template may raise anything that Python does
            told = short_name(f"{type(error).__name__}: {error}", 500)
            raise ModelError(f"{wrong}: {told}", where=self.source, hint=_OTHER) from None


_OTHER = "give a template of your own (template=), or a prompt without one"


def _listed(messages: Any) -> Sequence[Any]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InputError(
            f"messages are a list, not {type(messages).__name__}",
            hint='such as [{"role": "user", "content": "Hello"}]',
        )
    if not messages:
        raise InputError(
            "there are no messages", hint='give at least one, such as {"role": "user", "content": "Hi"}'
        )
    return messages


def _message(message: Any, n: int, written: Callable[[str], str] | None) -> Any:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(
            f'message {n} has no "role": {short_name(repr(message), 80)}',
            hint='a message is {"role": "user", "content": "..."}',
        )
    role = message["role"]
    return {**_plain(message, written, f"message {n}"), "role": role}


def _plain(value: Any, written: Callable[[str], str] | None, where: str, depth: int = 0) -> Any:
    """A copy of what JSON has, its texts as `written` has them; InputError for anything else, whose methods the sandbox
    would not know. What is None in an object is left out, as templates ask whether it is there."""
    if depth > 50:
        raise InputError(f"{where} is too deep: lists and objects within each other are at most 50")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value) if written is None else written(str(value))
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, Mapping):
        return {
            str(key): _plain(item, written, where, depth + 1)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, written, where, depth + 1) for item in value]
    raise InputError(f"{where} has {type(value).__name__}: give texts, numbers, lists and dicts")


def _limited(parts: Any) -> str:
    found: list[str] = []
    length = 0
    for part in parts:
        length += len(part)
        if length > MOST_CHARACTERS:
            raise LimitError(f"it writes more than {MOST_CHARACTERS} characters")
        found.append(part)
    return "".join(found)


class _Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, which tells trainers what is an answer: it means nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> GuardedEnvironment:
    """What templates of Hugging Face are written for."""
    made = GuardedEnvironment(
        most=MOST_CHARACTERS,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    made.guard_filter("tojson", _json)
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = _now
    return made


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter writes <, > and & as escapes, which models have not seen."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: Any) -> None:
    raise RefusedByTemplateError(str(message))


def _now(form: str) -> str:
    if not isinstance(form, str) or len(form) > 200 or any(c.isdigit() for c in form):
        raise LimitError("strftime_now() takes a form such as '%d %b %Y'")
    return datetime.now().strftime(form)
