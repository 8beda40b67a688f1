"""The thread that runs a model: what comes from other threads, and its end."""

from __future__ import annotations

import logging
import threading
from typing import Any

import numpy as np
import pytest

from tests.llm.serving.simulated import Client, Pieces, Served, alone, prompt_of, wanted_of
from tilewright.llm.serving.requests import AnswerRequest, BusyError, StoppedError
from tilewright.llm.serving.worker import Worker
from tilewright.runtime.errors import InputError


class Waiting(Client):
    """A client on a thread of its own; `over` is set at the end."""

    def __init__(self, answers: int = 1) -> None:
        super().__init__()
        self.over = threading.Event()
        self.begun = threading.Event()
        self._open = answers

    def tell(self, event: Any) -> None:
        super().tell(event)
        self.begun.set()
        self._open -= bool(getattr(event, "reason", "failed"))
        if self._open == 0 or self.error is not None:
            self.over.set()


def test_requests_from_many_threads_are_answered() -> None:
    worker = Worker(Served(waiting=99).scheduler)
    clients = [Waiting() for _ in range(12)]

    def ask(n: int) -> None:
        request = AnswerRequest(np.array(prompt_of(20, n)), (wanted_of(10, seed=n),))
        worker.submit(request, clients[n].tell)
        assert clients[n].over.wait(120)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, client in enumerate(clients):
        assert client.text() == alone(Pieces(704, 400), prompt_of(20, n), wanted_of(10, seed=n)).text
    assert worker.stop()


def test_what_is_refused_and_cancelled() -> None:
    served = Served(context=100_000, parallel=1, waiting=0)
    worker = Worker(served.scheduler)
    long, refused, wrong = Waiting(), Waiting(), Waiting()
    order = worker.submit(AnswerRequest(np.array(prompt_of(9)), (wanted_of(None),)), long.tell)
    assert long.begun.wait(120)
    worker.submit(AnswerRequest(np.array(prompt_of(9)), (wanted_of(),)), refused.tell)
    worker.submit(AnswerRequest(np.array([], np.int64), (wanted_of(),)), wrong.tell)
    assert refused.over.wait(120) and wrong.over.wait(120)
    assert isinstance(refused.error, BusyError) and isinstance(wrong.error, InputError)
    order.cancel()
    after = Waiting()
    worker.submit(AnswerRequest(np.array(prompt_of(9)), (wanted_of(2),)), after.tell)
    assert after.over.wait(120) and after.error is None and not long.over.is_set()
    assert worker.stop()


def test_the_end_is_told_to_whoever_waits_and_whoever_comes() -> None:
    worker = Worker(Served(context=100_000, parallel=1).scheduler)
    clients = [Waiting() for _ in range(3)]
    for client in clients:
        worker.submit(AnswerRequest(np.array(prompt_of(9)), (wanted_of(None),)), client.tell)
    assert clients[0].begun.wait(120)
    assert worker.stop() and worker.stop()
    late = Waiting()
    worker.submit(AnswerRequest(np.array(prompt_of(9)), (wanted_of(),)), late.tell).cancel()
    for client in (*clients, late):
        assert client.over.is_set() and isinstance(client.error, StoppedError)


def test_a_defect_is_told_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    served = Served()
    worker = Worker(served.scheduler)
    step = served.scheduler.step

    def broken() -> None:
        served.scheduler.step = step  # type: ignore[method-assign]
        raise AssertionError("a defect")

    served.scheduler.step = broken  # type: ignore[method-assign]
    first, second = Waiting(), Waiting()
    with caplog.at_level(logging.CRITICAL + 1):
        worker.submit(AnswerRequest(np.array(prompt_of(9)), (wanted_of(),)), first.tell)
        assert first.over.wait(120) and isinstance(first.error, AssertionError)
    worker.submit(AnswerRequest(np.array(prompt_of(9)), (wanted_of(),)), second.tell)
    assert second.over.wait(120) and second.error is None
    assert worker.stop()
