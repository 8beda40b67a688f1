"""Plugins: front ends, strategies, machines, back ends, kernels and compilers that other packages bring.

A distribution names its plugins as entry points:

    [project.entry-points."tilewright.plugins"]
    toy = "toy_package.plugin:PLUGIN"

where PLUGIN is a `Plugin`. They are found by looking into the folders of `sys.path` for the metadata that installers
write (`*.dist-info`, `*.egg-info`), which takes a millisecond; `importlib.metadata` takes 25 ms to be imported. They
are imported when something needs them: a model that the cache has needs none, if a front end of ours reads it.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tilewright.ir.diag import InputError, Remark

if TYPE_CHECKING:
    from tilewright.frontends.front_end import FrontEnd

GROUP = "tilewright.plugins"
KINDS = ("front_ends", "strategies", "machines", "back_ends", "kernels", "compilers")
"""What a plugin may bring: the fields of `Plugin`."""


class Named(Protocol):
    """A part of a plugin."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Plugin:
    """What a package adds to the compiler. A part has a name that no other part of its kind has."""

    name: str
    front_ends: tuple[FrontEnd, ...] = ()
    strategies: tuple[Named, ...] = ()
    machines: tuple[Named, ...] = ()
    back_ends: tuple[Named, ...] = ()
    kernels: tuple[Named, ...] = ()
    compilers: tuple[Named, ...] = ()

    def parts(self) -> dict[str, tuple[str, ...]]:
        """The names of what it brings, by kind."""
        return {kind: tuple(p.name for p in getattr(self, kind)) for kind in KINDS if getattr(self, kind)}


class Candidate(NamedTuple):
    """A plugin that was found or given, and is not imported yet: `distribution` is its name and version ("" for one
    that was given), `state` what changes with its files (None when that cannot be told)."""

    name: str
    distribution: str
    state: str | None
    get: Callable[[], object]

    def refusal(self, reason: str) -> Remark:
        """That the compiler goes on without the plugin, and why."""
        origin = f" of {self.distribution}" if self.distribution else ""
        return Remark("plugins", f"plugin '{self.name}'{origin}", f"the plugin is left out: {reason}", "failed")


class Plugins(NamedTuple):
    """The plugins that are used, each with where it comes from, and what was said of those that are not."""

    used: tuple[tuple[Candidate, Plugin], ...] = ()
    refused: tuple[Remark, ...] = ()

    @property
    def front_ends(self) -> tuple[FrontEnd, ...]:
        return tuple(part for _, plugin in self.used for part in plugin.front_ends)

    @property
    def strategies(self) -> tuple[Any, ...]:
        return tuple(part for _, plugin in self.used for part in plugin.strategies)

    @property
    def machines(self) -> tuple[Any, ...]:
        return tuple(part for _, plugin in self.used for part in plugin.machines)

    @property
    def back_ends(self) -> tuple[Any, ...]:
        return tuple(part for _, plugin in self.used for part in plugin.back_ends)

    @property
    def compilers(self) -> tuple[Any, ...]:
        return tuple(part for _, plugin in self.used for part in plugin.compilers)

    def without_name_clashes(self, kind: str, names: Collection[str]) -> Plugins:
        """Without the plugins that bring a part of `kind` (one of KINDS) whose name is among `names`: ours."""
        used, refused = [], list(self.refused)
        for candidate, plugin in self.used:
            clash = next((p.name for p in getattr(plugin, kind) if p.name in names), None)
            if clash is None:
                used.append((candidate, plugin))
            else:
                refused.append(candidate.refusal(f"{_kind(kind)} '{clash}' exists already"))
        return Plugins(tuple(used), tuple(refused))


NO_PLUGINS = Plugins()


def find_plugins() -> tuple[Candidate, ...]:
    """The plugins of all installed distributions, none imported, in the order of their names."""
    found: dict[tuple[str, str], Candidate] = {}
    for distribution, name, value in _installed():
        # of a distribution that is installed twice Python imports the first
        key = (distribution.partition(" ")[0], name)
        if key not in found:
            found[key] = Candidate(name, distribution, module_state(value), partial(_imported, value))
    return (*(found[key] for key in sorted(found)), *_OF_FILES)


_OF_FILES: list[Candidate] = []
"""Plugins of files that this process was told to use."""

