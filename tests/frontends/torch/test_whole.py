"""Operators that stay whole, so that PyTorch need not trace an exported program once more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright

torch = pytest.importorskip("torch")

from tilewright.frontends.torch import capture  # noqa: E402 (needs torch)
from tilewright.frontends.torch.registry import ALIASES  # noqa: E402


@pytest.mark.parametrize("alias", ALIASES)
def test_a_second_name_has_the_arguments_of_the_first(alias: str) -> None:
    first = getattr(torch.ops.aten, ALIASES[alias])
    for overload in getattr(torch.ops.aten, alias).overloads():
        op = getattr(getattr(torch.ops.aten, alias), overload)
        if op._schema.is_mutable or not any("Tensor" in str(a.type) for a in op._schema.arguments):
            continue
        same = getattr(first, overload)
        assert [a.name for a in op._schema.arguments] == [a.name for a in same._schema.arguments]
        assert capture.kept(op) and capture.kept(same)


class Composites(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv1d(3, 4, 3), dim=2)
        self.linear = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 6), dim=None)

    def forward(self, x: Any, mask: Any) -> tuple[Any, ...]:
        rows, columns = torch.meshgrid(x[0, 0], x[0, 1, :3], indexing="ij")
        swapped, _, _ = torch.meshgrid(x[0, 0], x[0, 1, :3], x[1, 0, :2], indexing="xy")
        y = torch.where((mask & (x > 0)) | (x.not_equal(2) ^ mask), x.multiply(2), torch.special.expit(x))
        return rows, columns, swapped, y, self.linear(y).reshape_as(x), self.conv(x), x.view_as(y).arctan()


def test_a_program_of_composites_is_not_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Composites().eval()
    inputs = torch.randn(2, 3, 6), torch.rand(2, 3, 6) > 0.5
    with torch.no_grad():
        expected = module(*inputs)
        batch = torch.export.Dim("batch", min=2)
        program = torch.export.export(module, inputs, dynamic_shapes=({0: batch}, {0: batch}), strict=False)
    monkeypatch.setattr(capture, "_decomposed", None)
    model = tilewright.compile(program, threads=1, cache=False)
    for ours, theirs in zip(model(*inputs), expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs.numpy(), rtol=1e-5, atol=1e-6)
