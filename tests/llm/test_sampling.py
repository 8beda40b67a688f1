"""Sampling: every setting against its plain definition in float64, draws against their distribution."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tilewright.llm.sampling.partial import heaviest, largest
from tilewright.llm.sampling.sampler import Sampler, drawn_place, filtered, log_sum_exp
from tilewright.llm.sampling.settings import Sampling
from tilewright.llm.sampling.stops import StopStrings
from tilewright.runtime.errors import ExecutionError, InputError, OptionError


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max())
    return powers / powers.sum()


def by_definition(logits: np.ndarray, settings: Sampling) -> np.ndarray:
    """Probabilities f64[n] after all filters, one after the other, each with a complete order."""
    p = softmax(logits.astype(np.float64) / settings.temperature)
    kept = np.ones(p.size, bool)

    def only(order: np.ndarray, mass: float) -> None:
        now = np.where(kept, p, 0) / p[kept].sum()
        order = order[kept[order]]
        enough = int(np.searchsorted(np.cumsum(now[order]), mass - 1e-9)) + 1
        kept[:] = False
        kept[order[:enough]] = True

    if settings.top_k:
        kept[np.argsort(-p, kind="stable")[settings.top_k :]] = False
    if settings.top_p < 1:
        only(np.argsort(-p, kind="stable"), settings.top_p)
    if settings.min_p:
        kept &= p >= settings.min_p * p.max() * (1 - 1e-7)
    if settings.typical_p < 1:
        now = np.where(kept, p, 0) / p[kept].sum()
        information = -np.log(np.maximum(now, 1e-300))
        expected = float((now * information).sum())
        only(np.argsort(np.abs(information - expected), kind="stable"), settings.typical_p)
    return np.where(kept, p, 0) / p[kept].sum()


def after(logits: np.ndarray, settings: Sampling) -> np.ndarray:
    """The same by the filters as they are."""
    places, weights = filtered(logits.copy(), float(logits.max()), settings)
    found = np.zeros(logits.size)
    found[slice(None) if places is None else places] = weights.astype(np.float64)
    return found / found.sum()


SETTINGS: list[dict[str, Any]] = [
    {},
    {"top_k": 5},
    {"top_k": 1000},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"top_p": 1e-6},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"typical_p": 0.8},
    {"typical_p": 0.2},
    {"top_k": 50, "top_p": 0.95, "min_p": 0.02},
    {"top_k": 200, "top_p": 0.95, "min_p": 0.001, "typical_p": 0.9},
]


@pytest.mark.parametrize("given", SETTINGS)
@pytest.mark.parametrize("size", [1, 7, 3000, 40000])
@pytest.mark.parametrize("scale", [0.3, 4.0])
def test_filters_are_their_definitions(given: dict[str, Any], size: int, scale: float) -> None:
    rng = np.random.default_rng(size)
    logits = (rng.standard_normal(size) * scale).astype(np.float32)
    settings = Sampling(temperature=0.7, **given)
    expected, found = by_definition(logits, settings), after(logits, settings)
    # tokens at an edge, whose sums are rounded differently, may be in or out
    assert np.abs(found - expected).max() <= 2e-6 + 1.1 * _at_the_edge(expected, found)
    assert np.count_nonzero((found > 0) != (expected > 0)) <= 2


def _at_the_edge(expected: np.ndarray, found: np.ndarray) -> float:
    differs = (found > 0) != (expected > 0)
    return float(np.maximum(found, expected)[differs].max(initial=0.0))


@pytest.mark.parametrize("size", [1, 63, 5000, 262144])
def test_the_greatest_are_those_of_a_complete_order(size: int) -> None:
    rng = np.random.default_rng(size)
    for values in (rng.standard_normal(size), rng.integers(0, 5, size), np.zeros(size), -np.arange(size)):
        values = values.astype(np.float32)
        order = np.argsort(-values, kind="stable")
        for count in (1, 2, 40, size // 2, size, size + 1):
            assert np.array_equal(largest(values, count), order[:count])


def test_nothing_is_ordered_where_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log probabilities of the drawn tokens alone took milliseconds."""
    monkeypatch.setattr(np, "argsort", None)
    assert largest(np.zeros(5000, np.float32), 0).tolist() == []


