"""A process for each piece of work, some at a time: what ends one of them is the failure of that piece alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class _Running:
    number: int
    process: Any
    results: Connection


def run_apart(
    work: Callable[[T], R], pieces: Sequence[T], jobs: int, died: Callable[[T, int], R]
) -> Iterator[tuple[int, R]]:
    """The number of each piece and what `work` gives for it, as they end; `died` makes it of the exit code of a process
    that ended without a result (below 0: the signal). `work` raises nothing.

    Where this process ends, by whatever signal, the others do so at once. On Linux they are forked, and so have what
    this one has imported.
    """
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    alive, life = context.Pipe(duplex=False)
    running: dict[Any, _Running] = {}
    waiting = list(enumerate(pieces))[::-1]
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                number, piece = waiting.pop()
                results, answers = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(work, piece, answers, alive, life), daemon=True)
                process.start()
                answers.close()
                running[results] = _Running(number, process, results)
            for ready in wait(list(running)):
                one = running.pop(ready)
                try:
                    found = one.results.recv()
                except (EOFError, OSError):  # it ended before, or within what it wanted to say
                    one.process.join()
                    found = died(pieces[one.number], one.process.exitcode)
                one.results.close()
                one.process.join()
                yield one.number, found
    finally:
        for one in running.values():
            one.process.kill()
        for one in running.values():
            one.process.join()
        alive.close()
        life.close()


def _work(work: Callable[[Any], Any], piece: Any, answers: Connection, alive: Connection, life: Connection) -> None:
    """In the process: do the work, and end where the one that began it is gone."""
    life.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the one that began it ends the others
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()
    answers.send(work(piece))
    answers.close()


def _end_with(alive: Connection) -> None:
    """The other end is closed where the process that began this one has ended, in whatever way."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv_bytes()
    os._exit(1)
