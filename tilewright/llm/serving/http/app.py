"""The routes: what is asked for in bodies of JSON, who may ask, and errors as clients of OpenAI expect them."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from tilewright.llm.model import LanguageModel
from tilewright.llm.serving.http.asked import RequestReader
from tilewright.llm.serving.http.fields import (
    AnswerFields,
    ChatFields,
    CompletionFields,
    EmbeddingFields,
    Fields,
)
from tilewright.llm.serving.http.problems import RefusedError, refused, wrong_fields
from tilewright.llm.serving.http.reply import Reply, encoded
from tilewright.llm.serving.http.told import ChatForm, CompletionForm
from tilewright.llm.serving.worker import Worker
from tilewright.runtime.errors import short_name

F = TypeVar("F", bound=Fields)

MOST_BYTES = 4 << 20
"""Of a body."""
MOST_INPUTS = 2048
"""Texts of a request for embeddings."""
_MOST_SECONDS = 60.0
"""For a body to arrive."""


@dataclass(frozen=True)
class Service:
    """A model with a worker that runs it, under a name. Who knows none of the `keys` is refused, if there are any."""

    name: str
    model: LanguageModel
    worker: Worker
    keys: Sequence[str] = ()
    created: int = field(default_factory=lambda: int(time.time()))
    embedding: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def reader(self) -> RequestReader:
        return RequestReader(self.model, self.worker.scheduler.context)

    def record(self) -> dict[str, Any]:
        """The model, as OpenAI has it."""
        return {"id": self.name, "object": "model", "created": self.created, "owned_by": "tilewright"}

    def client(self, request: HttpRequest) -> str:
        """For whom a request is: the one who has a key, where there are several, or an address. RefusedError without
        a right key."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        right = [
            n
            for n, key in enumerate(self.keys)
            if any(hmac.compare_digest(key.encode(), sent) for sent in _sent_as(given.strip(" \t")))
        ]
        if self.keys and (scheme.lower() != "bearer" or not right):
            raise RefusedError(
                "Incorrect API key provided"
                if given
                else "You didn't provide an API key: send 'Authorization: Bearer KEY'",
                status=401,
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return f"key {right[0]}" if len(self.keys) > 1 else request.client.host if request.client else ""

    def check_name(self, name: str) -> None:
        """RefusedError for a model that is not this one."""
        if name != self.name:
            raise RefusedError(
                f"The model '{short_name(name)}' does not exist: there is '{self.name}'",
                status=404,
                param="model",
                code="model_not_found",
            )


def _sent_as(text: str) -> tuple[bytes, bytes]:
    """What of a header field may be meant, in UTF-8: clients send that, or Latin-1, as which fields are read."""
    return text.encode("latin-1", "replace"), text.encode()


def make_app(service: Service) -> FastAPI:
    """The application. The worker is its caller's to end."""
    app = FastAPI(title="tilewright", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(RefusedError, lambda request, error: _refusal(refused(error)))
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Exception, lambda request, error: _refusal(refused(error)))
    app.add_exception_handler(ClientDisconnect, lambda request, error: Response(status_code=400))
    reader = service.reader

    @app.get("/health")
    async def health() -> Response:
        scheduler = service.worker.scheduler
        return _json({"status": "ok", "running": scheduler.running, "waiting": scheduler.waiting})

    @app.get("/v1/models")
    async def models(request: HttpRequest) -> Response:
        service.client(request)
        return _json({"object": "list", "data": [service.record()]})

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str, request: HttpRequest) -> Response:
        service.client(request)
        service.check_name(name)
        return _json(service.record())

    @app.post("/v1/completions")
    async def completions(request: HttpRequest) -> Response:
        client, fields = await _asked(service, request, CompletionFields)
        pairs = await run_in_threadpool(reader.completions, fields, client)
        prompts = [(begin, one.prompt.size) for begin, one in pairs]
        told = fields.logprobs is not None
        form = CompletionForm(
            service.name, service.model.tokenizer, prompts, fields.n or 1, told=told, usage=_usage(fields)
        )
        return Reply(service.worker, [one for _, one in pairs], form, stream=bool(fields.stream))

    @app.post("/v1/chat/completions")
    async def chat(request: HttpRequest) -> Response:
        client, fields = await _asked(service, request, ChatFields)
        found = await run_in_threadpool(reader.chat, fields, client)
        tools = [] if fields.tool_choice == "none" else fields.tools or []
        form = ChatForm(
            service.name,
            service.model.tokenizer,
            [("", found.prompt.size)],
            fields.n or 1,
            told=bool(fields.logprobs),
            usage=_usage(fields),
            functions={tool.function.name for tool in tools},
        )
        return Reply(service.worker, [found], form, stream=bool(fields.stream))

    @app.post("/v1/embeddings")
    async def embeddings(request: HttpRequest) -> Response:
        _, fields = await _asked(service, request, EmbeddingFields)
        return _json(await _embedded(service, reader, fields, request.is_disconnected))

    return app


