"""Where a node of a captured graph comes from: the module that called it, and the line of the user's code."""

from __future__ import annotations

import os
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_OURS = str(Path(__file__).parents[2]) + os.sep
_LIBRARIES = (_OURS, os.path.dirname(torch.__file__) + os.sep, "torch" + os.sep, "<")
"""How files begin that are no user's; those of exported programs may be relative to the folder of packages."""
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = ("site-packages" + os.sep, "dist-packages" + os.sep)


@dataclass(frozen=True)
class Origin:
    """`name` is the path of the module and the node ("encoder.layer.3/addmm_7"), `source` the line of code that called
    it ("model.py:12"; "" where it is not known)."""

    name: str
    source: str


def origin_of(node: torch.fx.Node) -> Origin:
    module = module_path(node)
    return Origin(f"{module}/{node.name}" if module else node.name, _source(node))


def module_path(node: torch.fx.Node) -> str:
    """The path of the innermost module that was running, as `named_modules` has it."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path = list(stack.values())[-1][0]
    return re.sub(r"@\d+$", "", re.sub(r"^L\['self'\]\.?|^L__self___?", "", str(path)))


def _source(node: torch.fx.Node) -> str:
    """The innermost line of the user's; of modules of PyTorch's the line that called them."""
    frames = [m for m in _FRAME.finditer(node.meta.get("stack_trace") or "")]
    own = [m for m in frames if not is_of_library(m["file"])] or frames
    return f"{own[-1]['file']}:{own[-1]['line']}" if own else ""


def is_of_library(file: str) -> bool:
    """Whether a file is PyTorch's, Python's or ours, or code that was generated."""
    is_of_python = file.startswith(_PYTHON) and not any(folder in file for folder in _PACKAGES)
    return is_of_python or file.startswith(_LIBRARIES)
