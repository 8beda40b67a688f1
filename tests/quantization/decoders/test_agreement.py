"""How often two models expect the same token, and how far apart what they expect is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tilewright.quantization.decoders.agreement import Agreement, ComparedLogits, KnownLogits, compared
from tilewright.runtime.errors import OptionError


@pytest.mark.fresh_seeds(2)
def test_it_is_what_its_formulas_say(fresh_seed: int) -> None:
    rng = np.random.default_rng(fresh_seed)
    reference = rng.standard_normal((37, 50)) * 4
    logits = (reference + rng.standard_normal((37, 50))).astype(np.float32)
    p, q = (np.exp(x - x.max(1, keepdims=True)) for x in (reference, logits.astype(np.float64)))
    p, q = (x / x.sum(1, keepdims=True) for x in (p, q))
    found = compared(reference, logits)
    np.testing.assert_array_equal(found.same, reference.argmax(1) == logits.argmax(1))
    np.testing.assert_allclose(found.divergences, (p * np.log(p / q)).sum(1), rtol=1e-9)
    agreement = found.agreement(0.95)
    assert agreement.tokens == 37 and agreement.agreed == found.same.sum()
    assert agreement.drop < agreement.bound <= 1 and agreement.divergence < agreement.divergence_bound
    record = json.loads(json.dumps(agreement.record()))
    assert record.pop("share") == agreement.share and Agreement(**record) == agreement


def test_special_values() -> None:
    reference = np.array([[0.0, 1.0, -np.inf], [5.0, 0.0, -np.inf], [1.0, 2.0, 3.0], [1e4, -1e4, 0.0]])
    logits = np.array([[0.0, 1.0, -np.inf], [5.0, np.nan, 0.0], [3.0, 2.0, -np.inf], [1e4, -1e4, 0.0]])
    found = compared(reference, logits)
    assert found.same.tolist() == [True, False, False, True]
    assert found.divergences[0] == 0 and found.divergences[3] == 0
    assert np.isinf(found.divergences[1]) and np.isinf(found.divergences[2])


@pytest.mark.fresh_seeds(2)
def test_what_is_known_of_a_reference_changes_nothing(fresh_seed: int) -> None:
    rng = np.random.default_rng(fresh_seed)
    reference, logits = (rng.standard_normal((19, 300)).astype(np.float32) * 5 for _ in range(2))
    reference[3, 7], logits[5, 2], reference[6], logits[8, 4] = np.nan, np.nan, -np.inf, -np.inf
    known, plain = compared(KnownLogits.of(reference), logits), compared(reference, logits)
    np.testing.assert_array_equal(known.same, plain.same)
    np.testing.assert_array_equal(known.divergences, plain.divergences)
    assert known.divergences[8] == np.inf and known.divergences[3] == known.divergences[5] == np.inf
    wide = compared(reference.astype(np.float64), logits.astype(np.float64))
    np.testing.assert_array_equal(wide.divergences, plain.divergences)


def test_a_reference_that_is_no_number_agrees_with_nothing() -> None:
    numbers, none = np.array([[3.0, 1.0]]), np.array([[np.nan, 1.0]])
    for found in (compared(none, numbers), compared(numbers, none), compared(none, none)):
        assert not found.same.any() and np.isinf(found.divergences).all()


@pytest.mark.parametrize("confidence", [2.0, 1, 0.4, float("nan"), "95%", True])
def test_a_confidence_is_a_share(confidence: Any) -> None:
    with pytest.raises(OptionError, match=r"confidence=.* is not allowed: give a number from 0.5 on"):
        ComparedLogits(np.ones(3, bool), np.zeros(3)).agreement(confidence)


def test_texts_say_what_is_bounded() -> None:
    same = ComparedLogits(np.ones(300, bool), np.zeros(300))
    assert "100.00 % of 300 tokens agree (at least 99.01 % with a confidence of 95%)" in str(same.agreement(0.95))
    both = ComparedLogits.joined([same, ComparedLogits(np.zeros(1, bool), np.ones(1))]).agreement(0.95)
    assert (both.tokens, both.agreed) == (301, 300)
