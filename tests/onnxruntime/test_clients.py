"""Programs from PyPI answer the same with either engine; those that are not installed are left out."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from bench import clients

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("name", clients.CLIENTS)
def test_an_unchanged_client_answers_the_same(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    real, ours = (clients.run(name, engine, 1, str(tmp_path)) for engine in (clients.REAL, clients.OURS))
    assert clients.agree(ours.answer, real.answer), (ours.answer, real.answer)


def test_answers_agree_within_the_tolerance_only() -> None:
    assert clients.agree({"a": [1.0, "b"]}, {"a": [1.001, "b"]})
    for other in ({"a": [1.1, "b"]}, {"a": [1.0, "c"]}, {"a": [1.0]}, {"b": []}, {"a": ["1", "b"]}):
        assert not clients.agree(other, {"a": [1.0, "b"]})
