"""Servers with models of NumPy, on ports of their own."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai

from tests.llm.decoders import Chance
from tests.llm.test_generation import template, tokenizer
from tilewright.llm.model import LanguageModel
from tilewright.llm.sequences import ForkedSequences
from tilewright.llm.serving.http.running import listening, serve
from tilewright.llm.serving.requests import Limits

CHAT = [{"role": "user", "content": "Hello"}]


class Watched(LanguageModel):
    """A model whose sequences can be looked at while it serves."""

    def sequences(self, slots: int) -> ForkedSequences:
        self.served = ForkedSequences(self._root, slots)
        return self.served

    @property
    def positions(self) -> int:
        return sum(decoder.length for decoder in self.served._open.values())


class Slow(Chance):
    """Takes a while for each call."""

    pause = 0.01

    def feed(self, tokens: Any) -> np.ndarray:
        time.sleep(self.pause)
        return super().feed(tokens)


class Server:
    """`url` is where it is, `end` makes it end."""

    def __init__(self, url: str, ended: threading.Event) -> None:
        self.url, self._ended = url, ended
        self.http = httpx.Client(base_url=url, timeout=60)

    def openai(self, key: str = "x") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def end(self) -> None:
        self._ended.set()

    def post(self, path: str, **fields: Any) -> httpx.Response:
        return self.http.post(f"/v1/{path}", json={"model": "m", **fields})

    def wait(self, running: int, waiting: int = 0) -> None:
        """Until so many answers are computed, and so many wait."""
        end = time.monotonic() + 120
        while (found := self.http.get("/health").json()) != {"status": "ok", "running": running, "waiting": waiting}:
            assert time.monotonic() < end, found
            time.sleep(0.005)


@contextlib.contextmanager
def server(
    model: LanguageModel, *, name: str = "m", keys: tuple[str, ...] = (), **limits: Any
) -> Iterator[Server]:
    listener = listening("127.0.0.1", 0)
    port = listener.getsockname()[1]
    started, ended = threading.Event(), threading.Event()
    how: dict[str, Any] = {"limits": Limits(**limits), "keys": keys, "ended": ended.is_set, "started": started.set}
    thread = threading.Thread(target=serve, args=(model, name, listener), kwargs=how)
    thread.start()
    assert started.wait(120)
    found = Server(f"http://127.0.0.1:{port}", ended)
    try:
        yield found
    finally:
        ended.set()
        found.http.close()
        thread.join(120)
        assert not thread.is_alive()


def slow(context: int = 4096, **given: Any) -> Watched:
    return Watched(Slow(704, context, **given), tokenizer(), template())


def chance(context: int = 4096, **given: Any) -> Watched:
    return Watched(Chance(704, context=context, **given), tokenizer(), template())
