"""Fuzzers that end in every way, for the tests of the command that runs them."""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter
from contextlib import suppress

import numpy as np

from tests.fuzz.registry import Tried
from tests.zones.turned_on import arrays_between_zones
from tilewright.runtime.errors import BeyondBufferError


def sound(seed: int) -> Tried:
    return Counter({("even" if seed % 2 == 0 else "odd", "accepted"): 1, ("even", "refused"): 2})


def finds_something(seed: int) -> Tried:
    if seed % 3 == 2:
        error = ValueError("seed of a wrong kind")
        error.add_note("steps: one, two")
        raise error
    return sound(seed)


def crashes(seed: int) -> Tried:
    if seed == 1:
        os.abort()
    return sound(seed)


def goes_beyond(seed: int) -> Tried:
    """Native code that stores after the end of an array; somebody handles the error."""
    with (
        suppress(BeyondBufferError),
        arrays_between_zones("sample", [np.zeros(seed, "u1")], ["x"]) as ((x,), _),
    ):
        ctypes.memset(x, 1, seed + seed % 2)
    return sound(seed)


def hangs(seed: int) -> Tried:
    if seed == 1:
        time.sleep(3600)
    return sound(seed)
