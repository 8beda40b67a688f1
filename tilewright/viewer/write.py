"""`tilewright.write_report`: a model, or two beside each other, as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import tilewright
from tilewright.api import compile as compile_model
from tilewright.options import OnProgress, Options, Request
from tilewright.profiling.records import ModelProfile
from tilewright.profiling.run import profile as run_profile
from tilewright.runtime import Artifact, Model, load
from tilewright.runtime.errors import OptionError, short_name
from tilewright.runtime.storage.container import is_container_file
from tilewright.runtime.storage.files import check_file, check_replaced, replacing
from tilewright.session import Session
from tilewright.viewer.artefact import artefact_view
from tilewright.viewer.collect import ViewRequest, model_view
from tilewright.viewer.page import page_html
from tilewright.viewer.records import ModelView, Page

ARTEFACT_SUFFIX = ".tw"

RUNS = 20
"""Calls in which kernels are timed."""

LONGEST_DIFFERENCE = 60
"""Characters of what tells two versions of a model apart."""

_BEGIN = b"<!--tilewright"
"""What pages begin with, and other HTML files do not."""


@dataclass(frozen=True)
class Subject:
    """A model to look at, and how it is compiled: a path, the bytes of a file, or an object, as for `compile`."""

    model: Any
    options: Options = field(default_factory=Options)
    constants: Mapping[str, Any] | str | Path | None = None
    shapes: Mapping[str, Sequence[int | str]] | None = None

    @property
    def is_artefact(self) -> bool:
        """Whether it is compiled already, or says that it is."""
        if not isinstance(self.model, str | Path):
            return False
        path = Path(self.model)
        found = is_container_file(path)
        return path.suffix == ARTEFACT_SUFFIX if found is None else found

    def compiled(self, session: Session, progress: OnProgress | None = None) -> Model:
        """The model with counters around its kernels. Raises as `compile` and `load`; OptionError where there are
        none."""
        if self.is_artefact:
            return load(self.model, self.options.threads)
        options = replace(self.options, profile=True)
        return compile_model(
            self.model, options=options, constants=self.constants, shapes=self.shapes, session=session,
            progress=progress,
        )  # fmt: skip

    def view(self, session: Session, asked: ViewRequest, progress: OnProgress | None = None) -> ModelView:
        """What a page shows of it. Raises as `compile`; ArtifactError for a damaged artefact."""
        if self.is_artefact:
            path = Path(self.model)
            found = artefact_view(path, Artifact.load(path), asked.profile)
            return replace(found, notes=(*found.notes, *asked.notes))
        request = Request.of(self.model, self.constants, self.shapes).with_states_of(self.options)
        return model_view(request, self.options, session, asked, progress)


def write_report(
    path: str | Path,
    model: Any,
    other: Any = None,
    *,
    inputs: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    options: Options | None = None,
    other_options: Options | None = None,
    constants: Mapping[str, Any] | str | Path | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    session: Session | None = None,
    progress: OnProgress | None = None,
    force: bool = False,
    **fields: Any,
) -> None:
    """Write one HTML file that shows what became of a model, and opens without a network: its graph before and after
    fusion, the loop program, schedule, LLVM IR and assembler text of each kernel, times, memory, and reasons; of an
    artefact (`.tw`) what its file holds. `other` is a second model, or version of it, to be shown beside the first.
    `other_options` are those of the second (those of the first otherwise); without `other` the same model is compiled
    with both.

    inputs: a call in which the kernels are timed; without it times are the cost model's estimates.
    sizes: values of symbolic dims for which numbers are given (1 for others).
    force: also replace a file that is no page.

    The other arguments are those of `tilewright.compile`, and so are the errors; ArtifactError for a damaged artefact,
    or a file that cannot be written.
    """
    target = Path(path)
    chosen = Options.of(options, **fields)
    if not isinstance(sizes, Mapping | None) or not isinstance(inputs, Mapping | None):
        raise OptionError("inputs= and sizes= are dicts: of names of inputs to values, and of names of dims to numbers")
    known = Session.of(session)
    subjects = [Subject(model, chosen, constants, shapes)]
    if other is not None or other_options is not None:
        changed_options = chosen if other_options is None else Options.of(other_options)
        subjects.append(Subject(model if other is None else other, changed_options, constants, shapes))
    check_output(target, subjects, force)
    views = []
    for subject in subjects:
        profile: ModelProfile | None = None
        notes: tuple[str, ...] = ()
        if inputs is not None:
            profile, notes = profile_of(subject.compiled(known, progress), inputs, known)
        views.append(subject.view(known, ViewRequest(sizes or {}, profile, notes=notes), progress))
    write_page(target, with_names(views, subjects))


def with_names(views: Sequence[ModelView], subjects: Sequence[Subject]) -> list[ModelView]:
    """The views with names that tell two apart: with what they were compiled with where this differs, with the folders
    that they are from, or else with numbers."""
    if len(views) < 2:
        return list(views)
    one, two = subjects[0].options, subjects[1].options
    differ = [f.name for f in fields_of(Options) if getattr(one, f.name) != getattr(two, f.name)]
    folders = [Path(s.model).parent.name if isinstance(s.model, str | Path) else "" for s in subjects]
    same = views[0].name == views[1].name
    named = []
    for number, (view, subject, folder) in enumerate(zip(views, subjects, folders, strict=True), 1):
        name = f"{folder}/{view.name}" if same and folders[0] != folders[1] and folder else view.name
        with_them = "" if subject.is_artefact else ", ".join(f"{n}={getattr(subject.options, n)}" for n in differ)
        if same and not differ and folders[0] == folders[1]:
            with_them = str(number)
        named.append(replace(view, name=f"{name} ({short_name(with_them, LONGEST_DIFFERENCE)})" if with_them else name))
    return named


def check_output(path: Path, subjects: Sequence[Subject], force: bool) -> None:
    """ArtifactError where a page cannot be written at a path, or would take the place of something else."""
    sources = [Path(subject.model) for subject in subjects if isinstance(subject.model, str | Path)]
    check_replaced(path, "a page", lambda begins: begins.startswith(_BEGIN), sources=sources, force=force)
    check_file(path)


def profile_of(
    model: Model, inputs: Mapping[str, Any], session: Session, runs: int = RUNS
) -> tuple[ModelProfile | None, tuple[str, ...]]:
    """The profile of a compiled model, and what is to be said where there is none. InputError for inputs that do not
    fit."""
    try:
        return run_profile(model, inputs, runs=runs, session=session), ()
    except OptionError as error:
        return None, (f"kernels were not timed: {error.what}",)


def write_page(path: Path, views: Sequence[ModelView]) -> None:
    """Write the page of some models."""
    title = " and ".join(view.name for view in views)
    text = page_html(Page(title, tilewright.__version__, tuple(views)))
    with replacing(path) as file:
        file.write(text.encode(errors="replace"))
