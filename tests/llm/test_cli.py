"""`tilewright generate` and `chat`, with decoders of NumPy in place of compiled ones."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.llm.test_generation import chance, says
from tilewright.cli.app import commands
from tilewright.llm import loading
from tilewright.llm.model import LanguageModel
from tilewright.llm.templates import ChatTemplate
from tilewright.runtime.errors import InputError, OptionError

Loaded = Callable[..., None]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the commands load a model; the options that they load it with."""
    asked: dict[str, Any] = {}

    def give(model: LanguageModel) -> dict[str, Any]:
        def load(path: Path, **options: Any) -> LanguageModel:
            asked.update(options, path=path)
            return model

        monkeypatch.setattr(loading, "load", load)
        return asked

    return give


def call(*arguments: object, said: str | bytes | None = None) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments], input=said)


def test_the_text_alone_goes_to_the_standard_output(loaded: Any) -> None:
    asked = loaded(says("Paris 🙂\tand\nso on"))
    result = call(
        "generate", "m.gguf", "--prompt", "Where?", "--threads", 1, "--context", 99, "--weights", "int8"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout == "Paris 🙂\tand\nso on\n" and result.stderr == ""
    assert (asked["threads"], asked["context"], asked["weights"], asked["cache"]) == (1, 99, "int8", True)


def test_prompts_come_from_options_files_and_pipes(loaded: Any, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("Where?")
    model = says("Paris")
    loaded(model)
    for arguments in (["--prompt", "Where?"], ["--prompt-file", str(tmp_path / "q.txt")]):
        result = call("generate", "m.gguf", *arguments, "--json")
        assert json.loads(result.stdout)["prompt tokens"] == len(model.tokens("Where?")), result.output
    piped = call("generate", "m.gguf", "--json", said="Where?\n")
    assert json.loads(piped.stdout)["prompt tokens"] == len(model.tokens("Where?"))
    chat = call("generate", "m.gguf", "--json", "--chat", "--system", "Be brief.", "--prompt", "Where?")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
    assert json.loads(chat.stdout)["prompt tokens"] == len(model.tokens(messages))


def test_statistics_go_to_the_error_stream(loaded: Any) -> None:
    loaded(says("Paris"))
    result = call("generate", "m.gguf", "--prompt", "Where?", "--stats", "--seed", 3)
    assert result.stdout == "Paris\n"
    for part in ("tokens of the prompt", "first token after", "ended by: end", "seed 3", "loaded in"):
        assert part in result.stderr


def test_an_answer_as_json_has_its_tokens_and_how_likely_they_were(loaded: Any) -> None:
    model = says("Paris is")
    loaded(model)
    result = call(
        "generate", "m.gguf", "--prompt", "Where?", "--json", "--log-probabilities", 2, "--max-tokens", 2
    )
    record = json.loads(result.stdout)
    assert record["tokens"] == model.tokenizer.encode("Paris is")[:2] and record["reason"] == "length"
    first = record["log probabilities"][0]
    assert first["token"] == record["tokens"][0] and len(first["top"]) == 2
    assert first["text"] == first["top"][0]["text"] and first["log probability"] == pytest.approx(0, abs=1e-3)


def test_settings_reach_the_sampler(loaded: Any) -> None:
    model = chance()
    loaded(model)
    how = {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95, "seed": 5, "max_tokens": 9,
           "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.2}  # fmt: skip
    options = [part for name, value in how.items() for part in (f"--{name.replace('_', '-')}", value)]
    result = call("generate", "m.gguf", "--prompt", "the", *options, "--logit-bias", "300=-inf", "--json")
    expected = model.answer("the", logit_bias={300: float("-inf")}, **how)
    assert json.loads(result.stdout)["tokens"] == list(expected.tokens), result.output
    beams = call("generate", "m.gguf", "--prompt", "the", "--beams", 2, "--max-tokens", 3)
    assert beams.stdout == model.generate("the", beams=2, max_tokens=3) + "\n"
    stopped = call("generate", "m.gguf", "--prompt", "the", "--stop", "e", "--stop", "a", "--max-tokens", 40)
    assert stopped.stdout == model.generate("the", stop=["e", "a"], max_tokens=40) + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "a", "--prompt-file", "b"], "give one of them"),
        (["--prompt", "a", "--system", "b"], "--system needs --chat"),
        (["--prompt", "a", "--log-probabilities", "2"], "--log-probabilities needs --json"),
        (["--prompt", "a", "--temperature", "-1"], "temperature"),
        (["--prompt", "a", "--logit-bias", "x=1"], "write TOKEN=BIAS"),
        (["--prompt", "a", "--logit-bias", "1=1", "--logit-bias", "1=2"], "given twice for 1"),
    ],
)
def test_command_lines_that_are_wrong_are_told(arguments: list[str], message: str, loaded: Any) -> None:
    loaded(says("x"))
    result = call("generate", "m.gguf", *arguments)
    assert result.exit_code == 2 and message in result.output


