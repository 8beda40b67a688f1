"""What a front end is, and which one reads a source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tilewright.frontends.files import check_file, first_bytes
from tilewright.ir.diag import ModelError, TilewrightError
from tilewright.runtime.errors import OptionError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.core import Module

Remember = Callable[[Path, Callable[[Path], bytes]], bytes]
"""`remember(path, find_out)` is `find_out(path)`, found out again only when the file has changed."""


@dataclass(frozen=True, eq=False)
class ModelWithExamples:
    """A model that is a program of a framework, and what it is called with to see what it does: `args` by position and
    `kwargs` by name. `dynamic_shapes` says which of their sizes may be others, as the framework has it."""

    model: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    made: dict[str, Any] = field(default_factory=dict, repr=False)
    """What a front end has made of it already, for the digest and for the program."""


class FrontEnd(Protocol):
    """Makes graph-level programs of models of one format: an object, or a module.

    `formats` says in a line what it takes, for messages: "ONNX (.onnx files, their bytes, ModelProto)". A source is a
    `Path`, bytes, or any other object that a caller gives. Only `load` may need more than the standard library: the
    others are called also for models that the cache has, and should import nothing heavy.
    """

    @property
    def name(self) -> str: ...

    @property
    def formats(self) -> str: ...

    def accepts(self, source: Any) -> bool:
        """Whether the source looks like one of this format: by its suffix, its type or its first bytes."""

    def digest(self, source: Any, remember: Remember) -> bytes:
        """What is another one whenever the source means another model: the digest of its bytes, of the files that
        belong to it, and of whatever else `load` reads. OSError or ValueError for what cannot be read."""

    def load(
        self,
        source: Any,
        *,
        constants: Mapping[str, np.ndarray],
        shapes: Mapping[str, Sequence[int | str]],
    ) -> Module:
        """A module with one function `main` of graph level, inputs in `constants` bound to these values, and with
        `shapes` in place of those that the source declares.

        `main.attrs["inputs"]` and `["outputs"]` are the names that users know, `["nodes"]` the number of operators
        that the source has; `["assumed"]` are the conditions that calls must fulfil, each with words and the name and
        operator of a node; `["complex_inputs"]` and `["complex_outputs"]` name tensors whose last axis, of 2, holds the
        parts of complex numbers, as which callers give and get them; `["contradictions"]` are pairs of a subject and of
        what was not taken from the source, `["warnings"]` of a subject and of what its users should know;
        `["quantised"]` are triples of names: of results of operators on integers, of their scales and zero points;
        `["attached"]` is JSON data that is kept with the compiled model.
        ModelError for a source that is damaged, UnsupportedError for what cannot be translated.
        """


def find_front_end(source: Any, front_ends: Iterable[FrontEnd], failed: list[str]) -> FrontEnd | None:
    """The first that accepts the source; those that fail to say so are told in `failed`."""
    for front_end in front_ends:
        try:
            if front_end.accepts(source):
                return front_end
        except Exception as error:  # of a plugin: others may accept it
            failed.append(f"the front end '{front_end.name}' failed: {type(error).__name__}: {error}")
    return None


def unknown_source(
    source: Any, front_ends: Iterable[FrontEnd], left_out: Sequence[str] = ()
) -> TilewrightError:
    """The error that says that no front end accepts the source, what it is, and what is accepted; `left_out` are
    plugins that could not be used, one of which may have been meant. ModelError for a path that is no file's."""
    formats = "; ".join(front_end.formats for front_end in front_ends)
    hint = "; ".join([f"formats: {formats}", *left_out])
    if isinstance(source, ModelWithExamples):
        return OptionError(
            f"example_inputs= were given for a model ({type(source.model).__name__}) that is not traced with examples",
            hint=f"leave them out, or give a torch.nn.Module; {hint}",
        )
    if not isinstance(source, Path | bytes):
        return OptionError(
            f"model={source!r:.80} is not allowed: give a path, the bytes of a file, or a model of a known format",
            hint=hint,
        )
    if isinstance(source, Path):
        check_file(source)
    begins = first_bytes(source, 16)
    return ModelError(
        f"the model is of no known format: it begins with {begins!r}"
        if begins
        else "the model file is empty",
        where=str(source) if isinstance(source, Path) else "the given bytes",
        hint=hint,
    )
