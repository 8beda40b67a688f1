"""Decoders without caches: their states are of a fixed size, and cannot forget a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tests.frontends.decoders.checkpoints import IDS, cases, write_folder
from tilewright.cli.app import commands
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.llm.beams import beam_search
from tilewright.llm.decoder import UNLIMITED, CompiledDecoder, rewound
from tilewright.runtime import Model
from tilewright.runtime.errors import ExecutionError, InputError, OptionError

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(scope="module", params=["mamba", "mamba2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    case, folder = cases()[request.param], tmp_path_factory.mktemp("model")
    write_folder(folder, case["config"], case["tensors"])
    return tilewright.compile(DecoderSource(folder), cache=False, threads=1)


@pytest.fixture
def decoder(model: Model) -> CompiledDecoder:
    model.reset()
    return CompiledDecoder(model)


def test_pieces_are_the_whole(decoder: CompiledDecoder, model: Model) -> None:
    assert decoder.context == UNLIMITED
    wanted = decoder.feed(IDS)
    for size in (1, 2, 5):
        other = CompiledDecoder(model, piece=size)
        other.rewind(0)
        np.testing.assert_allclose(other.feed(IDS), wanted, **CLOSE)
        other.rewind(0)
        found = [other.feed([token]) for token in IDS][-1]
        np.testing.assert_allclose(found, wanted, **CLOSE)
        assert other.length == len(IDS)


def test_any_length(decoder: CompiledDecoder) -> None:
    """Memory does not grow with it."""
    ids = np.tile(IDS, 200)
    sizes = [state.info.shape for state in decoder.model.states]
    assert np.isfinite(decoder.feed(ids)).all()
    assert decoder.length == len(ids)
    assert [decoder.model.state(s.info.name).shape for s in decoder.model.states] == [tuple(n) for n in sizes]


def test_forks_go_their_own_way(decoder: CompiledDecoder) -> None:
    decoder.feed(IDS[:5])
    other = decoder.fork()
    one = decoder.feed(IDS[5:])
    other.feed(IDS[:3])
    assert (decoder.length, other.length) == (len(IDS), 8)
    again = CompiledDecoder(decoder.model)
    again.rewind(0)
    np.testing.assert_allclose(again.feed(IDS), one, **CLOSE)


def test_a_part_cannot_be_forgotten(decoder: CompiledDecoder) -> None:
    decoder.feed(IDS[:5])
    with pytest.raises(OptionError, match="keeps sums of its past") as refused:
        decoder.rewind(3)
    assert "rewind(0)" in str(refused.value)
    assert decoder.length == 5
    assert (rewound(decoder, 5), rewound(decoder, 3)) == (5, 0)


def test_what_fails_half_way_loses_nothing(
    decoder: CompiledDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = decoder.feed(IDS)
    decoder.rewind(0)
    decoder.feed(IDS[:4])
    piecewise = decoder.fork()
    piecewise.piece = 2
    calls = []

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def __call__(self, *args: Any) -> Any:
            calls.append(args)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return inner(*args)

    inner, piecewise.model = piecewise.model, Failing()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        piecewise.feed(IDS[4:])
    assert piecewise.length == 4
    np.testing.assert_allclose(piecewise.feed(IDS[4:]), wanted, **CLOSE)
    with pytest.raises(InputError, match="there is no token"):
        piecewise.feed([-1])


def test_states_are_saved(decoder: CompiledDecoder, tmp_path: Path) -> None:
    decoder.feed(IDS[:6])
    decoder.model.save_states(tmp_path / "s.npz")
    wanted = decoder.feed(IDS[6:])
    decoder.model.reset()
    decoder.model.load_states(tmp_path / "s.npz")
    again = CompiledDecoder(decoder.model)
    assert again.length == 6
    np.testing.assert_allclose(again.feed(IDS[6:]), wanted, **CLOSE)


def test_costs_do_not_grow_with_the_text(tmp_path: Path) -> None:
    case = cases()["mamba"]
    folder = write_folder(tmp_path / "m", case["config"], case["tensors"])
    result = CliRunner().invoke(commands, ["cost", str(folder), "--prompt", "8", "--new", "4"])
    assert result.exit_code == 0, result.output
    assert "however long the text is" in result.stdout


def test_beams(decoder: CompiledDecoder) -> None:
    decoder.rewind(0)
    found = beam_search(decoder, IDS[:3], width=3, max_tokens=4, ends=frozenset(), size=decoder.vocabulary)
    assert len(found[0].tokens) == 4


def test_what_a_failed_call_has_lost_begins_anew(decoder: CompiledDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no token had been fed."""
    wanted = decoder.feed(IDS[:3])
    decoder.rewind(0)
    with monkeypatch.context() as patch:
        patch.setattr(decoder, "vocabulary", 1 << 40)
        with pytest.raises(ExecutionError, match="out of range"):
            decoder.feed([10**6])
    decoder.rewind(0)
    np.testing.assert_array_equal(decoder.feed(IDS[:3]), wanted)
