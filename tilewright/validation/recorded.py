"""Inputs of real calls, as `Model.record` keeps them."""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np

from tilewright.runtime.errors import InputError

DAMAGED = (
    ValueError, EOFError, BadZipFile, ZlibError, KeyError, AttributeError, TypeError, NotImplementedError, RuntimeError,
    TokenError,
)  # fmt: skip
"""What NumPy and zipfile raise for a file of another kind, damaged, encrypted or compressed in another way."""

MOST_READ = 64
"""Calls that are read of a folder."""


def feeds_of(place: str | Path) -> list[dict[str, np.ndarray]]:
    """The calls in a folder of .npz files, one each, or in one such file. InputError where there are none."""
    path = Path(place)
    files = sorted(path.glob("*.npz"))[:MOST_READ] if path.is_dir() else [path]
    if not files:
        raise InputError(f"there is no .npz file in {path}", hint="Model.record(folder) fills it")
    return [_read(file) for file in files]


def _read(file: Path) -> dict[str, np.ndarray]:
    try:
        if file.exists() and not file.is_file():
            raise OSError("it is not a regular file")
        with np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
            if any(not isinstance(array, np.ndarray) for array in arrays.values()):
                raise ValueError("it holds something else than arrays")
            return arrays
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    except MemoryError as error:
        raise InputError(f"no memory for {file}: {error}", hint="is the file sound?") from error
    except DAMAGED as error:
        raise InputError(f"{file} is no .npz file that can be read: {error}") from error
