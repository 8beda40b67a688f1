"""Attention over caches that are states, and nothing else: what decoders do between their products with weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, var
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.attention import attention
from tilewright.ops.index import put
from tilewright.ops.source import dim_value
from tilewright.ops.view import reshape, section
from tilewright.program.states import VARIABLES


@dataclass(frozen=True)
class Caches:
    """Heads of `size` elements, of which those of a group share keys and values; `layers` caches, each read by the
    results of the one before. Queries see all keys up to their own."""

    heads: int = 6
    groups: int = 2
    size: int = 16
    capacity: int = 40
    layers: int = 1
    dtype: DType = dt.f32

    def module(self) -> Module:
        steps, before = var("s", 0), var("val_past_0", None)
        types = {"q": tensor(dt.f32, (1, self.heads, steps, self.size))}
        types |= {name: tensor(dt.f32, (1, self.groups, steps, self.size)) for name in ("k", "v")}
        held = tensor(self.dtype, (1, self.groups, self.capacity, self.size))
        kept = {"past": tensor(dt.i64, ())}
        kept |= {f"{name}.{n}": held for n in range(self.layers) for name in ("keys", "values")}
        names = [*types, *kept]
        block = Block([*types.values(), *kept.values()], names)
        module = Module()
        main = module.add(Func("main", block))
        main.attrs = {
            "inputs": tuple(names), "outputs": ("y", *(f"next.{name}" for name in kept)),
            VARIABLES: tuple((name, f"next.{name}", "", name) for name in kept), "nodes": 1,
        }  # fmt: skip
        with Builder(block, module) as builder:
            builder.emit("return", self._results(dict(zip(names, block.args, strict=True)), before, steps))
        return module

    def _results(self, args: dict[str, Value], before: Sym, steps: Sym) -> list[Value]:
        x, kept = args["q"], []
        shape = (1, self.groups, self.heads // self.groups, steps, self.size)
        for n in range(self.layers):
            keys, values = (
                put(args[f"{name}.{n}"], ew.cast(args[name[0]], dtype=self.dtype), at=(0, 0, before, 0))
                for name in ("keys", "values")
            )
            kept += [keys, values]
            seen = (self._seen(cache, before + steps) for cache in (keys, values))
            x = attention(reshape(x, shape=shape), *seen, causal=True, causal_offset=before)
        whole = reshape(x, shape=(1, self.heads, steps, self.size))
        return [whole, ew.add(args["past"], dim_value(steps)), *kept]

    def _seen(self, cache: Value, total: Sym) -> Value:
        rows = reshape(section(cache, 2, 0, total), shape=(1, self.groups, 1, total, self.size))
        return ew.cast(rows, dtype=dt.f32)

    def wanted(self, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """f64: the last queries of all positions, whose keys and values are given."""
        q, keys, values = (x.astype(np.float64) for x in (q, keys, values))
        keys, values = (np.repeat(x, self.heads // self.groups, axis=1) for x in (keys, values))
        scores = np.einsum("bhqd,bhkd->bhqk", q, keys) / self.size**0.5
        count, total = scores.shape[2:]
        scores[:, :, np.arange(total) > np.arange(total - count, total)[:, None]] = -np.inf
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.einsum("bhqk,bhkd->bhqd", powers / powers.sum(axis=-1, keepdims=True), values)
