"""`tilewright serve` under load: how much it answers, and how long clients wait.

    python -m bench.serving MODEL.gguf [--clients 1,4,8,16] [--rate 0.5] [--seconds 10] [--threads 2]
        [--peer llama-server] [-- OPTIONS]

Clients ask at random times (exponential gaps, `--rate` requests a second each), whether earlier answers are there or
not: an open loop, in which a slow server is not spared. Waiting counts from the time at which a request was due.
Prompts and answers have random lengths; a half of the prompts begin with the same tokens, as those of one application
do. They are clients of the package `openai` (`--plain`: of httpx, which takes less of the machine that server and
clients share). With `--url` an OpenAI-compatible server that runs already is measured, with `--peer` that program of
llama.cpp with the same file, in turns. OPTIONS are those of `tilewright serve`.

    python -m bench.serving MODEL.gguf --disturb [--clients 4]

compares the texts of clients, byte for byte, with those that they get while one client hangs up in the middle of its
answers and another one asks for more than there is room for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import httpx
import numpy as np
import openai

SHARED = 96
"""Tokens with which a half of the prompts begin."""


@dataclass
class Asked:
    """One request: when it is due, when its parts came, in seconds from the begin, and what they were."""

    due: float
    prompt: list[int]
    tokens: int
    client: int = 0
    temperature: float = 0.0
    came: list[float] = field(default_factory=list)
    text: str = ""
    error: str = ""

    @property
    def first(self) -> float:
        return self.came[0] - self.due

    @property
    def between(self) -> list[float]:
        return [later - before for before, later in zip(self.came, self.came[1:], strict=False)]

    @property
    def body(self) -> dict[str, Any]:
        """Of the request; all tokens are wanted, and told one by one."""
        size = {"prompt": self.prompt, "max_tokens": self.tokens}
        return {**size, "seed": 0, "temperature": self.temperature, "logprobs": 0}


def drawn(clients: int, rate: float, seconds: float, seed: int = 0) -> list[Asked]:
    """What so many clients ask for, by the time at which it is due."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(300, 5000, SHARED).tolist()
    found = []
    for client in range(clients):
        due = float(rng.exponential(1 / rate)) * float(rng.random())  # the first one need not wait as long
        while due < seconds:
            size, tokens = int(rng.integers(10, 160)), int(rng.integers(16, 64))
            prompt = rng.integers(300, 5000, size).tolist()
            whole = [*begin, *prompt] if rng.random() < 0.5 else prompt
            found.append(Asked(due, whole, tokens, client, float(rng.choice([0.0, 0.8]))))
            due += float(rng.exponential(1 / rate))
    return sorted(found, key=lambda asked: asked.due)


@dataclass(frozen=True)
class Client:
    """`parts` sends a request and gives the texts of its parts; `close` ends the connections."""

    parts: Callable[[Asked], AsyncIterator[str]]
    aclose: Callable[[], Awaitable[None]]


Connect = Callable[[str], Client]
"""A client with this key."""


