"""A compiled decoder: the logits of the float64 reference in whatever pieces it is fed, from caches that stay where
they are."""

from __future__ import annotations

import copy
import mmap
import pickle
import threading
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright
from tests.llm.small_decoder import Small
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_module
from tilewright.llm.decoder import CompiledDecoder, pieces_of
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.program.interp import run_program
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import ExecutionError, InputError, OptionError
from tilewright.runtime.kept.reserved import Reserved
from tilewright.target.host import host_target

SMALL = Small()
TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, SMALL.vocabulary, SMALL.capacity)]
WANTED = SMALL.logits(TOKENS)
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


@cache
def artifact(small: Small = SMALL, **options: Any) -> Artifact:
    return compile_module(small.module(), Options(states=True, verify=True, **options), host_target())


def model(threads: int = 1, small: Small = SMALL, **options: Any) -> Model:
    return Model(artifact(small, **options), threads)


def decoder(piece: int = 512, **others: Any) -> CompiledDecoder:
    return CompiledDecoder(model(**others), piece=piece)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("first", [1, 2, 7, 8, 9, 17, SMALL.capacity])
def test_logits_are_those_of_the_whole_sequence(first: int, threads: int) -> None:
    """Up to the last position that there is."""
    found = decoder(threads=threads)
    assert (found.length, found.context, found.vocabulary) == (0, SMALL.capacity, SMALL.vocabulary)
    np.testing.assert_allclose(found.feed(TOKENS[:first]), WANTED[first - 1], **CLOSE)
    for k in range(first, len(TOKENS)):
        np.testing.assert_allclose(found.feed(TOKENS[k : k + 1]), WANTED[k], **CLOSE)
    assert found.length == found.context


@pytest.mark.parametrize("piece", [1, 3, 8, 23])
def test_long_inputs_are_fed_in_pieces(piece: int) -> None:
    found = decoder(piece)
    np.testing.assert_allclose(found.feed(TOKENS), WANTED[-1], **CLOSE)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("count", [8, 65, 72, 131, 200, 256, 300])
def test_pieces_capacities_and_threads_change_no_bit(window: int | None, count: int) -> None:
    tokens = np.random.default_rng(5).integers(0, SMALL.vocabulary, 320)
    small, large = (replace(SMALL, capacity=capacity, window=window) for capacity in (320, 400))

    def texts(threads: int = 1, piece: int = 512, small: Small = small) -> list[np.ndarray]:
        """Logits behind the tokens, and behind some of the most likely ones after these."""
        found = decoder(piece, threads=threads, small=small)
        logits = [found.feed(tokens[:count])]
        for _ in range(4):
            logits.append(found.feed([int(logits[-1].argmax())]))
        return logits

    whole = texts()
    for other in (texts(2), texts(small=large)):
        np.testing.assert_array_equal(other, whole)
    for piece in (64, 100, 128, 200):
        if window is None:
            np.testing.assert_array_equal(texts(2, piece), whole)
        else:  # keys are read from where the window of a piece begins
            np.testing.assert_allclose(texts(2, piece), whole, **CLOSE)


@pytest.mark.parametrize("piece", [1, 7, 63, 64, 65, 100, 128, 512])
@pytest.mark.parametrize("before", [0, 1, 63, 64, 100])
def test_where_inputs_are_cut(before: int, piece: int) -> None:
    for count in (1, 5, 8, 9, 63, 64, 65, 72, 73, 128, 130, 137, 513, 515, 600):
        found = pieces_of(before, count, piece)
        assert found[0][0] == 0 and found[-1][1] == count
        assert all(end == begin for (_, end), (begin, _) in pairwise(found))
        assert all(0 < end - begin <= max(piece, 64) + 8 for begin, end in found)
        if piece >= 64:
            assert all((before + begin) % 64 == 0 for begin, _ in found[1:])
            assert all(end - begin > 8 for begin, end in found[1:])


