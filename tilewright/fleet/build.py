"""Compiling a fleet: what is there already stays, and each other model is compiled by a process of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.fleet.index import Index, MemberEntry, locked
from tilewright.fleet.members import Member, members_of
from tilewright.fleet.workers import run_apart
from tilewright.runtime.errors import ArtifactError, OptionError, TilewrightError
from tilewright.runtime.storage.described import ArtifactFile
from tilewright.runtime.storage.files import check_folder
from tilewright.runtime.storage.fleet import SUFFIX, with_shared
from tilewright.session import Session
from tilewright.target.hardware import usable_cores

COMPILED, UNCHANGED, FAILED, REMOVED = "compiled", "unchanged", "failed", "removed"


@dataclass(frozen=True)
class MemberResult:
    """What became of a model: its `state` ("compiled", "unchanged", "failed", "removed"), seconds that it took, bytes
    of its file and of its code and weights in the store, which other models may share; what failed, and what its users
    should know (`warnings`)."""

    name: str
    source: str
    state: str
    seconds: float = 0.0
    file_bytes: int = 0
    code_bytes: int = 0
    weight_bytes: int = 0
    error: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetResult:
    """What became of the models of a fleet, by name; the bytes of its store, and those among them that no model needs
    any more."""

    models: tuple[MemberResult, ...]
    store_bytes: int
    unused_bytes: int

    @property
    def failed(self) -> tuple[MemberResult, ...]:
        """The models that are not there, or are as they were before."""
        return tuple(model for model in self.models if model.state == FAILED)


OnResult = Callable[[MemberResult], None]


def compile_fleet(
    models: Iterable[str | Path] | str | Path,
    folder: str | Path,
    *,
    jobs: int | None = None,
    prune: bool = False,
    force: bool = False,
    session: Session | None = None,
    on_result: OnResult | None = None,
    **fields: Any,
) -> FleetResult:
    """Compile several models into one folder, which `tilewright.load_fleet` opens.

    `models` are files (or folders of language models), and .toml files that list models with options of their own; all
    other keywords are those of `tilewright.compile`, for all of them. A model is called as its file without the suffix,
    with its folders where several are called so. What the folder holds already, compiled of the same bytes with the
    same options by the same version, is left as it is. `jobs` models are compiled at once, by default one for each
    core. What fails stops no other. `prune` removes models of the folder that are not among these, and code and weights
    that no model needs. `force` replaces files of other kinds. `on_result` is told of each model when it is done.

    Each file appears whole or not at all, so that a run that was ended in any way can be begun again, and does what is
    left. OptionError for names that clash and options that cannot be, ArtifactError for a folder that cannot be
    written.
    """
    given = [models] if isinstance(models, str | Path) else list(models)
    members = members_of([Path(path) for path in given], fields)
    if not members:
        raise OptionError("there are no models to compile", hint="give the paths of some")
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise OptionError(f"jobs={jobs!r:.80} is not allowed: give a number from 1 on, or None for all cores")
    path = Path(folder)
    check_folder(path)
    with locked(path):
        fleet = _Fleet(path, Session.of(session), jobs or usable_cores(), force, on_result or (lambda result: None))
        return fleet.compile(members, prune=prune)


class _Fleet:
    """A folder while models are compiled into it."""

    def __init__(self, folder: Path, session: Session, jobs: int, force: bool, on_result: OnResult) -> None:
        self.folder, self.session, self.jobs, self.force, self.on_result = folder, session, jobs, force, on_result
        self.index = Index(folder)

    def compile(self, members: Sequence[Member], *, prune: bool) -> FleetResult:
        self.index.tidy(member.name for member in members)
        results: dict[str, MemberResult] = {}
        for result in self._results(members):
            results[result.name] = result
            self.on_result(result)
        gone = sorted(self.index.names() - {member.name for member in members}) if prune else []
        for name in gone:
            entry = self.index.entries.get(name)
            results[name] = MemberResult(name, entry.source if entry is not None else "", REMOVED)
            self.index.remove(name)
            self.on_result(results[name])
        if gone:
            self.index.write()
        try:
            unused = self.index.unused()
        except ArtifactError:
            if prune:
                raise
            unused = {}
        for digest in unused if prune else ():
            self.index.store.remove(digest)
        sizes = sum(size for _, size in self.index.store.files())
        ordered = tuple(results[name] for name in sorted(results))
        return FleetResult(ordered, sizes, 0 if prune else sum(unused.values()))

    def _results(self, members: Sequence[Member]) -> Iterator[MemberResult]:
        work: list[_Work] = []
        with ThreadPoolExecutor(self.jobs) as pool:  # that ends before processes are forked
            keys = list(pool.map(partial(_key, self.session), members))
        for member, key in zip(members, keys, strict=True):
            if isinstance(key, MemberResult):
                yield key
            elif self.index.holds(member.name, key):
                yield self._unchanged(member)
            else:
                work.append(_Work(member, key, self.folder, self.session, self.force, self._threads))
        if not work:
            return
        import tilewright.compiler  # noqa: F401  once, for all processes that are forked

        for number, done in run_apart(_compiled, work, min(self.jobs, len(work)), _died):
            if done.entry is not None:
                self.index.note(work[number].member.name, done.entry)
            yield done.result

    @property
    def _threads(self) -> int:
        """Of each process."""
        return max(1, usable_cores() // self.jobs)

    def _unchanged(self, member: Member) -> MemberResult:
        file = ArtifactFile.of(self.folder / f"{member.name}{SUFFIX}")
        return _with_sizes(MemberResult(member.name, str(member.source), UNCHANGED), file)


def _with_sizes(result: MemberResult, file: ArtifactFile) -> MemberResult:
    sizes = [sum(s.size for s in file.sections if (s.kind == "weights") is weights) for weights in (False, True)]
    return replace(result, file_bytes=file.size, code_bytes=sizes[0], weight_bytes=sizes[1])


def _failure(member: Member, error: BaseException | str, start: float) -> MemberResult:
    known = isinstance(error, TilewrightError | OSError | MemoryError | str)
    text = str(error) if known else f"{type(error).__name__}: {error}; this is a defect of tilewright: please report it"
    seconds = time.perf_counter() - start
    return MemberResult(member.name, str(member.source), FAILED, seconds, error=text or type(error).__name__)


def _key(session: Session, member: Member) -> str | MemberResult | None:
    """The digest of all that determines what a model becomes; None where there is none. What cannot be read failed."""
    start = time.perf_counter()
    try:
        return session.key(member.request, member.options)
    except Exception as error:
        return _failure(member, error, start)


@dataclass(frozen=True)
class _Work:
    """A model to be compiled: with so many threads, into a folder."""

    member: Member
    key: str | None
    folder: Path
    session: Session
    force: bool
    threads: int


@dataclass(frozen=True)
class _Done:
    result: MemberResult
    entry: MemberEntry | None = None


def _compiled(work: _Work) -> _Done:
    """Compile a model, or take it from the cache, and write it to the fleet."""
    from tilewright.compiler import compile_request

    member, start = work.member, time.perf_counter()
    try:
        artifact = work.session.find(work.key) if work.key and member.options.cache else None
        if artifact is None:
            options = replace(member.options, compile_threads=member.options.compile_threads or work.threads)
            artifact = compile_request(member.request, options, session=work.session)
        path = with_shared(work.folder, member.name, artifact, force=work.force)
        file, seconds = ArtifactFile.of(path), time.perf_counter() - start
        warnings = tuple(f"{remark.subject}: {remark.message}" for remark in artifact.urgent)
        result = MemberResult(member.name, str(member.source), COMPILED, seconds, warnings=warnings)
        digests = tuple(section.digest for section in file.sections)
        entry = MemberEntry(str(member.source), work.key or "", digests, round(seconds, 3))
        return _Done(_with_sizes(result, file), entry)
    except Exception as error:
        return _Done(_failure(member, error, start))


def _died(work: _Work, code: int) -> _Done:
    """The process that compiled a model ended without a word."""
    how = f"ended with the exit code {code}"
    if code < 0:
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        how = f"was ended by {name}{': there may be too little memory for so many jobs' if name == 'SIGKILL' else ''}"
    return _Done(_failure(work.member, f"the process that compiled it {how}", time.perf_counter()))
