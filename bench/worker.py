"""The process of one engine with one model: reads commands as JSON lines, answers each with a line.

    PYTHON -m bench.worker ENGINE MODEL ARRAYS --threads N --cache FOLDER

`load` answers with the version, the seconds of loading, memory and the error; `turn` with the seconds of each call.
What the engine prints goes to stderr.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from bench import machine, peers
from bench.cases import read_arrays, relative_error

SETTLING_CALLS = 3
MIB = 1 << 20
REALTIME_PRIORITY = 50


class Worker:
    """An engine, what it needs to load the model, and the CPUs of this process."""

    def __init__(self, engine: str, model: Path, arrays: Path, threads: int, cache: Path) -> None:
        # the last ones: the first CPU has most of the system's interrupts
        self._cpus = machine.usable_cpus()[-threads:]
        self._engine = peers.adapter(engine, cache)
        self._model, self._arrays, self._threads = model, arrays, threads

    def load(self) -> dict[str, Any]:
        """Load, run some times, and compare with the references."""
        inputs, references = read_arrays(self._arrays)
        before = machine.memory()
        start = time.perf_counter()
        self._engine.load(self._model, inputs, self._threads)
        loaded = time.perf_counter()
        self._engine.run()
        first = time.perf_counter()
        for _ in range(SETTLING_CALLS - 1):
            self._engine.run()
        resident = (machine.memory() - before).resident
        results = [np.asarray(array) for array in self._engine.outputs()]
        error = relative_error(results, references)
        return {
            "version": self._engine.version(),
            "load_s": round(loaded - start, 4),
            "first_run_s": round(first - loaded, 4),
            "resident_mib": round(resident / MIB, 1),
            "relative_error": float(f"{error:.3g}") if np.isfinite(error) else None,
        }

    def turn(
        self, warm_s: float, least_s: float, least_calls: int, most_s: float, realtime: bool
    ) -> dict[str, Any]:
        """Warm caches and threads, then time calls one by one."""
        machine.pin(self._cpus)
        machine.set_priority(REALTIME_PRIORITY if realtime else 0)
        gc.collect()
        gc.disable()
        try:
            self._warm(warm_s)
            before = machine.Moment.now(self._cpus)
            seconds = self._calls(least_s, least_calls, most_s)
            after = machine.Moment.now(self._cpus)
        finally:
            gc.enable()
            if realtime:
                machine.set_priority(0)
        return {"seconds": seconds, "disturbed": machine.disturbance(before, after, len(self._cpus))}

    def _warm(self, warm_s: float) -> None:
        end = time.perf_counter() + warm_s
        self._engine.run()
        while time.perf_counter() < end:
            self._engine.run()

    def _calls(self, least_s: float, least_calls: int, most_s: float) -> list[float]:
        run, clock = self._engine.run, time.perf_counter
        seconds: list[float] = []
        begin = clock()
        while True:
            start = clock()
            run()
            now = clock()
            seconds.append(now - start)
            spent = now - begin
            if spent >= most_s or (spent >= least_s and len(seconds) >= least_calls):
                return seconds


def serve(worker: Worker, commands: TextIO, answers: TextIO) -> None:
    """Answer commands until there are no more."""
    for line in commands:
        command = json.loads(line)
        action = {"load": worker.load, "turn": worker.turn}[command.pop("do")]
        try:
            answer = action(**command)
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="The process of one engine; started by `python -m bench`.")
    parser.add_argument("engine")
    parser.add_argument("model", type=Path)
    parser.add_argument("arrays", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    chosen = parser.parse_args()
    # an engine that prints must not disturb the answers: it gets stderr for its stdout
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(
        Worker(chosen.engine, chosen.model, chosen.arrays, chosen.threads, chosen.cache), sys.stdin, answers
    )
    answers.flush()
    os._exit(0)  # some engines hang or crash while they are torn down


if __name__ == "__main__":
    main()