async def _asked(service: Service, request: HttpRequest, kind: type[F]) -> tuple[str, F]:
    """Who asks, and the fields of the body. RefusedError for what is wrong with either."""
    client = service.client(request)
    given = await _body(request)
    if not isinstance(given, dict):
        raise RefusedError('the body is JSON, but no object: send {"model": ...}')
    if "model" not in given:
        raise RefusedError(
            "you must provide a model parameter", param="model", code="missing_required_parameter"
        )
    try:
        fields = kind.model_validate(given)
    except ValidationError as error:
        raise wrong_fields(error) from None
    service.check_name(getattr(fields, "model", ""))
    return client, fields


async def _body(request: HttpRequest) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RefusedError("send a body of JSON, with 'Content-Type: application/json'", status=415)
    try:
        async with asyncio.timeout(_MOST_SECONDS):
            body = await _received(request)
    except TimeoutError:
        raise RefusedError(f"the body did not arrive within {_MOST_SECONDS:g} seconds", status=408) from None
    try:
        return json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        told = "it goes too deep" if isinstance(error, RecursionError) else str(error)
        raise RefusedError(f"We could not parse the JSON body of your request: {short_name(told)}") from None


async def _received(request: HttpRequest) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > MOST_BYTES:
        raise _too_long()
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise _too_long()
    return b"".join(parts)


def _too_long() -> RefusedError:
    return RefusedError(
        f"the body has more than {MOST_BYTES} bytes", status=413, headers={"Connection": "close"}
    )


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _usage(fields: AnswerFields) -> bool:
    if fields.stream_options is not None and not fields.stream:
        raise RefusedError("'stream_options' needs 'stream': true", param="stream_options")
    return bool(fields.stream_options and fields.stream_options.include_usage)


async def _embedded(
    service: Service, reader: RequestReader, fields: EmbeddingFields, left: Callable[[], Awaitable[bool]]
) -> dict[str, Any]:
    """Embeddings are made by a model of their own, one text after the other, beside the steps of answers, until the
    client has `left`."""
    embed: Callable[[list[int]], np.ndarray] | None = getattr(service.model, "embed", None)
    if embed is None:
        raise RefusedError("this model has no embeddings", status=501, code="unsupported")
    if fields.dimensions is not None:
        raise RefusedError(
            "'dimensions' is not supported: embeddings are as the model has them", param="dimensions"
        )
    if isinstance(fields.input, list) and len(fields.input) > MOST_INPUTS and not isinstance(fields.input[0], int):
        raise RefusedError(f"a request has at most {MOST_INPUTS} texts", param="input")
    prompts = await run_in_threadpool(reader.prompts, fields.input, "input")
    data = []
    for n, tokens in enumerate(prompts):
        try:
            async with service.embedding:
                if await left():
                    raise RefusedError("the client has left", status=499)  # which nobody reads
                found = await run_in_threadpool(embed, tokens.tolist())
        except Exception as error:
            raise refused(error, "input") from error
        vector = np.asarray(found, "<f4").reshape(-1)
        is_coded = fields.encoding_format == "base64"
        numbers = base64.b64encode(vector.tobytes()).decode() if is_coded else vector.tolist()
        data.append({"object": "embedding", "index": n, "embedding": numbers})
    count = sum(tokens.size for tokens in prompts)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": service.name, "usage": usage}


def _json(record: Any) -> Response:
    return Response(encoded(record), media_type="application/json")


def _refusal(error: RefusedError) -> Response:
    return Response(encoded(error.record()), error.status, error.headers, "application/json")


def _no_route(request: HttpRequest, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    path = f"{request.method} {request.url.path}"
    headers = dict(getattr(error, "headers", None) or {})
    return _refusal(
        RefusedError(f"Invalid URL ({short_name(path)})", status=status, code="unknown_url", headers=headers)
    )
