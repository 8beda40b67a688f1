"""Contractions with transforms of tiles around them: interpreted and native kernels against float64 convolutions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.ops.test_winograd import convolution
from tests.schedule import scheduling as oracle
from tests.schedule.test_defaults import native
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import BufferType, tensor
from tilewright.loops.edit import kind_of, loops_in
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.spec import versions_of
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.winograd import (
    LARGEST,
    transformed_filters,
    winograd_input,
    winograd_output,
    winograd_product,
)
from tilewright.passes import PassContext
from tilewright.runtime import Model
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.hardware import Caches
from tilewright.target.named import parse_target

BLOCK = 16
N, D, H, W = var("n", 1), var("d", 1), var("h", 1), var("w", 1)
SMALL_CACHES = Caches(l1d=32 << 10, l2=44 << 10, l3=8 << 20)
"""Second-level caches that hold the tiles of a few rows only."""


@dataclass(frozen=True)
class Layer:
    """A convolution of blocked data [n, c / 16, *size, 16], bias and ReLU; `free` names the sizes that are dims."""

    name: str
    m: tuple[int, ...] = (4, 4)
    taps: tuple[int, ...] = (3, 3)
    images: int = 1
    channels: int = 16
    filters: int = 32
    size: tuple[int, ...] = (4, 8)
    before: tuple[int, ...] = (1, 1)
    after: tuple[int, ...] = (1, 1)
    residual: bool = False
    free: str = ""
    bands: bool = False  # whether one kernel makes its tiles band by band
    apart: bool = False  # whether the caches are small, and tiles are made by a kernel of their own
    epilogue: str = "relu"

    @property
    def out(self) -> tuple[int, ...]:
        rows = zip(self.size, self.before, self.after, self.taps, strict=True)
        return tuple(d + a + b - t + 1 for d, a, b, t in rows)

    def arrays(self) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        """The operands, the filters and the bias."""
        rng = np.random.default_rng([*self.m, self.channels, self.filters, *self.size])
        x = rng.standard_normal((self.images, self.channels // BLOCK, *self.size, BLOCK)).astype(np.float32)
        r = rng.standard_normal((self.images, self.filters // BLOCK, *self.out, BLOCK)).astype(np.float32)
        w = (rng.standard_normal((self.filters, self.channels, *self.taps)) * 0.1).astype(np.float32)
        return [x, r] if self.residual else [x], w, rng.standard_normal(self.filters).astype(np.float32)

    def module(self) -> Module:
        _, w, bias = self.arrays()
        dims = (N, *(D, H, W)[-len(self.size) :])
        n, *space = (
            v if v.name in self.free else given
            for v, given in zip(dims, (self.images, *self.size), strict=True)
        )
        rows = zip(space, self.before, self.after, self.taps, strict=True)
        results = tuple(d + a + b - t + 1 for d, a, b, t in rows)
        attrs = {"m": self.m, "taps": self.taps}

        def body(x: Value, *rest: Value) -> Value:
            points = winograd_input(x, pads_begin=self.before, pads_end=self.after, **attrs)
            u = constant(transformed_filters(w, self.m))
            sums = winograd_product(points, u)
            y = winograd_output(sums, x, u, space=results, pads_begin=self.before, **attrs)
            for other in (constant(bias.reshape(1, -1, *(1 for _ in space), BLOCK)), *rest):
                y = ew.add(y, other)
            return ew.max_(y, 0.0) if self.epilogue == "relu" else ew.mul(y, ew.sigmoid(y))

        shapes = [(n, self.channels // BLOCK, *space, BLOCK)]
        shapes += [(n, self.filters // BLOCK, *results, BLOCK)] if self.residual else []
        return oracle.build([tensor(dt.f32, shape) for shape in shapes], body)

    def wanted(self, arrays: list[np.ndarray] | None = None) -> np.ndarray:
        given, w, bias = self.arrays()
        x, *rest = (plain(a).astype(np.float64) for a in (given if arrays is None else arrays))
        y = convolution(x, w, self.before, self.after) + bias.reshape(-1, *(1 for _ in self.size)).astype(
            np.float64
        )
        y = sum(rest, start=y)
        return np.maximum(y, 0) if self.epilogue == "relu" else y / (1 + np.exp(-y))


def plain(x: np.ndarray) -> np.ndarray:
    n, cb, *space, b = x.shape
    return np.moveaxis(x, -1, 2).reshape(n, cb * b, *space)


LAYERS = (
    Layer("whole tiles"),
    Layer("tiles of two", (2, 2)),
    Layer("partial tiles", size=(5, 7), residual=True),
    Layer("no padding", before=(0, 0), after=(0, 0), size=(7, 11)),
    Layer("uneven padding", m=(2, 2), before=(0, 1), after=(2, 1), size=(5, 3), filters=48),
    Layer("one tile across", size=(9, 4)),
    Layer("one tile", size=(4, 4), channels=32),
    Layer("batch", images=3, size=(4, 8), filters=16, residual=True),
    Layer("bands", size=(8, 32), filters=16, bands=True),
    Layer("bands within a row", m=(2, 2), size=(2, 72), filters=16, bands=True, residual=True),
    Layer("any batch", m=(2, 2), filters=16, images=2, free="n", size=(4, 6), apart=True),
    Layer("any batch, bands", filters=16, images=2, free="n", size=(8, 32), bands=True),
    Layer("any size", m=(2, 2), filters=16, free="hw", size=(5, 6), residual=True, bands=True),
    Layer("any size, no padding", m=(2, 2), filters=16, free="nhw", size=(6, 5), before=(0, 0), after=(0, 0),
          apart=True),
    Layer("any size, few tiles", filters=64, free="nhw", size=(5, 14), images=2, apart=True),
    Layer("any size, several bands", m=(2, 2), filters=64, free="nhw", size=(9, 11), apart=True),
    Layer("any size, bands of tiles", m=(2, 2), filters=16, free="hw", size=(13, 21), residual=True, bands=True),
    Layer("any size, one band of tiles", m=(2, 2), filters=16, free="nhw", size=(11, 12), images=2, before=(0, 1),
          after=(2, 1), bands=True),
    Layer("any size, wide padding", m=(2, 2), filters=16, free="nhw", size=(5, 6), before=(2, 2), after=(2, 2),
          images=2, bands=True),
    Layer("any width", m=(2, 2), filters=16, free="w", size=(4, 5), bands=True),
    Layer("any height", m=(2, 2), filters=16, free="h", size=(5, 4), bands=True),
    Layer("across", (1, 6), (1, 3), size=(5, 13), before=(0, 1), after=(0, 1), residual=True),
    Layer("down", (2, 1), (7, 1), size=(17, 5), before=(3, 0), after=(3, 0), filters=48),
    Layer("across, bands", (1, 2), (1, 7), size=(8, 32), before=(0, 3), after=(0, 3), filters=16, bands=True),
    Layer("a line", (6,), (3,), size=(50,), before=(1,), after=(1,), images=2),
    Layer("a line, bands", (4,), (5,), size=(400,), before=(2,), after=(2,), filters=16, bands=True),
    Layer("any size, down", (2, 1), (3, 1), filters=16, free="hw", size=(9, 5), before=(1, 0), after=(1, 0),
          bands=True),
    Layer("a volume", (2, 2, 2), (3, 3, 3), size=(3, 2, 4), before=(1, 1, 1), after=(1, 1, 1), residual=True),
    Layer("a volume, bands", (2, 2, 2), (3, 3, 3), filters=16, size=(4, 5, 8), before=(1, 0, 1), after=(1, 0, 1),
          bands=True),
    Layer("planes", (1, 2, 2), (1, 3, 3), size=(2, 4, 5), before=(0, 1, 1), after=(0, 1, 1)),
    Layer("costly epilogue", m=(2, 2), size=(3, 4), epilogue="silu"),
)  # fmt: skip
IDS = [layer.name for layer in LAYERS]


def scheduled(layer: Layer, target: str) -> tuple[Module, list[Func], PassContext]:
    machine = parse_target(target)
    if layer.bands or layer.apart:
        machine = replace(machine, caches=SMALL_CACHES)
    module, ctx = layer.module(), PassContext(machine)
    Fuse(STRATEGIES).run(module, ctx)
    schedule_regions(module, machine, STRATEGIES, ctx.remarks)
    return module, [f for f in module.funcs.values() if f.level == "loops"], ctx


def check(found: np.ndarray, layer: Layer) -> None:
    wanted = layer.wanted()
    assert np.abs(plain(found) - wanted).max() <= 3e-6 * np.abs(wanted).max()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("layer", LAYERS, ids=IDS)
def test_scheduled_kernels_compute_the_convolution(layer: Layer, target: str) -> None:
    module, kernels, ctx = scheduled(layer, target)
    assert len(kernels) == (1 if layer.bands else 2)
    assert not [r for r in ctx.remarks if r.stage == "schedule"], "no schedule gave up"
    (found,) = oracle.run(module, layer.arrays()[0])
    check(found, layer)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("layer", LAYERS, ids=IDS)
def test_native_code_computes_the_convolution_with_the_same_bits_for_any_threads(layer: Layer) -> None:
    arrays = layer.arrays()[0]
    one, two = (native(layer.module(), threads)(*arrays)[0] for threads in (1, 2))
    check(one, layer)
    assert np.array_equal(one, two)


FAR = (np.inf, -np.inf, np.nan, 3e38, 1e20, 2 * LARGEST)


@pytest.mark.sweep(2)
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("layer", LAYERS, ids=IDS)
def test_data_out_of_range_changes_what_reads_it_alone(layer: Layer, fresh_seed: int) -> None:
    model, rng = native(layer.module(), 2), np.random.default_rng(fresh_seed)
    for value in FAR:
        check_one_value(layer, model, value, rng)


def check_one_value(layer: Layer, model: Model, value: float, rng: np.random.Generator) -> None:
    arrays = layer.arrays()[0]
    clean = layer.wanted()
    x = arrays[0]
    places = rng.integers(0, x.shape, (2, x.ndim))
    read = np.zeros(x.shape)
    for place in places:
        x[tuple(place)], read[tuple(place)] = value, 1
    ones = np.ones((1, layer.channels, *layer.taps))
    reads = np.broadcast_to(convolution(plain(read), ones, layer.before, layer.after) > 0, clean.shape)
    (found,) = model(*arrays)
    found = plain(found)
    assert np.abs(found - clean)[~reads].max(initial=0) <= 3e-6 * np.abs(clean).max()
    with np.errstate(all="ignore"):
        wanted = layer.wanted(arrays)
        narrow = wanted.astype(np.float32)
    if not 1e38 < abs(value) < np.inf:  # sums of what nearly overflows may do so in between
        assert np.array_equal(np.isnan(found), np.isnan(narrow))
        assert np.array_equal(np.isinf(found), np.isinf(narrow))
    finite = reads & np.isfinite(narrow) & np.isfinite(found)
    differences = np.abs(found[finite] - wanted[finite])
    assert differences.max(initial=0) <= 3e-6 * np.abs(wanted[finite]).max(initial=1)


def allocs(version: Block, space: str) -> list[BufferType]:
    types = [op.result.type for op in version.walk() if op.name == "alloc"]
    return [t for t in types if isinstance(t, BufferType) and t.space == space]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("layer", LAYERS, ids=IDS)
def test_sums_stay_in_registers_and_bands_in_the_second_level_cache(layer: Layer) -> None:
    _, kernels, _ = scheduled(layer, "x86-64-v4")
    kernel = kernels[-1]
    if layer.bands:
        for version in versions_of(kernel.body):
            assert [kind_of(loop) for loop in loops_in(version)].count("parallel") == 1
    assert len(kernel_info(kernel).packed) == 1, "the filters lie as they are read"
    for version in versions_of(kernel.body):
        accumulators = len(allocs(version, "reg"))
        assert accumulators == 1 or (layer.free and accumulators == 2), "whole tiles, and smaller ones of any size"
        scratch = allocs(version, "scratch")
        assert len(scratch) == (3 if layer.bands else 2)
        if layer.bands and not layer.free:
            assert sum(t.size.value * 4 for t in scratch) <= SMALL_CACHES.l2


def test_products_alone_do_not_wait_for_tiles() -> None:
    """What reads the sums beside the tiles keeps them in a kernel of their own."""

    def body(x: Value) -> tuple[Value, Value]:
        u = constant(transformed_filters(np.ones((16, 16, 3, 3), np.float32), (2, 2)))
        sums = winograd_product(
            winograd_input(x, m=(2, 2), taps=(3, 3), pads_begin=(1, 1), pads_end=(1, 1)), u
        )
        y = winograd_output(sums, x, u, m=(2, 2), taps=(3, 3), space=(4, 4), pads_begin=(1, 1))
        return y, ew.add(sums, 1.0)

    module = oracle.build([tensor(dt.f32, (1, 1, 4, 4, 16))], body)
    x = np.arange(256, dtype=np.float32).reshape(1, 1, 4, 4, 16) / 64
    wanted = oracle.expected(module, [x])
    ctx = oracle.scheduled(module)
    for a, b in zip(oracle.run(module, [x]), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
    assert any("the sums are needed elsewhere too" in r.message for r in ctx.remarks)
