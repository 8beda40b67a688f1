"""`torch.compile(backend="tilewright")`: results are those of eager PyTorch, whatever a graph does."""

from __future__ import annotations

import importlib.metadata
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch._dynamo as dynamo  # noqa: E402

import tilewright  # noqa: E402
from tilewright.runtime.errors import OptionError  # noqa: E402
from tilewright.torch import backend, explain  # noqa: E402

close = torch.testing.assert_close


class Layer(torch.nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
        self.norm = torch.nn.BatchNorm1d(size)
        self.register_buffer("shift", torch.zeros(size))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.norm(self.linear(x))) + self.shift


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dynamo.reset()
    dynamo.utils.counters.clear()
    with torch.no_grad():
        yield
    dynamo.reset()


def compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, options={"cache": False, "threads": 1}, **how)


def graphs() -> int:
    return int(dynamo.utils.counters["stats"]["unique_graphs"])


def test_the_package_names_its_backend_to_pytorch() -> None:
    (found,) = importlib.metadata.entry_points(group="torch_dynamo_backends", name="tilewright")
    assert found.value == "tilewright.torch:backend"


def test_a_module_compiles_whole() -> None:
    module, x = Layer().eval(), torch.randn(3, 8)
    records: list[Any] = []
    found = torch.compile(
        module, backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append), fullgraph=True
    )(x)
    close(found, module(x))
    (record,) = records
    assert not record.eager and not record.reason and len(record.pieces) == 1


def test_two_hundred_sizes_need_one_compilation() -> None:
    module = Layer().eval()
    function = compiled(module)
    x = torch.randn(5, 8)
    dynamo.mark_dynamic(x, 0)
    function(x)
    assert graphs() == 1
    for _ in range(200):
        x = torch.randn(random.randint(2, 300), 8)
        close(function(x), module(x))
    assert graphs() == 1


def test_inputs_are_written_in_place() -> None:
    def write(x: Any, y: Any) -> Any:
        x.add_(y)
        return x * 2

    x, y = torch.randn(4), torch.randn(4)
    expected = x + y
    close(compiled(write)(x, y), expected * 2)
    close(x, expected)


def test_buffers_are_written_in_place() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            self.count.add_(1)
            return x + self.count

    function = compiled(Counter())
    for k in range(12):  # more often than parameters may change before they are taken as inputs
        close(function(torch.zeros(3)), torch.full((3,), k + 1.0))


def test_views_of_inputs_stay_views() -> None:
    x = torch.randn(2, 3)
    same, flat, other = compiled(lambda x: (x, x.view(-1), x + 1))(x)
    assert same.data_ptr() == flat.data_ptr() == x.data_ptr()
    close(other, x + 1)


def test_views_of_inputs_and_results_of_any_size() -> None:
    """What sizes decide of a view, PyTorch takes from what it is given for the result."""

    def views(x: Any) -> tuple[Any, ...]:
        y = x + 1
        half = x.shape[0] // 2
        rows = (x[half:], x.expand(half, *x.shape), x.t())
        return (*rows, *x.chunk(2, 1), x.view(-1)[3:9].view(2, 3), y, y.chunk(2, 1)[1])

    function = compiled(views, dynamic=True)
    for n in (4, 7):
        x = torch.randn(n, n + 2)
        found, expected = function(x), views(x)
        close(found, expected)
        assert [v.stride() for v in found] == [v.stride() for v in expected]
        assert found[1].data_ptr() == x.data_ptr()


def test_parameters_may_change() -> None:
    module, x = Layer().eval(), torch.randn(3, 8)
    function = compiled(module)
    close(function(x), module(x))
    for _ in range(10):
        module.linear.weight.mul_(1.1)
        close(function(x), module(x))
    module.linear.weight.data = torch.randn(8, 8)
    close(function(x), module(x))
    module.load_state_dict(Layer().state_dict())
    close(function(x), module(x))


def test_memory_of_replaced_parameters_may_be_used_again() -> None:
    """A new parameter at the address of one that is gone, as often written to, is another one."""
    module, x = torch.nn.Linear(64, 64).eval(), torch.randn(3, 64)
    function = compiled(module)
    for k in range(6):
        module.weight.data = torch.empty(0)  # the memory is free before the next parameter takes some
        module.weight.data = torch.full((64, 64), float(k))
        close(function(x), module(x))


