"""Operators with loops of their own on GPUs: threads share all loops of a nest that are independent."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from math import ceil, prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tests.loops.interleave import run_interleaved
from tests.machines.conftest import on_driver
from tests.machines.drivers import NAMES
from tests.machines.fake_cuda import FakeCuda
from tests.machines.networks import decoder, encoder
from tests.machines.test_cuda import TARGET, compiled, driver, fake
from tests.machines.test_webgpu import MODELS, PRODUCT, ROWS, UNKNOWN, model
from tests.schedule.scheduling import build
from tilewright import Session
from tilewright.back_end import GpuBackEnd
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.fusion.strategy import Strategies
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Value
from tilewright.ir.diag import VerifyError
from tilewright.ir.types import tensor
from tilewright.ir.verify import verify_func
from tilewright.loops.edit import extent_of, is_loop
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.rules import machine_spec
from tilewright.ops import index as ix
from tilewright.ops.linalg import lu_factor
from tilewright.options import Options
from tilewright.passes import PassContext
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.stages import programs
from tilewright.target.gpu.webgpu import WEBGPU

__all__ = ["driver", "fake"]


@pytest.fixture(params=NAMES)
def vulkan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Models for WebGPU run on this driver; `driver` is that of CUDA here."""
    yield from on_driver(request.param, monkeypatch)


def kernel(arrays: Sequence[np.ndarray], body: Callable[..., Value]) -> Func:
    """The one kernel for WebGPU of an operator."""
    module = build([tensor(dt.from_numpy(x.dtype), x.shape) for x in arrays], body)
    strategies: Strategies[Any] = Strategies(tuple(GpuBackEnd().strategies(WEBGPU)))
    ctx = PassContext(WEBGPU)
    Fuse(strategies).run(module, ctx)
    schedule_regions(module, ctx.target, strategies, ctx.remarks)
    (func,) = [f for f in module.funcs.values() if f.level == "loops"]
    verify_func(func, machine_spec(WEBGPU))
    return func


def groups(func: Func) -> list[int]:
    """Of 64 threads each, of the nests of a kernel whose sizes are known."""
    loops = [op for op in func.body.walk() if is_loop(op) and op.attrs.get("level") == "group"]
    return [extent_of(op).value for op in loops]


@pytest.mark.parametrize("shape", [(1, 3, 17, 10), (1, 1, 9, 64), (2, 5, 7, 13), (1, 4, 1, 1)])
def test_rows_of_a_cache_are_shared_by_element(shape: tuple[int, int, int, int]) -> None:
    """Also where there is one entry of the batch."""
    rng = np.random.default_rng(shape)
    rows = min(shape[2], 2)
    cache, new = (rng.standard_normal((*shape[:2], n, shape[3])).astype(np.float32) for n in (shape[2], rows))
    at = shape[2] - rows
    func = kernel([cache, new], lambda x, part: ix.put(x, part, at=(0, 0, at, 0)))
    assert groups(func) == [ceil(prod(x.shape) / 64) for x in (cache, new)]
    found = np.zeros_like(cache)
    run_interleaved(func, [cache, new, found], {}, random.Random(3))
    np.testing.assert_array_equal(found, np.concatenate([cache[:, :, :at], new], axis=2))


def scattered(x: np.ndarray, places: np.ndarray, updates: np.ndarray, reduction: str) -> np.ndarray:
    """One update after the other."""
    y = x.copy()
    for index in np.ndindex(places.shape[:-1]):
        place = tuple(places[index])
        y[place] = y[place] + updates[index] if reduction == "add" else updates[index]
    return y


@pytest.mark.parametrize("seed", range(12))
def test_updates_of_one_place_stay_in_order(seed: int) -> None:
    """Sums too: each is the same to the last bit."""
    rng = np.random.default_rng([7, seed])
    rank = int(rng.integers(2, 5))
    depth = int(rng.integers(1, rank))
    shape = tuple(int(n) for n in (*rng.integers(1, 3, depth), *rng.choice([1, 2, 5, 9, 13], rank - depth)))
    count = int(rng.choice([1, 2, 5]))
    x, updates = (rng.standard_normal(s).astype(np.float32) for s in (shape, (count, *shape[depth:])))
    places = np.stack([rng.integers(0, n, count) for n in shape[:depth]], axis=-1)
    reduction = str(rng.choice(["none", "add"]))
    func = kernel([x, places, updates], lambda *v: ix.scatter_nd(*v, reduction=reduction))
    is_shared = prod(shape[depth:]) > 1 or count == 1
    assert groups(func) == ([ceil(prod(s) / 64) for s in (shape, shape[depth:])] if is_shared else [])
    found = np.zeros_like(x)
    run_interleaved(func, [x, places, updates, found], {}, random.Random(seed))
    np.testing.assert_array_equal(found, scattered(x, places, updates, reduction))