@pytest.mark.parametrize(
    ("arguments", "said", "message"),
    [
        (["--prompt", ""], None, "the prompt has no tokens"),
        ([], b"a\xff", "is no character"),
        (["--prompt", "a " * 5000], None, "but the context has 4096 positions"),
        (["--prompt", "a", "--logit-bias", "9999=1"], None, "names the token 9999"),
        (["--prompt-file", "absent.txt"], None, "the text cannot be read: No such file or directory where: absent.txt"),
        (["--prompt", "a", "--schema", "absent.json"], None, "cannot be read: No such file or directory where: absent"),
        (["--prompt-file", "a" * 300], None, "the text cannot be read: File name too long"),
    ],
)
def test_prompts_that_are_wrong_are_told(
    arguments: list[str], said: bytes | None, message: str, loaded: Any
) -> None:
    loaded(says("x"))
    result = call("generate", "m.gguf", *arguments, said=said)
    assert result.exit_code == 1 and message in " ".join(result.output.split()), result.output
    assert result.stdout == ""


def test_a_chat_from_a_pipe_answers_each_line(loaded: Any) -> None:
    loaded(says("Hello!", "Hello again!"))
    result = call("chat", "m.gguf", said="Hi\n\nAnd?\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Hello!\nHello again!\n" and result.stderr == ""
    loaded(says("Hello!", "Hello again!"))
    last = call("chat", "m.gguf", "--stats", said="Hi")
    assert last.stdout == "Hello!\n" and "tokens of the prompt" in last.stderr


def test_a_chat_that_is_too_long_ends_a_pipe(loaded: Any) -> None:
    loaded(says("ok", context=40))
    result = call("chat", "m.gguf", said="Hi\n" + "many words " * 50)
    assert result.exit_code == 1 and result.stdout == "ok\n" and "40 positions" in result.stderr


def test_errors_of_loading_have_the_exit_code_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path, **options: Any) -> LanguageModel:
        raise InputError("no such thing")

    monkeypatch.setattr(loading, "load", load)
    assert call("generate", "m.gguf", "--prompt", "a").exit_code == 1
    told = call("generate", "m.gguf", "--prompt", "a", "--json")
    assert json.loads(told.stdout)["error"]["what"] == "no such thing"


def slow_chat() -> None:
    """A program: `tilewright chat` on a terminal, with a model that takes a while for each token."""
    from tests.llm.decoders import Scripted

    class Slow(Scripted):
        def feed(self, tokens: Any) -> Any:
            time.sleep(0.05)
            return super().feed(tokens)

    model = says("one " * 300, "two three")
    decoder = model._root
    decoder.__class__ = Slow
    chat_with(model)


def forgetful_chat() -> None:
    """The same, with a template that fails for one message."""
    model = says("one", "two")
    text = "{% for m in messages %}{{ m.content }}{% if m.content == 'fail' %}{{ 1 / 0 }}{% endif %}{% endfor %}"
    chat_with(LanguageModel(model._root, model.tokenizer, ChatTemplate(text, {}, "x")))


def chat_with(model: LanguageModel) -> None:
    from unittest.mock import patch

    from tilewright.cli import main

    sys.argv = ["tilewright", "chat", "m.gguf"]
    with patch.object(loading, "load", lambda path, **options: model):
        main()


class Terminal:
    """A program of this file on a terminal of its own, which `shown` so much since it was last cleared."""

    def __init__(self, name: str, parent: int, child: int, environment: dict[str, str]) -> None:
        self._parent, self.shown = parent, b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import tests.llm.test_cli as t; t.{name}()"],
            stdin=child,
            stdout=child,
            stderr=child,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **environment},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def types(self, text: bytes) -> None:
        self.shown = b""
        os.write(self._parent, text)

    def until(self, wanted: bytes) -> None:
        end = time.monotonic() + 240
        while wanted not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self._parent], [], [], 1)[0]:
                self.shown += os.read(self._parent, 4096)


