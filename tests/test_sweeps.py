"""What a run tries of the cases of sweeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = """
import pytest

@pytest.mark.sweep
@pytest.mark.parametrize("small", [0, 1])
@pytest.mark.parametrize("array", [[1, 2], [3], [4], [5], [6]])
def test_covered(array, small): pass

@pytest.mark.sweep(3)
@pytest.mark.parametrize("row", range(20))
def test_counted(row): pass

@pytest.mark.parametrize("row", range(4))
def test_all(row): pass

@pytest.mark.fresh_seeds(2)
def test_drawn(fresh_seed): pass
"""


def collected(tmp_path: Path, *arguments: str, case: str = "") -> list[str]:
    """The names of the cases that run, of the tests above."""
    file = tmp_path / "test_cases.py"
    file.write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.conftest", "--collect-only"]
    command += ["-c", "/dev/null", "--rootdir", str(tmp_path), "-q", f"{file}{case}", *arguments]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]


def of(names: list[str], test: str) -> list[str]:
    return [name.partition("[")[2].removesuffix("]") for name in names if name.startswith(f"{test}[")]


@pytest.mark.fresh_seeds(2)
def test_a_sample_has_each_value_of_each_parameter(fresh_seed: int, tmp_path: Path) -> None:
    names = collected(tmp_path, "--seed", str(fresh_seed))
    covered = of(names, "test_covered")
    assert 5 <= len(covered) <= 6
    arrays, smalls = ({case.split("-")[k] for case in covered} for k in (0, 1))
    assert arrays == {f"array{k}" for k in range(5)} and smalls == {"0", "1"}
    assert len(of(names, "test_counted")) == 3
    assert len(of(names, "test_all")) == 4 and len(of(names, "test_drawn")) == 2
    assert collected(tmp_path, "--seed", str(fresh_seed)) == names


def test_other_seeds_draw_other_cases(tmp_path: Path) -> None:
    assert len({tuple(of(collected(tmp_path, "--seed", str(s)), "test_counted")) for s in range(4)}) > 1


def test_the_nightly_run_tries_all(tmp_path: Path) -> None:
    names = collected(tmp_path, "--sweeps")
    counts = [len(of(names, test)) for test in ("test_covered", "test_counted", "test_all", "test_drawn")]
    assert counts == [10, 20, 4, 10]


def test_a_case_that_somebody_names_runs(tmp_path: Path) -> None:
    names = [collected(tmp_path, case=f"::test_counted[{k}]") for k in range(20)[::7]]
    assert names == [["test_counted[0]"], ["test_counted[7]"], ["test_counted[14]"]]