_USED_FILES: dict[str, None] = {}
"""The files, whether they bring a plugin or not."""


def used_files() -> tuple[Path, ...]:
    """The files that are used, in order."""
    return tuple(map(Path, _USED_FILES))


def use_file(path: Path) -> None:
    """Import a Python file, which may add operators, and from now on use the `PLUGIN` that it brings, if it does. Its
    folder is where it finds modules beside it. A file that is used already is left as it is. InputError where it cannot
    be read, or fails."""
    name, place = path.stem, os.path.realpath(path)
    if place in _USED_FILES:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InputError(f"there is no Python file {path}", hint="give the path of a file that ends in .py")
    if name in sys.modules:
        raise InputError(f"{path} has the name of another module, {name}", hint="give the file another name")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(
            f"{path} failed when it was imported: {type(error).__name__}: {error}",
            hint="run it with python to see where",
        ) from error
    _USED_FILES[place] = None
    plugin = getattr(module, "PLUGIN", None)
    if plugin is not None:
        known = str(getattr(plugin, "name", name))
        _OF_FILES.append(Candidate(known, str(path), _file_state(str(path)), partial(_same, plugin)))


def given_plugins(plugins: Iterable[object]) -> tuple[Candidate, ...]:
    """Plugins that a program gives instead of installing them."""
    return tuple(
        Candidate(str(getattr(p, "name", None) or f"{p!r:.80}"), "", _object_state(p), partial(_same, p))
        for p in plugins
    )


def load_plugins(candidates: Sequence[Candidate] | None = None) -> Plugins:
    """The candidates' plugins (those of `find_plugins` by default), without those that cannot be used.

    A plugin that cannot be imported, is no `Plugin`, holds parts of the wrong type, or names a part as one before it
    does is left out as a whole, and is told in `refused`.
    """
    used: list[tuple[Candidate, Plugin]] = []
    refused = []
    names: set[tuple[str, str]] = set()
    for candidate in find_plugins() if candidates is None else candidates:
        try:
            plugin = _checked(candidate.get(), names)
        except _Refused as error:
            refused.append(candidate.refusal(str(error)))
        except (Exception, SystemExit) as error:  # whatever importing foreign code may raise
            refused.append(candidate.refusal(f"importing it failed: {type(error).__name__}: {error}"))
        else:
            used.append((candidate, plugin))
            names.update(_names(plugin))
    return Plugins(tuple(used), tuple(refused))


def identity(candidates: Iterable[Candidate]) -> str | None:
    """What makes a compiled model another one with other plugins; None when that cannot be told of one of them."""
    parts = [(c.name, c.distribution, c.state) for c in candidates]
    return None if any(state is None for *_, state in parts) else repr(parts)


class _Refused(Exception):
    """A plugin that cannot be used; the message says why."""


def _checked(found: object, taken: Collection[tuple[str, str]]) -> Plugin:
    if not isinstance(found, Plugin):
        raise _Refused(f"it is of type {type(found).__name__}, and not a tilewright.plugins.Plugin")
    for kind in KINDS:
        parts = getattr(found, kind)
        if not isinstance(parts, tuple):
            raise _Refused(f"{kind} is of type {type(parts).__name__}, and not a tuple")
        for k, part in enumerate(parts):
            if not isinstance(getattr(part, "name", None), str):
                raise _Refused(f"{kind}[{k}] ({part!r:.80}) has no name")
    for part in found.front_ends:
        missing = [m for m in ("accepts", "digest", "load") if not callable(getattr(part, m, None))]
        missing += [] if isinstance(getattr(part, "formats", None), str) else ["formats"]
        if missing:
            raise _Refused(f"the front end '{part.name}' has no {' and no '.join(missing)}")
    own = list(_names(found))
    for kind, name in own:
        if (kind, name) in taken or own.count((kind, name)) > 1:
            raise _Refused(f"{_kind(kind)} '{name}' exists already")
    return found


def _names(plugin: Plugin) -> Iterator[tuple[str, str]]:
    return ((kind, name) for kind, names in plugin.parts().items() for name in names)


def _kind(kind: str) -> str:
    return {"strategies": "a strategy"}.get(kind) or f"a {kind.removesuffix('s').replace('_', ' ')}"


# What installers leave behind


