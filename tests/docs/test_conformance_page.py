"""The page of conformance is that of its results, and these are those of the cases that the onnx package has."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import onnx
import pytest

from docs import conformance as docs
from tests.conformance import KINDS, Case, cases, compare, outcome, whole_models

SAMPLE = 40
"""Cases that are run anew in every run of the tests."""

needs_that_onnx = pytest.mark.skipif(
    onnx.__version__ != docs.load().version, reason="the results are of another version of the onnx package"
)


def test_the_page_is_that_of_the_results() -> None:
    results = docs.load()
    assert docs.as_json(results) == docs.RESULTS.read_text()
    assert docs.page(results) == docs.PAGE.read_text(), "run `make docs`"


def test_nothing_fails_and_each_difference_is_explained() -> None:
    for name, other in docs.load().others.items():
        assert other.status in ("refused", "differs"), name
        assert other.reason if other.status == "refused" else other.operator in docs.DIFFERENCES, name


@pytest.fixture(scope="module")
def all_cases() -> list[Case]:
    return [*(c for kind in KINDS for c in cases(kind)), *whole_models()]


@needs_that_onnx
def test_the_cases_are_those_of_the_package(all_cases: list[Case]) -> None:
    assert Counter(c.operator for c in all_cases) == Counter(docs.load().counts)


@needs_that_onnx
@pytest.mark.fresh_seeds(1)
def test_cases_drawn_afresh_give_what_the_page_says(all_cases: list[Case], fresh_seed: int) -> None:
    others = docs.load().others
    for case in random.Random(fresh_seed).sample(all_cases[: -len(list(whole_models()))], SAMPLE):
        expected = others.get(case.name)
        if expected is None or expected.status == "refused":
            assert outcome(case) == expected, case.name


@pytest.mark.parametrize(
    ("ours", "theirs"), [([1.0], [2.0]), ([1.0], [[1.0]]), (None, [1.0]), ([b"a"], ["b"])]
)
def test_what_differs_is_seen(ours: object, theirs: object) -> None:
    compare(np.array(theirs), np.array(theirs), 0, 0)
    with pytest.raises(AssertionError):
        compare(np.array(ours), np.array(theirs), 1e-3, 0)
