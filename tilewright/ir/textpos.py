"""Places in a text: errors that show the line and a caret."""

from __future__ import annotations

from tilewright.ir.diag import TextError


def line_and_column(text: str, pos: int) -> tuple[int, int]:
    """Line and column of character `pos`, both counted from 1."""
    start = text.rfind("\n", 0, pos) + 1
    return text.count("\n", 0, pos) + 1, pos - start + 1


def text_error(
    message: str, text: str, pos: int, *, file: str = "text", hint: str | None = None
) -> TextError:
    """A TextError for character `pos` of `text`: the message, the line, and a caret under it."""
    pos = min(pos, len(text))
    line, column = line_and_column(text, pos)
    start = pos - column + 1
    end = text.find("\n", pos)
    shown = text[start : len(text) if end < 0 else end]
    # A tab keeps its width only when the caret's line has it too.
    indent = "".join("\t" if c == "\t" else " " for c in shown[: column - 1])
    return TextError(f"{message}\n    {shown}\n    {indent}^", where=f"{file}:{line}:{column}", hint=hint)
