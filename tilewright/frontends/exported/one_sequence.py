"""What follows from the length of one sequence that is continued is no input of a decoder: batches are of one, nothing
is masked, and tokens stand behind those in the caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.frontends.inputs import Declared
from tilewright.frontends.problems import shown
from tilewright.frontends.translation import type_of
from tilewright.ir.core import Module, Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.ops.elementwise import add, cast
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import reshape
from tilewright.runtime.errors import OptionError

TOKENS = ("input_ids", "ids", "tokens")
MASKS, POSITIONS, FLAGS = ("attention_mask",), ("position_ids", "positions", "cache_position"), ("use_cache_branch",)

_LEAST_RANK = 3
"""Of caches: a batch, or heads, and the elements of a row are beside the positions."""


@dataclass(frozen=True)
class OneSequence:
    """The inputs of a decoder that are left, and those whose values follow from how many tokens a call has and from
    `past`, the input and the axis that say how many there were before."""

    tokens: str
    past: tuple[str, int]
    inputs: Mapping[str, Declared]
    computed: Mapping[str, Declared]

    def values(self, given: Mapping[str, Value | None]) -> dict[str, Value]:
        """Of the inputs that are computed, from the values of the others."""
        name, axis = self.past
        steps, past = (_dim(given, self.tokens, -1), _dim(given, name, axis))
        return {name: following(name, declared, past, steps) for name, declared in self.computed.items()}

    def outputs(self, names: Iterable[str]) -> list[str]:
        """All of them."""
        return list(names)


def one_sequence(inputs: Mapping[str, Declared]) -> OneSequence | None:
    """Of a model that takes tokens, and caches of a symbolic length; None for others."""
    tokens = tokens_of(inputs)
    if tokens is None:
        return None
    batch = _batch(inputs[tokens])
    found = ((name, axis) for name, declared in inputs.items() if (axis := _grows(declared, batch)) is not None)
    past = next(found, None)
    return None if past is None else OneSequence(tokens, past, *of_one(inputs, batch))


def required_sequence(inputs: Mapping[str, Declared]) -> OneSequence:
    """The same; OptionError for a model that is none, with what was looked for."""
    found = one_sequence(inputs)
    if found is None:
        raise not_a_decoder(inputs, "caches are inputs of floats with a symbolic length, behind the batch")
    return found


def not_a_decoder(inputs: Mapping[str, Declared], caches: str) -> OptionError:
    """The error for a model in which no tokens, or no caches, are found."""
    listed = ", ".join(f"{shown(name)} {_shown(declared)}" for name, declared in inputs.items()) or "none"
    sought = caches if tokens_of(inputs) is not None else f"tokens are an input {' or '.join(TOKENS)} of one sequence"
    return OptionError(
        f"the model is no decoder of a form that is known: {sought}; its inputs are {listed}",
        hint="export it with its caches as inputs and outputs, or from PyTorch with a static cache as buffers",
    )


def tokens_of(inputs: Mapping[str, Declared]) -> str | None:
    """The name of the input with tokens, of one sequence or a batch."""
    found = (name for name in TOKENS if name in inputs)
    return next((name for name in found if len(inputs[name].shape or ()) in (1, 2)), None)


def of_one(inputs: Mapping[str, Declared], batch: str) -> tuple[dict[str, Declared], dict[str, Declared]]:
    """The inputs that are left where there is one sequence, and those that follow from its length."""
    fixed = {name: _fixed(declared, batch) for name, declared in inputs.items()}
    computed = {name: declared for name, declared in fixed.items() if _follows(name, declared)}
    return {name: declared for name, declared in fixed.items() if name not in computed}, computed


def following(name: str, declared: Declared, past: Sym, steps: Sym) -> Value:
    """An input that follows from how many tokens came before, and how many a call has: ones for all positions, the
    positions of the tokens, or that there are caches."""
    assert isinstance(declared.dtype, DType) and declared.shape is not None, "it is a tensor of numbers"
    rank = len(declared.shape)
    if name in FLAGS:
        found: Value = full(value=1, dtype=declared.dtype, shape=(1,) * rank)
    elif name in MASKS:
        found = full(value=1, dtype=declared.dtype, shape=(*(1,) * (rank - 1), past + steps))
    else:
        found = reshape(positions(past, steps), shape=(*(1,) * (rank - 1), steps))
        found = cast(found, dtype=declared.dtype)
    return found


def positions(past: Sym, steps: Sym) -> Value:
    """Those behind so many others: i64[steps]."""
    found: Value = add(iota(shape=(steps,), axis=0), dim_value(past))
    return found


def settled(load: Callable[[Mapping[str, Sequence[int | str]]], Module]) -> Module:
    """What `load` gives for shapes. Where all calls are refused for which a symbolic dim has not one size, it has this
    size: a state has no other dims that are open than the one along which it grows."""
    module = load({})
    sizes = dict(decided(condition for condition, *_ in module.main.attrs.get("assumed", ())))
    if not sizes:
        return module
    known = {
        name: [sizes.get(d, d.value if d.is_const else d.name) for d in value.tensor.shape]
        for name, value in zip(module.main.attrs["inputs"], module.main.args, strict=True)
        if isinstance(value.type, TensorType) and not sizes.keys().isdisjoint(value.type.shape)
    }
    return load(known)


def decided(conditions: Iterable[Sym]) -> Iterator[tuple[Sym, int]]:
    """Dims that must have one size, by conditions that are equations of them alone (and not of a remainder, say)."""
    for condition in conditions:
        if condition.kind == "eq0" and len(condition.vars) == 1:
            (dim,) = condition.vars
            counts = dict(condition.args[0].terms)
            if abs(counts.get(dim, 0)) == 1 and all(term is dim or term.is_const for term in counts):
                yield dim, -counts[dim] * condition.args[0].subs({dim: sym(0)}).value


def _dim(given: Mapping[str, Value | None], name: str, axis: int) -> Sym:
    value = given[name]
    assert value is not None, "no input is left out"
    return type_of(value).shape[axis]


def _batch(tokens: Declared) -> str:
    """The name of a symbolic batch; "" for others."""
    shape = tokens.shape or ()
    return shape[0] if len(shape) > 1 and isinstance(shape[0], str) else ""


def _grows(declared: Declared, batch: str) -> int | None:
    """The axis of a symbolic length, of an input that may be a cache: of several the first behind the batch."""
    is_float = isinstance(declared.dtype, DType) and declared.dtype.is_float
    if not is_float or declared.shape is None or len(declared.shape) < _LEAST_RANK or declared.is_complex:
        return None
    open_ones = [k for k, d in enumerate(declared.shape) if not isinstance(d, int) and (d != batch or not batch)]
    behind = [k for k in open_ones if k > 0 or batch]
    return behind[0] if behind else None


def _fixed(declared: Declared, batch: str) -> Declared:
    """For one sequence: where the dim is named, and where the first one of several is open."""
    shape = declared.shape
    if shape is None:
        return declared
    is_open = len(shape) > 1 and not isinstance(shape[0], int)
    fixed = (1 if (k == 0 and is_open) or (batch and d == batch) else d for k, d in enumerate(shape))
    return declared._replace(shape=tuple(fixed))


def _follows(name: str, declared: Declared) -> bool:
    if not isinstance(declared.dtype, DType) or declared.shape is None or declared.is_complex:
        return False
    return name in FLAGS or (name in (*MASKS, *POSITIONS) and len(declared.shape) in (1, 2))


def _shown(declared: Declared) -> str:
    dims = "" if declared.shape is None else ", ".join("?" if d is None else str(d) for d in declared.shape)
    return f"{declared.dtype}[{dims}]"