def test_updates_that_may_meet_in_any_axis_are_one_threads() -> None:
    x, places, updates = np.zeros((5, 7), np.float32), np.zeros((4, 2), np.int64), np.ones(4, np.float32)
    assert groups(kernel([x, places, updates], ix.scatter_nd)) == []


BF16 = ml_dtypes.bfloat16
def test_what_one_thread_would_do_alone_is_known_as_such() -> None:
    """A kernel in which threads share something is not taken for one that a CPU had better compute."""
    assert groups(kernel([np.eye(9, dtype=np.float32)], lambda x: lu_factor(x)[0])) == []
    assert groups(kernel([np.stack([np.eye(9, dtype=np.float32)] * 3)], lambda x: lu_factor(x)[0])) == [1]


DTYPES = {"float": np.float32, "float16": np.float16, "bfloat16": BF16, "int8": np.int8, "int64": np.int64}
ROWS_PUT = "g ({t}[k,3,n] x, int64[m,1] at, {t}[m,3,n] u) => ({t}[k,3,n] y) {{ y = ScatterND(x, at, u) }}"
SIZES = ((4, 10, 3), (1, 1, 1), (5, 0, 2), (3, 43, 0), (2, 64, 5))
"""Rows, their elements, and updates."""


def check_rows(ours: tilewright.Model, dtype: Any) -> None:
    for rows, n, count in SIZES:
        rng = np.random.default_rng([rows, n, count])
        x, u = (rng.integers(-100, 100, (size, 3, n)).astype(dtype) for size in (rows, count))
        at = rng.integers(0, rows, (count, 1))
        np.testing.assert_array_equal(ours(x, at, u)[0], scattered(x, at, u, "none"))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", DTYPES)
def test_webgpu_puts_rows_where_data_say(name: str, vulkan: str, tmp_path: Path) -> None:
    text = ROWS_PUT.format(t=name)
    check_rows(tilewright.compile(model(text), target="webgpu", session=Session(folder=tmp_path)), DTYPES[name])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", DTYPES)
def test_cuda_puts_rows_where_data_say(name: str, fake: FakeCuda, tmp_path: Path) -> None:
    check_rows(compiled(ROWS_PUT.format(t=name), fake, tmp_path), DTYPES[name])


CACHES: dict[str, Any] = {"states": True, "capacity": 32}
BARRIERS: dict[str, tuple[Callable[[], bytes], dict[str, Any]]] = {
    "encoder": (lambda: encoder(2, 64, 4), {}),
    "decoder": (lambda: decoder(2, 64, 4), CACHES),
    "rows put": (lambda: model(ROWS_PUT.format(t="float")), {}),
    **{
        name: (lambda text=text: model(text), {})  # type: ignore[misc]
        for name, text in {**MODELS, **ROWS, **UNKNOWN, "product in tiles": PRODUCT}.items()
    },
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("target", ["webgpu", TARGET])
@pytest.mark.parametrize("name", BARRIERS)
def test_no_barrier_may_be_left_out(name: str, target: str, tmp_path: Path) -> None:
    """Each barrier, taken out of its kernel alone, leaves accesses of threads that nothing orders."""
    make, options = BARRIERS[name]
    machine = Session().machine(Options(target=target))
    texts = programs(make(), "loops", options=Options(target=target, **options), session=Session(folder=tmp_path))
    for text in texts.values():
        verify_func(parse_kernel(text), machine_spec(machine))
        for k in range(sum(op.name == "barrier" for op in parse_kernel(text).body.walk())):
            func = parse_kernel(text)
            barrier = [op for op in func.body.walk() if op.name == "barrier"][k]
            barrier.parent.ops.remove(barrier)
            with pytest.raises(VerifyError, match="may meet in"):
                verify_func(func, machine_spec(machine))
