"""Graphs that were compiled before: found again by what they are, never for what they are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch._dynamo as dynamo  # noqa: E402

from tests.processes import COMPILER, PYTORCH, Stage, outputs  # noqa: E402

tracing = pytest.importorskip("tilewright.torch.traced")

close = torch.testing.assert_close


class Layer(torch.nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.norm(self.linear(x))), x.shape[0] + 1, None


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    dynamo.reset()
    with torch.no_grad():
        yield
    dynamo.reset()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One more for each graph that AOTAutograd traces."""
    found: list[int] = []
    original = tracing.aot_module_simplified

    def counted(*args: Any, **how: Any) -> Any:
        found.append(1)
        return original(*args, **how)

    monkeypatch.setattr(tracing, "aot_module_simplified", counted)
    return found


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """As another process would compile it: nothing is left of what was compiled before but the cache."""
    dynamo.reset()
    return torch.compile(function, backend="tilewright", options={"threads": 1}, **how)


def agree(function: Callable[..., Any], module: Callable[..., Any], *args: Any) -> None:
    for found, expected in zip(function(*args), module(*args), strict=True):
        assert type(found) is type(expected)
        if isinstance(expected, torch.Tensor):
            close(found, expected)


def test_a_graph_is_traced_once(traced: list[int]) -> None:
    x = torch.randn(3, 8)
    for seed in (0, 0, 1, 1, 0):
        module = Layer(seed).eval()
        agree(compiled(module), module, x)
    assert len(traced) == 2  # once for each value of the parameters


def test_parameters_that_change_later_are_compiled_for(traced: list[int]) -> None:
    module, x = Layer().eval(), torch.randn(3, 8)
    agree(compiled(module), module, x)
    function = compiled(module)
    agree(function, module, x)
    assert len(traced) == 1
    for _ in range(3):
        module.linear.weight.mul_(1.5)
        agree(function, module, x)
    module.linear.weight.data = torch.randn(8, 8)
    agree(function, module, x)


def test_sizes_and_types_tell_graphs_apart(traced: list[int]) -> None:
    module = Layer().eval()
    for x in (torch.randn(3, 8), torch.randn(4, 8), torch.randn(8, 4).T):
        agree(compiled(module, dynamic=False), module, x)
    agree(compiled(module.double(), dynamic=False), module, torch.randn(3, 8, dtype=torch.float64))
    assert len(traced) == 4


def test_a_symbol_is_any_size(traced: list[int]) -> None:
    module = Layer().eval()
    for sizes in ((5, 7, 300), (2, 9)):
        function = compiled(module)
        for n in sizes:
            x = torch.randn(n, 8)
            dynamo.mark_dynamic(x, 0)
            agree(function, module, x)
    assert len(traced) == 1


