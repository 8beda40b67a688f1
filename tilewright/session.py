"""The on-disk cache of compiled models: keyed by content, safe under concurrent processes, bounded in size, and of
nobody's but this user's making (decision 61)."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import tilewright
from tilewright.frontends.built_in import FRONT_ENDS
from tilewright.frontends.front_end import FrontEnd, find_front_end, unknown_source
from tilewright.frontends.weights.foreign import foreign_format
from tilewright.ir.outside import Unreadable, outside_digest
from tilewright.options import Options, Request
from tilewright.plugins import (
    Candidate,
    Plugin,
    Plugins,
    file_states_since,
    find_plugins,
    given_plugins,
    identity,
    load_plugins,
)
from tilewright.runtime import Artifact
from tilewright.runtime.arena import flat_bytes
from tilewright.runtime.artifact import TargetInfo
from tilewright.runtime.errors import ArtifactError, OptionError, PluginError, TilewrightError
from tilewright.runtime.executor import MakeExecutor
from tilewright.runtime.process.room import available_memory
from tilewright.runtime.storage.cpu import cpu_facts
from tilewright.runtime.storage.private import (
    NotPrivateError,
    check_private_folder,
    is_own,
    make_private_folder,
    open_private,
    replacing_private,
    tell_once,
)
from tilewright.target.hardware import read_caches, usable_cores

if TYPE_CHECKING:
    from tilewright.target.machine import Machine

DEFAULT_LIMIT = 4 << 30
SETTLED_NS = 2 * 10**9
"""A file's times tell whether it changes from now on, once they are as far back as the coarsest clock of a
file system counts."""
_NOTES = 1024
"""Notes that are kept at most; each takes a block of the file system."""

_ABANDONED_S = 3600
"""A temporary file that nobody has written to for so long belongs to no process any more."""

_PACKAGE = Path(tilewright.__file__).parent

_IMPORTED = time.time_ns()
"""When this process began to import the compiler, or a little later."""


class Stamp(NamedTuple):
    """What identifies the compiler; whether files of it are others than those that this process has imported. What it
    compiles then is made by code of before, or of both, and is nobody else's."""

    text: str
    has_changed: bool


@lru_cache(maxsize=1)
def compiler_stamp(package: Path) -> Stamp:
    """What identifies the compiler: versions, and for a checkout that is worked on the state of its files."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    states, has_changed = file_states_since(package, _IMPORTED)
    digest.update(states.encode())
    for name in _DEPENDENCIES:
        digest.update(_state_of(name).encode())
    return Stamp(f"{tilewright.__version__};{digest.hexdigest()}", has_changed)


_DEPENDENCIES = ("numpy", "ml_dtypes", "onnx", "llvmlite")
"""Packages that decide what a model becomes: `onnx` has the bodies of functions and the defaults of attributes,
`llvmlite` makes machine code, the others compute what is folded."""


def _state_of(package: str) -> str:
    """The state of an installed package, which is not imported: sizes and times of the files of its folder."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return f"{package}: none;"
    with os.scandir(Path(spec.origin).parent) as entries:
        files = sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in entries if e.is_file())
    return f"{package}: {files};"


