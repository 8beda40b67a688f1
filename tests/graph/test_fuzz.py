"""Random programs: the whole pipeline leaves legal programs that compute the same."""

from __future__ import annotations

import random

import pytest

from tests.graph.programs import conv, program, relu, run, softmax, weights
from tilewright.graph.fuse import Fuse
from tilewright.graph.pipeline import default_passes
from tilewright.ir.core import Value
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import pool
from tilewright.ops import reduce as rd
from tilewright.ops import view as vw
from tilewright.options import Options

UNARY = (ew.tanh, ew.sigmoid, ew.neg, ew.abs_, relu, lambda x: ew.mul(x, 0.5), lambda x: ew.add(x, -1.25))
BINARY = (ew.add, ew.sub, ew.mul, ew.max_, ew.min_)


def dims(x: Value) -> list[int]:
    return [d.value for d in x.type.shape]


class Growth:
    """Values so far; each step adds one made of random earlier ones."""

    def __init__(self, seed: int, *values: Value) -> None:
        self.random = random.Random(seed)
        self.values = list(values)

    def pick(self) -> Value:
        return self.random.choice(self.values[-4:])

    def step(self) -> None:
        x = self.pick()
        actions = [self.unary, self.binary, self.constant, self.transpose, self.reshape, self.slice, self.concat]
        actions += [self.reduce, self.pad, self.matmul, self.convolve, self.norm]
        made = self.random.choice(actions)(x)
        if made is not None and 0 < made.type.size.value < 4000:
            self.values.append(made)

    def unary(self, x: Value) -> Value:
        return self.random.choice(UNARY)(x)

    def binary(self, x: Value) -> Value | None:
        fitting = [v for v in self.values if v.type == x.type]
        return self.random.choice(BINARY)(x, self.random.choice(fitting))

    def constant(self, x: Value) -> Value:
        shape = [d if self.random.random() < 0.6 else 1 for d in dims(x)]
        return self.random.choice(BINARY)(x, weights(*shape[self.random.randrange(len(shape)) :]))

    def transpose(self, x: Value) -> Value:
        perm = list(range(len(dims(x))))
        self.random.shuffle(perm)
        return vw.transpose(x, perm=tuple(perm))

    def reshape(self, x: Value) -> Value | None:
        shape = dims(x)
        if self.random.random() < 0.4:
            at = self.random.randrange(len(shape) + 1)
            return vw.reshape(x, shape=(*shape[:at], 1, *shape[at:])) if len(shape) < 5 else None
        at = self.random.randrange(len(shape))
        if shape[at] % 2 == 0 and len(shape) < 5:
            return vw.reshape(x, shape=(*shape[:at], 2, shape[at] // 2, *shape[at + 1 :]))
        if at and len(shape) > 2:
            return vw.reshape(x, shape=(*shape[: at - 1], shape[at - 1] * shape[at], *shape[at + 1 :]))
        return None

    def slice(self, x: Value) -> Value:
        shape = dims(x)
        starts = [self.random.randrange((d + 1) // 2) for d in shape]
        steps = [self.random.choice((1, 1, 2)) for _ in shape]
        sizes = [max(1, (d - b) // s) for d, b, s in zip(shape, starts, steps, strict=True)]
        return vw.slice_(x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))

    def concat(self, x: Value) -> Value:
        axis = self.random.randrange(len(dims(x)))
        return vw.concat(x, self.random.choice([v for v in self.values if v.type == x.type]), axis=axis)

    def reduce(self, x: Value) -> Value | None:
        shape = dims(x)
        axes = tuple(k for k in range(len(shape)) if self.random.random() < 0.4)
        keep = len(axes) == len(shape) or self.random.random() < 0.7
        how = self.random.choice((rd.reduce_sum, rd.reduce_max, rd.reduce_mean))
        return how(x, axes=axes, keepdims=keep) if axes else None

    def pad(self, x: Value) -> Value:
        before = tuple(self.random.choice((0, 0, 1)) for _ in dims(x))
        after = tuple(self.random.choice((0, 0, 2)) for _ in dims(x))
        return vw.pad(x, before=before, after=after, mode=self.random.choice(("constant", "edge")))

    def matmul(self, x: Value) -> Value | None:
        if len(dims(x)) < 2:
            return None
        width = self.random.choice((3, 8, 16))
        if self.random.random() < 0.3:
            return ct.matmul(x, x, transpose_b=True)
        return ct.matmul(x, weights(dims(x)[-1], width, seed=width))

    def convolve(self, x: Value) -> Value | None:
        if len(dims(x)) != 4 or min(dims(x)) < 2:
            return None
        filters = self.random.choice((4, 12, 16, 32))
        if self.random.random() < 0.3:
            return pool.max_pool(x, kernel=(2, 2), strides=(2, 2), pads_begin=(0, 1), pads_end=(1, 0))
        return conv(x, filters, self.random.choice((1, 3)), stride=self.random.choice((1, 1, 2)))

    def norm(self, x: Value) -> Value:
        return softmax(x)


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    def body(x, y):
        growth = Growth(seed, x, y)
        for _ in range(14):
            growth.step()
        return growth.values[-3:]

    module = program(body, (2, 16, 4, 6), (3, 4, 8))
    run(module, *default_passes(None, Options()), Fuse(), tolerance=2e-4)
