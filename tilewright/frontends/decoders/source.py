"""A language model as a source: where it is, and what of it is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilewright.frontends.weights.forms import Wanted, checked_weights
from tilewright.runtime.errors import OptionError, short_name

LOGITS = ("last", "all")
STORED = "float32"
CACHES = (STORED, "float16", "bfloat16", "int8")
"""What keys and values may be stored in; the first is the default."""
IDS, PAST, LAST = "ids", "past", "last"
"""Names of inputs and of a state."""
READS = "tilewright.encoder"
"""Of what is attached to an artefact: the `vocabulary` of what an encoder reads."""
MOST_LANES = 8
"""Of sequences in a call: rows of more than so many take products for many rows."""
KEYS_ALIKE = 64
"""Rows of a call have the bits that they have one by one only while the number of keys that the last of them sees has
as many whole multiples of it as that of the first: attention of few rows sums over so many keys at a time."""


@dataclass(frozen=True)
class DecoderSource:
    """What `tilewright.compile` takes for a language model of which more is wanted than what its path says.

    path: a .gguf file, or a folder of Hugging Face (config.json and .safetensors).
    capacity: positions that its states have room for; None is the context that it was trained for.
    logits: of the "last" position of a call, or of "all" of them.
    weights: "float32", "float16", "bfloat16", "int8" or "int4" for matrices that are stored in more bits; of integers
        how many elements of a row share a scale, and whether codes begin at a minimum, may follow ("int4:128",
        "int8:row", "int4:32:min"; 32 and symmetric by default). The embedding and the head are int8 where others are
        int4. "float32" is for all of them. A mapping has forms by patterns of the names of tensors, of which the first
        that fits counts, and others stay ({"*.down_proj.weight": "int8", "*": "int4"}). None takes all as they are
        stored.
    importance: f32[columns] by names of tensors, not negative: what errors in a column of a matrix of 4 bits count,
        such as the mean square of what it is multiplied by. Without it all count the same.
    hidden: give `hidden` f32[1, s, width], what the last norm gives for all positions of a call, in place of logits.
    sequences: how many of them a call may be about, each with states of its own (`llm.CompiledSequences` runs them);
        None is one.
    caches: what keys and values are stored in: "float32", "float16", "bfloat16", or "int8" with a scale for each
        position of a head. They are computed with in float32.
    """

    path: str | Path
    capacity: int | None = None
    logits: str = "last"
    weights: Wanted = None
    importance: Mapping[str, np.ndarray] | None = field(default=None, compare=False, repr=False)
    hidden: bool = False
    sequences: int | None = None
    caches: str = STORED

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path):
            raise OptionError(f"path={self.path!r:.80} is not allowed: give a .gguf file, or a folder")
        object.__setattr__(self, "path", Path(self.path))
        if self.capacity is not None and (
            not isinstance(self.capacity, int) or isinstance(self.capacity, bool) or not 1 <= self.capacity < 1 << 31
        ):
            raise OptionError(f"capacity={self.capacity!r:.80} is not allowed: give a number of positions, from 1 on")
        if self.logits not in LOGITS:
            raise OptionError(f"logits={self.logits!r:.80} is not allowed: one of {', '.join(LOGITS)}")
        if self.caches not in CACHES:
            raise OptionError(f"caches={self.caches!r:.80} is not allowed: one of {', '.join(CACHES)}")
        if not isinstance(self.hidden, bool):
            raise OptionError(f"hidden={self.hidden!r:.80} is not allowed: True or False")
        object.__setattr__(self, "weights", checked_weights(self.weights))
        if self.importance is not None:
            object.__setattr__(self, "importance", _checked_importance(self.importance))
        if self.sequences is not None and (
            not isinstance(self.sequences, int)
            or isinstance(self.sequences, bool)
            or not 1 <= self.sequences <= MOST_LANES
        ):
            raise OptionError(
                f"sequences={self.sequences!r:.80} is not allowed: give a number from 1 to {MOST_LANES}",
                hint="it is how many go through the model together; any number may be open",
            )

    @classmethod
    def of(cls, source: object) -> DecoderSource:
        """A path alone stands for the defaults."""
        return source if isinstance(source, cls) else cls(str(source))


def _checked_importance(given: object) -> dict[str, np.ndarray]:
    """Of what was given by names f32[columns]; OptionError for numbers that weigh nothing, as negative ones."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise OptionError(f"importance={given!r:.80} is not allowed: give a dict of names to arrays")
    found = {}
    for name, numbers in given.items():
        array = numbers if isinstance(numbers, np.ndarray) else np.empty((0, 0))
        with np.errstate(over="ignore"):
            wide = array.astype(np.float32) if array.dtype.kind in "iuf" else np.full(1, np.nan)
        if wide.ndim != 1 or not np.isfinite(wide).all() or (wide < 0).any():
            raise OptionError(
                f"importance= of '{short_name(name, 80)}' is not allowed: give an array of finite numbers from 0 on, "
                "one for each column"
            )
        found[name] = wide
    return found


def lane_prefix(number: int) -> str:
    """What names of inputs and states of one of several sequences begin with."""
    return f"sequence{number}."
