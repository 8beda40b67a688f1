"""The fields of requests, as OpenAI has them, and those beyond that say how the next token is chosen.

Fields that are unknown are refused, as there. Some are taken and mean nothing here: they are about accounts.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Probability = Field(None, gt=0, le=1)
Penalty = Field(None, ge=-2, le=2)


class Fields(BaseModel):
    """A number is no text that has one, and a field that is not listed is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Fields):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class AnswerFields(Fields):
    """What all answers have."""

    model: str
    n: int | None = Field(None, ge=1, le=128)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Probability
    presence_penalty: float | None = Penalty
    frequency_penalty: float | None = Penalty
    logit_bias: dict[str, float] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    user: str | None = None
    metadata: dict[str, Any] | None = None
    # beyond OpenAI
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Probability
    repetition_penalty: float | None = Field(None, gt=0)
    ignore_eos: bool | None = None
    grammar: str | None = None
    regex: str | None = None


class CompletionFields(AnswerFields):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=100)
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)
    suffix: str | None = None


class JsonSchema(Fields):
    name: str
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class FunctionFields(Fields):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolFields(Fields):
    type: Literal["function"]
    function: FunctionFields


class FunctionName(Fields):
    name: str


class NamedTool(Fields):
    type: Literal["function"]
    function: FunctionName


class ChatFields(AnswerFields):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=100)
    response_format: ResponseFormat | None = None
    tools: list[ToolFields] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class EmbeddingFields(Fields):
    """POST /v1/embeddings."""

    model: str
    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None
