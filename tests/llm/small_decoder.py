"""A small decoder in the form that front ends give, and what it computes, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.sym import Sym, maximum, sym, var
from tilewright.ir.types import TensorType, tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import silu
from tilewright.ops.attention import attention
from tilewright.ops.composites.attention import from_heads, rotated, to_heads
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.index import gather, put
from tilewright.ops.norm import rms_norm
from tilewright.ops.source import dim_value, iota
from tilewright.ops.view import reshape, section, shape_of
from tilewright.program.states import VARIABLES


@dataclass(frozen=True)
class Small:
    """Sizes of a decoder, whose weights follow from the seed."""

    layers: int = 2
    width: int = 32
    heads: int = 6
    groups: int = 2
    size: int = 8
    inner: int = 48
    vocabulary: int = 50
    capacity: int = 24
    window: int | None = None
    seed: int = 0

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        rows = {"q": self.heads * self.size, "k": self.groups * self.size, "v": self.groups * self.size}
        shapes = {"embedding": (self.vocabulary, self.width), "norm": (self.width,)}
        for k in range(self.layers):
            shapes |= {f"{k}.{name}": (self.width, n) for name, n in rows.items()}
            shapes |= {f"{k}.o": (self.heads * self.size, self.width), f"{k}.down": (self.inner, self.width)}
            shapes |= {f"{k}.{name}": (self.width, self.inner) for name in ("gate", "up")}
            shapes |= {f"{k}.norm_{n}": (self.width,) for n in (1, 2)}
        found = {name: rng.standard_normal(shape) / shape[0] ** 0.5 for name, shape in shapes.items()}
        return {name: (x if x.ndim > 1 else 1 + x).astype(np.float32) for name, x in found.items()}

    @cached_property
    def angles(self) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines [positions, size / 2] of as many positions as tests get to."""
        speed = 100.0 ** (-np.arange(self.size // 2) / (self.size // 2))
        turned = np.arange(min(self.capacity, 4096))[:, None] * speed
        return np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32)

    def logits(self, tokens: list[int]) -> np.ndarray:
        """f64[tokens, vocabulary]: those behind each of the tokens."""
        w = {name: x.astype(np.float64) for name, x in self.weights.items()}
        count = len(tokens)
        x = w["embedding"][tokens]
        cos, sin = (np.concatenate([t[:count]] * 2, axis=1).astype(np.float64)[:, None] for t in self.angles)
        distance = np.arange(count)[:, None] - np.arange(count)
        seen = (distance >= 0) & (distance < (self.window or count + 1))
        for k in range(self.layers):
            y = _normed(x, w[f"{k}.norm_1"])
            q, key, value = ((y @ w[f"{k}.{name}"]).reshape(count, -1, self.size) for name in "qkv")
            half = self.size // 2
            q, key = (z * cos + np.concatenate([-z[..., half:], z[..., :half]], axis=2) * sin for z in (q, key))
            key, value = (np.repeat(z, self.heads // self.groups, axis=1) for z in (key, value))
            scores = np.einsum("qhd,khd->hqk", q, key) / self.size**0.5
            scores = np.where(seen, scores, -np.inf)
            powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = np.einsum("hqk,khd->qhd", powers / powers.sum(axis=-1, keepdims=True), value)
            x = x + mixed.reshape(count, -1) @ w[f"{k}.o"]
            y = _normed(x, w[f"{k}.norm_2"])
            gate = y @ w[f"{k}.gate"]
            x = x + (gate / (1 + np.exp(-gate)) * (y @ w[f"{k}.up"])) @ w[f"{k}.down"]
        return _normed(x, w["norm"]) @ w["embedding"].T

    def module(self) -> Module:
        steps = var("s", 0)
        shape = (1, self.groups, self.capacity, self.size)
        types: dict[str, TensorType] = {"ids": tensor(dt.i64, (1, steps)), "past": tensor(dt.i64, ())}
        types |= {f"{name}.{k}": tensor(dt.f32, shape) for k in range(self.layers) for name in ("keys", "values")}
        block = Block(list(types.values()), list(types))
        module = Module()
        main = module.add(Func("main", block))
        outputs = ("logits", *(f"next.{name}" for name in list(types)[1:]))
        kept = tuple((name, f"next.{name}", "", name) for name in list(types)[1:])
        main.attrs = {"inputs": tuple(types), "outputs": outputs, VARIABLES: kept, "nodes": 1}
        with Builder(block, module) as builder:
            builder.emit("return", self._results(dict(zip(types, block.args, strict=True)), steps))
        return module

    def _results(self, args: dict[str, Value], steps: Sym) -> list[Value]:
        w = {name: constant(x, name) for name, x in self.weights.items()}
        before = var("val_past_0", None)
        past = dim_value(before)
        x = gather(w["embedding"], args["ids"], axis=0)
        positions = reshape(ew.add(iota(shape=(steps,), axis=0), past), shape=(1, steps))
        tables = [constant(t, name) for t, name in zip(self.angles, ("cos", "sin"), strict=True)]
        kept = []
        for k in range(self.layers):
            y = rms_norm(x, w[f"{k}.norm_1"], epsilon=1e-5)
            q = to_heads(matmul(y, w[f"{k}.q"]), self.heads)
            key, value = (to_heads(matmul(y, w[f"{k}.{name}"]), self.groups) for name in "kv")
            q, key = (rotated(z, tables[0], tables[1], positions, interleaved=False) for z in (q, key))
            new = {"keys": key, "values": value}
            keys, values = (put(args[f"{name}.{k}"], z, at=(0, 0, before, 0)) for name, z in new.items())
            kept += [keys, values]
            mixed = self._attention(q, keys, values, before + steps, before)
            x = ew.add(x, matmul(mixed, w[f"{k}.o"]))
            y = rms_norm(x, w[f"{k}.norm_2"], epsilon=1e-5)
            gated = ew.mul(silu(matmul(y, w[f"{k}.gate"])), matmul(y, w[f"{k}.up"]))
            x = ew.add(x, matmul(gated, w[f"{k}.down"]))
        last = section(rms_norm(x, w["norm"], epsilon=1e-5), 1, steps - 1, 1)
        logits = reshape(matmul(last, w["embedding"], transpose_b=True), shape=(1, self.vocabulary))
        return [logits, ew.add(args["past"], dim_value(steps)), *kept]

    def _attention(self, q: Value, keys: Value, values: Value, total: Sym, before: Sym) -> Value:
        steps = shape_of(q)[2]
        first = sym(0) if self.window is None else maximum(before - (self.window - 1), 0)
        count = total - first
        wide = reshape(q, shape=(1, self.groups, self.heads // self.groups, steps, self.size))
        keys, values = (
            reshape(section(x, 2, first, count), shape=(1, self.groups, 1, count, self.size)) for x in (keys, values)
        )
        mask: tuple[Value, ...] = ()
        if self.window is not None:
            own = ew.add(iota(shape=(steps, sym(1)), axis=0), dim_value(before - first))
            mask = (ew.gt(iota(shape=(count,), axis=0), ew.sub(own, self.window)),)
        found = attention(wide, keys, values, *mask, causal=True, causal_offset=before - first)
        return from_heads(reshape(found, shape=(1, self.heads, steps, self.size)))


def _normed(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * scale
