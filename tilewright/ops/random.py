"""Random numbers by counting: each element is a function of a key, a stream and its own position (Salmon et al., 2011).

So they do not depend on threads or the order of loops. The generator is Philox 4x32 with 10 rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import Compute, compute, irregular, primitive
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import Dim, dims
from tilewright.ops.traits.facts import Traits

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def _fresh_key_types(*, bits: int = 64) -> tuple[TensorType, ...]:
    if not 0 <= bits <= 64:
        raise ValueError(f"a key has 0 to 64 bits, not {bits}")
    return (TensorType(dt.u64, ()),)


@irregular(_fresh_key_types)
def fresh_key(t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, bits: int = 64) -> None:
    """A number of `bits` bits (u64) from a clock, another one in each call of the model."""
    outputs[0].store((), t.apply("ticks", t.const(0, dt.u64)) & t.const((1 << bits) - 1, dt.u64))


fresh_key.declares(Traits(is_pure=False))


@primitive
def random_uniform(key: Array, *, shape: Sequence[Dim], stream: int = 0, dtype: DType = dt.f32) -> Compute:
    """Numbers of f32 or f64 from 0 on and below 1, all multiples of 2^-24 or 2^-53 equally likely; `key` is one u64."""
    _check(key, dtype)

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        first, second = _words(t, key, dims(shape), i, stream)
        if dtype is dt.f32:
            return _share(t, first, 8, dt.f32)
        high, low = _bits(t, first, 5).cast(dt.f64), _bits(t, second, 6).cast(dt.f64)
        return (high * 2.0**26 + low) * 2.0**-53

    return compute([key], dims(shape), body, dtype=dtype)


@primitive
def random_normal(key: Array, *, shape: Sequence[Dim], stream: int = 0, dtype: DType = dt.f32) -> Compute:
    """Numbers of f32 or f64 of mean 0 and variance 1 (Box & Muller, 1958), none beyond 5.8, of f64 6.7."""
    _check(key, dtype)
    dropped = 8 if dtype is dt.f32 else 0

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        first, second = _words(t, key, dims(shape), i, stream)
        not_zero = _share(t, first, dropped, dtype) + 2.0 ** -(32 - dropped)
        radius = t.apply("sqrt", t.apply("log", not_zero) * -2.0)
        return radius * t.apply("cos", _share(t, second, dropped, dtype) * (2 * math.pi))

    return compute([key], dims(shape), body, dtype=dtype)


def _check(key: Array, dtype: DType) -> None:
    if key.dtype is not dt.u64 or key.rank:
        raise ValueError(f"the key must be one number of u64, not {key.type}")
    if dtype not in (dt.f32, dt.f64):
        raise ValueError(f"random numbers are made in f32 or f64, not in {dtype}")


def _bits(t: ScalarBuilder, word: Scalar, dropped: int) -> Scalar:
    """The upper bits of a word, as i32 or i64, which every target converts to floats in vectors."""
    return t.apply("shr", word, dropped).cast(dt.i32 if dropped else dt.i64)


def _share(t: ScalarBuilder, word: Scalar, dropped: int, dtype: DType) -> Scalar:
    """A word without its last bits, as a number from 0 on and below 1."""
    return _bits(t, word, dropped).cast(dtype) * 2.0 ** -(32 - dropped)


def _words(
    t: ScalarBuilder, key: Array, shape: Sequence[Sym], index: Sequence[Sym], stream: int
) -> tuple[Scalar, Scalar]:
    """Two random words (u32) of the element at `index`: the first of the four that Philox makes of the counter
    (position as 64 bits, stream, 0)."""
    position = t.index(_flat(shape, index)).cast(dt.u64)
    whole = key.load(())
    keys = [whole.cast(dt.u32), t.apply("shr", whole, 32).cast(dt.u32)]
    words = [
        position.cast(dt.u32),
        t.apply("shr", position, 32).cast(dt.u32),
        t.const(stream, dt.u32),
        t.const(0, dt.u32),
    ]
    for round_ in range(ROUNDS):
        if round_:
            keys = [k + t.const(step, dt.u32) for k, step in zip(keys, KEY_STEPS, strict=True)]
        (high0, low0), (high1, low1) = (_product(t, words[2 * k], MULTIPLIERS[k]) for k in range(2))
        words = [
            t.apply("xor", t.apply("xor", high1, words[1]), keys[0]),
            low1,
            t.apply("xor", t.apply("xor", high0, words[3]), keys[1]),
            low0,
        ]
    return words[0], words[1]


def _product(t: ScalarBuilder, word: Scalar, factor: int) -> tuple[Scalar, Scalar]:
    """The upper and the lower half of a product of two words."""
    whole = word.cast(dt.u64) * t.const(factor, dt.u64)
    return t.apply("shr", whole, 32).cast(dt.u32), whole.cast(dt.u32)


def _flat(shape: Sequence[Sym], index: Sequence[Sym]) -> Sym:
    """The position of an element in row-major order."""
    return reduce(lambda at, axis: at * axis[0] + axis[1], zip(shape, index, strict=True), sym(0))