def openai_client(url: str, model: str, key: str) -> Client:
    """A client of the package `openai`."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, timeout=300, max_retries=0)

    async def parts(asked: Asked) -> AsyncIterator[str]:
        async with await client.completions.create(
            model=model, stream=True, extra_body={"ignore_eos": True}, **asked.body
        ) as stream:
            async for part in stream:
                yield part.choices[0].text if part.choices else ""

    return Client(parts, client.close)


def plain_client(url: str, model: str, key: str) -> Client:
    """A client that reads events by hand."""
    client = httpx.AsyncClient(base_url=url, timeout=300, headers={"authorization": f"Bearer {key}"})

    async def parts(asked: Asked) -> AsyncIterator[str]:
        body = {"model": model, "stream": True, "ignore_eos": True, **asked.body}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                raise OSError((await answer.aread()).decode())
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])["choices"][0]["text"]

    return Client(parts, client.aclose)


async def ask(client: Client, asked: Asked, start: float) -> None:
    """Send a request when it is due, and note when its parts come."""
    await asyncio.sleep(max(0.0, start + asked.due - time.perf_counter()))
    try:
        async for text in client.parts(asked):
            if len(asked.came) < asked.tokens:  # llama.cpp tells the end in a part of its own
                asked.came.append(time.perf_counter() - start)
            asked.text += text
    except (httpx.HTTPError, openai.OpenAIError, OSError) as error:
        asked.error = repr(error)


async def load(connect: Connect, requests: Sequence[Asked], *others: Callable[[], Awaitable[None]]) -> float:
    """Send all of them, and do other things meanwhile; the seconds until the last one is answered."""
    clients = {number: connect(f"client-{number}") for number in {asked.client for asked in requests}}
    start = time.perf_counter()
    beside = [asyncio.create_task(other()) for other in others]
    await asyncio.gather(*(ask(clients[asked.client], asked, start) for asked in requests))
    seconds = time.perf_counter() - start
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)
    for client in clients.values():
        await client.aclose()
    return seconds


def row(clients: int, requests: Sequence[Asked], seconds: float) -> dict[str, Any]:
    """The figures of a run; times are milliseconds."""
    answered = [asked for asked in requests if asked.came and not asked.error]
    first = [asked.first for asked in answered] or [float("nan")]
    between = [gap for asked in answered for gap in asked.between] or [float("nan")]
    written = sum(len(asked.came) for asked in answered)
    read = sum(len(asked.prompt) for asked in answered)

    def ms(values: Sequence[float], percent: float) -> float:
        return round(float(np.percentile(values, percent)) * 1e3, 1)

    return {
        "clients": clients, "requests": len(requests), "failed": len(requests) - len(answered),
        "seconds": round(seconds, 1), "prompt tokens/s": round(read / seconds, 1),
        "tokens/s": round(written / seconds, 1),
        "first p50": ms(first, 50), "first p99": ms(first, 99),
        "between p50": ms(between, 50), "between p99": ms(between, 99),
    }  # fmt: skip


@dataclass
class Troubles:
    """What two others do beside clients, and how often: hang up in the middle of answers, and ask for too much."""

    connect: Connect
    left: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    async def leave(self) -> None:
        """Hang up behind a few parts of each answer, before the first of some."""
        rng = np.random.default_rng(1)
        async with contextlib.aclosing(self.connect("leaver")) as client:
            while True:
                asked = Asked(0, rng.integers(300, 5000, int(rng.integers(1, 300))).tolist(), 200)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(float(rng.random())):
                        async for _ in client.parts(asked):
                            pass
                self.left += 1

    async def crowd(self) -> None:
        """More requests at once than there is room for, prompts beyond the context, and bodies that are none."""
        rng = np.random.default_rng(2)
        async with contextlib.aclosing(self.connect("crowd")) as client:
            while True:
                sizes = [*rng.integers(1, 200, 150).tolist(), 100_000, 0]
                asked = [Asked(0, rng.integers(300, 5000, size).tolist(), 30) for size in sizes]
                asked.append(Asked(0, [10**9], 30))
                await asyncio.gather(*(self._noted(client, one) for one in asked))

    async def _noted(self, client: Client, asked: Asked) -> None:
        await ask(client, asked, time.perf_counter())
        if status := re.search(r"\b[45]\d\d\b", asked.error):
            self.refused[status.group()] += 1


def disturbed(connect: Connect, wanted: Sequence[Asked]) -> dict[str, Any]:
    """Whether the texts of clients are the same with two beside them that make trouble."""
    calm = [replace(asked, came=[]) for asked in wanted]
    rough = [replace(asked, came=[]) for asked in wanted]
    asyncio.run(load(connect, calm))
    troubles = Troubles(connect)
    asyncio.run(load(connect, rough, troubles.leave, troubles.crowd))
    pairs = list(zip(calm, rough, strict=True))
    return {
        "requests": len(pairs), "failed": sum(bool(one.error or other.error) for one, other in pairs),
        "other texts": sum(one.text != other.text for one, other in pairs),
        "hung up": troubles.left, "refused": dict(troubles.refused),
    }  # fmt: skip


@dataclass
class Server:
    """A server of its own: its name, process, and where it is."""

    name: str
    process: subprocess.Popen[str]
    url: str

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


def served(path: str, threads: int, options: Sequence[str]) -> Server:
    """`tilewright serve`."""
    command = [sys.executable, "-m", "tilewright", "serve", path, "--port", "0", "--name", "m",
               "--threads", str(threads), *options]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("the server did not begin")
    return Server("tilewright", process, line.split()[2].removesuffix("/v1"))


def served_by_peer(program: str, path: str, threads: int, answers: int, context: int = 1024) -> Server:
    """llama.cpp's server, with room for so many answers at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "-m", path, "--port", str(port), "-t", str(threads), "-tb", str(threads), "-a", "m",
               "-np", str(answers), "-c", str(answers * context), "--no-webui"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
    url = f"http://127.0.0.1:{port}"
    while process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health").status_code == 200:
                return Server("llama.cpp", process, url)
        time.sleep(0.1)
    raise SystemExit("the peer's server did not begin")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a path, or with --url the name of the model there")
    parser.add_argument("--clients", default="1,4,8,16")
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second of each client")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which clients go on asking")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=16, help="answers that are computed at once")
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("--peer", help="the program llama-server")
    parser.add_argument("--plain", action="store_true", help="clients of httpx in place of openai")
    parser.add_argument("--disturb", action="store_true", help="compare texts beside clients that make trouble")
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:own])
    numbers = [int(number) for number in given.clients.split(",")]
    options = ["--parallel", str(given.parallel), *words[own + 1 :]]
    if given.disturb:
        names = ["leaver", "crowd", *(f"client-{number}" for number in range(max(numbers)))]
        options += ["--queue", "40", *(word for name in names for word in ("--api-key", name))]
    else:
        options += ["--queue", "1000"]
    servers = [] if given.url else [served(given.model, given.threads, options)]
    if given.peer:
        servers.append(served_by_peer(given.peer, given.model, given.threads, given.parallel))
    places = [("", given.url)] if given.url else [(server.name, server.url) for server in servers]
    name = given.model if given.url else "m"
    make = plain_client if given.plain else openai_client
    try:
        for _, url in places:
            asyncio.run(load(partial(make, url, name), drawn(2, 2.0, 0.5)))  # what comes once
        for clients in numbers:
            for server, url in places:
                connect = partial(make, url, name)
                requests = drawn(clients, given.rate, given.seconds, seed=clients)
                if given.disturb:
                    print(json.dumps({"server": server, "clients": clients, **disturbed(connect, requests)}))
                    continue
                seconds = asyncio.run(load(connect, requests))
                print(json.dumps({"server": server, **row(clients, requests, seconds)}), flush=True)
                for asked in requests:
                    if asked.error:
                        print(asked.error[:200], file=sys.stderr)
    finally:
        for one in servers:
            one.end()


if __name__ == "__main__":
    main()
