"""Inputs on the command line, `--input name=file.npy` or `name=random`, and the files of outputs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click
import ml_dtypes
import numpy as np

from tilewright.cli.inputs.sizes import find_sizes, size_of, usual_sizes, variables
from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import InputError, short_name
from tilewright.runtime.storage.files import check_replaced, refused, replacing, write_slices
from tilewright.runtime.values.recorded import FORMATS, kind_of, load_arrays, read_input

T = TypeVar("T")

MAX_INTEGER = 10
"""Random integers are below this: most are ids into tables, and few tables are smaller."""

MAX_DIGITS = 18
"""Digits of a size at most: it then fits 64 bits."""

MAX_STEM = 150
"""Bytes of an output's name that are used for the name of its file; file systems allow 255 in all."""

SMALL_INTEGERS = {"int2": 2, "uint2": 4, "int4": 7, "uint4": 7}
"""Integers of less than 8 bits with what random values are below."""

input_option = click.option(
    "--input", "specs", multiple=True, metavar="NAME=VALUE",
    help=f"Value of an input: a file ({FORMATS}), a number or a list such as 1,2,3, random or zeros; without NAME= "
    "for all inputs that are not named, or FILE.npz with an array for each.",
)  # fmt: skip
dim_option = click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=SIZE",
    help="Size of a symbolic dim of random inputs  [default: a usual one that the model takes]",
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


@dataclass(frozen=True)
class Given:
    """What a command line says of the inputs of a model: `values` are known, `made` are to be made (by "random", ...),
    for `sizes` of dims; the sizes of other dims can be chosen among `choices`."""

    infos: Sequence[TensorInfo]
    values: Mapping[str, Any]
    made: Mapping[str, str]
    sizes: Mapping[str, int]
    choices: Mapping[str, Sequence[int]]

    def arrays(self, chosen: Mapping[str, int] = {}) -> dict[str, Any]:
        """All values, with these sizes where they can be chosen, and else the most usual ones."""
        sizes = {**{name: usual[0] for name, usual in self.choices.items()}, **self.sizes, **chosen}
        rng = np.random.default_rng(0)
        made = {info.name: _made_value(info, self.made[info.name], sizes, rng) for info in self.infos
                if info.name in self.made}  # fmt: skip
        return {info.name: {**self.values, **made}[info.name] for info in self.infos
                if info.name in self.values or info.name in made}  # fmt: skip

    def first_call(self, run: Callable[[dict[str, Any]], T]) -> tuple[dict[str, Any], T, dict[str, int]]:
        """Call with sizes that the model takes: the inputs, the result, and the sizes that were chosen. InputError of
        the usual sizes where none of those that were tried are taken."""
        done: list[tuple[dict[str, Any], T]] = []
        failed: list[InputError] = []

        def fails(sizes: dict[str, int]) -> InputError | None:
            if failed and self._elements(sizes) > MOST_TRIED:
                return failed[0]
            try:
                inputs = self.arrays(sizes)
                done.append((inputs, run(inputs)))
            except InputError as error:
                failed.append(error)
                return error
            return None

        try:
            sizes = find_sizes(self.choices, fails)
        except InputError as error:
            raise self._with_dims(error) from error
        return *done[-1], sizes

    def _elements(self, sizes: Mapping[str, int]) -> int:
        """Of all inputs that are made; more than any where a size cannot be computed."""
        known = {**self.sizes, **sizes}
        try:
            shapes = [[size_of(dim, known) for dim in info.shape] for info in self.infos if info.name in self.made]
        except ValueError:
            return MOST_TRIED + 1
        return sum(map(math.prod, shapes))

    def _with_dims(self, error: InputError) -> InputError:
        """The same error, which says how sizes are given, if some were made up."""
        if not self.choices:
            return error
        hint = f"give sizes that fit with --dim NAME=SIZE (symbolic dims: {', '.join(self.choices)})"
        return InputError(error.what, where=error.where, hint=f"{error.hint}; {hint}" if error.hint else hint)


def sizes_chosen(sizes: Mapping[str, int]) -> str:
    """A line for sizes that nobody gave."""
    return f"sizes: {', '.join(f'{short_name(name)}={size}' for name, size in sizes.items())} (--dim changes them)"


def make_inputs(infos: Sequence[TensorInfo], specs: Sequence[str], dims: Mapping[str, int]) -> dict[str, Any]:
    """The inputs of a model as told, with the most usual sizes where none are given."""
    return read_specs(infos, specs, dims).arrays()