def test_what_tracing_assumes_of_sizes_is_not_noted(traced: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo would not check it in the next process."""
    more = iter(range(100))
    monkeypatch.setattr(tracing, "assumed_sizes", lambda: next(more))
    module, x = Layer().eval(), torch.randn(3, 8)
    for _ in range(2):
        agree(compiled(module), module, x)
    assert len(traced) == 2


def test_what_writes_or_gives_views_is_traced_again(traced: list[int]) -> None:
    def write(x: Any, y: Any) -> Any:
        x.add_(y)
        return x * 2, y.view(-1)

    for _ in range(2):
        x, y = torch.randn(4, 2), torch.randn(4, 2)
        expected = x + y
        doubled, view = compiled(write)(x, y)
        close(x, expected)
        close(doubled, expected * 2)
        assert view.data_ptr() == y.data_ptr()
    assert len(traced) == 2


def test_functions_of_the_user_are_not_told_apart_by_name(traced: list[int]) -> None:
    def scaled(factor: float) -> Callable[..., Any]:
        @dynamo.allow_in_graph
        def scale(x: Any) -> Any:
            return x * factor

        return scale

    for factor in (2.0, 3.0):
        scale = scaled(factor)
        close(compiled(lambda x, f=scale: f(x) + 1)(torch.ones(3)), torch.full((3,), factor + 1))
    assert len(traced) == 2


def test_autocast_around_a_graph_tells_it_apart() -> None:
    module, x = torch.nn.Linear(8, 8).eval(), torch.randn(3, 8)
    close(compiled(module)(x), module(x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = compiled(module)(x)
    assert found.dtype is torch.bfloat16


def test_a_cache_that_lost_its_artefact_compiles_again(tmp_path: Path, traced: list[int]) -> None:
    module, x = Layer().eval(), torch.randn(3, 8)
    agree(compiled(module), module, x)
    for path in tmp_path.glob("*.tw"):
        path.unlink()
    agree(compiled(module), module, x)
    assert len(traced) == 2


_PROCESS = """
import os, sys, torch
from torch._dynamo.utils import counters
torch._dynamo.config.caching_precompile = True  # as TORCH_CACHING_PRECOMPILE=1 sets it
os.environ["TORCHINDUCTOR_CACHE_DIR"] = {folder!r} + "/inductor"
sys.path.insert(0, {folder!r})
from layers import Layer
seed, shift = map(int, sys.argv[1:])
torch.manual_seed(seed)
module = Layer().eval()
module.linear.weight.data += shift
x = torch.randn(3, 8)
with torch.no_grad():
    function = torch.compile(module, backend="tilewright", options={{"threads": 1}})
    for factor in (1, 2):
        torch.testing.assert_close(function(x * factor), module(x * factor))
    print(counters["stats"]["unique_graphs"])
    module.linear.weight.mul_(3)
    torch.testing.assert_close(function(x), module(x))
if seed == 0 and shift == 0:
    torch.compiler.save_cache_artifacts()
"""

_LAYERS = """
import torch
class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
    def forward(self, x):
        return torch.relu(self.linear(x)) + 1
"""


_SECOND = """
import sys, torch
torch.manual_seed(0)
module, x = torch.nn.Linear(200, 200).eval(), torch.randn(3, 200)
with torch.no_grad():
    function = torch.compile(module, backend="tilewright", options={"threads": 1})
    torch.testing.assert_close(function(x), module(x))
    print(*(name for name in sys.modules if name.startswith("tilewright")))
    from tests.torch.writes import WRITES
    for write in sys.argv[1:]:
        WRITES[write](module)
        torch.testing.assert_close(function(x), module(x))
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, by_night: bool) -> list[str]:
    """What two processes that compile one graph print, and two or three in which Dynamo keeps its work: one process
    that has imported PyTorch for all of them."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "layers.py").write_text(_LAYERS)
    second, kept = folder / "second.py", folder / "kept.py"
    second.write_text(_SECOND)
    kept.write_text(_PROCESS.format(folder=str(folder)))
    writes = ["two signs", "another tensor", "one element"]  # the first process compiles for what it has, as any test
    seeds_and_shifts = [("0", "0"), ("0", "0"), ("0", "1")][: 3 if by_night else 2]  # other parameters by night
    stages = Stage(second, [[], writes], PYTORCH), Stage(kept, seeds_and_shifts, COMPILER)
    places = {"PYTHONPATH": str(Path(__file__).parents[2]), "TILEWRIGHT_CACHE": str(folder / "cache")}
    return outputs(stages, places)


def test_a_graph_that_the_cache_has_needs_no_translation_and_sees_writes(printed: list[str]) -> None:
    first, second = (set(names.split()) for names in printed[:2])
    translation = {"tilewright.compiler", "tilewright.ops", "tilewright.torch.traced"}
    translation |= {"tilewright.frontends.torch.adapters", "tilewright.frontends.torch.registry"}
    assert translation <= first
    assert "tilewright.torch.backend" in second and translation.isdisjoint(second)


def test_dynamo_may_keep_its_work_too(printed: list[str]) -> None:
    first, second, *_ = (int(text.split()[-1]) for text in printed[2:])
    assert first == 1
    assert second == 0  # neither Dynamo nor AOTAutograd has traced anything
