"""What may be read and written of states in which order: programs that obey the rules, and what each broken one is
told."""

from __future__ import annotations

import pytest

from tilewright.ir.core import Module
from tilewright.ir.diag import VerifyError
from tilewright.ir.text import parse_module, print_module
from tilewright.ir.verify import verify_func
from tilewright.program.spec import program_spec

HEAD = """
func @step(x: f32[4], h: f32[4]) -> (f32[4]) {{
  y = add(x, h) : f32[4]
  return y
}}

program @main(x: f32[4], c: bool[], n: i64[], p: i64[]) -> (f32[4]) {{
  h = state() {{name="h"}} : state f32[4]
{body}
}}
"""

RIGHT = {
    "read, then update": """
      old = read(h) : f32[4]
      y = call(x, old) {part="step", sizes=()} : f32[4]
      update(h, y)
      return y""",
    "read again": """
      update(h, x)
      new = read(h) : f32[4]
      y = call(x, new) {part="step", sizes=()} : f32[4]
      return y""",
    "parts that do not meet": """
      a = slice(x) {starts=(0,), sizes=(2,), steps=(1,)} : f32[2]
      b = slice(x) {starts=(2,), sizes=(2,), steps=(1,)} : f32[2]
      update(h, a) {at=[0]}
      update(h, b) {at=[2]}
      return x""",
    "in each trip anew": """
      y = loop(n, c, x) {states=1, row_shapes=()} : f32[4] (i: i64[], go: bool[], a: f32[4]) {
        old = read(h) : f32[4]
        b = call(a, old) {part="step", sizes=()} : f32[4]
        update(h, b)
        yield go, b
      }
      return y""",
    "in one way": """
      y = branch(c) : f32[4] () {
        old = read(h) : f32[4]
        z = call(x, old) {part="step", sizes=()} : f32[4]
        update(h, z)
        yield z
      } () {
        yield x
      }
      return y""",
}

WRONG = {
    "read after an update": (
        """
      old = read(h) : f32[4]
      update(h, x)
      y = call(x, old) {part="step", sizes=()} : f32[4]
      return y""",
        r"call: 'old' of state 'h' is read here, and line 4 has `update\(h, x\)`: it no longer holds what was read",
    ),
    "returned after an update": (
        """
      old = read(h) : f32[4]
      update(h, x)
      return old""",
        r"return: 'old' of state 'h' is read here, and line 4 has `update\(h, x\)`",
    ),
    "a view after an update": (
        """
      old = read(h) : f32[4]
      seen = reshape(old) {shape=[4]} : f32[4]
      update(h, x)
      y = call(x, seen) {part="step", sizes=()} : f32[4]
      return y""",
        "call: 'seen' of state 'h' is read here, and line 5 has",
    ),
    "two writers": (
        """
      update(h, x)
      update(h, x)
      return x""",
        r"update: 'h' is written here, and line 3 has `update\(h, x\)`: both may write the same elements",
    ),
    "two writers of parts": (
        """
      a = slice(x) {starts=(0,), sizes=(2,), steps=(1,)} : f32[2]
      measure(p) {variables=[val_p]}
      update(h, a) {at=[0]}
      update(h, a) {at=[val_p]}
      return x""",
        "both may write the same elements",
    ),
    "both ways of a branch": (
        """
      y = branch(c) : f32[4] () {
        update(h, x)
        yield x
      } () {
        old = read(h) : f32[4]
        z = call(x, old) {part="step", sizes=()} : f32[4]
        yield z
      }
      return y""",
        r"update: 'h' is updated here, and line 7 has `old = read\(h\) : f32\[4\]`: one way of a branch updates",
    ),
    "read before a branch that updates": (
        """
      old = read(h) : f32[4]
      y = branch(c) : f32[4] () {
        update(h, x)
        yield x
      } () {
        yield x
      }
      z = call(y, old) {part="step", sizes=()} : f32[4]
      return z""",
        "call: 'old' of state 'h' is read here",
    ),
    "read before a loop that updates": (
        """
      old = read(h) : f32[4]
      y = loop(n, c, x) {states=1, row_shapes=()} : f32[4] (i: i64[], go: bool[], a: f32[4]) {
        b = call(a, old) {part="step", sizes=()} : f32[4]
        update(h, b)
        yield go, b
      }
      return y""",
        r"call: 'old' of state 'h' is read in a loop here, and line 6 has `update\(h, b\)`: the next trip",
    ),
    "handed to the next trip": (
        """
      y = loop(n, c, x) {states=1, row_shapes=()} : f32[4] (i: i64[], go: bool[], a: f32[4]) {
        update(h, a)
        old = read(h) : f32[4]
        yield go, old
      }
      return y""",
        "yield: 'old' of state 'h' is read in a loop here, and line 4 has",
    ),
}

FORMS = {
    "no position": ("update(h, c)", "writes bool.* into state f32"),
    "beyond the end": (
        'y2 = call(x, x) {part="step", sizes=()} : f32[4]\n update(h, y2) {at=[1]}',
        "writes 1 to 5 along axis 0, of 4 elements",
    ),
    "another shape": (
        "y2 = reshape(x) {shape=[2, 2]} : f32[2, 2]\n update(h, y2)",
        r"writes f32\[2, 2\] over state f32\[4\], without a position",
    ),
    "a read of another type": ("y2 = read(h) : f32[5]", r"gives f32\[4\], not f32\[5\]"),
    "a read of no state": ("y2 = read(x) : f32[4]", "reads a state, not f32"),
    "open dims": ('g = state() {name="g"} : state f32[m]', "has fixed dims, as its memory lives longer than a call"),
    "other memory": ('g = state() {name="g"} : reg f32[4]', "is of a type such as 'state f32"),
    "no such part": ('y2 = call(x) {part="none", sizes=()} : f32[4]', "the module has no part @none"),
    "no function": ("y2 = call(x) : f32[4]", "has the attribute 'kernel' or 'part'"),
    "wrong operands": ('y2 = call(x) {part="step", sizes=()} : f32[4]', r"@step takes \(f32\[4\], f32\[4\]\), not"),
    "wrong results": ('y2 = call(x, x) {part="step", sizes=()} : f32[5]', r"@step gives \(f32\[4\]\), not"),
    "an operator": ("y2 = exp(x) : f32[4]", "level 'program' has no such op"),
}


def program(body: str) -> Module:
    return parse_module(HEAD.format(body=body))


def verify(module: Module) -> None:
    verify_func(module.main, program_spec(module))


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT.keys())
def test_right_programs(body: str) -> None:
    module = program(body)
    verify(module)
    text = print_module(module)
    assert print_module(parse_module(text)) == text


@pytest.mark.parametrize("body, message", WRONG.values(), ids=WRONG.keys())
def test_an_access_that_breaks_a_rule_is_named(body: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message) as error:
        verify(program(body))
    assert "@main, line" in str(error.value)


@pytest.mark.parametrize("line, message", FORMS.values(), ids=FORMS.keys())
def test_ops_have_their_forms(line: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(program(f"{line}\n return x"))
