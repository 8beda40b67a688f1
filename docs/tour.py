"""Runs the Python blocks of docs/tour.md in order and writes what each prints under it. Run by `make docs`."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "tour.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)
WIDEST = 150


def blocks(page: str) -> Iterator[tuple[re.Match[str], str]]:
    """Each block of Python with its place and what it prints, run in the current folder."""
    names: dict[str, Any] = {"__name__": "tour"}
    for found in BLOCK.finditer(page):
        printed = io.StringIO()
        # blank lines before it make line numbers of tracebacks those of the page
        code = "\n" * page.count("\n", 0, found.start("code")) + found["code"]
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(PAGE), "exec"), names)
        yield found, printed.getvalue()


def with_outputs(page: str) -> str:
    """The page with the outputs of today."""
    parts, end = [], 0
    for found, output in blocks(page):
        parts.append(f"{page[end : found.start()]}```python\n{found['code']}```\n")
        if output:
            lines = [
                line if len(line) <= WIDEST else line[: WIDEST - 3] + "..." for line in output.splitlines()
            ]
            parts.append("\n```text\n" + "\n".join(lines).strip("\n") + "\n```\n")
        end = found.end()
    return "".join([*parts, page[end:]])


if __name__ == "__main__":
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = with_outputs(PAGE.read_text())
        os.chdir(here)
    PAGE.write_text(text)
