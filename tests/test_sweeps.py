"""What a run tries of the cases of sweeps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import SEED, pytest_terminal_summary

KEYWORDS = {"drawn": {"fresh_seeds": 1}, "fixed": {}}
"""Of two files whose tests failed."""

CASES = """
import pytest

@pytest.mark.sweep
@pytest.mark.parametrize("small", [0, 1])
@pytest.mark.parametrize("array", [[1, 2], [3], [4], [5]])
def test_covered(array, small): pass

@pytest.mark.sweep
@pytest.mark.parametrize("array", [[k] for k in range(11)])
@pytest.mark.parametrize("small", [0, 1])
def test_of_many(array, small): pass

@pytest.mark.sweep(3)
@pytest.mark.parametrize("row", range(20))
def test_counted(row): pass

@pytest.mark.sweep
def test_one(): pass

@pytest.mark.parametrize("row", [pytest.param(0, marks=pytest.mark.sweep(0)), 1, 2, 3, 4])
def test_all(row): pass

@pytest.mark.fresh_seeds(2)
def test_drawn(fresh_seed): pass

@pytest.mark.fresh_seeds(1, 3)
def test_drawn_by_night(fresh_seed): pass
"""


SEVERAL_TIMES = """
import json, sys
import pytest
for arguments in json.loads(sys.argv[1]):
    code = pytest.main(arguments)
    print("ended with", int(code))
"""


def collected(tmp_path: Path, *runs: Sequence[str]) -> list[list[str]]:
    """The names of the cases that run, of the tests above, with each of these arguments; "::" begins what names one."""
    file = tmp_path / "test_cases.py"
    file.write_text(CASES)
    shared = ["-p", "no:cacheprovider", "-p", "tests.conftest", "--collect-only"]
    shared += ["-c", "/dev/null", "--rootdir", str(tmp_path), "-q"]
    named = [next((a for a in run if a.startswith("::")), "") for run in runs]
    given = [[*shared, f"{file}{n}", *(a for a in run if a != n)] for run, n in zip(runs, named, strict=True)]
    root = Path(__file__).parent.parent
    command = [sys.executable, "-c", SEVERAL_TIMES, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    *outputs, rest = done.stdout.split("ended with 0\n")
    assert len(outputs) == len(runs) and not rest, done.stdout + done.stderr
    return [[line.partition("::")[2] for line in output.splitlines() if "::" in line] for output in outputs]


def of(names: list[str], test: str) -> list[str]:
    return [name.partition("[")[2].removesuffix("]") for name in names if name.startswith(f"{test}[")]


@pytest.mark.fresh_seeds(1)
def test_a_sample_has_each_value_of_each_parameter_or_half_of_many(fresh_seed: int, tmp_path: Path) -> None:
    seeds = (fresh_seed, fresh_seed + 1, fresh_seed)
    found = collected(tmp_path, *(("--seed", str(seed)) for seed in seeds))
    for names in found:
        covered = of(names, "test_covered")
        assert len(covered) == 4
        arrays, smalls = ({case.split("-")[k] for case in covered} for k in (0, 1))
        assert arrays == {f"array{k}" for k in range(4)} and smalls == {"0", "1"}
        smalls, arrays = ({case.split("-")[k] for case in of(names, "test_of_many")} for k in (0, 1))
        assert len(of(names, "test_of_many")) == len(arrays) == 6 and smalls == {"0", "1"}
        assert len(of(names, "test_counted")) == 3
        assert of(names, "test_all") == [*"1234"] and "test_one" not in names
        assert len(of(names, "test_drawn")) == 2 and len(of(names, "test_drawn_by_night")) == 1
    assert found[0] == found[2]


def test_seeds_nights_and_names(tmp_path: Path) -> None:
    """Other seeds draw other cases, the nightly run tries all, and a case that somebody names runs."""
    seeds = [("--seed", str(seed)) for seed in range(4)]
    named = [(f"::test_counted[{k}]",) for k in range(20)[::7]]
    found = collected(tmp_path, *seeds, ("--sweeps",), *named)
    assert len({tuple(of(names, "test_counted")) for names in found[:4]}) > 1
    tests = ("test_covered", "test_counted", "test_all", "test_drawn", "test_drawn_by_night")
    assert [len(of(found[4], test)) for test in tests] == [8, 20, 5, 10, 3] and "test_one" in found[4]
    assert found[5:] == [["test_counted[0]"], ["test_counted[7]"], ["test_counted[14]"]]


def test_a_failure_with_a_fresh_seed_says_how_to_find_its_reason(pytestconfig: pytest.Config) -> None:
    lines: list[str] = []
    failed = [SimpleNamespace(nodeid=f"tests/{n}.py::test[7]", keywords=words) for n, words in KEYWORDS.items()]
    reporter = SimpleNamespace(
        stats={"failed": failed}, config=pytestconfig, section=lines.append, write_line=lines.append
    )
    pytest_terminal_summary(reporter)
    assert "1 of the failed tests draw anew" in lines[1]
    assert f"pytest --seed {pytestconfig.stash[SEED]} tests/drawn.py tells" in lines[2]
