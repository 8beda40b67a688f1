"""`tilewright serve` under load: how much it answers, and how long clients wait.

    python -m bench.serving MODEL.gguf [--clients 1,4,8,16] [--rate 0.5] [--seconds 10] [--threads 2] [-- OPTIONS]

Clients ask at random times (exponential gaps, `--rate` requests a second each), whether earlier answers are there or
not: an open loop, in which a slow server is not spared. Waiting counts from the time at which a request was due.
Prompts and answers have random lengths; a half of the prompts begin with the same tokens, as those of one application
do. With `--url` an OpenAI-compatible server that runs already is measured. OPTIONS are those of `tilewright serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

SHARED = 96
"""Tokens with which a half of the prompts begin."""


@dataclass
class Asked:
    """One request: when it was due, and when its parts came, in seconds from the begin."""

    due: float
    prompt: list[int]
    tokens: int
    came: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def first(self) -> float:
        return self.came[0] - self.due

    @property
    def between(self) -> list[float]:
        return [later - before for before, later in zip(self.came, self.came[1:], strict=False)]


def drawn(clients: int, rate: float, seconds: float, seed: int = 0) -> list[Asked]:
    """What so many clients ask for, by the time at which it is due."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(300, 5000, SHARED).tolist()
    found = []
    for _ in range(clients):
        due = float(rng.exponential(1 / rate)) * float(rng.random())  # the first one need not wait as long
        while due < seconds:
            size, tokens = int(rng.integers(10, 160)), int(rng.integers(16, 64))
            prompt = rng.integers(300, 5000, size).tolist()
            found.append(Asked(due, [*begin, *prompt] if rng.random() < 0.5 else prompt, tokens))
            due += float(rng.exponential(1 / rate))
    return sorted(found, key=lambda asked: asked.due)


async def ask(client: httpx.AsyncClient, model: str, asked: Asked, start: float) -> None:
    """Send a request when it is due, and note when its parts come."""
    await asyncio.sleep(max(0.0, start + asked.due - time.perf_counter()))
    body = {"model": model, "prompt": asked.prompt, "max_tokens": asked.tokens, "stream": True, "seed": 0}
    try:
        async with client.stream("POST", "/v1/completions", json={**body, "ignore_eos": True, "logprobs": 0}) as answer:
            if answer.status_code != 200:
                asked.error = (await answer.aread()).decode()
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    asked.came.append(time.perf_counter() - start)
    except httpx.HTTPError as error:
        asked.error = repr(error)


async def load(url: str, model: str, requests: Sequence[Asked]) -> float:
    """Send all of them; the seconds until the last one is answered."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        start = time.perf_counter()
        await asyncio.gather(*(ask(client, model, asked, start) for asked in requests))
        return time.perf_counter() - start


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


def served(path: str, threads: int, options: Sequence[str]) -> tuple[subprocess.Popen[str], str]:
    """A server of its own, and where it is."""
    command = [sys.executable, "-m", "tilewright", "serve", path, "--port", "0", "--name", "m", "--queue", "1000",
               "--threads", str(threads), *options]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("the server did not begin")
    return process, line.split()[2].removesuffix("/v1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a path, or with --url the name of the model there")
    parser.add_argument("--clients", default="1,4,8,16")
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second of each client")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which clients go on asking")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--url", help="of a server that runs already")
    parser.add_argument("options", nargs="*")
    given = parser.parse_args()
    process, url = (None, given.url) if given.url else served(given.model, given.threads, given.options)
    name = given.model if given.url else "m"
    try:
        asyncio.run(load(url, name, drawn(2, 2.0, 0.5)))  # what comes once
        for clients in map(int, given.clients.split(",")):
            requests = drawn(clients, given.rate, given.seconds, seed=clients)
            seconds = asyncio.run(load(url, name, requests))
            print(json.dumps(row(clients, requests, seconds)), flush=True)
            for asked in requests:
                if asked.error:
                    print(asked.error[:200], file=sys.stderr)
    finally:
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(30)


if __name__ == "__main__":
    main()
