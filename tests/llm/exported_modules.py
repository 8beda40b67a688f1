"""A small decoder of PyTorch with the caches that exporters know: joined ones that come and go, and static ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

ROWS, WIDTH, HEADS, GROUPS, SIZE, LAYERS, POSITIONS = 67, 16, 4, 2, 4, 1, 24


class Pairs(NamedTuple):
    """What a package might keep of a layer."""

    key: torch.Tensor
    value: torch.Tensor


class Cache:
    """A container that PyTorch knows while its package is imported, and that looks into its tensors."""

    def __init__(self, layers: list[Pairs]) -> None:
        assert all(layer.key.shape == layer.value.shape for layer in layers)
        self.layers = layers


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, n * SIZE, bias=False) for n in (HEADS, GROUPS, GROUPS))
        self.o = nn.Linear(HEADS * SIZE, WIDTH, bias=False)

    def rows(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        steps = x.shape[1]
        shared = ((self.q(x), HEADS), (self.k(x), GROUPS), (self.v(x), GROUPS))
        q, k, v = (y.view(1, steps, n, SIZE).transpose(1, 2) for y, n in shared)
        return q, k, v

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        k, v = (torch.repeat_interleave(y, HEADS // GROUPS, dim=1) for y in (k, v))
        found = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        return self.o(found.transpose(1, 2).reshape(1, q.shape[2], HEADS * SIZE))


class Decoder(nn.Module):
    """Without caches, as the reference; `eager` writes attention as products and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.places = nn.Embedding(ROWS, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, ROWS)
        for layer in self.layers:
            for matrix in (layer.q, layer.k):
                matrix.weight.data *= 3
        self.eval()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(ids.shape[1])
        x = self.words(ids) + self.places(steps)
        for layer in self.layers:
            x = x + layer.mixed(*layer.rows(x), steps[None, :] <= steps[:, None])
        return self.head(x)


class Joined(nn.Module):
    """Caches are taken and given, a mask of ones is added, and positions are told."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor, past: Any
    ) -> dict[str, Any]:
        kept = [Pairs(*layer) for layer in (past.layers if isinstance(past, Cache) else past)]
        x = self.decoder.words(input_ids) + self.decoder.places(position_ids)
        before = torch.arange(attention_mask.shape[1])
        visible = (before[None, :] <= position_ids[0][:, None]) & attention_mask.bool()
        present = []
        for layer, (key, value) in zip(self.decoder.layers, kept, strict=True):
            q, k, v = layer.rows(x)
            k, v = torch.cat([key, k], 2), torch.cat([value, v], 2)
            present.append(Pairs(k, v))
            x = x + layer.mixed(q, k, v, visible)
        given = Cache(present) if isinstance(past, Cache) else [tuple(layer) for layer in present]
        return {"logits": self.decoder.head(x), "present": given}


def joined(container: type[Cache] | None = None) -> torch.export.ExportedProgram:
    """As a program, in which each cache has a length of its own."""
    past: Any = [tuple(torch.zeros(1, GROUPS, 5, SIZE) for _ in range(2)) for _ in range(LAYERS)]
    dynamic = torch.export.Dim.DYNAMIC
    dims: Any = [({2: dynamic}, {2: dynamic}) for _ in range(LAYERS)]
    if container is not None:
        past, dims = container([Pairs(*layer) for layer in past]), [list(layer) for layer in dims]
    given = (torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 8, dtype=torch.int64), torch.arange(5, 8)[None], past)
    shapes = ({1: dynamic}, {1: dynamic}, {1: dynamic}, dims)
    return torch.export.export(Joined(Decoder()).eval(), given, dynamic_shapes=shapes, strict=False)


def _with_keys(cache: Cache) -> Any:
    names = ("layer",)
    layers = zip(names, map(list, cache.layers), strict=True)
    return [(pytree.MappingKey(name), layer) for name, layer in layers], [list(names), [None]]


def register() -> None:
    pytree.register_pytree_node(
        Cache,
        lambda cache: ([list(layer) for layer in cache.layers], [["layer"], [None]]),
        lambda layers, _: Cache([Pairs(*layer) for layer in layers]),
        serialized_type_name="somebodys.Cache",
        flatten_with_keys_fn=_with_keys,
    )


def unregister() -> None:
    pytree._deregister_pytree_node(Cache)


class Static(nn.Module):
    """Caches are buffers of a fixed size that are written at positions, and masked where they are not filled.

    style: how rows are written, and attention: "copy", "put" or "eager" (products and a softmax); "counts": a buffer
    holds how many tokens there were; "all": nothing is masked; "elsewhere": rows are written at other places.
    """

    def __init__(self, style: str, size: int = POSITIONS) -> None:
        super().__init__()
        self.decoder, self.style, self.size = Decoder(), style, size
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        for n in range(LAYERS):
            for name in ("keys", "values"):
                self.register_buffer(f"{name}_{n}", torch.zeros(1, GROUPS, size, SIZE), persistent=False)
        self.eval()

    def forward(self, input_ids: torch.Tensor, cache_position: torch.Tensor | None = None) -> torch.Tensor:
        steps = input_ids.shape[1]
        places = torch.arange(steps) + self.count if cache_position is None else cache_position
        self.count.copy_(places[:1] + steps)
        x = self.decoder.words(input_ids) + self.decoder.places(places)
        for n, layer in enumerate(self.decoder.layers):
            q, k, v = layer.rows(x)
            keys, values = (self._written(f"{name}_{n}", y, places) for name, y in (("keys", k), ("values", v)))
            x = x + self._mixed(layer, q, keys, values, places)
        found: torch.Tensor = self.decoder.head(x)
        return found

    def _written(self, name: str, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        cache: torch.Tensor = getattr(self, name)
        if self.style == "put":
            cache[:, :, places] = rows
        else:
            cache.index_copy_(2, self.size - 1 - places if self.style == "elsewhere" else places, rows)
        return cache

    def _mixed(
        self, layer: Any, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        columns = torch.arange(self.size)
        visible = columns[None, :] <= places[:, None]
        if self.style == "all":
            visible = columns[None, :] <= places[:, None] + 100
        if self.style != "eager":
            found: torch.Tensor = layer.mixed(q, keys, values, visible)
            return found
        keys, values = (y[:, :, None].expand(-1, -1, HEADS // GROUPS, -1, -1).flatten(1, 2) for y in (keys, values))
        nothing = torch.full((q.shape[2], self.size), torch.finfo(torch.float32).min)
        mask = nothing * (columns > places.reshape(-1, 1))
        weights = torch.softmax(q @ keys.transpose(2, 3) / SIZE**0.5 + mask[None, None], -1).to(q.dtype)
        mixed: torch.Tensor = layer.o((weights @ values).transpose(1, 2).reshape(1, q.shape[2], -1))
        return mixed


def static(style: str, steps: int | None = None) -> torch.export.ExportedProgram:
    """For so many tokens, or any number of them."""
    dims: Any = {} if steps is not None else {1: torch.export.Dim.DYNAMIC}
    given: tuple[torch.Tensor, ...] = (torch.ones(1, steps or 3, dtype=torch.int64),)
    shapes: tuple[Any, ...] = (dims,)
    if style != "counts":
        given, shapes = (*given, torch.arange(steps or 3)), (dims, dict(enumerate(dims.values())))
    return torch.export.export(Static(style), given, dynamic_shapes=shapes)
