"""Sizes of dims that nobody has given: usual ones, and of these what the model takes.

What a model demands of its dims (multiples, least sizes, equal sizes) is met by `search` before the first call. What
its conditions do not say is known to its code, which checks every call: so sizes are tried, and an error that names a
dim says which of them to change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise

from tilewright.cli.inputs.search import value_of, variables
from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import InputError

BATCH = (1, 2, 4, 8)
IMAGE = (224, 256, 320, 512, 640, 299, 384, 416, 112, 128, 64, 32, 1024, 800, 28)
"""Extents of images that networks are trained with."""

SOUND = (16000, 48000, 32000, 512, 480000, 8000, 1600, 400, 80000)
"""Samples: seconds at usual rates, and frames."""

FRAMES = (100, 128, 200, 300, 400, 64, 3000, 1000)
LENGTH = (32, 128, 64, 16, 8, 256, 512, 1, 77, 2, 4)
"""Of texts and other sequences."""

OTHER = (*range(1, 11), 12, 15, 16, 20, 24, 32, 48, 50, 64, 77, 80, 96, 100, 128, 192, 256, 384, 512, 1024)
"""Whatever else may be asked for."""

MOST_TRIES = 400

_NAMES: tuple[tuple[str, Sequence[int]], ...] = (
    (r"batch|num_?images", BATCH),
    (r"past", (16, 1, 0, 32, 64, 128)),
    (r"height|width|^h$|^w$|image|rows|cols|pixel|resol", IMAGE),
    (r"sample|audio|wave|sound|speech|signal|wav", SOUND),
    (r"frame|mel|^time|_time", FRAMES),
    (r"seq|len|token|text|words|^s$|^l$|^t$", LENGTH),
)
_COLOURS = (1, 3, 4)


def usual_sizes(infos: Sequence[TensorInfo]) -> dict[str, Sequence[int]]:
    """For each symbolic dim of the inputs the sizes that it may usually have, the most usual one first: by its name, or
    by where it stands."""
    found: dict[str, Sequence[int]] = {}
    names = {d for info in infos for dim in info.shape if isinstance(dim, str) for d in variables(dim)}
    for info in infos:
        for axis, dim in enumerate(info.shape):
            if isinstance(dim, str) and dim.isidentifier() and dim not in found:
                found[dim] = _by_name(dim, info.name, axis) or _by_place(info, axis)
    return {name: found[name] if name in found else _by_name(name, "", 1) or OTHER for name in sorted(names)}


def _by_name(dim: str, input_name: str, axis: int) -> Sequence[int] | None:
    """What the name of a dim says; one that only repeats that of its input says nothing by itself."""
    own = re.fullmatch(re.escape(input_name) + r"_(d|dim)?_?\d+", dim) is None
    if axis == 0 and len(dim) == 1:
        return None  # whatever letter a batch has
    return next((sizes for pattern, sizes in _NAMES if own and re.search(pattern, dim.lower())), None)


def _by_place(info: TensorInfo, axis: int) -> Sequence[int]:
    rank, is_float = len(info.shape), "float" in info.dtype
    fixed = [dim for dim in info.shape if isinstance(dim, int)]
    is_image = rank in (4, 5) or (rank == 3 and any(dim in _COLOURS for dim in fixed) and info.dtype == "uint8")
    if axis == 0 and rank > 1:
        return BATCH
    if is_image:
        return IMAGE if not fixed or any(dim in _COLOURS for dim in fixed) else (7, 14, 28, 56, *IMAGE)
    if re.search(r"audio|wav|sound|speech|signal", info.name.lower()):
        return SOUND
    if rank == 1 and axis == 0:
        return BATCH
    if rank == 2 and is_float and not fixed:
        return (*SOUND[:1], *OTHER)
    return FRAMES if rank == 3 and is_float and axis == 2 else LENGTH


def find_sizes(
    choices: Mapping[str, Sequence[int]],
    fails: Callable[[dict[str, int]], InputError | None],
    start: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Sizes for which a call does not fail: those of `start` (by default the usual ones) if they do not. Dims that an
    error names are changed, one alone or several to the same size. InputError of the first try where nothing is
    found."""
    sizes = {name: usual[0] for name, usual in choices.items()} if start is None else dict(start)
    first = error = fails(dict(sizes))
    seen, tries = set[str](), 0
    while error is not None and first is not None:
        seen.add(error.what)
        for other in _others(error, sizes, choices):
            tries += 1
            if tries > MOST_TRIES:
                raise first
            failed = fails(dict(other))
            if failed is None or failed.what not in seen:
                sizes, error = other, failed
                break
        else:
            raise first
    return sizes


def _others(
    error: InputError, sizes: Mapping[str, int], choices: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, int]]:
    words = set(re.findall(r"\w+", error.what))
    named = [name for name in choices if name in words]
    equal = [dict.fromkeys([*(sizes[name] for name in named), *choices[named[-1]], *OTHER])] if len(named) > 1 else []
    for size in chain(*equal):
        yield {**sizes, **dict.fromkeys(named, size)}
    named = named or sorted(choices, key=lambda name: choices[name] is BATCH)  # those of batches last
    tried = [dict.fromkeys([*choices[name], *OTHER]) for name in named]
    for name, candidates in zip(named, tried, strict=True):
        yield from ({**sizes, name: size} for size in candidates)
    for first, other in pairwise(named):
        for size in islice(dict.fromkeys([*choices[first], *OTHER]), 20):
            yield from ({**sizes, first: size, other: more} for more in choices[other][:8])


def size_of(dim: int | str, sizes: Mapping[str, int]) -> int:
    """The size of a dim that may be computed of others; ValueError for what cannot be computed."""
    return dim if isinstance(dim, int) else sizes[dim] if dim in sizes else int(value_of(dim, sizes))
