"""Long runs that go on where one ended before: with the tests that have not passed yet."""

from __future__ import annotations

from pathlib import Path

import pytest


class Progress:
    """The tests that have passed in a run, in a file that begins with its seed, which is removed when all have."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seed: int | None = None
        self.passed: frozenset[str] = frozenset()
        self._failed: set[str] = set()
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""  # a run may have ended within a line
        if whole:
            seed, *passed = whole.splitlines()
            self.seed, self.passed = int(seed), frozenset(passed)

    def begin(self, seed: int) -> None:
        """A run with this seed begins, or goes on: fresh seeds name other tests than those of another run."""
        if seed != self.seed:
            self.seed, self.passed = seed, frozenset()
        self._path.write_text("".join(f"{line}\n" for line in (seed, *sorted(self.passed))))

    def left(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """The tests that have not passed before."""
        return [item for item in items if item.nodeid not in self.passed]

    def note(self, report: pytest.TestReport) -> None:
        """A phase of a test has ended; it has passed, or was skipped, when all of them have."""
        if report.failed:
            self._failed.add(report.nodeid)
        if report.when == "teardown" and report.nodeid not in self._failed:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def end(self, status: int) -> None:
        """The run has ended; one of which nothing is left leaves no file."""
        if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            self._path.unlink(missing_ok=True)
