"""Complex numbers and Fourier transforms of PyTorch's programs, by the interpreter of graphs; the border, compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontends.torch.test_aten_families import Calls, numbers
from tilewright import UnsupportedError
from tilewright.frontends.front_end import ModelWithExamples
from tilewright.ops.composites.fourier import better_size, factors_of
from tilewright.ops.define.interp import evaluate_func

torch = pytest.importorskip("torch")

from tilewright.frontends.torch.load import load_captured, program_of  # noqa: E402

Call = Callable[..., Any]


def plain(x: Any) -> np.ndarray:
    return np.asarray(x.resolve_conj().resolve_neg().numpy() if isinstance(x, torch.Tensor) else x)


def complex_numbers(seed: int, *shape: int) -> Any:
    return torch.complex(numbers(seed, *shape), numbers(seed + 1, *shape))


def evaluated(calls: Sequence[Call], inputs: Sequence[Any]) -> list[np.ndarray]:
    """What the program of a module computes, complex numbers as NumPy has them."""
    source = ModelWithExamples(Calls(calls).eval(), tuple(inputs))
    module = load_captured(program_of(source))
    arrays = [plain(x) for x in inputs]
    parts = [np.stack([x.real, x.imag], -1) if np.iscomplexobj(x) else x for x in arrays]
    found = evaluate_func(module.main, module, parts)
    pairs = module.main.attrs.get("complex_outputs", ())
    names = module.main.attrs["outputs"]
    return [x[..., 0] + 1j * x[..., 1] if name in pairs else x for name, x in zip(names, found, strict=True)]


def check(calls: Sequence[Call], inputs: Sequence[Any], rtol: float = 2e-5, atol: float = 1e-5) -> None:
    with torch.no_grad():
        expected = [plain(x) for x in Calls(calls)(*inputs)]
    found = evaluated(calls, inputs)
    assert len(found) == len(expected)
    for k, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, f"result {k}"
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol, err_msg=f"result {k}")


@pytest.mark.fresh_seeds(1)
def test_arithmetic(fresh_seed: int) -> None:
    calls = [
        lambda a, b, r: a + b, lambda a, b, r: a - 2j * r, lambda a, b, r: 3 - a, lambda a, b, r: a * b,
        lambda a, b, r: r * a + 1, lambda a, b, r: a / b, lambda a, b, r: a / r, lambda a, b, r: r / a,
        lambda a, b, r: torch.add(a, b, alpha=2j), lambda a, b, r: -a.conj(), lambda a, b, r: a.reciprocal(),
        lambda a, b, r: a**3, lambda a, b, r: a**-2, lambda a, b, r: a**0.5, lambda a, b, r: a**b,
        lambda a, b, r: torch.addcmul(a, b, a, value=0.5), lambda a, b, r: torch.where(r > 0, a, r),
        lambda a, b, r: a.masked_fill(r > 0, 1 + 2j), lambda a, b, r: a == a.conj(), lambda a, b, r: a != b,
        lambda a, b, r: torch.isfinite(a / (b * 0)), lambda a, b, r: a.real * b.imag, lambda a, b, r: a.conj().imag,
        lambda a, b, r: a.abs(), lambda a, b, r: a.angle(), lambda a, b, r: torch.sgn(a),
        lambda a, b, r: torch.polar(r.abs(), r), lambda a, b, r: torch.view_as_real(a.conj().resolve_conj()),
        lambda a, b, r: r.to(torch.complex64) + r.to(torch.complex128), lambda a, b, r: a * (1 + 1e30j) / (1e30 + 0j),
        lambda a, b, r: a.bool(), lambda a, b, r: torch.view_as_complex(torch.stack([r, r], -1)),
    ]  # fmt: skip
    a, b, r = complex_numbers(fresh_seed, 3, 5), complex_numbers(fresh_seed + 2, 3, 5), numbers(fresh_seed, 3, 5)
    check(calls, [a, b, r])


def test_elementary_functions() -> None:
    functions = [
        torch.exp, torch.log, torch.sqrt, torch.sin, torch.cos, torch.tan, torch.sinh, torch.cosh, torch.tanh,
        torch.asin, torch.acos, torch.atan, torch.asinh, torch.acosh, torch.atanh, torch.sigmoid, torch.log2,
        torch.expm1, torch.log1p, torch.rsqrt, torch.square, torch.abs, torch.angle,
    ]  # fmt: skip
    around = [complex(x, y) for x in (-3.0, -0.5, 0.0, 1e-4, 0.7, 2.0) for y in (-2.0, -0.3, 1e-4, 1.5)]
    check(functions, [torch.tensor(around, dtype=torch.complex128)], rtol=1e-9, atol=1e-11)
    large = torch.tensor([1e30 + 1e30j, 3e-30 + 4e-30j, 80 + 1j, -80 - 1j], dtype=torch.complex64)
    check([torch.abs, torch.tanh, torch.sqrt, lambda z: z / z], [large], atol=0)


@pytest.mark.fresh_seeds(1)
def test_moves_are_those_of_both_parts(fresh_seed: int) -> None:
    at = torch.tensor([2, 0])
    calls = [
        lambda z, r: z.transpose(0, 1).reshape(2, -1), lambda z, r: z[:, 1:, ::2], lambda z, r: z.permute(2, 0, 1)[at],
        lambda z, r: torch.cat([z, r], 1), lambda z, r: torch.stack([z, z.conj()], 1), lambda z, r: z.flip(0, 2),
        lambda z, r: torch.roll(z, 1, 0), lambda z, r: torch.nn.functional.pad(z, (1, 2), value=3.0),
        lambda z, r: z.gather(1, at.expand(3, 1, 2)),
        lambda z, r: torch.zeros_like(z) + torch.full((4,), 1 + 2j), lambda z, r: torch.ones(2, dtype=torch.complex64),
        lambda z, r: z.index_put((at,), r[0].to(z.dtype)), lambda z, r: z.unfold(1, 2, 1), lambda z, r: z.split(2, 1),
        lambda z, r: z[0].tril(), lambda z, r: z.expand(2, 3, 4, 4).unsqueeze(1).squeeze(),
        lambda z, r: z.view(torch.float32), lambda z, r: (r + 1).view(torch.complex64) * z[:, :, :2],
        lambda z, r: z.new_tensor([1j, 2]) * z[0, 0, 0], lambda z, r: z.clone().index_add_(0, at, z[:2]),
    ]  # fmt: skip
    check(calls, [complex_numbers(fresh_seed, 3, 4, 4), numbers(fresh_seed, 3, 4, 4)])


@pytest.mark.fresh_seeds(1)
def test_products_and_sums(fresh_seed: int) -> None:
    functional = torch.nn.functional
    calls = [
        lambda a, b, r: a @ b, lambda a, b, r: r.to(a.dtype) @ b, lambda a, b, r: functional.linear(a, b.T, b[0]),
        lambda a, b, r: torch.einsum("ij,jk,ik->k", a, b, a @ b), lambda a, b, r: torch.vdot(a[0], a[1]),
        lambda a, b, r: torch.addmm(b, a, b, beta=2j, alpha=1j),
        lambda a, b, r: torch.dot(a[0], b[:, 0]), lambda a, b, r: a.sum(0), lambda a, b, r: a.mean(),
        lambda a, b, r: a.prod(1), lambda a, b, r: a.cumsum(1), lambda a, b, r: a.cumprod(1), lambda a, b, r: a.std(),
        lambda a, b, r: torch.linalg.vector_norm(a, dim=1), lambda a, b, r: torch.bmm(a[None], b[None]),
        lambda a, b, r: functional.conv1d(a[None], b[:, :, None], b[0]), lambda a, b, r: torch.any(a, 1),
    ]  # fmt: skip
    check(calls, [complex_numbers(fresh_seed, 3, 3), complex_numbers(fresh_seed + 2, 3, 3), numbers(fresh_seed, 3, 3)])


# One matrix, two and three factors, primes with a matrix and without, odd and even sizes
SIZES = [1, 2, 9, 64, 101, 130, 150, 192, 539, 4 * 263]


@pytest.mark.sweep(5)
@pytest.mark.parametrize("n", SIZES)
def test_transforms_of_any_size(n: int) -> None:
    fft = torch.fft
    calls = [fft.fft, fft.ifft, fft.rfft, lambda x, z: fft.irfft(z[..., : n // 2 + 1], n=n)]
    pairs = [lambda x, z: fft.fft(z), lambda x, z: fft.ifft(z), lambda x, z: fft.rfft(x), lambda x, z: fft.fft(x)]
    check([*pairs, calls[3]], [numbers(n, 2, n), complex_numbers(n, 2, n)], rtol=1e-4, atol=3e-7 * n)


def test_transforms_of_any_axes_and_lengths() -> None:
    fft = torch.fft
    calls = [
        lambda x, z: fft.fft(z, dim=0, norm="ortho"), lambda x, z: fft.fft2(z, norm="forward"),
        lambda x, z: fft.ifftn(z), lambda x, z: fft.rfft2(x), lambda x, z: fft.irfft2(z, norm="ortho"),
        lambda x, z: fft.rfftn(x, s=(5, 9), dim=(1, 2)), lambda x, z: fft.irfftn(z, s=(6, 7), dim=(2, 0)),
        lambda x, z: fft.hfft(z, n=9), lambda x, z: fft.ihfft(x), lambda x, z: fft.fft(z, n=4), fft_shifted,
        lambda x, z: fft.irfft(fft.rfft(x, n=40) * fft.rfft(x, n=40), n=40),
    ]  # fmt: skip
    check(calls, [numbers(1, 3, 4, 10), complex_numbers(2, 3, 4, 10)], atol=5e-5)


def fft_shifted(x: Any, z: Any) -> Any:
    return torch.fft.ifftshift(torch.fft.fftshift(z) * 2, dim=1)


def test_frames() -> None:
    window = torch.hann_window(20)

    def of(x: Any, **how: Any) -> Any:
        return torch.stft(x, 20, return_complex=True, **how)

    calls = [
        lambda x: of(x, window=window), lambda x: of(x[0], hop_length=7, window=window, center=False).abs(),
        lambda x: of(x, win_length=10, normalized=True), lambda x: of(x, onesided=False, hop_length=3),
        lambda x: torch.istft(of(x, window=window), 20, window=window),
        lambda x: torch.istft(of(x[0], hop_length=7, window=window), 20, 7, window=window, length=150),
        lambda x: torch.istft(of(x, onesided=False), 20, onesided=False, length=100),
        lambda x: torch.view_as_real(of(x, hop_length=1, center=False)).sum((1, 2)),
        lambda x: torch.istft(of(x, normalized=True, win_length=16), 20, win_length=16, normalized=True),
    ]  # fmt: skip
    check(calls, [numbers(3, 2, 144)], atol=2e-5)


def test_divided_sizes() -> None:
    """No factor is large, whatever the size; convolutions have sizes that divide well."""
    for n in (4096, 30000, 44100, 160000, 2**20, 3 * 257):
        assert np.prod(factors_of(n)) == n and max(factors_of(n)) <= 257
    assert better_size(2 * 1009 - 1) == 2025


class Border(torch.nn.Module):
    """Complex inputs, outputs and a buffer, with a size that depends on data."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(6), torch.tensor([1.0, 0.1]))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Any, z: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 2, 2))
        return torch.view_as_real(pairs * self.turns).flatten(-2), torch.fft.fft(z), z.conj(), z.abs().sum()


