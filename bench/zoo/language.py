"""Networks for texts, with random weights: encoders of the transformers collection, and decoders with a cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

from bench.zoo.blueprint import Blueprint

SEQUENCE = PAST = 128


class FirstResult(nn.Module):
    """An encoder that gives its last hidden state and nothing else."""

    def __init__(self, encoder: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.encoder, self.names = encoder, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.encoder(**dict(zip(self.names, inputs, strict=True))).last_hidden_state


def _encoder(encoder: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Blueprint:
    return Blueprint(FirstResult(encoder, tuple(inputs)).eval(), inputs, ["last_hidden_state"])


def _tokens(vocabulary: int) -> torch.Tensor:
    return torch.randint(vocabulary, (1, SEQUENCE))


def bert_base() -> Blueprint:
    from transformers import BertConfig, BertModel

    encoder = BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False)
    mask, types = torch.ones(1, SEQUENCE, dtype=torch.int64), torch.zeros(1, SEQUENCE, dtype=torch.int64)
    return _encoder(encoder, {"input_ids": _tokens(30522), "attention_mask": mask, "token_type_ids": types})


def distilbert() -> Blueprint:
    from transformers import DistilBertConfig, DistilBertModel

    encoder = DistilBertModel(DistilBertConfig(attn_implementation="eager"))
    mask = torch.ones(1, SEQUENCE, dtype=torch.int64)
    return _encoder(encoder, {"input_ids": _tokens(30522), "attention_mask": mask})


Cache = tuple[torch.Tensor, torch.Tensor]


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Of [1, heads, sequence, width] to [1, sequence, heads * width]; `mask` is true where a key may be seen."""
    scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(torch.float32).min)
    return (scores.softmax(3) @ values).transpose(1, 2).flatten(2)


class Gpt2Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.inner_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(
        self, x: torch.Tensor, past: Cache | None, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, Cache]:
        parts = self.project(self.norm(x)).chunk(3, 2)
        queries, keys, values = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        if past is not None:
            keys, values = torch.cat([past[0], keys], 2), torch.cat([past[1], values], 2)
        x = x + self.merge(_attend(queries, keys, values, mask))
        inner = functional.gelu(self.widen(self.inner_norm(x)), approximate="tanh")
        return x + self.narrow(inner), (keys, values)


