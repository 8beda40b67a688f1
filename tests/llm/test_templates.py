"""Chat templates: what Hugging Face's use, and what hostile ones try."""

from __future__ import annotations

import datetime
import re
import sys
from typing import Any

import pytest

from tilewright.ir.diag import ModelError
from tilewright.llm import templates
from tilewright.llm.guarded import LimitError, within
from tilewright.llm.templates import ChatTemplate
from tilewright.runtime.errors import InputError

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT = [{"role": "user", "content": " Hi <b> "}]


def rendered(text: str, messages: Any = CHAT, **given: Any) -> str:
    return ChatTemplate(text, {"bos_token": "<s>"}, "x.gguf").render(messages, **given)


def test_a_chat_becomes_the_prompt_of_its_model() -> None:
    expected = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n Hi <b> <|im_end|>\n"
    )
    assert rendered(SMOLLM) == expected + "<|im_start|>assistant\n"
    assert rendered(SMOLLM, add_generation_prompt=False) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] | trim }}", "<s>Hi <b>"),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}"
         "{% endfor %}", "013"),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{{ {'a': '<é>', 'b': [1, None, true]} | tojson }}", '{"a": "<é>", "b": [1, null, true]}'),
        ("{{ [1, 2] | tojson(indent=2) }}", "[\n  1,\n  2\n]"),
        ("{% set ns = namespace(found=false) %}{% for m in messages %}{% set ns.found = true %}{% endfor %}"
         "{{ ns.found }}", "True"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ messages | map(attribute='role') | join(', ') }}{{ 'a b'.split(' ')[-1] }}", "userb"),
        ("{{ dict(a=1).items() | list }}{{ 'abc'[::-1] }}{{ 7 // 2 }}{{ 2 ** 10 }}", "[('a', 1)]cba31024"),
        ("{{ '%05d %s' % (42, 'x') }}{{ '{:>4}'.format('y') }}{{ 'a-b' | replace('-', '+') }}", "00042 x   ya+b"),
        ("{% macro said(who) %}[{{ who }}{{ caller() }}]{% endmacro %}{% call said('I') %}!{% endcall %}", "[I!]"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{{ tools is none }}{{ missing is defined }}{{ extra }}", "TrueFalse5"),
        ("{{ 12345678 | string }}{{ 3.75 | round(1) }}{{ [3, 1] | sort }}", "123456783.8[1, 3]"),
    ],
)  # fmt: skip
def test_what_templates_use(text: str, expected: str) -> None:
    assert rendered(text, extra=5) == expected


def test_what_is_made_as_it_is_used_may_be_as_much_as_a_value() -> None:
    assert rendered("{{ range(3) | map('string') | map('center', 3) | list | join('|') }}") == " 0 | 1 | 2 "
    assert rendered("{{ '-'.join(range(2) | map('string')) }}") == "0-1"
    assert rendered("{{ range(99) | map('center', 100000) | map('length') | sum }}") == "9900000"


def test_templates_know_the_day() -> None:
    before = datetime.date.today()
    assert before.isoformat() <= rendered("{{ strftime_now('%Y-%m-%d') }}") <= datetime.date.today().isoformat()


