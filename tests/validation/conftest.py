"""What tests of validation share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tilewright import compiler


@pytest.fixture
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without what makes failures of optional steps errors of tests."""
    monkeypatch.setattr(compiler, "failures_are_errors", lambda options: options.verify or options.strict)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
