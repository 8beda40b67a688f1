"""What a front end is, and which one reads a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from tilewright.ir.core import Module

Remember = Callable[[Path, Callable[[Path], bytes]], bytes]
"""`remember(path, find_out)` is `find_out(path)`, found out again only when the file has changed."""


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
        operator of a node; `["contradictions"]` are pairs of a subject and of what was not taken from the source.
        ModelError for a source that is damaged, UnsupportedError for what cannot be translated.
        """
