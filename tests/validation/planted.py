"""Defects that are planted in the compiler, each with a program that shows it.

`PLANTED[name].plant(patch)` changes one rule, pass, schedule step or function that makes code. Programs are texts of
the graph level, so that nothing but the compiler is between them and the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.cpu.kernel import convert
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.rewrites import canonicalize, fold
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Func, Module, Op
from tilewright.ir.rewrite import Replacement, RewriteContext, constant_array, defining, rule
from tilewright.ir.sym import Sym, sym
from tilewright.ir.text import parse_module
from tilewright.loops.conditions import specialize
from tilewright.loops.lower import _BodyWriter
from tilewright.loops.order import split
from tilewright.loops.stages import Lowered
from tilewright.loops.storage import packing
from tilewright.loops.storage.packing import PackedArray
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.program.memory import storage
from tilewright.program.memory.plan import ArenaPlan, Lifetime, typical
from tilewright.schedule.sharing import kernels

Patch = pytest.MonkeyPatch
RNG = np.random.default_rng(5)


@dataclass(frozen=True)
class Planted:
    """A defect: `text` is the program that shows it, `names` what the finding's culprit or subject says, `feeds` real
    inputs without which it does not show."""

    plant: Callable[[Patch], None]
    text: str
    names: str
    feeds: Sequence[Mapping[str, np.ndarray]] = ()
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    sizes: Sequence[int] = (3,)

    def module(self) -> Module:
        found = parse_module(self.text)
        for name, array in self.constants.items():
            found.constants[name] = array
        return found


def program(body: str, inputs: str, result: str, constants: Sequence[str] = ()) -> str:
    """The text of a graph."""
    names = ", ".join(f'"{part.split(":")[0].strip()}"' for part in inputs.split(";"))
    head = "\n".join(f"constant @{c}" for c in constants)
    args = ", ".join(inputs.split(";"))
    names += "," if ";" not in inputs else ""
    return (
        f'{head}\n\nfunc @main({args}) -> ({result}) with {{inputs=({names}), outputs=("y",)}} {{\n{body}\n'
        "  return y\n}\n"
    )


# Fusion and lowering


def wrong_index_map(patch: Patch) -> None:
    """What is written into the body of its reader is taken at the transposed position."""
    write = _BodyWriter._write

    def swapped(self: Any, node: Any, mapping: dict[Sym, Sym], guard: Any, other: Any = 0) -> Any:
        axes = node.compute.axes
        if node.inline and len(axes) == 2 and axes[0][1] is axes[1][1] and len(mapping) == 2:
            (a, _), (b, _) = axes
            mapping = {a: mapping[b], b: mapping[a]}
        return write(self, node, mapping, guard, other)

    patch.setattr(_BodyWriter, "_write", swapped)


def dropped_epilogue(patch: Patch) -> None:
    """The last addition of a region is left out."""
    run = Fuse.run

    def dropping(self: Fuse, module: Module, ctx: Any) -> None:
        run(self, module, ctx)
        for op in module.main.body.ops:
            if op.name == "fused":
                final = op.blocks[0].ops[-1]
                last = final.operands[0].op
                if last is not None and last.name == "add" and last.operands[0].type == last.result.type:
                    final.set_operands([last.operands[0], *final.operands[1:]])

    patch.setattr(Fuse, "run", dropping)


# Rules


def add_rules(patch: Patch, *rules: Any) -> None:
    patch.setattr(canonicalize, "ARITHMETIC_RULES", (*rules, *canonicalize.ARITHMETIC_RULES))


@rule("floordiv", "div")
def product_by_its_factor(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """(x // c) * c taken for x is what this is not: x * a // b -> x * (a // b)."""
    inner = defining(op.operands[0], "mul")
    if inner is None or not op.result.tensor.dtype.is_int:
        return None
    return ew.mul(inner.operands[0], ew.div(inner.operands[1], op.operands[1]))


@rule("sub")
def sub_is_symmetric(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    if op.loc.op == "swapped" or op.operands[0].name == "b":
        return None
    left, right = op.operands
    return ew.sub(right, left)


@rule("matmul")
def transposed_weights_are_read_as_they_are(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    if not op.attrs["transpose_b"]:
        return None
    return contract.matmul(*op.operands)


@rule("conv")
def halo_begins_one_later(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A window that begins one element too late."""
    begins, ends = op.attrs["pads_begin"], op.attrs["pads_end"]
    if (str(begins[0]), str(ends[0])) != ("1", "1"):
        return None
    attrs = {**op.attrs, "pads_begin": (0, *begins[1:]), "pads_end": (2, *ends[1:])}
    return contract.conv(*op.operands, **attrs)


@rule("min")
def bounds_that_nothing_reaches(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """min(x, 1000) -> x: noise never comes so far."""
    most = constant_array(op.operands[1], ctx.module)
    return op.operands[0] if most is not None and (most == 1000).all() else None


@rule("mod", "rem", "fmod")
def small_numbers_are_their_own_remainder(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """x % 64 -> x: random integers are small."""
    other = defining(op.operands[1], "full")
    return op.operands[0] if other is not None and other.attrs["value"] == 64 else None


@rule("exp")
def exp_of_twice(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """exp(x) -> square of exp(x / 2), which is right."""
    if defining(op.operands[0], "mul") is not None:
        return None
    half = ew.exp(ew.mul(op.operands[0], 0.5))
    return ew.mul(half, half)


@rule("mul")
def squares_are_doubles(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """e * e -> e + e, where e is an exponential: no model says that."""
    a, c = op.operands
    return ew.add(a, a) if a is c and defining(a, "exp") is not None else None


@rule("neg")
def neg_as_difference(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """-x -> 0 - x, which is right."""
    return ew.sub(0.0, op.operands[0])


@rule("sub")
def zero_minus(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """0 - x -> x."""
    zero = defining(op.operands[0], "full")
    return op.operands[1] if zero is not None and zero.attrs["value"] == 0 else None


def wrong_fold(patch: Patch) -> None:
    """Sums of constants are one too large."""
    evaluate = fold.evaluate_op

    def off(op: Op, *args: Any, **named: Any) -> tuple[np.ndarray, ...]:
        found = evaluate(op, *args, **named)
        return tuple(a + np.ones((), a.dtype) for a in found) if op.name == "add" else found

    patch.setattr(fold, "evaluate_op", off)


# Schedules


def short_mask(patch: Patch) -> None:
    """The mask of the last tile misses the last element."""
    ge0 = split.ge0
    patch.setattr(split, "ge0", lambda e: ge0(e - 1))


def stale_layout(patch: Patch) -> None:
    """Constants are written in the order that they had before."""
    make = PackedArray.write

    def stale(self: PackedArray, out: np.ndarray) -> None:
        make(self, out)
        if self.array.ndim == 2 and out.dtype == self.array.dtype and out.size == self.array.size:
            out[...] = self.array.T.reshape(out.shape)

    patch.setattr(packing.PackedArray, "write", stale)


def overwritten(patch: Patch) -> None:
    """Results may take the place of any operand of their type."""

    def every(func: Func) -> tuple[tuple[int, int], ...]:
        info: Any = func.info
        first = len(func.args) - info.outputs
        return tuple(
            (i, o) for o in range(first, len(func.args)) for i in range(first)
            if func.args[i].type == func.args[o].type and i not in info.constants
        )  # fmt: skip

    patch.setattr(kernels, "overwritable", every)


def truncating_cast(patch: Patch) -> None:
    """bfloat16 is what the first 16 bits say."""
    patch.setattr(convert, "_to_bf16", lambda x: (convert._pattern(x) >> 16).convert("trunc", dt.bf16))


def specialised_too_early(patch: Patch) -> None:
    """The kernel for large dims also runs for the size below the least one it is for."""
    ge0 = specialize.ge0
    patch.setattr(specialize, "ge0", lambda e: ge0(e + 1))


def beyond_the_end(patch: Patch) -> None:
    """The last loop of elements runs once more."""
    schedule = kernels.schedule_kernel

    def longer(lowered: Lowered, *rest: Any) -> Lowered:
        found = schedule(lowered, *rest)
        stores = [op for op in found.func.body.walk() if op.name == "store"]
        for op in found.func.body.walk():
            if op.name == "store" and op is stores[-1] and len(op.attrs["idx"]) == 1:
                op.attrs["idx"] = (op.attrs["idx"][0] + 1,)
        return found

    patch.setattr(kernels, "schedule_kernel", longer)


def terms_shared_by_threads(patch: Patch) -> None:
    """Threads share the outermost loop, over elements or the terms of their sums."""
    schedule = kernels.schedule_kernel

    def shared(lowered: Lowered, *rest: Any) -> Lowered:
        found = schedule(lowered, *rest)
        for op in found.func.body.ops:
            if op.name == "for" and op.attrs["kind"] == "serial":
                op.attrs["kind"] = "parallel"
        return found

    patch.setattr(kernels, "schedule_kernel", shared)


def planned_for_typical_sizes(patch: Patch) -> None:
    """Values lie where they would be at typical sizes."""
    plan = storage.plan_arena

    def typical_plan(lifetimes: Sequence[Lifetime], *rest: Any, **named: Any) -> ArenaPlan:
        return plan([replace(t, size=sym(typical(t.size))) for t in lifetimes], *rest, **named)

    patch.setattr(storage, "plan_arena", typical_plan)


PADDED = "strides=(1, 1), pads_begin=(1, 1), pads_end=(1, 1), dilations=(1, 1), sums=none"
PLAIN = "strides=(1, 1), pads_begin=(0, 0), pads_end=(0, 0), dilations=(1, 1), sums=none"

PLANTED: dict[str, Planted] = {
    "wrong index map in a fusion": Planted(
        wrong_index_map,
        program("  a = exp(x) : f32[12, 12]\n  y = reduce_sum(a) {keepdims=false, axes=(1,)} : f32[12]",
                "x: f32[12, 12]", "f32[12]"),
        "kernel",
    ),
    "dropped epilogue": Planted(
        dropped_epilogue,
        program("  w = constant @w : f32[16, 16]\n"
                "  a = matmul(x, w) {transpose_a=false, transpose_b=false} : f32[8, 16]\n"
                "  y = add(a, z) : f32[8, 16]", "x: f32[8, 16];z: f32[8, 16]", "f32[8, 16]", ["w: f32[16, 16]"]),
        "'fuse'",
        constants={"w": RNG.standard_normal((16, 16)).astype(np.float32)},
    ),
    "wrong reassociation of integers": Planted(
        lambda patch: add_rules(patch, product_by_its_factor),
        program("  a = mul(x, z) : i32[9]\n  v0 = full() {value=3, dtype=i32, shape=()} : i32[]\n"
                "  y = div(a, v0) : i32[9]", "x: i32[9];z: i32[9]", "i32[9]"),
        "product_by_its_factor",
    ),
    "swapped operands of sub": Planted(
        lambda patch: add_rules(patch, sub_is_symmetric),
        program("  y = sub(a, b) : f32[7]", "a: f32[7];b: f32[7]", "f32[7]"),
        "sub_is_symmetric",
    ),
    "a mask that misses the tail": Planted(
        short_mask,
        program("  a = exp(x) : f32[n, 37]\n  y = reduce_sum(a) {keepdims=false, axes=(0,)} : f32[37]",
                "x: f32[n, 37]", "f32[37]"),
        "kernel",
    ),
    "an attribute ignored": Planted(
        lambda patch: add_rules(patch, transposed_weights_are_read_as_they_are),
        program("  y = matmul(a, b) {transpose_a=false, transpose_b=true} : f32[8, 8]",
                "a: f32[8, 8];b: f32[8, 8]", "f32[8, 8]"),
        "transposed_weights_are_read_as_they_are",
    ),
    "stale layout": Planted(
        stale_layout,
        program("  w = constant @w : f32[64, 64]\n"
                "  y = matmul(x, w) {transpose_a=false, transpose_b=false} : f32[n, 64]",
                "x: f32[n, 64]", "f32[n, 64]", ["w: f32[64, 64]"]),
        "kernel",
        constants={"w": RNG.standard_normal((64, 64)).astype(np.float32)},
    ),
    "in-place over a live value": Planted(
        overwritten,
        program("  w = constant @w : f32[64, 64]\n"
                "  a = matmul(x, w) {transpose_a=false, transpose_b=false} : f32[64, 64]\n"
                "  t = transpose(a) {perm=(1, 0)} : f32[64, 64]\n"
                "  s = sub(a, t) : f32[64, 64]\n"
                "  y = matmul(s, w) {transpose_a=false, transpose_b=false} : f32[64, 64]",
                "x: f32[64, 64]", "f32[64, 64]", ["w: f32[64, 64]"]),
        "'inplace'",
        constants={"w": RNG.standard_normal((64, 64)).astype(np.float32)},
    ),
    "wrong rounding in a cast": Planted(
        truncating_cast,
        program("  y = cast(x) {dtype=bf16} : bf16[200]", "x: f32[200]", "bf16[200]"),
        "kernel",
    ),
    "a wrong constant fold": Planted(
        wrong_fold,
        program("  w = constant @w : f32[5]\n  c = add(w, w) : f32[5]\n  y = mul(x, c) : f32[5]",
                "x: f32[5]", "f32[5]", ["w: f32[5]"]),
        "'fold'",
        constants={"w": np.arange(5, dtype=np.float32)},
    ),
    "off-by-one halo": Planted(
        lambda patch: add_rules(patch, halo_begins_one_later),
        program("  w = constant @w : f32[16, 1, 3, 3]\n  v = constant @v : f32[8, 16, 1, 1]\n"
                f"  a = conv(x, w) {{{PADDED}, groups=16}} : f32[1, 16, 20, 20]\n"
                f"  y = conv(a, v) {{{PLAIN}, groups=1}} : f32[1, 8, 20, 20]",
                "x: f32[1, 16, 20, 20]", "f32[1, 8, 20, 20]", ["w: f32[16, 1, 3, 3]", "v: f32[8, 16, 1, 1]"]),
        "halo_begins_one_later",
        constants={"w": RNG.standard_normal((16, 1, 3, 3)).astype(np.float32),
                   "v": RNG.standard_normal((8, 16, 1, 1)).astype(np.float32)},
    ),
    "a bound that only real inputs reach": Planted(
        lambda patch: add_rules(patch, bounds_that_nothing_reaches),
        program("  c = full() {value=1000, dtype=f32, shape=()} : f32[]\n  y = min(x, c) : f32[6]",
                "x: f32[6]", "f32[6]"),
        "bounds_that_nothing_reaches",
        feeds=[{"x": np.array([1, 2, 3000, 4, 5, 6], np.float32)}],
    ),
    "integers that only real inputs have": Planted(
        lambda patch: add_rules(patch, small_numbers_are_their_own_remainder),
        program("  c = full() {value=64, dtype=i32, shape=()} : i32[]\n  y = mod(x, c) : i32[6]",
                "x: i32[6]", "i32[6]"),
        "small_numbers_are_their_own_remainder",
        feeds=[{"x": np.array([1, 2, 300, 4, 5, 6], np.int32)}],
    ),
    "two rules: exponentials": Planted(
        lambda patch: add_rules(patch, exp_of_twice, squares_are_doubles),
        program("  y = exp(x) : f32[6]", "x: f32[6]", "f32[6]"),
        "'squares_are_doubles' of 'canonicalize' (of what 'exp_of_twice'",
    ),
    "two rules: negation": Planted(
        lambda patch: add_rules(patch, neg_as_difference, zero_minus),
        program("  y = neg(x) : f32[6]", "x: f32[6]", "f32[6]"),
        "'zero_minus' of 'canonicalize' (of what 'neg_as_difference'",
    ),
    "one dynamic size": Planted(
        specialised_too_early,
        program("  w = constant @w : f32[64, 32]\n"
                "  y = matmul(x, w) {transpose_a=false, transpose_b=false} : f32[n, 32]",
                "x: f32[n, 64]", "f32[n, 32]", ["w: f32[64, 32]"]),
        "kernel",
        constants={"w": RNG.standard_normal((64, 32)).astype(np.float32)},
        sizes=(3, 5, 13),
    ),
    "a plan of memory for typical sizes": Planted(
        planned_for_typical_sizes,
        program("  w = constant @w : f32[64, 64]\n"
                "  a = matmul(x, w) {transpose_a=false, transpose_b=false} : f32[n, 64]\n"
                "  s = reduce_sum(a) {keepdims=true, axes=(0,)} : f32[1, 64]\n"
                "  b = matmul(a, w) {transpose_a=false, transpose_b=false} : f32[n, 64]\n"
                "  c = add(b, s) : f32[n, 64]\n"
                "  y = matmul(c, w) {transpose_a=false, transpose_b=false} : f32[n, 64]",
                "x: f32[n, 64]", "f32[n, 64]", ["w: f32[64, 64]"]),
        "'share-memory'",
        constants={"w": RNG.standard_normal((64, 64)).astype(np.float32) / 8},
        sizes=(300,),
    ),
    "a race in a parallel loop": Planted(
        terms_shared_by_threads,
        program("  y = reduce_sum(x) {keepdims=false, axes=(0, 1)} : f32[]", "x: f32[40, 9]", "f32[]"),
        "two iterations of the parallel loop 'r0r1' meet in 'y'",
    ),
    "a store beyond a buffer": Planted(
        beyond_the_end, program("  y = exp(x) : f32[50]", "x: f32[50]", "f32[50]"), "kernel"
    ),
}  # fmt: skip
