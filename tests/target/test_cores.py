"""Code for a core uses what its target lists and nothing else, and a core that LLVM does not know is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import models
from tilewright.api import compile_artifact
from tilewright.back_end import CpuBackEnd
from tilewright.codegen.cpu.assemble import assembly
from tilewright.options import Options
from tilewright.target.cores import check_core, known_cores
from tilewright.target.cpus import CPUS
from tilewright.target.features import FEATURES, LENGTHS
from tilewright.target.machine import TargetError
from tilewright.target.named import NAMED

PRODUCTS = """
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
declare <4 x i32> @llvm.fshl.v4i32(<4 x i32>, <4 x i32>, <4 x i32>)
define <8 x float> @product(<8 x float> %a, <8 x float> %b, <8 x float> %c) {
  %r = call <8 x float> @llvm.fma.v8f32(<8 x float> %a, <8 x float> %b, <8 x float> %c)
  ret <8 x float> %r
}
define <4 x i32> @rotate(<4 x i32> %a, <4 x i32> %n) {
  %r = call <4 x i32> @llvm.fshl.v4i32(<4 x i32> %a, <4 x i32> %a, <4 x i32> %n)
  ret <4 x i32> %r
}
"""


def test_what_a_target_does_not_list_is_not_used() -> None:
    """bdver4 has FMA4 and XOP, which no other maker's and no later core has."""
    old = replace(NAMED["zen3"], name="excavator", cpu="bdver4")
    text = assembly(PRODUCTS, old)
    assert "vfmadd" in text and "vfmaddps" not in text and "vprot" not in text
    plain = replace(old, features=())
    assert "vfmadd" not in assembly(PRODUCTS, plain)


def test_every_feature_is_listed_or_switched_off() -> None:
    for name, target in NAMED.items():
        said = {part[1:] for part in target.feature_text.split(",") if part}
        assert said >= {*FEATURES.get(target.arch, ())} - LENGTHS, name


@pytest.mark.parametrize("name", list(CPUS))
def test_llvm_knows_the_cores_of_all_targets(name: str) -> None:
    target = NAMED[name]
    assert known_cores(target.triple), "LLVM does not list its cores"
    check_core(name, target.cpu, target.triple)


def test_a_misspelt_core_is_refused() -> None:
    wrong = replace(NAMED["zen3"], name="mine", cpu="znvr3")
    with pytest.raises(TargetError, match="LLVM has no core 'znvr3', which the target 'mine' names") as caught:
        CpuBackEnd().check(wrong, Options())
    assert "did you mean znver3" in str(caught.value)


def test_models_are_compiled_for_named_cores() -> None:
    assert compile_artifact(models.mlp(), options=Options(target="zen2", cache=False)).target.cpu == "znver2"
