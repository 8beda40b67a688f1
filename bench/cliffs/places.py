"""Single operators that move elements: slices, joins, gathers, scatters, stretches, of tensors of several types."""

from __future__ import annotations

import numpy as np

from bench.cliffs.draft import Draft, Value
from bench.cliffs.sizes import batch, between, edges, width
from bench.cliffs.tensors import axis_of, image, tensor

TYPES = ("float32", "float32", "float32", "float16", "float64", "int64", "int32", "uint8")


def any_tensor(d: Draft, least: int = 1, most: int = 4) -> Value:
    return tensor(d, least, most, dtype=d.rng.choice(TYPES))


def sliced(d: Draft) -> Value:
    """Of one or two axes, with steps, backwards at times."""
    x = any_tensor(d, 1, 4)
    axes = d.rng.sample(range(len(x.shape)), min(len(x.shape), d.rng.randint(1, 2)))
    starts, ends, steps = [], [], []
    for axis in axes:
        size, step = x.shape[axis], d.rng.choice((1, 1, 2, 3, -1, -2))
        low = d.rng.randint(0, size // 3)
        high = size - d.rng.randint(0, size // 3)
        starts.append(low if step > 0 else high - 1)
        ends.append(high if step > 0 else low - size - 1)
        steps.append(step)
    return d.node("Slice", x, *(d.integers(*v) for v in (starts, ends, axes, steps)))


def joined(d: Draft) -> Value:
    """Tensors of different sizes along an axis."""
    x = any_tensor(d, 1, 4)
    axis = axis_of(d, x)

    def other() -> Value:
        size = between(d.rng, 1, max(2, x.shape[axis]))
        return d.input(*(size if k == axis else n for k, n in enumerate(x.shape)), dtype=x.dtype.name)

    return d.node("Concat", x, *(other() for _ in range(d.rng.choice((1, 1, 2, 3, 7)))), axis=axis)


def unequal_parts(d: Draft) -> Value:
    """Of which one or two are used, one of them changed."""
    x = tensor(d, 2)
    axis = axis_of(d, x)
    size = x.shape[axis]
    if size < 3:
        raise ValueError("too few elements for parts of different sizes")
    first = d.rng.randint(1, size - 2)
    sizes = (first, 1, size - first - 1) if d.rng.random() < 0.3 else (first, size - first)
    found = d.node_of_several("Split", [x, d.integers(*sizes)], len(sizes), axis=axis)
    changed = d.node("Sigmoid", found[-1])
    return d.node("Concat", changed, *found[:-1], axis=axis)


def gated(d: Draft) -> Value:
    """Half of the features by a function of the other half."""
    x = d.input(batch(d.rng), between(d.rng, 1, 500), 2 * width(d.rng))
    axis = d.rng.choice((-1, -1, 1))
    if x.shape[axis] % 2:
        raise ValueError("an odd number has no halves")
    first, second = d.node_of_several("Split", [x], 2, axis=axis, num_outputs=2)
    return d.node("Mul", first, d.node(d.rng.choice(("Sigmoid", "Gelu", "Tanh")), second))


def rotated(d: Draft) -> Value:
    """Rotary positions as exporters write them: halves swapped, or pairs."""
    heads, length, features = d.rng.choice((1, 4, 8)), between(d.rng, 1, 512), d.rng.choice((32, 64, 80, 128))
    x = d.input(batch(d.rng), heads, length, features)
    cos, sin = d.input(length, features), d.input(length, features)
    half = features // 2
    low = d.node("Slice", x, d.integers(0), d.integers(half), d.integers(3))
    high = d.node("Slice", x, d.integers(half), d.integers(features), d.integers(3))
    turned = d.node("Concat", d.node("Neg", high), low, axis=-1)
    return d.node("Add", d.node("Mul", x, cos), d.node("Mul", turned, sin))


def stretched(d: Draft) -> Value:
    x = any_tensor(d, 1, 3)
    shape = [size if size > 1 else d.rng.choice((1, 4, 9)) for size in x.shape]
    return d.node("Expand", x, d.integers(*([d.rng.choice((2, 5, 8))] if d.rng.random() < 0.7 else []), *shape))


def triangle(d: Draft) -> Value:
    x = any_tensor(d, 2, 4)
    return d.node("Trilu", x, d.constant(np.array(d.rng.choice((0, 0, 1, -2)))), upper=d.rng.randint(0, 1))


def gathered_elements(d: Draft) -> Value:
    x = any_tensor(d, 1, 3)
    axis = axis_of(d, x)
    shape = [between(d.rng, 1, 300) if k == axis else size for k, size in enumerate(x.shape)]
    return d.node("GatherElements", x, d.input(*shape, dtype="int64", below=x.shape[axis]), axis=axis)


def embedded(d: Draft) -> Value:
    """Rows of a table of the model or of the call, with positions added at times."""
    features, ids = width(d.rng, 4, 768), d.input(batch(d.rng), between(d.rng, 1, 512), dtype="int64", below=900)
    table = d.weight(900, features) if d.rng.random() < 0.7 else d.input(900, features)
    y = d.node("Gather", table, ids)
    return d.node("Add", y, d.input(features)) if d.rng.random() < 0.5 else y


def gathered_points(d: Draft) -> Value:
    x, depth = tensor(d, 2, 4), d.rng.randint(1, 2)
    limits = np.array(x.shape[:depth])
    points = d.numbers.integers(0, limits, (between(d.rng, 1, 300), depth))
    return d.node("GatherND", x, d.given(points, known=(1,)))


def scattered_points(d: Draft) -> Value:
    x, depth = tensor(d, 2, 4), d.rng.randint(1, 2)
    count = min(between(d.rng, 1, 300), int(np.prod(x.shape[:depth])))
    flat = d.numbers.permutation(int(np.prod(x.shape[:depth])))[:count]
    points = np.stack(np.unravel_index(flat, x.shape[:depth]), -1)
    update = d.input(count, *x.shape[depth:])
    return d.node("ScatterND", x, d.given(points, known=(1,)), update, reduction=d.rng.choice(("none", "add")))


def reversed_sequences(d: Draft) -> Value:
    length, many = between(d.rng, 2, 300), between(d.rng, 1, 64)
    x = d.input(length, many, between(d.rng, 1, 100))
    return d.node("ReverseSequence", x, d.given(d.numbers.integers(1, length + 1, many)), time_axis=0, batch_axis=1)


def chosen(d: Draft) -> Value:
    """As many elements as the data say."""
    x = tensor(d, 1, 3)
    positive = d.node("Greater", x, d.constant(np.float32(1).reshape(())))
    if d.rng.random() < 0.5:
        return d.node_of_any_size("NonZero", positive, dtype="int64", rank=2)
    axis = axis_of(d, x)
    taken = d.given(d.numbers.random(x.shape[axis]) < 0.4)
    return d.node_of_any_size("Compress", x, taken, dtype="float32", rank=len(x.shape), axis=axis)


def reshaped(d: Draft) -> Value:
    """With a transpose between, as when heads are split, and arithmetic at the end."""
    many, length, heads, features = batch(d.rng), between(d.rng, 1, 300), d.rng.choice((2, 3, 8)), width(d.rng, 8, 96)
    x = d.input(many, length, heads * features)
    order = d.rng.choice(((0, 2, 1, 3), (0, 2, 3, 1), (2, 0, 1, 3)))
    y = d.node("Transpose", d.node("Reshape", x, d.integers(0, 0, heads, features)), perm=list(order))
    return y if d.rng.random() < 0.5 else d.node("Mul", y, d.constant(np.float32(0.125).reshape(())))


def patches(d: Draft) -> Value:
    """An image cut into squares, each of them a row."""
    size, (rows, columns), many = d.rng.choice((2, 4, 7, 16)), edges(d.rng, 2, 16), batch(d.rng)
    channels = d.rng.choice((3, 3, 16, 96))
    x = d.input(many, channels, rows * size, columns * size)
    d.has_sizes = True
    y = d.node("Reshape", x, d.integers(many, channels, rows, size, columns, size))
    y = d.node("Transpose", y, perm=d.rng.choice(([0, 2, 4, 1, 3, 5], [0, 2, 4, 3, 5, 1])))
    return d.node("Reshape", y, d.integers(many, rows * columns, -1))


def cropped(d: Draft) -> Value:
    """An image cut, or padded with negative amounts, and normalised."""
    x = image(d, 2)
    if min(x.shape[2:]) < 4:
        raise ValueError("too small")
    y = d.node("Pad", x, d.integers(0, 0, -1, 2, 0, 0, 1, -1))
    mean = d.weight(x.shape[1], 1, 1, scale=1.0)
    return d.node("Sub", y, mean) if d.rng.random() < 0.5 else y


def image_of_bytes(d: Draft) -> Value:
    """From bytes with channels last to normalised floats with channels first."""
    x = d.input(batch(d.rng), *edges(d.rng, 2, 224), 3, dtype="uint8", below=256)
    y = d.node("Transpose", d.node("Cast", x, to=1), perm=[0, 3, 1, 2])
    y = d.node("Sub", y, d.weight(3, 1, 1, scale=100.0))
    return d.node("Div", y, d.constant(np.full((3, 1, 1), 58.0, np.float32)))


MOVES = (
    sliced, sliced, joined, joined, unequal_parts, gated, rotated, stretched, triangle, gathered_elements, embedded,
    gathered_points, scattered_points, reversed_sequences, chosen, reshaped, patches, cropped, image_of_bytes,
)  # fmt: skip
