"""ATen operators, family by family, against PyTorch: one module gives the results of many calls, compiled or by the
interpreter of graphs, which a run draws for each family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tilewright
from tilewright.frontends.front_end import ModelWithExamples
from tilewright.ops.define.interp import evaluate_func

torch = pytest.importorskip("torch")

from tilewright.frontends.torch.load import load_captured, program_of  # noqa: E402

pytestmark = pytest.mark.sweep(1)
Call = Callable[..., Any]


class Calls(torch.nn.Module):
    """A module whose results are those of calls, which all get the inputs."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self._calls = tuple(calls)

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        found: list[Any] = []
        for call in self._calls:
            result = call(*inputs)
            found += result if isinstance(result, tuple | list) else [result]
        return tuple(found)


def check(calls: Sequence[Call], inputs: Sequence[Any], rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """The compiled module gives what PyTorch does."""
    agree(calls, inputs, rtol, atol)


def agree(
    calls: Sequence[Call], inputs: Sequence[Any], rtol: float = 2e-5, atol: float = 2e-6, *, native: bool = True
) -> None:
    """The module, compiled or interpreted, gives what PyTorch does."""
    module, arrays = Calls(calls).eval(), [x.numpy() for x in inputs]
    with torch.no_grad():
        expected = module(*inputs)
    if native:
        found = tilewright.compile(module, example_inputs=tuple(inputs), threads=1, cache=False)(*arrays)
    else:
        program = load_captured(program_of(ModelWithExamples(module, tuple(inputs))))
        found = evaluate_func(program.main, program, arrays)
    assert len(found) == len(expected)
    for k, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        theirs = np.asarray(theirs.numpy() if isinstance(theirs, torch.Tensor) else theirs)
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, f"result {k}"
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol, err_msg=f"result {k}")


def numbers(seed: int, *shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32))


def integers(seed: int, low: int, high: int, *shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng([seed, *shape]).integers(low, high, shape))


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_special_functions(fresh_seed: int, native: bool) -> None:
    special = torch.special
    calls = [
        torch.lgamma, torch.digamma, torch.erfc, special.i0e, special.bessel_j0, lambda x: torch.polygamma(2, x),
        lambda x: special.ndtri(x.sigmoid()), lambda x: torch.erfinv(x.sigmoid()), special.log_ndtr,
        lambda x: special.multigammaln(x.abs() + 3, 2), lambda x: special.xlog1py(x, x.abs()),
    ]  # fmt: skip
    agree(
        calls,
        [torch.cat([numbers(fresh_seed, 40) * 3, torch.tensor([0.5, 1.0, -0.25, 8.0])])],
        rtol=5e-5,
        atol=1e-6,
        native=native,
    )


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_orthogonal_polynomials(fresh_seed: int, native: bool) -> None:
    special = torch.special
    kinds = [
        special.chebyshev_polynomial_t, special.chebyshev_polynomial_u, special.chebyshev_polynomial_v,
        special.chebyshev_polynomial_w, special.hermite_polynomial_h, special.hermite_polynomial_he,
        special.laguerre_polynomial_l, special.legendre_polynomial_p, special.shifted_chebyshev_polynomial_t,
    ]  # fmt: skip
    x = numbers(fresh_seed, 12).clamp(-0.95, 0.95)
    agree(kinds, [x, integers(fresh_seed, -1, 6, 12).float()], rtol=1e-4, atol=1e-4, native=native)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_elementwise(fresh_seed: int, native: bool) -> None:
    calls = [
        torch.hypot, torch.nextafter, torch.logaddexp, torch.copysign, torch.fmin, torch.fmax, torch.floor_divide,
        torch.remainder, torch.fmod, torch.heaviside, torch.atan2, lambda a, b: torch.angle(a),
        lambda a, b: torch.frexp(a), lambda a, b: torch.signbit(a), lambda a, b: torch.nan_to_num(a / 0 * 0),
        lambda a, b: torch.lerp(a, b, 0.3), lambda a, b: torch.clamp(a, -0.5, 0.5),
        lambda a, b: torch.round(a, decimals=2),
        lambda a, b: torch.sinc(a), lambda a, b: torch.addcdiv(a, b, a, value=0.5),
    ]  # fmt: skip
    agree(calls, [numbers(fresh_seed, 3, 5), numbers(fresh_seed + 1, 3, 5)], native=native)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_orders(fresh_seed: int, native: bool) -> None:
    x = integers(fresh_seed, 0, 6, 3, 7).float()  # with equal elements
    calls = [
        lambda x: torch.cummax(x, 1), lambda x: torch.cummin(x, 0), lambda x: torch.logcumsumexp(x, 1),
        lambda x: torch.sort(x, dim=1, stable=True), lambda x: torch.sort(x, dim=0, descending=True, stable=True),
        lambda x: torch.kthvalue(x, 2, 1)[0], lambda x: torch.median(x, 1)[0], lambda x: torch.median(x),
        lambda x: torch.nanmedian(x, 0)[0], lambda x: torch.mode(x, 1)[0], lambda x: torch.topk(x, 3, 1)[0],
        lambda x: torch.quantile(x, 0.3, 1), lambda x: torch.nanquantile(x, 0.6), lambda x: torch.msort(x),
        lambda x: torch.histc(x, 5, 0, 5), lambda x: torch.histc(x, 4), lambda x: torch.aminmax(x),
        lambda x: torch.bucketize(x, torch.tensor([1.0, 2.5, 4.0])),
        lambda x: torch.searchsorted(torch.sort(x, 1)[0], x, right=True), lambda x: torch.diff(x),
        lambda x: torch.trapezoid(x), lambda x: torch.cumulative_trapezoid(x), lambda x: torch.isin(x, x[0]),
    ]  # fmt: skip
    agree(calls, [x], native=native)
    with_nan = x.clone()
    with_nan[1, 3] = float("nan")
    agree([lambda x: torch.median(x, 1)[0], lambda x: torch.nanmedian(x, 1)[0], lambda x: torch.cummax(x, 1)[0],
           lambda x: torch.nansum(x, 1), lambda x: torch.nanmean(x, 0)], [with_nan], native=native)  # fmt: skip


