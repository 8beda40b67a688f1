"""Samples of sampling in images, and of the steps of Winograd's algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tests.ops.sampling import FLOATS, Sample, normal, onnx_reference, sample, wide
from tilewright.ops.cook_toom import interpolation


def images() -> Iterator[Sample]:
    yield from _along_axes()
    yield from _blends()
    yield from _grids()
    yield from _regions()


def _along_axes() -> Iterator[Sample]:
    for dtype in (*FLOATS, np.dtype(np.int32)):
        x = normal((2, 5, 3), dtype)
        for axis, count in ((0, 3), (1, 1), (-1, 2)):
            yield sample(
                "repeat_elements",
                [x],
                lambda x=x, a=axis, n=count: np.repeat(x, n, a),
                axis=axis,
                count=count,
            )
        positions = np.array([-3, 0, 4, 4, 1, 9])
        yield sample("nearest_along", [x, positions], lambda x=x, p=positions: x[:, np.clip(p, 0, 4)], axis=1)
    for dtype in FLOATS:
        x = normal((2, 5, 3), dtype)
        coordinates = np.array([-1.5, 0, 0.25, 3.5, 3.9375, 4, 7])

        def between(x: np.ndarray = x, at: np.ndarray = coordinates) -> np.ndarray:
            return np.apply_along_axis(lambda line: np.interp(at, np.arange(5), line), 1, wide(x))

        yield sample("linear_along", [x, coordinates], between, axis=1, loose=4)
        indices, weights = np.array([[0, 4], [2, 2], [3, 1]]), np.array([[0.5, 0.25], [1, -2], [0, 3]])
        yield sample(
            "weighted_gather",
            [x, indices, weights.astype(np.float64 if dtype == np.float64 else np.float32)],
            lambda x=x, i=indices, w=weights: np.einsum("bitc,it->bic", wide(x)[:, i], w),
            axis=1,
            loose=4,
        )


def _blends() -> Iterator[Sample]:
    """Sums of weights of halves, quarters and eighths are exact."""
    rng = np.random.default_rng(2)
    for dtype in (np.uint8, np.int8, np.int32):
        x = rng.integers(-100 if dtype != np.uint8 else 0, 100, (2, 5, 3, 4)).astype(dtype)
        tables = []
        for length, count in ((5, 6), (4, 3)):
            shares = rng.integers(0, 9, count) / 8
            tables += [rng.integers(0, length, (2, count)), np.stack([1 - shares, shares]).astype(np.float32)]
        yield sample("blend", [x, *tables], lambda x=x, t=tables: _blended(x, *t), axes=(1, 3))


def _blended(
    x: np.ndarray, rows: np.ndarray, row_weights: np.ndarray, columns: np.ndarray, column_weights: np.ndarray
) -> np.ndarray:
    by_rows = sum(wide(x)[:, rows[k]] * row_weights[k][:, None, None] for k in (0, 1))
    by_both = sum(by_rows[..., columns[k]] * column_weights[k] for k in (0, 1))
    return np.trunc(by_both).astype(x.dtype)


def _grids() -> Iterator[Sample]:
    x, grid = (
        normal((2, 3, 4, 5)),
        np.random.default_rng(1).uniform(-1.3, 1.3, (2, 3, 6, 2)).astype(np.float32),
    )
    for mode in ("nearest", "linear", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            for align in (False, True):
                for last in (False, True):
                    yield sample(
                        "grid_sample_rows" if last else "grid_sample",
                        [x.transpose(0, 2, 3, 1).copy() if last else x, grid],
                        lambda m=mode, p=padding, a=align, last=last: (
                            _grid_sampled(x, grid, m, p, a).transpose(0, 2, 3, 1)
                            if last
                            else _grid_sampled(x, grid, m, p, a)
                        ),
                        mode=mode, padding=padding, align_corners=align, loose=40,
                    )  # fmt: skip


def _grid_sampled(x: np.ndarray, grid: np.ndarray, mode: str, padding: str, align: bool) -> np.ndarray:
    """ONNX's reference. For cubic interpolation at borders it moves the coordinate and not the elements, against what
    the specification says; there the image is made larger by the elements of its border, and the grid with it."""
    x, grid = wide(x), wide(grid)
    if mode == "cubic" and padding == "border":
        more, lengths = 8, np.array(x.shape[:1:-1])
        inside = (lengths - 1 if align else lengths) / 2
        all_of_it = inside + more
        grid, padding = grid * inside / all_of_it, "zeros"
        x = np.pad(x, ((0, 0), (0, 0), (more, more), (more, more)), mode="edge")
    return onnx_reference("GridSample", [x, grid], mode=mode, padding_mode=padding, align_corners=int(align))


def _regions() -> Iterator[Sample]:
    x = normal((2, 3, 7, 6))
    rois = np.array([[0, 0, 5, 6], [1.5, 2.25, 4, 3], [-1, 3, 2, 9]], np.float32)
    batch = np.array([1, 0, 1])
    for transformation, offset in (("half_pixel", 0.5), ("output_half_pixel", 0.0)):
        for mode in ("avg", "max"):
            yield sample(
                "roi_align",
                [x, rois, batch],
                lambda t=transformation, m=mode: onnx_reference(
                    "RoiAlign", [x, rois, batch], mode=m, coordinate_transformation_mode=t,
                    output_height=2, output_width=3, sampling_ratio=2, spatial_scale=0.75,
                ),
                size=(2, 3), samples=2, scale=0.75, offset=offset, mode=mode, loose=20,
            )  # fmt: skip
            yield sample(
                "roi_align",
                [x, rois, batch],
                lambda o=offset, m=mode: _aligned(x, rois, batch, (2, 3), 0.75, o, m),
                size=(2, 3), samples=0, scale=0.75, offset=offset, mode=mode, loose=20,
            )  # fmt: skip
    odd = np.array([[-40.3, -30.2, 50.1, 60.4], [3, 3, 3, 3], [5, 5, 2, 1], [90, 90, 99, 99]], np.float32)
    images = np.array([1, 0, 1, 0])
    for mode in ("avg", "max"):
        yield sample(
            "roi_align",
            [x - 1, odd, images],
            lambda m=mode: _aligned(x - 1, odd, images, (3, 2), 1.0, 0.5, m),
            size=(3, 2), samples=0, mode=mode, loose=40,
        )  # fmt: skip

    boxes = np.array([[1, 0, 0, 5, 6], [0, 1.5, 2.25, 4, 3], [1, -1, 3, 2, 9], [0, 6, 4, 1, 1]], np.float32)
    yield sample("max_roi_pool", [x, boxes], lambda: _greatest(x, boxes, (2, 3), 0.75), size=(2, 3), scale=0.75)


def _aligned(
    x: np.ndarray,
    rois: np.ndarray,
    batch: np.ndarray,
    size: tuple[int, int],
    scale: float,
    offset: float,
    mode: str,
) -> np.ndarray:
    """By hand: as many points as a cell has elements, each in turn."""
    found = np.zeros((len(rois), x.shape[1], *size))
    limits = np.array(x.shape[2:])
    for k, region in enumerate(rois.astype(np.float64) * scale - offset):
        start, end = region[1::-1], region[:1:-1]
        extent = end - start if offset else np.maximum(end - start, 1)
        step = extent / size
        counts = np.maximum(np.ceil(step), 0).astype(int)
        for cell in np.ndindex(*size):
            terms = []
            for point in np.ndindex(*counts):
                at = start + step * (cell + (np.array(point) + 0.5) / counts)
                visible = ((at >= -1) & (at <= limits)).all()
                at = np.clip(at, 0, limits - 1)
                low = np.floor(at).astype(int)
                high, share = np.minimum(low + 1, limits - 1), at - low
                for p, v in ((low[0], 1 - share[0]), (high[0], share[0])):
                    for q, w in ((low[1], 1 - share[1]), (high[1], share[1])):
                        terms.append(x[batch[k], :, p, q] * v * w * visible)
            if terms:
                mean = np.sum(terms, axis=0) / counts.prod()
                found[(k, slice(None), *cell)] = mean if mode == "avg" else np.max(terms, axis=0)
    return found


def _greatest(x: np.ndarray, boxes: np.ndarray, size: tuple[int, int], scale: float) -> np.ndarray:
    """By hand: each cell of each region."""
    found = np.zeros((len(boxes), x.shape[1], *size))
    for k, (image, *corners) in enumerate(boxes):
        left, top, right, bottom = (int(np.sign(v) * np.floor(abs(v) + 0.5)) for v in np.multiply(corners, scale))
        for row, column in np.ndindex(*size):
            part = x[int(image)]
            for axis, cell, start, end in ((2, column, left, right), (1, row, top, bottom)):
                step = max(end - start + 1, 1) / size[axis - 1]
                edges = (int(np.floor(cell * step)) + start, int(np.ceil((cell + 1) * step)) + start)
                low, high = np.clip(edges, 0, part.shape[axis])
                part = part.take(range(low, high), axis=axis)
            if part.size:
                found[k, :, row, column] = part.max(axis=(1, 2))
    return found


def winograd() -> Iterator[Sample]:
    """Expected are the products with the matrices, whose identity tests/ops/test_winograd.py checks exactly."""
    for m, taps, space, pads in (((2,), (3,), (9,), (1,)), ((2, 4), (3, 3), (5, 8), (1, 0))):
        x = normal((2, 3, *space, 4))
        results = [d + 2 * p - t + 1 for d, p, t in zip(space, pads, taps, strict=True)]
        counts = [-(-d // n) for d, n in zip(results, m, strict=True)]
        inputs, outputs = _matrices("inputs", m, taps), _matrices("outputs", m, taps)
        tiles = [n + t - 1 for n, t in zip(m, taps, strict=True)]
        padded = np.zeros((2, 3, *(c * n + t for c, n, t in zip(counts, m, taps, strict=True)), 4))
        padded[(..., *(slice(p, p + d) for p, d in zip(pads, space, strict=True)), slice(None))] = x
        data = np.stack(
            [
                padded[
                    (
                        ...,
                        *(slice(k * n, k * n + s) for k, n, s in zip(at, m, tiles, strict=True)),
                        slice(None),
                    )
                ]
                for at in np.ndindex(*counts)
            ],
            axis=-2,
        ).reshape(2, 3, len(inputs), -1, 4)
        yield sample(
            "winograd_input", [x], lambda b=inputs, d=data: np.einsum("pe,nceti->ncpti", b, d),
            m=m, taps=taps, pads_begin=pads, pads_end=pads, loose=10,
        )  # fmt: skip
        v, u = normal(data.shape), normal((len(inputs), 8, 12), seed=1)
        yield sample(
            "winograd_product",
            [v, u],
            lambda v=v, u=u: np.einsum("ncpti,pojci->noptj", wide(v), wide(u).reshape(len(u), 2, 4, 3, 4)),
            loose=10,
        )
        p = normal((2, 2, *data.shape[2:]))

        def joined(
            p: np.ndarray = p,
            a: np.ndarray = outputs,
            m: Sequence[int] = m,
            counts: Sequence[int] = counts,
            results: Sequence[int] = results,
        ) -> np.ndarray:
            found = np.einsum("ep,ncpti->nctei", a, wide(p))
            whole = np.zeros((2, 2, *(c * n for c, n in zip(counts, m, strict=True)), 4))
            for number, at in enumerate(np.ndindex(*counts)):
                place = tuple(slice(k * n, k * n + n) for k, n in zip(at, m, strict=True))
                whole[(..., *place, slice(None))] = found[:, :, number].reshape(2, 2, *m, 4)
            return whole[(..., *(slice(d) for d in results), slice(None))]

        u = normal((len(inputs), 8, 12), seed=2)
        attrs = {"m": m, "taps": taps, "space": tuple(results), "pads_begin": pads}
        yield sample("winograd_output", [p, x, u], joined, loose=20, **attrs)


def _matrices(which: str, m: Sequence[int], taps: Sequence[int]) -> np.ndarray:
    """The transform of a whole tile: the Kronecker product of those along the axes."""
    whole = np.ones((1, 1))
    for one, other in zip(m, taps, strict=True):
        whole = np.kron(whole, np.array(getattr(interpolation(one, other), which), float))
    return whole


def overlaps() -> Iterator[Sample]:
    for dtype in FLOATS:
        blocks = normal((2, 3, 2, 5, 4, 3), dtype)
        places = {"strides": (1, 2), "pads_begin": (2, 0), "sizes": (4, 7)}
        yield sample("overlapped", [blocks], lambda x=blocks: _overlapped(x), loose=4, **places)


def _overlapped(x: np.ndarray) -> np.ndarray:
    """Blocks of 4x3, a line and two columns apart, from line 2 on."""
    y = np.zeros((2, 5, 7, 7))
    for line, column in np.ndindex(3, 2):
        y[:, :, line : line + 4, 2 * column : 2 * column + 3] += wide(x[:, line, column])
    return y[:, :, 2:6]
