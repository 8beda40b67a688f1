"""What users ask weights to become, as texts: "bfloat16", "int8:row", "int4:64:min"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.runtime.errors import OptionError

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int8", "int4")
GROUPS = (32, 64, 128, 256)
"""Elements of a row that may share a scale."""
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}
_KNOWN = f"""{", ".join((*FLOATS, *INTEGERS))}; integers also in groups of {", ".join(map(str, GROUPS))} elements or in
whole rows, and from a minimum on, such as int4:128, int8:row and int4:32:min""".replace("\n", " ")

Wanted = str | Mapping[str, str] | tuple[tuple[str, str], ...] | None
"""A form for all matrices, or forms by patterns of their names; None for all as they are stored."""


@dataclass(frozen=True)
class WeightForm:
    """A type, and of integers how many elements of a row share a scale (0: all), and whether codes are symmetric about
    zero or begin at a `minimum`."""

    type: str
    group: int = 32
    minimum: bool = False

    @classmethod
    def of(cls, text: object) -> WeightForm:
        """OptionError for what is none."""
        parts = text.split(":") if isinstance(text, str) else [""]
        rest = parts[1:]
        group = 32
        if rest and (rest[0] == "row" or rest[0] in map(str, GROUPS)):
            group = 0 if rest[0] == "row" else int(rest[0])
            rest = rest[1:]
        minimum = rest == ["min"]
        if parts[0] not in _BITS or (rest and not minimum) or (parts[0] in FLOATS and len(parts) > 1):
            raise OptionError(f"weights={text!r:.80} is not allowed", hint=f"there are {_KNOWN}")
        return cls(parts[0], group, minimum)

    @property
    def bits(self) -> int:
        return _BITS[self.type]

    def __str__(self) -> str:
        if self.type in FLOATS:
            return self.type
        group = "" if self.group == 32 else f":{self.group or 'row'}"
        return f"{self.type}{group}{':min' if self.minimum else ''}"


def checked_weights(wanted: object) -> str | tuple[tuple[str, str], ...] | None:
    """The forms in their shortest texts; OptionError for what is none of `Wanted`."""
    if wanted is None:
        return None
    if isinstance(wanted, Mapping | tuple):
        pairs = tuple(wanted.items()) if isinstance(wanted, Mapping) else wanted
        if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
            raise OptionError(
                f"weights={wanted!r:.80} is not allowed: give a dict of patterns of names to forms",
                hint='such as {"*.down_proj.weight": "int8", "*": "int4"}',
            )
        return tuple((pattern, str(WeightForm.of(form))) for pattern, form in pairs)
    return str(WeightForm.of(wanted))