def test_templates_get_copies_of_plain_data() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}], "tool_calls": None}
    assert (
        rendered("{{ messages[0] | tojson }}", [message])
        == '{"role": "user", "content": [{"type": "text", "text": "a"}]}'
    )
    assert (
        rendered("{{ messages[0].tool_calls is defined }}", [message]) == "False"
    )  # as if it were not there
    assert rendered("{{ messages[0].content[0].text }}", [message], written=lambda text: text * 2) == "aa"
    assert rendered("{{ messages[0].role }}", [message], written=lambda text: text * 2) == "user"
    with pytest.raises(InputError, match="message 0 has object: give texts, numbers, lists and dicts"):
        rendered("", [{"role": "user", "content": object()}])
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InputError, match="too deep"):
        rendered("", [{"role": "user", "content": deep}])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hi", "messages are a list, not str"),
        ({"role": "user"}, "messages are a list, not dict"),
        ([], "there are no messages"),
        ([{"content": "a"}], 'message 0 has no "role"'),
        ([*CHAT, "Hi"], 'message 1 has no "role"'),
        ([{"role": 3, "content": "a"}], 'message 0 has no "role"'),
    ],
)
def test_messages_that_are_none_are_told(messages: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        rendered(SMOLLM, messages)


def test_what_a_template_refuses_is_the_fault_of_the_messages() -> None:
    with pytest.raises(InputError, match=r"refuses these messages: roles must alternate(?s:.*)trained with"):
        rendered("{{ raise_exception('roles must alternate') }}")


TWICE = "{% set ns = namespace(x='ab') %}{% for i in range(100) %}STEP{% endfor %}{{ ns.x }}"
HOSTILE = {
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}": "longer than 0.3 seconds",
    "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}": "longer than 0.3",
    "{% macro m(n) %}{{ m(n+1) }}{% endmacro %}{{ m(0) }}": "recursion",
    "{{ " + "(" * 500 + "1" + ")" * 500 + " }}": "recursion",
    "{{ 9 ** (9 ** 9) }}": "more than 4096 bits",
    "{{ 'a' * 10 ** 9 }}": "more than 16777216 characters",
    "{{ 10 ** 9 * [1] }}": "more than 16777216 characters",
    "{{ 'a' | center(10 ** 9) }}": "'center' is given a number above",
    "{{ 'a'.ljust(10 ** 9) }}": "'ljust' is given a number above",
    "{{ 1.5 | round(10 ** 9, 'ceil') }}": "'round' is given a number above",
    "{{ '%1000000000d' % 1 }}": "more than five digits",
    "{{ '%1000000000d' | format(1) }}": "more than five digits",
    "{{ '%*d' % (10 ** 9, 1) }}": "'format' is given a number above",
    "{{ '{:>1000000000}'.format('a') }}": "more than five digits",
    "{{ '{:>{}}'.format('a', 10 ** 9) }}": "'format' is given a number above",
    "{{ '{a:>1000000000}'.format_map({'a': 1}) }}": "more than five digits",
    "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}": "more than 16777216 characters",
    "{{ ('a' * 100000).replace('', 'b' * 100000) }}": "more than 16777216 characters",
    "{{ ('a' * 100000) | list | join('b' * 100000) }}": "more than 16777216 characters",
    "{{ ('b' * 100000).join(['a'] * 100000) }}": "more than 16777216 characters",
    "{{ ('\t' * 100000).expandtabs(100000) }}": "more than 16777216 characters",
    "{{ '%s' * 50000 % (('a' * 100000,) * 50000) }}": "more than 16777216 characters",
    TWICE.replace("STEP", "{% set ns.x = ns.x ~ ns.x %}"): "more than 16777216 characters",
    TWICE.replace("STEP", "{% set ns.x = ns.x + ns.x %}"): "more than 16777216 characters",
    TWICE.replace("STEP", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"): "more than 16777216",
    TWICE.replace("STEP", "{% set ns.x = 'a{}{}'.format(ns.x, ns.x) %}"): "more than 16777216 characters",
    TWICE.replace("'ab'", "3").replace("STEP", "{% set ns.x = ns.x * ns.x %}"): "more than 4096 bits",
    TWICE.replace("STEP", "{% set ns.x = (ns.x, ns.x) %}"): "longer than 0.3 seconds|more than 16777216",
    TWICE.replace("STEP", "{% set ns.x = [ns.x, ns.x] %}"): "longer than 0.3 seconds|more than 16777216",
    TWICE.replace("STEP", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}"): "longer than 0.3 seconds|more than 16777216",
    "{% for i in range(100000) %}{{ 'a' * 100000 }}{% endfor %}": "longer than 0.3 seconds|writes more than",
    "{{ range(100000) | map('center', 100000) | list | length }}": "a value of more than 16777216 characters",
    "{{ range(100000) | map('center', 100000) | sort | length }}": "a value of more than 16777216 characters",
    "{{ ''.join(range(100000) | map('center', 100000)) | length }}": "a value of more than 16777216 characters",
    "{{ ''.__class__.__mro__ }}": "access to attribute '__class__' of 'str' object is unsafe",
    "{{ messages.append(1) }}": "'append' of 'list' object is unsafe",
    "{{ range(10 ** 9) | list }}": "Range too big",
    "{{ 'x'.translate({120: 'y' * 100000}) }}": "texts have no method 'translate'",
    "{{ 'x'.encode('utf-8') }}": "texts have no method 'encode'",
    "{% set ns = namespace(__class__=1) %}": "a namespace has no '__class__'",
    "{% set ns = namespace() %}{% set ns.__init__ = 1 %}": "a namespace has no '__init__'",
    "{{ strftime_now('%1000000000d') }}": "takes a form such as",
    "{{ 'a' | urlize }}": "No filter named 'urlize'",
    "{% include 'x' %}": "no loader",
    "{{ missing.field }}": "'missing' is undefined",
    "{{ 1 / 0 }}": "ZeroDivisionError: division by zero",
    "{{ 'a' + 1 }}": "TypeError",
    "{% if %}": "Expected an expression",
    "{{ open('/etc/passwd') }}": "'open' is undefined",
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_and_broken_templates_end_soon_with_an_error(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "MOST_SECONDS", 0.3 if "longer than" in HOSTILE[text] else 600)
    with pytest.raises(
        ModelError, match=f"(?s)the chat template (fails|cannot be read).*({HOSTILE[text]})"
    ) as told:
        rendered(text)
    assert str(told.value.where).startswith("x.gguf")


def test_the_line_of_a_mistake_is_told() -> None:
    with pytest.raises(ModelError) as told:
        rendered("a\n{% if %}")
    assert told.value.where == "x.gguf, line 2 of the template"
    with pytest.raises(ModelError, match="has 16777217 characters"):
        rendered("a" * (2**24 + 1))


def test_what_runs_too_long_ends_and_a_tracer_stays() -> None:
    def tracer(frame: Any, event: str, arg: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        with pytest.raises(LimitError):
            within(0.05, lambda: [n for n in iter(int, 1)])
        assert sys.gettrace() is tracer
        assert within(9.0, lambda: 5) == 5
    finally:
        sys.settrace(before)
