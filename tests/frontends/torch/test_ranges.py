"""Ranges of sizes that PyTorch knows become bounds of dims: calls within them rely on it, others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.frontends.torch.load import load_captured, program_of  # noqa: E402
from tilewright.ir.diag import InputError, ModelError  # noqa: E402
from tilewright.ir.text import parse_module, print_module  # noqa: E402
from tilewright.torch.backend import backend  # noqa: E402

AUTO, Dim = torch.export.Dim.AUTO, torch.export.Dim


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def without_first(x: Any) -> Any:
    return x - x[:, :1]


def exported(dim: Any, function: Callable[..., Any] = without_first) -> Any:
    return torch.export.export(Of(function).eval(), (torch.ones(2, 6),), dynamic_shapes=({1: dim},))


def compiled(dim: Any, function: Callable[..., Any] = without_first) -> tilewright.Model:
    shapes = ({1: dim},)
    return tilewright.compile(Of(function).eval(), (torch.ones(2, 6),), dynamic_shapes=shapes, cache=False)


def accepted(model: tilewright.Model) -> set[int]:
    """The lengths with which the model can be called; the others are refused by an error that says the range."""
    found = set()
    for n in (0, 1, 2, 3, 4, 6, 9, 10, 11):
        x = np.random.default_rng(n).standard_normal((2, n), np.float32)
        try:
            (y,) = model(x)
        except InputError as error:
            assert "the program was exported for " in str(error) and "export it again for others" in str(error)
            continue
        found.add(n)
        np.testing.assert_array_equal(y, x - x[:, :1])
    return found


@pytest.mark.parametrize(
    ("dim", "bounds", "sizes"),
    [
        (Dim("t", min=3, max=9), (3, 9), {3, 4, 6, 9}),
        (Dim("t", max=9), (0, 9), {0, 1, 2, 3, 4, 6, 9}),
        (Dim("t", min=1), (1, None), {1, 2, 3, 4, 6, 9, 10, 11}),
        (Dim("t", min=0), (0, None), {0, 1, 2, 3, 4, 6, 9, 10, 11}),
        (AUTO, (0, None), {0, 1, 2, 3, 4, 6, 9, 10, 11}),
        (AUTO(min=3, max=10), (3, 10), {3, 4, 6, 9, 10}),
    ],
)
def test_ranges_of_a_program_are_bounds(dim: Any, bounds: tuple[int, int | None], sizes: set[int]) -> None:
    program = exported(dim)
    module = load_captured(program_of(program))
    ((_, length),) = [arg.tensor.shape for arg in module.main.args]
    assert length.bounds == bounds
    assert print_module(parse_module(print_module(module))) == print_module(module)
    assert accepted(tilewright.compile(program, verify=True, cache=False)) == sizes


def test_a_least_size_of_2_is_checked_where_it_is_declared() -> None:
    """PyTorch's programs have it for every dim, and do not check it."""
    assert accepted(tilewright.compile(exported(Dim("t", min=2, max=10)), cache=False)) == {0, 1, 2, 3, 4, 6, 9, 10}
    assert accepted(compiled(Dim("t", min=2, max=10))) == {2, 3, 4, 6, 9, 10}
    assert accepted(compiled(AUTO(min=2))) == {2, 3, 4, 6, 9, 10, 11}
    assert accepted(compiled(AUTO)) == accepted(compiled(Dim("t"))) == {0, 1, 2, 3, 4, 6, 9, 10, 11}


def test_the_size_of_an_expression() -> None:
    model = tilewright.compile(exported(2 * Dim("half", min=2, max=5)), cache=False)
    assert [n for n in (0, 2, 4, 6, 10, 12) if _runs(model, n)] == [4, 6, 10]


def _runs(model: tilewright.Model, length: int) -> bool:
    try:
        model(np.ones((2, length), np.float32))
    except InputError:
        return False
    return True


