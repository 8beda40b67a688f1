"""Traits tried on arrays: whether an operator does what its traits say, by its definition in the interpreter.

    for wrong in contradictions(OPERATORS["my_operator"], [x, y], axis=1):
        print(wrong)

Each check changes the operands as the definition of its trait says (`traits.Traits`) and compares results. What it
finds is a counterexample; that it finds none is no proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op
from tilewright.ir.diag import TilewrightError
from tilewright.ir.types import tensor
from tilewright.ops.define.interp import evaluate
from tilewright.ops.define.operator import Operator
from tilewright.ops.traits.derive import traits
from tilewright.ops.traits.facts import Traits
from tilewright.ops.traits.pairing import is_elementwise

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Contradiction:
    """An operator does not do what a trait says of it, as an element shows."""

    operator: str
    trait: str
    example: str

    def __str__(self) -> str:
        return f"{self.operator} does not have the trait '{self.trait}': {self.example}"


def contradictions(operator: Operator, operands: Arrays, **attrs: Any) -> Iterator[Contradiction]:
    """What contradicts the traits of a defined operator, with operands like these and these attributes. Raises what the
    operator reports of these operands; changed ones that it reports an error of are left out."""
    trial = _Trial(operator, [np.asarray(x) for x in operands], operator.defaults | attrs)
    found = traits(operator, [tensor(dt.from_numpy(x.dtype), x.shape) for x in trial.operands], trial.attrs)
    with np.errstate(all="ignore"):
        evaluate(operator, *trial.operands, **attrs)  # an error here is one of the caller's
        for trait, check in _CHECKS:
            example = check(trial, found)
            if example:
                yield Contradiction(operator.name, trait, example)


@dataclass(frozen=True, eq=False)
class _Trial:
    operator: Operator
    operands: Arrays
    attrs: dict[str, Any]

    def results(self, operands: Arrays) -> list[np.ndarray] | None:
        """The results; None where it reports an error."""
        try:
            found = evaluate(self.operator, *operands, **self.attrs)
        except TilewrightError:
            return None
        return list(found) if isinstance(found, tuple) else [found]

    @cached_property
    def plain(self) -> list[np.ndarray] | None:
        """The results of the operands as they are."""
        return self.results(self.operands)

    def with_elements(self, which: frozenset[int], change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
        return [change(x) if k in which else x for k, x in enumerate(self.operands)]

    def op(self) -> Op:
        """An application to tensors like these."""
        block = Block([tensor(dt.from_numpy(x.dtype), x.shape) for x in self.operands])
        with Builder(block, Module()):
            self.operator(*block.args, **self.attrs)
        return block.ops[-1]


def _any_function(x: np.ndarray) -> np.ndarray:
    """A function that rises and falls."""
    if x.dtype.kind == "b":
        return ~x
    if x.dtype.kind in "iu":
        return (x * x - 3 * x).astype(x.dtype)
    return np.asarray(x * x - x, x.dtype)


def _rising(x: np.ndarray) -> np.ndarray:
    """A function that never falls."""
    if x.dtype.kind == "b":
        return x
    return x // 2 if x.dtype.kind in "iu" else np.where(x < 0, x * x.dtype.type(0.5), x * x.dtype.type(2))


def _commutes(trial: _Trial, found: Traits, which: frozenset[int], function: Callable[..., np.ndarray]) -> str:
    """Why op(function(x)) is not function(op(x)), but where there are fills."""
    plain, changed = (trial.plain, trial.results(trial.with_elements(which, function))) if which else (None, None)
    if plain is None or changed is None:
        return ""
    wanted = function(plain[0])
    filled = np.zeros(wanted.shape, bool)
    for n in found.fills:
        number = np.asarray(n).astype(wanted.dtype)
        filled |= (plain[0] == number) & (changed[0] == number)
    return _first_difference(changed[0], wanted, ~filled, "of changed elements it gives", "the changed result is")


def _moves(trial: _Trial, found: Traits) -> str:
    return _commutes(trial, found, found.moves, _any_function)


def _chooses(trial: _Trial, found: Traits) -> str:
    return _commutes(trial, found, found.chooses, _rising)


def _is_exact(trial: _Trial, found: Traits) -> str:
    floats = frozenset(k for k, x in enumerate(trial.operands) if x.dtype in (np.float32, np.float64))
    if not found.is_exact or not floats:
        return ""
    short = trial.with_elements(floats, lambda x: x.astype(np.float16))
    trial = _Trial(trial.operator, short, {k: dt.f16 if v in (dt.f32, dt.f64) else v for k, v in trial.attrs.items()})
    long = trial.with_elements(floats, lambda x: x.astype(np.float32))
    own, wide = trial.results(short), trial.results(long)
    if own is None or wide is None:
        return ""
    for x, y in zip(own, wide, strict=True):
        told = _first_difference(x, y.astype(x.dtype), np.ones(x.shape, bool), "in float16 it gives", "in float32")
        if told:
            return told
    return ""


def _is_finite(trial: _Trial, found: Traits) -> str:
    if not found.is_finite:
        return ""
    moderate = [np.clip(x, -2, 2).astype(x.dtype) if x.dtype.kind == "f" else x for x in trial.operands]
    with_zeros = [np.where(np.arange(x.size).reshape(x.shape) % 3, x, x.dtype.type(0)) for x in moderate]
    for result in trial.results(with_zeros) or []:
        if result.dtype.kind == "f" and not np.all(np.isfinite(result)):
            return f"of finite numbers it gives {result[~np.isfinite(result)][0]}"
    return ""


def _linear(trial: _Trial, found: Traits) -> str:
    for k in sorted(found.linear & set(range(len(trial.operands)))):
        x = trial.operands[k]
        if x.dtype.kind != "f" or x.dtype.itemsize < 4:
            continue
        other = np.roll(x.reshape(-1), 1).reshape(x.shape)
        parts = [trial.results(_replaced(trial.operands, k, y)) for y in (x, other, x + 2 * other)]
        if any(p is None for p in parts):
            continue
        a, b, both = (p[0].astype(np.float64) for p in parts if p is not None)
        wanted, size = a + 2 * b, np.max(abs(a) + abs(b), initial=1e-30)
        differs = np.isfinite(wanted) & ~np.isclose(both, wanted, rtol=1e-3, atol=1e-4 * size)
        told = _first_difference(both, wanted, differs, "of a sum it gives", "its results add up to")
        if told:
            return f"operand {k}: {told}"
    return ""


_ANY = np.ones((), bool)
"""All places."""


def _product(trial: _Trial, found: Traits) -> str:
    """Of weights of which those of one channel are 0, that channel alone changes, and where those that meet channels of
    the data are 0, these do not count. Products of matrices are compared with NumPy's."""
    product = found.product
    if product is None or found.has_state or any(x.size == 0 for x in trial.operands):
        return ""
    both = product.data, product.weights
    operands = [x if k in both else np.zeros_like(x) for k, x in enumerate(trial.operands)]
    data, weights = (operands[k] for k in both)
    plain = trial.results(operands)
    if plain is None:
        return ""

    def result(data: np.ndarray, weights: np.ndarray) -> np.ndarray:
        made = trial.results(_replaced(_replaced(operands, both[0], data), both[1], weights))
        return plain[0] if made is None else made[0]

    kept, met = weights.shape[product.kept], weights.shape[product.summed[0]]
    changed = result(data, _without(weights, product.kept, kept))
    others = np.arange(changed.shape[product.channel]) % kept != 0
    now, before = (x.compress(others, product.channel) for x in (changed, plain[0]))
    told = _first_difference(now, before, _ANY, "without the weights of channel 0 others are", "before")
    if told or np.any(changed.compress(~others, product.channel) != 0):
        return told or "without the weights of channel 0 it is not 0"
    missing = _without(weights, product.summed[0], met)
    less, whole = (result(x, missing) for x in (_without(data, product.depth, met), data))
    told = _first_difference(less, whole, _ANY, "without what weights of 0 meet it is", "with it")
    if told:
        return told
    if product.transposed is None or not product.is_plain or plain[0].dtype.kind not in "fiu":
        return ""
    sides = [np.swapaxes(x, -1, -2) if t else x for x, t in zip((data, weights), product.transposed, strict=True)]
    wide = [x.astype(np.float64 if x.dtype.kind == "f" else np.int64) for x in sides]
    wanted, size = wide[0] @ wide[1], (abs(wide[0]) @ abs(wide[1])).max()
    differs = np.array(wanted.shape != plain[0].shape) | ~np.isclose(plain[0], wanted, 1e-2, 1e-2 * size)
    return _first_difference(plain[0], wanted, differs, "it gives", "the product of matrices is")


