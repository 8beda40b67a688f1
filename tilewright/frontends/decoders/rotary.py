"""Rotary positions (Su et al., 2021) and how their angles are stretched beyond the length a model was trained for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.decoders.config import Config
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.attention import quarter_turned
from tilewright.ops.define import constant
from tilewright.ops.source import number_like
from tilewright.ops.view import concat, reshape, section, shape_of


@dataclass(frozen=True, eq=False)
class Rotary:
    """Angles a position advances each pair of elements by, f64[pairs]; `scale` multiplies cosines and sines. Elements
    behind the pairs stay as they are. Pairs are neighbours where they are `interleaved`, else of two halves."""

    angles: np.ndarray
    scale: float = 1.0
    interleaved: bool = False

    @classmethod
    def of(cls, config: Config, size: int, capacity: int, kind: str = "") -> Rotary:
        """As a config says it, for heads of `size` elements, texts of at most `capacity` positions, and layers of a
        `kind` where these differ."""
        fields = parameters(config, kind)
        partial = fields.positive("partial_rotary_factor", config.positive("partial_rotary_factor", 1.0))
        pairs = int(size * partial) // 2
        if partial > 1 or not pairs or int(size * partial) % 2:
            what = f"{partial:g} of the {size} elements of a head cannot be rotated in pairs"
            raise config.error(f"'partial_rotary_factor': {what}")
        base = fields.positive("rope_theta", config.positive(_base_name(config, kind), 10000.0))
        plain = base ** (-np.arange(pairs, dtype=np.float64) / pairs)
        if "factors" in fields:
            plain = plain / np.array(fields.numbers("factors", pairs))
        name = fields.text("rope_type", fields.text("type", "default"))
        if name not in _KINDS:
            known = ", ".join(_KINDS)
            raise UnsupportedError(
                f"rotary positions of the kind '{name}' are not supported", where=fields.where, hint=f"known: {known}"
            )
        angles, scale = _KINDS[name](_Question(fields, config, plain, base, capacity))
        return cls(angles, scale, config.flag("rope_interleaved", False))

    def at(self, positions: Value) -> Turn:
        """What turns heads at the `positions` i64[steps]. Angles are computed in f64 and reduced to one turn, so that
        they are exact for large positions, too."""
        wide = reshape(ew.cast(positions, dtype=dt.f64), shape=(*shape_of(positions), 1))
        turned = ew.mul(wide, constant(self.angles, "angles"))
        turns = ew.round_(ew.mul(turned, number_like(1 / (2 * math.pi), turned)))
        rest = ew.cast(ew.sub(turned, ew.mul(turns, number_like(2 * math.pi, turned))), dtype=dt.f32)
        cos, sin = ew.cos(rest), ew.sin(rest)
        if self.scale != 1:
            cos, sin = (ew.mul(x, number_like(self.scale, x)) for x in (cos, sin))
        return Turn(_for_both(cos, self.interleaved), _for_both(sin, self.interleaved), self.interleaved)


@dataclass(frozen=True)
class Turn:
    """Cosines and sines [steps, 2 * pairs] of the positions of a call."""

    cos: Value
    sin: Value
    interleaved: bool

    def __call__(self, x: Value) -> Value:
        """Heads [1, heads, steps, size], turned."""
        size, width = shape_of(x)[-1].value, shape_of(self.cos)[-1].value
        turning = x if size == width else section(x, -1, 0, width)
        result = ew.add(ew.mul(turning, self.cos), ew.mul(quarter_turned(turning, self.interleaved), self.sin))
        return result if size == width else concat(result, section(x, -1, width, size - width), axis=3)


def _for_both(x: Value, interleaved: bool) -> Value:
    """[steps, 2 * pairs]: the number of each pair for both of its elements."""
    if not interleaved:
        return concat(x, x, axis=1)
    steps, pairs = shape_of(x)
    column = reshape(x, shape=(steps, pairs, 1))
    return reshape(concat(column, column, axis=2), shape=(steps, 2 * pairs))


def parameters(config: Config, kind: str = "") -> Config:
    """The fields about rotary positions, of layers of a `kind` where they are apart. They are `rope_parameters` today,
    and were `rope_scaling` beside `rope_theta`; `rope_local_base_freq` is that of layers with a window."""
    found = config.part("rope_parameters") or config.part("rope_scaling")
    nested = found is not None and "full_attention" in found
    if nested:
        assert found is not None
        found = found.part(kind or "full_attention")
    own = nested or _base_name(config, kind) == "rope_theta"
    return found if found is not None and own else Config({}, config.where)


def _base_name(config: Config, kind: str) -> str:
    local = "rope_local_base_freq"
    return local if kind == "sliding_attention" and local in config else "rope_theta"


# Kinds


@dataclass(frozen=True, eq=False)
class _Question:
    """What angles are asked for: the fields about them, the whole config, what they are by default, their base, and the
    most positions."""

    fields: Config
    config: Config
    plain: np.ndarray
    base: float
    capacity: int


_Answer = tuple[np.ndarray, float]
"""Angles, and what cosines and sines are multiplied by."""


def _default(q: _Question) -> _Answer:
    return q.plain, 1.0


def _linear(q: _Question) -> _Answer:
    return q.plain / q.fields.positive("factor"), 1.0


def _llama3(q: _Question) -> _Answer:
    """Slow angles are divided, fast ones kept, and those between blended."""
    factor, low, high = (q.fields.positive(name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise q.fields.error(f"'high_freq_factor' {high:g} is not above 'low_freq_factor' {low:g}")
    turns = q.fields.count("original_max_position_embeddings") * q.plain / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return kept * q.plain + (1 - kept) * q.plain / factor, 1.0


def _yarn(q: _Question) -> _Answer:
    """Peng et al., 2023: angles that turn often within the original length are kept, those that turn seldom divided."""
    fields, most = q.fields, q.config.count("max_position_embeddings")
    trained = fields.count("original_max_position_embeddings", most)
    factor = fields.positive("factor", most / trained)
    pairs = len(q.plain)

    def pair_of(turns: float) -> float:
        return pairs * math.log(trained / (turns * 2 * math.pi)) / math.log(q.base)

    low, high = pair_of(fields.positive("beta_fast", 32)), pair_of(fields.positive("beta_slow", 1))
    if fields.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    divided = np.clip((np.arange(pairs) - low) / (high - low if high != low else 0.001), 0, 1)
    scale = _yarn_scale(factor)
    if "mscale" in fields and "mscale_all_dim" in fields and fields.number("mscale_all_dim"):
        scale = _yarn_scale(factor, fields.number("mscale")) / _yarn_scale(factor, fields.number("mscale_all_dim"))
    return divided * q.plain / factor + (1 - divided) * q.plain, fields.positive("attention_factor", scale)


def _yarn_scale(factor: float, by: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0


def _longrope(q: _Question) -> _Answer:
    """Ding et al., 2024: factors for each angle, others where texts may be longer than the original length. Which it is
    must not change within a text: the keys in the cache have been turned already."""
    fields, most = q.fields, q.config.count("max_position_embeddings")
    original = q.config.count("original_max_position_embeddings", most)
    trained = fields.count("original_max_position_embeddings", original)
    factor = fields.positive("factor", most / trained)
    scale = 1.0 if factor <= 1 or trained < 2 else math.sqrt(1 + math.log(factor) / math.log(trained))
    name = "long_factor" if q.capacity > trained else "short_factor"
    factors = np.array(fields.numbers(name, len(q.plain)))
    if not (factors > 0).all():
        raise fields.error(f"'{name}' has numbers that are not above 0")
    return q.plain / factors, fields.positive("attention_factor", scale)


_KINDS: dict[str, Callable[[_Question], _Answer]] = {
    "default": _default, "linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope, "su": _longrope
}  # fmt: skip
"""`dynamic` is not among them: its angles follow the length of the text, so that keys in the cache would have to be
turned again."""
