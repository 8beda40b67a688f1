"""Tensors on the command line: `--input name=file.npy`, `name=random`, and output files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import click
import ml_dtypes
import numpy as np

from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.files import (
    FIRST_BYTES,
    check_replaced,
    open_at_once,
    refused,
    replacing,
    write_slices,
)

MAX_INTEGER = 10
"""Random integers are below this: most are ids into tables, and few tables are smaller."""

MAX_DIGITS = 18
"""Digits of a size at most: it then fits 64 bits."""

MAX_STEM = 150
"""Bytes of an output's name that are used for the name of its file; file systems allow 255 in all."""

SMALL_INTEGERS = {"int2": 2, "uint2": 4, "int4": 7, "uint4": 7}
"""Integers of less than 8 bits with what random values are below."""

input_option = click.option(
    "--input", "specs", multiple=True, metavar="NAME=FILE.npy|random|zeros",
    help="Value of an input; without NAME= for all inputs that are not named.",
)  # fmt: skip
dim_option = click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of a symbolic dim of random inputs  [default: 1]",
)


def read_dims(texts: Sequence[str]) -> dict[str, int]:
    """Sizes by name from `batch=4` texts."""
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if not name or not (size.isascii() and size.isdecimal()) or len(size) > MAX_DIGITS:
            raise click.UsageError(f"--dim {text}: write NAME=SIZE, such as batch=4")
        if name in sizes:
            raise click.UsageError(f"--dim is given twice for {name}")
        sizes[name] = int(size)
    return sizes


def files_of(specs: Iterable[str]) -> list[Path]:
    """The files that texts of --input name, with other paths that may be meant."""
    return [Path(text) for spec in specs for text in (spec, spec.rpartition("=")[2]) if text]


