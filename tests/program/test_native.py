"""What needs no host, in a program of parts: the rules of its op, and what cannot be handed on."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compilation import Compilation, Setting
from tilewright.ir.diag import VerifyError
from tilewright.ir.text import parse_module, print_module
from tilewright.ir.verify import verify_func
from tilewright.options import Options
from tilewright.program.interp import run_program
from tilewright.program.native import GroupNative, native_ops
from tilewright.program.spec import program_spec
from tilewright.program.steps import staged_program
from tilewright.runtime.errors import TilewrightError
from tilewright.target.host import host_target

PART = """
func @part0(x: f32[2]) -> (f32[2]) { y = exp(x) : f32[2]
  return y }
"""
GROUPED = f"""{PART}
program @main(x: f32[2]) -> (f32[2]) {{
  z = native() : f32[2] () {{
    y = call(x) {{part="part0", sizes=()}} : f32[2]
    w = call(y) {{part="part0", sizes=()}} : f32[2]
    yield w
  }}
  return z
}}
"""


def test_calls_that_stand_together_become_one_op() -> None:
    module = parse_module(GROUPED.replace("z = native() : f32[2] () {\n", "").replace("    yield w\n  }\n", "")
                          .replace("return z", "return w"))  # fmt: skip
    x = np.array([0.5, -1], np.float32)
    expected = run_program(module, [x])
    GroupNative().run(module)
    verify_func(module.main, program_spec(module))
    (op,) = native_ops(module)
    assert [inner.name for inner in op.blocks[0].ops] == ["call", "call", "yield"]
    assert print_module(parse_module(print_module(module))) == print_module(module)
    np.testing.assert_array_equal(run_program(module, [x]), expected)
    (step,) = staged_program(module).program.steps
    assert (step.inputs, step.outputs) == ((0,), (1,)) or (step.inputs, step.outputs) == ((1,), (0,))


@pytest.mark.parametrize(
    "change, message",
    [
        (("native() : f32[2]", "native(x) : f32[2]"), "has one block without arguments"),
        (("native() : f32[2]", "native() {a=1} : f32[2]"), "has one block without arguments"),
        (("z = native() : f32[2]", "z = native() : f32[3]"), r"gives \(f32\[2\]\), not \(f32\[3\]\)"),
    ],
)
def test_illegal_native_ops(change: tuple[str, str], message: str) -> None:
    text = GROUPED.replace(*change)
    assert text != GROUPED
    text = text.replace("-> (f32[2]) {\n  z = native() : f32[3]", "-> (f32[3]) {\n  z = native() : f32[3]")
    module = parse_module(text)
    with pytest.raises(VerifyError, match=message):
        verify_func(module.main, program_spec(module))


def test_states_of_a_program_of_parts_are_written_as_a_whole() -> None:
    text = f"""{PART}
    program @main(x: f32[2]) -> (f32[2]) {{
      h = state() {{name="h"}} : state f32[4]
      before = read(h) : f32[4]
      y = call(x) {{part="part0", sizes=()}} : f32[2]
      update(h, y) {{at=[2]}}
      return y
    }}"""
    read = Compilation.resumed(text, Setting.of(Options(), host_target()))
    with pytest.raises(TilewrightError, match=r"writes states as a whole, and not at \[2\]"):
        staged_program(read.module)
