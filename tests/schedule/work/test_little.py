"""Kernels that take next to nothing of their program's time are found, and their code is made quickly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.schedule.scheduling import build, expected, scheduled
from tilewright.back_end import CpuCode
from tilewright.codegen.cpu import assemble
from tilewright.codegen.cpu.assemble import Effort, Unit
from tilewright.codegen.program import KernelText
from tilewright.compilation import Output
from tilewright.compiler import compile_module
from tilewright.cost.roofline import LITTLE, little_ones
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ir.sym import var
from tilewright.ir.text import print_func
from tilewright.ir.types import TensorType, tensor
from tilewright.loops.kernel_info import kernel_info, parse_kernel
from tilewright.ops import contract, view
from tilewright.ops import elementwise as ew
from tilewright.ops.sort import topk
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.host import host_target
from tilewright.target.named import NAMED
from tilewright.target.target import Target

N = var("n", 1)
RNG = np.random.default_rng(8)


def f32(*shape: Any) -> TensorType:
    return tensor(dt.f32, shape)


def beside_a_product(x: Value, y: Value, few: Value) -> tuple[Value, ...]:
    return contract.matmul(x, y), ew.exp(view.transpose(few, perm=(1, 0)))


TYPES = (f32(512, 512), f32(512, 512), f32(5, 7))


def little_of(module: Module, target: str = "x86-64-v3") -> dict[str, bool]:
    """The kernels of a module without their numbers, and whether they are little."""
    scheduled(module, target)
    kernels = [f for f in module.funcs.values() if f.level == "loops"]
    return {f.name.partition("_")[2]: kernel_info(f).little for f in kernels}


def note_efforts(made: list[Effort], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note how hard LLVM tries for each kernel."""
    make = assemble._object_of

    def noted(unit: Unit, machine: Target) -> bytes:
        if unit.kernel:
            made.append(unit.effort)
        return make(unit, machine)

    monkeypatch.setattr(assemble, "_object_of", noted)


def test_the_cheapest_are_little_as_long_as_all_of_them_take_little() -> None:
    cycles = {"product": [1e6], "a": [0.4 * LITTLE * 1e6], "b": [0.4 * LITTLE * 1e6], "c": [0.4 * LITTLE * 1e6]}
    assert little_ones(cycles) == {"a", "b"}
    assert little_ones({"alone": [1.0]}) == set()
    assert little_ones({}) == set()


def test_the_size_counts_for_which_a_kernel_takes_most() -> None:
    assert little_ones({"product": [1e6, 1e7], "a": [1.0, 1e6], "b": [1.0, 10.0]}) == {"b"}


def test_a_kernel_beside_a_large_product_is_little() -> None:
    assert little_of(build(TYPES, beside_a_product)) == {"matmul": False, "transpose_exp": True}


def test_so_is_one_that_many_small_regions_share_only_if_all_of_them_are() -> None:
    def body(x: Value, y: Value, *few: Value) -> tuple[Value, ...]:
        return contract.matmul(x, y), *(ew.exp(view.transpose(v, perm=(1, 0))) for v in few)

    few = build((*TYPES[:2], *[f32(5, 7)] * 3), body)
    assert little_of(few)["transpose_exp"]
    many = build((*TYPES[:2], *[f32(50, 70)] * 40), body)
    assert not little_of(many)["transpose_exp"]


def test_of_unknown_sizes_the_largest_count_too() -> None:
    def body(x: Value, y: Value, few: Value) -> tuple[Value, ...]:
        return contract.matmul(x, y), ew.exp(view.transpose(few, perm=(0, 2, 1)))

    assert little_of(build((*TYPES[:2], f32(3, N, 7)), body))["transpose_exp"]
    assert not little_of(build((*TYPES[:2], f32(3, N, N)), body))["transpose_exp"]


def test_what_has_loops_of_its_own_is_never_little() -> None:
    def body(x: Value, y: Value, few: Value) -> tuple[Value, ...]:
        return contract.matmul(x, y), *topk(few, k=2, axis=1)

    assert not any(little for name, little in little_of(build(TYPES, body)).items() if "topk" in name)


def test_little_is_said_in_the_text_of_a_kernel() -> None:
    module = build(TYPES, beside_a_product)
    scheduled(module)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops" and kernel_info(f).little)
    text = print_func(kernel)
    assert "little=true" in text
    assert kernel_info(parse_kernel(text)).little


@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("element", [dt.f32, dt.f64, dt.f16, dt.i8, dt.i64], ids=str)
def test_what_it_computes_stays(element: dt.DType, numerics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: Value, y: Value, few: Value) -> tuple[Value, ...]:
        turned = view.transpose(few, perm=(1, 0))
        return contract.matmul(x, y), ew.sub(ew.mul(turned, turned), turned)

    types = (*TYPES[:2], tensor(element, (37, 21)))
    few = RNG.integers(-9, 9, (37, 21)).astype(element.storage)
    if element.is_float:
        few[0, :4] = np.nan, np.inf, -np.inf, -0.0
    arrays = [RNG.standard_normal((512, 512)).astype(np.float32) for _ in range(2)]
    wanted = expected(build(types, body), [*arrays, few])
    options = Options(numerics="strict") if numerics == "strict" else Options()
    made: list[Effort] = []
    note_efforts(made, monkeypatch)
    model = Model(compile_module(build(types, body), options, host_target()), 1)
    np.testing.assert_array_equal(model(*arrays, few)[1], wanted[1])
    assert sorted(e.name for e in made) == ["KERNEL", "LITTLE" if host_target().arch == "x86_64" else "KERNEL"]


def test_where_instructions_are_looked_for_and_on_other_machines_it_has_all_passes() -> None:
    text = KernelText("k", "", little=True)

    def effort(name: str, options: Options) -> Effort:
        with CpuCode(NAMED[name], options) as code:
            return code._effort(text)

    assert effort("zen3", Options(compile_threads=1)) is Effort.LITTLE
    assert effort("zen3", Options(compile_threads=1, integer_only=True)) is Effort.KERNEL
    assert effort("zen3", Options(compile_threads=1, numerics="strict")) is Effort.LITTLE
    assert effort("neoverse-n1", Options(compile_threads=1)) is Effort.KERNEL


def test_its_code_is_not_that_of_an_equal_kernel_that_counts() -> None:
    class Begun:
        def begin(self, text: KernelText) -> None:
            pass

    output = Output(Begun(), None)  # type: ignore[arg-type]
    texts = [KernelText(f"k{n}", f"define void @k{n}()", little=n % 2 == 1) for n in range(4)]
    assert [output.submitted(t).symbol for t in texts] == ["k0", "k1", "k0", "k1"]
