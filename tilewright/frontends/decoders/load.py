"""`load_decoder`: a checkpoint becomes a graph-level Module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from tilewright.frontends.decoders import architectures as architectures
from tilewright.frontends.decoders import encoder_decoders as encoder_decoders
from tilewright.frontends.decoders.architectures.registry import Architecture, Encoder, find_architecture
from tilewright.frontends.decoders.building import LAYER, Building, Encoding, Lane, joined
from tilewright.frontends.decoders.checkpoint import read_checkpoint
from tilewright.frontends.decoders.gguf_names import ROPE_FACTORS
from tilewright.frontends.decoders.source import IDS, LAST, PAST, READS, DecoderSource, lane_prefix
from tilewright.frontends.decoders.weights import CheckpointWeights, Express
from tilewright.frontends.inputs import Declared
from tilewright.frontends.translation import Results, Translation, translated
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Module, Value
from tilewright.ir.diag import Loc, UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define.binding import input_variables
from tilewright.ops.source import dim_value
from tilewright.ops.view import reshape, shape_of
from tilewright.runtime.errors import OptionError

NEXT = "next"
"""What names of outputs begin with that states become."""
ENCODED = "encoded"
"""The positions that an encoder has made of what it has read, a counter beside that of the answer."""
ACTIVATIONS = "int16"
"""What rows are rounded to, for prompts, where nothing else is wanted (`Options.activations`)."""


def load_decoder(
    source: object,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    express: Express | None = None,
) -> Module:
    """The graph of a checkpoint, a Module with one function `main` as a front end's `load` gives it.

    main(ids: i64[1, s]) -> logits f32[1, vocabulary], or f32[1, s, vocabulary] for those of all positions (or hidden
    f32[1, s, width]). What it keeps are inputs and outputs behind these, `variables` of the main function:
    `past: i64[]`, the number of positions that are filled, and what the architecture keeps. Calls that do not fit into
    the rest of its capacity are refused.
    `express` gives values of tensors in place of the constants that they are.

    For several sequences each has ids of its own (`sequence0.ids: i64[1, s]`, any number in a call) and states
    (`sequence0.past`...). Rows of all of them go through products together; `last: i64[n]` are the rows of which there
    are logits f32[n, vocabulary].

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
        checkpoint.tensors, str(checkpoint.path), found.base, wanted.weights, config.count("vocab_size"),
        wanted.importance, express,
    )  # fmt: skip
    for layers in found.layers:
        weights.parts(config, layers)
    encoder = found.encoder
    if encoder is not None and wanted.sequences is not None:
        raise _of_one_sequence(found)
    read = {} if encoder is None else {encoder.name: encoder.declared(config)}
    counters = (PAST,) if encoder is None else (PAST, ENCODED)
    states = {**{name: Declared(dt.i64, ()) for name in counters}, **found.kept(config, capacity, wanted.caches)}
    lanes = ("",) if wanted.sequences is None else tuple(map(lane_prefix, range(wanted.sequences)))
    declared = {f"{lane}{IDS}": Declared(dt.i64, (1, f"s{k or ''}")) for k, lane in enumerate(lanes)} | read
    if wanted.sequences is not None and wanted.logits == "last":
        declared[LAST] = Declared(dt.i64, ("n",))
    kept = [f"{lane}{name}" for lane in lanes for name in states]
    declared |= {f"{lane}{name}": state for lane in lanes for name, state in states.items()}

    def translate(translation: Translation, inputs: dict[str, Value | None]) -> Results:
        values = {name: value for name, value in inputs.items() if value is not None}
        ids = [values[f"{lane}{IDS}"] for lane in lanes]
        ends = list(accumulate((shape_of(x)[1] for x in ids), initial=s.sym(0)))
        own = [_lane(values, lane, states, end) for lane, end in zip(lanes, ends, strict=False)]
        encoding = None if encoder is None else _encoding(values, encoder)
        every = wanted.logits == "all" or wanted.hidden
        building = Building(config, weights, joined(ids, 1), own, capacity, every, values.get(LAST), encoding)
        with translation.builder.at(Loc(node="begin", op=LAYER)):
            for name, lane in zip(lanes, own, strict=True):
                _require_room(translation, lane, name, capacity)
            if encoder is not None and encoding is not None:
                _require_one_reading(translation, encoding, encoder, encoder.room(config, capacity))
            (logits,) = translation.fit((), lambda: [found.write(building)])
        weights.check((*found.ignored, *ROPE_FACTORS))
        assert logits is not None
        if wanted.hidden:
            assert building.hidden is not None, f"{found.name} has a head"
            logits = building.hidden
        shape = shape_of(logits)
        rows = logits if every else reshape(logits, shape=(shape[1], shape[2]))
        with translation.builder.at(Loc(node="end", op=LAYER)):
            if encoding is not None:
                building.lane.updated[ENCODED] = ew.add(values[ENCODED], dim_value(encoding.rows))
            return [rows, *(value for lane in own for value in _becomes(lane, states, found))]

    outputs = ["hidden" if wanted.hidden else "logits", *(f"{NEXT}.{name}" for name in kept)]
    module = translated(declared, outputs, 0, translate, shapes=shapes)
    variables = tuple((name, f"{NEXT}.{name}", "", name) for name in kept)
    nodes = sum(op.name not in ("constant", "return") for op in module.main.body.ops)
    module.main.attrs |= {"variables": variables, "keeps": True, "nodes": nodes, "activations": ACTIVATIONS}
    if encoder is not None and read[encoder.name].dtype is dt.i64:
        module.main.attrs["attached"] = {READS: {"vocabulary": config.count("vocab_size")}}
    return module