def _without(x: np.ndarray, axis: int, step: int) -> np.ndarray:
    """x with zeros at the first place of an axis, and at every so many from there."""
    found = x.copy()
    found[(slice(None),) * axis + (slice(None, None, step),)] = 0
    return found


def _replaced(operands: Arrays, k: int, x: np.ndarray) -> list[np.ndarray]:
    return [x if i == k else v for i, v in enumerate(operands)]


_POINTS = 9
"""Places on a line between operands at which a continuous operator is looked at first."""

_HALVINGS = 30
"""How often the interval with the greatest change is halved then, at most: a step stays, a slope does not."""


def _continuous(trial: _Trial, found: Traits) -> str:
    """Where results step on the way of all continuous operands to other ones, in float64 where it takes it."""
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in trial.operands]
    moving = [k for k in found.continuous if k < len(wide) and wide[k].dtype == np.float64]
    attrs = {n: dt.f64 if v in (dt.f32, dt.f16, dt.bf16) else v for n, v in trial.attrs.items()}
    if not moving:
        return ""

    def at(place: float) -> np.ndarray | None:
        operands = [_on_the_way(x, place) if k in moving else x for k, x in enumerate(wide)]
        results = _Trial(trial.operator, operands, attrs).results(operands)
        floats = [r.reshape(-1) for r in results or [] if r.dtype.kind == "f"]
        return np.concatenate(floats) if floats else None

    values = [at(p) for p in np.linspace(0, 1, _POINTS)]
    if any(v is None for v in values):
        return ""
    arrays = [v for v in values if v is not None]
    size = max(map(_size, arrays))
    least = 1e-4 * (1e-3 + size)
    worst = int(np.argmax([_change(a, b) for a, b in pairwise(arrays)]))
    low, high, a, b = worst / (_POINTS - 1), (worst + 1) / (_POINTS - 1), arrays[worst], arrays[worst + 1]
    for _ in range(_HALVINGS):
        if _change(a, b) <= least:  # a slope, which no halving makes steeper
            return ""
        middle = at((low + high) / 2)
        if middle is None:
            return ""
        if _change(a, middle) >= _change(middle, b):
            high, b = (low + high) / 2, middle
        else:
            low, a = (low + high) / 2, middle
    is_pole = max(_size(a), _size(b)) > 1e3 * (1 + size)
    step = _change(a, b)
    if is_pole or step <= least:
        return ""
    return f"where operands change by less than 1e-8, a result changes by {step:.3g}"