def same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for ours, theirs in zip(map(plain, found), map(plain, expected), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_border(tmp_path: Path) -> None:
    """Complex arrays and tensors are given and got, by models that are loaded, too, and of any size."""
    module = Border().eval()
    x, z = numbers(1, 3, 6, 4), complex_numbers(2, 5, 8)
    dims = ({0: torch.export.Dim("batch")}, {0: torch.export.Dim("rows")})
    model = tilewright.compile(module, (x, z), dynamic_shapes=dims, threads=1, cache=False)
    assert [str(info) for info in model.inputs] == ["x: float32[batch, 6, 4]", "z: complex64[rows, 8]"]
    assert [info.dtype for info in model.outputs] == ["float32", "complex64", "complex64", "float32"]
    same(model(x.numpy(), z.numpy()), module(x, z))
    same(model(x[:1], z.conj()), module(x[:1], z.conj()))
    same(model.with_outputs(torch)(x, z), module(x, z))
    model.save(tmp_path / "m.tw")
    out = [np.empty_like(plain(y)) for y in module(x, z)]
    tilewright.load(tmp_path / "m.tw", threads=1)(x, z, out=out)
    same(out, module(x, z))
    with pytest.raises(tilewright.TilewrightError, match="input 'z' must be complex64, the given array is float32"):
        model(x, z.real)


def test_border_of_staged_models() -> None:
    """Sizes that depend on data: steps have the parts, callers complex numbers."""

    class Chosen(torch.nn.Module):
        def forward(self, z: Any) -> Any:
            return z[z.abs() > 1] * 1j, z.masked_select(z.real > 0), z.to(torch.complex128)

    z = complex_numbers(4, 5, 6)
    model = tilewright.compile(Chosen().eval(), (z,), threads=1, cache=False)
    same(model(z), Chosen()(z))


def test_torch_compile() -> None:
    """Whole graphs are compiled; what is not supported for complex numbers runs eagerly between pieces."""
    records: list[Any] = []
    from tilewright.torch import backend

    def compiled(graph: Any, inputs: Any) -> Any:
        return backend(graph, inputs, options={"threads": 1, "cache": False}, record=records.append)

    module, z = Border().eval(), complex_numbers(3, 4, 8)
    x = numbers(2, 3, 6, 4)
    with torch.no_grad():
        same(torch.compile(module, backend=compiled)(x, z), module(x, z))
        assert not records[-1].eager and not records[-1].reason
        broken = lambda z: torch.linalg.eigvals(z[:, :4] * 2).abs().sum() * z.conj()  # noqa: E731
        same([torch.compile(broken, backend=compiled)(z)], [broken(z)])
        assert records[-1].eager and records[-1].pieces


def test_subgraphs_that_are_written_out() -> None:
    def turned(z: Any, r: Any) -> Any:
        with torch.no_grad():
            turns = torch.polar(torch.ones_like(r), r)
        return z * turns

    check([turned], [complex_numbers(1, 3, 4), numbers(2, 4)])


def test_sizes_that_are_not_known() -> None:
    """Transforms along an axis of any size. (PyTorch does not export frames of a signal of any length.)"""
    calls = [lambda x: torch.fft.ifft(torch.fft.fft(x)).real, torch.fft.rfft]
    x = numbers(3, 2, 80)
    module = Calls(calls).eval()
    dims = ({1: torch.export.Dim("time", min=30)},)
    model = tilewright.compile(module, (x,), dynamic_shapes=(dims,), threads=1, cache=False)
    for time in (80, 47):
        same(model(x[:, :time].contiguous()), module(x[:, :time]))


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="is not supported for complex numbers"):
        evaluated([lambda z: torch.linalg.det(z @ z)], [complex_numbers(1, 3, 3)])
