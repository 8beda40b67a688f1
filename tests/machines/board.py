"""The device of docs/devices.md, as the page has it."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[2] / "docs" / "devices.md"


def examples() -> list[str]:
    """The programs of the page, in order."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@cache
def board() -> ModuleType:
    """The module `board`, which the page shows first."""
    module = ModuleType("board")
    sys.modules["board"] = module
    exec(compile(examples()[0], "board.py", "exec"), module.__dict__)
    return module
