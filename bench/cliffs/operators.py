"""Single operators with any shapes, axes, groups, dilations and layouts of what stands beside them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bench.cliffs import blocks
from bench.cliffs.draft import Draft, Value
from bench.cliffs.layers import LAYERS
from bench.cliffs.places import MOVES
from bench.cliffs.sizes import batch, between, edges, width
from bench.cliffs.tensors import axis_of, image, tensor
from bench.cliffs.types import TYPED

Operator = Callable[[Draft], Value]


UNARY = (
    "Abs", "Atan", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Neg",
    "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Tanh", "Mish", "Sinh", "Cosh",
)  # fmt: skip


def unary(d: Draft) -> Value:
    op = d.rng.choice(UNARY)
    wide = d.rng.random() < 0.2 and op in ("Tanh", "Sin", "Cos", "Exp", "Sigmoid", "Erf", "Sinh", "Atan")
    return d.node(op, tensor(d, dtype="float64" if wide else "float32"))


def binary(d: Draft) -> Value:
    """With an operand that is stretched along some axes."""
    op = d.rng.choice(("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod", "Less"))
    dtype = (
        d.rng.choice(("int32", "int64"))
        if op in ("Add", "Div", "Mul", "Mod") and d.rng.random() < 0.4
        else "float32"
    )
    x = tensor(d, dtype=dtype)
    other = [1 if d.rng.random() < 0.3 else size for size in x.shape]
    y = d.input(*other[d.rng.randint(0, len(other) - 1) :], dtype=dtype)
    if op == "Pow":
        x = d.node("Abs", x)
    if op == "Less":
        return d.node("Cast", d.node(op, x, y), to=1)
    return d.node(op, x, y, fmod=1) if op == "Mod" and dtype == "float32" else d.node(op, x, y)


def chain(d: Draft) -> Value:
    """Elementwise operators on one another, some transposed or stretched between."""
    x = tensor(d, 2)
    y = x
    for _ in range(d.rng.randint(2, 6)):
        kind = d.rng.random()
        if kind < 0.5:
            y = blocks.activation(d, y)
        elif kind < 0.7:
            y = d.node("Add", y, d.weight(y.shape[-1], scale=1.0))
        elif kind < 0.85:
            mean = d.node("ReduceMean", y, d.integers(axis_of(d, y)))
            y = d.node("Sub", y, mean)
        else:
            y = d.node("Mul", y, d.node("Sigmoid", y))
    return y


def reduction(d: Draft) -> Value:
    op = d.rng.choice(("Mean", "Max", "Sum", "L2", "LogSumExp", "SumSquare", "Min"))
    x = tensor(d, 2)
    axes = sorted(d.rng.sample(range(len(x.shape)), d.rng.randint(1, len(x.shape))))
    return d.node(f"Reduce{op}", x, d.integers(*axes), keepdims=d.rng.randint(0, 1))


def softmax(d: Draft) -> Value:
    x = tensor(d, 2)
    return d.node(d.rng.choice(("Softmax", "LogSoftmax")), x, axis=axis_of(d, x))


def arg_extreme(d: Draft) -> Value:
    x = tensor(d, 2)
    return d.node(d.rng.choice(("ArgMax", "ArgMin")), x, axis=axis_of(d, x), keepdims=d.rng.randint(0, 1))


def cumulative(d: Draft) -> Value:
    x = tensor(d, 2)
    return d.node("CumSum", x, d.constant(np.array(axis_of(d, x))), reverse=d.rng.randint(0, 1))


def top_k(d: Draft) -> Value:
    x = tensor(d, 1, 3)
    axis = axis_of(d, x)
    count = min(x.shape[axis], between(d.rng, 1, 64))
    return d.node_of_several("TopK", [x, d.integers(count)], 2, axis=axis)[0]


def padded(d: Draft) -> Value:
    x = tensor(d)
    amounts = [min(size - 1, d.rng.choice((0, 0, 1, 3, 16, 200))) for size in x.shape]
    mode = d.rng.choice(("constant", "reflect", "edge", "wrap"))
    return d.node("Pad", x, d.integers(*amounts, *amounts), mode=mode)


def transposed(d: Draft) -> Value:
    x = tensor(d, 2, 5)
    order = list(range(len(x.shape)))
    d.rng.shuffle(order)
    y = d.node("Transpose", x, perm=order)
    return d.node("Add", y, d.weight(y.shape[-1])) if d.rng.random() < 0.3 else y


def parts(d: Draft) -> Value:
    """Slices of an axis, joined in another order."""
    x = tensor(d, 2)
    axis = axis_of(d, x)
    count = min(x.shape[axis], d.rng.choice((2, 3, 8, 64)))
    if count < 2:
        raise ValueError("an axis of one element has no parts")
    found = d.node_of_several("Split", [x], count, axis=axis, num_outputs=count)
    d.rng.shuffle(found)
    others = {i for i in range(len(x.shape)) if i != axis}
    fits = len({v.shape for v in found}) == 1
    return d.node(
        "Concat", *found, axis=d.rng.choice(sorted(others)) if fits and d.rng.random() < 0.5 else axis
    )


def gathered(d: Draft) -> Value:
    x = tensor(d, 1, 3)
    axis = axis_of(d, x)
    index = d.input(between(d.rng, 1, 256), dtype="int64", below=x.shape[axis])
    return d.node("Gather", x, index, axis=axis)


def scattered(d: Draft) -> Value:
    x = tensor(d, 2, 3)
    axis = axis_of(d, x)
    shape = [min(size, between(d.rng, 1, 64)) for size in x.shape]
    index = d.input(*shape, dtype="int64", below=x.shape[axis])
    reduction_of = d.rng.choice(("none", "add", "max"))
    if reduction_of == "none":  # which of several writes to one place counts is not defined
        order = d.numbers.permutation(x.shape[axis])[: shape[axis]]
        along = order.reshape([-1 if k == axis else 1 for k in range(len(shape))])
        index = d.given(np.broadcast_to(along, shape).copy())
    return d.node("ScatterElements", x, index, d.input(*shape), axis=axis, reduction=reduction_of)


def tiled(d: Draft) -> Value:
    x = tensor(d, 1, 3)
    return d.node("Tile", x, d.integers(*(d.rng.choice((1, 2, 3)) for _ in x.shape)))


def selected(d: Draft) -> Value:
    x = tensor(d, 1, 4)
    return d.node(
        "Where", d.node("Greater", x, d.constant(np.float32(0).reshape(()))), x, d.input(x.shape[-1])
    )


def matrices(d: Draft) -> Value:
    """Products of computed matrices, either of them transposed, or of one with a constant."""
    rows, inner, columns = (
        d.rng.choice((1, 2, 4, 16, between(d.rng, 8, 1024))),
        between(d.rng, 16, 2048),
        between(d.rng, 1, 2048),
    )
    heads = [d.rng.choice((2, 4, 12))] if d.rng.random() < 0.4 else []
    swapped = [*range(len(heads)), len(heads) + 1, len(heads)]

    def operand(height: int, columns: int, turned: float) -> Value:
        if d.rng.random() < turned:
            return d.node("Transpose", d.input(*heads, columns, height), perm=swapped)
        return d.input(*heads, height, columns)

    a = operand(rows, inner, 0.2)
    b = d.weight(inner, columns) if d.rng.random() < 0.3 else operand(inner, columns, 0.5)
    y = d.node("MatMul", a, b)
    return blocks.activation(d, y) if d.rng.random() < 0.4 else y


EQUATIONS = (
    "ii->i",
    "bij->bji",
    "bhid,bhjd->bhij",
    "bij,bjk->bik",
    "i,j->ij",
    "bij->bi",
    "bhij,bjhd->bihd",
    "bnc,cd->bnd",
    "bi,bi->b",
)


def einsum(d: Draft) -> Value:
    equation = d.rng.choice(EQUATIONS)
    sizes = {label: between(d.rng, 4, 96) for label in "bhijdnck"}
    terms = equation.partition("->")[0].split(",")
    return d.node(
        "Einsum", *(d.input(*(sizes[label] for label in term)) for term in terms), equation=equation
    )


def window(d: Draft) -> Value:
    """A convolution or pooling of any kind."""
    kinds = (
        blocks.plain_conv, blocks.depthwise, blocks.grouped_conv, blocks.transposed_conv, blocks.transposed_conv,
        blocks.pooling, blocks.pyramid,
    )  # fmt: skip
    return d.rng.choice(kinds)(d, image(d))


def global_window(d: Draft) -> Value:
    return d.node(d.rng.choice(("GlobalAveragePool", "GlobalMaxPool")), image(d))


def conv_of_call(d: Draft) -> Value:
    """With weights that the caller gives."""
    x, group = image(d), 1
    rank, k = len(x.shape) - 2, d.rng.choice((1, 3, 4))
    if d.rng.random() < 0.5:
        return d.node("ConvTranspose", x, d.input(x.shape[1], width(d.rng, 8, 64), *[k] * rank), group=group)
    return d.node(
        "Conv", x, d.input(width(d.rng, 8, 128), x.shape[1], *[k] * rank), pads=[k // 2] * (2 * rank)
    )


def resize(d: Draft) -> Value:
    x = image(d, 2)
    scale = d.rng.choice((0.5, 1.3, 2.0, 3.0))
    mode = d.rng.choice(("nearest", "linear", "cubic"))
    transform = d.rng.choice(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))
    scales = d.constant(np.array([1, 1, scale, scale], np.float32))
    return d.node("Resize", x, None, scales, mode=mode, coordinate_transformation_mode=transform)


def grid_sample(d: Draft) -> Value:
    x = image(d, 2, 64)
    points = d.numbers.uniform(-1.1, 1.1, (x.shape[0], *edges(d.rng, 2, 64), 2)).astype(np.float32)
    modes = d.rng.choice(("linear", "nearest", "cubic")), d.rng.choice(("zeros", "border", "reflection"))
    return d.node(
        "GridSample", x, d.given(points, known=(3,)), mode=modes[0], padding_mode=modes[1],
        align_corners=d.rng.randint(0, 1),
    )  # fmt: skip


def boxes(d: Draft, count: int, scale: float) -> np.ndarray:
    corner = d.numbers.uniform(0, 0.7 * scale, (count, 2))
    return np.concatenate([corner, corner + d.numbers.uniform(0.05, 0.3 * scale, (count, 2))], 1).astype(
        np.float32
    )


def roi_align(d: Draft) -> Value:
    x, count = image(d, 2, 64), between(d.rng, 1, 64)
    where = d.given(d.numbers.integers(0, x.shape[0], count))
    size, scale = d.rng.choice((5, 7, 14)), float(min(x.shape[2:]))
    return d.node("RoiAlign", x, d.given(boxes(d, count, scale)), where, output_height=size, output_width=size,
                  sampling_ratio=d.rng.choice((0, 1, 2)), mode=d.rng.choice(("avg", "max")))  # fmt: skip


def non_max_suppression(d: Draft) -> Value:
    count = between(d.rng, 16, 1024)
    scores = d.given(d.numbers.random((1, d.rng.choice((1, 1, 8)), count)).astype(np.float32))
    limits = d.integers(between(d.rng, 1, 200)), *(d.constant(np.array([v], np.float32)) for v in (0.5, 0.3))
    return d.node_of_any_size(
        "NonMaxSuppression", d.given(boxes(d, count, 1.0)[None]), scores, *limits, dtype="int64", rank=2
    )


def col2im(d: Draft) -> Value:
    kernel, (height, columns) = d.rng.choice((2, 3, 4)), edges(d.rng, 2, 48)
    height, columns = max(height, kernel), max(columns, kernel)
    blocks_of = (height - kernel + 1) * (columns - kernel + 1)
    x = d.input(batch(d.rng), width(d.rng, 4, 32) * kernel * kernel, blocks_of)
    return d.node("Col2Im", x, d.integers(height, columns), d.integers(kernel, kernel))


def recurrent(d: Draft) -> Value:
    return blocks.recurrent(
        d, d.input(d.rng.choice((1, 1, 4, 16)), between(d.rng, 4, 128), width(d.rng, 16, 256))
    )


def normalized(d: Draft) -> Value:
    kind = d.rng.choice(("last", "channels", "lrn", "instance", "lp"))
    if kind == "last":
        return blocks.norm(d, tensor(d, 2, 4))
    x = image(d, 2)
    if kind == "lrn":
        return d.node("LRN", x, size=d.rng.choice((3, 5)))
    if kind == "instance":
        return d.node(
            "InstanceNormalization", x, d.weight(x.shape[1], scale=1.0), d.weight(x.shape[1], scale=1.0)
        )
    return d.node("LpNormalization", x, axis=axis_of(d, x)) if kind == "lp" else blocks.norm_of_channels(d, x)


def depth_and_space(d: Draft) -> Value:
    x, size = image(d, 2), d.rng.choice((2, 3, 4))
    if d.rng.random() < 0.5:
        y = d.input(
            x.shape[0], x.shape[1] * size * size, max(1, x.shape[2] // size), max(1, x.shape[3] // size)
        )
        return d.node("DepthToSpace", y, blocksize=size, mode=d.rng.choice(("DCR", "CRD")))
    y = d.input(x.shape[0], x.shape[1], max(1, x.shape[2] // size) * size, max(1, x.shape[3] // size) * size)
    return d.node("SpaceToDepth", y, blocksize=size)


def one_hot(d: Draft) -> Value:
    index = tensor(d, 1, 2, dtype="int64")
    depth = between(d.rng, 4, 64)
    if index.shape and np.prod(index.shape) > 1 << 16:
        raise ValueError("too many")
    return d.node("OneHot", index, d.constant(np.array(depth)), d.constant(np.array([0, 1], np.float32)))


def cast(d: Draft) -> Value:
    source = d.rng.choice(("float32", "float64", "int32", "int64", "uint8"))
    return d.node("Cast", tensor(d, dtype=source), to=d.rng.choice((1, 6, 7, 10, 11)))


OPERATORS: tuple[Operator, ...] = (
    unary, binary, chain, reduction, softmax, arg_extreme, cumulative, top_k, padded, transposed, parts, gathered,
    scattered, tiled, selected, matrices, matrices, einsum, window, window, window, global_window, conv_of_call, resize,
    grid_sample, roi_align, non_max_suppression, col2im, recurrent, normalized, depth_and_space, one_hot, cast,
    *TYPED, *MOVES, *LAYERS,
)  # fmt: skip
