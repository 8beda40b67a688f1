"""Products of bfloat16 in groups: the schedule's program against float64, and its machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.schedule.scheduling import build, run
from tilewright.asm.parse import parse_assembly
from tilewright.asm.report import report_assembly
from tilewright.codegen.cpu.assemble import assembly
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.compilation import Compilation, Setting
from tilewright.graph.precision import narrow_choice
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import TensorType, tensor
from tilewright.loops.edit import extent_of, is_loop, kind_of, loop_var
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import conv, matmul, matmul_widening
from tilewright.ops.define import constant
from tilewright.ops.norm import softmax
from tilewright.ops.view import transpose
from tilewright.options import Options
from tilewright.passes import PassContext
from tilewright.target.named import parse_target

RNG = np.random.default_rng(11)
INSTRUCTIONS = {
    "zen4": "vdpbf16ps",
    "zen5": "vdpbf16ps",
    "sapphirerapids": "vdpbf16ps",
    "cascadelake,+avx512bf16": "vdpbf16ps",
    "neoverse-v1": "bfdot",
}
SHAPES = [(1, 16, 16), (1, 64, 96), (7, 12, 16), (5, 8, 33), (6, 8, 4), (30, 40, 20), (3, 1100, 16)]


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dt.bf16.storage)


def scheduled(
    body: Callable[[Value], Value], shape: tuple[int | Sym, ...], machine: str
) -> tuple[Module, PassContext]:
    module = build([TensorType(dt.bf16, tuple(map(sym, shape)))], body)
    ctx = Compilation(module, Setting.of(Options(), parse_target(machine))).run("scheduled").context
    return module, ctx


def product(b: np.ndarray) -> Callable[[Value], Value]:
    return lambda x: ew.max_(matmul_widening(x, constant(b), sums=dt.f32), 0.25)


def dots(module: Module) -> Iterator[tuple[Func, Op]]:
    for func in module.funcs.values():
        if func.level == "loops":
            yield from ((func, op) for op in func.body.walk() if is_loop(op) and kind_of(op) == "dot")


@pytest.mark.sweep
@pytest.mark.parametrize("machine", ["zen4", "neoverse-v1"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("known", [True, False], ids=["rows", "any rows"])
def test_the_program_means_the_product(shape: tuple[int, int, int], machine: str, known: bool) -> None:
    m, k, n = shape
    a, b = numbers(m, k), numbers(k, n)
    module, _ = scheduled(product(b), (m, k) if known else (var("rows", 1), k), machine)
    assert any(dots(module))
    (found,) = run(module, [a])
    wide, right = a.astype(np.float64), b.astype(np.float64)
    error = 2.0**-22 * k**0.5 * (np.abs(wide) @ np.abs(right))  # products are exact, sums are rounded
    assert (np.abs(found - np.maximum(wide @ right, 0.25)) <= error).all()


def test_transposed_results_are_multiplied_in_groups() -> None:
    """By rows they would have lanes along the data, which are not packed."""
    a, b = numbers(9, 64), numbers(64, 32)
    module, _ = scheduled(lambda x: transpose(product(b)(x), perm=(1, 0)), (9, 64), "zen4")
    assert any(dots(module))
    (found,) = run(module, [a])
    wanted = np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0.25).T
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_group_lies_together_in_weights_and_data() -> None:
    module, _ = scheduled(product(numbers(64, 64)), (9, 64), "zen4")
    ((_, loop),) = dots(module)
    assert extent_of(loop) == 2
    for load in (op for op in loop.walk() if op.name == "load" and op.operands[0].buffer.dtype is dt.bf16):
        assert loop_var(loop) in load.attrs["idx"][-1].vars


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, object]]] = {
    "1x1": ((1, 64, 14, 14), (64, 64, 1, 1), {}),
    "strided": ((1, 64, 15, 15), (64, 64, 3, 3), {"strides": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1)}),
    "stem": ((1, 3, 32, 32), (32, 3, 3, 3), {"strides": (2, 2)}),
    "stem of one block": ((1, 3, 80, 80), (16, 3, 3, 3), {}),
}


def convolution(name: str) -> tuple[Callable[[Value], Value], tuple[int, ...]]:
    shape, filters, attrs = CONVOLUTIONS[name]
    w = numbers(*filters)
    return lambda x: ew.max_(conv(x, constant(w), sums=dt.f32, **attrs), 0), shape


def check_inner_loops(module: Module, ctx: PassContext, instruction: str) -> None:
    """One instruction for each vector of sums in each step, which stay in registers."""
    checked = 0
    for func, dot in dots(module):
        vectors, loop = 1, dot.parent.parent
        while kind_of(loop) != "serial":
            lanes = ctx.target.f32_lanes if kind_of(loop) == "vector" else 1
            vectors *= -(-extent_of(loop).value // lanes)
            loop = loop.parent.parent
        text = assembly(kernel_ir(func, ctx.target).text, ctx.target, comments=True)
        blocks = {block.label: block for f in parse_assembly(text) for block in f.blocks}
        report = next(r for r in report_assembly(text, ctx.target) if r.name == func.name)
        for found in report.innermost:
            count = [i.mnemonic for i in blocks[found.label].instructions].count(instruction)
            if found.name != str(loop_var(loop)) or not count:
                continue
            checked += 1
            effects = found.effects
            assert count == effects.multiply_adds == vectors
            assert (effects.spills, effects.stores, effects.calls, effects.branches) == (0, 0, 0, 1)
            assert max(found.widths) == ctx.target.vector_bits
    assert checked


@pytest.mark.parametrize("machine", INSTRUCTIONS)
@pytest.mark.parametrize("shape", [(128, 768, 768), (1, 256, 512)], ids=str)
def test_inner_loops_of_products(shape: tuple[int, int, int], machine: str) -> None:
    m, k, n = shape
    check_inner_loops(*scheduled(product(numbers(k, n)), (m, k), machine), INSTRUCTIONS[machine])


@pytest.mark.parametrize("machine", ["zen4", "sapphirerapids", "neoverse-v1"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_inner_loops_of_convolutions(name: str, machine: str) -> None:
    check_inner_loops(*scheduled(*convolution(name), machine), INSTRUCTIONS[machine])


ATTENTION = [(2, 20, 24, 16), (1, 9, 40, 32), (1, 76, 18, 8), (5, 13, 6, 8)]
"""Heads, queries, keys and their length."""


def attention(shape: tuple[int, ...], target: str, *, turned: bool = False) -> tuple[Module, PassContext]:
    """Both products of attention and what lies between them, with operands rounded; keys as columns if `turned`."""
    heads, queries, keys, length = shape

    def body(q: Value, k: Value, v: Value) -> Value:
        scores = matmul(q, k, transpose_b=not turned)
        return matmul(softmax(ew.mul(scores, 0.3), axis=-1), v)

    key_shape = (heads, length, keys) if turned else (heads, keys, length)
    shapes = [(heads, queries, length), key_shape, (heads, keys, length)]
    module = build([tensor(dt.f32, s) for s in shapes], body)
    options = Options(numerics="fast")
    ctx = Compilation(module, Setting.of(options, parse_target(target))).run("scheduled").context
    return module, ctx


@pytest.mark.sweep
@pytest.mark.parametrize("machine", ["zen4", "neoverse-v1"])
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", ATTENTION, ids=str)
def test_attention_multiplies_in_groups(
    shape: tuple[int, ...], turned: bool, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values are copied in groups, and weights of values are rounded in memory."""
    monkeypatch.setattr(narrow_choice, "rounding_gains", lambda *_: True)
    module, _ = attention(shape, machine, turned=turned)
    assert len(list(dots(module))) >= 2
    heads, queries, keys, length = shape
    shapes = [(heads, queries, length), (heads, keys, length), (heads, keys, length)]
    q, k, v = (RNG.standard_normal(s).astype(np.float32) for s in shapes)
    (found,) = run(module, [q, np.ascontiguousarray(k.swapaxes(1, 2)) if turned else k, v])
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2)
    off = 2.0**-7 * 1.01 * np.abs(q) @ np.abs(k.swapaxes(1, 2))  # each operand by 2^-8 of its size
    weights = np.exp(0.3 * (scores - scores.max(-1, keepdims=True)))
    weights /= weights.sum(-1, keepdims=True)
    error = (np.exp(0.6 * off.max(-1, keepdims=True)) * 1.01 - 1 + 2.0**-7) * (weights @ np.abs(v)) + 1e-5
    assert (np.abs(found - weights @ v) <= error).all()


