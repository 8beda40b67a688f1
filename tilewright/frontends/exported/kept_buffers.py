"""A decoder that keeps its caches as buffers of a fixed size, as a program of one sequence whose caches come and go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.frontends.exported.elements import ElementsAt
from tilewright.frontends.exported.one_sequence import following, not_a_decoder, of_one, tokens_of
from tilewright.frontends.exported.static_caches import StaticCaches
from tilewright.frontends.inputs import Declared
from tilewright.frontends.translation import Translation, type_of
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym, var
from tilewright.ops.elementwise import cast
from tilewright.ops.source import dim_value
from tilewright.ops.view import reshape

ROOM = "room"
"""The attribute of a main function with the most positions that its caches had room for."""


@dataclass(frozen=True)
class KeptBuffers:
    """What is known of inputs and of buffers, by the names of the inputs that these are: `caches` and `counts` have the
    names of the outputs that they become. Counts are integers that hold how many tokens there were."""

    tokens: str
    inputs: Mapping[str, Declared]
    computed: Mapping[str, Declared]
    caches: Mapping[str, str]
    counts: Mapping[str, str]

    @property
    def past(self) -> Sym:
        """How many tokens there were: a dim of the caches."""
        name, taken = "past", {d for each in self.inputs.values() for d in each.shape or ()}
        while name in taken:
            name += "_"
        return var(name)

    def values(self, given: Mapping[str, Value | None]) -> dict[str, Value]:
        """Of the inputs that are computed, and of counts."""
        steps = self._steps(given)
        return {name: self._value(name, declared, steps) for name, declared in self.computed.items()}

    def _value(self, name: str, declared: Declared, steps: Sym) -> Value:
        if name not in self.counts:
            return following(name, declared, self.past, steps)
        assert isinstance(declared.dtype, DType)
        found: Value = cast(reshape(dim_value(self.past), shape=declared.shape or ()), dtype=declared.dtype)
        return found

    def outputs(self, names: Iterable[str]) -> list[str]:
        """Those that are left."""
        return [name for name in names if name not in self.counts.values()]

    def results(
        self, translation: Translation, given: Mapping[str, Value | None], results: Mapping[str, Value]
    ) -> tuple[list[Value], int]:
        """The results that are left, where the caches come and go, and how many positions these had room for."""
        steps, elements = self._steps(given), ElementsAt(translation.module)
        for name, output in self.counts.items():
            if elements.known(results[output], (sym(0),) * type_of(results[output]).rank) != self.past + steps:
                raise UnsupportedError(
                    f"the buffer '{name}' does not count the tokens of the calls",
                    hint="export the decoder with cache_position as an input, or with caches as inputs and outputs",
                )
        pairs = {
            name: (value, results[output]) for name, output in self.caches.items() if (value := given[name]) is not None
        }
        kept, room = StaticCaches(translation.builder, self.past, steps).grow(pairs)
        return [kept.get(results[name], results[name]) for name in self.outputs(results)], room

    def _steps(self, given: Mapping[str, Value | None]) -> Sym:
        value = given[self.tokens]
        assert value is not None, "no input is left out"
        return type_of(value).shape[-1]


def kept_buffers(inputs: Mapping[str, Declared], kept: Mapping[str, str]) -> KeptBuffers:
    """Of a model that takes tokens, and keeps buffers: `kept` has the names of inputs and outputs that these are.
    OptionError for one without tokens."""
    tokens = tokens_of(inputs)
    if tokens is None:
        raise not_a_decoder({name: declared for name, declared in inputs.items() if name not in kept}, "")
    left, computed = of_one({name: declared for name, declared in inputs.items() if name not in kept}, "")
    counts = {name: output for name, output in kept.items() if _counts(inputs[name])}
    caches = {name: output for name, output in kept.items() if name not in counts}
    return KeptBuffers(
        tokens,
        left | {name: inputs[name] for name in caches},
        computed | {name: inputs[name] for name in counts},
        caches,
        counts,
    )


def _counts(declared: Declared) -> bool:
    is_integer = isinstance(declared.dtype, DType) and declared.dtype.is_int
    return is_integer and all(d == 1 for d in declared.shape or ())