def test_minus_infinity_is_never_among_the_heaviest_while_others_are_there() -> None:
    values = np.full(10000, -np.inf, np.float32)
    values[[3, 77]] = [1.0, 2.0]
    assert heaviest(values, np.exp(values), 1e9).tolist()[:2] == [77, 3]
    assert heaviest(values, np.exp(values), float(np.exp(values[77]))).tolist() == [77]


@pytest.mark.parametrize("size", [3, 700, 5000])
def test_draws_have_the_distribution_that_they_should(size: int) -> None:
    """Pearson's statistic over the tokens that are expected ten times or more, within six deviations."""
    rng = np.random.default_rng(11)
    logits = (rng.standard_normal(size) * 2).astype(np.float32)
    sampler = Sampler(Sampling(temperature=1.3, seed=5), size)
    count = 20000
    drawn = np.bincount([sampler.draw(logits.copy()).token for _ in range(count)], minlength=size)
    expected = softmax(logits / 1.3) * count
    often = expected >= 10
    statistic = float((((drawn - expected) ** 2) / expected)[often].sum())
    degrees = int(often.sum())
    assert abs(statistic - degrees) < 6 * math.sqrt(2 * degrees)
    assert drawn[~often].sum() == pytest.approx(
        expected[~often].sum(), abs=6 * math.sqrt(expected[~often].sum() + 1)
    )


@pytest.mark.parametrize("size", [1, 5, 511, 512, 513, 1024, 5000])
def test_draws_are_the_inverse_of_the_sum_of_weights(size: int) -> None:
    rng = np.random.default_rng(size)
    weights = rng.integers(0, 4, size).astype(np.float32)  # sums are exact
    weights[rng.integers(size)] = 1
    sums = np.cumsum(weights, dtype=np.float64)
    for number in (0.0, 0.5, 1 - 2**-53, *rng.random(50)):
        expected = min(
            int(np.searchsorted(sums, number * sums[-1], side="right")), int(np.flatnonzero(weights)[-1])
        )
        assert drawn_place(weights, number) == expected


def test_what_has_no_weight_is_never_drawn() -> None:
    for size in (600, 1100):
        for weight in (1e-38, 1e30, 0.1):
            weights = np.zeros(size, np.float32)
            weights[[5, size - 80]] = weight
            for number in np.linspace(0, 1 - 2**-53, 301):
                assert drawn_place(weights, float(number)) in (5, size - 80)


def test_the_same_seed_draws_the_same_and_another_one_does_not() -> None:
    logits = np.zeros(1000, np.float32)

    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), 1000)
        return [sampler.draw(logits.copy()).token for _ in range(20)]

    assert tokens(3) == tokens(3) != tokens(4)
    assert tokens(None) != tokens(None)
    fresh = Sampler(Sampling(temperature=1.0), 1000)
    again = Sampler(Sampling(temperature=1.0, seed=fresh.seed), 1000)
    assert [fresh.draw(logits.copy()).token for _ in range(9)] == [
        again.draw(logits.copy()).token for _ in range(9)
    ]


def test_no_temperature_takes_the_greatest_and_the_first_of_equal_ones() -> None:
    logits = np.array([1, 3, 2, 3], np.float32)
    assert Sampler(Sampling(), 4).draw(logits.copy()).token == 1
    assert Sampler(Sampling(temperature=5.0, top_k=1), 4).draw(logits.copy()).token == 1
    cold = Sampler(Sampling(temperature=1e-30, seed=0), 4)
    assert {cold.draw(logits.copy()).token for _ in range(40)} == {1, 3}
    hot = Sampler(Sampling(temperature=1e30, seed=0), 4)
    assert {hot.draw(logits.copy()).token for _ in range(200)} == {0, 1, 2, 3}


