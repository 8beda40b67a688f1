"""The thread that runs a model: requests come in from any thread, and steps of a `Scheduler` answer them."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from tilewright.llm.serving.requests import AnswerRequest, Failed, StoppedError, Tell, Ticket
from tilewright.llm.serving.scheduler import Scheduler

_LOG = logging.getLogger(__name__)


class Submission:
    """A request that was given to a worker; `cancel` ends it, from any thread and at any time."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.ticket: Ticket | None = None

    def cancel(self) -> None:
        """Nothing more is computed, and soon nothing is told any more."""
        self._worker.post(self._cancelled)

    def _cancelled(self) -> None:
        if self.ticket is not None:
            self._worker.scheduler.cancel(self.ticket)


class Worker:
    """Runs a scheduler on a thread of its own until `stop`; nobody else calls the scheduler meanwhile.

    What is told is told on that thread. While native code computes, other threads run Python.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ended = False
        self._ending = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def submit(self, request: AnswerRequest, tell: Tell) -> Submission:
        """Answer a request; also that it is refused is told as `Failed`."""
        order = Submission(self)

        def submitted() -> None:
            try:
                order.ticket = self.scheduler.submit(request, tell)
            except Exception as error:
                tell(Failed(error))

        self.post(submitted, lambda: tell(Failed(stopped())))
        return order

    def post(self, order: Callable[[], None], otherwise: Callable[[], Any] = lambda: None) -> None:
        """Run something on the thread before the next step; where it has ended, `otherwise` here."""
        with self._ending:
            if not self._ended:
                self._orders.put(order)
                return
        otherwise()

    def stop(self, seconds: float = 10.0) -> bool:
        """End the thread behind the step that it is in; requests fail with a `StoppedError`. Whether it ended in so
        many seconds."""
        self.post(self._stop)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _stop(self) -> None:
        with self._ending:
            self._ended = True

    def _run(self) -> None:
        try:
            while not self._ended:
                self._take(wait=not self.scheduler.busy)
                if self.scheduler.busy and not self._ended:
                    self._step()
        finally:
            self._stop()
            self._take(wait=False)  # what came meanwhile is told that it is over
            self.scheduler.stop(stopped())

    def _take(self, *, wait: bool) -> None:
        if wait:
            self._orders.get()()
        while not self._orders.empty():
            self._orders.get()()

    def _step(self) -> None:
        try:
            self.scheduler.step()
        except Exception as error:  # a defect: whoever waits is told, and others can ask
            _LOG.exception("a step failed")
            self.scheduler.stop(error)


def stopped() -> StoppedError:
    """What requests are told at the end."""
    return StoppedError("the server ends", hint="ask again when it is back")