def context_of(path: Path) -> int:
    """The most positions that a checkpoint was trained for. Errors are those of `load_decoder`."""
    config = read_checkpoint(path).config
    return find_architecture(config).completed(config).count("max_position_embeddings")


def _lane(values: Mapping[str, Value], prefix: str, states: Iterable[str], start: Sym) -> Lane:
    past, ids = values[f"{prefix}{PAST}"], values[f"{prefix}{IDS}"]
    own = {name: values[f"{prefix}{name}"] for name in states}
    return Lane(past, _number(past), start, shape_of(ids)[1], own)


def _require_room(translation: Translation, lane: Lane, prefix: str, capacity: int) -> None:
    """Whether the tokens of a lane fit behind what is filled. A call that is about one sequence has tokens."""
    fits = s.logical_and(s.le(0, lane.before), s.le(lane.before + lane.steps, capacity))
    fits = fits if prefix else s.logical_and(s.le(1, lane.steps), fits)
    whose = f"of {prefix[:-1]} " if prefix else ""
    full = f"the cache {whose}has {capacity} positions, and the call's tokens must fit behind those that are filled"
    translation.require(fits, f"{full}: start anew, or ask for more")


def _becomes(lane: Lane, states: Iterable[str], architecture: Architecture) -> Iterator[Value]:
    """What the states of a lane become, in their order."""
    lane.updated[PAST] = ew.add(lane.past, dim_value(lane.steps))
    for name in states:
        if name not in lane.updated:
            raise _of_one_sequence(architecture)
        yield lane.updated[name]


def _require_one_reading(translation: Translation, encoding: Encoding, encoder: Encoder, room: int) -> None:
    """Refuse calls before the encoder has read something, those that let it read again, and too much to read."""
    before, rows = encoding.before, encoding.rows
    once = s.logical_or(s.eq(rows, 0), s.eq(before, 0))
    text = f"'{encoder.name}' is read once, in the first call: give nothing of it ([.., 0]) in others, or start anew"
    translation.require(s.logical_and(once, s.le(1, before + rows)), text)
    fits = s.logical_and(s.le(0, before), s.le(before + rows, room))
    translation.require(fits, f"the encoder has {room} positions, and '{encoder.name}' must fit: shorten it")


def _encoding(values: Mapping[str, Value], encoder: Encoder) -> Encoding:
    given = values[encoder.name]
    return Encoding(given, encoder.rows(shape_of(given)[-1]), _number(values[ENCODED]))


def _of_one_sequence(architecture: Architecture) -> UnsupportedError:
    return UnsupportedError(
        f"the architecture '{architecture.name}' has no form for several sequences in a call",
        hint="leave sequences= out; forks of one decoder are fed one after the other",
    )


def _number(counter: Value) -> Sym:
    symbols = input_variables(counter)
    assert symbols is not None
    found: Sym = symbols.item()
    return found
