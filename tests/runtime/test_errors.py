"""The shape of error messages, and what survives a process border."""

from __future__ import annotations

import pickle

import pytest

from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError, TilewrightError, error_class


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
