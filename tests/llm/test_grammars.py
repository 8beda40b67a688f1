"""Answers that keep schemas, grammars and expressions, whatever the model would say."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.llm.test_generation import chance
from tilewright.cli.app import commands
from tilewright.ir.diag import UnsupportedError
from tilewright.llm import loading
from tilewright.runtime.errors import InputError, OptionError

pytest.importorskip("llguidance")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "sunny": {"type": "boolean"},
        "days": {"enum": [1, 2, 3]},
    },
    "required": ["city", "sunny", "days"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(5))
def test_an_answer_keeps_a_schema(seed: int) -> None:
    model = chance(context=4096)
    text = model.generate(
        "the", schema=SCHEMA, max_tokens=3000, temperature=1.0, seed=seed, logit_bias=LESS_SPACE
    )
    found = json.loads(text)
    assert (
        found["city"] in ("Paris", "Rome") and found["days"] in (1, 2, 3) and isinstance(found["sunny"], bool)
    )
    assert model.generate("the", schema=json.dumps(SCHEMA), max_tokens=3000, temperature=1.0, seed=seed,
                          logit_bias=LESS_SPACE) == text  # fmt: skip


def _spaces() -> dict[int, float]:
    """Tokens of white space are unlikely, or a model that says anything goes on with them for ever."""
    words = chance().tokenizer
    return {n: -9.0 for n in range(words.size) if words.piece(n) and not words.piece(n).strip()}


LESS_SPACE = _spaces()


def test_an_answer_keeps_an_expression_and_a_grammar() -> None:
    model = chance(context=4096)
    answer = model.answer("the", regex="[a-c]{3,5}-[0-9]+x", max_tokens=None, temperature=1.0, seed=1)
    assert answer.reason == "end" and re.fullmatch("[a-c]{3,5}-[0-9]+x", answer.text)
    text = model.generate("the", grammar='start: "yes" | "no" " "+ "way"', temperature=2.0, seed=3)
    assert re.fullmatch("yes|no +way", text)
    assert model.answer("the", regex="[a-z]{50}", max_tokens=3).reason == "length"


def test_beams_and_several_constraints_are_refused_and_a_constraint_may_be_ones_own() -> None:
    model = chance()
    with pytest.raises(OptionError, match="schema= and regex= were given"):
        model.answer("the", schema=SCHEMA, regex="a")
    with pytest.raises(OptionError, match="beams="):
        model.answer("the", regex="a", beams=2)

    class Always:
        def allowed(self) -> np.ndarray:
            return np.arange(704) == 300

        def accept(self, token: int) -> None:
            assert token == 300

    assert model.answer("the", constraint=Always, max_tokens=4).tokens == (300,) * 4


@pytest.mark.parametrize("seed", range(3))
def test_where_a_model_must_not_end_an_answer_its_form_does(seed: int) -> None:
    """Behind the last character there is nothing to go on with; before it, the model goes on as long as it may."""
    model = chance(context=4096)
    how: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": seed, "ends": False}
    fixed = model.answer("the", regex="[ab]{4}", **how)
    assert fixed.reason == "end" and re.fullmatch("[ab]{4}", fixed.text)
    assert not model.tokenizer.special.ends & set(fixed.tokens)
    endless = model.answer("the", regex="[ab]+", **how)
    assert endless.reason == "length" and re.fullmatch("[ab]{40,}", endless.text)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "the schema cannot be kept"),
        ({"schema": {"type": "unheard"}}, "the schema cannot be kept"),
        ({"schema": "{"}, "the schema is no JSON schema"),
        ({"schema": {"a": object()}}, "the schema is no JSON schema"),
        ({"schema": False}, "the schema is no JSON schema: it is an object, not bool"),
        ({"schema": [1]}, "the schema is no JSON schema: it is an object, not list"),
        ({"grammar": "start: start"}, "the grammar cannot be kept: no text satisfies it"),
        ({"regex": r"[^\s\S]"}, "the regular expression cannot be kept: no text satisfies it"),
        ({"grammar": "start: nothing"}, "the grammar cannot be kept"),
        ({"regex": "("}, "the regular expression cannot be kept: .*unclosed group"),
        ({"regex": "(?=a)b"}, "the regular expression cannot be kept: .*look-around"),
        ({"schema": {"type": "string", "pattern": "(?=a)b"}}, "the schema cannot be kept: .*look-around"),
    ],
)
def test_constraints_that_are_wrong_are_told(how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        chance().answer("the", **how)


def test_the_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tilewright.llm.grammars", raising=False)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedError, match=r"llguidance is not installed(?s:.*)tilewright\[grammars\]"):
        chance().answer("the", regex="a")


def test_the_command_takes_schemas_and_grammars_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chance(context=4096)
    monkeypatch.setattr(loading, "load", lambda path, **options: model)
    (tmp_path / "s.json").write_text(json.dumps({"enum": ["a", "b"]}))
    (tmp_path / "g.lark").write_text('start: "yes" | "no"')

    def said(*arguments: object) -> str:
        result = CliRunner().invoke(commands, ["generate", "m.gguf", "--prompt", "the", *map(str, arguments)])
        assert result.exit_code == (2 if len(arguments) == 4 else 0), result.output
        return result.output.strip()

    assert json.loads(said("--schema", tmp_path / "s.json")) in ("a", "b")
    assert said("--grammar", tmp_path / "g.lark") in ("yes", "no")
    assert "give one of them" in said("--schema", tmp_path / "s.json", "--grammar", tmp_path / "g.lark")


@pytest.mark.parametrize("given", ["a\ud800", 5])
@pytest.mark.parametrize("form", ["regex", "grammar"])
def test_forms_that_are_no_texts_are_refused(form: str, given: Any) -> None:
    with pytest.raises(InputError, match="is no text"):
        chance().generate("the", **{form: given})


@pytest.mark.parametrize("schema", ['{"const": -9223372036854775808}', '{"enum": [[-9223372036854775807]]}',
                                    '{"type": "integer", "minimum": -1e300, "maximum": -1E+299}'])  # fmt: skip
def test_numbers_that_end_the_process_are_refused(schema: str) -> None:
    model = chance()
    for form in ({"schema": schema}, {"schema": json.loads(schema)}, {"grammar": f"start: %json {schema}"}):
        with pytest.raises(InputError, match="which is not supported"):
            model.generate("the", **form)
    near = {"const": -9000000000000000000}
    assert model.generate("the", schema=near, max_tokens=40).strip() == "-9000000000000000000"
