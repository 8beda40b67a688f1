"""Graphs that are made functional and compiled, which a graph that the cache has does not need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType, PlainTensorMeta, ViewAndMutationMeta
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch._guards import TracingContext

from tilewright.frontends.torch.capture import decompositions_kept
from tilewright.ir.process_settings import rare_collections
from tilewright.options import Options
from tilewright.torch.compiled import Compiled
from tilewright.torch.frozen import Frozen, Writes
from tilewright.torch.pieces import State, Tell, compiled_pieces
from tilewright.torch.views import take_views_of_written_inputs

Runner = Callable[..., Any]

_PLAIN_RESULTS = (OutputType.non_alias, OutputType.unsafe_view_alias)


def compiled_anew(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    frozen: Sequence[bool],
    options: Options,
    weights: str,
    tell: Tell,
) -> tuple[Runner, Compiled | None]:
    """What runs a graph of Dynamo's, of whose inputs those that are `frozen` are parameters; and its code where there
    is nothing else to a call, and nothing was assumed of sizes that Dynamo would not check again. `weights` says how
    parameters are watched."""
    writes = Writes(example_inputs, weights)
    made: list[Frozen] = []
    before = assumed_sizes()

    def compile_inference(functional: torch.fx.GraphModule, fake_inputs: Sequence[Any]) -> Runner:
        def compile_for(state: State) -> Runner:
            # Constants are real tensors, which the modes of tracing would refuse.
            with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
                return compiled_pieces(functional, state, options, tell)

        take_views_of_written_inputs(functional, TracingContext.get().fw_metadata)
        made.append(Frozen(functional, example_inputs, frozen, compile_for, writes, weights))
        return make_boxed_func(made[-1])

    with rare_collections(), decompositions_kept() as table:
        run = aot_module_simplified(
            graph,
            example_inputs,
            fw_compiler=compile_inference,
            inference_compiler=compile_inference,
            decompositions=table,
        )
    whole = only_code(made[0], example_inputs) if made and before == assumed_sizes() else None
    return writes.watched(run), whole


def only_code(made: Frozen, inputs: Sequence[Any]) -> Compiled | None:
    """The code of a graph whose calls are calls of it and nothing else; None where a part of it runs eagerly, or
    AOTAutograd does more in a call."""
    metadata: ViewAndMutationMeta | None = TracingContext.get().fw_metadata
    is_all = (
        metadata is not None
        and made.inputs == len(inputs)
        and not metadata.mutated_inp_runtime_indices
        and not metadata.tokens
        and not metadata.num_intermediate_bases
        and metadata.grad_enabled_mutation is None
        and not metadata.num_graphsafe_rng_states
        and all(isinstance(meta, PlainTensorMeta) for meta in metadata.subclass_inp_meta)
        and all(result.output_type in _PLAIN_RESULTS for result in metadata.output_info)
    )
    return made.first if is_all and isinstance(made.first, Compiled) else None


def assumed_sizes() -> Any:
    """What is assumed of the symbols of sizes by now, which Dynamo checks at each call. A note must not hold more."""
    mode = TracingContext.get().fake_mode
    environment = mode.shape_env if mode is not None else None
    if environment is None:
        return None
    asserts = sum(len(found) for found in environment.deferred_runtime_asserts.values())
    return len(environment.guards), asserts, dict(environment.var_to_range), dict(environment.replacements)
