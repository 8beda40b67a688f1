"""What a worker of pytest-xdist tells its controller of each test: that it has passed, in one message and not in five.

The controller takes a hundredth of a second for ten messages, on the cores that the workers run on."""

from __future__ import annotations

from typing import Any

import pytest

SHORT = 0.01
"""Seconds of a set-up or clean-up that is told although it has passed: `--durations` lists those."""

_UNTOLD = {"untold": True}


def reports_less(config: pytest.Config) -> bool:
    """Whether this is a worker of a run that writes a letter for each test, and no file about them."""
    option = config.option
    needs_more = config.get_verbosity() > 0 or option.resume is not None or getattr(option, "xmlpath", None) is not None
    return hasattr(config, "workerinput") and not needs_more


class FewerReports:
    """A plugin of workers that leaves out that a test begins and ends, and what passed before and after it."""

    def __init__(self, config: pytest.Config) -> None:
        for worker in config.pluginmanager.get_plugins():
            if hasattr(worker, "sendevent"):
                self._send, worker.sendevent = worker.sendevent, self._send_if_told

    def _send_if_told(self, name: str, **given: Any) -> None:
        if name not in ("logstart", "logfinish") and "untold" not in given.get("data", ()):
            self._send(name, **given)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(self, report: pytest.CollectReport | pytest.TestReport) -> dict[str, Any] | None:
        is_told = report.when == "call" or not report.passed or report.sections or report.duration >= SHORT
        return None if isinstance(report, pytest.CollectReport) or is_told else dict(_UNTOLD)
