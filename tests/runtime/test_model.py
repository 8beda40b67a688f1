"""Calling models: arguments, results, errors, memory."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.native import (
    STATIC_CONSTANTS,
    copy_artifact,
    dynamic_artifact,
    range_artifact,
    static_artifact,
)
from tilewright.runtime import Model
from tilewright.runtime.errors import ExecutionError, InputError, OptionError


@pytest.fixture(scope="module")
def static() -> Model:
    return Model(static_artifact())


@pytest.fixture(scope="module")
def dynamic() -> Model:
    return Model(dynamic_artifact(), threads=2)


X = np.linspace(-3, 7, 6, dtype=np.float32).reshape(2, 3)
Y = 2 * X + STATIC_CONSTANTS


def pair(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n * 1000 + m)
    return rng.integers(0, 1000, (n, m)).astype(np.float32), rng.integers(0, 1000, (n, m)).astype(np.float32)


def test_call_by_position_and_name(static: Model) -> None:
    for result in (static(X), static(x=X), static.run({"x": X})):
        assert isinstance(result, tuple) and len(result) == 1
        np.testing.assert_array_equal(result[0], Y)
        assert result[0].dtype == np.float32


def test_results_are_new_arrays(static: Model) -> None:
    (first,) = static(X)
    (second,) = static(X + 1)
    np.testing.assert_array_equal(first, Y)
    assert not np.may_share_memory(first, second)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.asfortranarray(X),
        lambda: np.repeat(X, 2, axis=1)[:, ::2],
        lambda: X[:, ::-1].copy()[:, ::-1],
        lambda: np.frombuffer(X.tobytes(), np.float32).reshape(2, 3),
        lambda: np.frombuffer(b"?" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3),
        lambda: X.tolist(),
        lambda: tuple(map(tuple, X.tolist())),
        lambda: np.ma.masked_array(X),
    ],
    ids=["fortran", "strided", "negative", "read-only", "unaligned", "list", "tuple", "subclass"],
)
def test_any_memory_layout(static: Model, make) -> None:
    np.testing.assert_array_equal(static(make())[0], Y)


def test_foreign_arrays(static: Model) -> None:
    class Dlpack:
        def __dlpack__(self, **options):
            return X.copy().__dlpack__(**options)

        def __dlpack_device__(self):
            return X.__dlpack_device__()

    class Array:
        def __array__(self, dtype=None, copy=None):
            return X

    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("the tensor is on a device")

    np.testing.assert_array_equal(static(Dlpack())[0], Y)
    np.testing.assert_array_equal(static(Array())[0], Y)
    with pytest.raises(InputError, match=r"input 'x'.*Broken.*the tensor is on a device"):
        static(Broken())


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((X.astype(np.float64),), {}, r"'x' must be float32, the given array is float64\[2, 3\]"),
        ((X.astype(">f4"),), {}, r"'x' must be float32, the given array is >f4\[2, 3\]"),
        ((np.float64(1.0),), {}, r"'x' must be float32, the given array is float64"),
        ((X[0],), {}, r"'x' must have 2 dims, the given shape is \[3\]"),
        ((X.T.copy(),), {}, r"'x': dim 0 must be 2, the given shape is \[3, 2\]"),
        ((), {}, r"missing inputs: x: float32\[2, 3\]"),
        ((X, X), {}, r"2 positional inputs given, 1 expected"),
        ((), {"z": X}, r"there is no input 'z'"),
        ((X,), {"x": X}, r"'x' is given both by position and by name"),
        ((None,), {}, r"'x' must be an array, not NoneType"),
        (("text",), {}, r"'x' must be an array, not str"),
        (([[1, 2, 3], [4, 5]],), {}, r"'x':"),
        (([["a", "b", "c"]] * 2,), {}, r"'x' must be float32, the given values are <U1"),
        (([[1e300] * 3] * 2,), {}, r"'x': a value is out of the range of float32"),
    ],
)
def test_wrong_inputs(static: Model, args, named, message: str) -> None:
    with pytest.raises(InputError, match=message):
        static(*args, **named)
    np.testing.assert_array_equal(static(X)[0], Y)


def test_dtype_error_says_how_to_convert(static: Model) -> None:
    with pytest.raises(InputError, match=r'\.astype\("float32"\)'):
        static(X.astype(np.float64))


def test_python_numbers_do_not_change_in_kind() -> None:
    model = Model(copy_artifact("uint8", 4))
    np.testing.assert_array_equal(model([1, 2, 3, 255])[0], np.array([1, 2, 3, 255], np.uint8))
    for values, message in (([1.5, 0, 0, 0], "float64"), ([256, 0, 0, 0], "range"), ([-1, 0, 0, 0], "range")):
        with pytest.raises(InputError, match=message):
            model(values)


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"),
        *("int2", "uint2", "float4_e2m1fn"),
    ],
)
def test_every_dtype_passes_through(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.array([0, 1, 1, 0]).astype(kind)
    (y,) = Model(copy_artifact(dtype, x.nbytes))(x)
    assert y.dtype == kind
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 2), (3, 4), (7, 64), (100, 130), (0, 4), (5, 0)])
def test_dynamic_shapes(dynamic: Model, n: int, m: int) -> None:
    x, y = pair(n, m)
    np.testing.assert_array_equal(dynamic(x, y)[0], x + y)


def test_shapes_grow_and_shrink(dynamic: Model) -> None:
    for n in (1, 300, 2, 5000, 1, 5001):
        x, y = pair(n, 200)
        np.testing.assert_array_equal(dynamic(x, y)[0], x + y)


def test_shapes_that_depend_on_values() -> None:
    model = Model(range_artifact())
    x = np.empty(5, np.float32)
    for count in (3, 7, 0, 7, 2):
        np.testing.assert_array_equal(model(np.int64(count), x)[0], np.arange(count) + 5)
    np.testing.assert_array_equal(model(4, [])[0], np.arange(4))
    with pytest.raises(InputError, match=r"output 'y' would have the shape \[-1\]"):
        model(-1, x)
    with pytest.raises(ExecutionError, match=r"no memory for output 'y': int64\[4611686018427387904\]"):
        model(2**62, x)


def test_symbolic_dims_must_agree(dynamic: Model) -> None:
    with pytest.raises(
        InputError, match=r"'y': dim 0 must be 3 \(n = 3 by input 'x'\), the given shape is \[4, 2\]"
    ):
        dynamic(np.ones((3, 2), np.float32), np.ones((4, 2), np.float32))


def test_errors_of_native_code(static: Model, dynamic: Model) -> None:
    bad = X.copy()
    bad[0, 0] = -1
    with pytest.raises(ExecutionError, match=r"node 'guard' \(Check\)[^$]*called with x float32\[2, 3\]"):
        static(bad)
    with pytest.raises(InputError, match="m must be even"):
        dynamic(*pair(2, 3))
    with pytest.raises(ExecutionError, match=r"x\[0, 0\] is -1"):
        dynamic(np.full((2, 2), -1, np.float32), np.ones((2, 2), np.float32))
    x, y = pair(2, 4)
    np.testing.assert_array_equal(dynamic(x, y)[0], x + y)


@pytest.mark.parametrize(
    ("m", "kind", "message"),
    [
        (1000, ExecutionError, r"no memory for the intermediate tensors, and [a-z ]*: 2305843009213\d+ bytes"),
        (1002, ExecutionError, "out of range: arena -8"),
        (1004, InputError, r"output 'z' would have the shape \[-1, 1004\]"),
    ],
)
def test_impossible_plans(dynamic: Model, m: int, kind: type[Exception], message: str) -> None:
    # twice: the failed plan must not be taken for a known one
    for _ in range(2):
        with pytest.raises(kind, match=message):
            dynamic(*pair(1, m))


def test_out(static: Model) -> None:
    y = np.empty((2, 3), np.float32)
    (result,) = static(X, out=(y,))
    assert result is y
    np.testing.assert_array_equal(y, Y)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.empty((2, 3), np.float32), "tuple of 1 arrays"),
        ((), "tuple of 1 arrays"),
        ((np.empty((2, 3)),), r"writeable float32\[2, 3\], given is float64\[2, 3\]"),
        ((np.empty((3, 2), np.float32),), r"given is float32\[3, 2\]"),
        ((np.empty((3, 2), np.float32).T,), "not contiguous"),
        ((np.frombuffer(bytes(24), np.float32).reshape(2, 3),), "read-only"),
        (([0.0] * 6,), "given is list"),
    ],
)
def test_wrong_out(static: Model, out, message: str) -> None:
    with pytest.raises(InputError, match=message):
        static(X, out=out)


def test_out_must_not_overlap_inputs(static: Model) -> None:
    x = X.copy()
    with pytest.raises(InputError, match="overlaps"):
        static(x, out=(x,))
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True, 1025])
def test_wrong_thread_counts(threads) -> None:
    with pytest.raises(OptionError, match="from 1 to 1024"):
        Model(static_artifact(), threads=threads)


def test_signature_and_report(dynamic: Model, static: Model) -> None:
    assert [str(info) for info in dynamic.inputs] == ["x: float32[n, m]", "y: float32[n, m]"]
    assert [str(info) for info in dynamic.outputs] == ["z: float32[n, m]"]
    assert dynamic.threads == 2
    text = str(static.report())
    assert "constant bytes: 24" in text and "k0" in text and static.report().arena_bytes == 0
    assert "x: float32[2, 3]" in repr(static)


def test_import_needs_neither_llvm_nor_the_compiler() -> None:
    program = (
        "import sys, tilewright.runtime as r; "
        "bad = [m for m in sys.modules if m.split('.')[0] in ('llvmlite', 'onnx', 'ml_dtypes') "
        "or m.startswith('tilewright.') and not m.startswith('tilewright.runtime')]; "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
