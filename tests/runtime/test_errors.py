"""The shape of error messages, and what survives a process border."""

from __future__ import annotations

import pickle

import pytest

from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError, TilewrightError, error_class
from tilewright.runtime.report import Report


def test_message_has_what_where_and_hint() -> None:
    error = InputError("wrong shape", where="node 'a' (Conv)", hint="reshape it")
    assert str(error) == "wrong shape\n  where: node 'a' (Conv)\n  hint: reshape it"
    assert str(ArtifactError("damaged")) == "damaged"


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(ExecutionError("no memory", where="k0", hint="use less")))
    assert type(error) is ExecutionError and str(error) == "no memory\n  where: k0\n  hint: use less"


@pytest.mark.parametrize(
    ("kind", "expected"), [("input", InputError), ("execution", ExecutionError), ("new kind", ExecutionError)]
)
def test_kinds_of_native_errors(kind: str, expected: type[TilewrightError]) -> None:
    assert error_class(kind) is expected and issubclass(expected, TilewrightError)


def remark(kind: str) -> dict[str, str]:
    return {"stage": "fuse", "subject": "add", "message": "of that kind", "kind": kind}


def test_remarks_of_files_of_earlier_versions_are_texts() -> None:
    report = Report({"remarks": ["[fuse] add: not done: it is read twice", remark("applied")]})
    assert [r["message"] for r in report.remarks] == ["[fuse] add: not done: it is read twice", "of that kind"]
    assert all(r.keys() == remark("missed").keys() for r in report.remarks)
    assert Report({}).remarks == ()


def test_report_prints_values_records_and_tables() -> None:
    report = Report(
        {
            "nodes": 3,
            "remarks": [remark("missed"), remark("failed"), "[fuse] add: not done: of an earlier version"],
            "times": {"load": 1.5},
            "kernels": [{"name": "k0", "us": 1.23456}, {"name": "long", "n": 7}],
        }
    )
    assert str(report).splitlines() == [
        "nodes: 3",
        "remarks: 3",
        "  failed: fuse: add: of that kind",
        "",
        "times:",
        "  load: 1.5",
        "",
        "kernels:",
        "  name     us  n",
        "  k0    1.235   ",
        "  long         7",
    ]
