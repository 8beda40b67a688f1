"""The process of one engine with a deployed model, started by `python -m bench memory FILES --beside ENGINES`.

    PYTHON -m bench.deployed STEP ENGINE MODEL ARRAYS --threads N --cache FOLDER

Step `files` makes what is deployed (it may convert, compile and fill caches) and names it; `run` is what a user does:
import, load, call. Nothing of ours may be imported before that.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine, peers
from bench.cases import read_arrays, relative_error

LEAST_CALLS, LEAST_S = 20, 0.5
REASON_CHARACTERS = 300


def files_of(engine: str, model: Path, arrays: Path, threads: int, cache: Path) -> dict[str, Any]:
    """The deployed files, the bytes of its runtime, its version."""
    adapter = peers.adapter(engine, cache)
    inputs, _ = read_arrays(arrays)
    files = adapter.files(model, inputs, threads) if isinstance(adapter, peers.Deployer) else [model]
    runtime = sum(map(folder_bytes, peers.describe(engine).runtime))
    return {"files": list(map(str, files)), "runtime": runtime, "version": adapter.version()}


def folder_bytes(name: str) -> int:
    """Bytes of the files of `PACKAGE` or `PACKAGE/FOLDER`, without what Python compiled of them."""
    package, _, inner = name.partition("/")
    spec = importlib.util.find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return sum(
        path.stat().st_size
        for folder in folders
        for path in (Path(folder) / inner).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def run_once(engine: str, model: Path, arrays: Path, threads: int, cache: Path) -> dict[str, Any]:
    """Load the deployed model, call it, and tell times and memory."""
    machine.pin(machine.usable_cpus()[-threads:])
    inputs, references = read_arrays(arrays)
    adapter = peers.adapter(engine, cache)
    gc.collect()
    before, start = machine.memory(), time.perf_counter()
    adapter.load(model, inputs, threads)
    ready, loaded = time.perf_counter(), machine.memory() - before
    adapter.run()
    answered, answered_ns = time.perf_counter(), time.monotonic_ns()
    steady = _calls(adapter)
    after = machine.memory() - before
    results = [np.asarray(array) for array in adapter.outputs()]
    return {
        "answered_ns": answered_ns,
        "load_ms": 1e3 * (ready - start),
        "first_ms": 1e3 * (answered - ready),
        "steady_ms": 1e3 * statistics.median(steady),
        "loaded": loaded.resident,
        **vars(after),
        "relative_error": float(f"{relative_error(results, references):.3g}"),
    }


def _calls(adapter: peers.Adapter) -> list[float]:
    """Seconds of each of some calls."""
    seconds: list[float] = []
    while len(seconds) < LEAST_CALLS or sum(seconds) < LEAST_S:
        start = time.perf_counter()
        adapter.run()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="The process of one engine, for `python -m bench memory`.")
    parser.add_argument("step", choices=("files", "run"))
    parser.add_argument("engine")
    parser.add_argument("model", type=Path)
    parser.add_argument("arrays", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    chosen = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")  # what the engine prints goes to stderr
    os.dup2(2, 1)
    step = files_of if chosen.step == "files" else run_once
    try:
        told = step(chosen.engine, chosen.model, chosen.arrays, chosen.threads, chosen.cache)
    except Exception as error:
        told = {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:REASON_CHARACTERS]}
    print(json.dumps(told), file=answers, flush=True)
    os._exit(0)  # some engines hang or crash while they are torn down


if __name__ == "__main__":
    main()
