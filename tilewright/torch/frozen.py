"""Parameters as constants: compiled code holds what they were, and is made anew when they are written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

MAX_VARIANTS = 8
"""Different parameters that one graph is compiled for; then they are taken as inputs."""

Compile = Callable[[Mapping[str, tuple[str, torch.Tensor]]], Callable[..., Any]]


class Frozen:
    """Runs the code for the parameters that it is called with.

    Parameters are recognised by their memory and by PyTorch's count of writes to them, so that a call never computes
    with values that a parameter does not have any more.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        frozen: Sequence[bool],
        compile: Compile,
    ) -> None:
        placeholders = graph.graph.find_nodes(op="placeholder")
        lead = len(placeholders) - len(example_inputs)
        own = [*_own_parameters(lead), *example_inputs]
        flags = [*[not x.is_inference() for x in own[:lead]], *frozen]
        self._names = [node.name for node in placeholders]
        self._titles = [_title(node) for node in placeholders]
        self._places = tuple(k for k, flag in enumerate(flags) if flag and isinstance(own[k], torch.Tensor))
        self._free = tuple(k for k in range(len(placeholders)) if k not in set(self._places))
        self._compile = compile
        self._variants: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._open: Callable[..., Any] | None = None
        self._held: list[Any] = []
        # One attribute, so that threads see a key with its own code.
        self._current: tuple[tuple[Any, ...], Callable[..., Any]] = self._variant(own)
        self.first, self.inputs = self._current[1], len(placeholders)

    def __call__(self, *args: Any) -> Any:
        key = tuple([(args[k].data_ptr(), args[k]._version) for k in self._places])
        last, run = self._current
        if key != last:
            self._current = _, run = self._variant(args)
        return run(*[args[k] for k in self._free]) if run is not self._open else run(*args)

    def _variant(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        """The parameters' key, and the code for them."""
        key = tuple((args[k].data_ptr(), args[k]._version) for k in self._places)
        run = self._variants.get(key)
        if run is None and len(self._variants) < MAX_VARIANTS:
            state = {self._names[k]: (self._titles[k], args[k]) for k in self._places}
            run = self._variants[key] = self._compile(state)
            # As long as their memory is held, no other parameters have these addresses.
            self._held += [args[k].untyped_storage() for k in self._places]
        if run is None:
            self._open = self._open or self._compile({})
            run = self._open
        return key, run


def _own_parameters(count: int) -> Sequence[torch.Tensor]:
    """Parameters that the graph's module held, which AOTAutograd puts in front of its inputs."""
    if not count:
        return ()
    context = torch._guards.TracingContext.try_get()
    assert context is not None and context.params_flat is not None
    return list(context.params_flat)[:count]


def _title(node: torch.fx.Node) -> str:
    """The name of a parameter as the module has it, where Dynamo tells."""
    source = (node.meta.get("tensor_dict") or {}).get("_dynamo_source") or node.name
    return str(source)