def test_parameters_may_change_beside_operators_that_run_eagerly() -> None:
    class Partly(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Any) -> Any:
            return torch.linalg.ldl_factor((x @ self.weight).tanh())[0] + self.weight.sum()

    module, x = Partly().eval(), torch.randn(4, 4)
    run = compiled(module)
    for _ in range(2):
        close(run(x), module(x), rtol=1e-4, atol=1e-5)
        module.weight.mul_(2)


def test_training_runs_eagerly() -> None:
    module, x = Layer(), torch.randn(5, 8)
    function = compiled(module)
    with torch.enable_grad():
        function(x).sum().backward()
    assert module.linear.weight.grad is not None
    torch.optim.SGD(module.parameters(), 0.1).step()
    module.eval()
    close(function(x), module(x))


def test_what_is_not_supported_runs_eagerly_and_is_named() -> None:
    def mixed(x: Any) -> Any:
        # A matrix with a dominant diagonal is not singular.
        return torch.linalg.ldl_factor(x.relu() + 9 * torch.eye(4))[0].sum() + torch.sin(x).sum()

    x = torch.randn(4, 4)
    explanation = explain(mixed, x)
    (record,) = explanation.graphs
    assert record.pieces and any("ldl" in op for op, _, _ in record.eager)
    assert "ldl" in str(explanation) and "no binding" in str(explanation)
    close(compiled(mixed)(x), mixed(x))


def test_only_operators_that_fail_run_eagerly() -> None:
    """Also where translating ends at the first of several."""

    @torch.library.custom_op("tilewright_tests::failing", mutates_args=())
    def failing(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)

    failing.register_fake(torch.empty_like)

    @tilewright.torch.adapter("tilewright_tests::failing")
    def fails(node: Any, x: Any) -> Any:
        raise ValueError("a defect of the adapter")

    def twice(x: Any) -> Any:
        return failing(failing(x.exp()).cos()).relu() + 1

    records: list[Any] = []
    function = torch.compile(twice, backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append))
    x = torch.randn(2, 3)
    close(function(x), twice(x))
    (record,) = records
    assert [op for op, _, _ in record.eager] == ["tilewright_tests.failing.default"] * 2
    assert sum(piece.operators for piece in record.pieces) == 4


def test_attention_of_heads_of_any_size() -> None:
    attention = torch.nn.functional.scaled_dot_product_attention
    records: list[Any] = []
    function = torch.compile(
        attention, backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append), dynamic=True
    )
    for size in (8, 5):
        x = torch.randn(2, 3, size, size + 1)
        close(function(x, x, x), attention(x, x, x))
    assert len(records) == 1 and not records[0].eager


def test_breaks_are_counted() -> None:
    def branching(x: Any) -> Any:
        y = x.relu() * 2
        return y + 1 if y.sum() > 0 else y - 1

    x = torch.randn(4)
    close(compiled(branching)(x), branching(x))
    explanation = explain(branching, x)
    (reason,) = explanation.breaks
    assert "test_backend.py" in reason and "1 graph breaks" in str(explanation)


def test_recurrent_layers_are_compiled_where_dynamo_traces_them() -> None:
    module, x = torch.nn.Sequential(torch.nn.LSTM(8, 16, batch_first=True)).eval(), torch.randn(2, 5, 8)
    explanation = explain(module, x)
    assert not explanation.graphs and "(0): set torch._dynamo.config.allow_rnn = True" in str(explanation)
    with dynamo.config.patch(allow_rnn=True):
        (record,) = explain(module, x).graphs
        assert record.pieces and not record.eager
        function = compiled(module, fullgraph=True)
        for steps in (5, 7, 9):
            x = torch.randn(2, steps, 8)
            close(function(x)[0], module(x)[0])
    assert graphs() <= 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_have_the_types_of_pytorch(dynamic: bool) -> None:
    def kinds(x: Any, n: int) -> Any:
        return x.to(torch.bfloat16), x.long(), x.shape[0] * 2, None, x > 0, n + 1, x.half(), x.double(), x.sum()

    x = torch.randn(4, 4)
    for found, expected in zip(compiled(kinds, dynamic=dynamic)(x, 3), kinds(x, 3), strict=True):
        assert type(found) is type(expected)
        if isinstance(expected, torch.Tensor):
            close(found, expected)


