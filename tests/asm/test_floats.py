"""Which instructions compute with floats, and that work on integers compiles to none of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import program
from tests.schedule import scheduling as oracle
from tilewright.asm.floats import floating_point_instructions
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.graph.pipeline import default_passes
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.fixed_point import fixed_point, requantize_fixed
from tilewright.ops.index import table_lookup
from tilewright.ops.quant import matmul_integer
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.target.named import parse_target

MACHINES = ("x86-64-v3", "zen4", "neoverse-n1")

X86 = {
    "vaddps": True, "addss": True, "vfmadd231ps": True, "vfnmadd213sd": True, "vcvtdq2ps": True, "vcvttps2dq": True,
    "cvtsi2ss": True, "vucomiss": True, "vcmpltps": True, "vmaxps": True, "vroundps": True, "vrndscaleps": True,
    "vdpbf16ps": True, "fld": True, "vsqrtss": True, "vrcp14ps": True, "vaddph": True, "vmovups": False,
    "vmovaps": False, "vbroadcastf128": False, "vblendvps": False, "vshufps": False, "vxorps": False, "vpaddd": False,
    "vpmuldq": False, "vpmaddwd": False, "vpdpbusd": False, "vpermi2b": False, "movss": False, "vinsertf128": False,
    "vpcmpgtb": False, "cmpq": False, "addq": False, "vpmaxsd": False, "vpackusdw": False, "divq": False,
}  # fmt: skip
ARM = {
    "fadd": True, "fmla": True, "fcvtzs": True, "scvtf": True, "ucvtf": True, "frintn": True, "fcmgt": True,
    "fmax": True, "fdiv": True, "bfdot": True, "fmov": False, "fneg": False,
    "fabs": False, "fabd": True, "add": False, "smull": False, "sdot": False, "tbl": False,
    "bfi": False, "bfxil": False, "b": False, "ldr": False, "smax": False, "sqxtn": False, "mov": False,
}  # fmt: skip


@pytest.mark.parametrize(("machine", "known"), [("zen4", X86), ("neoverse-n1", ARM)])
def test_names_of_instructions(machine: str, known: dict[str, bool]) -> None:
    target = parse_target(machine)
    lines = ["\t.type k,@function", "k:", *(f"\t{name}\tx, y" for name in known), "\tret", ".Lfunc_end0:"]
    found = {i.mnemonic for i in floating_point_instructions("\n".join(lines), target)}
    assert found == {name for name, is_float in known.items() if is_float}


def layer(x: Value) -> Value:
    """A product of bytes, brought back to bytes without a float, and a function of these."""
    rng = np.random.default_rng(5)
    weights = rng.integers(-127, 128, (32, 48)).astype(np.int8)
    multipliers, shift = fixed_point(rng.random(48) * 1e-3 + 1e-5)
    sums = matmul_integer(x, constant(weights), constant(np.uint8(131)), constant(np.int8(0)))
    biased = ew.add(sums, constant(rng.integers(-9999, 10000, 48).astype(np.int32)))
    q = requantize_fixed(biased, constant(multipliers), shift=shift, zero_point=37, dtype=dt.u8)
    return table_lookup(q, constant(rng.integers(0, 256, 256).astype(np.uint8)))


@pytest.mark.parametrize("machine", MACHINES)
def test_a_layer_of_integers_has_no_floating_point_instruction(machine: str) -> None:
    module = compiled(layer, machine)
    target = parse_target(machine)
    kernels = [f for f in module.funcs.values() if f is not module.main]
    assert kernels
    for kernel in kernels:
        assert not floating_point_instructions(assembly(kernel_ir(kernel, target).text, target), target)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_layer_of_integers_is_the_same_on_all_machines(machine: str) -> None:
    module = program(layer, tensor(dt.u8, (9, 32)))
    x = np.random.default_rng(6).integers(0, 256, (9, 32)).astype(np.uint8)
    (expected,) = evaluate_func(module.main, module, [x])
    assert len(np.unique(expected)) > 9
    (found,) = oracle.run(compiled(layer, machine), [x])
    np.testing.assert_array_equal(found, expected)


def test_floats_are_found_where_they_are() -> None:
    target = parse_target("zen3")
    module = program(lambda x: ew.mul(ew.cast(x, dtype=dt.f32), 0.5), tensor(dt.u8, (64,)))
    oracle.scheduled(module, "zen3")
    (kernel,) = [f for f in module.funcs.values() if f is not module.main]
    names = {i.mnemonic for i in floating_point_instructions(assembly(kernel_ir(kernel, target).text, target), target)}
    assert {"vcvtdq2ps", "vmulps"} <= names


def compiled(body: object, machine: str) -> Module:
    module = program(body, tensor(dt.u8, (9, 32)))  # type: ignore[arg-type]
    target, options = parse_target(machine), Options()
    run_passes(module, default_passes(options), PassContext(target, options))
    oracle.scheduled(module, machine)
    return module


@pytest.mark.parametrize(
    ("called", "is_float"),
    [("expf@PLT", True), ("__divsf3", True), ("__floatdisf", True), ("memset@PLT", False), ("__divti3", False),
     ("*%rax", False), ("tw_pool_run", False)],
)  # fmt: skip
def test_calls_of_functions_of_floats(called: str, is_float: bool) -> None:
    text = f"\t.type k,@function\nk:\n\tcallq\t{called}\n\tretq\n.Lfunc_end0:\n"
    assert bool(floating_point_instructions(text, parse_target("zen3"))) == is_float
