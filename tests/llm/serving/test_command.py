"""`tilewright serve` as a process of its own, with a small checkpoint, and what is wrong with its command line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from tests.llm.checkpoints import WIDTH, model_file
from tests.llm.test_generation import chance
from tilewright import llm
from tilewright.cli.app import commands
from tilewright.llm import loading
from tilewright.llm.serving.http import running

ROOT = Path(__file__).parents[3]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, ["serve", *map(str, arguments)])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, beside a cache of its own: of two servers one compiles it."""
    return model_file(tmp_path_factory.mktemp("served") / "small.gguf")


@pytest.fixture
def process(small: Path) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    path = small
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(path.parent / "cache"), "TILEWRIGHT_API_KEY": "secret"}
    found = subprocess.Popen(
        [sys.executable, "-m", "tilewright", "serve", str(path), "--port", "0", "--threads", "1", "--parallel", "3"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert found.stdout is not None
    line = found.stdout.readline()
    try:
        assert line.startswith("small at http://127.0.0.1:"), line + (found.stderr.read() if found.stderr else "")
        yield found, line.split()[2], path
    finally:
        found.kill()
        found.communicate()


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_it_is_interrupted(process: Any, number: int) -> None:
    server, url, path = process
    with httpx.Client(base_url=url, timeout=120, headers={"authorization": "Bearer secret"}) as client:
        fields = {"model": "small", "prompt": "Once upon", "max_tokens": 12, "temperature": 0}
        found = client.post("/completions", json=fields).json()["choices"][0]["text"]
        assert found == llm.load(path, threads=1).generate("Once upon", max_tokens=12)
        assert client.post("/completions", json=fields, headers={"authorization": ""}).status_code == 401
        if number == signal.SIGINT:  # once is enough
            vector = client.post("/embeddings", json={"model": "small", "input": "Once"}).json()["data"][0]["embedding"]
            assert len(vector) == WIDTH and abs(sum(x * x for x in vector) - 1) < 1e-5
        chat = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "stream": True,
                "ignore_eos": True}  # fmt: skip
        with client.stream("POST", "/chat/completions", json=chat) as response:
            lines = response.iter_lines()
            first = next(lines)
            server.send_signal(number)
            rest = [line for line in lines if line]
        assert first.startswith("data: {") and rest[-1] == "data: [DONE]"
        assert "the server ends" in rest[-2] or '"finish_reason":"length"' in rest[-2]  # it may have been quick
    assert server.wait(120) == 0
    assert server.stderr.read() == "ended\n"


def test_a_place_where_it_cannot_listen_is_told_before_the_model_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = call(tmp_path / "no.gguf", "--port", taken.getsockname()[1])
    assert result.exit_code == 1 and "cannot listen at 127.0.0.1:" in result.stderr and "--port" in result.stderr
    lost = call(tmp_path / "no.gguf", "--port", 0, "--host", "no.such.host.invalid")
    assert lost.exit_code == 1 and "cannot listen at no.such.host.invalid:0" in lost.stderr
    long = call(tmp_path / "no.gguf", "--port", 0, "--host", "a" * 300)
    assert long.exit_code == 1 and "cannot listen" in long.stderr


def test_a_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = call(tmp_path / "no.gguf", "--port", 0)
    assert result.exit_code == 1 and "no.gguf" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--api-key", " "], "a key has at least one character"),
        (["--parallel", "0"], "--parallel"),
        (["--piece", "0"], "--piece"),
        (["--port", "70000"], "--port"),
        (["--queue", "-1"], "--queue"),
    ],
)
def test_command_lines_that_are_wrong_are_told(arguments: list[str], message: str) -> None:
    result = call("m.gguf", *arguments)
    assert result.exit_code == 2 and message in result.output


def test_options_say_how_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def serve(model: Any, name: str, listener: socket.socket, **how: Any) -> None:
        listener.close()
        asked.update(how, name=name)

    monkeypatch.setattr(loading, "load", lambda path, **options: chance())
    monkeypatch.setattr(running, "serve", serve)
    given = "--port 0 --parallel 3 --queue 5 --prefixes 2 --piece 7 --positions 999 --api-key a --api-key b"
    result = call("dir/m.gguf", *given.split())
    assert result.exit_code == 0, result.output
    limits = asked["limits"]
    assert (limits.parallel, limits.waiting, limits.kept, limits.piece, limits.positions) == (3, 5, 2, 7, 999)
    assert asked["keys"] == ("a", "b") and asked["name"] == "m"
    call("dir/m.gguf", "--port", 0, "--name", "other")
    assert asked["name"] == "other" and asked["keys"] == ()


def test_an_address_for_all_without_a_key_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(*given: Any, started: Any, **how: Any) -> None:
        given[2].close()
        started()

    monkeypatch.setattr(loading, "load", lambda path, **options: chance())
    monkeypatch.setattr(running, "serve", serve)
    assert "there is no --api-key" in call("m.gguf", "--port", 0, "--host", "0.0.0.0").stderr
    for arguments in (["--host", "0.0.0.0", "--api-key", "x"], ["--host", "127.0.0.1"]):
        assert call("m.gguf", "--port", 0, *arguments).stderr == "ended\n"


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tilewright.llm.serving.http")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = call("m.gguf", "--port", 0)
    assert result.exit_code == 1 and "pip install 'tilewright[serve]'" in result.stderr
