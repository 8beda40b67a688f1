"""Samples: from files or any iterable, checked against the model, and parted into what is calibrated and judged with.

A feed is one call of the model: arrays by input name. Labels come beside the inputs, under one of `LABELS`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tilewright.quantization.state import SAMPLES
from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import InputError
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.runtime.values.recorded import kind_of, read_input

LABELS = ("labels", "label", "targets", "y")
"""Names under which labels are looked for, where the model has no such input."""

PARTS = ("ranges", "judge", "choice", "judge", "judge")
"""What successive pieces of the data are for: making forms, comparing these, and the judgement. Ranges of tensors are
those of the first two; what is left for the judgement decides how tight its bounds are."""

LEAST_PIECES = 16
"""Feeds that hold several rows are cut where there are fewer than these, so that each part gets some."""

HINT = "give a .npz file with an array for each input, a folder of such files, or feeds from Python"
SUFFIXES = (".npz", ".npy", ".png", ".jpg", ".jpeg", ".bmp", ".wav")
"""Of files in a folder that are samples."""

Feed = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Sample:
    """A call's inputs, the labels of its items (None where there are none), and how many items it has."""

    feed: dict[str, np.ndarray]
    labels: np.ndarray | None
    items: int


@dataclass(frozen=True)
class Dataset:
    """Samples that can be read again and again: `count` of them, each made when it is asked for."""

    count: int
    read: Callable[[int], Sample]
    has_labels: bool
    digest: str
    about: str
    contents: tuple[tuple[bytes, ...], ...] = ()
    """Digests of the items of each sample, by which equal ones are told."""

    def items(self, name: str) -> tuple[int, int]:
        """How many items a part has, and how many of them differ."""
        found = [content for number in self.part(name) for content in self.contents[number]]
        return len(found), len({*found})

    def part(self, name: str) -> list[int]:
        """The numbers of the samples of a part ("all": of all). A single sample is of all parts."""
        if name == "all":
            return [*range(self.count)]
        if self.count == 1:
            return [0]
        pattern = PARTS if self.count >= len(PARTS) else ("ranges", "judge")
        found = [i for i in range(self.count) if pattern[i % len(pattern)] == name]
        return found or self.part("ranges")

    def samples(self, name: str, most: int | None = None) -> Iterator[Sample]:
        """Those of a part, or the first of them."""
        return (self.read(i) for i in self.part(name)[:most])


def open_data(
    data: Any, inputs: Sequence[TensorInfo], *, batch: int | None = None, spool: Path | None = None
) -> Dataset:
    """The samples in a file, a folder or an iterable. Those of an iterator, which can be read once, are written to the
    folder `spool`, or kept in memory without one. InputError for what does not fit the model."""
    if isinstance(data, str | Path):
        feeds, about = _from_path(Path(data), inputs, batch), str(data)
    elif isinstance(data, Mapping):
        feeds, about = _batches(dict(data), inputs, batch, "the data"), "arrays"
    elif isinstance(data, Sequence) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        feeds, about = [partial(data.__getitem__, i) for i in range(len(data))], "feeds from Python"
    elif isinstance(data, Iterable):
        feeds, about = _spooled(data, spool), "feeds from Python"
    else:
        raise InputError(f"data={data!r:.80} is no data", hint=HINT)
    if not feeds:
        raise InputError("there is no data", where=about, hint=HINT)
    readers = _pieces(feeds, inputs)
    first = readers[0]()
    digest = hashlib.blake2b(digest_size=16)
    has_labels = first.labels is not None
    contents: list[tuple[bytes, ...]] = []
    for index, reader in enumerate(readers):
        sample = reader()
        if (sample.labels is not None) != has_labels:
            raise InputError("some samples have labels and others none", where=f"sample {index}")
        for name, array in sorted(sample.feed.items()):
            digest.update(f"{name}{array.dtype}{array.shape}".encode() + _bytes(array))
        contents.append(_contents(sample))
        if sample.labels is not None:
            digest.update(_bytes(sample.labels))
    return Dataset(len(readers), lambda i: readers[i](), has_labels, digest.hexdigest(), about, tuple(contents))


def _contents(sample: Sample) -> tuple[bytes, ...]:
    """A digest of each item: of a row of all arrays, or of the whole call."""
    arrays = [array for _, array in sorted(sample.feed.items())]
    rows = [[array[k] for array in arrays] for k in range(sample.items)] if sample.items > 1 else [arrays]
    return tuple(
        hashlib.blake2b(b"".join(_bytes(np.asarray(a)) for a in row), digest_size=16).digest() for row in rows
    )


def _spooled(data: Iterable[Any], folder: Path | None) -> list[Any]:
    """Feeds of an iterator, as files where there is a folder."""
    if folder is None:
        return list(data)
    place = folder / SAMPLES
    place.mkdir(parents=True, exist_ok=True)
    found: list[Any] = []
    for index, feed in enumerate(data):
        if not isinstance(feed, Mapping) or any(np.asarray(a).dtype == object for a in feed.values()):
            found.append(feed)  # is refused, or small
            continue
        path = place / f"{index}.npz"
        np.savez(path, **{str(name): np.asarray(array) for name, array in feed.items()})  # type: ignore[arg-type]
        found.append(_lazily(path))
    return found


