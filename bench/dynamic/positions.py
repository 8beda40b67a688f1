"""Results whose size depends on data, and sizes that are inputs."""

from __future__ import annotations

import numpy as np

from bench.dynamic.model import Dynamic, dynamic, normal


@dynamic
def detector_boxes(rng: np.random.Generator) -> Dynamic:
    """Boxes of a detector without those that overlap better ones: 8400 of 80 classes."""
    graph = """boxes (float[1, 8400, 4] boxes, float[1, 80, 8400] scores) => (float[k, 4] kept, int64[k, 3] chosen) {
      chosen = NonMaxSuppression (boxes, scores, most, overlap, threshold)
      last = Gather <axis = 1> (chosen, column)
      rows = Squeeze (boxes, first)
      kept = Gather (rows, last)
    }"""
    centres = rng.uniform(0, 640, (400, 2))[rng.integers(0, 400, 8400)] + rng.normal(0, 6, (8400, 2))
    sizes = rng.uniform(20, 80, (8400, 2))
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1).astype(np.float32)
    scores = (rng.uniform(0, 1, (80, 8400)) ** 40).astype(np.float32)
    weights = {
        "most": np.array([100]),
        "overlap": np.array([0.5], np.float32),
        "threshold": np.array([0.25], np.float32),
        "column": np.array(2),
        "first": np.array([0]),
    }
    return Dynamic(graph, {"boxes": boxes[None], "scores": scores[None]}, weights)


@dynamic
def nonzero_gather(rng: np.random.Generator) -> Dynamic:
    """The elements of a million that are above a bound."""
    graph = """above (float[h, w] x) => (float[k] y, int64[2, k] at) {
      above = Greater (x, bound)
      at = NonZero (above)
      places = Transpose <perm = [1, 0]> (at)
      y = GatherND (x, places)
    }"""
    return Dynamic(graph, {"x": normal(rng, 1000, 1000)}, {"bound": np.array(1.0, np.float32)})


@dynamic
def unique_million(rng: np.random.Generator) -> Dynamic:
    """The different ones of a million integers."""
    graph = """kinds (int64[n] x) => (int64[k] y, int64[k] first, int64[n] which, int64[k] often) {
      y, first, which, often = Unique (x)
    }"""
    return Dynamic(graph, {"x": rng.integers(0, 5000, 1_000_000)}, {})


@dynamic
def topk_computed(rng: np.random.Generator) -> Dynamic:
    """The largest elements of rows, as many as an input says."""
    graph = """largest (float[n, 1000] x, int64[1] k) => (float[n, m] y, int64[n, m] at) {
      y, at = TopK (x, k)
    }"""
    return Dynamic(graph, {"x": normal(rng, 1000, 1000), "k": np.array([50])}, {})


@dynamic
def resize_computed(rng: np.random.Generator) -> Dynamic:
    """An image in a size that an input says."""
    graph = """resize (float[1, 3, h, w] x, int64[4] sizes) => (float[1, 3, h2, w2] y) {
      y = Resize <mode = "linear"> (x, , , sizes)
    }"""
    return Dynamic(graph, {"x": normal(rng, 1, 3, 480, 640), "sizes": np.array([1, 3, 360, 500])}, {})


@dynamic
def compress_rows(rng: np.random.Generator) -> Dynamic:
    """Rows that a computed condition chooses, and a product of them."""
    graph = """rows (float[n, 256] x) => (float[k, 256] y) {
      mean = ReduceMean <axes = [1], keepdims = 0> (x)
      zero = Constant <value_float = 0.0> ()
      above = Greater (mean, zero)
      some = Compress <axis = 0> (x, above)
      y = MatMul (some, w)
    }"""
    return Dynamic(graph, {"x": normal(rng, 512, 256)}, {"w": normal(rng, 256, 256, scale=1 / 16)})
