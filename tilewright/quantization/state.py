"""What a run has found so far, in a folder, so that an interrupted run goes on where it was."""

from __future__ import annotations

import hashlib
import io
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tilewright.runtime.errors import OptionError
from tilewright.runtime.storage.files import refused, replacing


class State:
    """Findings by name, of one model, data and options, whose digest is `key`; without a folder only in memory."""

    def __init__(self, folder: Path | None, key: str) -> None:
        self._folder, self._key = folder, key
        self._memory: dict[str, Any] = {}
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if _stamp_of(folder) != key:  # another model, other data: nothing of it holds
                for file in _findings(folder):
                    file.unlink()
                with replacing(folder / _STAMP) as stamp:
                    stamp.write(key.encode())
        except OSError as error:
            raise refused(folder, error) from error

    def get(self, name: str) -> Any:
        """What was put under a name, or None. What cannot be read was never there."""
        if self._folder is None:
            return self._memory.get(name)
        try:
            with np.load(self._folder / _file(name), allow_pickle=False) as arrays:
                return _joined(json.loads(str(arrays["json"])), arrays)
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None

    def put(self, name: str, value: Any) -> None:
        """Keep JSON data that may hold arrays."""
        if self._folder is None:
            self._memory[name] = value
            return
        arrays: dict[str, np.ndarray] = {}
        text = json.dumps(_parted(value, arrays))
        buffer = io.BytesIO()
        np.savez(buffer, json=np.asarray(text), **arrays)  # type: ignore[arg-type]
        with replacing(self._folder / _file(name)) as file:
            file.write(buffer.getvalue())

    def done(self) -> None:
        """Remove the folder, unless somebody has put something else there: the run is at its end."""
        if self._folder is None:
            return
        samples = self._folder / SAMPLES
        with suppress(OSError):
            for file in (*_findings(self._folder), *_spooled(samples), self._folder / _STAMP):
                file.unlink(missing_ok=True)
            if samples.is_dir():
                samples.rmdir()
            self._folder.rmdir()


def check_work(folder: Path) -> None:
    """OptionError for a folder that holds what no run of ours has put there: a run removes what it finds in its own."""
    try:
        found = [*folder.iterdir()] if folder.is_dir() else []
        if not found or _KEY.fullmatch(_stamp_of(folder)):
            return
        if [file.name for file in found] == [SAMPLES] and set(_spooled(folder / SAMPLES)) == {*found[0].iterdir()}:
            return  # a run ended while it wrote its samples
    except OSError as error:
        raise refused(folder, error) from error
    raise OptionError(
        f"work={str(folder)!r} is not allowed: it holds files of yours ({min(file.name for file in found)}, ...), and "
        "is removed at the end",
        hint="give a folder that is still to be made, or leave it out",
    )


_STAMP = "of.txt"
_KEY = re.compile("[0-9a-f]{32}")
SAMPLES = "samples"
"""The folder in it that has the samples of an iterator, numbered."""


def _stamp_of(folder: Path) -> str:
    try:
        return (folder / _STAMP).read_text(errors="replace")
    except OSError:
        return ""


def _findings(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.npz") if re.fullmatch("[0-9a-f]{24}", file.stem)]


def _spooled(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*.npz") if file.stem.isdecimal()]


def _file(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=12).hexdigest() + ".npz"


def _parted(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, dict):
        return {key: _parted(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_parted(item, arrays) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _joined(value: Any, arrays: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"array"}:
            return arrays[value["array"]]
        return {key: _joined(item, arrays) for key, item in value.items()}
    return [_joined(item, arrays) for item in value] if isinstance(value, list) else value
