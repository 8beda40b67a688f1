"""Tensors of other packages: shared through DLPack, also of dtypes that NumPy does not know."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.runtime.native import STATIC_CONSTANTS, copy_artifact, static_artifact
from tilewright.runtime import Model
from tilewright.runtime.errors import InputError
from tilewright.runtime.values.dlpack import _dtype_in, shared_array

X = np.linspace(-3, 7, 6, dtype=np.float32).reshape(2, 3)
Y = 2 * X + STATIC_CONSTANTS


class Tensor:
    """A tensor of another package, whose memory is an array's; of another dtype by the code of DLPack.

    `versioned`: exports the newer kind of capsule where it is asked for.
    """

    def __init__(self, array: np.ndarray, code: int | None = None, versioned: bool = True) -> None:
        self.array, self.code, self.versioned = array, code, versioned

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if options and not self.versioned:
            raise TypeError("unexpected keyword arguments")
        capsule = self.array.__dlpack__(**options)
        if self.code is not None:
            _dtype_in(capsule).code = self.code
        return capsule


writes = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="this NumPy takes all tensors for read-only"
)


class ReadOnly(Tensor):
    """As tensors look to NumPy before 2.1, and tensors that are immutable to every NumPy."""

    def __dlpack__(self, **options):
        array = self.array.view()
        array.flags.writeable = False
        return array.__dlpack__(**options)


class Gradient(Tensor):
    def __dlpack__(self, **options):
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")


@pytest.fixture(scope="module")
def static() -> Model:
    return Model(static_artifact())


KINDS = [("bfloat16", 4), ("float8_e4m3fn", 10), ("float8_e5m2", 12)]


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize(("dtype", "code"), KINDS)
def test_dtypes_that_numpy_lacks(dtype: str, code: int, versioned: bool) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype))
    x = np.array([0.5, 1, -2, 4]).astype(kind)
    bits = x.view(np.uint8 if kind.itemsize == 1 else np.uint16)
    shared = shared_array(Tensor(bits, code, versioned))
    assert shared.dtype == kind and shared.ctypes.data == x.ctypes.data
    model = Model(copy_artifact(dtype, x.nbytes))
    (y,) = model(Tensor(bits, code, versioned))
    np.testing.assert_array_equal(y, x)
    strided = np.repeat(bits, 2)[::2]
    np.testing.assert_array_equal(model(Tensor(strided, code, versioned))[0], x)


def test_dtypes_that_do_not_fit(static: Model) -> None:
    bits = np.zeros((2, 3), np.uint16)
    with pytest.raises(InputError, match=r"'x' must be float32, the given array is bfloat16\[2, 3\]"):
        static(Tensor(bits, 4))
    with pytest.raises(InputError, match=r"'x': the Tensor cannot be read as an array"):
        static(Tensor(bits, 77))
    model = Model(copy_artifact("bfloat16", 8))
    with pytest.raises(InputError, match=r"'x' must be bfloat16, the given array is uint16\[4\]"):
        model(Tensor(np.zeros(4, np.uint16)))


def test_memory_is_shared_as_long_as_the_array_lives() -> None:
    bits = np.arange(4, dtype=np.uint16)
    shared = shared_array(Tensor(bits, 4))
    bits[0] = 0x3F80
    assert float(shared[0]) == 1.0
    del bits
    assert float(shared[0]) == 1.0


def test_tensors_that_cannot_be_shared(static: Model) -> None:
    with pytest.raises(InputError, match=r"use tensor\.detach\(\)\)\n  hint: pass a NumPy array, or a tensor"):
        static(Gradient(X))
    with pytest.raises(InputError, match=r"out for 'y': the Gradient cannot be written.*use tensor\.detach\(\)"):
        static(X, out=(Gradient(X),))


@writes
def test_outputs_are_written_to_tensors(static: Model) -> None:
    y = Tensor(np.zeros((2, 3), np.float32))
    (found,) = static(X, out=(y,))
    assert found is y
    np.testing.assert_array_equal(y.array, Y)


@writes
def test_outputs_of_dtypes_that_numpy_lacks() -> None:
    x = np.array([0.5, 1, -2, 4]).astype(ml_dtypes.bfloat16)
    bits = np.zeros(4, np.uint16)
    y = Tensor(bits, 4)
    assert Model(copy_artifact("bfloat16", 8))(x, out=[y])[0] is y
    np.testing.assert_array_equal(bits, x.view(np.uint16))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3)), r"writeable float32\[2, 3\], given is float64\[2, 3\]"),
        (np.zeros((3, 2), np.float32), r"given is float32\[3, 2\]"),
        (np.zeros((3, 2), np.float32).T, "not contiguous"),
    ],
)
def test_tensors_that_cannot_take_an_output(static: Model, array: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        static(X, out=(Tensor(array),))
    assert not array.any()


@writes
def test_tensors_for_outputs_must_not_overlap_inputs(static: Model) -> None:
    x = X.copy()
    with pytest.raises(InputError, match="overlaps an input"):
        static(Tensor(x), out=(Tensor(x),))
    np.testing.assert_array_equal(x, X)


@writes
def test_read_only_tensors_take_no_outputs(static: Model) -> None:
    y = np.zeros((2, 3), np.float32)
    with pytest.raises(InputError, match=r"read-only\n  hint: give a NumPy array on the same memory"):
        static(X, out=(ReadOnly(y),))
    np.testing.assert_array_equal(static(ReadOnly(X))[0], Y)


@writes
def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    model = Model(static_artifact())
    x = torch.tensor(X.tolist())
    np.testing.assert_array_equal(model(x)[0], Y)
    np.testing.assert_array_equal(model(x.T.contiguous().T)[0], Y)
    np.testing.assert_array_equal(model.run_dict({"x": x.requires_grad_().detach()})["y"], Y)
    y = torch.zeros(2, 3)
    assert model(x.detach(), out=(y,))[0] is y
    assert y.tolist() == Y.tolist()
    with pytest.raises(InputError, match=r"gradient|requires_grad|grad"):
        model(x)
    with pytest.raises(InputError, match=r"gradient|requires_grad|grad"):
        model(x.detach(), out=(torch.zeros(2, 3, requires_grad=True),))
    with pytest.raises(InputError, match="not contiguous"):
        model(x.detach(), out=(torch.zeros(3, 2).T,))
    with pytest.raises(InputError, match=r"given array is float64\[2, 3\]"):
        model(x.detach().double())
    with pytest.raises(InputError, match="cannot be read as an array"):
        model(torch.zeros(2, 3, device="meta"))


@writes
@pytest.mark.parametrize(("dtype", "code"), KINDS)
def test_torch_tensors_of_dtypes_that_numpy_lacks(dtype: str, code: int) -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([0.5, 1, -2, 4]).to(getattr(torch, dtype))
    model = Model(copy_artifact(dtype, 4 * x.element_size()))
    (y,) = model(x)
    assert y.dtype.name == dtype and y.astype(np.float32).tolist() == [0.5, 1, -2, 4]
    out = torch.zeros(4, dtype=x.dtype)
    assert model(x, out=[out])[0] is out
    assert out.float().tolist() == [0.5, 1, -2, 4]
