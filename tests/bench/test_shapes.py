"""Models of random shapes: the same for the same seed, of all sizes that are promised, and right."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from bench.cases import read_arrays, relative_error
from bench.shapes import families
from bench.shapes.families import FAMILIES
from bench.shapes.sample import describe, draw, make_case
from bench.shapes.sketch import Limits, Sketch, TooLarge

onnxruntime = pytest.importorskip("onnxruntime")
SMALL = Limits(flops=1e9, elements=1 << 23)


def sizes(seed: int, number: int) -> str:
    _, net, outputs = draw(seed, number, SMALL)
    return describe(net, outputs)


def test_a_model_depends_on_seed_and_number_alone() -> None:
    assert sizes(1, 3) == sizes(1, 3)
    assert len({sizes(seed, 6) for seed in range(5)}) == 5
    _, first, _ = draw(2, 14, SMALL)
    draw(2, 15, SMALL)
    _, again, _ = draw(2, 14, SMALL)
    assert all(np.array_equal(a.value, b.value) for a, b in zip(first.inputs, again.inputs, strict=True))


@pytest.mark.parametrize("number", range(len(FAMILIES)), ids=list(FAMILIES))
def test_references_are_what_others_compute(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.shapes.sample.Limits", lambda: SMALL)
    monkeypatch.setattr(families, "image", lambda rng, channels=3: (2, channels, 44, 36))
    monkeypatch.setattr(families, "batch", lambda rng: 3)
    monkeypatch.setattr(families, "length", lambda rng: 21)
    case = make_case(5, number, tmp_path)
    inputs, references = read_arrays(case.arrays)
    session = onnxruntime.InferenceSession(str(case.model), providers=["CPUExecutionProvider"])
    results = session.run(None, inputs)
    assert relative_error(results, references) < 2e-5


def test_limits_are_kept() -> None:
    _, net, _ = draw(1, 2, SMALL)
    assert net.flops <= SMALL.flops and net.elements <= SMALL.elements
    with pytest.raises(TooLarge):
        Sketch(np.random.default_rng(0), Limits(elements=100)).input(3, 50)
    with pytest.raises(ValueError, match="no stem of seed 1"):
        draw(1, 0, Limits(elements=10))


def test_sizes_are_those_that_are_promised() -> None:
    rng = random.Random(0)
    widths = [families.width(rng, 16, 640) for _ in range(400)]
    odd = sum(w % 8 != 0 for w in widths) / len(widths)
    assert 0.9 < odd < 1.0 and min(widths) < 24 and max(widths) > 500
    batches = {families.batch(rng) for _ in range(400)}
    assert min(batches) == 1 and max(batches) == 32
    lengths = [families.length(rng) for _ in range(1000)]
    assert min(lengths) == 1 and 450 < max(lengths) <= 512
    images = [families.image(rng) for _ in range(400)]
    edges = [edge for shape in images for edge in shape[2:]]
    assert 160 <= min(edges) < 170 and 630 < max(edges) <= 640