def make_inputs(
    infos: Sequence[TensorInfo], specs: Sequence[str], dims: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """The inputs of a model as told; InputError for names it does not have and files that cannot be read."""
    known = {d for info in infos for d in info.shape if isinstance(d, str)}
    if unknown := set(dims) - known:
        listed = ", ".join(sorted(known)) or "none"
        raise InputError(
            f"the model has no symbolic dim '{min(unknown)}'", hint=f"its symbolic dims: {listed}"
        )
    by_name, others = _by_name(infos, specs)
    rng = np.random.default_rng(0)
    values = {}
    for info in infos:
        spec = by_name.get(info.name, others)
        if spec is not None:
            values[info.name] = _value(info, spec, dims, rng)
    return values


def _by_name(infos: Sequence[TensorInfo], specs: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """The texts by input, and that for inputs which are not named."""
    names = {info.name for info in infos}
    found: dict[str, str] = {}
    others = None
    for spec in specs:
        name, equals, value = spec.partition("=")
        while equals and name not in names and "=" in value:  # names of tensors may hold '='
            more, _, value = value.partition("=")
            name = f"{name}={more}"
        if not equals:
            if others is not None:
                raise click.UsageError(f"--input is given twice without NAME=: {others} and {spec}")
            others = spec
        elif name not in names:
            hint = f"the model's inputs are: {', '.join(map(str, infos))}"
            raise InputError(f"the model has no input '{spec.partition('=')[0]}'", hint=hint)
        elif name in found:
            raise click.UsageError(f"--input is given twice for {name}")
        else:
            found[name] = value
    return found, others


def _value(info: TensorInfo, spec: str, dims: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    if info.kind not in ("tensor", "unranked"):
        raise InputError(f"'{info}' cannot be given on the command line", hint="run the model from Python")
    if spec not in ("random", "zeros"):
        return read_array(Path(spec), info)
    shape = tuple(_size(d, info, dims) for d in info.shape)
    try:
        return _made(spec, shape, dtype_of(info), rng)
    except (MemoryError, ValueError, OverflowError) as error:
        raise InputError(
            f"no memory for input '{info.name}': {info.dtype}{list(shape)}", hint="give smaller sizes"
        ) from error


def _made(spec: str, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator) -> np.ndarray:
    """Zeros or random numbers; strings are empty, or numbers."""
    if dtype == np.object_:
        words = np.zeros(shape, "U1") if spec == "zeros" else rng.integers(0, MAX_INTEGER, shape).astype(str)
        return np.asarray(words, object)
    if spec == "zeros":
        return np.zeros(shape, dtype)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if np.issubdtype(dtype, np.integer) or dtype.name in SMALL_INTEGERS:
        limit = SMALL_INTEGERS.get(dtype.name, MAX_INTEGER)
        return np.asarray(rng.integers(0, limit, shape)).astype(dtype)
    numbers = np.asarray(rng.standard_normal(shape))
    if dtype.kind == "c":
        numbers = numbers + 1j * rng.standard_normal(shape)
    return (np.abs(numbers) if dtype.name == "float8_e8m0fnu" else numbers).astype(dtype)  # which has no sign


def _size(dim: int | str, info: TensorInfo, dims: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim.isidentifier():
        return dims.get(dim, 1)
    raise InputError(
        f"'{info}' has a dim that is computed", hint=f"give its value as a file: {info.name}=FILE.npy"
    )


def dtype_of(info: TensorInfo) -> np.dtype:
    """The NumPy dtype of a tensor, also of those that `ml_dtypes` adds."""
    if info.dtype == "string":
        return np.dtype(object)
    named = getattr(ml_dtypes, info.dtype, None)
    return np.dtype(named if named is not None else info.dtype)


def read_array(path: Path, info: TensorInfo) -> np.ndarray:
    """The array in a .npy file, of the type that the input has; InputError when it is no such file."""
    array = load_array(path, f"input '{info.name}'")
    # NumPy writes the types of ml_dtypes as raw bytes
    dtype = dtype_of(info)
    return array.view(dtype) if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize else array


def load_array(path: Path, where: str) -> np.ndarray:
    """The array in a .npy file for what `where` names; InputError when it is no such file."""
    hint = "write it with numpy.save(path, array)"
    try:
        with open(path, "rb", opener=open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError("it is not a regular file")
            begins = file.read(FIRST_BYTES)
        if not (is_numpys(begins) or begins.startswith(b"PK")):
            raise InputError(f"{path} is not a .npy file: it begins otherwise", where=where, hint=hint)
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", where=where) from error
    except MemoryError as error:
        raise InputError(f"no memory for {path}: {error}", where=where, hint="is the file sound?") from error
    except _DAMAGED as error:
        raise InputError(f"{path} is not a .npy file: {error}", where=where, hint=hint) from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} holds several arrays", where=where, hint="write one with numpy.save")
    return array


def is_numpys(begins: bytes) -> bool:
    """Whether a file with these first bytes is one of `numpy.save`."""
    return begins.startswith(b"\x93NUMPY")


_DAMAGED = (ValueError, EOFError, BadZipFile)
"""What NumPy raises for a file of another kind."""


def check_outputs(
    folder: Path, infos: Sequence[TensorInfo], sources: Iterable[Path] = (), force: bool = False
) -> None:
    """ArtifactError where files of the outputs would replace one of the `sources`, or what is no .npy file."""
    sources = list(sources)
    for path in _output_paths(folder, infos):
        check_replaced(path, "a .npy file", is_numpys, sources=sources, force=force)


def write_outputs(folder: Path, infos: Sequence[TensorInfo], arrays: Sequence[np.ndarray]) -> list[Path]:
    """Write each output to a .npy file named after it: all of them or none.

    ArtifactError, which names the path, for what the file system refuses.
    """
    other = next((info for info in infos if info.kind not in ("tensor", "unranked")), None)
    if other is not None:
        raise InputError(f"the output {other} cannot be written to a file", hint="run the model from Python")
    paths = _output_paths(folder, infos)
    made = _make_folders(folder)
    try:
        with ExitStack() as files:  # each takes its name when all are written
            for path, array in zip(paths, arrays, strict=True):
                file = files.enter_context(replacing(path))
                np.save(_Slices(file), array.astype(str) if array.dtype == np.object_ else array)
                file.flush()
    except BaseException:
        with suppress(OSError):
            for new in reversed(made):
                new.rmdir()
        raise
    return paths


class _Slices:
    """A file to which NumPy writes slice by slice: straight to a file it would lose the system's reason."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        write_slices(self._file, data)


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it that are missing; which these were."""
    missing = [f for f in (*reversed(folder.absolute().parents), folder) if not f.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(folder, error) from error
    return missing


def _output_paths(folder: Path, infos: Sequence[TensorInfo]) -> list[Path]:
    """A file for each output; names of tensors may hold anything, and be of any length, file names not."""
    paths: list[Path] = []
    for index, info in enumerate(infos):
        stem = re.sub(r"[^\w.-]+", "_", info.name).encode()[:MAX_STEM].decode(errors="ignore").strip("._")
        path = folder / f"{stem or f'output{index}'}.npy"
        paths.append(path if path not in paths else folder / f"{stem}.{index}.npy")
    return paths
