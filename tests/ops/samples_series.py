"""Samples of running totals, orders, quantised numbers, recurrent networks, and of tensors without a formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from onnx import numpy_helper

from tests.ops import sampling
from tests.ops.sampling import FLOATS, INTS, Sample, normal, onnx_reference, sample, wide
from tilewright.ir import dtype as dt
from tilewright.ir.sym import sym


def copies() -> Iterator[Sample]:
    for dtype in (*FLOATS, *INTS, np.dtype(bool)):
        for shape in ((), (3, 0), (2, 3)):
            x = normal(shape, dtype)
            yield sample("copy", [x], lambda x=x: x)
    for values in ((), (7,), (3, 0, 1 << 40)):
        yield sample("sym_tensor", [], lambda v=values: np.array(v, np.int64), values=tuple(map(sym, values)))
    yield sample("sym_tensor", [], lambda: np.array(5), values=(sym(5),), scalar=True)


def totals() -> Iterator[Sample]:
    for dtype in (*FLOATS, np.dtype(np.int32), np.dtype(np.int64)):
        for shape in ((2, 5, 3), (9, 4, 1), (2, 0, 3), (2, 1, 3)):
            x = normal(shape, dtype)
            small = (wide(x) / 4 + 1).astype(dtype)  # products stay in range
            for exclusive in (False, True):
                for reverse in (False, True):
                    how = {"exclusive": exclusive, "reverse": reverse}
                    yield sample(
                        "cumsum", [x], lambda x=x, h=how: _total(np.add, x, **h), axis=1, loose=8, **how
                    )
                    yield sample(
                        "cumprod",
                        [small],
                        lambda x=small, h=how: _total(np.multiply, x, **h),
                        axis=-2,
                        loose=8,
                        **how,
                    )
                    yield sample(
                        "running",
                        [x],
                        lambda x=x, h=how: _total(np.add, x, **h),
                        combine="add",
                        loose=8,
                        **how,
                    )


def state_spaces() -> Iterator[Sample]:
    """With a channel for each head and without, of one strip of channels and several."""
    for dtype in FLOATS:
        for steps, heads, size, groups, states, every in (
            (4, 6, 1, 1, 3, True), (3, 4, 5, 2, 7, False), (5, 70, 1, 1, 2, True), (2, 2, 67, 1, 3, False),
            (1, 4, 2, 4, 1, True), (0, 3, 2, 1, 2, False),
        ):  # fmt: skip
            x, rows = normal((steps, heads * size), dtype), states if every else 1
            pace = (-np.abs(wide(normal((rows, heads), dtype)))).astype(dtype)
            step = np.abs(wide(normal((steps, heads), dtype))).astype(dtype)
            b, c = normal((steps, groups, states), dtype), normal((steps, groups, states), dtype)
            given = [x, step, pace, b, c, normal((states, heads * size), dtype)]
            yield sample("state_space_scan", given, lambda g=given: _scanned(*map(wide, g)), loose=64)


def _scanned(
    x: np.ndarray, step: np.ndarray, pace: np.ndarray, b: np.ndarray, c: np.ndarray, state: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    size, per_group = x.shape[1] // step.shape[1], step.shape[1] // b.shape[1]
    y = np.empty_like(x)
    for t in range(len(x)):
        times = np.repeat(step[t], size)
        each = (np.repeat(np.repeat(of[t], per_group, axis=0), size, axis=0).T for of in (b, c))
        takes, gives = each
        state = np.exp(np.repeat(step[t] * pace, size, axis=1)) * state + times * x[t] * takes
        y[t] = (state * gives).sum(axis=0)
    return y, state


def running_extrema() -> Iterator[Sample]:
    for dtype in (*FLOATS, np.dtype(np.int32)):
        for shape in ((2, 5, 3), (9, 4, 1), (2, 0, 3)):
            x = normal(shape, dtype)
            for name, combine in (("cummax", np.maximum), ("cummin", np.minimum)):
                yield sample(name, [x], lambda x=x, c=combine: c.accumulate(wide(x), axis=1), axis=1)
            if np.dtype(dtype) in FLOATS:
                yield sample(
                    "cumlogsumexp", [x], lambda x=x: np.logaddexp.accumulate(wide(x), axis=-2), axis=-2, loose=16
                )
    x = np.array([1, np.nan, 3], np.float32)
    yield sample("cummax", [x], lambda: np.array([1, np.nan, np.nan]), axis=0, note="NaN stays")


def places_among_bounds() -> Iterator[Sample]:
    for dtype in (np.dtype(np.float32), np.dtype(np.int64)):
        bounds, x = np.sort(normal((7,), dtype)), normal((3, 4), dtype)
        x[0, :2] = bounds[[2, 5]]  # equal to a bound
        for right in (False, True):
            side = "right" if right else "left"
            yield sample(
                "searchsorted", [x, bounds], lambda x=x, b=bounds, s=side: np.searchsorted(b, x, s), right=right
            )
            rows = np.sort(normal((3, 6), dtype), axis=1)
            yield sample(
                "searchsorted", [x, rows],
                lambda x=x, b=rows, s=side: np.stack([np.searchsorted(u, v, s) for u, v in zip(b, x, strict=True)]),
                right=right,
            )  # fmt: skip
    yield sample("searchsorted", [x, x[0, :0]], lambda x=x: np.zeros(x.shape, np.int64), note="no bounds")


def polynomials() -> Iterator[Sample]:
    """By NumPy, of degrees that differ."""
    made = {
        "chebyshev_t": np.polynomial.Chebyshev, "hermite_h": np.polynomial.Hermite,
        "hermite_he": np.polynomial.HermiteE, "laguerre_l": np.polynomial.Laguerre,
        "legendre_p": np.polynomial.Legendre,
    }  # fmt: skip
    degree = np.array([[0, 1, 2], [3, 5, -1]])
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        x = normal(degree.shape, dtype)
        for kind, basis in made.items():
            yield sample(
                "orthogonal_polynomial",
                [x, degree],
                lambda x=x, b=basis: np.vectorize(lambda v, n: b.basis(n)(v) if n >= 0 else 0.0)(wide(x), degree),
                kind=kind,
                loose=100,
            )


def iterated() -> Iterator[Sample]:
    """Common divisors, and series of the incomplete gamma function by its integral."""
    for dtype in INTS:
        a, b = normal((3, 4), dtype), normal((3, 4), dtype, seed=1)
        a[0, :2] = 0
        b[0, 0] = 0
        yield sample("common_divisor", [a, b], lambda a=a, b=b: np.gcd(a, b))
    least = np.array([np.iinfo(np.int64).min, 6], np.int64)
    yield sample("common_divisor", [least, np.array([-1, -4])], lambda: np.array([1, 2]), note="least")
    a = np.array([0.5, 0.5, 3.0, 3.0, 40.0, 40.0, -1.0])
    x = np.array([0.25, 4.0, 1.0, 9.0, 35.0, 50.0, 1.0])
    yield sample("incomplete_gamma_series", [a, x], lambda: np.array(list(map(_gamma_series, a, x))), loose=10)


def _gamma_series(a: float, x: float) -> float:
    """By the integral of t^(a - 1) exp(-t) over t, below x or above it."""
    if a < 0:
        return math.nan
    nodes, weights = np.polynomial.legendre.leggauss(200)
    is_low = x < a + 1
    low, high = (0.0, x ** (1 / 4)) if is_low else (x, x + 90 + 4 * math.sqrt(a))
    v = low + (high - low) * (nodes + 1) / 2
    t, step = (v**4, 4 * v**3) if is_low else (v, 1.0)  # the root takes away the singularity of 0
    total = np.sum(weights * step * np.exp((a - 1) * np.log(t / x) - t + x)) * (high - low) / 2
    return float(total / x * (a if is_low else 1))


def _total(combine: np.ufunc, x: np.ndarray, exclusive: bool, reverse: bool) -> np.ndarray:
    """Of all elements up to each position along axis 1, by NumPy."""
    x = wide(x)[:, ::-1] if reverse else wide(x)
    found = combine.accumulate(x, axis=1)
    if exclusive:
        start = np.full_like(x[:, :1], combine.identity)
        found = np.concatenate([start, found], axis=1)[:, : x.shape[1]]
    return found[:, ::-1] if reverse else found


def orders() -> Iterator[Sample]:
    for dtype in (*FLOATS, np.dtype(np.uint8), np.dtype(np.int64)):
        x = normal((3, 7, 2), dtype)
        x[:, 3] = x[:, 1]  # equal elements: the lower position comes first
        for axis, k in ((1, 4), (-1, 2), (0, 0)):
            for largest in (False, True):
                yield sample(
                    "topk",
                    [x],
                    lambda x=x, a=axis, k=k, b=largest: _sorted(x, a, k, b),
                    axis=axis,
                    k=k,
                    largest=largest,
                )
    for dtype in (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int32)):
        x = normal((2, 150), dtype)
        x[0, ::7] = 3  # ties
        if dtype.kind == "f":
            x[1, 5::11], x[1, 6::11] = 0.0, -0.0
        is_first = dtype == np.float32  # of the algorithms that compare elements of any type in the same way
        for k in (3, 12, 100, 150) if is_first else (3, 12, 150):  # in registers, picked and sorted, and all sorted
            how = {"axis": 1, "k": k, "largest": k != 12}
            yield sample("topk", [x], lambda x=x, k=k: _sorted(x, 1, k, k != 12), note=str(k), **how)
        for n, k in ((40, 12), (40, 40), (1, 1)):  # by their ranks
            short = x[:, :n].copy()
            short[1, n // 2 :] = np.iinfo(dtype).min if dtype.kind == "i" else -np.inf
            yield sample("topk", [short], lambda x=short, k=k: _sorted(x, 1, k, True), note=f"{k} of {n}", axis=1, k=k)
        columns = x[None].transpose(0, 2, 1).repeat(5, 2)
        for k in (1, 4):  # in lanes
            how = {"axis": 1, "k": k, "largest": k == 4}
            yield sample("topk", [columns], lambda x=columns, k=k: _sorted(x, 1, k, k == 4), note=f"columns {k}", **how)
        long = normal((2, 700), dtype)
        long[0, 40:] = np.iinfo(dtype).min if dtype.kind == "i" else -np.inf  # what comes last of all, among those kept
        long[1, 600:] = long[1].max()
        for k in (8, 9, 50) if is_first else (8, 9):  # in registers, in a heap, and picked
            how = {"axis": 1, "k": k}
            yield sample("topk", [long], lambda x=long, k=k: _sorted(x, 1, k, True), note=f"{k} of 700", **how)


def chosen() -> Iterator[Sample]:
    """Positions that data choose."""
    for shape in ((4, 3, 5), (130,), (0, 3)):
        for dtype in (np.dtype(np.float32), np.dtype(bool)):
            x = (np.random.default_rng(3).integers(0, 3, shape) == 0).astype(dtype)
            found = np.array(np.nonzero(x))
            ends = np.cumsum(np.count_nonzero(x.reshape(-1, shape[-1]), axis=1))
            yield sample("positions", [x, ends], lambda f=found: f, count=found.shape[1])
    rows, lengths = normal((4, 6), np.int64), np.array([2, 0, 6, 1])
    yield sample(
        "joined_rows", [rows, np.cumsum(lengths)],
        lambda: (np.concatenate([r[:n] for r, n in zip(rows, lengths, strict=True)]), np.repeat(range(4), lengths)),
        count=9,
    )  # fmt: skip
    rng = np.random.default_rng(5)
    low = rng.uniform(0, 30, (2, 2, 40)).astype(np.float32)
    corners = np.concatenate([low, low + rng.uniform(5, 20, low.shape)], axis=1).astype(np.float32)
    scores = rng.uniform(0, 1, (2, 3, 40)).astype(np.float32).round(1)  # some are equal
    kept = [_kept(corners[k // 3], scores[k // 3, k % 3], 0.25, 0.3)[:5] for k in range(6)]
    boxes = np.ascontiguousarray(corners.transpose(0, 2, 1))
    boxes[:, ::2] = boxes[:, ::2, [2, 3, 0, 1]]  # corners in any order
    low, high = corners[:, :2], corners[:, 2:]
    centred = np.concatenate([(low + high)[:, ::-1] / 2, (high - low)[:, ::-1]], axis=1).transpose(0, 2, 1)
    for form, is_centred in ((boxes, False), (centred.copy(), True)):
        yield sample(
            "kept_boxes", [form, scores, np.float32(0.25), np.float32(0.3)],
            lambda: (np.array(kept), np.full(6, 5)),
            limit=5, centred=is_centred,
        )  # fmt: skip
    for count in (0, 1, 2, 3):
        yield sample(
            "kept_boxes", [boxes[:, :count], scores[:, :, :count], np.float32(1.0), np.float32(-1.0)],
            lambda n=count: (np.argsort(-scores[:, :, :n], axis=2, kind="stable").reshape(6, n), np.full(6, n)),
            limit=count,
        )  # fmt: skip
    for batch, classes in ((2, 0), (0, 3)):  # no rows
        yield sample(
            "kept_boxes", [boxes[:batch], scores[:batch, :classes], np.float32(0.25), np.float32(0.3)],
            lambda: (np.zeros((0, 5), np.int64), np.zeros(0, np.int64)), limit=5,
        )  # fmt: skip


def _kept(corners: np.ndarray, scores: np.ndarray, overlap: float, threshold: float) -> list[int]:
    """The best boxes, without those that meet a better one in more than a share of their union."""
    order = [k for k in np.argsort(-scores, kind="stable") if scores[k] > np.float32(threshold)]
    areas = (corners[2] - corners[0]) * (corners[3] - corners[1])
    kept: list[int] = []
    for k in order:
        low = np.maximum(corners[:2, k, None], corners[:2, kept])
        high = np.minimum(corners[2:, k, None], corners[2:, kept])
        common = np.prod(np.maximum(high - low, 0), axis=0)
        if not np.any(common > overlap * (areas[k] + areas[kept] - common)):
            kept.append(int(k))
    return kept


def _sorted(x: np.ndarray, axis: int, k: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    keys = wide(x).astype(np.float64)
    order = np.argsort(-keys if largest else keys, axis=axis, kind="stable")
    chosen = np.take(order, range(k), axis=axis)
    return np.take_along_axis(x, chosen, axis), chosen


def quantised() -> Iterator[Sample]:
    for stored, ours in ((np.int8, dt.i8), (np.uint8, dt.u8)):
        x = normal((3, 40)) * np.float32(8)
        x[0, :4] = 0.5, 1.5, -2.5, 1e6  # halves go to even numbers, and all is saturated
        scale, zero = np.float32(0.5), np.array(7, stored)
        yield sample(
            "quantize_linear", [x, scale, zero],
            lambda x=x, z=zero, s=scale: onnx_reference("QuantizeLinear", [x, s, z]), dtype=ours,
        )  # fmt: skip
        q = normal((3, 40), stored)
        yield sample(
            "dequantize_linear", [q, scale, zero],
            lambda q=q, z=zero, s=scale: onnx_reference("DequantizeLinear", [q, s, z]), dtype=dt.f32,
        )  # fmt: skip
        sums = np.random.default_rng(3).integers(-4000, 4000, (3, 5)).astype(np.int32)
        limits = np.iinfo(stored)
        yield sample(
            "requantize", [sums, np.float32(0.0625), zero],
            lambda s=sums, i=limits: np.clip(np.round(s / 16) + 7, i.min, i.max).astype(i.dtype), dtype=ours,
        )  # fmt: skip
        a, b = normal((2, 3, 8), stored), normal((8, 5), np.int8, 1)
        rows, columns = normal((2, 3, 1), stored, 2), normal((5,), np.int8, 3)
        yield sample(
            "matmul_integer", [a, b, rows, columns],
            lambda o=(a, b, rows, columns): (o[0].astype(np.int64) - o[2]) @ (o[1].astype(np.int64) - o[3]),
        )  # fmt: skip
        image, filters = normal((2, 4, 6, 5), stored), normal((6, 2, 3, 2), np.int8, 1)
        yield sample(
            "conv_integer", [image, filters, zero, np.array(-3, np.int8)],
            lambda i=image, f=filters: onnx_reference(
                "Conv", [i.astype(np.float64) - 7, f.astype(np.float64) + 3], pads=[1, 0, 1, 1], strides=[2, 1], group=2
            ).astype(np.int32),
            strides=(2, 1), pads_begin=(1, 0), pads_end=(1, 1), dilations=(1, 1), groups=2,
        )  # fmt: skip
    for mode in ("up", "down", "nearest"):
        x = np.abs(normal((3, 7)))
        yield sample(
            "cast_to_power",
            [x],
            lambda x=x, m=mode: numpy_helper.to_float8e8m0(x, True, m),
            mode=mode,
            note=mode,
        )
    for x in (normal((3, 4)), np.abs(normal((5,))), np.array([-3, -1], np.float32)):
        yield sample(
            "dynamic_quantize_linear",
            [x],
            lambda x=x: onnx_reference("DynamicQuantizeLinear", [x], outputs=3),
        )


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


def recurrent() -> Iterator[Sample]:
    """Expected values are those of the definitions, entry by entry and step by step in float64."""
    for dtype in FLOATS[:2]:
        yield from _recurrent_in(dtype)
    yield from _quantised_steps()


def _quantised_steps() -> Iterator[Sample]:
    """States of zeros, of one sign and of both; all dtypes of states give the same."""
    steps, hidden = 4, 5
    gates, h, c = normal((steps, 3, 4 * hidden)), normal((3, hidden), seed=1), normal((3, hidden), seed=2)
    h[0], h[1] = 0, np.abs(h[1])
    scale, peepholes = np.abs(normal((4 * hidden,), seed=4)) / 300, normal((3 * hidden,), seed=3)
    for dtype, limit in ((np.int8, 128), (np.int16, 256)):
        r = np.random.default_rng(5).integers(-limit, limit, (4, hidden, hidden)).astype(dtype)
        totals = r.sum(axis=2, dtype=np.int32).reshape(-1)
        for state in (dt.i16, dt.u8, dt.i8):
            for given in ([], [np.array([4, 0, 2])]):
                yield sample(
                    "lstm_quantized", [gates, r, scale, totals, peepholes, h, c, *given],
                    lambda r=r, n=given: _lstm(gates, _by_bytes(r, scale), peepholes, h, c, n, False, False),
                    state=state, loose=20,
                )  # fmt: skip


def _by_bytes(r: np.ndarray, scale: np.ndarray) -> Sequence[Callable[[np.ndarray], np.ndarray]]:
    """For each gate its product with h, which is quantised to bytes."""

    def product(k: int, h: np.ndarray) -> np.ndarray:
        numbers, step = quantised_row(h.astype(np.float32))
        return (numbers @ r[k].astype(np.int64).T) * (np.float64(step) * np.split(scale, 4)[k])

    return [lambda h, k=k: product(k, h) for k in range(4)]


def _recurrent_in(dtype: np.dtype) -> Iterator[Sample]:
    steps, batch, hidden = 4, 3, 5
    lengths = np.array([4, 0, 2])

    def normal(shape: Sequence[int], seed: int = 0) -> np.ndarray:
        return sampling.normal(shape, dtype, seed)

    for reverse in (False, True):
        for given in ([], [lengths]):
            r, h = normal((1, hidden, hidden)), normal((batch, hidden), seed=1)
            c, peepholes = normal((batch, hidden), seed=2), normal((3 * hidden,), seed=3)
            for f in ("tanh", "relu"):
                gates = normal((steps, batch, hidden))
                yield sample(
                    "rnn", [gates, r, h, *given],
                    lambda o=(gates, r, h), n=given, b=reverse, f=f: _rnn(*o, n, b, FUNCTIONS[f]),
                    activations=(f,), reverse=reverse, loose=20,
                )  # fmt: skip
            gates, r, bias = (
                normal((steps, batch, 3 * hidden)),
                normal((3, hidden, hidden)),
                normal((hidden,)),
            )
            for linear in (False, True):
                yield sample(
                    "gru", [gates, r, bias, h, *given],
                    lambda o=(gates, r, bias, h), n=given, b=reverse, x=linear: _gru(*o, n, b, x),
                    reverse=reverse, linear_before_reset=linear, loose=20,
                )  # fmt: skip
            gates, r = normal((steps, batch, 4 * hidden)), normal((4, hidden, hidden))
            by_floats = [m.__matmul__ for m in wide(r)]
            for couple in (False, True):
                yield sample(
                    "lstm", [gates, r, peepholes, h, c, *given],
                    lambda o=(gates, by_floats, peepholes, h, c), n=given, b=reverse, x=couple: _lstm(*o, n, b, x),
                    reverse=reverse, couple=couple, loose=20,
                )  # fmt: skip
            yield sample(
                "lstm", [gates, r, peepholes, h, c, *given],
                lambda o=(gates, by_floats, peepholes, h, c), n=given, b=reverse: _lstm(*o, n, b, False, 0.5),
                reverse=reverse, clip=0.5, loose=20,
            )  # fmt: skip


def quantised_row(h: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """A vector of float32 as integers without their zero point, and the scale, as DynamicQuantizeLinear has them."""
    high, low = max(h.max(), np.float32(0)), min(h.min(), np.float32(0))
    step = (high - low) / np.float32(255) if high != low else np.float32(1)
    zero = np.clip(np.rint((np.float32(0) - low) / step), 0, 255)
    return (np.clip(np.rint(h / step) + zero, 0, 255) - zero).astype(np.int64), step


def _order(steps: int, lengths: Sequence[np.ndarray], entry: int, reverse: bool) -> Sequence[int]:
    """The positions in time that an entry goes through."""
    places = range(int(lengths[0][entry]) if lengths else steps)
    return places[::-1] if reverse else places


def _rnn(
    gates: np.ndarray,
    r: np.ndarray,
    h: np.ndarray,
    lengths: Sequence[np.ndarray],
    reverse: bool,
    f: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, ...]:
    gates, r, h = wide(gates), wide(r), wide(h).copy()
    y = np.zeros((len(gates), *h.shape))
    for b in range(len(h)):
        for t in _order(len(gates), lengths, b, reverse):
            y[t, b] = h[b] = f(gates[t, b] + r[0] @ h[b])
    return y, h


def _gru(
    gates: np.ndarray,
    r: np.ndarray,
    bias: np.ndarray,
    h: np.ndarray,
    lengths: Sequence[np.ndarray],
    reverse: bool,
    linear: bool,
) -> tuple[np.ndarray, ...]:
    gates, r, bias, h = wide(gates), wide(r), wide(bias), wide(h).copy()
    y = np.zeros((len(gates), *h.shape))
    for b in range(len(h)):
        for t in _order(len(gates), lengths, b, reverse):
            of_z, of_r, of_h = np.split(gates[t, b], 3)
            z = FUNCTIONS["sigmoid"](of_z + r[0] @ h[b])
            reset = FUNCTIONS["sigmoid"](of_r + r[1] @ h[b])
            inner = reset * (r[2] @ h[b] + bias) if linear else r[2] @ (reset * h[b]) + bias
            y[t, b] = h[b] = (1 - z) * np.tanh(of_h + inner) + z * h[b]
    return y, h


def _lstm(
    gates: np.ndarray,
    products: Sequence[Callable[[np.ndarray], np.ndarray]],
    peepholes: np.ndarray,
    h: np.ndarray,
    c: np.ndarray,
    lengths: Sequence[np.ndarray],
    reverse: bool,
    couple: bool,
    clip: float = np.inf,
) -> tuple[np.ndarray, ...]:
    gates, h, c = wide(gates), wide(h).copy(), wide(c).copy()
    to_i, to_o, to_f = np.split(wide(peepholes), 3)
    y = np.zeros((len(gates), *h.shape))
    for b in range(len(h)):
        for t in _order(len(gates), lengths, b, reverse):
            of_i, of_o, of_f, of_c = (
                g + m(h[b]) for g, m in zip(np.split(gates[t, b], 4), products, strict=True)
            )
            i = FUNCTIONS["sigmoid"](of_i + to_i * c[b])
            kept = 1 - i if couple else FUNCTIONS["sigmoid"](of_f + to_f * c[b])
            c[b] = np.clip(kept * c[b] + i * np.tanh(of_c), -clip, clip)
            y[t, b] = h[b] = FUNCTIONS["sigmoid"](of_o + to_o * c[b]) * np.tanh(c[b])
    return y, h, c
