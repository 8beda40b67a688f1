"""Bounds against known values, and against many repetitions."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.quantization.decision.bounds import (
    beta_cdf,
    bootstrap_interval,
    clopper_pearson,
    clopper_pearson_lower,
    items_needed,
    mean_bound,
    t_quantile,
)
from tilewright.quantization.decision.choose import Alternative, grow, order, steps
from tilewright.quantization.decision.criteria import ScoresCriterion, density, exact_bound
from tilewright.quantization.decision.timing import Comparison, UnitTimes, gains


def test_known_values() -> None:
    assert clopper_pearson(0, 100, 0.95) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert clopper_pearson(3, 30, 0.95) == pytest.approx(0.23859, abs=1e-5)
    assert clopper_pearson_lower(30, 30, 0.95) == pytest.approx(0.05 ** (1 / 30))
    assert t_quantile(0.95, 9) == pytest.approx(1.83311, abs=1e-5)
    assert t_quantile(0.975, 29) == pytest.approx(2.04523, abs=1e-5)
    assert beta_cdf(0.5, 2, 2) == pytest.approx(0.5)
    assert items_needed(0.005, 0.95) == 598


def test_means_are_covered_as_often_as_said() -> None:
    rng = np.random.default_rng(0)
    held = [mean_bound(rng.standard_normal(20), 0.9) >= 0 for _ in range(1000)]
    assert 0.87 < np.mean(held) < 0.93
    low, high = bootstrap_interval(rng.standard_normal(400), 0.95)
    assert low < 0.1 and high > -0.1 and 0.15 < high - low < 0.25


def test_losses_and_gains_are_both_counted() -> None:
    upper, (low, high) = exact_bound(np.array([1.0] * 5 + [-1.0] * 5 + [0.0] * 990), 0.95)
    assert 0 < upper < 0.012 and low < 0 < high


def test_margins_bound_what_counting_cannot() -> None:
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((100, 10)) * 5
    noise = 0.01
    criterion = ScoresCriterion("top 1", [[scores]], lambda outputs: outputs[0][:, None, :])
    criterion.add(0, [scores + noise * rng.standard_normal(scores.shape)])
    found = criterion.finding(0.005, 0.95)
    assert found.drop <= found.upper < 0.03  # Clopper and Pearson's is 0.03 with no change at all
    more = rng.standard_normal((200_000, 10)) * 5
    changed = (more.argmax(1) != (more + noise * rng.standard_normal(more.shape)).argmax(1)).mean()
    assert changed <= found.upper


def test_the_density_near_zero_is_covered_as_often_as_said() -> None:
    """Margins that are as dense at 0 as they ever are below their 20 % quantile: the hardest that is assumed."""
    rng = np.random.default_rng(3)
    held = [density(rng.uniform(0, 2, 40), 40, 0.9) >= 0.5 for _ in range(1000)]
    assert 0.88 < np.mean(held) < 0.92
    several = [density(np.repeat(rng.uniform(0, 2, 40), 5), 40, 0.9) >= 0.5 for _ in range(300)]
    assert np.mean(several) > 0.86  # positions that are as dependent as can be count as one


def test_units_that_save_most_for_their_noise_come_first() -> None:
    found, excessive = order(
        [
            Alternative("a", "int8", 1.0, 1e-6),
            Alternative("b", "int8", 10.0, 1e-6),
            Alternative("c", "int8", 10.0, 1.0),
            Alternative("d", "w8", 0.0, 0.0),
        ],
        0.01,
    )
    assert [c.unit for c in found] == ["b", "a"] and [c.unit for c in excessive] == ["c"]
    passed = grow(steps(found, 0.002), lambda choice: len(choice) < 2, lambda done, total: None)
    assert [list(choice) for choice in passed] == [["b"]]


def test_what_caution_excludes_is_tried_where_nothing_else_is_faster() -> None:
    """Of few items the prediction is twice what is expected. An order that has something to lose stays as it is."""
    units = [
        Alternative("a", "int8", 10.0, 4e-4, caution=2.0),
        Alternative("b", "int8", 0.1, 1e-6, caution=2.0),
        Alternative("c", "int8", 10.0, 1.0, caution=2.0),
    ]
    assert [[c.unit for c in found] for found in order(units, 0.011, 0.2)] == [["b", "a"], ["c"]]
    assert [[c.unit for c in found] for found in order(units, 0.011, 0.05)] == [["b"], ["a", "c"]]


def test_choices_that_are_judged_are_few_far_from_the_budget() -> None:
    """One after the other near the budget, by factors of the energy before; a unit's better kind takes its place."""
    ordered = [Alternative(f"u{i}", "int8", 1.0, 1e-8) for i in range(64)]
    assert [len(choice) for choice in steps(ordered, 1.0)] == [4, 20, 64]
    near = [len(choice) for choice in steps(ordered, 1e-4)]
    assert near[:9] == [*range(1, 10)] and near[-1] == 64 and 20 < len(near) < 30
    better = [Alternative("a", "w8", 1.0, 1e-6), Alternative("a", "int8", 2.0, 1e-5), Alternative("a", "w4", 1.5, 1e-4)]
    assert [choice["a"].kind for choice in steps(better, 1e-3)] == ["w8", "int8"]


def test_models_are_faster_where_chance_does_not_explain_it() -> None:
    assert Comparison(1.0, 0.9, 8 / 9).is_faster and not Comparison(1.0, 0.9, 7 / 9).is_faster
    assert Comparison(1.0, 0.9, 24 / 36, 36).is_faster and not Comparison(1.0, 0.995, 1.0).is_faster


def test_gains_are_of_times_that_nothing_disturbed() -> None:
    """A unit that is as fast in both forms gains nothing from rounds in which float32 was disturbed."""
    rng = np.random.default_rng(4)
    noise = rng.uniform(0, 1, (7, 2)) * 1e-3
    base = [UnitTimes({"same": 1e-3 + n, "less": 1e-3 + n}, 1e-4) for n in noise[:, 0]]
    other = [UnitTimes({"same": 1e-3 + n / 8, "less": 5e-4 + n / 8}, 1.1e-4) for n in noise[:, 1]]
    base[3] = UnitTimes({"same": 1e-3, "less": 1e-3}, 1e-4)
    found = gains(base, other)
    assert found["same"] == (0.0, 1e-3) and found["less"][0] == pytest.approx(5e-4, rel=0.2)
