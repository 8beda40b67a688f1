"""The names of cores that LLVM knows: of a name that it does not know it only warns, and makes slow code."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from functools import lru_cache

from tilewright.target.machine import TargetError

_ASK = """
import sys
from llvmlite import binding
binding.initialize_all_targets()
binding.initialize_all_asmprinters()
binding.Target.from_triple(sys.argv[1]).create_target_machine(cpu="help")
"""


def check_core(name: str, core: str, triple: str) -> None:
    """TargetError where LLVM does not know the core of the target of this name."""
    known = known_cores(triple)
    if known and core not in known:
        close = difflib.get_close_matches(core, known, 3)
        said = f"did you mean {' or '.join(close)}? " if close else ""
        raise TargetError(
            f"LLVM has no core '{core}', which the target '{name}' names",
            hint=f"{said}`llc -mcpu=help -mtriple={triple}` lists them",
        )


@lru_cache(maxsize=8)
def known_cores(triple: str) -> frozenset[str]:
    """All of them, as another process prints them (LLVM has no other way to tell); none where that fails."""
    if getattr(sys, "frozen", False):  # the program is no interpreter
        return frozenset()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _ASK, triple], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    listed = (done.stdout + done.stderr).partition("Available features")[0]
    return frozenset(re.findall(r"^\s+(\S+)\s+- Select the \S+ processor", listed, re.MULTILINE))
