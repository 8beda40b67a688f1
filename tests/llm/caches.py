"""Attention over caches that are states, and nothing else: what decoders do between their products with weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.frontends.decoders.building import Lane
from tilewright.frontends.decoders.caches import STORED, CachedRows, attended, kept
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.sym import sym, var
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.source import dim_value
from tilewright.ops.view import reshape
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
    stored: str = "float32"

    def module(self) -> Module:
        steps, before = var("s", 0), var("val_past_0", None)
        types = {"q": tensor(dt.f32, (1, self.heads, steps, self.size))}
        types |= {name: tensor(dt.f32, (1, self.groups, steps, self.size)) for name in ("k", "v")}
        kept = {"past": tensor(dt.i64, ())}
        rows = CachedRows(self.groups, self.capacity, self.size)
        for name in (f"{name}.{n}" for n in range(self.layers) for name in ("keys", "values")):
            states = rows.states(name, self.stored).items()
            kept |= {name: tensor(state.dtype, state.shape or ()) for name, state in states}
        names = [*types, *kept]
        block = Block([*types.values(), *kept.values()], names)
        module = Module()
        main = module.add(Func("main", block))
        main.attrs = {
            "inputs": tuple(names), "outputs": ("y", *(f"next.{name}" for name in kept)),
            VARIABLES: tuple((name, f"next.{name}", "", name) for name in kept), "nodes": 1,
        }  # fmt: skip
        with Builder(block, module) as builder:
            args = dict(zip(names, block.args, strict=True))
            lane = Lane(args["past"], before, sym(0), steps, {name: args[name] for name in kept})
            builder.emit("return", self._results(args, lane))
        return module

    def _results(self, args: dict[str, Value], lane: Lane) -> list[Value]:
        x = args["q"]
        shape = (1, self.groups, self.heads // self.groups, lane.steps, self.size)
        for n in range(self.layers):
            keys, values = (
                kept(lane, f"{name}.{n}", args[name[0]], sym(0)).of_groups() for name in ("keys", "values")
            )
            scale = self.size**-0.5
            x = attended(reshape(x, shape=shape), keys, values, scale=scale, causal_offset=lane.before)
        whole = reshape(x, shape=(1, self.heads, lane.steps, self.size))
        lane.updated["past"] = ew.add(args["past"], dim_value(lane.steps))
        return [whole, *(lane.updated[name] for name in lane.states)]

    def read_back(self, rows: np.ndarray) -> np.ndarray:
        """f64: what a cache makes of rows."""
        if self.stored != "int8":
            return rows.astype(STORED[self.stored].storage).astype(np.float64)
        scales = np.abs(rows.astype(np.float64)).max(axis=-1, keepdims=True) / 127
        return np.round(rows / np.where(scales > 0, scales, 1)) * scales

    def wanted(self, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """f64: the last queries of all positions, whose keys and values are given."""
        q, keys, values = (x.astype(np.float64) for x in (q, keys, values))
        keys, values = (np.repeat(x, self.heads // self.groups, axis=1) for x in (keys, values))
        scores = np.einsum("bhqd,bhkd->bhqk", q, keys) / self.size**0.5
        count, total = scores.shape[2:]
        scores[:, :, np.arange(total) > np.arange(total - count, total)[:, None]] = -np.inf
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.einsum("bhqk,bhkd->bhqd", powers / powers.sum(axis=-1, keepdims=True), values)
