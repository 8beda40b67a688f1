"""Answers to several prompts at once are those of each alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.llm.checkpoints import CONTEXT, model_file
from tests.llm.serving.servers import chance
from tilewright import llm
from tilewright.llm.serving.together import answered_together
from tilewright.runtime.errors import InputError

PROMPTS = ["the", "state of the state", "Hello, world", [5, 6, 7], "the"]


@pytest.mark.parametrize("how", [{}, {"temperature": 0.8, "seed": 3, "log_probabilities": 2, "stop": "a"}])
def test_they_are_those_of_each_alone(how: dict[str, Any]) -> None:
    model = chance()
    wanted = model.wanted(max_tokens=20, **how)
    asked = [(model.tokens(prompt), wanted) for prompt in PROMPTS * 10]  # more than are computed at once
    for answer, prompt in zip(answered_together(model.sequences, model.tokenizer, asked), PROMPTS * 10, strict=True):
        alone = model.answer(prompt, max_tokens=20, **how)
        assert (answer.text, answer.drawn, answer.reason) == (alone.text, alone.drawn, alone.reason)
        assert answer.prompt_tokens == alone.prompt_tokens and 0 < answer.first_seconds <= answer.seconds
        assert not how or answer.seed == 3


def test_a_model_for_several_answers_lists_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    found = llm.load(model_file(tmp_path / "model.gguf"), sequences=3, threads=1)
    how: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 20}
    alone = [found.generate(prompt, **how) for prompt in PROMPTS]
    assert found.generate(PROMPTS, **how) == alone
    with pytest.raises(InputError, match=f"{CONTEXT + 1} tokens"):
        found.answers(["the", [5] * (CONTEXT + 1)])
