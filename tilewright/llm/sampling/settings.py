"""How the next token is chosen, as users say it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tilewright.runtime.errors import OptionError

_MOST = 1e30
"""Of numbers that logits f32 are changed by: their products with logits, and their reciprocals, are finite."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the logits, in this order:

    - `logit_bias` is added to the logits of tokens (by their numbers; -inf forbids one);
    - `repetition_penalty` divides positive logits of tokens that the prompt or the answer has, and multiplies negative
      ones; `presence_penalty` is subtracted once from those that the answer has, `frequency_penalty` for each time;
    - logits are divided by `temperature`; at 0 the greatest is taken (the first of equal ones), and nothing below
      counts;
    - the `top_k` most likely tokens stay (0: all); of these the most likely ones that together have the probability
      `top_p`; of these those with at least `min_p` of the greatest probability; of these the ones whose information is
      nearest to the expected one, which together have `typical_p` (Meister et al., 2023);
    - one of these is drawn by its probability, with the numbers that follow from `seed` (None: another one each time).

    OptionError for values outside of their ranges.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        self._number("temperature", 0.0, _MOST)
        self._number("repetition_penalty", 1 / _MOST, _MOST)
        for name in ("top_p", "typical_p"):
            self._number(name, 0.0, 1.0, above=True)
        self._number("min_p", 0.0, 1.0)
        for name in ("presence_penalty", "frequency_penalty"):
            self._number(name, -_MOST, _MOST)
        self._whole("top_k")
        if self.seed is not None:
            self._whole("seed")
        bias = self.logit_bias
        if not isinstance(bias, Mapping) or not all(_is_whole(t) and _is_bias(b) for t, b in bias.items()):
            raise OptionError(
                f"logit_bias={bias!r:.80} is not allowed: give numbers of tokens with what is added to their logits",
                hint=f"such as {{198: -5.0}}; numbers are at most {_MOST:g}, and -inf forbids a token",
            )

    @classmethod
    def of(cls, settings: Sampling | None, **named: Any) -> Sampling:
        """The settings, with those of `named` that are not None in their place; OptionError for names that are none."""
        given = {name: value for name, value in named.items() if value is not None}
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise OptionError(
                f"{unknown[0]}= is no setting of sampling", hint=f"there are {', '.join(known)}"
            )
        if settings is not None and not isinstance(settings, Sampling):
            raise OptionError(f"sampling={settings!r:.80} is not allowed: give a Sampling")
        before = {} if settings is None else {name: getattr(settings, name) for name in known}
        return cls(**{**before, **given})

    def _number(self, name: str, least: float, most: float = math.inf, *, above: bool = False) -> None:
        value = getattr(self, name)
        if (
            not _is_number(value)
            or math.isinf(value)
            or not least <= value <= most
            or (above and value == least)
        ):
            bounds = [f"{'above' if above else 'of at least'} {least:g}"] if least > -math.inf else []
            bounds += [f"of at most {most:g}"] if most < math.inf else []
            said = " and ".join(bounds)
            raise OptionError(f"{name}={value!r:.40} is not allowed: it is a finite number {said}".rstrip())

    def _whole(self, name: str) -> None:
        value = getattr(self, name)
        if not _is_whole(value) or not 0 <= value < 2**64:
            raise OptionError(f"{name}={value!r:.40} is not allowed: it is an integer of at least 0 and below 2^64")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _is_bias(value: Any) -> bool:
    return _is_number(value) and (value == -math.inf or abs(value) <= _MOST)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
