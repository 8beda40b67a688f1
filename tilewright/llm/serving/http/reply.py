"""Answers on their way to a client: whole or as they come, until it goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tilewright.llm.serving.http.problems import RefusedError, refused
from tilewright.llm.serving.http.told import AnswerForm, ToldAnswer
from tilewright.llm.serving.requests import AnswerPart, AnswerRequest, Event, Failed, Tell
from tilewright.llm.serving.worker import Worker

_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
           (b"x-accel-buffering", b"no")]  # fmt: skip


class Reply(Response):
    """Gives requests to a worker and sends what comes of them. Nothing is computed for a client that has gone."""

    def __init__(
        self, worker: Worker, requests: Sequence[AnswerRequest], form: AnswerForm, *, stream: bool
    ) -> None:
        super().__init__()
        self._worker, self._requests, self._form, self._stream = worker, requests, form, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._answer(send))
        leaving = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answering.cancel()
            leaving.cancel()
            found, _ = await asyncio.gather(answering, leaving, return_exceptions=True)
        if isinstance(found, Exception) and not isinstance(
            found, OSError
        ):  # a connection that broke is no defect
            raise found

    async def _answer(self, send: Send) -> None:
        inbox = _Inbox(len(self._form.choices))
        orders = [self._worker.submit(request, inbox.teller(n)) for n, request in enumerate(self._requests)]
        try:
            if self._stream:
                await self._as_it_comes(inbox, send)
            else:
                await self._at_once(inbox, send)
        finally:
            for order in orders:
                order.cancel()

    async def _at_once(self, inbox: _Inbox, send: Send) -> None:
        try:
            async for number, progress in inbox.events():
                self._choice(number, progress).add(progress)
            await _send_json(send, 200, self._form.whole())
        except RefusedError as error:
            await send_error(send, error)

    async def _as_it_comes(self, inbox: _Inbox, send: Send) -> None:
        """What fails before anything has come has the status of an error; later ones are an event of the stream."""
        begun = False
        try:
            async for number, progress in inbox.events():
                choice = self._choice(number, progress)
                choice.add(progress)
                records = list(self._form.chunks(choice, progress))
                if not begun:
                    begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": _STREAM})
                    records = [*self._form.begin(), *records]
                await _send_events(send, records)
            await _send_events(send, list(self._form.last()), "[DONE]", more=False)
        except RefusedError as error:
            if begun:
                await _send_events(send, [error.record()], "[DONE]", more=False)
            else:
                await send_error(send, error)

    def _choice(self, number: int, progress: AnswerPart) -> ToldAnswer:
        return self._form.choices[number * self._form.answers + progress.answer]


class _Inbox:
    """What a worker tells, on the loop of events."""

    def __init__(self, answers: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._open = answers

    def teller(self, number: int) -> Tell:
        """For the request of this number; called on the thread of the worker."""

        def tell(event: Event) -> None:
            try:
                self._loop.call_soon_threadsafe(self._queue.put_nowait, (number, event))
            except RuntimeError:  # the loop has ended: nobody listens
                return

        return tell

    async def events(self) -> AsyncIterator[tuple[int, AnswerPart]]:
        """Until all answers are over; RefusedError where a request fails."""
        while self._open:
            number, event = await self._queue.get()
            if isinstance(event, Failed):
                raise refused(event.error)
            self._open -= bool(event.reason)
            yield number, event


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def encoded(record: Any) -> bytes:
    """JSON in UTF-8, in one line."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


async def send_error(send: Send, error: RefusedError) -> None:
    """An error as the whole response."""
    await _send_json(send, error.status, error.record(), error.headers)


async def _send_json(send: Send, status: int, record: Any, headers: dict[str, str] | None = None) -> None:
    body = encoded(record)
    fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    start: Message = {"type": "http.response.start", "status": status}
    await send(
        {**start, "headers": [(name.lower().encode(), text.encode()) for name, text in fields.items()]}
    )
    await send({"type": "http.response.body", "body": body})


async def _send_events(send: Send, records: list[dict[str, Any]], *texts: str, more: bool = True) -> None:
    lines = [*map(encoded, records), *(text.encode() for text in texts)]
    if lines:
        body = b"".join(b"data: " + line + b"\n\n" for line in lines)
        await send({"type": "http.response.body", "body": body, "more_body": more})
