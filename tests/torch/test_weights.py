"""Calls of `torch.compile` compute with the weights that the module has, however these were written to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch._dynamo as dynamo  # noqa: E402

from tests.torch.writes import WRITES  # noqa: E402
from tilewright.runtime.errors import OptionError  # noqa: E402
from tilewright.torch import backend, frozen, refresh  # noqa: E402
from tilewright.torch.watch import memory  # noqa: E402

close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dynamo.reset()
    with torch.no_grad():
        yield
    dynamo.reset()


@pytest.fixture(params=["pages", "digests"])
def watching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Large weights are watched by their pages where the kernel can do that, and by digests elsewhere."""
    if request.param == "digests":
        monkeypatch.setattr(memory, "LEAST_TRACKED", 1 << 62)
    return str(request.param)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, options={"cache": False, "threads": 1, **options})


@pytest.mark.sweep(2)
@pytest.mark.parametrize("size", [8, 200])  # 200: 160,000 bytes, which have whole pages
def test_any_write_to_weights_is_seen(size: int, watching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "MAX_VARIANTS", 1000)  # afterwards weights are inputs, which are always right
    module, x = torch.nn.Linear(size, size).eval(), torch.randn(3, size)
    function = compiled(module)
    close(function(x), module(x))
    for name, write in WRITES.items():
        before = module(x)
        write(module)
        expected = module(x)
        assert not torch.allclose(expected, before), name
        for _ in range(2):
            close(function(x), expected, msg=lambda text, name=name: f"{name}: {text}")


def test_statistics_of_a_batch_norm() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).eval()
    x, function = torch.randn(2, 3, 9, 9), compiled(module)
    close(function(x), module(x))
    for k, buffer in enumerate((module[1].running_mean, module[1].running_var)):
        buffer.data.add_(k + 1)
        close(function(x), module(x))


def test_parameters_that_are_tied() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50, bias=False)
            self.out.weight = self.table.weight

        def forward(self, at: Any) -> Any:
            return self.out(self.table(at))

    module, at = Tied().eval(), torch.randint(0, 50, (2, 3))
    function = compiled(module)
    for write in (
        lambda: None,
        lambda: module.out.weight.data.mul_(2),
        lambda: module.table.weight.data.add_(1),
    ):
        write()
        close(function(at), module(at))


def test_parameters_that_are_parts_of_one_tensor() -> None:
    """They share pages with each other and with what is no parameter."""
    whole = torch.randn(300, 200)
    first, second = torch.nn.Linear(200, 100), torch.nn.Linear(200, 100)
    first.weight.data, second.weight.data = whole[:100], whole[100:200]
    x, functions = torch.randn(2, 200), [compiled(first), compiled(second)]
    for write in (lambda: None, lambda: whole[150].numpy().fill(2), lambda: whole[250].numpy().fill(1)):
        write()
        for function, module in zip(functions, (first, second), strict=True):
            close(function(x), module(x))


def test_modules_of_inference_mode() -> None:
    with torch.inference_mode():
        module, x = torch.nn.Linear(8, 8).eval(), torch.randn(2, 8)
        function = compiled(module)
        for _ in range(3):
            close(function(x), module(x))
            module.weight.mul_(2)


def test_two_graphs_of_one_module_each_see_a_write() -> None:
    """What the first sees, and marks as seen, the second must not miss."""
    module = torch.nn.Linear(200, 200).eval()
    functions = [compiled(module), compiled(lambda x: module(x) + 1)]
    x = torch.randn(2, 200)
    for _ in range(3):
        close(functions[0](x), module(x))
        close(functions[1](x), module(x) + 1)
        module.weight.data.mul_(1.5)


def test_modules_that_share_a_graph_turn_without_compiling() -> None:
    records: list[Any] = []
    modules, x = [torch.nn.Linear(64, 64).eval() for _ in range(3)], torch.randn(3, 64)
    function = torch.compile(
        lambda module, x: module(x),
        backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append),
    )
    for module in 3 * modules:
        close(function(module, x), module(x))
    made = len(records)
    modules[1].weight.data.add_(1)
    for module in 3 * modules:
        close(function(module, x), module(x))
    assert len(records) == made + 1


def test_weights_that_are_written_back_need_no_new_code() -> None:
    """Averaged weights that take the place of the others for a while, and change back."""
    records: list[Any] = []
    module, x = torch.nn.Linear(64, 64).eval(), torch.randn(3, 64)
    function = torch.compile(
        module, backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append)
    )
    first, other = module.weight.clone(), torch.randn(64, 64)
    for weight in 4 * (first, other):
        module.weight.data.copy_(weight)
        close(function(x), module(x))
    assert len(records) == 2


def test_frozen_weights_are_those_that_pytorch_counts_until_a_refresh() -> None:
    module, x = torch.nn.Linear(8, 8).eval(), torch.randn(2, 8)
    function, before = compiled(module, weights="frozen"), module(x)
    close(function(x), before)
    module.weight.detach().numpy().fill(2)
    close(function(x), before)  # what was taken knowingly
    refresh()
    close(function(x), module(x))
    module.weight.mul_(3)
    close(function(x), module(x))


def test_another_value_of_the_option_is_refused() -> None:
    with pytest.raises(Exception, match="weights='thawed' is not allowed") as found:
        compiled(torch.nn.Linear(2, 2).eval(), weights="thawed")(torch.ones(1, 2))
    assert OptionError.__name__ in str(found.value) and "tilewright.torch.refresh()" in str(found.value)


def test_a_forked_child_sees_its_own_writes() -> None:
    """What the parent asks the kernel for is the parent's memory."""
    module, x = torch.nn.Linear(200, 200).eval(), torch.randn(3, 200)
    function = compiled(module)
    close(function(x), module(x))
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # the parent's threads are not there
            for _ in range(2):
                weight = module.weight.detach().numpy()
                weight *= 2
                close(function(x), x @ module.weight.T + module.bias)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    close(function(x), module(x))
    module.weight.data.mul_(2)
    close(function(x), module(x))
