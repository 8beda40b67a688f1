"""The backend that `torch.compile` calls with each graph that Dynamo has captured.

The graph is made functional (AOTAutograd), with the decompositions that the front end wants. What cannot be compiled
runs eagerly, piece by piece; graphs whose gradients are recorded run eagerly as a whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tilewright.options import Options
from tilewright.torch.precompiled import GraphSource
from tilewright.torch.recalled import Recall
from tilewright.torch.records import GraphRecord, note, why_ended
from tilewright.torch.weights import FROZEN, WATCHED, is_readable, weights_option, without_weights

Runner = Callable[..., Any]

MODES = (None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""Modes of `torch.compile`; all mean the same here, since one schedule is chosen by estimates."""


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    record: Callable[[GraphRecord], None] | None = None,
) -> Runner:
    """Compile a graph of Dynamo's. `options` are the fields of `tilewright.Options`; threads are PyTorch's by default.
    OptionError for others.

    Compiled code holds copies of parameters. With `weights="watched"`, the default, a call sees each write to them,
    whatever it was made by. With "frozen" it sees those that PyTorch counts (in-place operators, `load_state_dict`,
    `param.data = tensor`), and nothing that goes past the count (`param.data.mul_(2)`, fused optimisers, NumPy, other
    processes) until `tilewright.torch.refresh()` is called.
    """
    weights = weights_option((options or {}).get("weights", WATCHED))
    chosen = chosen_options(mode, options)
    ended, listener = why_ended(graph), record or note

    def tell(record: GraphRecord) -> None:
        listener(replace(record, ended=ended))

    if _records_gradients(example_inputs):
        tell(GraphRecord(graph, None, "gradients are recorded: call it inside of torch.no_grad()"))
        return graph.forward
    frozen = [_is_frozen(x, weights) for x in example_inputs]
    recall = Recall.of(graph, example_inputs, frozen, chosen, weights)
    source = (
        GraphSource(recall, graph, partial(backend, mode=mode, options=options))
        if recall is not None
        else None
    )
    known = recall.find(example_inputs) if recall is not None else None
    if source is not None and known is not None:
        tell(GraphRecord(graph, (known.piece,)))
        source.let_pytorch_keep_it()
        return source.runner(known)
    from tilewright.torch.traced import compiled_anew

    run, whole = compiled_anew(graph, example_inputs, frozen, chosen, weights, tell)
    if source is not None and whole is not None:
        source.recall.keep(whole)
        source.let_pytorch_keep_it()
    return run


def chosen_options(mode: str | None, options: Mapping[str, Any] | None) -> Options:
    if mode not in MODES:
        warnings.warn(f"tilewright has no mode '{mode}': it is compiled as by default", stacklevel=2)
    fields = {"threads": torch.get_num_threads(), "share_weights": True, **without_weights(options or {})}
    return Options.of(None, **fields)


def _records_gradients(inputs: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)


def _is_frozen(x: Any, weights: str) -> bool:
    """Whether an input of a graph is a parameter or a buffer of a module."""
    if not is_readable(x) or (weights == FROZEN and x.is_inference()):  # whose writes are not counted
        return False
    return isinstance(x, torch.nn.Parameter) or getattr(x, "_dynamo_static_input_type", None) is not None
