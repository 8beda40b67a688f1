"""`load_decoder`: a checkpoint becomes a graph-level Module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewright.frontends.decoders import architectures as architectures
from tilewright.frontends.decoders import encoder_decoders as encoder_decoders
from tilewright.frontends.decoders.architectures.registry import Encoder, find_architecture
from tilewright.frontends.decoders.building import Building, Encoding
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
ENCODED = "encoded"
"""The counters of an encoder-decoder: positions of its answer, and of what its encoder has read."""
ACTIVATIONS = "int16"
"""What rows are rounded to, for prompts, where nothing else is wanted (`Options.activations`)."""


def load_decoder(
    source: object,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> Module:
    """The graph of a checkpoint, a Module with one function `main` as a front end's `load` gives it.

    main(ids: i64[1, s]) -> logits f32[1, vocabulary], or f32[1, s, vocabulary] for those of all positions (or hidden
    f32[1, s, width]). What it keeps are inputs and outputs behind these, `variables` of the main function:
    `past: i64[]`, the number of positions that are filled, and what the architecture keeps. Calls that do not fit into
    the rest of its capacity are refused.

    Of an encoder-decoder there is an input more behind the tokens, what the encoder reads, which has no rows in calls
    that only continue an answer, and `encoded: i64[]` among what is kept, the number of positions that it made.
    """
    wanted = DecoderSource.of(source)
    checkpoint = read_checkpoint(Path(wanted.path))
    if constants:
        raise OptionError("constants= were given for a language model, whose inputs are tokens", hint="leave them out")
    found = find_architecture(checkpoint.config)
    config = found.completed(checkpoint.config)
    context = config.count("max_position_embeddings")
    capacity = wanted.capacity or context
    weights = CheckpointWeights(
        checkpoint.tensors, str(checkpoint.path), found.base, wanted.weights, config.count("vocab_size")
    )
    for layers in found.layers:
        weights.parts(config, layers)
    states, encoder = found.states(config, capacity), found.encoder
    read = {} if encoder is None else {encoder.name: encoder.declared(config)}
    counters = (PAST,) if encoder is None else (PAST, ENCODED)
    declared = {
        "ids": Declared(dt.i64, (1, "s")), **read, **{name: Declared(dt.i64, ()) for name in counters}, **states
    }  # fmt: skip
    kept = (*counters, *states)

    def translate(translation: Translation, inputs: dict[str, Value | None]) -> Results:
        values = {name: value for name, value in inputs.items() if value is not None}
        building = _building(values, config, weights, capacity, encoder, every=wanted.logits == "all" or wanted.hidden)
        fits = s.logical_and(s.le(1, building.steps), s.le(building.before + building.steps, capacity))
        with translation.builder.at(Loc(node=found.name, op="decoder")):
            full = f"the cache has {capacity} positions, and the call's tokens must fit behind those that are filled"
            translation.require(s.logical_and(fits, s.le(0, building.before)), f"{full}: start anew, or ask for more")
            if encoder is not None and building.encoding is not None:
                _require_one_reading(translation, building.encoding, encoder, encoder.room(config, capacity))
            (logits,) = translation.fit((), lambda: [found.write(building)])
        weights.check((*found.ignored, *ROPE_FACTORS))
        assert logits is not None
        if wanted.hidden:
            assert building.hidden is not None, f"{found.name} has a head"
            logits = building.hidden
        rows = logits if building.all_rows else reshape(logits, shape=(1, shape_of(logits)[2]))
        building.updated[PAST] = ew.add(building.past, dim_value(building.steps))
        if (encoding := building.encoding) is not None:
            building.updated[ENCODED] = ew.add(values[ENCODED], dim_value(encoding.rows))
        return [rows, *(building.updated[name] for name in kept)]

    outputs = ["hidden" if wanted.hidden else "logits", *(f"{NEXT}.{name}" for name in kept)]
    module = translated(declared, outputs, 0, translate, shapes=shapes)
    variables = tuple((name, f"{NEXT}.{name}", "", name) for name in kept)
    nodes = sum(op.name not in ("constant", "return") for op in module.main.body.ops)
    module.main.attrs |= {"variables": variables, "keeps": True, "nodes": nodes, "activations": ACTIVATIONS}
    return module


def _require_one_reading(translation: Translation, encoding: Encoding, encoder: Encoder, room: int) -> None:
    """Refuse calls before the encoder has read something, those that let it read again, and too much to read."""
    before, rows = encoding.before, encoding.rows
    once = s.logical_or(s.eq(rows, 0), s.eq(before, 0))
    text = f"'{encoder.name}' is read once, in the first call: give nothing of it ([.., 0]) in others, or start anew"
    translation.require(s.logical_and(once, s.le(1, before + rows)), text)
    fits = s.logical_and(s.le(0, before), s.le(before + rows, room))
    translation.require(fits, f"the encoder has {room} positions, and '{encoder.name}' must fit: shorten it")


def _building(
    values: Mapping[str, Value],
    config: Config,
    weights: CheckpointWeights,
    capacity: int,
    encoder: Encoder | None,
    *,
    every: bool,
) -> Building:
    own = {"ids", PAST} if encoder is None else {"ids", PAST, ENCODED, encoder.name}
    ids, past = values["ids"], values[PAST]
    states = {name: value for name, value in values.items() if name not in own}
    found = Building(config, weights, ids, past, _number(past), shape_of(ids)[1], states, capacity, every)
    if encoder is not None:
        given = values[encoder.name]
        found.encoding = Encoding(given, encoder.rows(shape_of(given)[-1]), _number(values[ENCODED]))
    return found


def _number(counter: Value) -> s.Sym:
    symbols = input_variables(counter)
    assert symbols is not None
    found: s.Sym = symbols.item()
    return found
