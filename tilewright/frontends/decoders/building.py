"""A decoder while its graph is written: the tokens of a call, what was before them, states, and parts of weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.frontends.decoders.config import Config
from tilewright.frontends.decoders.rotary import Rotary, Turn
from tilewright.frontends.decoders.weights import CheckpointWeights
from tilewright.ir.core import Builder, Value, current_builder
from tilewright.ir.diag import Loc
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.index import gather
from tilewright.ops.norm import layer_norm, rms_norm
from tilewright.ops.source import iota, number_like
from tilewright.ops.view import concat, section, shape_of


@dataclass(frozen=True)
class WeightGroup:
    """The weights whose names begin with `prefix`."""

    weights: CheckpointWeights
    prefix: str

    def inside(self, name: str) -> WeightGroup:
        return WeightGroup(self.weights, f"{self.prefix}{name}.")

    @contextmanager
    def at(self, name: str, operator: str) -> Iterator[None]:
        """Ops are those of a node of this name, and what follows those of another one."""
        builder = current_builder()
        with builder.at(Loc(node=_path(self.prefix + name), op=operator)):
            yield
        _pass(builder, self.prefix + name)

    def has(self, name: str) -> bool:
        return self.prefix + name in self.weights

    def value(self, name: str, *shape: int) -> Value:
        return self.weights.value(self.prefix + name, *shape)

    def stack(self, count: int, name: str, *shape: int) -> Value:
        """[count, ...]: tensors of that name in the parts that are numbered from 0 on."""
        return self.weights.stack([f"{self.prefix}{k}.{name}" for k in range(count)], *shape)

    def dense(
        self, x: Value, name: str, rows: int, *, bias: bool = False, transposed: bool = False, node: str = ""
    ) -> Value:
        """x [..., columns] times the matrix [rows, columns], plus a bias [rows] where there is one. A `transposed`
        matrix is stored as [columns, rows]. The `node` has the name of the matrix where it has none of its own."""
        shape = (_width(x), rows) if transposed else (rows, _width(x))
        with self.at(node or name, "Linear"):
            result = matmul(x, self.value(f"{name}.weight", *shape), transpose_b=not transposed)
            return ew.add(result, self.value(f"{name}.bias", rows)) if bias else result

    def rms(self, x: Value, name: str, epsilon: float, *, offset: float = 0.0) -> Value:
        """x over its root mean square along the last axis, times the weights, to which `offset` is added."""
        with self.at(name, "RMSNorm"):
            scale = self.value(f"{name}.weight", _width(x))
            return rms_norm(x, ew.add(scale, number_like(offset, scale)) if offset else scale, epsilon=epsilon)

    def layer_norm(self, x: Value, name: str, epsilon: float, *, bias: bool = True) -> Value:
        with self.at(name, "LayerNorm"):
            shift = self.value(f"{name}.bias", _width(x)) if bias else None
            return layer_norm(x, self.value(f"{name}.weight", _width(x)), shift, epsilon=epsilon)


@dataclass(frozen=True)
class Lane:
    """One of the sequences that a call is about.

    Its tokens are rows `start` to `start` + `steps` of those of the call; `before` positions are filled already: `past`
    is that number as a value. `states` are what is kept of it, by name, and `updated` is what each becomes.
    """

    past: Value
    before: Sym
    start: Sym
    steps: Sym
    states: Mapping[str, Value]
    updated: dict[str, Value] = field(default_factory=dict)

    @property
    def positions(self) -> Value:
        """i64[steps]: those of its tokens."""
        return ew.add(iota(shape=(self.steps,), axis=0), self.past)

    def rows(self, x: Value, axis: int) -> Value:
        """Of something that has all rows of the call along an axis those of this sequence."""
        return section(x, axis, self.start, self.steps)


@dataclass(frozen=True)
class Encoding:
    """What the encoder of an encoder-decoder reads in a call: `given`, of which it makes `rows` positions, behind
    `before` that calls before have made. It is read once: rows are 0 in all calls but one."""

    given: Value
    rows: Sym
    before: Sym

    @property
    def positions(self) -> Value:
        """i64[rows]."""
        return iota(shape=(self.rows,), axis=0)


@dataclass
class Building:
    """What an architecture writes its graph from.

    `ids` i64[1, steps] are the tokens of the call, those of one of the `lanes` after the other; each has a state for at
    most `capacity` positions. `last` i64[n] are the rows of which logits are wanted, None those that end a lane, of
    which there is one then. `encoding` is what the encoder of one that has an encoder reads.
    """

    config: Config
    weights: CheckpointWeights
    ids: Value
    lanes: Sequence[Lane]
    capacity: int
    all_rows: bool = False
    last: Value | None = None
    encoding: Encoding | None = None
    hidden: Value | None = None

    @property
    def steps(self) -> Sym:
        """The rows of the call."""
        return shape_of(self.ids)[1]

    @property
    def lane(self) -> Lane:
        """The only sequence of what has one."""
        (found,) = self.lanes
        return found

    @property
    def positions(self) -> Value:
        """i64[steps]: those of the tokens."""
        return joined([lane.positions for lane in self.lanes], 0)

    def turn(self, size: int, kind: str = "") -> Turn:
        """What turns heads of `size` elements by the positions, in layers of a `kind` where these differ."""
        with self.part("").at(f"rotary_emb.{kind}" if kind else "rotary_emb", "RotaryEmbedding"):
            return Rotary.of(self.config, size, self.capacity, kind).at(self.positions)

    def part(self, prefix: str) -> WeightGroup:
        return WeightGroup(self.weights, f"{prefix}." if prefix else "")

    def layers(self, prefix: str, field: str = "num_hidden_layers") -> Iterator[tuple[int, WeightGroup]]:
        for k in range(self.config.count(field)):
            with current_builder().at(Loc(node=f"{_path(prefix)}.{k}/begin", op=LAYER)):
                yield k, self.part(f"{prefix}.{k}")
        _pass(current_builder(), prefix)

    def embedded(self, name: str, ids: Value | None = None) -> Value:
        """[1, steps, hidden size]: rows of the tokens, or of others."""
        count, width = self.config.count("vocab_size"), self.config.count("hidden_size")
        with self.part("").at(name, "Embedding"):
            return self.weights.rows(f"{name}.weight", count, width, self.ids if ids is None else ids)

    def wanted(self, x: Value) -> Value:
        """Of [1, steps, width] the rows of which logits are wanted: the last, or all."""
        if self.all_rows:
            return x
        return section(x, 1, self.steps - 1, 1) if self.last is None else gather(x, self.last, axis=1)

    def logits(self, x: Value, head: str, embedding: str, *, tied: bool = False, bias: bool = False) -> Value:
        """[1, rows, vocabulary]: rows that are wanted already, times the head; that is the embedding where the config
        ties them, by default if they are `tied` in this architecture."""
        self.hidden = x
        count, node = self.config.count("vocab_size"), head
        if self.config.flag("tie_word_embeddings", tied):
            self.weights.skip(f"{head}.weight")  # a file may have it a second time
            head = embedding
        return self.part("").dense(x, head, count, bias=bias, node=node)


LAYER = "Layer"
"""The operator of nodes without weights: what is computed in a layer, or outside of layers, between those that have
some."""


def _pass(builder: Builder, name: str) -> None:
    """What follows is a node after the one of this name: one node for all of a layer would read what reads it."""
    if builder.loc.op == LAYER:
        folder, slash, _ = builder.loc.node.rpartition("/")
        inside = _path(name).removeprefix(folder + slash).replace("/", ".")
        builder.loc = Loc(node=f"{folder}{slash}after_{inside}", op=LAYER)


def _path(name: str) -> str:
    """A name of a checkpoint as one of a node in modules: "model/layers.0/self_attn" for "model.layers.0.self_attn"."""
    return re.sub(r"\.(?!\d+(\.|$))", "/", name)


def joined(parts: Sequence[Value], axis: int) -> Value:
    """What lanes have, one after the other."""
    return parts[0] if len(parts) == 1 else concat(*parts, axis=axis)


def _width(x: Value) -> int:
    return shape_of(x)[-1].value
