"""Modules of PyTorch compute what PyTorch computes, for the sizes of their examples and for others."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright.frontends.front_end import ModelWithExamples  # noqa: E402
from tilewright.frontends.torch.archive.read import read_program  # noqa: E402
from tilewright.frontends.torch.load import load_captured, program_of  # noqa: E402
from tilewright.frontends.torch.tensors import array_of  # noqa: E402
from tilewright.ops.define.interp import evaluate_func  # noqa: E402

nn, F = torch.nn, torch.nn.functional
AUTO = torch.export.Dim.AUTO


def leaves(value: Any) -> list[Any]:
    return [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, torch.Tensor | int)]


def check(module: Any, *calls: tuple[Any, ...], dims: Any = None, tolerance: float = 1e-5) -> Any:
    """Compile the module with the first call as its examples, and compare what all of them give."""
    with torch.no_grad():
        model = tilewright.compile(module, calls[0], dynamic_shapes=dims, cache=False, threads=1)
        for call in calls:
            found = model(*[array_of(x, "x") for x in call])
            for ours, theirs in zip(found, leaves(module(*call)), strict=True):
                expected = theirs.float().numpy() if isinstance(theirs, torch.Tensor) else theirs
                np.testing.assert_allclose(ours.astype(np.float32), expected, rtol=tolerance, atol=tolerance)
    return model


def seeded(make: Any) -> Any:
    torch.manual_seed(0)
    return make().eval()


# Kinds of networks


class Residual(nn.Module):
    """A block of a U-Net: the step is added between two convolutions of normalised, activated images."""

    def __init__(self, given: int, out: int) -> None:
        super().__init__()
        self.norm, self.first = nn.GroupNorm(4, given), nn.Conv2d(given, out, 3, padding=1)
        self.step, self.second = nn.Linear(16, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(given, out, 1)

    def forward(self, x: Any, step: Any) -> Any:
        h = self.first(F.silu(self.norm(x))) + self.step(F.silu(step))[:, :, None, None]
        return self.second(F.silu(h)) + self.skip(x)


class Denoiser(nn.Module):
    """A U-Net with attention among the pixels of the smaller image, conditioned on a step."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.pool = Residual(4, 8), nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.middle, self.norm = Residual(8, 8), nn.GroupNorm(2, 8)
        self.qkv, self.out, self.up = nn.Linear(8, 24), nn.Linear(8, 8), Residual(16, 4)

    def forward(self, x: Any, time: Any) -> Any:
        angle = time[:, None] * torch.exp(-torch.arange(8, dtype=torch.float32))
        step = torch.cat([angle.sin(), angle.cos()], 1)
        a = self.down(x, step)
        b = self.middle(self.pool(a), step)
        n, c, h, w = b.shape
        q, k, v = self.qkv(self.norm(b).reshape(n, c, h * w).transpose(1, 2)).chunk(3, -1)
        heads = [t.reshape(n, h * w, 2, c // 2).transpose(1, 2) for t in (q, k, v)]
        mixed = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(n, h * w, c)
        b = b + self.out(mixed).transpose(1, 2).reshape(n, c, h, w)
        wide = F.interpolate(b, scale_factor=2.0, mode="nearest")
        return self.up(torch.cat([a, wide], 1), step)


def test_a_u_net_with_attention() -> None:
    calls = [(torch.randn(n, 4, 8, 8), torch.arange(n) * 3.0) for n in (2, 3)]
    check(seeded(Denoiser), *calls, dims=({0: AUTO}, {0: AUTO}), tolerance=1e-4)


class Conformer(nn.Module):
    """Attention with relative positions, shifted by a reshape, and a gated convolution along time."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm, self.qkv, self.place = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.u, self.v = (nn.Parameter(torch.randn(heads, 1, self.size)) for _ in range(2))
        self.gate, self.conv = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.batch, self.out = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: Any, places: Any) -> Any:
        n, steps, width = x.shape
        apart = lambda t: t.reshape(t.shape[0], -1, self.heads, self.size).transpose(1, 2)  # noqa: E731
        q, k, v = (apart(t) for t in self.qkv(self.norm(x)).chunk(3, -1))
        p = apart(self.place(places))
        near, far = (q + self.u) @ k.transpose(-2, -1), (q + self.v) @ p.transpose(-2, -1)
        shifted = F.pad(far, (1, 0)).reshape(n, self.heads, -1, steps)[:, :, 1:].reshape(far.shape)[..., :steps]
        weights = torch.softmax((near + shifted) / self.size**0.5, -1)
        x = x + (weights @ v).transpose(1, 2).reshape(n, steps, width)
        h = F.glu(self.gate(x.transpose(1, 2)), 1)
        return x + self.out(F.silu(self.batch(self.conv(h)))).transpose(1, 2)


def test_a_conformer_block() -> None:
    calls = [(torch.randn(n, t, 16), torch.randn(1, 2 * t - 1, 16)) for n, t in ((2, 9),)]
    check(seeded(Conformer), *calls, tolerance=1e-4)


class Messages(nn.Module):
    """A graph network: messages along edges are summed, averaged and maximised at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.node = nn.Linear(8, 8), nn.Linear(28, 4)

    def forward(self, x: Any, edges: Any) -> Any:
        begin, end = edges
        sent = torch.relu(self.message(torch.cat([x[begin], x[end]], 1)))
        total = torch.zeros(x.shape[0], 8).index_add(0, end, sent)
        where = end[:, None].expand(-1, 8)
        most = torch.zeros(x.shape[0], 8).scatter_reduce(0, where, sent, "amax", include_self=True)
        mean = torch.zeros(x.shape[0], 8).scatter_reduce(0, where, sent, "mean", include_self=False)
        return self.node(torch.cat([x, total, most, mean], 1))


def test_a_graph_network() -> None:
    calls = [(torch.randn(n, 4), torch.randint(0, n, (2, e))) for n, e in ((5, 9), (7, 20))]
    check(seeded(Messages), *calls, dims=({0: AUTO}, {1: AUTO}), tolerance=1e-4)


class Language(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(16, 20)
        self.layers = getattr(nn, kind)(8, 8, 2, batch_first=True, bidirectional=True)

    def forward(self, ids: Any) -> Any:
        return self.out(self.layers(self.embed(ids))[0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_take_any_number_of_steps(kind: str) -> None:
    calls = [(torch.randint(0, 20, shape),) for shape in ((2, 6), (3, 11))]
    model = check(seeded(lambda: Language(kind)), *calls, dims=({0: AUTO, 1: AUTO},))
    assert not any(isinstance(d, int) for d in model.inputs[0].shape)


class Grouped(nn.Module):
    def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        some = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        return some + F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def test_attention_of_grouped_heads_with_a_mask() -> None:
    def call(n: int, steps: int) -> tuple[Any, ...]:
        q, k, v = (torch.randn(n, heads, steps, 8) for heads in (4, 2, 2))
        return q, k, v, torch.rand(n, 1, steps, steps) > 0.4

    dims = tuple({0: AUTO, 2: AUTO} if k < 3 else {0: AUTO, 2: AUTO, 3: AUTO} for k in range(4))
    check(Grouped().eval(), call(2, 5), call(3, 7), dims=dims)


# Types


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_modules_of_16_bits(dtype: str) -> None:
    found = getattr(torch, dtype)
    module = seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))).to(found)
    check(module, (torch.randn(3, 8).to(found),), tolerance=0.05)


class Regions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.batch = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            y = x.sin()
        with torch.enable_grad():
            z = self.line(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            w = self.batch(self.line(z))
        return w.float() + y


def test_regions_of_autocast_and_of_gradients() -> None:
    check(seeded(Regions), (torch.randn(3, 4),), (torch.randn(5, 4),), dims=({0: AUTO},), tolerance=0.02)


def test_regions_of_autocast_around_the_call(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no part of an exported program, and hold for files, too, also where the cache has the other one."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    module, x = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)).eval(), torch.randn(3, 4)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "model.pt2")
    with torch.no_grad():
        plain = tilewright.compile(tmp_path / "model.pt2").with_outputs(torch)(x)[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            program = torch.export.export(module, (x,))
            expected = module(x)
            sources = ((module, (x,)), (program, None), (tmp_path / "model.pt2", None))
            found = [tilewright.compile(model, given).with_outputs(torch)(x)[0] for model, given in sources]
    torch.testing.assert_close(plain, module(x))
    for y in found:
        torch.testing.assert_close(y, expected, rtol=0.02, atol=0.02)


class Sizes(nn.Module):
    def forward(self, x: Any) -> tuple[Any, ...]:
        rows = x.shape[0]
        return x + torch.sym_ite(rows > 4, rows, 2 * rows), rows == 4, torch.sym_not(rows == 4), rows * 2


def test_truths_of_sizes_are_bools() -> None:
    model = tilewright.compile(Sizes().eval(), (torch.ones(3, 2),), dynamic_shapes=({0: AUTO},), cache=False)
    for rows in (3, 4, 5):
        x, is_four, is_other, twice = model(torch.ones(rows, 2))
        assert x.max() == 1 + (rows if rows > 4 else 2 * rows) and twice == 2 * rows
        assert is_four.dtype == is_other.dtype == bool and is_four == (rows == 4) and is_other == (rows != 4)


class CastLayers(nn.Module):
    """Composite operators that stay whole, whose parts are cast."""

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList([getattr(nn, kind)(8, 4) for kind in kinds])

    def forward(self, x: Any) -> tuple[Any, ...]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = [layer(x)[0] for layer in self.layers]
            found += [torch.einsum("bij,bkj->bik", x, x), torch.einsum("bij->bi", x)]
            with torch.autocast("cpu", enabled=False):
                found += [self.layers[-1](x)[0], torch.einsum("bij,bkj->bik", x, x)]
        return tuple(found)


def test_autocast_of_operators_that_stay_whole() -> None:
    """The program of all of them is interpreted, what Dynamo traces of one is compiled."""
    module, x, other = seeded(lambda: CastLayers("LSTM", "GRU", "RNN")), torch.randn(3, 5, 8), torch.randn(4, 2, 8)
    program = load_captured(program_of(ModelWithExamples(module, (x,), {}, ({0: AUTO, 1: AUTO},))))
    one = seeded(lambda: CastLayers("RNN"))
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        traced = torch.compile(one, backend="tilewright", options={"cache": False}, fullgraph=True)
        for given in (x, other):
            torch.testing.assert_close(tuple(traced(given)), one(given), rtol=0.03, atol=0.03)
            found = evaluate_func(program.main, program, [given.numpy()])
            for ours, theirs in zip(found, module(given), strict=True):
                expected = array_of(theirs, "y")
                assert ours.dtype == expected.dtype
                np.testing.assert_allclose(np.float32(ours), np.float32(expected), rtol=0.03, atol=0.03)


# Higher-order operators


class Choice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, x: Any) -> Any:
        def inner(t: Any) -> Any:
            return torch.cond(t.max() > 0.5, lambda u: self.a(u).relu(), lambda u: -self.a(u), (t,))

        return torch.cond(x.sum() > 0, inner, lambda t: self.b(t).sin(), (x,))


def test_branches_that_depend_on_data() -> None:
    calls = [(torch.rand(3, 4),), (-torch.rand(5, 4),), (torch.full((2, 4), 0.1),)]
    check(seeded(Choice), *calls, dims=({0: AUTO},))


class Repeated(nn.Module):
    def forward(self, x: Any) -> Any:
        from torch._higher_order_ops import scan
        from torch._higher_order_ops.while_loop import while_loop

        count, grown = while_loop(
            lambda k, a: (k < 40) & (a.abs().sum() < 100), lambda k, a: (k + 1, a * 1.5 + 1),
            (torch.zeros((), dtype=torch.int64), x.clone()),
        )  # fmt: skip
        total, rows = scan(lambda c, a: (c * 0.5 + a, c * a), torch.zeros(x.shape[1]), x, reverse=True)
        return count, grown, total, rows


def test_loops_and_scans() -> None:
    check(Repeated().eval(), (torch.randn(3, 4),), (torch.randn(6, 4),), dims=({0: AUTO},), tolerance=1e-4)


# Quantisation, experts and custom operators


class Quantised(nn.Module):
    """What the PT2E flow makes of a linear layer: static activations of 7 bits, weights with a scale for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (6, 8), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(6) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.zeros(6, dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        ops = torch.ops.quantized_decomposed
        q = ops.quantize_per_tensor(x, 0.02, 64, 0, 127, torch.uint8)
        x = ops.dequantize_per_tensor(q, 0.02, 64, 0, 127, torch.uint8)
        w = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        y = F.linear(x, w)
        scale, zero = ops.choose_qparams.tensor(y, -128, 127, 1e-6, torch.int8)
        r = ops.quantize_per_tensor.tensor(y, scale, zero, -128, 127, torch.int8)
        return ops.dequantize_per_tensor.tensor(r, scale, zero, -128, 127, torch.int8), q


def test_quantisation_of_exported_programs() -> None:
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    check(seeded(Quantised), (torch.randn(3, 8),), (torch.randn(5, 8) * 2,), dims=({0: AUTO},))


class Experts(nn.Module):
    def forward(self, x: Any, weights: Any, which: Any) -> tuple[Any, ...]:
        rows = x[which.argsort()]
        found = []
        for counts in (torch.histc(which.float(), bins=3, min=0, max=2), torch.bincount(which, minlength=3)):
            found.append(torch._grouped_mm(rows, weights, offs=counts.cumsum(0).to(torch.int32)))
        return tuple(found)


def test_products_of_groups_of_rows() -> None:
    def call(rows: int, experts: int) -> tuple[Any, ...]:
        x, weights = torch.randn(rows, 8).bfloat16(), torch.randn(3, 8, 8).bfloat16()
        return x, weights, torch.randint(0, experts, (rows,))

    check(Experts().eval(), call(6, 3), call(9, 1), dims=({0: AUTO}, None, {0: AUTO}), tolerance=0.05)


def test_custom_operators_in_python_are_decomposed() -> None:
    @torch.library.custom_op("tilewright_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.sin(x) * factor

    @scaled.register_fake
    def _(x: Any, factor: float) -> Any:
        return torch.empty_like(x)

    class Custom(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.tilewright_tests.scaled(x, 2.0) + 1

    check(Custom().eval(), (torch.randn(3, 4),))


# Writes in place


class Writes(nn.Module):
    """Writes to sums, to what was read before, to a value with a view, to a view, and to what dropout gives."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Any, how: int) -> Any:
        y = self.norm(self.line(x))
        if how == 0:
            z = y * 2
            y += self.line(x)
            r = torch.relu_(y)
            return y - z, r.add_(1) * y
        if how == 1:
            v = y[0]
            y.add_(1)
            return v + y
        if how == 2:
            y[0].mul_(3)
            return y
        z = F.dropout(y, 0.5, self.training)
        return z.relu_() + y


@pytest.mark.parametrize("how", range(4))
def test_writes_in_place(how: int) -> None:
    module = seeded(Writes)

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.writes = module

        def forward(self, x: Any) -> Any:
            return self.writes(x, how)

    check(One().eval(), (torch.randn(3, 4),))


def test_graphs_that_need_no_decomposition_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(), nn.Flatten())
    check(module.eval(), (torch.randn(2, 3, 5, 5),))


# Files


def test_files_of_exported_programs(tmp_path: Any) -> None:
    path = tmp_path / "model.pt2"
    module = seeded(Choice)
    program = torch.export.export(module, (torch.rand(3, 4),), dynamic_shapes=({0: AUTO},), strict=False)
    torch.export.save(program, path)
    model = tilewright.compile(path, cache=False, threads=1)
    x = torch.rand(5, 4)
    with torch.no_grad():
        np.testing.assert_allclose(model(x.numpy())[0], module(x).numpy(), rtol=1e-5, atol=1e-5)
    assert [n.target for n in read_program(path).graph.nodes] == [n.target for n in program.graph.nodes]


def test_files_of_decomposed_and_quantised_programs(tmp_path: Any) -> None:
    """Operators whose names begin with underscores, and those that PyTorch registers when asked for. PyTorch is loaded
    by what needs it, and `tilewright.torch` needs no import of its own."""
    pytest.importorskip("torch.ao.quantization.fx._decomposed")

    class Double(nn.Module):
        def forward(self, x: Any) -> Any:
            q = torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.02, 64, 0, 127, torch.uint8)
            return torch.softmax(q.to(torch.float64), -1)

    path = tmp_path / "model.pt2"
    program = torch.export.export(Double().eval(), (torch.rand(3, 4),)).run_decompositions()
    assert {"aten._to_copy.default", "aten._softmax.default"} <= {str(n.target) for n in program.graph.nodes}
    torch.export.save(program, path)
    code = f"""import sys, tilewright
assert "torch" not in sys.modules
tilewright.compile({str(path)!r}, cache=False, threads=1)
print(tilewright.torch.explain.__name__)"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0 and found.stdout.strip() == "explain", found.stderr


def test_attention_whose_scores_are_functions_of_positions() -> None:
    """flex_attention: scores changed by a table, causal, heads in groups; blocks of a mask; lengths of their own."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    class Flex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("bias", torch.randn(4, 40))

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            def changed(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
                return torch.where(i >= j, torch.tanh(score / 5) * 5 + self.bias[h, i - j + 20], -float("inf"))

            return flex_attention(q, k, v, score_mod=changed, enable_gqa=True)

    def operands(batch: int, steps: int) -> tuple[Any, ...]:
        return tuple(torch.randn(batch, heads, steps, 8) for heads in (4, 2, 2))

    dims = ({0: AUTO, 2: AUTO},) * 3
    check(seeded(Flex), operands(2, 12), operands(3, 17), dims=dims, tolerance=1e-4)

    blocks = create_block_mask(lambda b, h, i, j: i - j < 5, None, None, 16, 16, device="cpu")

    class Blocks(nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return flex_attention(q, k, v, block_mask=blocks)

    check(Blocks().eval(), tuple(torch.randn(2, 2, 16, 8) for _ in range(3)), tolerance=1e-4)


def test_functions_over_a_batch() -> None:
    class Batch(nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            return torch.vmap(lambda row: torch.relu(row @ w))(x)

    check(Batch().eval(), (torch.randn(3, 4), torch.randn(4, 5)))


def test_graphs_of_exported_programs_are_modules() -> None:
    """They are marked as training, and refuse `.eval()`."""
    x = torch.randn(2, 4)
    check(torch.export.export(nn.Linear(4, 3).eval(), (x,)).module(), (x,))


def test_scales_of_a_range_decide_on_roundings_as_pytorchs_do() -> None:
    """The greatest number of each row is between two steps: the scale's last bit decides."""

    class Rounded(nn.Module):
        def forward(self, x: Any) -> Any:
            scale = x.abs().amax(1, keepdim=True) / 127.5
            return torch.round(x * (1.0 / scale)).clamp(-128, 127)

    check(Rounded().eval(), (torch.randn(64, 48),), tolerance=0)
