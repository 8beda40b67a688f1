"""What an architecture is, and the table of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.frontends.decoders.blocks import Heads
from tilewright.frontends.decoders.building import Building
from tilewright.frontends.decoders.caches import CachedRows
from tilewright.frontends.decoders.config import Config
from tilewright.frontends.inputs import Declared
from tilewright.frontends.problems import shown
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym

States = Callable[[Config, int], Mapping[str, Declared | CachedRows]]


def caches(config: Config, capacity: int) -> dict[str, Declared | CachedRows]:
    """Keys and values of each layer."""
    heads = Heads.of(config)
    rows = CachedRows(heads.groups, capacity, heads.size)
    layers = range(config.count("num_hidden_layers"))
    return {f"{name}.{k}": rows for k in layers for name in ("keys", "values")}


@dataclass(frozen=True)
class Encoder:
    """What the encoder of an encoder-decoder reads: an input by its `name`, `declared` with the dim `size`, of which
    `rows` positions are made, at most `room` of them where the decoder has a capacity."""

    name: str
    declared: Callable[[Config], Declared]
    room: Callable[[Config, int], int]
    rows: Callable[[Sym], Sym] = lambda size: size
    size: str = "rows"


@dataclass(frozen=True)
class Architecture:
    """`write` makes logits of a building; `states` are what it keeps for so many positions. Names of tensors begin with
    `base` but for those of the head; `defaults` stand for fields that a config does not have, or are computed from
    others; what `ignored` tensors end in may be in files and means nothing. The fields `layers` count what has tensors
    of its own. An architecture with an `encoder` keeps the number of positions that are encoded, too."""

    name: str
    write: Callable[[Building], Value]
    states: States = caches
    base: str = "model."
    defaults: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    encoder: Encoder | None = None

    def completed(self, config: Config) -> Config:
        """The config with what it leaves unsaid."""
        missing = {name: value for name, value in self.defaults.items() if name not in config}
        return config.over({n: v(config) if callable(v) else v for n, v in missing.items()})

    def kept(self, config: Config, capacity: int, stored: str) -> dict[str, Declared]:
        """The states, of which caches are `stored` so."""
        found: dict[str, Declared] = {}
        for name, state in self.states(config, capacity).items():
            found |= state.states(name, stored) if isinstance(state, CachedRows) else {name: state}
        return found


ARCHITECTURES: dict[str, Architecture] = {}
"""By the `model_type` of a config."""


def architecture(
    *names: str,
    states: States = caches,
    base: str = "model.",
    defaults: Mapping[str, Any] | None = None,
    ignored: tuple[str, ...] = (),
    layers: tuple[str, ...] = ("num_hidden_layers",),
    encoder: Encoder | None = None,
) -> Callable[[Callable[[Building], Value]], Callable[[Building], Value]]:
    """Registers what is decorated under all names."""

    def register(write: Callable[[Building], Value]) -> Callable[[Building], Value]:
        for name in names:
            ends = (*Architecture.ignored, *ignored)
            ARCHITECTURES[name] = Architecture(name, write, states, base, defaults or {}, ends, layers, encoder)
        return write

    return register


def find_architecture(config: Config) -> Architecture:
    """UnsupportedError, which names the nearest known ones, for an unknown architecture."""
    name = config.text("model_type")
    found = ARCHITECTURES.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, ARCHITECTURES, 3, 0.4)
    said = f"the nearest that are known: {', '.join(near)}; " if near else ""
    raise UnsupportedError(
        f"the architecture '{shown(name)}' is not supported",
        where=config.where,
        hint=f"{said}all: {', '.join(sorted(ARCHITECTURES))}",
    )
