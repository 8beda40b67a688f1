"""A language model as a source: where it is, and what of it is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.errors import OptionError

LOGITS = ("last", "all")


@dataclass(frozen=True)
class DecoderSource:
    """What `tilewright.compile` takes for a language model of which more is wanted than what its path says.

    path: a .gguf file, or a folder of Hugging Face (config.json and .safetensors).
    capacity: positions that its states have room for; None is the context that it was trained for.
    logits: of the "last" position of a call, or of "all" of them.
    """

    path: str | Path
    capacity: int | None = None
    logits: str = "last"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if self.capacity is not None and (
            not isinstance(self.capacity, int) or isinstance(self.capacity, bool) or not 1 <= self.capacity < 1 << 31
        ):
            raise OptionError(f"capacity={self.capacity!r:.80} is not allowed: give a number of positions, from 1 on")
        if self.logits not in LOGITS:
            raise OptionError(f"logits={self.logits!r:.80} is not allowed: one of {', '.join(LOGITS)}")

    @classmethod
    def of(cls, source: object) -> DecoderSource:
        """A path alone stands for the defaults."""
        return source if isinstance(source, cls) else cls(str(source))
