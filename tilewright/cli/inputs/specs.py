"""Inputs on the command line, `--input name=file.npy` or `name=random`, and the files of outputs."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click
import ml_dtypes
import numpy as np

from tilewright.cli.inputs.search import Search, elements_of, variables
from tilewright.cli.inputs.sizes import find_sizes, size_of, usual_sizes
from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import InputError, short_name
from tilewright.runtime.storage.files import check_replaced, refused, replacing, write_slices
from tilewright.runtime.values.recorded import FORMATS, SUFFIXES, kind_of, load_arrays, read_input

T = TypeVar("T")

MAX_INTEGER = 10
"""Random integers are below this where nothing else is known of them."""

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
    for `sizes` of dims; the sizes of other dims can be chosen among `choices`. Random integers are `below` numbers or
    texts of dims, where they are indices."""

    infos: Sequence[TensorInfo]
    values: Mapping[str, Any]
    made: Mapping[str, str]
    sizes: Mapping[str, int]
    choices: Mapping[str, Sequence[int]]
    below: Mapping[str, Sequence[int | str]] = field(default_factory=dict)

    def arrays(self, chosen: Mapping[str, int] = {}) -> dict[str, Any]:
        """All values, with these sizes where they can be chosen, and else the most usual ones."""
        sizes = {**{name: usual[0] for name, usual in self.choices.items()}, **self.sizes, **chosen}
        rng = np.random.default_rng(0)
        made = {info.name: _made_value(info, self.made[info.name], sizes, rng, self._limit(info.name, sizes))
                for info in self.infos if info.name in self.made}  # fmt: skip
        return {info.name: {**self.values, **made}[info.name] for info in self.infos
                if info.name in self.values or info.name in made}  # fmt: skip

    def first_call(
        self, run: Callable[[dict[str, Any]], T], assumed: Sequence[str] = ()
    ) -> tuple[dict[str, Any], T, dict[str, int]]:
        """Call with sizes that the model takes, of which conditions are `assumed`: the inputs, the result, and the
        sizes that were chosen. InputError of the first sizes where none of those that were tried are taken."""
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
            start = Search(self.choices, self.sizes, self._elements, MOST_FOUND).satisfying(assumed)
            sizes = find_sizes(self.choices, fails, start)
        except InputError as error:
            raise self._with_dims(error, start) from error
        return *done[-1], sizes

    def _limit(self, name: str, sizes: Mapping[str, int]) -> int:
        """What random integers of an input are below."""
        rows = []
        for dim in self.below.get(name, ()):
            with suppress(ValueError):  # of dims that inputs do not have
                rows.append(size_of(dim, sizes))
        return max(min(rows, default=MAX_INTEGER), 1)

    def indices(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """What random indices are below, for sizes that were chosen."""
        return {name: self._limit(name, {**self.sizes, **chosen}) for name, how in self.made.items()
                if how == "random" and name in self.below}  # fmt: skip

    def _elements(self, sizes: Mapping[str, Any]) -> Any:
        """Of all inputs that are made; infinitely many where a size cannot be computed."""
        return elements_of([info.shape for info in self.infos if info.name in self.made], {**self.sizes, **sizes})

    def _with_dims(self, error: InputError, sizes: Mapping[str, int]) -> InputError:
        """The same error, which says how sizes are given, if some were made up: with the options that were tried."""
        named = set(re.findall(r"\w+", error.what))
        if not self.choices or (named & set(self.sizes) and not named & set(self.choices)):
            return error
        options = " ".join(f"--dim {shlex.quote(f'{short_name(name)}={size}')}" for name, size in sizes.items())
        hint = f"give sizes that fit in place of these: {options}"
        return InputError(error.what, where=error.where, hint=f"{error.hint}; {hint}" if error.hint else hint)


def sizes_chosen(sizes: Mapping[str, int]) -> str:
    """A line for sizes that nobody gave."""
    return f"sizes: {', '.join(f'{short_name(name)}={size}' for name, size in sizes.items())} (--dim changes them)"


def make_inputs(infos: Sequence[TensorInfo], specs: Sequence[str], dims: Mapping[str, int]) -> dict[str, Any]:
    """The inputs of a model as told, with the most usual sizes where none are given."""
    return read_specs(infos, specs, dims).arrays()


def indices_chosen(indices: Mapping[str, int]) -> str:
    """A line for indices that are random."""
    named = ", ".join(f"{short_name(name)} below {rows}" for name, rows in indices.items())
    return f"random indices within what they look up: {named}"


def read_specs(
    infos: Sequence[TensorInfo],
    specs: Sequence[str],
    dims: Mapping[str, int],
    below: Mapping[str, Sequence[int | str]] | None = None,
) -> Given:
    """What the texts of --input and --dim say, and what random integers are `below`; InputError for names that the
    model does not have and files that cannot be read."""
    known = set().union(*(variables(d) for info in infos for d in info.shape if isinstance(d, str)))
    if unknown := set(dims) - known:
        listed = ", ".join(sorted(known)) or "none"
        raise InputError(
            f"the model has no symbolic dim '{min(unknown)}'", hint=f"its symbolic dims: {listed}"
        )
    by_name, others = _by_name(infos, specs)
    values: dict[str, Any] = {}
    if others is not None and others not in MADE:
        left = [info for info in infos if info.name not in by_name]
        if len(left) == 1 and (not is_path(others) or kind_or_nothing(Path(others)) in ("npy", "image", "sound")):
            by_name[left[0].name] = others
        else:
            values = _values_of_file(infos, left, others)
        others = None
    made: dict[str, str] = {}
    for info in infos:
        spec = by_name.get(info.name, others)
        if spec in MADE or (spec is not None and _fills(info, spec)):
            made[info.name] = spec
        elif spec is not None:
            values[info.name] = _value(info, spec, dims)
    if missing := [info for info in infos if info.name not in values and info.name not in made]:
        option = shlex.quote(f"{short_name(missing[0].name)}=VALUE")
        hint = f"--input {option}, or --input random for all that have none"
        raise InputError(f"no values are given for: {', '.join(map(str, missing))}", hint=hint)
    sizes = {**_sizes_of(infos, values), **dims}
    free = usual_sizes([info for info in infos if info.name in made])
    choices = {name: usual for name, usual in free.items() if name not in sizes}
    return Given(infos, values, made, sizes, choices, below or {})


MOST_FOUND = 1 << 25
"""Elements of inputs with which the conditions of a model hold, if the usual sizes do not have more."""

MOST_TRIED = 1 << 21
"""Elements of inputs, where sizes are not the first that are tried: a few milliseconds to make."""

MADE = ("random", "zeros")
"""Values that are made."""


def _values_of_file(infos: Sequence[TensorInfo], left: Sequence[TensorInfo], text: str) -> dict[str, Any]:
    """The arrays that a file has for the inputs that are `left`, which are not named otherwise."""
    path = Path(text)
    if not is_path(text):
        raise _for_which(text, left)
    arrays = load_arrays(path, f"--input {text}")
    if "" in arrays and len(left) > 1:
        raise _for_which(text, left)
    known = {info.name for info in infos}
    if unknown := [name for name in arrays if name not in known and len(arrays) + len(left) != 2]:
        raise _no_input(unknown[0], infos, f", which {path} has")
    alone = len(arrays) == len(left) == 1
    return {info.name: read_input(path, info) for info in left if info.name in arrays or alone}


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
            raise _no_input(spec.partition("=")[0], infos)
        elif name in found:
            raise click.UsageError(f"--input is given twice for {name}")
        else:
            found[name] = value
    return found, others


def _for_which(text: str, left: Sequence[TensorInfo]) -> InputError:
    names = ", ".join(short_name(info.name) for info in left) or "none"
    what = f"--input {short_name(text)} does not say for which input it is"
    return InputError(what, hint=f"write NAME=VALUE; not given are: {names}")


def _no_input(name: str, infos: Sequence[TensorInfo], more: str = "") -> InputError:
    close = difflib.get_close_matches(name, [info.name for info in infos], 1)
    hint = f"the model's inputs are: {', '.join(map(str, infos))}"
    said = f"did you mean '{short_name(close[0])}'? {hint}" if close else hint
    return InputError(f"the model has no input '{short_name(name)}'{more}", hint=said)


def _value(info: TensorInfo, spec: str, dims: Mapping[str, int]) -> Any:
    """A number, a list, or what a file holds."""
    if info.kind not in ("tensor", "unranked"):
        raise _unwritable(info)
    given = _listed(spec, info)
    if given is None:
        return read_input(Path(spec), info, dims)
    static = [d for d in info.shape if isinstance(d, int)]
    return np.full(static, given) if not given.ndim and info.kind == "tensor" else given


def _fills(info: TensorInfo, spec: str) -> bool:
    """Whether a text is a number for all elements of an input, however many these are."""
    if info.kind != "tensor" or not any(isinstance(d, str) for d in info.shape):
        return False
    given = _listed(spec, info)
    return given is not None and not given.ndim


def _listed(spec: str, info: TensorInfo) -> np.ndarray | None:
    """The number or the list that a text is, in the type of an input; None for the name of a file. InputError where it
    is neither."""
    where, dtype = f"input '{info.name}'", dtype_of(info)
    try:
        given = _texts(spec) if dtype == np.object_ else numbers(spec)
    except (ValueError, RecursionError) as error:
        if is_path(spec):
            return None
        what = "a text in quotes" if dtype == np.object_ else "a number"
        close = difflib.get_close_matches(spec.lower(), MADE, 1)
        choice = f"a value is {what}, a list such as [1,2,3], random, zeros, or a file ({FORMATS})"
        hint = f"did you mean '{close[0]}'?" if close else choice
        what = f"'{short_name(spec)}' is neither {what}, nor a list, nor a file"
        raise InputError(what, where=where, hint=hint) from error
    array = np.asarray(given)
    if dtype.kind in "iub" and not (array.dtype.kind in "biuf" and _survives(array, dtype)):
        raise InputError(f"{short_name(spec)} is no value of {info.dtype}", where=where)
    return array.astype(dtype)


def _survives(array: np.ndarray, dtype: np.dtype) -> bool:
    with np.errstate(invalid="ignore"):  # numbers that no integer is
        return np.array_equal(array, array.astype(dtype))


def is_path(text: str) -> bool:
    """Whether a text may only be a path: something has it, or it ends as files of inputs do."""
    return bool(text) and (Path(text).suffix.lower() in SUFFIXES or os.path.lexists(text))


def _texts(text: str) -> Any:
    """A text in quotes, or a nested list of such; ValueError for anything else."""
    found = np.asarray(json.loads(text), object)
    if not all(isinstance(each, str) for each in found.flat):
        raise ValueError(text)
    return found


def numbers(text: str) -> Any:
    """A number, truth value, or nested list; ValueError for anything else."""
    if "," in text and not text.lstrip().startswith("["):
        text = f"[{text}]"
    try:
        found = json.loads(text)
    except ValueError:
        found = float(text)
    array = np.asarray(found)
    is_large = array.dtype == np.object_ and all(isinstance(each, int) for each in array.flat)
    if array.dtype.kind not in "biuf" and not is_large:
        raise ValueError(text)
    return found


def _unwritable(info: TensorInfo) -> InputError:
    return InputError(f"'{info}' cannot be given on the command line", hint="run the model from Python")


def _made_value(
    info: TensorInfo, spec: str, sizes: Mapping[str, int], rng: np.random.Generator, below: int
) -> np.ndarray:
    if info.kind not in ("tensor", "unranked"):
        raise _unwritable(info)
    shape = tuple(_size(d, info, sizes) for d in info.shape)
    try:
        return _made(spec, shape, dtype_of(info), rng, below) if spec in MADE else np.full(shape, _listed(spec, info))
    except (MemoryError, ValueError, OverflowError) as error:
        raise InputError(
            f"no memory for input '{info.name}': {info.dtype}{list(shape)}", hint="give smaller sizes"
        ) from error


def _made(spec: str, shape: tuple[int, ...], dtype: np.dtype, rng: np.random.Generator, below: int) -> np.ndarray:
    """Zeros or random numbers, integers `below` a limit; strings are empty, or numbers."""
    if dtype == np.object_:
        words = np.zeros(shape, "U1") if spec == "zeros" else rng.integers(0, MAX_INTEGER, shape).astype(str)
        return np.asarray(words, object)
    if spec == "zeros":
        return np.zeros(shape, dtype)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < 0.5)
    if np.issubdtype(dtype, np.integer) or dtype.name in SMALL_INTEGERS:
        limit = min(below, SMALL_INTEGERS.get(dtype.name) or np.iinfo(dtype).max)
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
