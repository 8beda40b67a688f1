"""Random programs of the graph level: each step adds a value made of random earlier ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from tests.graph.programs import conv, program, relu, softmax, weights
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import TensorType, tensor
from tilewright.ops import attention, contract, index, norm, pool, quant, recurrent, scan, sort, view
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.define import constant

STEPS = 14
MOST_ELEMENTS = 4000
ASSUMED = 2
"""Elements along a symbolic dim, where sizes are estimated."""

UNARY: tuple[Callable[[Value], Value], ...] = (
    ew.tanh, ew.sigmoid, ew.neg, ew.abs_, relu, lambda x: ew.mul(x, 0.5), lambda x: ew.add(x, -1.25), ew.sin,
)  # fmt: skip
BINARY = (ew.add, ew.sub, ew.mul, ew.max_, ew.min_)
COMPARISONS = (ew.lt, ew.le, ew.gt, ew.ge, ew.eq)


class Refused(Exception):
    """The step does not fit the value that was picked."""


def type_of(x: Value) -> TensorType:
    assert isinstance(x.type, TensorType)
    return x.type


def shape_of(x: Value) -> tuple[Sym, ...]:
    return type_of(x).shape


def dims(x: Value) -> list[int]:
    """The sizes of a value that has no symbolic ones."""
    if not type_of(x).is_static:
        raise Refused
    return [d.value for d in shape_of(x)]


def constants_of(x: Value) -> list[int]:
    """The axes of known size."""
    found = [k for k, d in enumerate(shape_of(x)) if d.is_const and d.value > 0]
    if not found:
        raise Refused
    return found


class Growth:
    """Values so far. `plain` are those without rounding errors, by which programs may decide something."""

    def __init__(self, seed: int, *values: Value) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.values = list(values)
        self.plain = set(values)

    def pick(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        found = [v for v in self.values if fits(v)]
        if not found:
            raise Refused
        return self.random.choice(found[-4:])

    def step(self) -> str:
        """Try a random step; its name, in brackets where it was refused."""
        name, action = self.random.choice(list(ACTIONS.items()))
        x = self.pick(lambda v: type_of(v).dtype is dt.f32)
        try:
            made = action(self, x)
        except Refused:
            return f"({name})"
        for y in [made] if isinstance(made, Value) else made:
            size = type_of(y).size
            if 0 < size.subs({v: ASSUMED for v in size.vars}).value < MOST_ELEMENTS:
                self.values.append(y)
        return name

    def axis(self, x: Value) -> int:
        return self.random.choice(constants_of(x))

    def size(self, x: Value, axis: int) -> int:
        return int(shape_of(x)[axis].value)

    def constant(self, shape: Sequence[int]) -> Value:
        return weights(*shape, seed=self.random.randrange(100))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability


Made = Value | Sequence[Value]


def unary(g: Growth, x: Value) -> Made:
    f = g.random.choice(UNARY)
    y = f(x)
    if x in g.plain and f in (ew.neg, ew.abs_, relu):
        g.plain.add(y)
    return y


def binary(g: Growth, x: Value) -> Made:
    return g.random.choice(BINARY)(x, g.pick(lambda v: v.type == x.type))


def with_constant(g: Growth, x: Value) -> Made:
    shape = [d.value if d.is_const and g.chance(0.6) else 1 for d in shape_of(x)]
    operands = [x, g.constant(shape[g.random.randrange(len(shape) + 1) :])]
    g.random.shuffle(operands)
    return g.random.choice(BINARY)(*operands)


def choice(g: Growth, x: Value) -> Made:
    """Elements of one value or another, as a comparison says."""
    compared = g.pick(lambda v: v in g.plain and type_of(v).dtype is dt.f32)
    condition = g.random.choice(COMPARISONS)(compared, g.random.choice((0.0, 0.25, -1.0)))
    if shape_of(compared) != shape_of(x):
        return ew.cast(condition, dtype=dt.f32)
    return ew.select(condition, x, g.pick(lambda v: v.type == x.type))


def integers(g: Growth, x: Value) -> Made:
    """By way of integers: what fits these is exact."""
    y = ew.cast(ew.mul(g.pick(lambda v: v in g.plain and type_of(v).dtype is dt.f32), 8.0), dtype=dt.i32)
    z = ew.add(g.random.choice((ew.mul, ew.max_, ew.sub))(y, 3), 1)
    return ew.mul(ew.cast(z, dtype=dt.f32), 0.125)


def half(g: Growth, x: Value) -> Made:
    """Twice what is rounded to halves: by factors of two only, so that no order of operations matters."""
    return ew.cast(
        ew.cast(g.pick(lambda v: v in g.plain and type_of(v).dtype is dt.f32), dtype=dt.f16), dtype=dt.f32
    )


def transpose(g: Growth, x: Value) -> Made:
    perm = list(range(len(shape_of(x))))
    g.random.shuffle(perm)
    return kept(g, x, view.transpose(x, perm=tuple(perm)))


def kept(g: Growth, x: Value, y: Value) -> Value:
    """`y`, which holds elements of `x` alone."""
    if x in g.plain:
        g.plain.add(y)
    return y


def reshape(g: Growth, x: Value) -> Made:
    shape = list(shape_of(x))
    at = g.random.randrange(len(shape) + 1)
    if g.chance(0.4) or not shape:
        if len(shape) >= 5:
            raise Refused
        return kept(g, x, view.reshape(x, shape=(*shape[:at], 1, *shape[at:])))
    at = min(at, len(shape) - 1)
    if shape[at].is_const and shape[at].value % 2 == 0 and len(shape) < 5:
        halves = (2, shape[at] // 2) if g.chance(0.5) else (shape[at] // 2, 2)
        return kept(g, x, view.reshape(x, shape=(*shape[:at], *halves, *shape[at + 1 :])))
    if at and len(shape) > 1:
        return kept(
            g, x, view.reshape(x, shape=(*shape[: at - 1], shape[at - 1] * shape[at], *shape[at + 1 :]))
        )
    ones = [k for k, d in enumerate(shape) if d == 1]
    return kept(g, x, view.squeeze(x, axes=tuple(ones[: g.random.randint(0, len(ones))])))


def slice_(g: Growth, x: Value) -> Made:
    starts, sizes, steps = [], [], []
    for d in shape_of(x):
        whole = not d.is_const or g.chance(0.3)
        start = 0 if whole else g.random.randrange((d.value + 1) // 2)
        step = 1 if whole else g.random.choice((1, 1, 2))
        starts.append(start), steps.append(step)
        sizes.append(d if whole else max(1, (d.value - start) // step))
    return kept(g, x, view.slice_(x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps)))


def reverse(g: Growth, x: Value) -> Made:
    return kept(g, x, view.reverse(x, axes=(g.axis(x),)))


def concat(g: Growth, x: Value) -> Made:
    parts = [x, *(g.pick(lambda v: v.type == x.type) for _ in range(g.random.randint(1, 2)))]
    y = view.concat(*parts, axis=g.axis(x))
    return y if any(v not in g.plain for v in parts) else kept(g, x, y)


def split(g: Growth, x: Value) -> Made:
    axis = g.axis(x)
    first = g.random.randint(1, max(1, g.size(x, axis) - 1))
    if first == g.size(x, axis):
        raise Refused
    return [kept(g, x, y) for y in view.split(x, sizes=(first, g.size(x, axis) - first), axis=axis)]


def expand(g: Growth, x: Value) -> Made:
    shape = [g.random.choice((1, 2, 3)) if d == 1 else d for d in shape_of(x)]
    return kept(g, x, view.expand(x, shape=(*([2] if len(shape) < 5 and g.chance(0.3) else []), *shape)))


def pad(g: Growth, x: Value) -> Made:
    mode = g.random.choice(("constant", "edge"))
    before = tuple(g.random.choice((0, 0, 1)) for _ in shape_of(x))
    after = tuple(g.random.choice((0, 0, 2)) for _ in shape_of(x))
    return view.pad(x, before=before, after=after, mode=mode)


def gather(g: Growth, x: Value) -> Made:
    axis = g.axis(x)
    shape = [(), (3,), (2, 2)][g.random.randrange(3)]
    n = g.size(x, axis)
    rng = np.random.default_rng(g.random.randrange(1000))
    at = constant(np.asarray(rng.integers(-n, n, shape), np.int64), "at")
    return kept(g, x, index.gather(x, at, axis=axis))


def position(g: Growth, x: Value) -> Made:
    """Positions of greatest elements, and what they are used for."""
    y = g.pick(lambda v: v in g.plain and type_of(v).dtype is dt.f32 and any(d.is_const for d in shape_of(v)))
    axis = g.axis(y)
    found = g.random.choice((rd.argmax, rd.argmin))(y, axis=axis, keepdims=True, last=g.chance(0.5))
    if g.chance(0.5):
        return index.gather_elements(y, found, axis=axis)
    return ew.cast(found, dtype=dt.f32)


def order(g: Growth, x: Value) -> Made:
    y = g.pick(lambda v: v in g.plain and type_of(v).dtype is dt.f32 and any(d.is_const for d in shape_of(v)))
    axis = g.axis(y)
    values, positions = sort.topk(y, k=g.random.randint(1, g.size(y, axis)), axis=axis, largest=g.chance(0.5))
    return [values, ew.cast(positions, dtype=dt.f32)]


def cumulative(g: Growth, x: Value) -> Made:
    return scan.cumsum(x, axis=g.axis(x), exclusive=g.chance(0.5), reverse=g.chance(0.5))


def reduce(g: Growth, x: Value) -> Made:
    rank = len(shape_of(x))
    axes = tuple(k for k in range(rank) if g.chance(0.4))
    if not axes:
        raise Refused
    how = g.random.choice((rd.reduce_sum, rd.reduce_max, rd.reduce_mean, rd.reduce_sum_square, rd.reduce_l1))
    return how(x, axes=axes, keepdims=g.chance(0.6))


def matmul(g: Growth, x: Value) -> Made:
    if len(shape_of(x)) < 2 or not shape_of(x)[-1].is_const:
        raise Refused
    width = g.random.choice((1, 3, 8, 16))
    if g.chance(0.2):
        return contract.matmul(x, x, transpose_b=True)
    if g.chance(0.2) and shape_of(x)[-2].is_const:
        return contract.matmul(g.constant((width, g.size(x, -2))), x)
    if g.chance(0.2) and shape_of(x)[-2].is_const:
        return contract.matmul(x, g.constant((g.size(x, -2), width)), transpose_a=True)
    return contract.matmul(x, g.constant((g.size(x, -1), width)))


def image(x: Value) -> list[int]:
    """The sizes of an image, without its batch."""
    shape = shape_of(x)
    if len(shape) != 4 or not all(d.is_const for d in shape[1:]):
        raise Refused
    return [d.value for d in shape[1:]]


def convolve(g: Growth, x: Value) -> Made:
    channels, *space = image(x)
    if min(space) < 2:
        raise Refused
    kernel = g.random.choice((1, 3))
    if g.chance(0.4):
        groups = g.random.choice([d for d in (1, 2, 3, 4, channels) if channels % d == 0])
        filters = groups * g.random.choice((1, 2, 4))
        p = kernel // 2 * (step := g.random.choice((1, 2)))
        w = g.constant((filters, channels // groups, kernel, kernel))
        window = {"strides": (g.random.choice((1, 2)),) * 2, "pads_begin": (p, p), "pads_end": (p, p)}
        return contract.conv(x, w, groups=groups, dilations=(step, step), **window)
    return conv(x, g.random.choice((4, 12, 16, 32)), kernel, stride=g.random.choice((1, 1, 2)))


def transposed_convolve(g: Growth, x: Value) -> Made:
    channels = image(x)[0]
    kernel, stride = g.random.choice(((1, 1), (2, 2), (3, 2), (3, 1)))
    w = g.constant((channels, g.random.choice((1, 4, 8)), kernel, kernel))
    window = {"strides": (stride,) * 2, "pads_begin": (0, 0), "pads_end": (0, 0), "dilations": (1, 1)}
    return contract.conv_transpose(x, w, output_padding=(0, 0), groups=1, **window)


def pooling(g: Growth, x: Value) -> Made:
    if min(image(x)[1:]) < 2:
        raise Refused
    return pool.max_pool(x, kernel=(2, 2), strides=(2, 2), pads_begin=(0, 1), pads_end=(1, 0))


def normalize(g: Growth, x: Value) -> Made:
    shape = shape_of(x)
    if not shape or not shape[-1].is_const:
        raise Refused
    width = (g.size(x, -1),)
    if g.chance(0.4):
        return softmax(x)
    if g.chance(0.5):
        return norm.layer_norm(x, g.constant(width), g.constant(width), axis=-1, epsilon=1e-2)
    if g.chance(0.5) or len(shape) < 3 or not shape[1].is_const:
        return norm.rms_norm(x, g.constant(width), axis=-1, epsilon=1e-2)
    channels = (g.size(x, 1),)
    return norm.group_norm(x, g.constant(channels), g.constant(channels), groups=1, epsilon=1e-2)


def attend(g: Growth, x: Value) -> Made:
    shape = shape_of(x)
    if len(shape) not in (3, 4) or not shape[-1].is_const:
        raise Refused
    width = g.random.choice((2, 8, 16))
    q, k, v = (contract.matmul(x, g.constant((g.size(x, -1), width))) for _ in range(3))
    if g.chance(0.5) and len(shape) == 4:
        return attention.attention(q, k, v)
    scores = ew.mul(contract.matmul(q, k, transpose_b=True), 0.25)
    return contract.matmul(softmax(scores), v)


def recur(g: Growth, x: Value) -> Made:
    """A recurrent layer over the first axis."""
    shape = shape_of(x)
    if len(shape) != 3 or not all(d.is_const for d in shape):
        raise Refused
    units = g.random.choice((1, 3, 8))
    batch = g.size(x, 1)
    gates = contract.matmul(x, g.constant((g.size(x, 2), units)))
    first = constant(np.zeros((batch, units), np.float32), "h")
    return list(recurrent.rnn(gates, g.constant((1, units, units)), first, reverse=g.chance(0.5)))


def quantized(g: Growth, x: Value) -> Made:
    """A product of small integers."""
    y = g.pick(lambda v: v in g.plain and type_of(v).dtype is dt.f32 and len(shape_of(v)) >= 2)
    if not shape_of(y)[-1].is_const:
        raise Refused
    scale, zero = constant(np.array(0.125, np.float32), "s"), constant(np.array(3, np.uint8), "z")
    small = quant.quantize_linear(y, scale, zero, dtype=dt.u8)
    rng = np.random.default_rng(g.random.randrange(100))
    w = constant(rng.integers(-9, 9, (g.size(y, -1), 8)).astype(np.int8), "w")
    product = quant.matmul_integer(small, w, zero, constant(np.array(0, np.int8), "zero"))
    return ew.mul(ew.cast(product, dtype=dt.f32), 0.0625)


ACTIONS: dict[str, Callable[[Growth, Value], Made]] = {
    "unary": unary, "binary": binary, "constant": with_constant, "choice": choice, "integers": integers, "half": half,
    "transpose": transpose, "reshape": reshape, "slice": slice_, "reverse": reverse, "concat": concat,
    "split": split, "expand": expand, "pad": pad, "gather": gather, "position": position, "order": order,
    "cumulative": cumulative, "reduce": reduce, "reduce again": reduce, "matmul": matmul, "matmul again": matmul,
    "convolve": convolve, "convolve again": convolve, "transposed convolve": transposed_convolve,
    "pooling": pooling, "normalize": normalize, "attend": attend, "recur": recur, "quantized": quantized,
}  # fmt: skip


def random_program(seed: int, history: list[str]) -> Module:
    """A program of two operands, in some of which the batch is symbolic. What was done is appended to `history`."""
    r = random.Random(seed)
    batch = var("n", 1) if r.random() < 0.3 else r.choice((1, 2, 2, 3))
    first = r.choice(((batch, 16, 4, 6), (batch, 3, 8, 8), (batch, 1, 5, 16), (batch, 32, 1, 1)))
    second = r.choice(((3, 4, 8), (1, 1, 1), (batch, 5, 16), (7,), (batch, 24), (1, 40)))

    def body(x: Value, y: Value) -> list[Value]:
        growth = Growth(seed, x, y)
        history.extend(growth.step() for _ in range(STEPS))
        made = [v for v in growth.values[2:] if v.op is not None]
        return made[-3:] or [relu(x)]

    return program(body, tensor(dt.f32, first), tensor(dt.f32, second))