def test_penalties_and_bias_are_their_definitions() -> None:
    logits = np.array([2.0, -1.0, 0.5, 1.0, 1.75], np.float32)
    # of the prompt: 0, 1; divided where positive, multiplied where negative
    sampler = Sampler(Sampling(repetition_penalty=2.0), 5, prompt=[0, 1, 1])
    changed = logits.copy()
    assert sampler.draw(changed).token == 4
    assert changed.tolist() == [1.0, -2.0, 0.5, 1.0, 1.75]
    changed = logits.copy()
    assert sampler.draw(changed).token == 0  # 4 counts now, too: 0.875; the first of two with 1.0
    assert changed.tolist() == [1.0, -2.0, 0.5, 1.0, 0.875]

    sampler = Sampler(Sampling(presence_penalty=0.5, frequency_penalty=0.25), 5, prompt=[0])
    assert [sampler.draw(logits.copy()).token for _ in range(4)] == [0, 4, 0, 0]
    changed = logits.copy()
    sampler.draw(changed)
    assert changed.tolist() == [0.75, -1.0, 0.5, 1.0, 1.0]

    biased = Sampler(Sampling(logit_bias={1: 10.0, 0: -math.inf}), 5)
    assert biased.draw(logits.copy()).token == 1


def test_log_probabilities_are_those_of_the_model() -> None:
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal(5000) * 3).astype(np.float32)
    expected = np.log(softmax(logits))
    drawn = Sampler(Sampling(logit_bias={7: 100.0}), 5000).draw(logits.copy(), top=3)
    assert drawn.token == 7 and drawn.log_probability == pytest.approx(expected[7], abs=1e-5)
    best = np.argsort(-expected)[:3]
    assert [token for token, _ in drawn.top] == best.tolist()
    assert [p for _, p in drawn.top] == pytest.approx(expected[best].tolist(), abs=1e-5)
    assert Sampler(Sampling(), 5000).draw(logits.copy(), top=0).top == ()
    assert Sampler(Sampling(), 5000).draw(logits.copy()).log_probability is None
    assert log_sum_exp(np.full(1000, 80, np.float32)) == pytest.approx(80 + math.log(1000))


def test_rows_that_are_no_tokens_and_tokens_that_are_not_allowed_do_not_come() -> None:
    logits = np.array([0, 1, 2, 9], np.float32)
    assert Sampler(Sampling(), 3).draw(logits.copy()).token == 2
    allowed = np.array([True, True, False, False])
    assert Sampler(Sampling(), 4).draw(logits.copy(), allowed=allowed).token == 1
    assert Sampler(Sampling(temperature=9.0, seed=1), 4).draw(logits.copy(), allowed=allowed).token in (0, 1)
    with pytest.raises(InputError, match="no token may come next"):
        Sampler(Sampling(), 4).draw(logits.copy(), allowed=np.zeros(4, bool))
    with pytest.raises(InputError, match="no token may come next"):
        Sampler(Sampling(logit_bias={0: -math.inf, 1: -math.inf}), 2).draw(np.zeros(2, np.float32))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_told(wrong: float) -> None:
    logits = np.array([wrong if wrong < 0 else 0, wrong, wrong if wrong < 0 else 1], np.float32)
    with pytest.raises(ExecutionError, match="logits are not finite"):
        Sampler(Sampling(), 3).draw(logits)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0 is not allowed: it is a finite number of at least 0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"temperature": "1"}, "temperature='1'"),
        ({"top_k": -1}, "top_k=-1 is not allowed: it is an integer of at least 0"),
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"top_p": 0.0}, "top_p=0.0 is not allowed: it is a finite number above 0 and of at most 1"),
        ({"top_p": 1.1}, "top_p=1.1"),
        ({"min_p": 2}, "min_p=2"),
        ({"typical_p": 0}, "typical_p=0"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"presence_penalty": math.inf}, "presence_penalty=inf is not allowed: it is a finite number"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616 is not allowed: it is an integer of at least 0 and below 2^64"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias="),
        ({"logit_bias": [1]}, "logit_bias="),
    ],
)
def test_settings_out_of_range_are_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as told:
        Sampling(**given)
    assert str(told.value).startswith(message)


