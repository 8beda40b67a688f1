"""Every other worker of a run collects from the last folder to the first: where there is no bytecode yet, as in a fresh
environment, a module is compiled by the worker that comes to it first, and read by the other one."""

from __future__ import annotations

from collections.abc import Generator

import pytest


def collects_backwards(config: pytest.Config) -> bool:
    """Whether this process is every other worker, which collects one folder as the others do."""
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    return int(worker.removeprefix("gw")) % 2 == 1 and len(config.args) == 1


class Backwards:
    """A plugin that reverses what is in a folder, and puts the tests in their order in the end."""

    def __init__(self) -> None:
        self._places: dict[pytest.Item | pytest.Collector, int] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if isinstance(collector, pytest.Directory):
            self._places.update((node, k) for k, node in enumerate(report.result))
            report.result.reverse()
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: [self._places.get(node, 0) for node in item.listchain()])