@contextlib.contextmanager
def terminal(name: str, **environment: str) -> Iterator[Terminal]:
    import pty

    parent, child = pty.openpty()
    found = Terminal(name, parent, child, environment)
    os.close(child)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        os.close(parent)


@pytest.mark.skipif(os.name != "posix", reason="terminals are POSIX's")
def test_an_interrupt_ends_the_answer_and_not_the_conversation() -> None:
    with terminal("slow_chat") as found:
        found.until(b"> ")
        found.types(b"Hi\n")
        found.until(b"one one one")
        found.shown = b""
        found.process.send_signal(signal.SIGINT)
        found.until(b"\r\n> ")
        time.sleep(0.8)  # longer than a command is given to end
        assert found.process.poll() is None
        found.types(b"And?\n")
        found.until(b"two three\r\n> ")
        found.types(b"/clear\n")
        found.until(b"> ")
        found.types(b"/exit\n")
        assert found.process.wait(60) == 0


@pytest.mark.skipif(os.name != "posix", reason="terminals are POSIX's")
def test_no_message_ends_a_conversation_at_a_terminal() -> None:
    """Neither one that a template cannot be filled with, nor bytes that are no text, whatever the locale says of
    them."""
    with terminal("forgetful_chat", PYTHONIOENCODING="utf-8:strict") as found:
        found.until(b"> ")
        found.types(b"fail\n")
        found.until(b"ZeroDivisionError")
        found.until(b"/clear begins anew, /exit ends\r\n> ")
        found.types(b"a\xff\n")
        found.until(b"is no character (U+DCFF)")
        found.until(b"> ")
        found.types(b"Hi\n")
        found.until(b"one\r\n> ")
        found.types(b"/exit\n")
        assert found.process.wait(60) == 0


class Lengths:
    """Vectors of how many tokens there are, and of the first and the last one."""

    def embed(self, tokens: list[int], pooling: str) -> np.ndarray:
        return np.array([len(tokens), tokens[0], tokens[-1]], np.float32)


def test_vectors_of_texts_from_arguments_files_and_pipes(loaded: Any, tmp_path: Path) -> None:
    model = says("")
    model._make_embedder = Lengths  # type: ignore[assignment]
    asked = loaded(model)
    texts = ["a cat", "日本 🙂", "a dog and a cat"]
    wanted = model.embed(texts, normalise=False)
    (tmp_path / "texts.txt").write_text("\n\n".join(texts[1:]) + "\n")
    result = call("embed", "m.gguf", texts[0], "--file", tmp_path / "texts.txt", "--raw", "--threads", 1)
    assert result.exit_code == 0 and asked["threads"] == 1, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["text"] for line in lines] == texts
    np.testing.assert_array_equal([line["embedding"] for line in lines], wanted)
    out = tmp_path / "out.npy"
    result = call("embed", "m.gguf", "-o", out, "--pooling", "last", said="\n".join(texts))
    assert result.exit_code == 0 and result.stdout == "", result.output
    np.testing.assert_allclose(np.load(out), model.embed(texts, pooling="last"))
    assert call("embed", "m.gguf", "a", "-o", out).exit_code == 0 and np.load(out).shape == (1, 3)
    for place in (tmp_path / "texts.txt", tmp_path / "gone" / "out.npy"):
        before = place.read_bytes() if place.exists() else None
        result = call("embed", "m.gguf", "a", "-o", place)
        assert result.exit_code == 1 and str(place) in result.output
        assert before is None or place.read_bytes() == before
    assert call("embed", "m.gguf", "a", "-o", tmp_path / "texts.txt", "--force").exit_code == 0
    for arguments, said, message in (
        ((), "\n \n", "there is no text"), ((), b"\xff", "no text in UTF-8"), (("--pooling", "max"), "a", "--pooling"),
    ):  # fmt: skip
        result = call("embed", "m.gguf", *arguments, said=said)
        assert result.exit_code in (1, 2) and message in result.output


@pytest.mark.parametrize("draft", [True, "", 3, b"lookup"])
def test_drafts_that_are_no_paths(draft: Any) -> None:
    with pytest.raises(OptionError, match=r"draft=.* is not allowed: give 'lookup', or the path of a smaller model"):
        loading.load("m.gguf", draft=draft)