@pytest.mark.fresh_seeds(1)
def test_results_that_are_as_long_as_data_say(fresh_seed: int) -> None:
    """Compiled alone: the interpreter of graphs does not measure."""
    x = integers(fresh_seed, 0, 6, 20)
    calls = [
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
        lambda x: torch.bincount(x, minlength=3), lambda x: torch.repeat_interleave(x, x),
        lambda x: torch.nonzero(x), lambda x: torch.masked_select(x, x > 2), lambda x: torch.where(x > 2),
        lambda x: torch.where(x.view(4, 5)), lambda x: x.view(4, 5)[torch.where(x.view(4, 5) > 1)],
        lambda x: torch.where(x[0] > 2),
    ]  # fmt: skip
    check(calls, [x])


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_bits_as_another_type(fresh_seed: int, native: bool) -> None:
    x = numbers(fresh_seed, 3, 8)
    calls = [
        lambda x: x.view(torch.int32), lambda x: x.view(torch.int16), lambda x: x.view(torch.uint8),
        lambda x: x.half().view(torch.float32).view(torch.int64), lambda x: x.view(torch.int32).view(torch.float32),
        lambda x: x.double().view(torch.int32), lambda x: x.to(torch.int8).view(torch.int64),
        lambda x: (x > 0).view(torch.int8), lambda x: (x > 0).view(torch.uint8).view(torch.bool),
    ]  # fmt: skip
    agree(calls, [x], native=native)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_positions(fresh_seed: int, native: bool) -> None:
    x, src = numbers(fresh_seed, 4, 5), numbers(fresh_seed + 1, 4, 5)
    place, row = integers(fresh_seed, 0, 4, 4, 5), integers(fresh_seed, 0, 4, 4)
    calls = [
        lambda x, s, p, r: torch.gather(x, 0, p), lambda x, s, p, r: torch.scatter_add(x, 0, p, s),
        lambda x, s, p, r: x.scatter_reduce(0, p, s, "amax"), lambda x, s, p, r: x.scatter_reduce(0, p, s, "mean"),
        lambda x, s, p, r: x.scatter_reduce(0, p, s, "prod", include_self=False),
        lambda x, s, p, r: x.index_reduce(0, r, s, "amin"), lambda x, s, p, r: x.index_add(0, r, s, alpha=2),
        lambda x, s, p, r: x.index_fill(0, r, 3.0), lambda x, s, p, r: x.put(p, s, accumulate=True),
        lambda x, s, p, r: x.take(p), lambda x, s, p, r: torch.take_along_dim(x, p, 0), lambda x, s, p, r: x[r, 1:3],
        lambda x, s, p, r: x.index_put((r, r), s[:, 0], accumulate=True), lambda x, s, p, r: x.masked_scatter(s > 0, s),
        lambda x, s, p, r: torch.diagonal_scatter(x, s[0, :4]),
        lambda x, s, p, r: torch.diagonal_scatter(x, s[0, :3], -1),
        lambda x, s, p, r: torch.select_scatter(x, s[0], 0, 2),
        lambda x, s, p, r: torch.slice_scatter(x, s[:2], 0, 1, 3),
        lambda x, s, p, r: torch.nn.functional.embedding_bag(r, x, torch.tensor([0, 1]), mode="mean"),
        lambda x, s, p, r: torch.nn.functional.embedding_bag(p[:, :3], x, mode="max"),
    ]  # fmt: skip
    agree(calls, [x, src, place, row], native=native)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_views(fresh_seed: int, native: bool) -> None:
    functional = torch.nn.functional
    calls = [
        lambda x: x.unfold(1, 3, 2), lambda x: x.as_strided((2, 3), (1, 2), 1), lambda x: torch.roll(x, (1, 2), (0, 1)),
        lambda x: torch.rot90(x), lambda x: x.as_strided_scatter(x[:2, :2], (2, 2), (2, 1), 3), lambda x: x.diagonal(1),
        lambda x: torch.block_diag(x, x[:1]), lambda x: torch.cartesian_prod(x[0], x[1]),
        lambda x: torch.tensor_split(x, 3, 1), lambda x: torch.kron(x[:2], x[2:]), lambda x: torch.vander(x[0]),
        lambda x: functional.pad(x[None], (2, -1), mode="replicate"),
        lambda x: functional.pad(x[None], (2, 3), "circular"),
        lambda x: functional.pad(x[None], (1, 2), "reflect"), lambda x: torch.diag_embed(x), lambda x: x.T.t().mT,
    ]  # fmt: skip
    agree(calls, [numbers(fresh_seed, 4, 6)], native=native)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_windows(fresh_seed: int, native: bool) -> None:
    functional = torch.nn.functional

    def unpooled(x: Any) -> Any:
        found, places = functional.max_pool2d(x, 2, return_indices=True)
        return functional.max_unpool2d(found, places, 2)

    calls = [
        lambda x: functional.unfold(x, 3, padding=1), lambda x: functional.fold(functional.unfold(x, 2), (7, 6), 2),
        lambda x: functional.adaptive_max_pool2d(x, (3, 4), return_indices=True), unpooled,
        lambda x: functional.adaptive_avg_pool2d(x, (3, 4)), lambda x: functional.lp_pool2d(x, 2, 2),
        lambda x: functional.grid_sample(x, functional.affine_grid(torch.eye(2, 3)[None] * 0.7, (1, 4, 5, 5), False)),
        lambda x: functional.grid_sample(x, torch.ones(1, 2, 2, 2) * 0.3, "bicubic", "border", True),
        lambda x: functional.pixel_shuffle(x, 2), lambda x: functional.channel_shuffle(x, 2),
        lambda x: functional.pixel_unshuffle(x[..., :6, :], 2), lambda x: functional.local_response_norm(x, 3),
        lambda x: functional.interpolate(x, scale_factor=1.5, mode="bicubic"),
        lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    ]  # fmt: skip
    agree(calls, [numbers(fresh_seed, 1, 4, 7, 6)], rtol=1e-4, atol=1e-5, native=native)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_matrices(fresh_seed: int, native: bool) -> None:
    linalg = torch.linalg
    a = numbers(fresh_seed, 2, 4, 4) + 4 * torch.eye(4)
    b = numbers(fresh_seed + 1, 2, 4, 3)
    calls = [
        lambda a, b: linalg.inv(a), lambda a, b: linalg.det(a), lambda a, b: linalg.slogdet(a),
        lambda a, b: linalg.lu(a),
        lambda a, b: linalg.lu_factor(a), lambda a, b: linalg.solve(a, b), lambda a, b: linalg.solve(a, b[..., 0]),
        lambda a, b: linalg.solve(a, b.mT, left=False), lambda a, b: linalg.qr(b),
        lambda a, b: linalg.qr(b, "complete"),
        lambda a, b: linalg.cholesky(a @ a.mT), lambda a, b: linalg.cholesky(a @ a.mT, upper=True),
        lambda a, b: linalg.solve_triangular(a, b, upper=True), lambda a, b: torch.cholesky_solve(b, a),
        lambda a, b: torch.cholesky_inverse(a), lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b, adjoint=True),
        lambda a, b: linalg.matrix_power(a, 3), lambda a, b: linalg.multi_dot([a[0], a[1], b[0]]),
        lambda a, b: linalg.cross(b, b.flip(1)), lambda a, b: linalg.matrix_norm(a),
        lambda a, b: linalg.vander(b[0, 0]),
        lambda a, b: torch.cdist(a, a.flip(1)), lambda a, b: torch.nn.functional.pdist(a[0], 1.0),
        lambda a, b: torch.baddbmm(b, a, b, beta=0.5), lambda a, b: torch.addbmm(b[0], a, b),
        lambda a, b: torch.nn.functional.bilinear(a, a, torch.ones(2, 4, 4)),
    ]  # fmt: skip
    agree(calls, [a, b], rtol=2e-3, atol=2e-4, native=native)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_losses_and_norms(fresh_seed: int, native: bool) -> None:
    functional = torch.nn.functional
    calls = [
        functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss, functional.kl_div,
        functional.soft_margin_loss, functional.poisson_nll_loss, functional.cosine_similarity,
        functional.pairwise_distance, lambda x, y: functional.cross_entropy(x, y.softmax(1)),
        lambda x, y: functional.binary_cross_entropy_with_logits(x, y.sigmoid()),
        lambda x, y: functional.cross_entropy(x, y.argmax(1)), lambda x, y: functional.triplet_margin_loss(x, y, x + 1),
        lambda x, y: functional.normalize(x),
        lambda x, y: functional.multi_margin_loss(x, y.argmax(1)), lambda x, y: torch.renorm(x, 2, 0, 1.0),
        torch.dist,
    ]  # fmt: skip
    agree(calls, [numbers(fresh_seed, 4, 5), numbers(fresh_seed + 1, 4, 5)], rtol=1e-4, atol=1e-5, native=native)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_segments(fresh_seed: int, native: bool) -> None:
    def reduced(kind: str, **how: Any) -> Call:
        return lambda x, n: torch.segment_reduce(x, kind, lengths=n, axis=0, unsafe=True, **how)

    def up_to(kind: str, **how: Any) -> Call:
        return lambda x, n: torch.segment_reduce(
            x, kind, offsets=torch.cat([n.new_zeros(1), n.cumsum(0)]), axis=0, unsafe=True, **how
        )

    calls = [reduced(kind) for kind in ("sum", "mean", "max", "min", "prod")]
    calls += [reduced("max", initial=0.5), up_to("mean", initial=2.0), up_to("sum")]
    agree(calls, [numbers(fresh_seed, 7, 3), torch.tensor([2, 0, 4, 1])], native=native)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
@pytest.mark.fresh_seeds(1)
def test_products_of_bytes(fresh_seed: int, native: bool) -> None:
    a, b = (integers(fresh_seed + k, -128, 128, *shape).to(torch.int8) for k, shape in enumerate([(20, 16), (16, 24)]))
    agree([torch._int_mm], [a, b], native=native)