def read_specs(infos: Sequence[TensorInfo], specs: Sequence[str], dims: Mapping[str, int]) -> Given:
    """What the texts of --input and --dim say; InputError for names that the model does not have and files that cannot
    be read."""
    known = set().union(*(variables(d) for info in infos for d in info.shape if isinstance(d, str)))
    if unknown := set(dims) - known:
        listed = ", ".join(sorted(known)) or "none"
        raise InputError(
            f"the model has no symbolic dim '{min(unknown)}'", hint=f"its symbolic dims: {listed}"
        )
    by_name, others = _by_name(infos, specs)
    values: dict[str, Any] = {}
    if others is not None and others not in MADE:
        values, others = _values_of_file(infos, others, by_name), None
    made: dict[str, str] = {}
    for info in infos:
        spec = by_name.get(info.name, others)
        if spec in MADE:
            made[info.name] = spec
        elif spec is not None:
            values[info.name] = _value(info, spec, dims)
    sizes = {**_sizes_of(infos, values), **dims}
    free = usual_sizes([info for info in infos if info.name in made])
    return Given(infos, values, made, sizes, {name: usual for name, usual in free.items() if name not in sizes})


MOST_TRIED = 1 << 21
"""Elements of inputs, where sizes are not the first that are tried: a few milliseconds to make."""

MADE = ("random", "zeros")
"""Values that are made."""


def _values_of_file(infos: Sequence[TensorInfo], text: str, by_name: Mapping[str, str]) -> dict[str, Any]:
    """The arrays that a file has for inputs which are not named otherwise."""
    left = [info for info in infos if info.name not in by_name]
    if len(left) == 1 and not (text.endswith(".npz") or Path(text).is_file()):
        return {left[0].name: _value(left[0], text, {})}
    path = Path(text)
    if len(left) == 1 and kind_or_nothing(path) in ("npy", "image", "sound"):
        return {left[0].name: read_input(path, left[0])}
    arrays = load_arrays(path, f"--input {text}")
    names = {info.name for info in infos}
    if unknown := [name for name in arrays if name not in names and len(arrays) + len(left) != 2]:
        hint = f"the model's inputs are: {', '.join(map(str, infos))}"
        raise InputError(f"the model has no input '{unknown[0]}', which {path} has", hint=hint)
    return {info.name: read_input(path, info) for info in left if info.name in arrays or len(arrays) == 1}


def kind_or_nothing(path: Path) -> str:
    """As `kind_of`; "" for what cannot be read, too."""
    try:
        return kind_of(path)
    except (OSError, ValueError):
        return ""


def _sizes_of(infos: Sequence[TensorInfo], values: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of symbolic dims that given arrays have."""
    found: dict[str, int] = {}
    for info in infos:
        shape = np.shape(values[info.name]) if isinstance(values.get(info.name), np.ndarray) else ()
        for dim, size in zip(info.shape, shape, strict=False):
            if isinstance(dim, str):
                found.setdefault(dim, size)
    return found


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


def _value(info: TensorInfo, spec: str, dims: Mapping[str, int]) -> Any:
    """A number, a list, or what a file holds."""
    if info.kind not in ("tensor", "unranked"):
        raise _unwritable(info)
    try:
        given = numbers(spec)
    except (ValueError, RecursionError):
        return read_input(Path(spec), info, dims)
    dtype = dtype_of(info)
    array = np.asarray(given)
    if dtype == np.object_ or (dtype.kind in "iub" and not np.array_equal(array, array.astype(dtype))):
        raise InputError(f"{spec} is no value of {info.dtype}", where=f"input '{info.name}'")
    shape = info.shape
    if not array.ndim and shape and info.kind == "tensor":
        # one number for all elements
        sizes = [dims.get(d, 1) if isinstance(d, str) else d for d in shape]
        return np.full(sizes, given, dtype)
    return array.astype(dtype)


def numbers(text: str) -> Any:
    """A number, truth value, or nested list; ValueError for anything else."""
    if "," in text and not text.lstrip().startswith("["):
        text = f"[{text}]"
    try:
        found = json.loads(text)
    except ValueError:
        found = float(text)
    array = np.asarray(found)
    if array.dtype.kind not in "biuf":
        raise ValueError(text)
    return found


def _unwritable(info: TensorInfo) -> InputError:
    return InputError(f"'{info}' cannot be given on the command line", hint="run the model from Python")


def _made_value(info: TensorInfo, spec: str, sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    if info.kind not in ("tensor", "unranked"):
        raise _unwritable(info)
    shape = tuple(_size(d, info, sizes) for d in info.shape)
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


def _size(dim: int | str, info: TensorInfo, sizes: Mapping[str, int]) -> int:
    try:
        found = size_of(dim, sizes)
    except ValueError as error:
        raise InputError(
            f"'{info}' has a dim that is computed", hint=f"give its value as a file: {info.name}=FILE.npy"
        ) from error
    if found < 0:
        raise InputError(f"'{info}' would have the size {found} for {dim}", hint="give other sizes with --dim")
    return found


def dtype_of(info: TensorInfo) -> np.dtype:
    """The NumPy dtype of a tensor, also of those that `ml_dtypes` adds."""
    if info.dtype == "string":
        return np.dtype(object)
    named = getattr(ml_dtypes, info.dtype, None)
    return np.dtype(named if named is not None else info.dtype)


def is_numpys(begins: bytes) -> bool:
    """Whether a file with these first bytes is one of `numpy.save`."""
    return begins.startswith(b"\x93NUMPY")


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