def test_strict_numerics_and_variants_for_one_token() -> None:
    small = Small(layers=1)
    wanted = small.logits(TOKENS[:10])
    for options in ({"numerics": "strict"}, {"frequent": ()}):
        found = decoder(small=small, **options)
        np.testing.assert_allclose(found.feed(TOKENS[:9]), wanted[8], **CLOSE)
        np.testing.assert_allclose(found.feed(TOKENS[9:10]), wanted[9], **CLOSE)


def test_the_graph_and_the_program_say_the_same() -> None:
    small = Small(layers=1)
    module = small.module()
    names = module.main.attrs["inputs"]
    held = {name: np.zeros(v.type.shape, np.int64 if name == "past" else np.float32)
            for name, v in zip(names[1:], module.main.args[1:], strict=True)}  # fmt: skip
    program = Compilation(small.module(), Setting.of(Options(states=True), host_target())).run("planned").whole()
    kept: dict[str, np.ndarray] = {}
    for piece in (TOKENS[:5], TOKENS[5:6], TOKENS[6:8]):
        ids = np.array([piece])
        logits, *held_next = evaluate_func(module.main, module, [ids, *held.values()])
        held = dict(zip(held, held_next, strict=True))
        np.testing.assert_allclose(run_program(program, [ids], kept)[0], logits, **CLOSE)
    for name, array in held.items():
        np.testing.assert_allclose(kept[name], array, **CLOSE)


def test_it_is_one_program_whose_caches_stay_where_they_are() -> None:
    found = artifact()
    assert found.program is None
    assert {state.way for state in found.states} == {"in place"}
    assert {(state.info.name, state.grows, state.counter) for state in found.states if state.counter} == {
        (f"{name}.{k}", 2, "past") for name in ("keys", "values") for k in range(SMALL.layers)
    }
    loaded = model()
    addresses = list(loaded._states._addresses)
    for n in (5, 1, 1):
        loaded(np.array([TOKENS[:n]]))
    assert list(loaded._states._addresses) == addresses
    assert not any(array is not None for array in loaded._states._beside)


def test_what_lies_behind_the_past_is_never_read() -> None:
    found = decoder()
    found.feed(TOKENS[:7])
    for state, array in zip(found.model.states, found.model._states.current, strict=True):
        if state.counter:
            array[:, :, 7:] = np.nan
    np.testing.assert_allclose(found.feed(TOKENS[7:10]), WANTED[9], **CLOSE)
    found.rewind(3)  # there are keys behind, of other tokens
    np.testing.assert_allclose(found.feed(TOKENS[3:4]), WANTED[3], **CLOSE)
    found.rewind(0)
    np.testing.assert_allclose(found.feed(TOKENS[:1]), WANTED[0], **CLOSE)


def test_going_back_to_the_beginning_keeps_memory_for_what_is_next(monkeypatch: pytest.MonkeyPatch) -> None:
    found, given_back = decoder(), []
    monkeypatch.setattr(Reserved, "forget", lambda _, begin, end: given_back.append(end - begin))
    found.feed(TOKENS[:7])
    given_back.clear()
    found.rewind(0)
    assert found.length == 0 and not given_back
    np.testing.assert_allclose(found.feed(TOKENS[:5]), WANTED[4], **CLOSE)
    assert not given_back
    found.model.reset()
    assert sum(given_back) > 0


def test_layers_with_a_window_read_no_more_than_that() -> None:
    """What lies before the window may be anything, too."""
    small = Small(window=5)
    wanted = small.logits(TOKENS)
    found = decoder(small=small)
    assert sum(bool(state.counter) for state in found.model.states) == 2 * small.layers
    np.testing.assert_allclose(found.feed(TOKENS[:12]), wanted[11], **CLOSE)
    for k in range(12, len(TOKENS)):
        for state, array in zip(found.model.states, found.model._states.current, strict=True):
            if state.counter:
                array[:, :, : k - 4] = np.nan
        np.testing.assert_allclose(found.feed(TOKENS[k : k + 1]), wanted[k], **CLOSE)


