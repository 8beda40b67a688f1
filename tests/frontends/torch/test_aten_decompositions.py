"""Eigenvalues, singular values and what follows from them; functions by series; elements in groups."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontends.torch.test_aten_families import check, integers, numbers  # noqa: E402

linalg = torch.linalg


@pytest.mark.fresh_seeds(1)
def test_eigenvalues_and_singular_values(fresh_seed: int) -> None:
    """Vectors have arbitrary signs: what is compared are products of them."""

    def restored(x: Any, full_matrices: bool) -> tuple[Any, ...]:
        u, s, v = linalg.svd(x, full_matrices=full_matrices)
        k = s.shape[-1]
        return (u[..., :k] * s[..., None, :]) @ v[..., :k, :], s, u.mT @ u, v @ v.mT

    def symmetric(x: Any, half: str) -> tuple[Any, ...]:
        values, vectors = linalg.eigh(x, UPLO=half)
        return values, (vectors * values[..., None, :]) @ vectors.mT, vectors.mT @ vectors

    calls = [
        lambda a, b, z: symmetric(a, "L"), lambda a, b, z: symmetric(a, "U"), lambda a, b, z: linalg.eigvalsh(a),
        lambda a, b, z: restored(b, False), lambda a, b, z: restored(b.mT, True), lambda a, b, z: restored(z, True),
        lambda a, b, z: linalg.svdvals(b), lambda a, b, z: linalg.cond(a), lambda a, b, z: linalg.matrix_norm(b, "nuc"),
        lambda a, b, z: linalg.matrix_rank(z), lambda a, b, z: linalg.matrix_rank(b, tol=1.0),
        lambda a, b, z: linalg.pinv(b), lambda a, b, z: linalg.pinv(z), lambda a, b, z: linalg.pinv(b, rtol=0.3),
        lambda a, b, z: linalg.pinv(b.mT, atol=torch.tensor([0.5, 0.1])),
        lambda a, b, z: linalg.pinv(a + a.mT, hermitian=True), lambda a, b, z: torch.matrix_exp(a),
    ]  # fmt: skip
    singular = torch.tensor([[1.0, 2.0, 1.0], [0.0, 0.0, 0.0], [1.0, 2.0, 1.0], [1.0, 2.0, -1.0]])
    check(calls, [numbers(fresh_seed, 2, 3, 3), numbers(fresh_seed, 2, 3, 5), singular], rtol=2e-3, atol=1e-4)


def test_incomplete_gamma_and_airy_functions() -> None:
    a = torch.tensor([0.0, 0.0, 1.0, 0.5, 0.5, 3.0, 1e3, 1e5, torch.inf, 2.0, -1.0, torch.nan, 50.0, 1e-3, 100.0])
    x = torch.tensor([0.0, 1.0, 0.0, 0.1, 20.0, 3.0, 1.1e3, 1e5, 1.0, torch.inf, 1.0, 1.0, 60.0, 1e-6, 80.0])
    special = torch.special
    calls = [special.gammainc, special.gammaincc, lambda a, x: special.airy_ai(x - 40), lambda a, x: special.airy_ai(a)]
    check(calls, [a.double(), x.double()], rtol=1e-8, atol=1e-12)


@pytest.mark.fresh_seeds(1)
def test_elements_in_groups(fresh_seed: int) -> None:
    x, w = numbers(fresh_seed, 3, 8), numbers(fresh_seed + 1, 3, 8).abs()
    edges = torch.tensor([-2.0, -1.0, 0.0, 0.5, 2.0])
    lengths, ends = torch.tensor([1, 0, 2]), torch.tensor([[0, 2, 2, 8], [0, 1, 4, 8], [0, 3, 5, 8]])
    calls = [
        lambda x, w: torch.histogram(x, 5), lambda x, w: torch.histogram(x, 5, range=(-1.0, 1.0), weight=w),
        lambda x, w: torch.histogram(x, edges, density=True, weight=w),
        lambda x, w: torch.histogramdd(x.reshape(8, 3), [2, 3, 4])[0],
        lambda x, w: torch.histogramdd(x.reshape(12, 2), (edges, edges), weight=w.reshape(-1)[:12])[0],
        lambda x, w: torch.nonzero_static(x > 0, size=10), lambda x, w: torch.nonzero_static(x, size=30, fill_value=7),
        lambda x, w: torch.segment_reduce(x, "mean", lengths=lengths),
        lambda x, w: torch.segment_reduce(x, "max", lengths=lengths, initial=0.5),
        lambda x, w: torch.segment_reduce(x, "prod", offsets=ends, axis=1),
        lambda x, w: torch.ops.aten.native_group_norm(x.reshape(2, 4, 3), w[0, :4], w[1, :4], 2, 4, 3, 2, 1e-5),
    ]  # fmt: skip
    check(calls, [x, w])
    numbers_ = [integers(fresh_seed, -60, 60, 20), integers(fresh_seed + 1, -60, 60, 20)]
    check([torch.gcd, torch.lcm], numbers_)


def test_bools_are_in_order() -> None:
    a, b = torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])
    check([torch.lt, torch.le, torch.gt, torch.ge, torch.heaviside, lambda a, b: a > False], [a, b])
