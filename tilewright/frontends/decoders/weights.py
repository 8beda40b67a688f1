"""Tensors of a checkpoint as values of a graph: each is asked for by its name and shape, and checked against both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from tilewright.frontends.decoders.config import Config
from tilewright.frontends.problems import shown
from tilewright.frontends.weights.encode import encoded
from tilewright.frontends.weights.expression import stored_value
from tilewright.frontends.weights.forms import Wanted, WeightForm, checked_weights
from tilewright.frontends.weights.layout import BlockLayout, PlainLayout
from tilewright.frontends.weights.stacks import stacked
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ops.index import gather
from tilewright.ops.source import full
from tilewright.ops.view import concat, reshape
from tilewright.runtime.errors import OptionError

_LISTED = 20
_HINT = "config and weights must belong together, and all files of a sharded model must be there"
Express = Callable[[str, StoredTensor], Value]
"""Gives the value f32 of a tensor by its name in the checkpoint."""
_DTYPES = {"float32": dt.f32, "float16": dt.f16, "bfloat16": dt.bf16}


class CheckpointWeights:
    """The tensors of a checkpoint in `where`. What is missing or of another shape is noted, and stands for zeros until
    `check` tells all of it at once. Names may lack the `base` of those of an architecture. Matrices become
    what is `wanted` where that has fewer bits; of one form for all, those with a row for each token of a `vocabulary`
    have 8 bits at least. `importance` is that of the columns of matrices, by name, and `express` gives values of
    tensors in place of the constants that they are.
    """

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        where: str,
        base: str = "",
        wanted: Wanted = None,
        vocabulary: int = 0,
        importance: Mapping[str, np.ndarray] | None = None,
        express: Express | None = None,
    ) -> None:
        self.tensors, self.where, self._base = tensors, where, base
        self._wanted, self._vocabulary = checked_weights(wanted), vocabulary
        self._importance = importance or {}
        self._express = express
        self._values: dict[str, Value] = {}
        self._used: set[str] = set()
        self._missing: dict[str, tuple[int, ...]] = {}
        self._wrong: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return self._key(name) in self.tensors

    def value(self, name: str, *shape: int) -> Value:
        """A tensor of f32, of this shape; the same value each time."""
        stored = self._find(name, shape)
        if stored is None:
            return full(value=0.0, dtype=dt.f32, shape=shape)
        if name not in self._values:
            key = self._key(name)
            wanted = self._as_wanted(key, stored)
            self._values[name] = stored_value(wanted) if self._express is None else self._express(key, wanted)
        return self._values[name]

    def stack(self, names: Sequence[str], *shape: int) -> Value:
        """Tensors of one shape as one of f32 [number, ...]."""
        found = {name: self._find(name, shape) for name in names}
        stored = [self._as_wanted(self._key(n), tensor) for n, tensor in found.items() if tensor is not None]
        if len(stored) != len(names):
            return full(value=0.0, dtype=dt.f32, shape=(len(names), *shape))
        if self._express is not None:
            return concat(*(reshape(self.value(name, *shape), shape=(1, *shape)) for name in names), axis=0)
        return stored_value(stacked(stored))

    def rows(self, name: str, count: int, width: int, places: Value) -> Value:
        """Rows of a matrix [count, width] of f32 at `places`; an index out of range is an error of the call."""
        return gather(self.value(name, count, width), places, axis=0)

    def parts(self, config: Config, name: str) -> int:
        """The field that counts what has tensors of its own: layers, or experts. ModelError for more than there can
        be."""
        count = config.count(name)
        if count > len(self.tensors):
            what = f"{config.named(name)} is {count}, and there are {len(self.tensors)} tensors"
            raise config.error(what, hint=_HINT)
        return count

    def skip(self, *names: str) -> None:
        """Leave tensors out that the file may have, and that mean nothing."""
        self._used.update(self._key(name) for name in names)

    def shared(self, *names: str) -> str:
        """Of the names of one tensor that under which it is there. Files have it once, or several times."""
        self.skip(*names)
        return next((name for name in names if name in self), names[0])

    def check(self, ignored: Iterable[str] = ()) -> None:
        """ModelError that names all tensors that are missing, of another shape, or not of this architecture, but for
        those whose names end in one of `ignored`."""
        ends = tuple(ignored)
        extra = [n for n in self.tensors if n not in self._used and not n.endswith(ends or ("\0",))]
        lines = []
        strange = [name for name in self._importance if name not in self.tensors]
        if strange:
            what = f"importance= has names that no tensor has: {', '.join(map(shown, strange[:_LISTED]))}"
            raise OptionError(what, hint=f"names are such as {next(iter(self.tensors), '')}")
        if self._missing:
            lines.append(_list("missing", [f"{name} {list(shape)}" for name, shape in self._missing.items()]))
        if self._wrong:
            lines.append(_list("of another shape", self._wrong.values()))
        if extra:
            lines.append(_list("not of this architecture", extra))
        patterns = [pattern for pattern, _ in self._wanted] if isinstance(self._wanted, tuple) else []
        unmatched = [p for p in patterns if not any(fnmatchcase(name, p) for name in self.tensors)]
        if unmatched:
            raise OptionError(
                f"weights= has patterns that no tensor has: {', '.join(map(shown, unmatched[:_LISTED]))}",
                hint=f"names are such as {next(iter(self.tensors), '')}",
            )
        if lines:
            raise ModelError(
                "the tensors are not those that the config describes:\n" + "\n".join(f"  {line}" for line in lines),
                where=self.where,
                hint=_HINT,
            )

    def _as_wanted(self, name: str, stored: StoredTensor) -> StoredTensor:
        form, importance = self._form(name, stored) if is_matrix(stored) else None, self._importance.get(name)
        if importance is not None and importance.shape != stored.shape[-1:]:
            what = f"importance= of '{shown(name)}' has {importance.size} numbers"
            raise OptionError(f"{what}, and the tensor is {list(stored.shape)}", hint="give one for each column")
        return stored if form is None else as_form(stored, form, importance)

    def _form(self, name: str, matrix: StoredTensor) -> WeightForm | None:
        if isinstance(self._wanted, tuple):
            found = next((text for pattern, text in self._wanted if fnmatchcase(name, pattern)), None)
            return None if found is None else WeightForm.of(found)
        if self._wanted is None:
            return None
        form = WeightForm.of(self._wanted)
        return replace(form, type="int8") if form.bits < 8 and matrix.shape[0] == self._vocabulary else form

    def _key(self, name: str) -> str:
        """Files of a model without its head have its tensors without the name of the body."""
        short = name.removeprefix(self._base)
        return short if name not in self.tensors and short in self.tensors else name

    def _find(self, name: str, shape: tuple[int, ...]) -> StoredTensor | None:
        key = self._key(name)
        stored = self.tensors.get(key)
        self._used.add(key)
        if stored is None:
            self._missing[name] = shape
            return None
        if stored.shape != shape:
            self._wrong[name] = f"{key} is {list(stored.shape)}, and must be {list(shape)}"
            return None
        return stored


def _list(what: str, names: Iterable[str]) -> str:
    found = [shown(name, 120) for name in names]
    more = f", and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return f"{what}: {', '.join(found[:_LISTED])}{more}"


def is_matrix(stored: StoredTensor) -> bool:
    """May it have fewer bits?"""
    return len(stored.shape) == 2 and stored.shape[0] > 1


def as_form(matrix: StoredTensor, form: WeightForm, importance: np.ndarray | None = None) -> StoredTensor:
    """The matrix in this form, or as it is if it has no more bits; "float32" is for all. `importance` f32[columns]
    weighs errors."""
    stored = matrix.kind.layout
    if isinstance(stored, PlainLayout) and stored.dtype is _DTYPES.get(form.type):
        return matrix
    if isinstance(stored, BlockLayout) and form.type != "float32" and stored.codes.bits <= form.bits:
        return matrix
    return encoded(matrix.decoded(), form.type, form.group, form.minimum, matrix.name, importance)
