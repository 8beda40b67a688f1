"""Whole programs: calls, branches, loops, dims that are not known, files, names, and what is damaged."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests.frontends.stablehlo.helpers import compiled, evaluated, ops_of, program
from tilewright.frontends.stablehlo.load import load_stablehlo
from tilewright.frontends.stablehlo.parsing import parsed

I1 = "(tensor<i32>, tensor<i32>) -> tensor<i1>"
UPDATE = """
  func.func private @put(%rows: tensor<{n}x2xf32>, %row: tensor<2xf32>, %at: tensor<i32>) -> tensor<{n}x2xf32> {{
    %z = stablehlo.constant dense<0> : tensor<i32>
    %w = stablehlo.reshape %row : (tensor<2xf32>) -> tensor<1x2xf32>
    %r = stablehlo.dynamic_update_slice %rows, %w, %at, %z :
      (tensor<{n}x2xf32>, tensor<1x2xf32>, tensor<i32>, tensor<i32>) -> tensor<{n}x2xf32>
    return %r : tensor<{n}x2xf32>
  }}
"""


def scan(n: int, at: str, read: str = "") -> bytes:
    """h = h / 2 + x[i], collected: row `at` is put by a function, as JAX writes it; `read` is what else is done."""
    rows, state = f"tensor<{n}x2xf32>", "tensor<2xf32>"
    return program(
        f"%x: {rows}", f"{state}, {rows}", "%c0 = stablehlo.constant dense<0> : tensor<i32>",
        "%c1 = stablehlo.constant dense<1> : tensor<i32>", f"%n = stablehlo.constant dense<{n}> : tensor<i32>",
        f"%h0 = stablehlo.constant dense<0.0> : {state}", f"%y0 = stablehlo.constant dense<0.0> : {rows}",
        f"%half = stablehlo.constant dense<0.5> : {state}",
        f"%r:4 = stablehlo.while(%xs = %x, %i = %c0, %h = %h0, %ys = %y0) : {rows}, tensor<i32>, {state}, {rows}",
        f"cond {{ %p = stablehlo.compare LT, %i, %n, SIGNED : {I1}", "stablehlo.return %p : tensor<i1> } do {",
        at,
        f"%s = stablehlo.dynamic_slice %xs, %at, %c0, sizes = [1, 2] : ({rows}, tensor<i32>, tensor<i32>) "
        "-> tensor<1x2xf32>",
        f"%v = stablehlo.reshape %s : (tensor<1x2xf32>) -> {state}", f"%m = stablehlo.multiply %h, %half : {state}",
        f"%k = stablehlo.add %m, %v : {state}", read,
        f"%w = func.call @put({'%ys2' if read else '%ys'}, %k, %at) : ({rows}, {state}, tensor<i32>) -> {rows}",
        "%j = stablehlo.add %i, %c1 : tensor<i32>",
        f"stablehlo.return %xs, %j, %k, %w : {rows}, tensor<i32>, {state}, {rows} }}",
        f"return %r#2, %r#3 : {state}, {rows}", functions=UPDATE.format(n=n),
    )  # fmt: skip


FORWARD = "%at = stablehlo.add %i, %c0 : tensor<i32>"
BACKWARD = "%d = stablehlo.subtract %n, %i : tensor<i32>\n%at = stablehlo.subtract %d, %c1 : tensor<i32>"


@pytest.mark.parametrize("n", [5, 300])
@pytest.mark.parametrize("at", [FORWARD, BACKWARD], ids=["forward", "backward"])
def test_loops_collect_rows(n: int, at: str) -> None:
    x = np.random.default_rng(0).standard_normal((n, 2)).astype(np.float32)
    order = range(n) if at == FORWARD else range(n - 1, -1, -1)
    h, rows = np.zeros(2, np.float32), np.zeros((n, 2), np.float32)
    for i in order:
        h = rows[i] = h / 2 + x[i]
    source = scan(n, at)
    assert ("loop" in ops_of(load_stablehlo(source))) == (n > 256)
    found = compiled(source, x)
    np.testing.assert_allclose(found[0], h, rtol=1e-5)
    np.testing.assert_allclose(found[1], rows, rtol=1e-5)


def test_rows_that_are_read_are_a_state() -> None:
    read = "%ys2 = stablehlo.negate %ys : tensor<5x2xf32>"
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    h, rows = np.zeros(2, np.float32), np.zeros((5, 2), np.float32)
    for i in range(5):
        rows = -rows
        h = rows[i] = h / 2 + x[i]
    np.testing.assert_allclose(evaluated(scan(5, FORWARD, read), x)[1], rows, rtol=1e-6)


def test_loops_with_a_condition_of_data() -> None:
    source = program(
        "%x: tensor<f32>", "tensor<f32>", "%l = stablehlo.constant dense<100.0> : tensor<f32>",
        "%r = stablehlo.while(%a = %x) : tensor<f32>",
        "cond { %p = stablehlo.compare LT, %a, %l : (tensor<f32>, tensor<f32>) -> tensor<i1>",
        "stablehlo.return %p : tensor<i1> } do {", "%b = stablehlo.add %a, %a : tensor<f32>",
        "stablehlo.return %b : tensor<f32> }", "return %r : tensor<f32>",
    )  # fmt: skip
    model = tilewright.compile(source, threads=1, cache=False)
    assert [float(model(np.float32(v))[0]) for v in (3, 200)] == [192, 200]


def test_cases_beyond_the_last_take_it() -> None:
    ways = ", ".join(
        "{ %c" + str(k) + f" = stablehlo.constant dense<{k}.0> : tensor<f32>\nstablehlo.return %c{k} : tensor<f32> }}"
        for k in range(3)
    )
    source = program(
        "%i: tensor<i32>", "tensor<f32>", f'%r = "stablehlo.case"(%i) ({ways}) : (tensor<i32>) -> tensor<f32>',
        "return %r : tensor<f32>",
    )  # fmt: skip
    for which, expected in ((0, 0), (1, 1), (2, 2), (7, 2), (-1, 2)):
        assert evaluated(source, np.int32(which))[0] == expected


DYNAMIC = program(
    '%x: tensor<?x4xf32> loc("x"), %y: tensor<?x4xf32> loc("y")', "tensor<?x4xf32>, tensor<?x2xf32>",
    "%n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>",
    "%m = stablehlo.get_dimension_size %y, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>",
    f"%p = stablehlo.compare EQ, %n, %m, SIGNED : {I1}",
    'stablehlo.custom_call @shape_assertion(%p, %n) {error_message = "x and y must be equally long. '
    'Using the following names", has_side_effect = true} : (tensor<i1>, tensor<i32>) -> ()',
    "%one = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>", "%c = stablehlo.constant dense<4> : tensor<1xi32>",
    "%s = stablehlo.concatenate %one, %c, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>",
    "%k = stablehlo.dynamic_iota %s, dim = 0 : (tensor<2xi32>) -> tensor<?x4xf32>",
    "%a = stablehlo.add %x, %y : tensor<?x4xf32>", "%b = stablehlo.add %a, %k : tensor<?x4xf32>",
    "%two = stablehlo.constant dense<2> : tensor<1xi32>", "%t = stablehlo.multiply %one, %two : tensor<1xi32>",
    "%u = stablehlo.concatenate %t, %two, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>",
    "%r = stablehlo.dynamic_reshape %b, %u : (tensor<?x4xf32>, tensor<2xi32>) -> tensor<?x2xf32>",
    "return %b, %r : tensor<?x4xf32>, tensor<?x2xf32>",
)  # fmt: skip


def test_dims_that_are_not_known() -> None:
    model = tilewright.compile(DYNAMIC, threads=1, cache=False)
    for n in (1, 3):
        x = np.arange(4 * n, dtype=np.float32).reshape(n, 4)
        expected = x + x + np.arange(n, dtype=np.float32)[:, None]
        found = model(x, x)
        np.testing.assert_array_equal(found[0], expected)
        np.testing.assert_array_equal(found[1], expected.reshape(-1, 2))
    with pytest.raises(tilewright.TilewrightError, match="x and y must be equally long"):
        model(x, x[:2])


def test_complex_numbers_between_real_ones() -> None:
    source = program(
        "%x: tensor<3x8xf32>", "tensor<3x5xf32>, tensor<3x8xf32>",
        "%f = stablehlo.fft %x, type = RFFT, length = [8] : (tensor<3x8xf32>) -> tensor<3x5xcomplex<f32>>",
        "%a = stablehlo.abs %f : (tensor<3x5xcomplex<f32>>) -> tensor<3x5xf32>",
        "%c = stablehlo.constant dense<(0.0, 1.0)> : tensor<3x5xcomplex<f32>>",
        "%m = stablehlo.multiply %f, %c : tensor<3x5xcomplex<f32>>",
        "%i = stablehlo.fft %m, type = IRFFT, length = [8] : (tensor<3x5xcomplex<f32>>) -> tensor<3x8xf32>",
        "return %a, %i : tensor<3x5xf32>, tensor<3x8xf32>",
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    size, back = evaluated(source, x)
    np.testing.assert_allclose(size, np.abs(np.fft.rfft(x)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(back, np.fft.irfft(np.fft.rfft(x) * 1j, 8), rtol=1e-4, atol=1e-5)


def test_complex_numbers_at_the_border() -> None:
    """Of inputs and outputs, and 2053 elements, which are a prime number of them."""
    source = program(
        "%x: tensor<3x2053xcomplex<f32>>", "tensor<3x2053xcomplex<f32>>, tensor<3x2053xcomplex<f32>>",
        "%f = stablehlo.fft %x, type = FFT, length = [2053] : "
        "(tensor<3x2053xcomplex<f32>>) -> tensor<3x2053xcomplex<f32>>",
        "%t = stablehlo.tanh %x : tensor<3x2053xcomplex<f32>>",
        "return %f, %t : tensor<3x2053xcomplex<f32>>, tensor<3x2053xcomplex<f32>>",
    )  # fmt: skip
    parts = np.random.default_rng(0).standard_normal((2, 3, 2053)).astype(np.float32)
    x = parts[0] + 1j * parts[1]
    model = tilewright.compile(source, threads=1, cache=False)
    assert [info.dtype for info in (*model.inputs, *model.outputs)] == ["complex64"] * 3
    transform, tanh = model(x)
    np.testing.assert_allclose(transform, np.fft.fft(x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(tanh, np.tanh(x), rtol=1e-4, atol=1e-5)


def test_operators_of_chlo_are_written_by_stablehlo() -> None:
    source = program(
        "%x: tensor<2xf32>", "tensor<2xf32>, tensor<2xf32>", "%a = chlo.lgamma %x : tensor<2xf32> -> tensor<2xf32>",
        "%b = chlo.erf %x : tensor<2xf32> -> tensor<2xf32>", "return %a, %b : tensor<2xf32>, tensor<2xf32>",
    )  # fmt: skip
    found = evaluated(source, np.array([4.0, 0.5], np.float32))
    np.testing.assert_allclose(found[0], [np.log(6), np.log(np.pi) / 2], rtol=1e-5)


def test_names_of_scopes_and_lines() -> None:
    source = program(
        '%x: tensor<2xf32> loc("x")', 'tensor<2xf32> {jax.result_info = "result[\'y\']"}',
        '%a = stablehlo.tanh %x : tensor<2xf32> loc("jit(f)/encoder/layer_0/tanh"("model.py":12:3))',
        "return %a : tensor<2xf32>",
    )  # fmt: skip
    module = load_stablehlo(source)
    (op,) = [o for o in module.main.body.ops if o.name == "tanh"]
    assert (op.loc.node, op.loc.op, op.loc.file, op.loc.line) == ("encoder/layer_0/tanh", "tanh", "model.py", 12)
    assert module.main.attrs["inputs"] == ("x",) and module.main.attrs["outputs"] == ("result['y']",)


def test_all_that_is_not_supported_is_listed() -> None:
    source = program(
        "%x: tensor<2x2xf32>", "tensor<2x2xf32>",
        "%a = stablehlo.custom_call @lapack_sgees_ffi(%x) : (tensor<2x2xf32>) -> tensor<2x2xf32>",
        '%b = stablehlo.custom_call @their_kernel(%a) : (tensor<2x2xf32>) -> tensor<2x2xf32> loc("layer/custom")',
        "return %b : tensor<2x2xf32>",
    )  # fmt: skip
    with pytest.raises(tilewright.UnsupportedError) as caught:
        load_stablehlo(source)
    text = str(caught.value)
    assert "lapack_sgees_ffi" in text and "'their_kernel'" in text and "layer/custom" in text


# Files, and bytes that are damaged


def artefact() -> bytes:
    from jaxlib.mlir.dialects import stablehlo

    return bytes(stablehlo.serialize_portable_artifact_str(str(parsed(DYNAMIC)), stablehlo.get_current_version()))


@pytest.mark.usefixtures("first_read_by_a_child")
def test_artefacts_and_files(tmp_path: Path) -> None:
    text, bytecode = tmp_path / "model.mlir", tmp_path / "model.mlirbc"
    text.write_bytes(DYNAMIC)
    bytecode.write_bytes(artefact())
    x = np.ones((2, 4), np.float32)
    for path in (text, bytecode):
        assert tilewright.compile(path, threads=1, cache=False)(x, x)[1].shape == (4, 2)


@pytest.mark.usefixtures("first_read_by_a_child")
@pytest.mark.fresh_seeds(1)
def test_damaged_programs_end_in_an_error(fresh_seed: int) -> None:
    chance, data = random.Random(fresh_seed), artefact()
    damaged = [b"module {", b"module @m {\n func.func @main() { return }", data[: len(data) // 2], data[:20]]
    for _ in range(4):
        changed = bytearray(data)
        for _ in range(8):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        damaged.append(bytes(changed))
    for source in damaged:
        try:
            load_stablehlo(source)
        except tilewright.TilewrightError as error:
            assert "report" not in str(error)
