"""`load_decoder`: a checkpoint becomes a graph-level Module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewright.frontends.decoders import architectures as architectures
from tilewright.frontends.decoders.architectures.registry import find_architecture
from tilewright.frontends.decoders.building import Building
from tilewright.frontends.decoders.checkpoint import read_checkpoint
from tilewright.frontends.decoders.config import Config
from tilewright.frontends.decoders.gguf_names import ROPE_FACTORS
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.frontends.decoders.weights import CheckpointWeights
from tilewright.frontends.inputs import Declared
from tilewright.frontends.translation import Results, Translation, translated
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Module, Value
from tilewright.ir.diag import Loc
from tilewright.ops import elementwise as ew
from tilewright.ops.define.binding import input_variables
from tilewright.ops.source import dim_value
from tilewright.ops.view import reshape, shape_of
from tilewright.runtime.errors import OptionError

NEXT = "next"
"""What names of outputs begin with that states become."""
PAST = "past"
ACTIVATIONS = "int16"
"""What rows are rounded to, for prompts, where nothing else is wanted (`Options.activations`)."""


def load_decoder(
    source: object,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Module:
    """The graph of a checkpoint, a Module with one function `main` as a front end's `load` gives it.

    main(ids: i64[1, s]) -> logits f32[1, vocabulary], or f32[1, s, vocabulary] for those of all positions. What it
    keeps are inputs and outputs behind these, `variables` of the main function: `past: i64[]`, the number of positions
    that are filled, and what the architecture keeps. Calls that do not fit into the rest of its capacity are refused.
    """
    wanted = DecoderSource.of(source)
    checkpoint = read_checkpoint(Path(wanted.path))
    if constants:
        raise OptionError("constants= were given for a language model, whose inputs are tokens", hint="leave them out")
    found = find_architecture(checkpoint.config)
    config = checkpoint.config.over(found.defaults)
    context = config.count("max_position_embeddings")
    capacity = wanted.capacity or context
    weights = CheckpointWeights(
        checkpoint.tensors, str(checkpoint.path), found.base, wanted.weights, config.count("vocab_size")
    )
    weights.parts(config, "num_hidden_layers")
    states = found.states(config, capacity)
    declared = {"ids": Declared(dt.i64, (1, "s")), PAST: Declared(dt.i64, ()), **states}
    kept = (PAST, *states)

    def translate(translation: Translation, inputs: dict[str, Value | None]) -> Results:
        values = {name: value for name, value in inputs.items() if value is not None}
        building = _building(values, config, weights, capacity, every=wanted.logits == "all")
        fits = s.logical_and(s.le(1, building.steps), s.le(building.before + building.steps, capacity))
        with translation.builder.at(Loc(node=found.name, op="decoder")):
            full = f"the cache has {capacity} positions, and the call's tokens must fit behind those that are filled"
            translation.require(s.logical_and(fits, s.le(0, building.before)), f"{full}: start anew, or ask for more")
            (logits,) = translation.fit((), lambda: [found.write(building)])
        weights.check((*found.ignored, *ROPE_FACTORS))
        assert logits is not None
        rows = logits if building.all_rows else reshape(logits, shape=(1, shape_of(logits)[2]))
        building.updated[PAST] = ew.add(building.past, dim_value(building.steps))
        return [rows, *(building.updated[name] for name in kept)]

    outputs = ["logits", *(f"{NEXT}.{name}" for name in kept)]
    module = translated(declared, outputs, 0, translate, shapes=shapes)
    variables = tuple((name, f"{NEXT}.{name}", "", name) for name in kept)
    nodes = sum(op.name not in ("constant", "return") for op in module.main.body.ops)
    module.main.attrs |= {"variables": variables, "keeps": True, "nodes": nodes, "activations": ACTIVATIONS}
    return module


def _building(
    values: Mapping[str, Value], config: Config, weights: CheckpointWeights, capacity: int, *, every: bool
) -> Building:
    ids, past = values["ids"], values[PAST]
    symbols = input_variables(past)
    assert symbols is not None
    states = {name: value for name, value in values.items() if name not in ("ids", PAST)}
    return Building(config, weights, ids, past, symbols.item(), shape_of(ids)[1], states, capacity, every)
