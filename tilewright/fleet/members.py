"""The models of a fleet: their names, where they come from, and how each is compiled."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.options import Options, Request
from tilewright.runtime.errors import OptionError, TilewrightError, short_name
from tilewright.runtime.storage.fleet import SUFFIX
from tilewright.runtime.storage.store import FOLDER

LIST_SUFFIX = ".toml"
"""Of a file that lists models and their options."""

_OF_REQUEST = ("constants", "shapes")
_PATHS = ("schedule",)
"""Options that may be paths, relative to the file that lists them."""


@dataclass(frozen=True)
class Member:
    """A model of a fleet: what it is compiled from, and how."""

    name: str
    source: Path
    request: Request
    options: Options

    @classmethod
    def of(cls, name: str, source: Path, how: Mapping[str, Any]) -> Member:
        """OptionError for a name or an option that cannot be."""
        of_request = {key: how.get(key) for key in _OF_REQUEST}
        options = Options.of(None, **{key: value for key, value in how.items() if key not in _OF_REQUEST})
        return cls(checked_name(name), source, Request.of(source, **of_request), options)


def checked_name(name: str) -> str:
    """The name, if it is one of a model of a fleet: parts between slashes, each a name of a file. OptionError."""
    parts = name.split("/")
    why = ""
    if any(not part or part.startswith(".") or "\\" in part or not part.isprintable() for part in parts):
        why = "each part between slashes is the name of a file that is seen"
    elif parts[0].casefold() == FOLDER and len(parts) > 1:
        why = f"{FOLDER}/ holds the code and the weights of all models"
    elif any(part.casefold().endswith(SUFFIX) for part in parts[:-1]):
        why = f"a folder ends in {SUFFIX}, as files do"
    if why:
        raise OptionError(
            f"{name!r:.200} is no name for a model of a fleet: {why}", hint="name it in a .toml file: [models.NAME]"
        )
    return name


def members_of(sources: Sequence[Path], how: Mapping[str, Any]) -> tuple[Member, ...]:
    """The models of some files, and those that .toml files among them list, compiled as `how` says (keywords of
    `tilewright.compile`), or as the list says. OptionError where two have one name, and for what cannot be read."""
    found: list[Member] = []
    for path in sources:
        if path.suffix == LIST_SUFFIX:
            found += _listed(path, how)
    own = [path for path in sources if path.suffix != LIST_SUFFIX]
    found += [Member.of(name, path, how) for name, path in named(own).items()]
    by_name: dict[str, Member] = {}
    for member in found:
        other = by_name.setdefault(member.name.casefold(), member)
        if other is not member:
            raise OptionError(
                f"{member.source} and {other.source} would both be the model '{member.name}'",
                hint=f"name one of them in a {LIST_SUFFIX} file: [models.NAME]",
            )
    return tuple(sorted(found, key=lambda member: member.name))


def named(sources: Sequence[Path]) -> dict[str, Path]:
    """Names for files, each file once (a link is a file of its own name): its own name without the suffix; where
    several have one, also the folders by which they differ, and where that is not enough, the suffix."""
    files = list({_place(path): path for path in reversed(sources)}.values())[::-1]
    groups: dict[str, list[Path]] = {}
    for path in files:
        groups.setdefault(_stem(path).casefold(), []).append(path)
    names = {_stem(paths[0]): paths[0] for paths in groups.values() if len(paths) == 1}
    for paths in (paths for paths in groups.values() if len(paths) > 1):
        folders = [path.absolute().parent for path in paths]
        above = os.path.commonpath(folders)
        places = zip(folders, paths, strict=True)
        longer = [(folder.relative_to(above) / _stem(path)).as_posix() for folder, path in places]
        for name, path in zip(longer, paths, strict=True):
            alike = [other.casefold() for other in longer].count(name.casefold()) > 1
            name = name if not alike else f"{name}{path.suffix}"
            other = names.setdefault(name, path)
            if other is not path:
                raise OptionError(f"{path} and {other} would both be the model '{name}'")
    return names


def _place(path: Path) -> Path:
    """A path in one spelling. What it is a link to does not count."""
    whole = path.absolute()
    return Path(os.path.realpath(whole.parent), whole.name)


def _stem(path: Path) -> str:
    """A folder (a language model is one) has no suffix, whatever its name."""
    return path.absolute().name if path.is_dir() else path.stem


def _listed(path: Path, how: Mapping[str, Any]) -> list[Member]:
    """The models that a file lists. Paths in it are relative to its folder."""
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except (OSError, ValueError) as error:  # a TOMLDecodeError and a UnicodeDecodeError are ValueErrors
        raise OptionError(f"the list of models {path} cannot be read: {error}", hint=_EXAMPLE) from error
    unknown = sorted(data.keys() - {"defaults", "models"})
    models, defaults = data.get("models"), data.get("defaults", {})
    if unknown or not isinstance(models, dict) or not models or not isinstance(defaults, dict):
        what = f"has {unknown[0]!r:.80}" if unknown else "lists no models"
        raise OptionError(f"the list of models {path} {what}", hint=_EXAMPLE)
    return [_entry(path, name, entry, {**how, **defaults}) for name, entry in models.items()]


def _entry(path: Path, name: str, entry: Any, how: Mapping[str, Any]) -> Member:
    where = f"{path}: models.{short_name(name)}"
    if not isinstance(entry, dict) or not isinstance(entry.get("source"), str):
        raise OptionError("a model of the list has no source", where=where, hint=_EXAMPLE)
    own = {key: value for key, value in entry.items() if key != "source"}
    for key in (*_PATHS, "constants"):
        if isinstance(own.get(key), str):
            own[key] = path.parent / own[key]
    try:
        return Member.of(name, path.parent / entry["source"], {**how, **own})
    except TilewrightError as error:
        error.where = where
        raise


_EXAMPLE = 'such as: [models.resnet50], source = "resnet50.onnx", shapes = { input = [8, 3, 224, 224] }'