def test_settings_by_name_replace_those_of_a_record() -> None:
    assert Sampling.of(Sampling(top_k=3), temperature=0.5, seed=None) == Sampling(top_k=3, temperature=0.5)
    with pytest.raises(OptionError, match="temperatur= is no setting of sampling"):
        Sampling.of(None, temperatur=1)
    with pytest.raises(OptionError, match="give a Sampling"):
        Sampling.of({"top_k": 3})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="logit_bias names the token 9, but the vocabulary has 4"):
        Sampler(Sampling(logit_bias={9: 1.0}), 4)


@pytest.mark.parametrize("stops", ["stop", ["stop"], ["xx", "stop", "top it"]])
@pytest.mark.parametrize("length", [1, 2, 3, 100])
def test_a_text_ends_before_the_first_stop_string_however_it_comes(stops: Any, length: int) -> None:
    text = "it st sto stp stops here, and stop it"
    watched = StopStrings(stops)
    parts = [watched.push(text[n : n + length]) for n in range(0, len(text), length)]
    assert "".join(parts) + watched.end() == "it st sto stp "
    assert watched.found == "stop" and watched.push("more") == ""


def test_what_may_be_a_stop_string_is_held_back_and_given_at_the_end() -> None:
    watched = StopStrings(["abac"])
    assert [watched.push(part) for part in ("a", "b", "a", "b", "a", "x")] == ["", "", "", "ab", "", "abax"]
    assert watched.push("ab") == "" and watched.end() == "ab" and watched.found is None
    assert StopStrings(None).push("text") == "text"
    for wrong in ("", ["a", ""], [1], 5, b"a", {"a": 1}):
        with pytest.raises(OptionError, match="none of them empty"):
            StopStrings(wrong)  # type: ignore[arg-type]


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e30, "logit_bias": {2: -math.inf}},
    {"temperature": 1e-30, "logit_bias": {2: 1e30}},
    {"temperature": 1.0, "logit_bias": {2: 1e30}, "top_p": 0.5},
    {"repetition_penalty": 1e30},
    {"repetition_penalty": 1e-30},
    {"presence_penalty": 1e30, "frequency_penalty": -1e30},
    {"temperature": 1.0, "logit_bias": {2: 1e30}, "repetition_penalty": 1e-30},
    {"temperature": 1.0, "logit_bias": {2: -1e30}, "repetition_penalty": 1e30},
]


@pytest.mark.parametrize("given", EXTREMES)
@pytest.mark.filterwarnings("error")
def test_extreme_settings_draw_tokens(given: dict[str, Any]) -> None:
    sampler = Sampler(Sampling(**given, seed=3), 5, (0, 1, 2))
    for _ in range(4):
        assert 0 <= sampler.draw(np.array([3.0, 0.0, -2.0, 1.0, -np.inf], np.float32)).token < 4


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_settings_whose_products_would_not_be_finite_are_told(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}=1e\\+300 is not allowed: .* of at most 1e\\+30"):
        Sampling(**{name: 1e300})
    for bias in (math.inf, 1e300, -1e300):
        with pytest.raises(OptionError, match="-inf forbids a token"):
            Sampling(logit_bias={1: bias})


def test_a_bias_of_a_token_beyond_all_numbers_is_told() -> None:
    with pytest.raises(InputError, match=f"logit_bias names the token {2**70}, but the vocabulary has 5"):
        Sampler(Sampling(logit_bias={2**70: 1.0}), 5)


def test_texts_of_the_most_likely_tokens_load_no_random_numbers() -> None:
    """numpy.random takes 3 MB and more."""
    program = (
        "import sys, numpy as np; from tilewright.llm.sampling.sampler import Sampler, Sampling;"
        "taken = Sampler(Sampling(), 3).draw(np.array([1, 3, 2], np.float32)).token;"
        "assert taken == 1 and 'numpy.random' not in sys.modules;"
        "Sampler(Sampling(temperature=1), 3).draw(np.ones(3, np.float32));"
        "assert 'numpy.random' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
