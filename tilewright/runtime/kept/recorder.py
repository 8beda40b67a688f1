"""The inputs of calls, kept in files for tools that want real ones."""

from __future__ import annotations

import io
import os
import random
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.errors import ArtifactError, OptionError, TilewrightError, TilewrightWarning
from tilewright.runtime.process.forks import free_in_children
from tilewright.runtime.storage.files import check_folder, refused, replacing
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.runtime.values.inputs import as_array

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CALLS = 64
BYTES = 256 << 20
NAME = "call-{:05d}.npz"
OWN = re.compile(r"call-\d{5,}\.npz")
"""Names of the files of a recording."""



class RecordsCalls:
    """What models keep of the inputs of their calls."""

    inputs: tuple[TensorInfo, ...]
    _is_plain: bool
    _recorder: Recorder | None = None
    _was_plain: bool

    def record(self, path: str | Path, *, calls: int = CALLS, max_bytes: int = BYTES) -> None:
        """Keep the inputs of calls from now on, each call in a .npz file of its own in a folder, which `tilewright diff
        --data`, `quantize --data` and `compile(..., validate=path)` read: what goes wrong on real inputs alone, noise
        does not show. Of more than `calls` each is kept with the same chance, and all files together take `max_bytes`
        at most. Calls that fail are not kept. Files of an earlier recording in the folder are removed.

        A call is about as much longer as its inputs take to write; without this it is as it was. `stop_recording` ends
        it, and so does, with a warning, a file that cannot be written. OptionError for inputs that are no tensors of
        NumPy's own types, ArtifactError for a folder that cannot be written, or that another model records to.
        """
        if self._recorder is not None:
            self.stop_recording()
        made = recorder(path, self.inputs, calls, max_bytes)
        self._was_plain = self._is_plain
        self._recorder, self._is_plain = made, False

    def stop_recording(self) -> None:
        """Keep no more calls; nothing happens where none are kept."""
        recorder = self._recorder
        if recorder is not None:
            self._recorder, self._is_plain = None, self._was_plain
            recorder.leave()

    def _note_call(self, values: Sequence[Any]) -> None:
        recorder = self._recorder
        try:
            if recorder is not None:
                recorder.add(values)
        except (TilewrightError, MemoryError) as error:
            self.stop_recording()
            warnings.warn(f"inputs of calls are not recorded any more: {error}", TilewrightWarning, stacklevel=5)


class Recorder:
    """Keeps some of the calls of a model, each in a file of its own in `folder`.

    Of more than `calls` each is kept with the same chance (Vitter, "Random Sampling with a Reservoir", 1985): a later
    call takes the place of an earlier one. `most_bytes` bounds all files together; a call that does not fit is left
    out.
    """

    def __init__(
        self, folder: Path, inputs: Sequence[TensorInfo], calls: int, most_bytes: int, leave: Callable[[], object]
    ) -> None:
        """`leave` lets others record to the folder; it is called at the latest when nobody has the recorder."""
        self.leave = weakref.finalize(self, leave)
        self._folder, self._calls, self._most = folder, calls, most_bytes
        self._inputs = tuple((info, numpy_dtype(info.dtype)) for info in inputs)
        self._sizes: dict[int, int] = {}
        self._seen = 0
        self._random = random.Random(0)
        self._lock = free_in_children(threading.Lock())

    def add(self, values: Sequence[Any]) -> None:
        """Keep a call, perhaps, as the model reads it. ArtifactError where that cannot be written."""
        with self._lock:
            number = self._seen if self._seen < self._calls else self._random.randrange(self._seen + 1)
            self._seen += 1
            if number >= self._calls:
                return
            pairs = zip(self._inputs, values, strict=True)
            data = packed({info.name: as_array(value, info, dtype) for (info, dtype), value in pairs})
            others = sum(size for n, size in self._sizes.items() if n != number)
            if others + len(data) > self._most:
                return
            with replacing(self._folder / NAME.format(number)) as file:
                file.write(data)
            self._sizes[number] = len(data)


def recorder(path: object, inputs: Sequence[TensorInfo], calls: object, most_bytes: object) -> Recorder:
    """One that writes to a folder, which is made. OptionError for arguments that mean nothing and for inputs that are
    no arrays of numbers, ArtifactError for a folder that cannot be written or holds something else."""
    for name, number in (("calls", calls), ("max_bytes", most_bytes)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise OptionError(f"{name}={number!r:.80} is not allowed", hint="give a whole number from 1 on")
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise OptionError(f"record({path!r:.80}): give the path of a folder")
    wrong = next((i for i in inputs if i.kind != "tensor" or i.dtype == "string" or _is_of_bytes(i)), None)
    if wrong is not None:
        raise OptionError(
            f"input '{wrong.name}' is {wrong.type}, which .npz files do not hold",
            hint="calls of models whose inputs are tensors of NumPy's own types can be recorded",
        )
    folder = Path(os.fspath(path))
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        leave = _taken(folder)
        try:
            for old in folder.iterdir():
                if OWN.fullmatch(old.name):
                    old.unlink()
        except OSError:
            leave()
            raise
    except OSError as error:
        raise refused(folder, error) from error
    assert isinstance(calls, int) and isinstance(most_bytes, int)
    return Recorder(folder, inputs, calls, most_bytes, leave)


def _taken(folder: Path) -> Callable[[], object]:
    """Take a folder for one recording, of all processes; gives what ends that. ArtifactError where another one has it.
    Systems that cannot lock folders let everybody have it."""
    if fcntl is None:
        return lambda: None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ArtifactError(
            f"another model records its calls to {folder}", hint="give each a folder of its own, or stop_recording()"
        ) from error
    except OSError:  # a file system without locks
        pass
    return lambda: os.close(descriptor)


def _is_of_bytes(info: TensorInfo) -> bool:
    """Whether elements are of a type that NumPy lacks."""
    try:
        return np.dtype(info.dtype).kind not in "biufc"
    except TypeError:
        return True


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """A .npz file, also of names that NumPy's own functions take for their parameters."""
    from zipfile import ZipFile

    held = io.BytesIO()
    with ZipFile(held, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
    return held.getvalue()
