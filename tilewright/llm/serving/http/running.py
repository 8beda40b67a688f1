"""The server: a socket, the loop of events, and an end at which nobody is left without an answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterator, Sequence

import uvicorn

from tilewright.llm.model import LanguageModel
from tilewright.llm.serving.http.app import Service, make_app
from tilewright.llm.serving.requests import Limits
from tilewright.llm.serving.scheduler import Scheduler
from tilewright.llm.serving.worker import Worker
from tilewright.runtime.errors import InputError

_SWITCH = 0.0005
"""Seconds for which a thread keeps Python's interpreter while another one waits for it: the thread that runs the model
needs it between two steps."""
_LOOKS = 0.1
_GRACE = 5


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there, on any free port where `port` is 0. InputError where that is not possible."""
    place = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(1024)
        except BaseException:
            found.close()
            raise
    except (OSError, UnicodeError, OverflowError) as error:
        told = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen at {place}: {told}", hint="give another --port or --host") from None
    return found


def serve(
    model: LanguageModel,
    name: str,
    listener: socket.socket,
    *,
    limits: Limits | None = None,
    keys: Sequence[str] = (),
    ended: Callable[[], bool] = lambda: False,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Answer what comes to the socket until `ended` says so, which is asked ten times a second; requests that are
    computed then are told that they are over. `started` is called once, when the first can come."""
    limits = limits or Limits()
    worker = Worker(Scheduler(model.sequences(limits.slots), model.tokenizer, limits))
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH)
    try:
        asyncio.run(_served(Service(name, model, worker, tuple(keys)), listener, ended, started))
    finally:
        sys.setswitchinterval(before)
        worker.stop()
        listener.close()


async def _served(
    service: Service, listener: socket.socket, ended: Callable[[], bool], started: Callable[[], None]
) -> None:
    config = uvicorn.Config(
        make_app(service),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_GRACE,
        server_header=False,
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not running.done():
        await asyncio.sleep(0.01)
    if not running.done():
        started()
    while not ended() and not running.done():
        await asyncio.sleep(_LOOKS)
    await asyncio.to_thread(service.worker.stop)
    server.should_exit = True
    await running


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are those of whoever runs it."""
        yield