class Gpt2(nn.Module):
    """GPT-2 with 124 million parameters (Radford et al., 2019). With past keys and values it computes one more token,
    without them the logits of a whole prompt."""

    layers, heads, width, vocabulary, longest = 12, 12, 768, 50257, 1024

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(self.vocabulary, self.width),
            nn.Embedding(self.longest, self.width),
        )
        self.stack = nn.ModuleList(Gpt2Layer(self.width, self.heads) for _ in range(self.layers))
        self.norm = nn.LayerNorm(self.width)
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)
        causal = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).tril()
        self.register_buffer("causal", causal, persistent=False)

    def forward(self, ids: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        positions, past = rest[0] if rest else torch.arange(SEQUENCE)[None], rest[1:]
        x = self.tokens(ids) + self.places(positions)
        present: list[torch.Tensor] = []
        for number, layer in enumerate(self.stack):
            pair = (past[2 * number], past[2 * number + 1]) if past else None
            x, cache = layer(x, pair, None if past else self.causal)
            present += cache
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return (logits, *present) if past else (logits,)


def _decoder(module: nn.Module, layers: int, vocabulary: int, cache: tuple[int, ...]) -> Blueprint:
    """One token after `PAST` others."""
    inputs = {"input_ids": torch.randint(vocabulary, (1, 1)), "position_ids": torch.full((1, 1), PAST)}
    names = [f"{kind}_{number}" for number in range(layers) for kind in ("key", "value")]
    inputs |= {f"past_{name}": torch.randn(cache) for name in names}
    return Blueprint(module.eval(), inputs, ["logits", *(f"present_{name}" for name in names)])


def gpt2_prefill() -> Blueprint:
    return Blueprint(Gpt2().eval(), {"input_ids": _tokens(Gpt2.vocabulary)}, ["logits"])


def gpt2_decode() -> Blueprint:
    each = Gpt2.width // Gpt2.heads
    return _decoder(Gpt2(), Gpt2.layers, Gpt2.vocabulary, (1, Gpt2.heads, PAST, each))


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width).uniform_(0.75, 1.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def _rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding, halves as pairs (Su et al., 2021)."""
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


class LlamaLayer(nn.Module):
    """Grouped-query attention and a gated inner layer (Touvron et al., 2023)."""

    def __init__(self, width: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.each, self.groups = width // heads, heads // kv_heads
        kv_width = kv_heads * self.each
        self.norm, self.inner_norm = RmsNorm(width), RmsNorm(width)
        self.query, self.merge = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, kv_width, bias=False), nn.Linear(width, kv_width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, angles: Cache, past: Cache) -> tuple[torch.Tensor, Cache]:
        y = self.norm(x)
        queries, keys, values = (
            project(y).unflatten(2, (-1, self.each)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        keys = torch.cat([past[0], _rotate(keys, *angles)], 2)
        values = torch.cat([past[1], values], 2)
        shared = [part.repeat_interleave(self.groups, 1) for part in (keys, values)]
        x = x + self.merge(_attend(_rotate(queries, *angles), *shared, None))
        y = self.inner_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), (keys, values)


class SmallLlama(nn.Module):
    layers, heads, kv_heads, width, inner, vocabulary = 8, 8, 2, 512, 1408, 32000

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(self.vocabulary, self.width)
        sizes = (self.width, self.heads, self.kv_heads, self.inner)
        self.stack = nn.ModuleList(LlamaLayer(*sizes) for _ in range(self.layers))
        self.norm, self.head = RmsNorm(self.width), nn.Linear(self.width, self.vocabulary, bias=False)
        each = self.width // self.heads
        self.register_buffer("rates", 10000.0 ** -(torch.arange(0, each, 2) / each), persistent=False)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        x = self.tokens(ids)
        angles = torch.cat([positions[:, None, :, None].to(x.dtype) * self.rates.to(x.dtype)] * 2, -1)
        rotation = angles.cos(), angles.sin()
        present: list[torch.Tensor] = []
        for number, layer in enumerate(self.stack):
            x, cache = layer(x, rotation, (past[2 * number], past[2 * number + 1]))
            present += cache
        return (self.head(self.norm(x)), *present)


class SmolLm2(SmallLlama):
    """The sizes of SmolLM2-135M (Hugging Face, 2024), whose head is its table of tokens."""

    layers, heads, kv_heads, width, inner, vocabulary = 30, 9, 3, 576, 1536, 49152

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)


def _llama_decoder(model: SmallLlama) -> Blueprint:
    each = model.width // model.heads
    return _decoder(model, model.layers, model.vocabulary, (1, model.kv_heads, PAST, each))


def llama_small_decode() -> Blueprint:
    return _llama_decoder(SmallLlama())


def smollm2_decode() -> Blueprint:
    return _llama_decoder(SmolLm2())


class TwoLstms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(512, 512, num_layers=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        states, (hidden, cell) = self.lstm(x)
        return states, hidden, cell


def lstm2() -> Blueprint:
    return Blueprint(TwoLstms().eval(), {"input": torch.randn(64, 1, 512)}, ["states", "hidden", "cell"])


MODELS: dict[str, Callable[[], Blueprint]] = {
    "bert_base": bert_base,
    "distilbert": distilbert,
    "gpt2_prefill128": gpt2_prefill,
    "gpt2_decode_past128": gpt2_decode,
    "llama_small_decode": llama_small_decode,
    "smollm2_decode": smollm2_decode,
    "lstm2_h512_s64": lstm2,
}