@pytest.mark.parametrize("machine", ["zen4", "sapphirerapids", "neoverse-v1"])
def test_inner_loops_of_attention(machine: str) -> None:
    module, ctx = attention((4, 128, 128, 64), machine)
    assert [f.name for f in module.funcs.values() if "attention" in f.name]
    check_inner_loops(module, ctx, INSTRUCTIONS[machine])


def test_rounding_is_one_instruction_unless_denormals_are_kept() -> None:
    module, ctx = scheduled(lambda x: ew.cast(ew.add(ew.cast(x, dtype=dt.f32), 1), dtype=dt.bf16), (64,), "zen4")
    (func,) = [f for f in module.funcs.values() if f.level == "loops"]
    texts = [assembly(kernel_ir(func, ctx.target, keeps_denormals=keeps).text, ctx.target) for keeps in (False, True)]
    assert ["vcvtneps2bf16" in text for text in texts] == [True, False]


def test_denormals_are_kept_where_they_are_to_be() -> None:
    """The instruction takes them as zero: multiply-adds take its place."""
    module, ctx = scheduled(product(numbers(64, 64)), (9, 64), "zen4")
    ((func, _),) = dots(module)
    text = assembly(kernel_ir(func, ctx.target, keeps_denormals=True).text, ctx.target)
    assert "vdpbf16ps" not in text and "vfmadd" in text
