"""Kernels as texts of their levels, for a page."""

from __future__ import annotations

import base64
import time
import zlib

from tilewright.compilation import Setting
from tilewright.ir.core import Func
from tilewright.ir.diag import Remark
from tilewright.runtime.errors import TilewrightError
from tilewright.schedule.edited import print_schedule
from tilewright.stages import kernel_text
from tilewright.viewer.records import CodeView

MOST_TEXT = 2_000_000
"""Characters of a text that a page holds of one level of a kernel; what is beyond is left out, and said."""


def code_view(kernel: Func, setting: Setting, digest: str, calls: int, strategy: str) -> tuple[CodeView, list[Remark]]:
    """The loop program, schedule, LLVM IR and assembler text of a kernel, as far as its machine has them. A level that
    fails costs itself alone: a remark says why."""
    texts: dict[str, str] = {}
    failed: list[Remark] = []
    seconds: float | None = None
    if kernel.level == "loops":
        texts["schedule"] = packed(print_schedule(kernel, digest, calls))
    for level in ("loops", "llvm", "asm"):
        begin = time.perf_counter()
        try:
            texts[level] = packed(kernel_text(kernel, level, setting))
        except TilewrightError as error:
            failed.append(Remark("page", kernel.name, f"no text of the level {level}: {error.what}", "analysis"))
            continue
        if level == "asm":
            seconds = time.perf_counter() - begin
    return CodeView(kernel.name, texts, seconds, strategy), failed


def packed(text: str) -> str:
    """A text as the page has it: compressed by deflate, in base64."""
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}\n... {len(text) - MOST_TEXT:,} more characters\n"
    return base64.b64encode(zlib.compress(text.encode(errors="replace"), 9)).decode("ascii")


def unpacked(text: str) -> str:
    """What `packed` was given."""
    return zlib.decompress(base64.b64decode(text)).decode()
