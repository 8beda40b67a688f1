"""What tests of validation share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tilewright import compiler
from tilewright.validation import kernels, validate


@pytest.fixture(autouse=True)
def all_calls_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long they take on this machine now: fewer would find fewer of the faults that are planted."""
    monkeypatch.setattr(validate, "LONG", 600.0)
    monkeypatch.setattr(kernels, "RACE_SECONDS", 600.0)


@pytest.fixture
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without what makes failures of optional steps errors of tests."""
    monkeypatch.setattr(compiler, "failures_are_errors", lambda options: options.verify or options.strict)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
