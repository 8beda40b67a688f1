"""Modules that write to their buffers: compiled models keep these."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.ir.diag import UnsupportedError  # noqa: E402

nn = torch.nn


class Cache(nn.Module):
    """Rows that come one by one, and how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.full((8, 4), 0.25))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.first = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        self.cache.index_copy_(0, self.count, self.first(x))
        self.count.add_(1)
        return torch.tanh(self.cache).sum(0)


class Mean(nn.Module):
    """A running mean of as many rows as a call has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float16))

    def forward(self, x: Any) -> Any:
        self.mean.mul_(0.5).add_(x.mean(0))
        return x - self.mean


def rows(*shape: int, dtype: Any = None) -> Any:
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape)).to(dtype or torch.float32)


def test_a_cache_is_kept_and_written_in_place(tmp_path: Path) -> None:
    module, x = Cache().eval(), rows(1, 4)
    reference = copy.deepcopy(module)
    model = tilewright.compile(module, (x,), cache=False, threads=1, verify=True, states=True)
    assert [info.name for info in model.inputs] == ["x"] and len(model.outputs) == 1
    assert {state.info.name: state.way for state in model.states} == {"cache": "in place", "count": "in place"}
    np.testing.assert_array_equal(model.state("cache"), np.full((8, 4), 0.25))
    path = tmp_path / "cache.pt2"
    torch.export.save(torch.export.export(module, (x,)), path)
    of_file = tilewright.compile(path, cache=False, threads=1, states=True)
    for k in range(4):
        with torch.no_grad():
            wanted = reference(x + k)
        for compiled in (model, of_file):
            np.testing.assert_allclose(compiled(x + k)[0], wanted.numpy(), rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(compiled.state("cache"), reference.cache.numpy(), rtol=1e-5, atol=1e-6)
            assert compiled.state("count").tolist() == [k + 1]
    model.reset()
    np.testing.assert_array_equal(model.state("cache"), np.full((8, 4), 0.25))
    assert module.count.item() == 0  # the module itself is as it was


def test_sizes_of_inputs_may_vary() -> None:
    module, x = Mean().eval(), rows(5, 3, dtype=torch.float16)
    reference = copy.deepcopy(module)
    rank = {"x": {0: torch.export.Dim("n", min=1)}}
    model = tilewright.compile(module, (x,), dynamic_shapes=rank, cache=False, threads=1, states=True)
    for n in (1, 5, 2):
        with torch.no_grad():
            wanted = reference(x[:n])
        np.testing.assert_allclose(model(x[:n])[0], wanted.numpy(), rtol=1e-2, atol=1e-2)
        np.testing.assert_allclose(model.state("mean"), reference.mean.numpy(), rtol=1e-2, atol=1e-2)


def test_without_states_such_a_module_is_refused() -> None:
    x = rows(1, 4)
    with pytest.raises(UnsupportedError, match="the module writes to its 'cache', 'count'\n  hint: states=True lets"):
        tilewright.compile(Cache().eval(), (x,), cache=False)
    with pytest.raises(UnsupportedError, match="the module writes to its 'count'"):
        tilewright.compile(Cache().eval(), (x,), cache=False, states={"b_cache": "cache"})
    (problem,) = tilewright.check(torch.export.export(Cache().eval(), (x,))).problems
    assert "writes to its 'cache', 'count'" in str(problem)
