"""Functions that a model may call: what it is told of them, and calls in what it says.

Templates tell models of tools, each in its own way; models answer with JSON objects that have a "name" and "arguments"
(or "parameters"), alone, in a list, or between <tool_call> and </tool_call>.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BEGINS = ("{", "[", _OPEN)
"""What a call begins with, at the begin of a text; the last one also within it."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a function, its arguments as a text of JSON."""

    name: str
    arguments: str

    def record(self) -> dict[str, Any]:
        """As OpenAI has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def calls_of(text: str, names: Collection[str]) -> tuple[str, list[ToolCall]]:
    """What a text says beside its calls of the functions with these names, and the calls. A text with anything that
    looks like a call and is none is a text."""
    before, opened, rest = text.partition(_OPEN)
    if not opened:
        found = _parsed(text, names)
        return (text, []) if found is None else ("", found)
    calls: list[ToolCall] = []
    while opened:
        inner, _, behind = rest.partition(_CLOSE)
        found = _parsed(inner, names)
        if found is None:
            return text, []
        calls += found
        between, opened, rest = behind.partition(_OPEN)
        before += between
    return before.rstrip(), calls


def _parsed(text: str, names: Collection[str]) -> list[ToolCall] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    calls = [_call(one, names) for one in (value if isinstance(value, list) else [value])]
    return None if None in calls or not calls else [call for call in calls if call]


def _call(value: Any, names: Collection[str]) -> ToolCall | None:
    if not isinstance(value, Mapping):
        return None
    name = value.get("name")
    if not isinstance(name, str) or name not in names:  # models write anything
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        return ToolCall(name, arguments)
    if not isinstance(arguments, Mapping):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def schema_of(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON schema of a call of one of these functions."""
    forms = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": function.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in functions
    ]
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


class HeldText:
    """Gives a text on as it comes, up to where a call may begin."""

    def __init__(self) -> None:
        self._text = ""
        self._given = 0

    def push(self, text: str) -> str:
        """What is certainly no call."""
        self._text += text
        begun = self._text.lstrip()
        if not begun or begun.startswith(_BEGINS):
            return ""
        place = self._text.find(_OPEN)
        if place < 0:
            ends = (n for n in range(len(_OPEN) - 1, 0, -1) if self._text.endswith(_OPEN[:n]))
            place = len(self._text) - next(ends, 0)
        part = self._text[self._given : place]
        self._given += len(part)
        return part

    def end(self, content: str) -> str:
        """What is left of the content, once that is known."""
        return content[self._given :]
