"""Errors in program text point at the place."""

import contextlib

import pytest

from tilewright.ir.diag import TextError
from tilewright.ir.text import parse_module


def kernel(statement):
    return f"kernel @k(a: &f32[8], n: i32) dims(m) {{\n  {statement}\n  return\n}}\n"


def graph(statement):
    return f"func @f(x: f32[n], y: f32[n]) -> (f32[n]) {{\n  {statement}\n  return x\n}}\n"


CASES = [
    (graph("y = add(x, z) : f32[n]"), 2, 14, "there is no value 'z' here"),
    (graph("z = add(x y) : f32[n]"), 2, 13, "expected ',', found 'y'"),
    (graph("z = add(x, y)"), 3, 3, "expected ':', found 'return'"),
    (graph("z = add(x, y) : f31[n]"), 2, 19, "expected a dtype, found 'f31'"),
    (graph("z, w = add(x, y) : f32[n]"), 2, 22, "1 types for 2 results"),
    (graph("z = add(x, y) : f32[n, 2 *]"), 2, 29, "expected a number, a name or '(', found ']'"),
    (graph("z = add(x, y) : f32[n // 0]"), 2, 25, "division by zero"),
    (graph("x = neg(y) : f32[n]"), 2, 3, "'x' is defined already"),
    (graph("z = add(x, y) {a=1, a=2} : f32[n]"), 2, 23, "attribute 'a' is given twice"),
    (graph("z = add(x, y) {a=?} : f32[n]"), 2, 20, "no token starts here"),
    (graph("z = add(x, y) {a=} : f32[n]"), 2, 20, "expected an attribute"),
    (graph('z = add(x, y) {a="open} : f32[n]'), 2, 20, "a string that does not end on its line"),
    (graph('z = add(x, y) {a="\\q"} : f32[n]'), 2, 20, "this string has a wrong escape"),
    (graph("z = add(x, y) : f32[n] (q: f32[n]) { yield z }"), 2, 46, "there is no value 'z' here"),
    (graph("= add(x)"), 2, 3, "expected a statement, found '='"),
    (graph("z = constant w : f32[n]"), 2, 16, "expected '(', found 'w'"),
    (kernel("a[1, 2] = 0.0"), 2, 3, "2 indices for &f32[8]"),
    (kernel("a[1] = 2.0 +"), 3, 3, "there is no value 'return' here"),
    (kernel("a[1] = foo(a[0])"), 2, 10, "there is no scalar function 'foo'"),
    (kernel("a[1] = max(a[0])"), 2, 10, "'max' takes 2 operands, not 1"),
    (kernel("x: i32 = bitcast.i33(a[0])"), 2, 12, "expected bitcast.<dtype>"),
    (kernel("x: f32 = exp(a)"), 2, 12, "this takes scalars, not &f32[8]"),
    (kernel("x: f64 = exp(a[0])"), 2, 6, "the expression has type f32"),
    (kernel("x: i32 = n"), 2, 12, "expected a computation: this value has a name already"),
    (kernel("x: bool = 1.0 < 2.0"), 2, 13, "the dtype of this number does not follow from anything"),
    (kernel("x: bool = a[0] < a[1] < a[2]"), 2, 25, "comparisons do not chain"),
    (kernel("x: f32 = n[0]"), 2, 12, "1 indices for i32"),
    (kernel("for i in 1..4 {\n}"), 2, 12, "expected 0: loops start there, found '1'"),
    (
        kernel("for i in 0..4 fast {\n}"),
        2,
        17,
        "expected '{' or one of dot, parallel, serial, unroll, vector",
    ),
    (kernel("for 5 <= i <= 4 in 0..4 {\n}"), 2, 7, "variable 'i' has no value"),
    (kernel("for i in 0..4 {"), 1, 39, "this block is not closed"),
    (kernel("a[0] = a[0 if m < 3 else x]"), 2, 28, "expected a number, found 'x'"),
    (kernel("a[0 if m < 3 else 0.0] = 1.0"), 2, 3, "a store has no 'else'"),
    (kernel("check a[0] > 0.0 else Error"), 3, 3, "expected '(', found 'return'"),
    ("func @f(x: f32[2]) -> (f32[3]) {\n  return x\n}\n", 1, 32, "@f returns (f32[2])"),
    ("constant @c: u8[2] = [1, 300]", 1, 22, "300 does not fit u8"),
    ("constant @c: u8[2] = [1]", 1, 22, "1 elements for u8[2]"),
    ("constant @c: i32[1] = [1.5]", 1, 23, "1.5 is not an element of i32"),
    ("constant @c: f32[n]", 1, 14, "the type of a constant is a dtype with constant dims"),
    ("constant @c: f32[1]\nconstant @c: f32[1]", 2, 1, "constant @c is defined already"),
    ("function @f()", 1, 1, "expected 'constant', 'func', 'program' or 'kernel', found 'function'"),
    ("func @f(", 1, 9, "expected the name of an argument, found the end of the text"),
    ("func f()", 1, 6, "expected '@', found 'f'"),
    (
        kernel("a[0] = " + "(" * 200 + "1.0" + ")" * 200),
        2,
        110,
        "the expression nests deeper than 100 levels",
    ),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), CASES)
def test_errors_show_the_line_and_a_caret(text, line, column, message):
    with pytest.raises(TextError) as e:
        parse_module(text, file="model.tw")
    first, shown, caret = e.value.what.split("\n")
    assert first.startswith(message), e.value.what
    assert e.value.where == f"model.tw:{line}:{column}", str(e.value)
    assert shown == "    " + text.split("\n")[line - 1]
    assert caret == " " * (column + 3) + "^"


def test_exact_message():
    with pytest.raises(TextError) as e:
        parse_module(graph("z = add(x, yy) : f32[n]"), file="model.tw")
    assert str(e.value) == (
        "there is no value 'yy' here\n"
        "      z = add(x, yy) : f32[n]\n"
        "                 ^\n"
        "  where: model.tw:2:14\n"
        "  hint: did you mean y?"
    )


@pytest.mark.parametrize(
    "text",
    [
        graph("z = fused(x) {a=(1, `n`)} : f32[n] (q: f32[n]) { yield q }"),
        kernel("for i in 0..m { a[i if i < m else 0] += exp(a[i]) * 2.0 }"),
    ],
)
def test_every_damaged_text_is_a_text_error_or_legal(text):
    for i in range(len(text)):
        for damaged in (
            text[:i],
            text[:i] + text[i + 1 :],
            text[:i] + "}" + text[i:],
            text[:i] + "(" + text[i:],
        ):
            with contextlib.suppress(TextError):
                parse_module(damaged)
