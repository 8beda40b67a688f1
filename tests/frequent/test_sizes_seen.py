"""The sizes that calls had are counted, and become the frequent sizes of another artefact."""

from __future__ import annotations

import threading

import pytest

import tilewright
from tests.frequent.models import data, products, ran, staged
from tilewright.runtime.sizes_seen import MOST, SizeCounter, SizesSeen


def test_sizes_of_calls_become_frequent() -> None:
    model = tilewright.compile(products(), threads=1)
    model(data(3, 3, 64))
    model.count_sizes()
    for batch, length, calls in ((1, 5, 3), (2, 7, 5), (1, 6, 1), (2, 7, 1)):
        for _ in range(calls):
            model(data(batch, length, 64))
    seen = model.sizes_seen()
    assert seen == [
        SizesSeen({"batch": 2, "length": 7}, 6),
        SizesSeen({"batch": 1, "length": 5}, 3),
        SizesSeen({"batch": 1, "length": 6}, 1),
    ]
    assert model.sizes_seen(top=2) == seen[:2]
    faster = tilewright.compile(products(), frequent=model.sizes_seen(2), threads=1)
    faster(data(2, 7, 64))
    assert ran(faster) == "batch=2, length=7"
    faster.count_sizes()
    faster(data(1, 5, 64))
    faster(data(9, 9, 64))
    assert [s.calls for s in faster.sizes_seen()] == [1, 1], "variants count, too"
    model.count_sizes()
    assert model.sizes_seen() == []


def test_staged_models_count() -> None:
    model = tilewright.compile(staged(), frequent=[{"batch": 8}], threads=1)
    model.count_sizes()
    for batch in (8, 8, 5):
        model(data(batch, 64))
    assert model.sizes_seen() == [SizesSeen({"batch": 8}, 2), SizesSeen({"batch": 5}, 1)]


def test_calls_that_fail_do_not_count() -> None:
    model = tilewright.compile(products(), threads=1)
    model.count_sizes()
    with pytest.raises(tilewright.InputError):
        model(data(1, 1, 63))
    assert model.sizes_seen() == []


def test_what_is_asked_wrongly() -> None:
    model = tilewright.compile(products(), threads=1)
    with pytest.raises(tilewright.OptionError, match="not counted") as caught:
        model.sizes_seen()
    assert caught.value.hint == "call count_sizes() first"
    model.count_sizes()
    for top in (0, -1, True, 1.5):
        with pytest.raises(tilewright.OptionError, match="top="):
            model.sizes_seen(top)


def test_memory_is_bounded_and_frequent_sizes_stay() -> None:
    counter = SizeCounter([tilewright.TensorInfo("x", "float32", ("n",))])
    for k in range(10 * MOST):
        counter.add(((7,),))
        counter.add(((1000 + k,),))
    seen = counter.seen()
    assert len(seen) == MOST and seen[0].sizes == {"n": 7} and seen[0].calls == 10 * MOST


def test_threads_count_together() -> None:
    model = tilewright.compile(products(), threads=1)
    model.count_sizes()
    threads = [threading.Thread(target=lambda: [model(data(1, 2, 64)) for _ in range(50)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.sizes_seen() == [SizesSeen({"batch": 1, "length": 2}, 150)]
