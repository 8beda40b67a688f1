"""What workers leave out of what they tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from xdist.remote import WorkerInteractor

from tests.reports import FewerReports, reports_less


def test_what_passes_is_told_once_and_all_that_fails() -> None:
    sent: list[str] = []
    worker = SimpleNamespace(sendevent=lambda name, **given: sent.append(f"{name} {given.get('data', '')}"))
    plugins = SimpleNamespace(get_plugins=lambda: [object(), worker])
    less = FewerReports(cast(Any, SimpleNamespace(pluginmanager=plugins)))
    assert hasattr(WorkerInteractor, "sendevent")

    def told(when: Any, outcome: Any = "passed", seconds: float = 0.0, printed: str = "") -> bool:
        sections = [("Captured stdout", printed)] if printed else []
        report = pytest.TestReport(
            "a::b", ("a", 1, "b"), {}, outcome, "why", when, sections=sections, duration=seconds
        )  # fmt: skip
        data = less.pytest_report_to_serializable(report)
        before = len(sent)
        worker.sendevent("testreport", data={"whole": True} if data is None else data)
        return len(sent) > before

    assert told("call") and told("call", "failed") and told("setup", "failed") and told("teardown", "failed")
    assert told("setup", "skipped") and told("setup", seconds=1.0) and told("teardown", printed="text")
    assert not told("setup") and not told("teardown")
    for name in ("logstart", "logfinish", "runtest_protocol_complete", "workerfinished"):
        worker.sendevent(name)
    assert [name.split()[0] for name in sent[-2:]] == ["runtest_protocol_complete", "workerfinished"]
    assert less.pytest_report_to_serializable(pytest.CollectReport("a", "failed", None, [])) is None


def test_runs_that_need_more_are_told_all() -> None:
    def less(verbosity: int = -1, **option: Any) -> bool:
        options = SimpleNamespace(resume=None, **option)
        config = SimpleNamespace(option=options, workerinput={}, get_verbosity=lambda: verbosity)
        return reports_less(cast(Any, config))

    assert less() and less(0, xmlpath=None)
    assert not less(1) and not less(xmlpath="report.xml")
