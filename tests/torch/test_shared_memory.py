"""What results of `torch.compile` share with inputs and with each other, over many functions and inputs: elements,
strides, first elements, conjugate views, and which memory is one, as in eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch._dynamo as dynamo  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from tests.torch.fuzz import compare  # noqa: E402
from tilewright.torch import backend  # noqa: E402


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dynamo.reset()
    with torch.no_grad():
        yield
    dynamo.reset()


def apart() -> list[Any]:
    """Of one shape in many places, and one of another shape."""
    return [
        torch.randn(2, 3, 4),
        torch.randn(3, 4, 3, 2)[1].permute(2, 1, 0),
        torch.randn(2, 6, 4)[:, ::2],
        torch.randn(3, 2, 3, 4)[1],
        torch.randn(3, 5, 4),
    ]


def overlapping() -> list[Any]:
    """What a write to several elements in one place leaves there is not said."""
    return [torch.randn(2, 1, 4).expand(2, 3, 4), torch.randn(20).as_strided((2, 3, 4), (3, 2, 1), 2)]


def strided(x: Any) -> list[Any]:
    y, z = x * 2, x + 1
    parts = [y.as_strided((2, 2), (3, 1), k) for k in (1, 4)]
    return [y, *parts, z.as_strided((3, 3), (1, 1), 2), (x - 1).as_strided((2, 3), (1, 2), 3)]


def strided_input(x: Any) -> list[Any]:
    return [x.as_strided((2, 2), (3, 1), x.storage_offset() + 1), x + 1]


def empty(x: Any) -> list[Any]:
    y = x * 2
    return [
        y[:0],
        y[:, :0],
        y[:, :0].transpose(0, 2),
        y[:, 1:1].sum(0),
        torch.cat([x[:0], x[:0]], 1),
        x[:0] * 2,
    ]


def expanded(x: Any) -> list[Any]:
    y = x * 2
    own = [(x + 1)[:1].expand(4, *x.shape[1:]), x.sum().expand(2, 3), x[:1].expand(4, *x.shape[1:]) * 2]
    return [y, y.unsqueeze(0).expand(3, *x.shape), x[:1].expand(4, *x.shape[1:]), *own]


def inputs_themselves(x: Any) -> list[Any]:
    y = x * 2
    return [x, x, x.detach(), x.mT, x[..., 1:], x.unsqueeze(0), x + 0, y, y, y.view(y.shape), x * 2]


def written_rows(x: Any) -> list[Any]:
    row, column = x[0], x[:, 1]
    row.add_(1)
    column.mul_(2)
    return [row, column, x, x.transpose(0, 1), x[1:], x + 1]


def written_transposed(x: Any) -> list[Any]:
    y = x.transpose(0, 1)
    return [y.mul_(2), y, y.reshape(y.shape), y[1:], x]


def written_whole(x: Any) -> list[Any]:
    """Sizes that decide of a view, which PyTorch makes anew of the input that was written to."""
    y, rows = x.view(x.shape), x[::2]
    rows.mul_(2)
    x[..., :1].fill_(3)
    return [y, rows.view(rows.shape), x.sum(1, keepdim=True), x]


def written_own(x: Any) -> list[Any]:
    y = x * 2
    return [y.diagonal(0, 0, 1).fill_(7), y, y.diagonal(0, 0, 1)]


def conjugates(x: Any) -> list[Any]:
    c = torch.complex(x, x + 1)
    shared = [c, c.conj(), c.real, c.imag, torch.view_as_real(c), c.mH]
    alone = [torch.complex(x, x).conj(), torch.complex(x, x).mH, torch.complex(x, x).conj().imag]
    return [*shared, c.resolve_conj(), c.conj().resolve_conj(), *alone]


def last_channels(x: Any) -> list[Any]:
    y = x[None].to(memory_format=torch.channels_last)
    z = x[None, :, :, :, None].contiguous(memory_format=torch.channels_last_3d)
    ones = torch.ones(3, x.shape[0], 2, 2)
    return [
        y.exp(),
        F.max_pool2d(y, 2),
        F.conv2d(y, ones),
        F.interpolate(y, scale_factor=2),
        torch.cat([y, y], 1),
        z * 2,
    ]


def other_types(x: Any) -> list[Any]:
    y = x.clone(memory_format=torch.contiguous_format) * 2
    return [
        y,
        y.view(torch.int32),
        y.view(torch.int16)[..., ::2],
        x.mT.half(),
        x.mT.to(torch.bfloat16).float(),
        x.mT > 0,
    ]


def reduced(x: Any) -> list[Any]:
    y = x.permute(2, 0, 1)
    return [
        y.sum(0),
        y.var(0),
        y.amax(2),
        x.mT.cumsum(0),
        x.mT.softmax(0),
        *x.mT.sort(1),
        *x.max(1),
        x.mT.logsumexp(0),
    ]


def parts(x: Any) -> list[Any]:
    y = x.exp()
    return [
        *y.chunk(2, 2),
        *x.split(1),
        *(x * 2).unbind(0),
        (x + 1).unfold(1, 2, 1),
        (x + 2).diagonal(0, 1, 2),
    ]


def likes(x: Any) -> list[Any]:
    return [
        torch.zeros_like(x),
        torch.full_like(x[:, ::2], 3.0),
        x.mT + x.mT.contiguous(),
        x.new_empty_strided((2, 3), (1, 2)).fill_(1),
    ]


READING = (
    strided, strided_input, empty, expanded, inputs_themselves, written_own, conjugates, last_channels, other_types,
    reduced, parts, likes,
)  # fmt: skip
WRITING = (written_rows, written_transposed, written_whole)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", (*READING, *WRITING), ids=lambda f: f.__name__)
def test_results_lie_in_memory_as_those_of_eager_calls(function: Callable[[Any], Any], dynamic: bool) -> None:
    compiled = torch.compile(function, backend=backend, options={"cache": False, "threads": 1}, dynamic=dynamic)
    for x in [*apart(), *(overlapping() if function in READING else ())]:
        assert compare(function, compiled, x)
