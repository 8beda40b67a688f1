"""What adapters of every front end ask of a node: types of its operands, and what is known of them at compile time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.frontends.adapters import signature_of
from tilewright.frontends.translation import type_of
from tilewright.ir.diag import ModelError, UnsupportedError

if TYPE_CHECKING:
    from tilewright.frontends.translation import Translation
    from tilewright.ir.core import Value
    from tilewright.ir.dtype import DType
    from tilewright.ir.sym import Sym
    from tilewright.ir.types import TensorType


class TranslatedNode:
    """A node of a model during translation, whatever the format. `op` is its operator as errors name it."""

    op: str
    translation: Translation
    scalars_have_an_axis: ClassVar[bool] = False
    """Whether 0 and -1 name an axis of a scalar, too."""

    def axis(self, axis: int, rank: int) -> int:
        """An axis of a tensor of this rank, which may be counted from its end; ModelError where there is none."""
        axes = max(rank, 1)
        if not (-axes if self.scalars_have_an_axis else -rank) <= axis < axes:
            raise ModelError(f"{self.op}: axis {axis} is out of range for rank {rank}")
        return axis % rank if rank else 0

    def measured(self, value: Value, needed: str) -> np.ndarray:
        """The elements of small integers as Syms, measured when it has been computed where they depend on data; the
        error says what is `needed` of the value where that is not possible."""
        found = self.translation.measure(value)
        if found is None:
            raise self.translation.must_be_known(value, f"{self.op} needs {needed} at compile time")
        return found


class NodeWithOperands(TranslatedNode):
    """A node whose operands are found by their places."""

    called: ClassVar[str] = "operand"
    """What the format calls an operand."""

    def stored(self, k: int) -> Value:
        """Operand `k`, as the model stores it; ModelError where there is none."""
        raise NotImplementedError

    def input(self, k: int) -> Value:
        """Operand `k`, as operators of ours take it; ModelError where there is none."""
        return self.stored(k)

    @property
    def count(self) -> int:
        """How many operands are listed, those that are left out included."""
        raise NotImplementedError

    def optional(self, k: int) -> Value | None:
        """The same; None where it may be left out and is."""
        return self.input(k)

    def keyword(self, name: str, kind: str, default: Any) -> Any:
        """An attribute as the `kind` of value that a parameter of a function has; the default where it is not given,
        ModelError where that is `REQUIRED`."""
        raise NotImplementedError

    def applied(self, function: Callable[..., Any], **renamed: str) -> Any:
        """What a function gives that takes the operands, in order, and the attributes, as keywords of the same names or
        of those that the format calls `renamed` (ours="theirs")."""
        signature = signature_of(function)
        count = self.count if signature.most is None else min(self.count, signature.most)
        operands = [
            self.input(k) if k < signature.least else self.optional(k) for k in range(max(count, signature.least))
        ]
        found = {
            name: self.keyword(renamed.get(name, name), kind, default)
            for name, (kind, default) in signature.attributes.items()
        }
        return function(*operands, **found)

    def type(self, k: int) -> TensorType:
        return type_of(self.stored(k))

    def shape(self, k: int) -> tuple[Sym, ...]:
        return self.type(k).shape

    def rank(self, k: int) -> int:
        return self.type(k).rank

    def dtype(self, k: int) -> DType:
        return self.type(k).dtype

    def axis(self, axis: int, rank: int | None = None) -> int:
        """An axis counted from 0, for `rank` (that of operand 0)."""
        return super().axis(axis, self.rank(0) if rank is None else rank)

    def constant_or_none(self, k: int) -> np.ndarray | None:
        """The elements of operand `k`; None where they depend on inputs of the graph."""
        return self.translation.constant_of(self.stored(k))

    def constant(self, k: int) -> np.ndarray:
        """The same; ConstantNeededError where they depend on inputs of the graph."""
        found = self.constant_or_none(k)
        if found is None:
            raise self.needs_constant(k)
        return found

    def ints(self, k: int) -> tuple[int, ...]:
        """Operand `k`, a known integer scalar or vector."""
        self._require_vector(k)
        return tuple(int(i) for i in self.constant(k).reshape(-1))

    def symbols(self, k: int) -> tuple[Sym, ...]:
        """Operand `k`, an integer scalar or vector, as Syms over dims, values of graph inputs, and values that are read
        when they have been computed."""
        self._require_vector(k)
        return tuple(self.measured_operand(k).reshape(-1))

    def _require_vector(self, k: int) -> None:
        if not self.dtype(k).is_int or self.rank(k) > 1:
            wanted = f"must be an integer or a vector of integers, it is {self.type(k)}"
            raise ModelError(f"{self.called} {k} of {self.op} {wanted}")

    def measured_operand(self, k: int) -> np.ndarray:
        """Operand `k`, integers of any shape, as Syms."""
        return self.measured(self.stored(k), f"the value of its {self.called} {k}")

    def known_dim(self, k: int, axis: int) -> int:
        """The size of an axis of operand `k`, which must be a number."""
        if not -self.rank(k) <= axis < self.rank(k):
            raise ModelError(f"{self.op}: {self.called} {k} is {self.type(k)}, which has no axis {axis}")
        size = self.shape(k)[axis]
        if not size.is_const:
            raise UnsupportedError(
                f"{self.op}: the size of axis {axis} of {self.called} {k} must be known, it is {size}",
                hint=self.translation.fixing(size),
            )
        return size.value

    def needs_constant(self, k: int) -> UnsupportedError:
        """The error that says that the value of operand `k` must be known, and how to make it so."""
        what = f"{self.op} needs the value of its {self.called} {k} at compile time"
        return self.translation.must_be_known(self.stored(k), what)