def exported() -> bytes:
    """Embeddings that attend to each other, as exporters write it: caches come and go, and what is known of positions
    is asked for."""
    rng = np.random.default_rng(1)
    table, turns = (", ".join(f"{x:.3f}" for x in rng.standard_normal(n) / 4) for n in (160, 8))
    graph = f"""step (int64[1, s] input_ids, int64[1, t] attention_mask, int64[1, s] position_ids,
            float[1, 1, p, 8] past_key) => (float[1, s, 20] logits, float[a, b, c, d] present_key) <
            float[20, 8] table = {{{table}}}, float[1, 8] turns = {{{turns}}}> {{
        x = Gather (table, input_ids)
        one = Constant <value_ints = [1]> ()
        where = Cast <to = 1> (position_ids)
        two = Constant <value_ints = [2]> ()
        column = Unsqueeze (where, two)
        turned = MatMul (column, turns)
        y = Add (x, turned)
        new = Unsqueeze (y, one)
        present_key = Concat <axis = 2> (past_key, new)
        across = Transpose <perm = [0, 1, 3, 2]> (present_key)
        scores = MatMul (new, across)
        seen = Cast <to = 1> (attention_mask)
        masked = Mul (scores, seen)
        mixed = MatMul (masked, present_key)
        plain = Squeeze (mixed, one)
        back = Transpose <perm = [1, 0]> (table)
        logits = MatMul (plain, back)
    }}"""
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString()


def test_an_exported_decoder_is_one_too() -> None:
    """Its caches become states, positions and the mask follow from the length."""
    plain = tilewright.compile(exported(), cache=False, threads=1)
    found = CompiledDecoder(tilewright.compile(exported(), cache=False, threads=1, states=True, capacity=9))
    assert (found.vocabulary, found.context) == (20, 9)
    held, length = np.zeros((1, 1, 0, 8), np.float32), 0
    for part in ([3, 1, 4], [1], [5, 9], [2], [6, 5]):
        positions = np.arange(length, length + len(part))[None]
        length += len(part)
        logits, held = plain(np.array([part]), np.ones((1, length), np.int64), positions, held)
        np.testing.assert_allclose(found.feed(part), logits[0, -1], **CLOSE)
    with pytest.raises(InputError, match="more than the context of 9 positions"):
        found.feed([1])


def test_an_input_of_which_nothing_is_known_is_named() -> None:
    source = exported().replace(b"position_ids", b"other_inputs")
    with pytest.raises(OptionError, match="nothing is known of its input other_inputs"):
        CompiledDecoder(tilewright.compile(source, cache=False, states=True, capacity=9))


def test_forks_go_their_own_ways_at_the_same_time() -> None:
    found = decoder()
    found.feed(TOKENS[:10])
    others = [found.fork() for _ in range(3)]
    results: list[np.ndarray | None] = [None] * 3

    def run(k: int) -> None:
        for token in (*TOKENS[10:13], k):
            results[k] = others[k].feed([token])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, result in enumerate(results):
        assert result is not None
        np.testing.assert_allclose(result, SMALL.logits([*TOKENS[:13], k])[-1], **CLOSE)
    assert found.length == 10
    np.testing.assert_allclose(found.feed(TOKENS[10:11]), WANTED[10], **CLOSE)


def test_forks_share_code_weights_and_threads() -> None:
    found = decoder()
    one, other = (d.model._loaded.programs[0] for d in (found, found.fork()))  # type: ignore[union-attr]
    assert one.constants is other.constants and one.pool is other.pool
    found.model.close()
    np.testing.assert_allclose(decoder().fork().feed(TOKENS[:2]), WANTED[1], **CLOSE)


