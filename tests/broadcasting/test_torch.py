"""Programs of PyTorch with dynamic dims that broadcast."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright

torch = pytest.importorskip("torch")

PARTS: dict[str, Callable] = {
    "first row": lambda x: x - x[:, :1],
    "last row": lambda x: x / x[:, -1:],
    "last row of many operators": lambda x: torch.softmax(x.exp() - x[:, -1:].exp(), dim=1) * x[:, :1],
    "product": lambda x: x[:, :1] @ x.transpose(1, 2),
    "expanded": lambda x: x[:, -1:].expand(-1, x.shape[1], -1) + 1,
    "where": lambda x: torch.where(x > x[:, :1], x, x[:, -1:]),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", PARTS)
def test_compiled(name: str) -> None:
    part = PARTS[name]
    torch._dynamo.reset()
    compiled = torch.compile(part, backend="tilewright", dynamic=True)
    with torch.no_grad():
        for length in (5, 2, 9, 1):
            x = torch.randn(2, length, 3)
            torch.testing.assert_close(compiled(x), part(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PARTS)
def test_exported(name: str) -> None:
    part = PARTS[name]

    class Module(torch.nn.Module):
        def forward(self, x):
            return part(x)

    examples, dims = (torch.randn(2, 5, 3),), ({1: torch.export.Dim("t", min=2)},)
    model = tilewright.compile(Module().eval(), example_inputs=examples, dynamic_shapes=dims, verify=True)
    assert model.artifact.broadcasting is None
    for length in (5, 2, 9):
        x = torch.randn(2, length, 3)
        np.testing.assert_allclose(model(x.numpy())[0], part(x).numpy(), rtol=1e-4, atol=1e-4)
