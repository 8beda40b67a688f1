"""Numbers that are rounded to bytes and read in the same kernel: they stay floats, and mean the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import program
from tests.schedule.scheduling import scheduled
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.compiler import compile_module
from tilewright.graph.pipeline import default_passes
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.quant import dequantize_linear, quantize_linear
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.runtime.module import Model
from tilewright.target.named import parse_target

SEEDS = np.random.SeedSequence()
SPECIAL = np.float32(
    [0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-30, 0.5, 1.5, -0.5, 16777217, -16777217]
)


def there_and_back(
    dtype: dt.DType, zeros: tuple[int, int], scale: np.float32, shape: tuple[int, ...]
) -> Module:
    def body(x: Value) -> Value:
        first, second = (constant(np.asarray(z, dtype.storage)) for z in zeros)
        q = quantize_linear(x, constant(scale), first, dtype=dtype)
        return dequantize_linear(q, constant(scale), second, dtype=dt.f32)

    return program(body, tensor(dt.f32, shape))


def run(module: Module, x: np.ndarray, machine: str = "host") -> np.ndarray:
    (found,) = Model(compile_module(module, Options(threads=1), parse_target(machine)))(x)
    return np.asarray(found)


@pytest.mark.parametrize("dtype", (dt.u8, dt.i8, dt.u16, dt.i16), ids=str)
@pytest.mark.parametrize("is_moved_back", (True, False))
def test_numbers_go_through_bytes(dtype: dt.DType, is_moved_back: bool) -> None:
    print("entropy", SEEDS.entropy)
    rng = np.random.default_rng(SEEDS)
    limits = np.iinfo(dtype.storage)
    for scale in (10 ** rng.uniform(-4, 2, 3)).astype(np.float32):
        zero = int(rng.integers(limits.min, limits.max + 1))
        zeros = (zero, zero if is_moved_back else int(rng.integers(limits.min, limits.max + 1)))
        x = np.concatenate([(rng.normal(0, 200, 1000) * scale).astype(np.float32), SPECIAL])
        with np.errstate(all="ignore"):
            module = there_and_back(dtype, zeros, scale, x.shape)
            (expected,) = evaluate_func(module.main, module, [x])
            found = run(module, x)
            np.testing.assert_array_equal(found[~np.isnan(x)], expected[~np.isnan(x)])
            # Which integer NaN becomes is not defined, and depends on whether bytes got another sign.
            ends = (np.float32([limits.min, limits.max]) - np.float32(zeros[1])) * scale
            assert (ends[0] <= found[np.isnan(x)]).all() and (found[np.isnan(x)] <= ends[1]).all()


def test_no_integer_is_made_of_what_stays_in_registers() -> None:
    module = there_and_back(dt.u8, (128, 128), np.float32(0.1), (4096,))
    text = assembled(module)
    assert "vrndscaleps" in text
    assert "vcvttps2dq" not in text and "vcvtdq2ps" not in text


def assembled(module: Module, machine: str = "zen4") -> str:
    """The machine code of its kernels."""
    target = parse_target(machine)
    run_passes(module, default_passes(Options()), PassContext(target, Options()))
    scheduled(module, machine)
    kernels = [func for name, func in module.funcs.items() if name != "main"]
    assert kernels
    return "\n".join(assembly(kernel_ir(func, target).text, target) for func in kernels)


def residual(x: Value, y: Value) -> Value:
    """What quantised networks do after a convolution: dequantise two tensors of bytes, add, quantise."""
    numbers = [
        dequantize_linear(v, constant(np.float32(s)), constant(np.uint8(z)), dtype=dt.f32)
        for v, s, z in ((x, 1 / 64, 121), (y, 1 / 32, 7))
    ]
    return quantize_linear(ew.add(*numbers), constant(np.float32(0.05)), constant(np.uint8(99)), dtype=dt.u8)


def test_sums_of_bytes_have_finite_quotients() -> None:
    module = program(residual, *[tensor(dt.u8, (65536,))] * 2)
    text = assembled(module)
    assert "vcmpunordps" not in text
    grid = np.stack(np.meshgrid(np.arange(256), np.arange(256))).reshape(2, -1).astype(np.uint8)
    a, b = (
        (g.astype(np.float32) - z) * np.float32(s)
        for g, s, z in zip(grid, (1 / 64, 1 / 32), (121, 7), strict=True)
    )
    expected = np.clip(np.rint((a + b) / np.float32(0.05)) + 99, 0, 255)
    module = program(residual, *[tensor(dt.u8, (65536,))] * 2)
    (found,) = Model(compile_module(module, Options(threads=1), parse_target("host")))(*grid)
    np.testing.assert_array_equal(found, expected)
