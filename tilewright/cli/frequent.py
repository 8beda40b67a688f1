"""Frequent sizes on the command line: `--frequent batch=1,height=224`, and files of sizes that runs had."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from tilewright.cli.inputs.specs import MAX_DIGITS
from tilewright.runtime.errors import InputError
from tilewright.runtime.sizes_seen import MAX_FREQUENT, SizesSeen
from tilewright.runtime.storage.files import replacing

SUFFIX = ".json"


def read_frequent(texts: Sequence[str]) -> list[dict[str, int]]:
    """Sizes by name from `batch=1,height=224` texts, and the most frequent ones of files that end in .json."""
    found: list[dict[str, int]] = []
    for text in texts:
        if text.endswith(SUFFIX):
            found += [dict(seen.sizes) for seen in read_sizes_seen(Path(text))[:MAX_FREQUENT]]
        else:
            found.append(_sizes(text))
    return found


def read_sizes_seen(path: Path) -> list[SizesSeen]:
    """What a file says, the most frequent first; InputError where it cannot be read."""
    hint = f"make it with `tilewright run MODEL --sizes-seen {path}`"
    try:
        records = json.loads(path.read_bytes())
        if not isinstance(records, list):
            raise ValueError("it is no list")
        found = [SizesSeen({str(k): int(v) for k, v in r["sizes"].items()}, int(r["calls"])) for r in records]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", hint=hint) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} does not hold sizes and how many calls had them", hint=hint) from error
    return sorted(found, key=lambda seen: -seen.calls)


def add_sizes_seen(path: Path, seen: Sequence[SizesSeen]) -> None:
    """Add calls to those that a file counts, or make the file."""
    calls: dict[tuple[tuple[str, int], ...], int] = {}
    for one in (*(read_sizes_seen(path) if path.exists() else ()), *seen):
        key = tuple(one.sizes.items())
        calls[key] = calls.get(key, 0) + one.calls
    ordered = sorted(calls.items(), key=lambda item: -item[1])
    lines = [json.dumps({"calls": count, "sizes": dict(key)}) for key, count in ordered]
    with replacing(path) as file:
        file.write(("[" + ",\n ".join(lines) + "]\n").encode())


def _sizes(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (p.strip() for p in part.rpartition("="))
        if not name or not (size.isascii() and size.isdecimal()) or len(size) > MAX_DIGITS or name in sizes:
            raise click.UsageError(
                f"--frequent {text}: write sizes of different dims, such as batch=1,height=224, or FILE{SUFFIX}"
            )
        sizes[name] = int(size)
    return sizes
