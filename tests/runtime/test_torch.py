"""Tensors of PyTorch as inputs and as outputs, on the same memory."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.runtime.native import copy_artifact, dynamic_artifact, static_artifact
from tilewright.runtime import Model
from tilewright.runtime.arena import address_of
from tilewright.runtime.errors import InputError, OptionError
from tilewright.runtime.values.torch_tensors import torch_array

torch: Any = pytest.importorskip("torch")

X = np.linspace(-3, 7, 6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(X.tolist()),
        lambda: torch.tensor(X.T.tolist()).T,
        lambda: torch.tensor([X.tolist()] * 2)[1],
        lambda: torch.complex(torch.zeros(2, 3), torch.tensor((-X).tolist())).conj().imag,
        lambda: torch.tensor(X.tolist()).as_subclass(type("Own", (torch.Tensor,), {})),
        lambda: torch.nn.Parameter(torch.tensor(X.tolist()), requires_grad=False),
    ],
    ids=["plain", "transposed", "offset", "negated", "subclass", "parameter"],
)
def test_inputs(make: Callable[[], Any]) -> None:
    np.testing.assert_array_equal(Model(static_artifact())(make())[0], Model(static_artifact())(X)[0])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "bool", "float16", "uint16", "int64"])
def test_memory_is_shared(shape: tuple[int, ...], dtype: str) -> None:
    x = torch.ones(shape).to(getattr(torch, dtype))
    array = torch_array(x)
    assert array.shape == shape and array.dtype.name == dtype and (array.astype(np.float32) == 1).all()
    assert not array.size or address_of(array) == x.data_ptr()


def test_what_needs_a_gradient_is_read_where_none_are_recorded() -> None:
    model = Model(static_artifact())
    x = torch.tensor(X.tolist(), requires_grad=True)
    with pytest.raises(InputError, match=r"gradient[^\n]*\n  hint: pass tensor.detach"):
        model(x)
    for quiet in (torch.no_grad(), torch.inference_mode()):
        with quiet:
            np.testing.assert_array_equal(model(x)[0], model(X)[0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.zeros(2, 3, device="meta"), "its device is meta"),
        (lambda: torch.zeros(2, 3).to_sparse(), r"layout is torch.sparse_coo\)\n  hint: make it dense"),
        (lambda: torch.zeros(2, 3).to_sparse_csr(), "layout is torch.sparse_csr"),
        (lambda: torch.quantize_per_tensor(torch.zeros(2, 3), 1.0, 0, torch.qint8), "it is quantised"),
        (lambda: torch.zeros(2, 3).bfloat16(), r"must be float32, the given array is bfloat16\[2, 3\]"),
        (lambda: torch.zeros(2, 3, dtype=torch.complex64), "given array is complex64"),
        (lambda: torch.zeros(2, 3, dtype=torch.float4_e2m1fn_x2), "cannot be read as an array"),
        (lambda: torch.zeros(2, 2), "dim 1 must be 3"),
    ],
)
def test_inputs_that_cannot_be_read(make: Callable[[], Any], message: str) -> None:
    model = Model(static_artifact())
    x = make()
    with pytest.raises(InputError, match=message):
        model(x)
    with pytest.raises(InputError, match=r"^out for 'y'"):
        model(X, out=(make(),))


def test_a_device_that_is_not_the_cpu() -> None:
    class Elsewhere(torch.Tensor):  # type: ignore[misc, name-defined]
        device = "cuda:0"

        def numpy(self) -> None:
            raise TypeError("not here")

    with pytest.raises(InputError, match=r"lies on the device cuda:0\)\n  hint: move it: tensor.cpu\(\)"):
        Model(static_artifact())(torch.zeros(2, 3).as_subclass(Elsewhere))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "bool", "int64"])
def test_outputs(dtype: str) -> None:
    x = torch.tensor([0.5, 1, -2, 4]).to(getattr(torch, dtype))
    model = Model(copy_artifact(dtype, 4 * x.element_size()))
    net = model.with_outputs(torch)
    (y,) = net(x)
    assert y.dtype is x.dtype and y.tolist() == x.tolist() and y.data_ptr() != x.data_ptr()
    assert net.model is model
    assert net.run({"x": x})[0].tolist() == net.run_dict({"x": x})["y"].tolist() == net(x=x)[0].tolist() == x.tolist()
    out = torch.zeros_like(x)
    assert net(x, out=(out,))[0] is out and net.run({"x": x}, out=(out,))[0] is out and out.tolist() == x.tolist()
    assert model.with_outputs(np)(x)[0].dtype.name == dtype


VIEWS: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda tensor: tensor,
    "slice": lambda tensor: tensor[10:20],
    "scalar": lambda tensor: tensor[3, 4],
    "detached": lambda tensor: tensor.detach(),
    "numpy": lambda tensor: tensor.numpy(),
    "storage": lambda tensor: tensor.untyped_storage(),
    "bits": lambda tensor: tensor.view(torch.int16),
    "dlpack": lambda tensor: np.from_dlpack(tensor),
    "graph": lambda tensor: (torch.ones((), requires_grad=True) * tensor).grad_fn,
}


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("name", VIEWS)
def test_memory_of_an_output_serves_again_when_tensor_and_views_are_gone(name: str) -> None:
    net = Model(dynamic_artifact(), threads=1).with_outputs(torch)
    x = torch.ones(64, 100)
    (y,) = net(x, x)
    first = y.data_ptr()
    whole = (ctypes.c_float * y.numel()).from_address(first)
    held = VIEWS[name](y)
    del y
    gc.collect()
    for _ in range(3):
        (z,) = net(x + 1, x)
        assert z.data_ptr() != first
        del z
    assert set(whole) == {2.0}
    del held, whole
    gc.collect()
    assert first in {net(x, x)[0].data_ptr() for _ in range(2)} | {z.data_ptr() for z in (*net(x, x), *net(x, x))}


def test_packages_that_cannot_take_the_outputs() -> None:
    with pytest.raises(OptionError, match="makes no tensors: it has no from_dlpack"):
        Model(static_artifact()).with_outputs(sys)
    with pytest.raises(OptionError, match=r"torch has no tensors of the output y: int4\[4\]"):
        Model(copy_artifact("int4", 4)).with_outputs(torch)


def test_other_packages_are_reached_by_dlpack() -> None:
    class Package:
        @staticmethod
        def from_dlpack(array: np.ndarray) -> tuple[str, np.ndarray]:
            return "theirs", np.from_dlpack(array)

    ((kind, y),) = Model(static_artifact()).with_outputs(Package)(X)
    assert kind == "theirs" and y.shape == (2, 3)


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, tilewright.runtime.module, tilewright.runtime.values.inputs as i\n"
        "import numpy as np\n"
        "i.as_array(np.float32(1), None, np.dtype(np.float32))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
