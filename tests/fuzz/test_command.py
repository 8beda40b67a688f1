"""The command of long runs: every failure is collected, and says how it is repeated."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.fuzz.__main__ import main
from tilewright.runtime.guarded.pages import IS_AVAILABLE


def run(fuzzer: str, *options: str) -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.fuzz.__main__.PROGRESS_EVERY", float("inf"))  # on a busy machine, workers begin late
        done = CliRunner().invoke(main, [f"tests.fuzz.samples:{fuzzer}", *options])
    return done.exit_code, done.output


def test_a_sound_run_counts_what_was_tried() -> None:
    code, text = run("sound", "--seed", "4", "--count", "5", "--jobs", "2")
    assert code == 0
    lines = text.splitlines()
    assert lines[0] == "tests.fuzz.samples:sound: 5 seeds from 4 on (--seed 4 repeats them)"
    assert [line.split() for line in lines[1:4]] == [
        ["accepted", "refused"],
        ["even", "3", "10"],
        ["odd", "2", "0"],
    ]
    assert lines[4] == "tests.fuzz.samples:sound: 5 seeds from 4 on, 0 failed"


def test_the_first_seed_is_new_in_every_run_and_printed() -> None:
    first, second = (run("sound", "--count", "1")[1].splitlines()[0] for _ in range(2))
    assert first != second


def test_all_findings_are_collected() -> None:
    code, text = run("finds_something", "--seed", "0", "--count", "7")
    assert code == 1
    assert text.count("ValueError: seed of a wrong kind") == text.count("steps: one, two") == 2
    assert "repeat: python -m tests.fuzz tests.fuzz.samples:finds_something --seed 5 --count 1" in text
    assert text.splitlines()[-1].endswith("7 seeds from 0 on, 2 failed: 2 5")


@pytest.mark.parametrize(
    ("fuzzer", "why"), [("crashes", "the process ended with exit code -6"), ("hangs", "no end after 1 s")]
)
def test_a_seed_that_ends_its_process_is_a_finding_like_any_other(fuzzer: str, why: str) -> None:
    code, text = run(fuzzer, "--seed", "0", "--count", "4", "--limit", "1")
    assert code == 1
    assert why in text
    assert f"repeat: python -m tests.fuzz tests.fuzz.samples:{fuzzer} --seed 1 --count 1" in text
    assert text.splitlines()[-1].endswith("4 seeds from 0 on, 1 failed: 1")


@pytest.mark.skipif(not IS_AVAILABLE, reason="there are guard zones on Linux for x86-64 only")
def test_an_access_beyond_a_buffer_is_a_finding_also_when_the_error_is_handled() -> None:
    code, text = run("goes_beyond", "--seed", "2", "--count", "3")
    assert code == 1
    assert "native code goes beyond its buffers: x (3 bytes): a store 0 bytes after its end\n  where: sample" in text
    assert text.splitlines()[-1].endswith("3 seeds from 2 on, 1 failed: 3")


def test_no_seed_is_given_out_after_the_time() -> None:
    code, text = run("sound", "--seed", "0", "--count", "100000", "--minutes", "0.01")
    assert code == 0
    assert "100000 seeds from 0 on, 0 failed" not in text.splitlines()[-1]


def test_an_unknown_fuzzer() -> None:
    done = CliRunner().invoke(main, ["nothing"])
    assert done.exit_code == 2
    assert "there are" in done.output and "loops" in done.output