def _on_the_way(x: np.ndarray, place: float) -> np.ndarray:
    """Between an operand and another one like it."""
    end = np.roll(x.reshape(-1), 1).reshape(x.shape) * 0.75 + 0.375
    return np.asarray(x + place * (end - x))


def _size(x: np.ndarray) -> float:
    finite = x[np.isfinite(x)]
    return float(np.max(np.abs(finite), initial=0))


def _change(a: np.ndarray, b: np.ndarray) -> float:
    both = np.isfinite(a) & np.isfinite(b)
    return float(np.max(np.abs(a[both] - b[both]), initial=0))


def _is_pure(trial: _Trial, found: Traits) -> str:
    if not found.is_pure:
        return ""
    results = [trial.plain, trial.results(trial.operands)]
    if any(r is None for r in results):
        return ""
    first, second = (r for r in results if r is not None)
    pairs = zip(first, second, strict=True)
    told = (_first_difference(b, a, np.ones(a.shape, bool), "again it gives", "before") for a, b in pairs)
    return next(filter(None, told), "")


def _is_elementwise(trial: _Trial, found: Traits) -> str:
    if trial.operator.kind != "primitive" or not trial.operands or not is_elementwise(trial.op()):
        return ""
    result = trial.plain
    if result is None:
        return ""
    order = np.random.default_rng(0).permutation(result[0].size)
    flat = [np.broadcast_to(x, result[0].shape).reshape(-1)[order] for x in trial.operands]
    moved = trial.results(flat)
    assert moved is not None
    wanted = result[0].reshape(-1)[order]
    return _first_difference(moved[0], wanted, np.ones(wanted.shape, bool), "of moved elements it gives", "there was")


def _commutative(trial: _Trial, found: Traits) -> str:
    if not found.commutative:
        return ""
    results = [trial.plain, trial.results(trial.operands[::-1])]
    if any(r is None for r in results):
        return ""
    plain, swapped = (r[0] for r in results if r is not None)
    return _first_difference(swapped, plain, np.ones(plain.shape, bool), "with exchanged operands it gives", "before")


def _right_identity(trial: _Trial, found: Traits) -> str:
    number = found.right_identity
    if number is None or trial.operands[0].dtype.kind == "b" or trial.operands[1].dtype.kind not in "fiu":
        return ""
    x, y = trial.operands
    if np.isinf(number) and y.dtype.kind != "f":
        return ""
    result = trial.results([x, np.full(y.shape, number).astype(y.dtype)])
    wanted = np.broadcast_to(x, np.broadcast_shapes(x.shape, y.shape))
    told = f"with {number} on the right it gives"
    return "" if result is None else _first_difference(result[0], wanted, np.ones(wanted.shape, bool), told, "of")


_CHECKS: tuple[tuple[str, Callable[[_Trial, Traits], str]], ...] = (
    ("moves", _moves),
    ("chooses", _chooses),
    ("continuous", _continuous),
    ("linear", _linear),
    ("product", _product),
    ("is_exact", _is_exact),
    ("is_finite", _is_finite),
    ("is_pure", _is_pure),
    ("elementwise", _is_elementwise),
    ("commutative", _commutative),
    ("right_identity", _right_identity),
)


def _first_difference(found: np.ndarray, wanted: np.ndarray, where: np.ndarray, gives: str, but: str) -> str:
    """The first element that is not the wanted one, in words."""
    if found.shape != wanted.shape:
        return f"{gives} an array of shape {found.shape}, {but} one of shape {wanted.shape}"
    differ = where & (found != wanted)
    if found.dtype.kind == "f":
        differ &= ~(np.isnan(found) & np.isnan(wanted))
    if not np.any(differ):
        return ""
    place = tuple(int(i) for i in np.argwhere(differ)[0])
    return f"at {place} {gives} {found[place]}, {but} {wanted[place]}"
