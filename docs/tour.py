"""Runs the Python blocks of docs/tour.md in order and writes what each prints under it. Run by `make docs`.

A test compares the outputs with those on the page. What differs between machines and versions of LLVM (`VARYING`)
counts as equal there, and stays as the page has it.
"""

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
VARYING = (
    re.compile(r"\d+(?= bytes$)", re.MULTILINE),  # of an artefact: the machine code for this machine is in it
    re.compile(r"(?<=^remarks: )\d+$", re.MULTILINE),  # of schedules for this machine too
    re.compile(r"\d+(?= fused multiply-adds)"),  # as LLVM arranges them
    re.compile(r"vfmadd.*(?=$)", re.MULTILINE),
)


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


def shown(output: str) -> str:
    """What a block prints as it stands on the page: "" for nothing."""
    lines = "\n".join(line.rstrip() for line in output.splitlines()).strip("\n")
    return f"{lines}\n" if lines else ""


def masked(output: str) -> str:
    """An output without what varies, to be compared."""
    for pattern in VARYING:
        output = pattern.sub("...", output)
    return output


def with_outputs(page: str) -> str:
    """The page with the outputs of today."""
    parts, end = [], 0
    for found, printed in blocks(page):
        parts.append(f"{page[end : found.start()]}```python\n{found['code']}```\n")
        output, before = shown(printed), found["output"] or ""
        if masked(output) == masked(before):
            output = before
        if output:
            parts.append(f"\n```text\n{output}```\n")
        end = found.end()
    return "".join([*parts, page[end:]])


if __name__ == "__main__":
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        text = with_outputs(PAGE.read_text())
        os.chdir(here)
    PAGE.write_text(text)
