"""Parameters as constants: compiled code holds what they were, and is made anew when they are written to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import get_plain_tensors
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

MAX_VARIANTS = 8
"""Different parameters that one graph is compiled for; then they are taken as inputs."""

Key = tuple[tuple[int, int], ...]
"""The address of each parameter, and how often it was written to; the writes to those that wrap others behind them."""

Compile = Callable[[Mapping[str, tuple[str, torch.Tensor]]], Callable[..., Any]]


class Writes:
    """How often the parameters of subclasses that wrap tensors were written to: what is written to these themselves is
    not counted, and code that AOTAutograd makes is given nothing else."""

    def __init__(self, example_inputs: Sequence[Any]) -> None:
        self._places = tuple(k for k, x in enumerate(example_inputs) if is_traceable_wrapper_subclass(x))
        self._first = self._counts(example_inputs)
        self._thread = threading.local()

    def watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls count as `counts` says from within."""
        if not self._places:
            return run

        def counted(*args: Any) -> Any:
            self._thread.counts = self._counts(args)
            return run(*args)

        return counted

    def counts(self) -> Key:
        return getattr(self._thread, "counts", self._first)

    def _counts(self, inputs: Sequence[Any]) -> Key:
        return tuple([(0, inputs[k]._version) for k in self._places])


class Frozen:
    """Runs the code for the parameters that it is called with.

    Parameters are recognised by their memory and by PyTorch's count of writes to them, so that a call never computes
    with values that a parameter does not have any more. Buffers that were written to while all parameters stayed what
    they are hold states, as a cache of keys and values does: these are inputs from then on.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        frozen: Sequence[bool],
        compile: Compile,
        writes: Writes,
    ) -> None:
        placeholders = graph.graph.find_nodes(op="placeholder")
        own, flags = _with_own_parameters(example_inputs, frozen, len(placeholders))
        self._names = [node.name for node in placeholders]
        self._titles = [_title(node) for node in placeholders]
        _, kinds = _with_own_parameters(
            example_inputs, [isinstance(x, torch.nn.Parameter) for x in example_inputs], len(placeholders)
        )
        self._parameters = frozenset(k for k, kind in enumerate(kinds) if kind)
        self._compile, self._writes = compile, writes
        self._variants: dict[Key, _Variant] = {}
        self._open: _Variant | None = None
        self._held: list[Any] = []
        places = tuple(k for k, flag in enumerate(flags) if flag and isinstance(own[k], torch.Tensor))
        # One attribute, so that threads see a key with its own code.
        self._current = self._found(own, places)
        self.first, self.inputs = self._current.run, len(placeholders)

    def __call__(self, *args: Any) -> Any:
        current = self._current
        key = tuple([(args[k].data_ptr(), args[k]._version) for k in current.places]) + self._writes.counts()
        if key != current.key:
            self._current = current = self._found(args, self._without_states(current, key))
        return current.run(*[args[k] for k in current.free])

    def _without_states(self, last: _Variant, key: Key) -> tuple[int, ...]:
        """The places of constants without those that were written to since the last call, where all parameters are
        what they were."""
        changed = {k: a[0] == b[0] for k, a, b in zip(last.places, last.key, key, strict=False) if a != b}
        if self._parameters.intersection(changed):
            return last.places
        return tuple(k for k in last.places if not changed.get(k, False))

    def _found(self, args: Sequence[Any], places: tuple[int, ...]) -> _Variant:
        """The code for the values that the parameters have, of which those at `places` are constants."""
        key = tuple((args[k].data_ptr(), args[k]._version) for k in places) + self._writes.counts()
        found = self._variants.get(key)
        if found is not None and found.places == places:
            return found
        if len(self._variants) < MAX_VARIANTS:
            state = {self._names[k]: (self._titles[k], args[k]) for k in places}
            free = tuple(k for k in range(len(self._names)) if k not in set(places))
            found = self._variants[key] = _Variant(places, key, free, self._compile(state))
            # As long as their memory is held, no other parameters have these addresses.
            self._held += [args[k].untyped_storage() for k in places]
            return found
        if self._open is None:
            self._open = _Variant((), (), tuple(range(len(self._names))), self._compile({}))
        return replace(self._open, places=places, key=key)


@dataclass(frozen=True, eq=False)
class _Variant:
    """Code for parameters of one key, those at `places`; the others are its inputs."""

    places: tuple[int, ...]
    key: Key
    free: tuple[int, ...]
    run: Callable[..., Any]


def _with_own_parameters(
    example_inputs: Sequence[Any], frozen: Sequence[bool], count: int
) -> tuple[list[Any], list[bool]]:
    """The `count` inputs of the functional graph, and which of them are parameters."""
    own, flags = _plain(example_inputs, frozen)
    lead = _own_parameters(count - len(own))
    held, held_flags = _plain(lead, [not x.is_inference() for x in lead])
    if len(held) + len(own) != count:  # sizes of a subclass are inputs of their own: nothing is a constant then
        return [None] * count, [False] * count
    return [*held, *own], [*held_flags, *flags]


def _own_parameters(count: int) -> Sequence[torch.Tensor]:
    """Parameters that the graph's module held, which AOTAutograd puts in front of its inputs, where it has `count` more
    of these than it was given."""
    context = torch._guards.TracingContext.try_get()
    if not count or context is None or context.params_flat is None:
        return ()
    return list(context.params_flat)


def _plain(inputs: Sequence[Any], flags: Sequence[bool]) -> tuple[list[Any], list[bool]]:
    """The inputs with their flags as AOTAutograd has them: a subclass of tensors that wraps others (torchao's quantised
    weights, for one) is the tensors that it wraps."""
    found: list[Any] = []
    marks: list[bool] = []
    for x, flag in zip(inputs, flags, strict=True):
        parts: list[Any] = []
        if is_traceable_wrapper_subclass(x):
            get_plain_tensors(x, out=parts)
        else:
            parts.append(x)
        found += parts
        marks += [flag] * len(parts)
    return found, marks


def _title(node: torch.fx.Node) -> str:
    """The name of a parameter as the module has it, where Dynamo tells."""
    source = (node.meta.get("tensor_dict") or {}).get("_dynamo_source") or node.name
    return str(source)
