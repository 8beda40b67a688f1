"""A long run that ended goes on with the tests that have not passed yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.resumed import Progress

CASES = """
from pathlib import Path
import pytest

RAN = Path(__file__).with_name("ran.txt")

def note(name):
    RAN.open("a").write(name + chr(10))

@pytest.mark.fresh_seeds(2)
def test_drawn(fresh_seed): note(f"drawn{fresh_seed}")

@pytest.fixture
def fails_at_its_end():
    yield
    assert RAN.with_name("repaired").exists()

def test_end(fails_at_its_end): note("end")

def test_body():
    note("body")
    assert RAN.with_name("repaired").exists()

def test_last():
    note("last")
    if RAN.with_name("killed").exists():
        import os
        os._exit(9)

@pytest.mark.skip
def test_skipped(): pass
"""


RUN = """
import sys
from pathlib import Path
import pytest
folder, *steps = sys.argv[1:]
arguments = ["-p", "no:cacheprovider", "-p", "tests.conftest", "-c", "/dev/null", "--rootdir", folder]
for step in steps:
    Path(folder, step).touch()
    Path(folder, "ran.txt").write_text("")
    code = pytest.main([*arguments, "--resume", f"{folder}/left", f"{folder}/test_cases.py"])
    print("ended:", int(code), *sorted(Path(folder, "ran.txt").read_text().split()))
"""


def ran(folder: Path, *steps: str) -> tuple[int, list[str]]:
    """How a process of several runs of the tests above ended, and how each ended and which tests ran; a file of the
    name of each step is made before."""
    (folder / "test_cases.py").write_text(CASES)
    command = [sys.executable, "-c", RUN, str(folder), *steps]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ended: ")]
    return done.returncode, [line.removeprefix("ended: ") for line in lines]


def test_what_passed_does_not_run_again_what_failed_does(tmp_path: Path) -> None:
    assert ran(tmp_path, "killed") == (9, [])
    assert len((tmp_path / "ran.txt").read_text().split()) == 5
    (tmp_path / "killed").unlink()
    assert ran(tmp_path, "again", "repaired") == (0, ["1 body end last", "0 body end"])
    assert not (tmp_path / "left").exists()


@pytest.mark.parametrize(
    ("text", "seed", "passed"),
    [("", None, set()), ("71", None, set()), ("71\n", 71, set()), ("71\na.py::b[1]\na.py::b[", 71, {"a.py::b[1]"})],
    ids=["empty", "part of a seed", "a seed", "part of a name"],
)
def test_a_file_that_was_cut_off(tmp_path: Path, text: str, seed: int | None, passed: set[str]) -> None:
    (tmp_path / "left").write_text(text)
    progress = Progress(tmp_path / "left")
    assert (progress.seed, progress.passed) == (seed, passed)


def test_another_seed_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "left"
    file.write_text("71\na.py::b[1]\n")
    for seed, text in ((71, "71\na.py::b[1]\n"), (72, "72\n")):
        progress = Progress(file)
        progress.begin(seed)
        assert file.read_text() == text
        assert Progress(file).passed == progress.passed