def _installed() -> Iterator[tuple[str, str, str]]:
    """Distribution, name and value of each entry point of our group, in the order of `sys.path`."""
    for folder in sys.path:
        try:
            yield from _installed_in(folder or os.getcwd(), os.stat(folder or ".").st_mtime_ns)
        except OSError:
            continue


@lru_cache(maxsize=64)
def _installed_in(folder: str, changed: int) -> list[tuple[str, str, str]]:
    """Those of a folder of which `changed` is the time of its last change: installers add and remove folders in it."""
    with os.scandir(folder) as entries:
        found = sorted(e.path for e in entries if e.name.endswith((".dist-info", ".egg-info")))
    return [(_distribution(Path(p)), *entry) for p in found for entry in _entry_points(Path(p))]


def _entry_points(metadata: Path) -> list[tuple[str, str]]:
    """Name and value of each of a distribution's entry points of our group."""
    try:
        text = (metadata / "entry_points.txt").read_bytes()
    except OSError:
        return []
    if GROUP.encode() not in text:
        return []
    found = []
    section = ""
    for line in map(str.strip, text.decode(errors="replace").splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == GROUP and "=" in line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            found.append((name.strip(), value.partition("[")[0].strip()))
    return found


def _distribution(metadata: Path) -> str:
    """Name and version, `toy-package 1.0`; the installer writes both into the name of the folder."""
    name, _, version = metadata.stem.partition("-")
    return f"{name.replace('_', '-')} {version}".strip()


def _imported(value: str) -> object:
    """The object that an entry point names: `package.module:attribute`."""
    module, _, attributes = value.partition(":")
    found: object = importlib.import_module(module)
    for name in filter(None, attributes.split(".")):
        found = getattr(found, name)
    return found


def _same(plugin: object) -> object:
    return plugin


# What changes with a plugin's code


def file_states(folder: Path) -> str:
    """Names, sizes and times of the Python files of a folder and those below."""
    return file_states_since(folder, 0)[0]


def file_states_since(folder: Path, begin: int) -> tuple[str, bool]:
    """The same, and whether files were written, or put there, between a time (ns) and now. Installers give files the
    times of a package; a time in the future says nothing, as clocks may be wrong."""
    found, now = [*_states_below(os.fspath(folder))], time.time_ns()
    return "".join(sorted(state for state, _ in found)), any(begin < changed <= now for _, changed in found)


def _states_below(folder: str, place: str = "") -> Iterator[tuple[str, int]]:
    """The state of each file, and when it changed."""
    try:
        with os.scandir(folder) as entries:  # at each start there are hundreds: paths would take three times as long
            for entry in entries:
                if entry.name.endswith(".py"):
                    stat = entry.stat()
                    state = f"{place}{entry.name}:{stat.st_size}:{stat.st_mtime_ns};"
                    yield state, max(stat.st_mtime_ns, stat.st_ctime_ns)
                elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                    yield from _states_below(entry.path, f"{place}{entry.name}/")
    except OSError:  # what cannot be read cannot be imported either
        return


def module_state(value: str) -> str | None:
    """The state of the files of the package that a module belongs to, which is not imported; "missing" when there is
    no such package, None when it has no files."""
    top = value.partition(":")[0].partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):  # the program itself, or a module that it has made
        return _file_state(getattr(sys.modules.get(top), "__file__", None))
    if spec is None:
        return "missing"
    if spec.submodule_search_locations:
        return "".join(file_states(Path(folder)) for folder in spec.submodule_search_locations)
    return _file_state(spec.origin)


def _file_state(path: str | None) -> str | None:
    try:
        stat = os.stat(path or "")
    except OSError:
        return None
    return f"{path}:{stat.st_size}:{stat.st_mtime_ns}"


def _object_state(plugin: object) -> str | None:
    """The state of the files that the parts of a given plugin come from, and the values that these are made of."""
    states = []
    for part in (part for kind in KINDS for part in getattr(plugin, kind, ())):
        state = module_state(part.__name__ if isinstance(part, ModuleType) else type(part).__module__)
        if state is None:
            return None
        version = getattr(part, "version", "")
        states.append(f"{state}:{version}:{part!r}" if dataclasses.is_dataclass(part) else f"{state}:{version}")
    return ";".join(states)
