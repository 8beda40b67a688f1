"""Types of values that only the host has, as text."""

from __future__ import annotations

import pytest

from tilewright.ir.text import parse_module, print_module

TEXT = """\
func @main({args}) -> ({results}) {{
  return {names}
}}
"""


@pytest.mark.parametrize(
    "type",
    ["sequence(f32[any, 3])", "optional(sequence(string[]))", "map(string, f32[])", "tensor(i64)", "string[n]"],
)
def test_a_type_is_printed_as_it_is_read(type: str) -> None:
    text = TEXT.format(args=f"x: {type}", results=type, names="x")
    assert print_module(parse_module(text)) == text
