"""Vectors of few and odd numbers of lanes: LLVM's code generator ends the process for what it has no code for, so that
these kernels are compiled in a process of their own."""

from __future__ import annotations

import subprocess
import sys

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
MACHINES = ("zen3", "zen4", "neoverse-n1")


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


def test_every_operation_has_code() -> None:
    """A process that LLVM ended has printed which machine it was at."""
    command = "from tests.codegen.test_lane_counts import compile_all_of"
    calls = "".join(f"\nprint({name!r}, flush=True)\ncompile_all_of({name!r})" for name in MACHINES)
    done = subprocess.run([sys.executable, "-c", command + calls], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.split() == [*MACHINES], (done.stdout, done.stderr[-2000:])
