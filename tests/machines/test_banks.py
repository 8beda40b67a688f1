"""Threads that are served together need one word of each bank of shared memory, in the products of CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machines.banks import words_of_one_bank
from tests.machines.test_cuda import TARGET
from tests.machines.test_webgpu import model
from tilewright import Session
from tilewright.loops.kernel_info import parse_kernel
from tilewright.options import Options
from tilewright.stages import programs

MATRICES = "g ({t}[2048,{k}] l, {t}[{k},2048] r) => ({t}[2048,2048] y) {{ y = MatMul(l, r) }}"
TURNED = (
    "g ({t}[2048,{k}] l, {t}[2048,{k}] q) => ({t}[2048,2048] y) {{ r = Transpose<perm=[1,0]>(q) y = MatMul(l, r) }}"
)
IMAGES = """g ({t}[2,32,56,56] x, {t}[64,32,3,3] w) => ({t}[2,64,56,56] y) {{
  k = Constant<value=int64[1]{{{k}}}>() y = Conv<pads=[1,1,1,1]>(x, w)
}}"""
BYTES = """g (int8[2,32,56,56] x) => (int32[2,64,56,56] y) {
  p = Constant<value=int8[3]{1,-2,127}>() e = Constant<value=int64[1]{6144}>() t = Tile(p, e)
  s = Constant<value=int64[4]{64,32,3,3}>() w = Reshape(t, s) y = ConvInteger<pads=[1,1,1,1]>(x, w)
}"""
CASES = {
    "float32": (TARGET, MATRICES.format(t="float", k=64)), "float16": (TARGET, MATRICES.format(t="float16", k=64)),
    "float16 turned": (TARGET, TURNED.format(t="bfloat16", k=64)),
    "tf32": (f"{TARGET},tf32", MATRICES.format(t="float", k=64)),
    "tf32 turned": (f"{TARGET},tf32", TURNED.format(t="float", k=64)),
    "convolution": (TARGET, IMAGES.format(t="float16", k=1)), "convolution of bytes": (TARGET, BYTES),
}  # fmt: skip


@pytest.mark.sweep(3)
@pytest.mark.parametrize("case", CASES)
def test_no_bank_is_asked_for_two_words(case: str, tmp_path: Path) -> None:
    target, text = CASES[case]
    made = programs(model(text), "loops", options=Options(target=target), session=Session(folder=tmp_path))
    found = [each for loops in made.values() for each in words_of_one_bank(parse_kernel(loops))]
    assert len(found) >= 4
    assert [each for each in found if each[1] > 1] == []


BY_HAND = """kernel @k(x: &f32[16, 64], y: &f32[16, 64]) dims() with {{outputs=1}} {{
  for g in 0..1 parallel with {{level="group"}} {{
    alloc t: shared f32[16, {size}]
    for i in 0..16 parallel with {{level="row"}} {{ for j in 0..16 parallel with {{level="thread"}} {{
      t[i, j] = x[i, j]
    }} }}
    barrier row
    for i1 in 0..16 parallel with {{level="row"}} {{ for j1 in 0..16 parallel with {{level="thread"}} {{
      y[i1, j1] = t[{at}]
    }} }}
  }}
  return
}}"""


@pytest.mark.parametrize(
    ("size", "at", "stored", "loaded"),
    [(64, "i1, j1", 2, 2), (80, "i1, j1", 1, 1), (80, "0, 0", 1, 1), (64, "j1, i1", 2, 16), (65, "j1, i1", 2, 2)],
)
def test_words_are_counted_as_hardware_gives_them(size: int, at: str, stored: int, loaded: int) -> None:
    """A warp is two rows of sixteen threads; all of them may have one word."""
    func = parse_kernel(BY_HAND.format(size=size, at=at))
    assert [count for _, count in words_of_one_bank(func)] == [stored, loaded]