def test_what_the_bounds_decide_is_no_condition_of_calls() -> None:
    def first(x: Any) -> Any:
        return x[:, :1]

    model = compiled(Dim("t", min=1), first)
    (output,) = model.artifact.outputs
    assert output.shape == (2, 1)
    assert model.artifact.assumed == ("t >= 1",)
    unbounded = compiled(Dim("t"), first)
    assert unbounded.artifact.outputs[0].shape != (2, 1) and unbounded.artifact.assumed == ()
    assert unbounded(np.ones((2, 0), np.float32))[0].shape == (2, 0)


def test_what_is_said_of_bounds() -> None:
    model = compiled(Dim("t", min=3, max=9))
    assert repr(model).endswith("(output: float32[2, t]) where t >= 3, t < 10, 2 threads>")
    (note,) = tilewright.check(exported(Dim("t", min=3, max=9))).notes
    assert note.kind == "assumed"
    assert note.message == "the program was exported for x_1 from 3 to 9; export it again for others"
    with pytest.raises(InputError, match=r"^the program was exported for t from 3 to 9; export it again") as error:
        model(np.ones((2, 10), np.float32))
    assert "where: called with x float32[2, 10]" in str(error.value)
    with pytest.raises(InputError, match="the program was exported for x_1 up to 9; export it again for others"):
        tilewright.compile(exported(Dim("t", max=9)), cache=False)(np.ones((2, 10), np.float32))


def test_shapes_that_are_given() -> None:
    program = exported(Dim("t", min=3, max=9))
    with pytest.raises(ModelError, match="exported for 12 up to 9"):
        tilewright.compile(program, shapes={"x": [2, 12]}, cache=False)
    renamed = tilewright.compile(program, shapes={"x": [2, "other"]}, cache=False)
    assert [n for n in (2, 3, 9, 10) if _runs(renamed, n)] == [3, 9]


def test_sizes_that_only_later_parts_need() -> None:
    """The rows that the host counts are multiplied by ones of the bounded size."""

    def rows(x: Any) -> Any:
        return x[:, 0].nonzero().float() * torch.ones(1, x.shape[1])

    model = compiled(Dim("t", min=3, max=9), rows)
    for n in (3, 9):
        assert model(np.ones((2, n), np.float32))[0].shape == (2, n)
    for n in (1, 2, 10):
        with pytest.raises(InputError, match="the program was exported for t from 3 to 9"):
            model(np.ones((2, n), np.float32))


def test_an_integer_that_is_the_size_of_an_axis_is_compared_with_it() -> None:
    class Cut(torch.nn.Module):
        def forward(self, x: Any, n: int) -> Any:
            assert n == x.shape[0]
            return x[:n] * n

    dims = ({0: AUTO}, Dim.DYNAMIC)
    program = torch.export.export(Cut().eval(), (torch.ones(5), 5), dynamic_shapes=dims)
    model = tilewright.compile(program, cache=False)
    np.testing.assert_array_equal(model(np.ones(4, np.float32), np.array(4))[0], np.full(4, 4, np.float32))
    with pytest.raises(InputError):
        model(np.ones(4, np.float32), np.array(3))


def test_dynamo_calls_with_sizes_of_2_and_more() -> None:
    """Nothing is left to decide for sizes of 1, and sizes are those of tensors: none is an input of its own."""

    def of(x: Any) -> Any:
        return torch.relu(x.reshape(x.shape[0], 2, -1) * x.shape[0]).sum(-1) + x[:, :1]

    records: list[Any] = []
    torch._dynamo.reset()
    run = torch.compile(of, backend=lambda graph, inputs: backend(graph, inputs, record=records.append), dynamic=True)
    with torch.no_grad():
        for shape in ((5, 6), (7, 8), (2, 2)):
            x = torch.randn(shape)
            torch.testing.assert_close(run(x), of(x))
    (piece,) = records[0].pieces
    artifact = piece.model.artifact
    assert [len(info.shape) for info in artifact.inputs] == [2]
    assert not artifact.plan_reads_data and artifact.broadcasting is None
    rows, width = artifact.inputs[0].shape
    assert artifact.assumed[:2] == (f"{rows} >= 2", f"{width} >= 2")
    torch._dynamo.reset()
