"""Vectors of few and odd numbers of lanes: LLVM's code generator ends the process for what it has no code for, so that
these kernels are compiled in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.codegen.native import kernel
from tests.codegen.test_scalars import FLOAT_OPS
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.types import buffer
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.target.named import parse_target

LANES = (2, 3)


def every_operation(dtype: DType, lanes: int) -> Func:
    """Each scalar operation of floats on one vector."""
    results = [
        dt.bool_ if SCALAR_OPS[name].result_dtype((dtype,) * 3) is dt.bool_ else dtype for name in FLOAT_OPS
    ]

    def body(t: ScalarBuilder, args: list[Array]) -> None:
        for out, name in zip(args[2:], FLOAT_OPS, strict=True):
            with t.loop(lanes, "j", "vector") as j:
                x, y = args[0][j], args[1][j]
                operands = [x > y, x, y] if name == "select" else [x, y, y][: SCALAR_OPS[name].arity]
                out.store((j,), t.apply(name, *operands))

    types = [buffer(dtype, [lanes]), buffer(dtype, [lanes]), *(buffer(d, [lanes]) for d in results)]
    return kernel(types, body, outputs=len(FLOAT_OPS))


def compile_all_of(target: str) -> None:
    machine = parse_target(target)
    for dtype in (dt.f32, dt.f64):
        for lanes in LANES:
            assert assembly(kernel_ir(every_operation(dtype, lanes), machine).text, machine)


@pytest.mark.parametrize("target", ["zen3", "zen4", "neoverse-n1"])
def test_every_operation_has_code(target: str) -> None:
    command = f"from tests.codegen.test_lane_counts import compile_all_of; compile_all_of({target!r})"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
