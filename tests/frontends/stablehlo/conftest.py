"""The bindings of jaxlib are an extra: without them there is nothing to test here but the message that says so."""

import importlib.util

import pytest

HAS_BINDINGS = importlib.util.find_spec("jaxlib") is not None

collect_ignore_glob = [] if HAS_BINDINGS else ["test_[!a]*.py"]


@pytest.fixture
def first_read_by_a_child() -> None:
    """For tests of what comes from files, bytes that are damaged, and errors: a process of its own reads it first, as
    for users."""


@pytest.fixture(autouse=True)
def read_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that read each program before take most of the time of these tests, whose programs do not end
    any."""
    if HAS_BINDINGS and first_read_by_a_child.__name__ not in request.fixturenames:
        monkeypatch.setattr("tilewright.frontends.stablehlo.parsing._check", lambda data, where: None)
