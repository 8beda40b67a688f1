"""Fuzzers that end in every way, for the tests of the command that runs them."""

from __future__ import annotations

import os
import time
from collections import Counter

from tests.fuzz.registry import Tried


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


def hangs(seed: int) -> Tried:
    if seed == 1:
        time.sleep(3600)
    return sound(seed)