def _bytes(array: np.ndarray) -> bytes:
    return repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).tobytes()


Lazy = Callable[[], Mapping[str, Any]]


def _from_path(path: Path, inputs: Sequence[TensorInfo], batch: int | None) -> list[Any]:
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix.lower() in SUFFIXES)
        if not files:
            raise InputError(f"{path} holds no .npz file, nor others of samples ({', '.join(SUFFIXES[1:])})", hint=HINT)
        return [_lazily(file, inputs) for file in files]
    try:
        kind = kind_of(path)
    except (OSError, ValueError):
        kind = ""  # which is said where it is read
    if kind in ("npy", "image", "sound"):
        only = _only(inputs, path)
        value = read_input(path, only)
        if kind != "npy":
            return [{only.name: value}]
        return _batches({only.name: value}, inputs, batch, str(path))
    arrays = read_npz(path)
    if set(arrays) == {"arr_0"} and arrays["arr_0"].dtype == object:
        return [dict(feed) for feed in arrays["arr_0"]]
    return _batches(arrays, inputs, batch, str(path))


def _only(inputs: Sequence[TensorInfo], path: Path) -> TensorInfo:
    """The input whose values a file without names has."""
    if len(inputs) != 1:
        raise InputError(
            f"{path} holds values of one input, and the model has {len(inputs)}: {', '.join(map(str, inputs))}",
            hint=HINT,
        )
    return inputs[0]


def _lazily(file: Path, inputs: Sequence[TensorInfo] = ()) -> Lazy:
    """A call in a file: arrays by name, or the value of the only input."""
    if file.suffix.lower() == ".npz":
        return lambda: read_npz(file)
    only = _only(inputs, file)
    return lambda: {only.name: read_input(file, only)}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a .npz file, by name."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a regular file")  # a named pipe would be waited for
        with np.load(path, allow_pickle=False) as found:
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array without a name")
            return {name: found[name] for name in found.files}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint=HINT) from error
    except (ValueError, EOFError, BadZipFile, KeyError, AttributeError) as error:
        raise InputError(f"{path} is no .npz file that can be read: {error}", hint=HINT) from error


def _batches(
    arrays: dict[str, np.ndarray], inputs: Sequence[TensorInfo], batch: int | None, where: str
) -> list[dict[str, np.ndarray]]:
    """Calls of arrays whose first axis are samples, or whole batches where an array has an axis more than its input."""
    _check_names(arrays, inputs, where)
    given = {info.name: np.asarray(arrays[info.name]) for info in inputs}
    lengths = {name: len(array) if array.ndim else 0 for name, array in given.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name}: {length}" for name, length in lengths.items())
        raise InputError(f"inputs have different numbers of samples: {said}", where=where, hint=HINT)
    count = next(iter(lengths.values()))
    if not count:
        raise InputError("there is no data: the arrays hold no sample", where=where, hint=HINT)
    labels = next((np.asarray(arrays[n]) for n in LABELS if n in arrays and n not in given), None)
    if labels is not None and (not labels.ndim or len(labels) != count):
        raise InputError(f"there are {count} samples, and labels of shape {list(labels.shape)}", where=where)
    deeper = [given[info.name].ndim == len(info.shape) + 1 for info in inputs]
    if all(deeper):
        cut: list[Any] = list(range(count))
    else:
        size = _batch_size(inputs, batch)
        cut = [
            slice(i, i + size)
            for i in range(0, count - count % size if size > 1 and _is_fixed(inputs) else count, size)
        ]
    beside = {} if labels is None else {LABELS[0]: labels}
    return [{name: array[where_] for name, array in (given | beside).items()} for where_ in cut]


def _is_fixed(inputs: Sequence[TensorInfo]) -> bool:
    return any(isinstance(info.shape[0], int) for info in inputs if info.shape)


def _batch_size(inputs: Sequence[TensorInfo], batch: int | None) -> int:
    """The first dim that the model wants, or what the caller says for one that is symbolic."""
    fixed = {info.shape[0] for info in inputs if info.shape and isinstance(info.shape[0], int)}
    return int(max(fixed)) if fixed else batch or 1


def _check_names(arrays: Mapping[str, Any], inputs: Sequence[TensorInfo], where: str) -> None:
    wanted = [info.name for info in inputs]
    missing = [name for name in wanted if name not in arrays]
    extra = [name for name in arrays if name not in wanted and name not in LABELS]
    if missing or extra:
        said = [f"no array named {', '.join(missing)}"] if missing else []
        said += [f"the model has no input {', '.join(map(str, extra))}"] if extra else []
        hint = f"the model's inputs are: {', '.join(map(str, inputs))}"
        raise InputError(
            f"the data has other names than the model: {'; '.join(said)}", where=where, hint=hint
        )