def default_folder() -> Path:
    """`$TILEWRIGHT_CACHE`, or `tilewright` in the user's cache folder; a user without a home has no cache."""
    named = os.environ.get("TILEWRIGHT_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "tilewright"
    except RuntimeError:
        # A folder that cannot be made. A shared one, as /tmp, will not do: cached code is run.
        return Path(os.devnull) / "tilewright"


@dataclass(frozen=True)
class Entry:
    """A file of the cache: `model` is the name of the file that it was compiled from ("" where it came from
    memory), `target` the CPU it is for, `used` the time of its last use in seconds since 1970."""

    path: Path
    model: str
    target: str
    size: int
    used: float


@dataclass(frozen=True)
class Cleared:
    """How many entries were removed from a cache, and their size."""

    files: int
    size: int


_KEY = "cache key"
"""Of what is attached to an artefact in the cache: the key it is kept under."""

_DIGEST_BYTES = 20
_DIGEST = re.compile("[0-9a-f]{40}")
"""Names of entries and notes."""

_LARGE = 16 << 20
"""Bytes of weights that are written while the model runs already: a disk may take more than 0.1 s for them."""


@dataclass(frozen=True)
class _Written:
    """An artefact that a thread is writing."""

    artifact: Artifact
    thread: threading.Thread


_WRITTEN: dict[Path, _Written] = {}
"""What is being written, by the path that it will have."""


def _wait_for(written: _Written) -> None:
    if written.thread.is_alive():
        written.thread.join()


@dataclass(frozen=True)
class Session:
    """A folder of artefacts and its bound in bytes, and the plugins that models are compiled with: by default those
    that are installed. A cache that cannot be used never fails a compilation, and a plugin is left out."""

    folder: Path = field(default_factory=default_folder)
    limit: int = DEFAULT_LIMIT
    plugins: tuple[Plugin, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike):
            raise OptionError(f"folder={self.folder!r:.80} is not allowed: give the path of a folder")
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or self.limit < 0:
            raise OptionError(f"limit={self.limit!r:.80} is not allowed: give a number of bytes")
        if not isinstance(self.plugins, tuple | list | None):
            raise OptionError(f"plugins={self.plugins!r:.80} is not allowed: give a tuple of plugins, or None for all")
        object.__setattr__(self, "folder", Path(self.folder))
        object.__setattr__(self, "plugins", None if self.plugins is None else tuple(self.plugins))

    @classmethod
    def of(cls, session: Session | None) -> Session:
        """The session that a caller gave, or the default one; OptionError for what is none."""
        if session is None:
            return cls()
        if not isinstance(session, Session):
            raise OptionError(f"session={session!r:.80} is not allowed: give a tilewright.Session, or None")
        return session

    @cached_property
    def _candidates(self) -> tuple[Candidate, ...]:
        return find_plugins() if self.plugins is None else given_plugins(self.plugins)

    @cached_property
    def loaded_plugins(self) -> Plugins:
        """The plugins, imported when this is first asked for."""
        from tilewright.machines import PRESETS
        from tilewright.target.named import ALIASES, NAMED

        plugins = load_plugins(self._candidates)
        plugins = plugins.without_name_clashes("front_ends", [front_end.name for front_end in FRONT_ENDS])
        return plugins.without_name_clashes("machines", ["host", *NAMED, *ALIASES, *PRESETS])

    def front_end(self, source: Any) -> FrontEnd:
        """What reads a source: one of ours if it accepts it, else one of a plugin. OptionError for what is neither a
        path nor bytes nor accepted, ModelError for other unknown sources."""
        failed: list[str] = []
        found = find_front_end(source, FRONT_ENDS, failed)
        foreign = foreign_format(source)  # whatever suffix it has
        if found is None or foreign is not None:
            found = find_front_end(source, self.loaded_plugins.front_ends, failed)
        if found is not None:
            return found
        if foreign is not None:
            raise foreign.error(source)
        failed += [f"{remark.subject}: {remark.message}" for remark in self.loaded_plugins.refused]
        raise unknown_source(source, (*FRONT_ENDS, *self.loaded_plugins.front_ends), failed)

    def machine(self, options: Options) -> Machine:
        """What models are compiled for: a machine of ours, or of a plugin. TargetError for an unknown name."""
        from tilewright.machines import PRESETS
        from tilewright.target.named import find_machine

        return find_machine(options.target, lambda: (*PRESETS.values(), *self.loaded_plugins.machines))

    def machines(self, options: Options) -> tuple[Machine, ...]:
        """All that an artefact has code for: several are levels of one kind of CPU, between `;`."""
        texts = [None] if options.target is None else [text.strip() for text in options.target.split(";")]
        return tuple(self.machine(replace(options, target=text)) for text in texts)

    def executor(self, kind: str) -> MakeExecutor | None:
        """What runs code for a kind of machine that a plugin of this session brings; None for other kinds."""
        if kind == TargetInfo.kind:
            return None
        found = (back_end.executor for back_end in self.loaded_plugins.back_ends if back_end.name == kind)
        return next(found, None)

    def key(self, request: Request, options: Options) -> str | None:
        """A digest of everything that determines the artefact; None when the model cannot be read, or an operator or
        a plugin from outside of the package (see `refusal`)."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        shapes = sorted(request.shapes.items())
        front_end = self.front_end(request.model)
        stamp = self.stamp(options)
        if stamp is None:
            return None
        digest.update(f"{stamp};{front_end.name};{shapes!r}".encode())
        for name, array in sorted(request.constants.items()):
            digest.update(f"{name}:{array.dtype}{array.shape}".encode())
            is_text = array.dtype == np.object_
            digest.update(repr(array.tolist()).encode() if is_text else flat_bytes(array).data)
        try:
            digest.update(self._content(front_end, request.model))
        except (OSError, ValueError):  # a path that cannot be opened, or that is none
            return None
        return digest.hexdigest()

    def _content(self, front_end: FrontEnd, source: Any) -> bytes:
        """The digest of a source; OSError, ValueError, and PluginError for other failures of a plugin."""
        try:
            found: object = front_end.digest(source, self._remember)
            if not isinstance(found, bytes):
                raise TypeError(f"its 'digest' gave a {type(found).__name__}, and no bytes")
            return found
        except (OSError, ValueError, TilewrightError):
            raise
        except Exception as error:
            if front_end in FRONT_ENDS:
                raise
            what = f"the front end '{front_end.name}' of a plugin failed: {type(error).__name__}: {error}"
            raise PluginError(what, hint="report it to the authors of the plugin") from error

    def stamp(self, options: Options) -> str | None:
        """What determines the artefact of any model: the compiler, its plugins, the machine and the options. None
        where models are not kept (see `refusal`)."""
        machine, compiler = self._identity(options), compiler_stamp(_PACKAGE)
        if compiler.has_changed or self._unseen() is not None:
            return None
        outside = f"{outside_digest()};{identity(self._candidates)}"
        return f"{compiler.text};{outside};{machine};{options.fingerprint()}"

    def _identity(self, options: Options) -> str:
        """What tells the machine that models are compiled for. What this one is to LLVM follows from what its CPU tells
        of itself, so that LLVM, which takes a tenth of a second to import, is not asked for models that are kept."""
        facts = cpu_facts() if options.target in (None, "host") else None
        if facts is None:
            machines = self.machines(options)
            beside = self._identity(replace(options, target=None)) if any(m.link for m in machines) else ""
            return f"{machines!r}{beside}"
        return f"{facts.identity};{sys.platform};{read_caches()!r};{usable_cores()}"

    def refusal(self) -> str | None:
        """Why what was compiled can not be kept; None when there is no such reason."""
        if file_states_since(_PACKAGE, _IMPORTED)[1]:
            return "files of the compiler have changed since this process imported it"
        return self._unseen()

    def _unseen(self) -> str | None:
        """Why changes of an operator or a plugin from outside of the package would go unseen."""
        try:
            outside_digest()
        except Unreadable as error:
            return f"an operator from outside depends on {error}"
        if identity(self._candidates) is None:
            return "a plugin's code comes from no file"
        return None

    def find(self, key: str) -> Artifact | None:
        """The artefact kept under `key`; one that is damaged or names another key is removed. What somebody else may
        have written is not looked at, which a warning says."""
        path = self._path(key)
        if (written := _WRITTEN.get(path)) is not None:
            if not written.artifact.lent:
                return written.artifact
            _wait_for(written)  # what one model lends is not for others
        if not self._may_read():
            return None
        try:
            with open_private(path) as file:
                artifact = self._loaded(key, file)
        except NotPrivateError as error:
            tell_once(
                str(path),
                f"{path} is not used: {error}; the model is compiled anew\n"
                "  hint: remove the file if you do not know where it comes from",
            )
            return None
        except ArtifactError as error:
            if isinstance(error.__cause__, OSError | MemoryError):  # what this process lacks is no fault of the file
                return None
            artifact = None
        except OSError:
            return None
        if artifact is None or artifact.attached.get(_KEY) != key:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        return replace(artifact, attached={name: data for name, data in artifact.attached.items() if name != _KEY})

    def _loaded(self, key: str, file: io.FileIO) -> Artifact:
        """The artefact in a file that is open; its use is noted."""
        stat = os.fstat(file.fileno())
        if os.utime in os.supports_fd:
            with contextlib.suppress(OSError):  # of a disk that is only read
                os.utime(file.fileno(), ns=(time.time_ns(), stat.st_mtime_ns))
        # all weights are read for their checksum once, not at each start
        about = f"weights of {key}: {stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"
        is_sound = self._notes.read(about) is not None
        # mapped: whoever writes here replaces files by renaming, or deletes them; but for decoders, which read all
        # weights for each token, and that takes longer from the small pages of a file than from memory of their own
        artifact = Artifact.load(file, check_weights=not is_sound, mmap=True)
        if not is_sound and _is_settled(stat.st_mtime_ns):
            self._notes.write(about, b"sound")
        if any(state.counter for state in artifact.states) and _has_room(artifact.weight_bytes):
            with contextlib.suppress(ArtifactError):  # without memory for a copy
                return Artifact.load(file, check_weights=False)
        return artifact

    def entries(self) -> list[Entry]:
        """What the cache holds, the last used first; entries that other processes remove meanwhile are left out."""
        self._wait()
        found = (_entry(path) for path in self._files())
        return sorted((e for e in found if e is not None), key=lambda entry: entry.used, reverse=True)

    def clear(self, unused_s: float = 0) -> Cleared:
        """Remove the entries that were not used for so many seconds (of 0: all, and the notes with them).

        Safe beside other processes: models that they have loaded go on running, and what they are writing now
        is written. OSError where the folder cannot be changed.
        """
        self._wait()
        files = freed = 0
        for used, size, path in _by_use(self._files()):
            if unused_s <= 0 or used <= time.time() - unused_s:
                path.unlink(missing_ok=True)
                files, freed = files + 1, freed + size
        for folder in (self.folder, self._notes.folder):
            _remove_abandoned(folder)
        for _, _, path in _by_use(self._notes.files()) if unused_s <= 0 else ():
            path.unlink(missing_ok=True)
        return Cleared(files, freed)

    def keep(self, key: str, artifact: Artifact) -> None:
        """Store the artefact (written whole or not at all), then drop the longest unused above the limit.

        A large one is written by a thread, which the interpreter waits for when it ends.
        """
        if artifact.weight_bytes < _LARGE:
            self._keep(key, artifact)
            return
        path = self._path(key)

        def write() -> None:
            try:
                self._keep(key, artifact)
            finally:
                _WRITTEN.pop(path, None)

        thread = threading.Thread(target=write, name="tilewright cache")
        _WRITTEN[path] = _Written(artifact, thread)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending
            write()

    def _keep(self, key: str, artifact: Artifact) -> None:
        if not self._may_write():
            return
        try:
            with replacing_private(self._path(key)) as file:
                replace(artifact, attached={**artifact.attached, _KEY: key}).write(file)
            self._trim()
        except ArtifactError:  # of weights that have changed since
            return
        except OSError as error:
            self._tell(error.strerror or str(error))

    def _may_write(self) -> bool:
        """Whether the folder is there now, and may be used."""
        try:
            make_private_folder(self.folder)
        except OSError as error:
            self._tell(error.strerror or str(error))
            return False
        return self._may_read()

    def _may_read(self) -> bool:
        """Whether the folder is there, and may be used. One of another user's may not; in one of this user's where
        others may write, each file is looked at all the same, which a warning says."""
        try:
            check_private_folder(self.folder)
        except NotPrivateError as error:
            if not self.folder.is_dir() or not is_own(self.folder):
                self._tell(str(error))
                return False
            self._close(str(error))
        except OSError:
            return False
        return True

    def _close(self, why: str) -> None:
        """Take from others the right to write to the folder, where it is the one that we made; else tell of it."""
        if self.folder == default_folder() and not os.environ.get("TILEWRIGHT_CACHE"):
            with contextlib.suppress(OSError):
                self.folder.chmod(0o700)
                return
        tell_once(
            f"shared {self.folder}",
            f"the cache of compiled models in {self.folder} is not safe: {why}; of what is there, only files of your "
            f"own are used\n  hint: chmod go-w {self.folder}",
        )

    def _tell(self, why: str) -> None:
        """Say once that models are compiled anew."""
        tell_once(
            f"unusable {self.folder}",
            f"the cache of compiled models cannot be used: {self.folder}: {why}; each process compiles anew\n"
            "  hint: let TILEWRIGHT_CACHE name a folder of your own, or compile with cache=False (--no-cache)",
        )

    def _wait(self) -> None:
        """Until this process has written what it keeps in the folder."""
        for path, written in list(_WRITTEN.items()):
            if path.parent == self.folder:
                _wait_for(written)

    def recall(self, about: str) -> bytes | None:
        """What was noted under `about`; None when there is nothing."""
        return self._notes.read(about) if self._may_read() else None

    def note(self, about: str, fact: bytes) -> None:
        """Keep a small fact beside the artefacts, if the folder can be written; the longest unused go first."""
        if self._may_write():
            self._notes.write(about, fact)

    @property
    def _notes(self) -> Notes:
        return Notes(self.folder / "notes")

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.tw"

    def _trim(self) -> None:
        total = 0
        for _, size, path in _by_use(self._files()):
            total += size
            if total > self.limit:
                path.unlink(missing_ok=True)
        for _, _, path in _by_use(self._notes.files())[_NOTES:]:
            path.unlink(missing_ok=True)
        _remove_abandoned(self.folder)

    def _files(self) -> list[Path]:
        """The entries: whatever else is in the folder is somebody's."""
        return [path for path in self.folder.glob("*.tw") if _DIGEST.fullmatch(path.stem)]

    def _remember(self, path: Path, find_out: Callable[[Path], bytes]) -> bytes:
        """What `find_out` gives for a file, from a note if it is the file that the note was made of."""
        stat = path.stat()
        identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        about = f"{find_out.__module__}.{find_out.__qualname__} {os.path.realpath(path)}: {identity}"
        found = self.recall(about)
        if found is None:
            found = find_out(path)
            if _is_settled(max(stat.st_mtime_ns, stat.st_ctime_ns)):
                self.note(about, found)
        return found


@dataclass(frozen=True)
class Notes:
    """Small facts about files, found out once and kept in a folder: a file for each, whole or not at all, which begins
    with the digest of what it is about."""

    folder: Path

    def read(self, about: str) -> bytes | None:
        """The fact noted under `about`; None when there is none, or somebody else may have written it."""
        digest = _digest_of(about)
        try:
            with open_private(self.folder / digest.hex()) as file:
                found = file.readall() or b""
        except (OSError, NotPrivateError):
            return None
        return found[len(digest) :] if found.startswith(digest) else None

    def write(self, about: str, fact: bytes) -> None:
        """Note a fact, if the folder can be written."""
        digest = _digest_of(about)
        with contextlib.suppress(OSError):
            make_private_folder(self.folder)
            with replacing_private(self.folder / digest.hex()) as file:
                file.write(digest + fact)

    def files(self) -> list[Path]:
        """All of them."""
        return [path for path in self.folder.glob("*") if _DIGEST.fullmatch(path.name)]


def _digest_of(about: str) -> bytes:
    return hashlib.blake2b(about.encode(), digest_size=_DIGEST_BYTES).digest()


def _has_room(nbytes: int) -> bool:
    """Whether a copy of weights leaves half of the memory that is available."""
    available = available_memory()
    return available is None or 2 * nbytes <= available


def _is_settled(changed: int) -> bool:
    """Whether a change of a file from now on must show in its times, of which `changed` (ns) is the last."""
    return time.time_ns() - changed > SETTLED_NS


def _by_use(paths: Iterable[Path]) -> list[tuple[float, int, Path]]:
    """Time of last use, size in bytes and path of files, the last used first; without those that are gone by now."""
    found = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((status.st_atime, status.st_size, path))
    return sorted(found, reverse=True)


def _entry(path: Path) -> Entry | None:
    """What a file of the cache is; None when it is gone, damaged, or maybe somebody else's."""
    try:
        with open_private(path) as file:
            status = os.fstat(file.fileno())
            artifact = Artifact.load(file, check_weights=False, mmap=True)  # weights are not looked at
            # to look at an entry is not to use it; file systems count every reading
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    except (OSError, ArtifactError, NotPrivateError):
        return None
    return Entry(path, artifact.model, artifact.target.cpu, status.st_size, status.st_atime)


def _remove_abandoned(folder: Path) -> None:
    """Temporary files that a process which was killed left in a folder of the cache."""
    for path in folder.glob("*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < time.time() - _ABANDONED_S:
                path.unlink()
