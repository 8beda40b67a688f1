"""Results of `torch.compile` lie in memory as those of eager PyTorch: strides, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch._dynamo as dynamo  # noqa: E402

from tests.fuzz.registry import run_seed  # noqa: E402
from tests.torch.fuzz import compare  # noqa: E402
from tilewright.torch import backend, explain  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dynamo.reset()
    with torch.no_grad():
        yield
    dynamo.reset()


def agree(function: Callable[..., Any], *inputs: Any, **how: Any) -> None:
    """Elements, strides, and what of inputs and results lies in one place, in two calls."""
    compiled = torch.compile(function, backend=backend, options={"cache": False, "threads": 1}, **how)
    for x in inputs:
        assert compare(function, compiled, x)


def views(x: Any) -> tuple[Any, ...]:
    z = x * 2
    parts = (
        z[0],
        z.transpose(0, 1),
        z.view(-1),
        z[:, ::2],
        *z.chunk(2, 2),
        z.unfold(2, 2, 1),
        z.reshape(-1, z.shape[2]),
    )
    return z, *parts, z.contiguous(), z


def alone(x: Any) -> tuple[Any, ...]:
    """Each is a view of a tensor of its own."""
    y = x.exp()
    return (
        (y + 1).transpose(0, 2),
        (y + 2)[:, ::2],
        (y + 3)[:, 1:, 1],
        (y + 4).sum(0).expand(3, *x.shape[1:]),
        (y + 5).unfold(2, 2, 1),
        (y + 6).permute(2, 0, 1)[1:],
        (y + 7)[..., None],
        (y + 8)[:0],
    )


def written(x: Any) -> tuple[Any, ...]:
    """Functional graphs have no writes; what was written to is one tensor with its views still."""
    y = x.exp()
    row = y[0]
    row.add_(1)
    column = y[:, 1]
    column.mul_(2)
    return y, row, column


def of_input(x: Any) -> tuple[Any, ...]:
    return x, x.transpose(0, 1), x[1:], x.view(-1), x + 1


@pytest.mark.sweep
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [views, alone, written, of_input])
def test_views_are_views(function: Callable[..., Any], dynamic: bool) -> None:
    agree(function, torch.randn(2, 3, 4), torch.randn(4, 5, 6), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_lie_in_memory_as_they_like(dynamic: bool) -> None:
    """Axes in another order, gaps, another first element, one element for many."""
    x = torch.randn(3, 4, 5)
    agree(
        lambda x: (x.relu(), x * 2, x.transpose(0, 1) + 1, x.sum(1), x[1:]),
        x,
        torch.randn(5, 4, 3).permute(2, 1, 0),
        torch.randn(3, 8, 5)[:, ::2],
        torch.randn(2, 3, 4, 5)[1],
        torch.randn(3, 1, 5).expand(3, 4, 5),
        dynamic=dynamic,
    )


def test_strides_that_were_traced_are_those_behind_a_break() -> None:
    def broken(x: Any) -> Any:
        z = x.transpose(1, 2).relu()
        strides = z.stride()
        torch._dynamo.graph_break()
        return z.as_strided(z.size(), strides)

    agree(broken, torch.randn(2, 3, 4))


def test_channels_stay_last() -> None:
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
    )
    module = module.to(memory_format=torch.channels_last).eval()
    x = torch.randn(2, 3, 10, 10)
    compiled = torch.compile(module, backend=backend, options={"cache": False})
    for given in (x.to(memory_format=torch.channels_last), x):
        found, expected = compiled(given), module(given)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)


def test_complex_results_and_halves() -> None:
    def both(x: Any) -> tuple[Any, ...]:
        z = torch.fft.fft(x)
        h = x.bfloat16()
        return z, z.transpose(0, 1), (z + 1).mT, h, h.mT, (h + 1).transpose(0, 2)

    agree(both, torch.randn(2, 3, 4))


def test_views_of_what_runs_eagerly() -> None:
    def eager(x: Any) -> tuple[Any, ...]:
        a = torch.linalg.eigh(x @ x.mT)[1].abs()
        return a, a.mT, a[0], a + 1

    agree(eager, torch.randn(2, 4, 4))


def test_the_memory_of_results_stays_while_a_view_is_held() -> None:
    """Memory of results serves again, once nothing looks at it."""
    compiled = torch.compile(
        lambda x: ((x * 2).t(), (x + 1)[:, ::2]), backend=backend, options={"cache": False}
    )
    held = []
    for k in range(6):
        x = torch.full((64, 64), float(k))
        held.append((x, *(r[1:] for r in compiled(x))))
    for x, doubled, more in held:
        assert (doubled == 2 * x[0, 0]).all() and (more == x[0, 0] + 1).all()


def test_one_output_for_all_views_of_it() -> None:
    """No element is computed twice, and no operator runs eagerly."""
    (record,) = explain(views, torch.randn(2, 3, 4)).graphs
    (piece,) = record.pieces
    assert not record.eager and len(piece.model.outputs) == 1


@pytest.mark.fresh_seeds(3)
def test_fresh_seeds(fresh_seed: int) -> None:
    run_seed("torch", fresh_seed)