def _pieces(feeds: Sequence[Any], inputs: Sequence[TensorInfo]) -> list[Callable[[], Sample]]:
    """Readers of feeds; of the rows of feeds, where these are few and can be cut."""
    cuts = 1
    if len(feeds) < LEAST_PIECES and all(
        not isinstance(info.shape[0], int) if info.shape else False for info in inputs
    ):
        cuts = -(-LEAST_PIECES // len(feeds))
    readers: list[Callable[[], Sample]] = []
    for index, feed in enumerate(feeds):
        first = _sample(_resolved(feed), inputs, f"sample {index}")
        rows = _rows(first)
        count = min(cuts, rows)
        for bounds in zip(_bounds(rows, count), _bounds(rows, count)[1:], strict=False):
            readers.append(_reader(feed, inputs, f"sample {index}", bounds if count > 1 else None))
    return readers


def _bounds(rows: int, count: int) -> list[int]:
    return [rows * i // count for i in range(count + 1)] if count else [0, 1]


def _reader(
    feed: Any, inputs: Sequence[TensorInfo], where: str, rows: tuple[int, int] | None
) -> Callable[[], Sample]:
    def read() -> Sample:
        sample = _sample(_resolved(feed), inputs, where)
        if rows is None:
            return sample
        cut = {name: array[slice(*rows)] for name, array in sample.feed.items()}
        labels = None if sample.labels is None else sample.labels[slice(*rows)]
        return Sample(cut, labels, rows[1] - rows[0])

    return read


def _resolved(feed: Any) -> Any:
    return feed() if callable(feed) else feed


def _rows(sample: Sample) -> int:
    """Rows that can be given one by one: those of all inputs and labels."""
    arrays = [*sample.feed.values()] + ([] if sample.labels is None else [sample.labels])
    lengths = {len(array) if array.ndim else 0 for array in arrays}
    return lengths.pop() if len(lengths) == 1 and 0 not in lengths else 1


def _sample(feed: Any, inputs: Sequence[TensorInfo], where: str) -> Sample:
    if not isinstance(feed, Mapping):
        if isinstance(feed, np.ndarray) and len(inputs) == 1:
            feed = {inputs[0].name: feed}
        else:
            raise InputError(
                f"{feed!r:.80} is no feed", where=where, hint="a feed is a dict of arrays by input name"
            )
    _check_names(feed, inputs, where)
    arrays = {info.name: _checked(np.asarray(feed[info.name]), info, where) for info in inputs}
    _check_dims(arrays, inputs, where)
    names = {info.name for info in inputs}
    found = next((feed[name] for name in LABELS if name in feed and name not in names), None)
    labels = None if found is None else np.asarray(found)
    return Sample(arrays, labels, _rows(Sample(arrays, None, 1)))


def _checked(array: np.ndarray, info: TensorInfo, where: str) -> np.ndarray:
    """The array of an input, of its dtype: floats may come in another width, and integers where all values fit."""
    where = f"{where}, input '{info.name}'"
    dtype = numpy_dtype(info.dtype)
    if array.dtype != dtype:
        kinds = "iu" if dtype.kind in "iu" else "f"
        is_float = array.dtype.kind == dtype.kind == "f"
        is_number = array.dtype.kind in kinds and dtype.kind in "iuf"
        if not (is_float or (is_number and np.array_equal(array, array.astype(dtype)))):
            raise InputError(
                f"the data is {array.dtype}, and the model takes {info.dtype}",
                where=where,
                hint="convert it, as is done before the model is run",
            )
        array = array.astype(dtype)
    wanted = f"{info.dtype}[{', '.join(map(str, info.shape))}]"
    fits = array.ndim == len(info.shape) and all(
        not isinstance(d, int) or d == s for d, s in zip(info.shape, array.shape, strict=False)
    )
    if info.kind == "tensor" and not fits:
        raise InputError(
            f"the data has the shape {list(array.shape)}, and the model takes {wanted}",
            where=where,
            hint="the first axis of an array are samples; one with an axis more than its input holds whole calls",
        )
    if array.size == 0:
        raise InputError(
            f"the data has the shape {list(array.shape)}: it is empty",
            where=where,
            hint="give at least one sample, of sizes that are not 0: the first axis of an array are samples",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(
            "the data has elements that are NaN or infinite", where=where, hint="leave such samples out"
        )
    return array


def _check_dims(arrays: Mapping[str, np.ndarray], inputs: Sequence[TensorInfo], where: str) -> None:
    """Dims of one name have one size in a call."""
    sizes: dict[str, tuple[int, str]] = {}
    for info in inputs:
        for dim, size in zip(info.shape, arrays[info.name].shape, strict=False):
            if isinstance(dim, str) and sizes.setdefault(dim, (size, info.name))[0] != size:
                other, name = sizes[dim]
                raise InputError(
                    f"the dim '{dim}' is {other} in '{name}' and {size} in '{info.name}'", where=where
                )


def fingerprint(*parts: Any) -> str:
    """A digest of JSON data."""
    return hashlib.blake2b(
        json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16
    ).hexdigest()
