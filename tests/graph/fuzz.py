"""Random programs through all passes, and every third of them as native code: they stay legal and compute the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tests.fuzz.registry import Tried
from tests.graph.programs import inputs, run
from tests.graph.random_programs import random_program
from tilewright.compiler import compile_module
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.pipeline import default_passes
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.host import host_target

NATIVE_EVERY = 3
TOLERANCE = 2e-4
LARGEST = 1e5
"""Of results that are compared: larger ones, and what is not finite, hang on the last bits of what they come from."""


def fuzz(seed: int) -> Tried:
    history: list[str] = []
    tried: Tried = Counter()
    try:
        module = random_program(seed, history)
        for name in history:
            tried[name.strip("()"), "refused" if name.startswith("(") else "taken"] += 1
        arrays = inputs(module, seed=seed)
        with np.errstate(all="ignore"):
            wanted = evaluate_func(module.main, module, arrays)
        if not all(is_tame(a) for a in wanted):
            tried["program", "not tame"] += 1
            return tried
        if seed % NATIVE_EVERY:
            run(module, *default_passes(Options()), Fuse(STRATEGIES), tolerance=TOLERANCE)
            tried["program", "interpreted"] += 1
            return tried
        artifact = compile_module(module, Options(verify=True, compile_threads=1), host_target())
        found = [Model(artifact, threads)(*arrays) for threads in (1, 2)]
        compare(wanted, found[0])
        assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True)), "threads change the bits"
        tried["program", "native"] += 1
    except Exception as e:
        e.add_note(f"seed {seed}, steps: {' '.join(history)}")
        raise
    return tried


def is_tame(array: np.ndarray) -> bool:
    return bool((np.abs(array.astype(np.float64)) < LARGEST).all())


def compare(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> None:
    for want, got in zip(wanted, found, strict=True):
        assert want.shape == got.shape and want.dtype == got.dtype
        scale = max(1.0, float(np.abs(want).max())) if want.size else 1.0
        np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE * scale)
