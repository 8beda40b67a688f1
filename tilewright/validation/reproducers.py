"""What a finding leaves behind: the program before and after as text, its inputs, and a test that is ready to paste."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np

from tilewright.ir.core import Module
from tilewright.ir.text import parse_module, print_module
from tilewright.runtime.errors import TilewrightError
from tilewright.runtime.storage.files import replacing
from tilewright.validation.findings import Fault

MOST_BYTES = 64 << 20
"""Of constants and inputs that are kept while a model is compiled: a pass may be shown by the whole model alone."""

TEST = '''"""{title}"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tilewright.validation.rerun import compiled, interpreted, read

FOLDER = Path(__file__).parent


def test_{name}() -> None:
    program = read(FOLDER)
    for wanted, found in zip(interpreted(program), compiled(program), strict=True):
        np.testing.assert_allclose(found, wanted, rtol={rtol}, atol={rtol} * float(np.abs(wanted).max(initial=0)))
'''


def save(finding: Fault, folder: Path | None, most: int | None = MOST_BYTES) -> str:
    """Write a finding to a folder of its own in `folder`; its path, or "" where there is nothing to write, no place to
    write to, or where its arrays take more than `most` bytes."""
    if folder is None or finding.before is None:
        return ""
    constants = finding.before.constants
    if most is not None and sum(a.nbytes for a in (*constants.values(), *finding.inputs.values())) > most:
        return ""
    try:
        return str(put(finding, folder))
    except NOT_WRITTEN:
        return ""


NOT_WRITTEN = (OSError, TilewrightError, ValueError, TypeError, MemoryError)
"""What `put` raises where a finding cannot be written."""


def put(finding: Fault, folder: Path) -> Path:
    """Write a finding to a folder of its own in `folder`, and give its path. The whole of it is there, or nothing
    (`NOT_WRITTEN`)."""
    name = re.sub(r"\W+", "-", f"{finding.stage} {finding.rule}".strip())[:60]
    digest = hashlib.blake2b(f"{finding}{finding.after}".encode(), digest_size=4).hexdigest()
    place, made = folder / f"{name}-{digest}", folder / f".{os.urandom(8).hex()}.tmp"
    was_there = folder.exists()
    try:
        made.mkdir(parents=True)
        write(finding, made)
        place.mkdir(exist_ok=True)
        for file in made.iterdir():
            file.replace(place / file.name)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if not was_there:
            with suppress(OSError):
                folder.rmdir()  # it stays where something is in it
    return place


def write(finding: Fault, place: Path) -> None:
    """The files of a finding."""
    assert finding.before is not None
    test = re.sub(r"\W+", "_", f"{finding.stage} {finding.rule}".strip()).lower()
    said = {"culprit": finding.culprit, "stage": finding.stage, "rule": finding.rule, "subject": finding.subject,
            "deviation": finding.deviation, "case": finding.case}  # fmt: skip
    title = f"{finding.culprit} changed the meaning of a program.".replace("\\", "").replace('"""', "")
    texts = {
        "before.txt": print_module(finding.before),
        "after.txt": finding.after,
        "finding.json": json.dumps(said, indent=1),
        f"test_{test}.py": TEST.format(title=title, name=test, rtol=1e-3),
    }
    for name, text in texts.items():
        with replacing(place / name) as file:
            file.write(text.encode())
    arrays = {f"constant:{name}": finding.before.constants[name] for name in finding.before.constants}
    arrays |= {f"input:{name}": array for name, array in finding.inputs.items()}
    with replacing(place / "inputs.npz") as file:
        file.write(packed(arrays))


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """A .npz file, with the type behind each name; what NumPy has no type of its own for goes as bytes."""
    held = io.BytesIO()
    plain = {
        f"{name}|{'' if a.dtype.kind in 'biufc' else a.dtype.name}": (
            a if a.dtype.kind in "biufc" else np.ascontiguousarray(a).view(np.uint8)
        )
        for name, a in arrays.items()
    }
    np.savez_compressed(held, allow_pickle=False, **plain)
    return held.getvalue()


def unpacked(path: Path) -> dict[str, np.ndarray]:
    """The arrays of such a file."""
    found = {}
    with np.load(path, allow_pickle=False) as file:
        for key in file.files:
            name, _, dtype = key.rpartition("|")
            found[name] = file[key].view(np.dtype(dtype)) if dtype else file[key]
    return found


def module_of(text: str, arrays: dict[str, np.ndarray]) -> Module:
    """A program from its text, with its constants."""
    from_text = parse_module(text)
    for name in from_text.constants:
        if f"constant:{name}" in arrays:
            from_text.constants[name] = arrays[f"constant:{name}"]
    return from_text
