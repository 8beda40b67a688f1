"""Several sequences in a call: each computes what it computes alone, in any architecture."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontends.decoders.checkpoints import IDS, cases, write_folder
from tests.frontends.decoders.test_architectures import check
from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.decoders.load import load_decoder
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.ir.core import Module
from tilewright.ops.define.interp import evaluate_func
from tilewright.runtime.errors import InputError, OptionError

CASES = cases()
STEPS = ((4, 0, 2), (1, 11, 0), (1, 0, 3), (0, 0, 1), (5, 0, 5))
"""Tokens of each sequence in each call: all of the text for each in the end."""


def rows_of(calls: Any, lanes: int) -> list[np.ndarray]:
    """The logits [positions, vocabulary] of each sequence, of calls that take ids for each and give all rows."""
    found: list[list[np.ndarray]] = [[] for _ in range(lanes)]
    places = [0] * lanes
    for steps in STEPS:
        ids = [np.array([IDS[at : at + n]], np.int64).reshape(1, n) for at, n in zip(places, steps, strict=True)]
        rows = calls(ids)
        ends = np.cumsum(steps)
        for k, n in enumerate(steps):
            found[k].append(rows[0, ends[k] - n : ends[k]])
            places[k] += n
    assert places == [len(IDS)] * lanes
    return [np.concatenate(rows) for rows in found]


def interpreted(module: Module, lanes: int) -> Any:
    main = module.main
    kept = [np.zeros([d.value for d in arg.tensor.shape], arg.tensor.dtype.storage) for arg in main.args[lanes:]]

    def call(ids: list[np.ndarray]) -> np.ndarray:
        logits, *kept[:] = evaluate_func(main, module, [*ids, *kept])
        return np.asarray(logits)

    return call


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", CASES)
def test_each_sequence_computes_what_transformers_computes(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    write_folder(tmp_path, case["config"], case["tensors"])
    module = load_decoder(DecoderSource(tmp_path, logits="all", capacity=16, sequences=3))
    for rows in rows_of(interpreted(module, 3), 3):
        check(rows, case)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.sweep(1)) for name in CASES])
def test_compiled_models_do(tmp_path: Path, name: str, by_night: bool) -> None:
    case = CASES[name]
    write_folder(tmp_path, case["config"], case["tensors"])
    source = DecoderSource(tmp_path, logits="all", capacity=16, sequences=3)
    model = tilewright.compile(source, cache=False, threads=1, verify=by_night)
    for rows in rows_of(lambda ids: model(*ids)[0], 3):
        check(rows, case)
    assert [info.name for info in model.inputs] == [f"sequence{k}.ids" for k in range(3)]
    assert all(state.counter == f"{state.info.name.split('.')[0]}.past" for state in model.states if state.counter)


def test_logits_are_those_of_the_rows_that_are_asked_for(tmp_path: Path) -> None:
    case = CASES["llama"]
    write_folder(tmp_path, case["config"], case["tensors"])
    every, some = (
        tilewright.compile(DecoderSource(tmp_path, logits=of, capacity=16, sequences=2), cache=False)
        for of in ("all", "last")
    )
    ids = [np.array([IDS[:5]]), np.array([IDS[:3]])]
    (wanted,) = every(*ids)
    rows = np.array([7, 4, 7])
    (found,) = some(*ids, rows)
    np.testing.assert_allclose(found, wanted[0, rows], rtol=1e-5, atol=1e-5)
    none = np.zeros((1, 0), np.int64)
    assert some(none, none, np.zeros(0, np.int64))[0].shape == (0, wanted.shape[2])
    assert [int(some.state(f"sequence{k}.past")) for k in range(2)] == [5, 3]


def test_kernels_of_lanes_are_one_kernel(tmp_path: Path) -> None:
    """However many there are, and none of them copies what it reads or writes of its cache."""
    case, lanes = CASES["llama"], 3
    write_folder(tmp_path, case["config"], case["tensors"])
    report = tilewright.compile(DecoderSource(tmp_path, capacity=16, sequences=lanes), cache=False).report()
    layers = case["config"]["num_hidden_layers"]
    calls = Counter(call.kernel.partition("_")[2] for call in report.calls)
    assert (calls["attention"], calls["put"]) == (layers * lanes, 2 * layers * lanes)
    names = {call.kernel for call in report.calls}
    assert sum(name.endswith(("_attention", "_put")) for name in names) == 2
    assert {state.update for state in report.states if state.grows} == {"in place"}


def test_a_lane_without_room_is_named(tmp_path: Path) -> None:
    case = CASES["llama"]
    write_folder(tmp_path, case["config"], case["tensors"])
    model = tilewright.compile(DecoderSource(tmp_path, capacity=4, sequences=2), cache=False)
    tokens = np.array([[1, 2, 3]])
    model(tokens, tokens, np.array([2, 5]))
    with pytest.raises(InputError, match="the cache of sequence1 has 4 positions"):
        model(tokens[:, :1], tokens, np.array([0]))
    assert [int(model.state(f"sequence{k}.past")) for k in range(2)] == [3, 3]


@pytest.mark.parametrize("wrong", [0, -1, 9, True, 1.5, "2"])
def test_numbers_of_sequences(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"sequences=.* is not allowed: give a number from 1 to 8"):
        DecoderSource(tmp_path, sequences=wrong)


def test_sources_for_other_numbers_are_others(tmp_path: Path) -> None:
    case = CASES["llama"]
    write_folder(tmp_path, case["config"], case["tensors"])
    def digest(lanes: int | None) -> bytes:
        source = DecoderSource(tmp_path, sequences=lanes)
        return DecoderFrontEnd().digest(source, lambda path, make: make(path))

    found = [digest(lanes) for lanes in (None, 1, 2)]
    assert all(a != b for a, b in itertools.combinations(found, 2))