def test_instances_may_share_a_graph() -> None:
    modules, x = [Layer().eval() for _ in range(3)], torch.randn(3, 8)
    function = compiled(lambda module, x: module(x))
    for module in (*modules, *modules):
        close(function(module, x), module(x))


def test_layouts_and_empty_inputs() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval().to(memory_format=torch.channels_last)
    x = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    close(compiled(module)(x), module(x))
    close(compiled(lambda x: x.relu() + 1)(torch.randn(0, 4)), torch.randn(0, 4))
    close(compiled(lambda: torch.arange(5) * 2)(), torch.arange(5) * 2)
    with torch.inference_mode():
        layer, y = Layer().eval(), torch.randn(2, 8)
        close(compiled(layer)(y), layer(y))


def test_unknown_options_are_refused() -> None:
    with pytest.raises(Exception, match="unknown option 'nope'") as found:
        torch.compile(lambda x: x + 1, backend=backend, options={"nope": 1})(torch.ones(2))
    assert isinstance(found.value.__cause__ or found.value, Exception) and OptionError.__name__ in str(found.value)


def test_a_view_of_an_input_at_a_position_that_data_decide() -> None:
    def narrowed(x: Any, start: Any) -> Any:
        return torch.narrow(x, 1, start, 2)

    x = torch.randn(3, 5, 2)
    with dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(narrowed, backend=backend, options={"cache": False, "threads": 1}, fullgraph=True)
        for start in (0, 3):
            close(compiled(x, torch.tensor(start)), x[:, start : start + 2])


class Cache(torch.nn.Module):
    """Rows are written one by one into a buffer, where the next steps find them; another graph counts them."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("rows", torch.zeros(steps, 4))
        self.register_buffer("step", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        self.rows.index_copy_(0, self.step, self.linear(x)[None])
        torch._dynamo.graph_break()
        self.step += 1
        return self.rows.sum(0)


def test_states_are_inputs_and_parameters_stay_constants() -> None:
    """A buffer that each call writes to asks for one more compilation, not for one in each call."""
    module, records = Cache(12).eval(), list[Any]()
    function = torch.compile(
        module, backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append)
    )
    given = torch.randn(12, 4)
    for k, x in enumerate(given):
        close(function(x), module.linear(given[: k + 1]).sum(0))
    assert len(records) == 4


def test_weights_of_subclasses_that_wrap_tensors() -> None:
    """They are the tensors that they wrap, which are constants; a weight that follows another is found in its place."""
    from torch.testing._internal.two_tensor import TwoTensor

    module, records = torch.nn.Linear(4, 3).eval(), list[Any]()
    first, second = torch.randn(3, 4), torch.randn(3, 4)
    module.weight = torch.nn.Parameter(TwoTensor(first, second), requires_grad=False)
    function = torch.compile(
        module, backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append)
    )
    x = torch.randn(2, 4)
    first, second = first.clone(), second.clone()
    found = function(x)
    close(found.a, x @ first.T + module.bias)
    close(found.b, x @ second.T + module.bias)
    (piece,) = records[0].pieces
    assert len(piece.model.inputs) == 1
    module.weight.add_(1)
    close(function(x).a, x @ (first + 1).T + module.bias)


def test_layers_that_pytorch_calls_as_one_operator_without_gradients() -> None:
    layers = [
        torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=first, activation=kind)
        for first, kind in ((False, "gelu"), (True, "relu"))
    ]
    mask = torch.triu(torch.ones(5, 5), 1).bool()

    class Stack(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x: Any) -> list[Any]:
            return [layer(x, src_mask=m) for layer in self.layers for m in (None, mask)]

    module, x = Stack().eval(), torch.randn(3, 5, 8)
    records: list[Any] = []
    found = torch.compile(
        module, backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append), fullgraph=True
    )(x)
    for ours, theirs in zip(found, module(x), strict=True):
        close(ours, theirs)
    assert not records[0].eager


def test_random_numbers_are_those_of_eager_pytorch() -> None:
    def draw(x: Any) -> tuple[Any, ...]:
        drawn = torch.rand_like((x.exp() + 1).log()), torch.randint(0, 9, (3,)), torch.bernoulli(x.sigmoid())
        dropped = torch.nn.functional.dropout(x, 0.5, True), x.clone().exponential_(), x.clone().geometric_(0.5)
        return (*(2 * v for v in drawn), *(v + 1 for v in dropped))

    x = torch.randn(3, 4)
    torch.manual_seed(3)
    expected = (*draw(x), torch.rand(2))
    torch.manual_seed(3)
    close((*compiled(draw)(x), torch.rand(2)), expected)


def test_vectors_whose_signs_are_arbitrary_are_those_of_eager_pytorch() -> None:
    x = torch.randn(2, 4, 4)
    for function, is_whole in (
        (lambda x: torch.linalg.svd(x), False),
        (lambda x: torch.linalg.eigh(x + x.mT), False),
        (lambda x: torch.linalg.svdvals(x), True),
    ):
        close(compiled(function)(x), function(x), rtol=1e-4, atol=1e-5)
        (graph,) = explain(function, x).graphs
        assert bool(graph.eager) is not is_whole


def test_singular_values_of_large_matrices_are_left_to_pytorch() -> None:
    x = torch.randn(40, 40)
    for sizes, is_whole in ((slice(0, 8), True), (slice(0, 40), False)):
        (graph,) = explain(torch.linalg.svdvals, x[sizes, sizes].clone()).graphs
        assert bool(graph.eager) is not is_whole
    close(compiled(torch.linalg.svdvals)(x), torch.linalg.svdvals(x), rtol=1e-4, atol=1e-4)


def test_views_whose_sizes_data_decide() -> None:
    """Inputs' views keep their strides, also from the first element on; those of other tensors need not."""
    x, ends = torch.randn(2, 5, 3), torch.tensor([1, 2, 4])

    def of_result(x: Any, ends: Any) -> tuple[Any, ...]:
        y = x.exp()
        return (y, *torch.tensor_split(y, ends, 1))

    for function in (lambda x, ends: torch.tensor_split(x, ends, 1), of_result):
        found, expected = compiled(function)(x, ends), function(x, ends)
        close(found, expected)
        assert [v.stride() for v in found] == [v.stride() for v in expected]


