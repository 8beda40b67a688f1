"""Seeds in processes of their own: one that crashes or hangs is a finding like any other, and the run goes on."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from tests.fuzz.registry import Tried, fuzzer, repeat_command, run_seed
from tests.zones.turned_on import findings_are_errors, guard_zones

FORKS = get_context("forkserver")
"""Of a process that has imported what all workers need and started no thread: a fork of this one would copy the state
of the threads of whatever is loaded here, and a process that is started anew imports for two seconds."""
FORKS.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Result:
    """What came of one seed: `failure` is the traceback, or what became of the process."""

    seed: int
    tried: Tried = field(default_factory=Counter)
    failure: str | None = None


def work(name: str, pipe: Connection) -> None:
    """Run the seeds that come through the pipe, until it is closed, with native code between guard zones. The first
    thing sent is that it can begin."""
    with guard_zones():
        with suppress(Exception):  # each seed reports it
            fuzzer(name)
        pipe.send(None)
        while True:
            try:
                seed = pipe.recv()
            except EOFError:
                return
            pipe.send(_result(name, seed))


def _result(name: str, seed: int) -> Result:
    try:
        with findings_are_errors():
            return Result(seed, run_seed(name, seed))
    except Exception:
        return Result(seed, failure=traceback.format_exc(limit=-8))


class Worker:
    """A process, the pipe to it, and the seed it is at; `lost` once it has crashed or hangs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pipe, theirs = FORKS.Pipe()
        self.process: BaseProcess = FORKS.Process(target=work, args=(name, theirs), daemon=True)
        self.process.start()
        theirs.close()  # so that reading ends when the process does
        with suppress(EOFError, ConnectionResetError):  # `take` reports it
            self.pipe.recv()
        self.seed: int | None = None
        self.since = 0.0
        self.lost = False

    def give(self, seed: int) -> None:
        self.seed, self.since = seed, time.monotonic()
        with suppress(BrokenPipeError):  # `take` says so
            self.pipe.send(seed)

    def take(self) -> Result:
        assert self.seed is not None
        try:
            result: Result = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return self.give_up(f"the process ended with exit code {self.process.exitcode}")
        self.seed = None
        return result

    def give_up(self, why: str) -> Result:
        assert self.seed is not None
        self.lost = True
        return Result(self.seed, failure=f"{why}\nrepeat: {repeat_command(self.name, self.seed)}\n")

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def results(name: str, seeds: Iterable[int], jobs: int, limit: float) -> Iterator[Result]:
    """The results of the seeds, as they come. A seed that takes more than `limit` seconds is given up."""
    remaining = iter(seeds)
    workers = [Worker(name) for _ in range(jobs)]
    try:
        while True:
            for worker in workers:
                if worker.seed is None and (seed := next(remaining, None)) is not None:
                    worker.give(seed)
            busy = [worker for worker in workers if worker.seed is not None]
            if not busy:
                return
            ready = wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in busy:
                if worker.pipe in ready:
                    yield worker.take()
                elif time.monotonic() - worker.since > limit:
                    yield worker.give_up(f"no end after {limit:g} s")
            for place, worker in enumerate(workers):
                if worker.lost:
                    worker.stop()
                    workers[place] = Worker(name)
    finally:
        for worker in workers:
            worker.stop()
