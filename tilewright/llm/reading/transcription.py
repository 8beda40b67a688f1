"""What a model of speech is asked for: the tokens that its answer begins with, by language and task."""

from __future__ import annotations

import numpy as np

from tilewright.llm.tokens.tokenizer import Tokenizer
from tilewright.runtime.errors import InputError, short_name

TASKS = ("transcribe", "translate")
_UNTIMED = "<|notimestamps|>"


def begin_of(tokenizer: Tokenizer, language: str | None, task: str, logits: np.ndarray | None) -> list[int]:
    """Tokens behind the first one: the language, found by the `logits` behind the first one where it is not said, the
    task, and that no times are wanted. Of models of one language the last alone."""
    if task not in TASKS:
        raise InputError(f"task={task!r:.40} is not allowed: one of {', '.join(TASKS)}")
    named = {tokenizer.control_text(token): token for token in sorted(tokenizer.special.control)}
    untimed = [named[_UNTIMED]] if _UNTIMED in named else []
    languages = {name[2:-2]: token for name, token in named.items() if _is_language(name)}
    if not languages or f"<|{task}|>" not in named:
        if language is not None or task != TASKS[0]:
            raise InputError("the model knows one language, and transcribes it", hint="leave language and task out")
        return untimed
    if language is not None and language not in languages:
        raise InputError(
            f"the model does not know the language '{short_name(language, 40)}'",
            hint=f"it knows {short_name(', '.join(sorted(languages)), 400)}",
        )
    found = languages.get(language or "")
    if found is None:
        heard = np.zeros(tokenizer.size) if logits is None else logits
        found = max(languages.values(), key=lambda token: float(heard[token]))
    return [found, named[f"<|{task}|>"], *untimed]


def _is_language(name: str) -> bool:
    """Codes of two or three letters, as <|en|>."""
    code = name[2:-2]
    return name.startswith("<|") and name.endswith("|>") and code.isalpha() and code.islower() and len(code) in (2, 3)
