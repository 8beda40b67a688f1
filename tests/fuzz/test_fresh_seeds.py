"""Tests with fresh seeds, and the fuzzers that they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.registry import FUZZERS, fuzzer, run_seed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", FUZZERS)
def test_each_fuzzer_is_where_it_is_said_to_be(name: str) -> None:
    if name == "torch":
        pytest.importorskip("torch")
    assert callable(fuzzer(name))


def test_a_failure_says_how_it_is_repeated() -> None:
    with pytest.raises(ValueError) as caught:
        run_seed("tests.fuzz.samples:finds_something", 2)
    assert caught.value.__notes__ == [
        "steps: one, two",
        "repeat: python -m tests.fuzz tests.fuzz.samples:finds_something --seed 2 --count 1",
    ]


def test_the_seed_given_decides_the_tests() -> None:
    """Of a worker, too, which is told it (one process alone: tests/test_sweeps.py)."""
    chosen = ["tests/memory/test_fresh_seeds.py", "-vv", "--seed", "880077"]
    command = [sys.executable, "-m", "pytest", *chosen, "-n", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "fresh seeds start at 880077 (pytest --seed 880077 runs the same tests)" in done.stdout
    assert "test_random_problems[880077]" in done.stdout
    assert "1 passed" in done.stdout