def test_weights_stay_in_the_module_until_they_are_written_to() -> None:
    """Rows of a table are read where the module has them; calls after a write compute with what was written."""
    module, records = torch.nn.Embedding(4096, 64).eval(), list[Any]()
    function = torch.compile(
        module, backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append)
    )
    at = torch.randint(0, 4096, (3, 5))
    close(function(at), module(at))
    (piece,) = records[0].pieces
    (lent,) = piece.model.artifact.lent
    assert lent.data.ctypes.data == module.weight.data_ptr()
    module.weight.mul_(3)
    close(function(at), module(at))
    assert not tilewright.compile(module, (at,), cache=False).artifact.lent


def test_sizes_that_pytorch_knows_and_ours_do_not_tell() -> None:
    """Heads are counted by what is left of a reshape whose other sizes are those of another tensor."""

    def attended(x: Any, k: Any) -> Any:
        q = x.view(k.shape[0], 1, -1, 8).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    records: list[Any] = []
    function = torch.compile(
        attended, backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append)
    )
    for n in (2, 3, 4):
        x, k = torch.randn(n, 1, 32), torch.randn(n, 2, 5, 8)
        close(function(x, k), attended(x, k))
    assert not any(record.eager for record in records)


def test_an_operator_of_which_one_result_is_not_translated_runs_eagerly() -> None:
    """As a result of it that is taken is no operator that could run without it."""

    @torch.library.custom_op("tilewright_tests::two", mutates_args=())
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.sin(x), torch.cos(x)

    two.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))

    @tilewright.torch.adapter("tilewright_tests::two")
    def only_one(node: Any, x: Any) -> Any:
        return x, None

    def both(x: Any) -> Any:
        first, second = two(x.exp())
        return first + 1, second

    records: list[Any] = []
    function = torch.compile(both, backend=lambda g, e: backend(g, e, options={"cache": False}, record=records.append))
    x = torch.randn(2, 3)
    for found, expected in zip(function(x), both(x), strict=True):
        close(found, expected)
    assert [op for op, _, _ in records[0].eager] == ["tilewright_tests.two.default"]
