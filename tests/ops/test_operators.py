"""Every operator against an independent reference, over dtypes and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.ops.samples import FAMILIES
from tests.ops.sampling import EPSILON, Sample
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.interp import evaluate


def check(found: np.ndarray, expected: np.ndarray, sample: Sample, looser: float = 1.0) -> None:
    assert found.shape == np.shape(expected), sample
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected, err_msg=str(sample))
        return
    wide, expected = found.astype(np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(wide[~finite], expected[~finite], err_msg=str(sample))
    size = np.maximum(np.abs(expected[finite]), 0.1 * np.max(np.abs(expected[finite]), initial=0))
    error = np.abs(wide[finite] - expected[finite])
    allowed = looser * EPSILON[found.dtype] * sample.loose * size + 1e-30
    assert np.all(error <= allowed), f"{sample}: error {np.max(error / allowed)} times what is allowed"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_operator_gives_what_the_reference_gives(family: Callable[[], Iterator[Sample]]) -> None:
    with np.errstate(all="ignore"):
        for sample in family():
            found = evaluate(OPERATORS[sample.op], *sample.inputs, **sample.attrs)
            expected = sample.expected()
            if isinstance(expected, tuple):
                for one, other in zip(found, expected, strict=True):
                    check(one, other, sample)
            else:
                check(found, expected, sample)


def test_every_operator_has_a_sample() -> None:
    ours = {name for name, operator in OPERATORS.items() if operator.fn.__module__.startswith("tilewright.")}
    sampled = {sample.op for family in FAMILIES for sample in family()}
    assert sorted(ours - sampled) == [], "give them samples in a family of tests/ops/samples.py"
