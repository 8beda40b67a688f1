"""Parameters as constants: compiled code holds what they were, and is made anew when they are written to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import get_plain_tensors
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tilewright.torch.watch import Watch
from tilewright.torch.weights import FROZEN, Key, addresses_in, is_readable, key_of, watch

MAX_VARIANTS = 8
"""Different parameters that one graph is compiled for; then they are taken as inputs."""

MAX_KNOWN_WEIGHTS = 64
"""How many sets of parameters, in different memory, are known without reading them again."""

Compile = Callable[[Mapping[str, tuple[str, torch.Tensor]]], Callable[..., Any]]


class Writes:
    """How often the parameters of subclasses that wrap tensors were written to: what is written to these themselves is
    not counted, and code that AOTAutograd makes is given nothing else. Where what they hold is watched, nothing is
    counted."""

    def __init__(self, example_inputs: Sequence[Any], weights: str) -> None:
        wrappers = [k for k, x in enumerate(example_inputs) if is_traceable_wrapper_subclass(x)]
        self._places = tuple(wrappers) if weights == FROZEN else ()
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

    Parameters are recognised by their memory, and by a watch over what they hold or PyTorch's count of writes to them,
    so that a call never computes with values that a parameter does not have any more. Buffers that were written to
    while all parameters stayed what they are hold states, as a cache of keys and values does: these are inputs from
    then on.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        frozen: Sequence[bool],
        compile: Compile,
        writes: Writes,
        weights: str,
    ) -> None:
        placeholders = graph.graph.find_nodes(op="placeholder")
        own, flags = _with_own_parameters(example_inputs, frozen, len(placeholders))
        self._names = [node.name for node in placeholders]
        self._titles = [_title(node) for node in placeholders]
        _, kinds = _with_own_parameters(
            example_inputs, [isinstance(x, torch.nn.Parameter) for x in example_inputs], len(placeholders)
        )
        self._parameters = frozenset(k for k, kind in enumerate(kinds) if kind)
        self._compile, self._writes, self._weights = compile, writes, weights
        self._codes: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._open: Callable[..., Any] | None = None
        self._known: dict[tuple[Any, ...], _Variant] = {}
        self._held: list[Any] = []
        places = tuple(k for k, flag in enumerate(flags) if flag and is_readable(own[k]))
        # One attribute, so that threads see a key with its own code.
        self._current = self._found(own, places, key_of(weights, places)(own) + writes.counts(), None)
        self.first, self.inputs = self._current.run, len(placeholders)

    def __call__(self, *args: Any) -> Any:
        current = self._current
        key = current.key_of(args) + self._writes.counts()
        if key != current.key or not current.is_unchanged():
            self._current = current = self._code_for(args, current.places, key)
        return current.run(*[args[k] for k in current.free])

    def _code_for(self, args: Sequence[Any], places: tuple[int, ...], key: Key) -> _Variant:
        """The code for parameters that are others than in the last call, or hold something else."""
        known = self._known.get((places, addresses_in(key)))
        if known is None or (known.key == key and known.is_unchanged()):
            return known or self._found(args, places, key, None)
        if known.watch is None:
            return replace(known, key=key)
        return self._found(args, places, key, known)

    def _found(
        self, args: Sequence[Any], places: tuple[int, ...], key: Key, last: _Variant | None
    ) -> _Variant:
        """The code for the values that the parameters have, of which those at `places` are constants; `last` is that
        of before, for parameters in the same memory."""
        known = any(code[:2] == (places, addresses_in(key)) for code in self._codes)
        if not known and len(self._codes) >= MAX_VARIANTS:
            return self._with_open(places, key)
        watched = watch([args[k] for k in places], self._weights)
        if last is not None and last.watch is not None:
            pairs = zip(places, last.watch.contents, watched.contents, strict=True)
            written = {k for k, before, now in pairs if before != now}
            if written and not self._parameters & written:
                places = tuple(k for k in places if k not in written)
                key = key_of(self._weights, places)(args) + self._writes.counts()
                return self._code_for(args, places, key)
        code = (places, addresses_in(key), watched.contents)
        run = self._codes.get(code)
        if run is None and len(self._codes) < MAX_VARIANTS:
            # As long as their memory is held, no other parameters have these addresses.
            self._held += [args[k].untyped_storage() for k in places]
            state = {self._names[k]: (self._titles[k], args[k]) for k in places}
            run = self._codes[code] = self._compile(state)
        if run is None:
            return self._with_open(places, key)
        taken = set(places)
        free = tuple(k for k in range(len(self._names)) if k not in taken)
        variant = _Variant(places, key_of(self._weights, places), key, free, run, watched if places else None)
        return self._remembered(variant)

    def _with_open(self, places: tuple[int, ...], key: Key) -> _Variant:
        """Code that takes parameters as inputs."""
        self._open = self._open or self._compile({})
        every = tuple(range(len(self._names)))
        return self._remembered(_Variant(places, key_of(self._weights, places), key, every, self._open, None))

    def _remembered(self, variant: _Variant) -> _Variant:
        if len(self._known) >= MAX_KNOWN_WEIGHTS:
            del self._known[next(iter(self._known))]
        self._known[variant.places, addresses_in(variant.key)] = variant
        return variant


@dataclass(frozen=True, eq=False)
class _Variant:
    """Code for parameters of one key, those at `places`, which hold what they did when `watch` was made; the others are
    its inputs. Code that takes all of them has no watch."""

    places: tuple[int, ...]
    key_of: Callable[[Sequence[Any]], Key]
    key: Key
    free: tuple[int, ...]
    run: Callable[..., Any]
    watch: Watch | None
    is_unchanged: Callable[[], bool] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_unchanged", _always if self.watch is None else self.watch.is_unchanged)


def _always() -> bool:
    return True


def _with_own_parameters(
    example_inputs: Sequence[Any], frozen: Sequence[bool], count: int
) -> tuple[list[Any], list[bool]]:
    """The `count` inputs of the functional graph, and which of them are parameters."""
    own, flags = _plain(example_inputs, frozen)
    lead = _own_parameters(count - len(own))
    held, held_flags = _plain(lead, [not x.is_inference() for x in lead])
    if (
        len(held) + len(own) != count
    ):  # sizes of a subclass are inputs of their own: nothing is a constant then
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