def test_a_full_cache_is_an_error_that_changes_nothing() -> None:
    found = decoder()
    found.feed(TOKENS[:-1])
    with pytest.raises(InputError, match="2 tokens behind 23 are more than the context of 24 positions"):
        found.feed(TOKENS[:2])
    np.testing.assert_allclose(found.feed(TOKENS[-1:]), WANTED[-1], **CLOSE)
    with pytest.raises(InputError, match="hint: shorten the text"):
        found.feed(TOKENS[:1])
    with pytest.raises(InputError, match=r"cannot put elements at|of 24 elements|25"):
        found.model(np.array([[1]]))
    assert found.model.state("past") == 24


def test_no_tokens_at_all_are_refused_by_the_model_too() -> None:
    loaded = model()
    with pytest.raises(InputError):
        loaded(np.zeros((1, 0), np.int64))
    assert loaded.state("past") == 0


@pytest.mark.parametrize("piece", [512, 2])
def test_a_call_that_fails_leaves_the_sequence_as_it_was(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """A token that does not exist is found by the embedding, in the midst of the call."""
    found = decoder(piece)
    found.feed(TOKENS[:6])
    monkeypatch.setattr(found, "vocabulary", 10**9)
    with pytest.raises(ExecutionError, match="out of range"):
        found.feed([TOKENS[6], TOKENS[7], 10**6])
    monkeypatch.undo()
    assert found.length == 6
    np.testing.assert_allclose(found.feed(TOKENS[6:9]), WANTED[8], **CLOSE)


def test_saved_pickled_and_copied_is_what_is_filled(tmp_path: Path) -> None:
    found = decoder()
    found.feed(TOKENS[:9])
    found.model.save_states(tmp_path / "past.npz")
    with np.load(tmp_path / "past.npz") as file:
        assert file["state keys.1"].shape == (1, SMALL.groups, 9, SMALL.size)
    other = model()
    other.load_states(tmp_path / "past.npz")
    for again in (other, copy.copy(found.model), pickle.loads(pickle.dumps(found.model))):
        continued = CompiledDecoder(again)
        assert continued.length == 9
        assert not again.state("keys.0")[:, :, 9:].any()
        np.testing.assert_allclose(continued.feed(TOKENS[9:10]), WANTED[9], **CLOSE)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.without_zones
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no count of pages")
def test_memory_is_there_where_something_was_written() -> None:
    """Of a capacity for which each cache would take 4 GB."""
    big = Small(layers=1, capacity=1 << 26)
    found = decoder(small=big)
    before = _resident()
    wanted = big.logits(TOKENS[:6])
    np.testing.assert_allclose(found.feed(TOKENS[:5]), wanted[4], **CLOSE)
    other = found.fork()
    np.testing.assert_allclose(other.feed(TOKENS[5:6]), wanted[5], **CLOSE)
    assert other.model.state("past") == 6
    assert _resident() - before < 1 << 25


@pytest.mark.without_zones
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="there is no count of pages")
def test_memory_is_given_back() -> None:
    found = decoder(small=Small(layers=1, size=64, capacity=1 << 16))
    found.feed(TOKENS[:9])
    states = zip(found.model.states, found.model._states.current, strict=True)
    held = [array for state, array in states if state.counter]
    for forget, kept in ((found.model.trim, 9), (found.model.reset, 0)):
        for array in held:
            array[:, :, kept:] = 1.0  # as many tokens would
        full = _resident()
        forget()
        assert full - _resident() > 2 * (1 << 16) * 64 * 4
        assert all(bool(array[:, :, :kept].any()) == bool(kept) for array in held)


def test_models_that_are_no_decoders() -> None:
    plain = compile_module(SMALL.module(), Options(states=(("past", "next.past"),)), host_target())
    with pytest.raises(OptionError, match="no decoder: it needs states that grow with one counter"):
        CompiledDecoder(Model(plain, 1))
    with pytest.raises(OptionError, match="piece=0 is not allowed"):
        decoder(0)
