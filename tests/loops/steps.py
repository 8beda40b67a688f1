"""Every step of a schedule with random arguments: often ones that it accepts, sometimes any.

Each takes a schedule and a source of random numbers. What it cannot try, as the kernel has nothing of the kind, and
what the primitive refuses is a ScheduleError, which must leave the kernel as it was.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.loops.chance import Chance
from tests.loops.machine.steps import MACHINE_STEPS
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym, ge0, sym
from tilewright.ir.types import BufferType
from tilewright.loops.analysis.deps import accesses, accumulation_of
from tilewright.loops.conditions.specialize import for_other_dims, specialize
from tilewright.loops.edit import (
    block_of,
    body_of,
    enclosing_loops,
    extent_of,
    is_loop,
    kind_of,
    loops_in,
)
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.lanes.dot import Products, products_of
from tilewright.loops.order.split import TAILS

SPACES = ("reg", "scratch")
WIDE_JAM = 3
"""More iterations than this are not written out: the kernel would grow too much."""


def rank_of(buffer: Value) -> int:
    assert isinstance(buffer.type, BufferType)
    return buffer.type.rank


# Loops


def split(c: Chance) -> None:
    tail = c.r.choice(TAILS)
    factor = c.r.randint(1, 5)
    c.s.split(c.loop(), factor, tail, c.r.randint(1, factor) if c.r.random() < 0.2 else 0)


def split_evenly(c: Chance) -> None:
    most = c.r.randint(1, 6)
    c.s.split_evenly(c.loop(), most, c.r.randint(0, most))


def strided_split(c: Chance) -> None:
    parts, overlap = c.r.randint(1, 4), c.r.random() < 0.5
    loops = (o for o in loops_in(c.func.body) if overlap or extent_of(o) % parts == 0)
    c.s.strided_split(c.loop(*loops), parts, overlap)


def reorder(c: Chance) -> None:
    nest = [c.loop()]
    while inside := [op for op in body_of(nest[-1]).walk() if is_loop(op)]:
        nest.append(inside[0])
    c.s.reorder(*c.r.sample(nest, c.r.randint(1, len(nest))))


def collapse(c: Chance) -> None:
    outer = c.loop(*(o for o in loops_in(c.func.body) if [is_loop(i) for i in body_of(o).ops] == [True]))
    c.s.collapse(outer, c.one_of(body_of(outer).ops[:1], "op in the loop"))


def fuse(c: Chance) -> None:
    loops = loops_in(c.func.body)
    pairs = [(a, b) for k, a in enumerate(loops) for b in loops[k + 1 :] if a.parent is b.parent]
    alike = [(a, b) for a, b in pairs if extent_of(a) == extent_of(b)]
    suitable = alike if alike and c.r.random() < 0.8 else pairs
    c.s.fuse(*c.one_of(suitable, "loop beside another"))


def fission(c: Chance) -> None:
    ops = [op for loop in loops_in(c.func.body) for op in body_of(loop).ops]
    suitable = [op for op in ops if not op.results and op is not block_of(op).ops[-1]]
    last = c.one_of(suitable if suitable and c.r.random() < 0.8 else ops, "op in a loop")
    c.s.fission(last, c.r.choice([1, 1, 2, 3]))


def few_iterations(c: Chance) -> list[Op]:
    return [
        o for o in loops_in(c.func.body) if extent_of(o).is_const and extent_of(o).value <= WIDE_JAM
    ]  # fmt: skip


def unroll_and_jam(c: Chance) -> None:
    c.s.unroll_and_jam(c.one_of(few_iterations(c), "short loop"))


def peel(c: Chance) -> None:
    c.s.peel(c.loop(), *c.r.choice([(0, 1), (1, 0), (1, 1), (0, 2), (2, 1)]))


def split_range(c: Chance) -> None:
    loop = c.loop()
    n = extent_of(loop)
    anywhere = [sym(c.r.randint(0, 4)), n // 2, n - 1]
    c.s.split_range(loop, c.r.choice([*anywhere, *(n - extent_of(o) for o in enclosing_loops(loop))]))


def boustrophedon(c: Chance) -> None:
    loop = c.loop(*(o for o in loops_in(c.func.body) if enclosing_loops(o)))
    c.s.boustrophedon(loop, c.loop(*enclosing_loops(loop)))


def choose_before(c: Chance) -> None:
    c.s.choose_before(stay=[o for o in loops_in(c.func.body) if c.r.random() < 0.3])


def clamp(c: Chance) -> None:
    guarded = [op for op in c.ops("load") if "guard" in op.attrs]
    c.s.clamp(c.loop(*{o: None for op in guarded for o in enclosing_loops(op)}))


# Buffers


def compute_at(c: Chance) -> None:
    buffer = c.buffer(*c.buffers())
    readers = [o for op in buffer.users if op.name == "load" for o in enclosing_loops(op)]
    guard = c.r.choice(["if", "loads", "shift"])
    c.s.compute_at(buffer, c.loop(*readers), c.r.choice(SPACES), guard)


def used_in(loop: Op) -> list[Value]:
    return list({a.buffer: None for a in accesses(loop)})


def cache(c: Chance) -> None:
    first = c.loop()
    ops = block_of(first).ops
    last = c.r.choice([op for op in ops[ops.index(first) :] if op.name != "return"])
    c.s.cache(c.buffer(*used_in(first)), first, last, c.r.choice(SPACES))


def compute_in(c: Chance) -> None:
    stored = [op for op in c.ops("store") if op.operands[-1] in c.outputs()]
    read = [op.operands[0] for store in stored for op in block_of(store).ops if op.name == "load"]
    local = [v for v in read if v.op is not None]
    outputs = c.outputs()
    buffer = c.buffer(*local)
    c.s.compute_in(buffer, c.r.choice(outputs) if c.r.random() < 0.9 else c.buffer())


def preload(c: Chance) -> None:
    load = c.one_of(c.ops("load"), "load")
    around = enclosing_loops(load)
    loops = c.r.sample(around, c.r.randint(1, len(around))) if around else [c.loop()]
    c.s.preload(load, *loops)


def pack(c: Chance) -> None:
    loop = c.loop()
    buffer = c.buffer(*used_in(loop))
    loads = [op for op in body_of(loop).walk() if op.name == "load" and op.operands[0] is buffer]
    only = c.r.sample(loads, 1) if loads and c.r.random() < 0.2 else ()
    c.s.pack(buffer, loop, c.packing(rank_of(buffer)), only=only)


def pack_argument(c: Chance) -> None:
    buffer = c.r.choice(c.func.args)
    c.s.pack_argument(buffer, c.packing(rank_of(buffer)))


def merge_axes(c: Chance) -> None:
    buffer = c.buffer()
    c.s.merge_axes(buffer, c.r.randint(0, max(0, rank_of(buffer) - 2)))


def split_axis(c: Chance) -> None:
    buffer = c.buffer()
    c.s.split_axis(buffer, c.r.randrange(rank_of(buffer)), c.r.choice((1, 2, 3, 4, 5, 8)))


def pad_axis(c: Chance) -> None:
    buffer = c.buffer()
    c.s.pad_axis(buffer, c.r.randrange(rank_of(buffer)), c.r.choice((8, 16, 33, 64)))


def swap_axes(c: Chance) -> None:
    buffer = c.buffer(*c.buffers())
    c.s.swap_axes(buffer, c.r.randint(0, rank_of(buffer)), c.r.randint(0, max(0, rank_of(buffer) - 1)))


# Sums


def accumulating(c: Chance) -> list[Op]:
    return [op for op in c.ops("store") if accumulation_of(op) is not None]


def standing_still(c: Chance) -> list[tuple[Op, Op]]:
    """Loops, with an accumulating store in each, whose element does not move with the loop."""
    found = []
    for store in accumulating(c):
        moving = frozenset[Sym]().union(*(i.vars for i in store.attrs["idx"]))
        found += [(o, store) for o in enclosing_loops(store) if o.attrs["var"] not in moving]
    return found


def rfactor(c: Chance) -> None:
    loop, store = c.one_of(standing_still(c), "sum over a loop")
    c.s.rfactor(c.buffer(store.operands[-1]), loop, c.r.choice(SPACES))


def tree_reduce(c: Chance) -> None:
    loop, store = c.one_of(standing_still(c), "sum over a loop")
    c.s.tree_reduce(c.buffer(store.operands[-1]), loop, c.r.choice(SPACES))


def running_max(c: Chance) -> None:
    peaks = [(o, s) for o, s in standing_still(c) if accumulation_of(s).combine.name == "max"]
    greatest, store = c.one_of(peaks, "greatest element over a loop")
    maximum = store.operands[-1]
    if c.r.random() < 0.2:
        greatest, maximum = c.loop(), c.buffer()
    home = block_of(greatest).ops
    behind = [o for o in home[home.index(greatest) + 1 :] if is_loop(o) and extent_of(o) == extent_of(greatest)]
    weights = c.loop(*behind[:1])
    c.s.running_max(maximum, greatest, weights, behind[1:], c.r.randint(1, 4), c.r.choice(SPACES))


def factor_out(c: Chance) -> None:
    loop, store = c.one_of(standing_still(c), "sum over a loop")
    c.s.factor_out(c.buffer(store.operands[-1]), loop)


def vectorize_reduction(c: Chance) -> None:
    loop = c.loop(*(o for o, _ in standing_still(c) if not any(map(is_loop, body_of(o).walk()))))
    within = c.loop(loop, *enclosing_loops(loop)[-1:])
    c.s.vectorize_reduction(loop, c.lanes(), within, c.r.choice(TAILS))


def dot(c: Chance) -> None:
    c.s.dot(c.loop(*(o for o, _ in standing_still(c) if isinstance(products_of(o), Products))))


def guard_reduction(c: Chance) -> None:
    guarded = [
        store
        for store in accumulating(c)
        if any("guard" in op.attrs and op.name == "load" for op in block_of(store).ops)
    ]
    c.s.guard_reduction(c.loop(*(o for store in guarded for o in enclosing_loops(store))))


def pad_reduction(c: Chance) -> None:
    c.s.pad_reduction(c.loop(*(o for o in loops_in(c.func.body) if [op.name for op in body_of(o).ops] == ["if"])))


# The machine


def vectorize(c: Chance) -> None:
    loop = c.loop(*(o for o in loops_in(c.func.body) if not any(map(is_loop, body_of(o).walk()))))
    c.s.vectorize(loop, c.r.choice([None, c.lanes()]), c.r.choice(TAILS))


def prefetch(c: Chance) -> None:
    load = c.one_of(c.ops("load"), "load")
    loop = c.loop(*enclosing_loops(load))
    c.s.prefetch(load, loop, c.r.randint(1, 3), nearest=c.r.random() < 0.5)


def prefetch_run(c: Chance) -> None:
    access = c.one_of(c.ops("load", "store"), "access")
    c.s.prefetch_run(access, c.loop(*enclosing_loops(access)[:-1]))


def nontemporal(c: Chance) -> None:
    stores = c.ops("store")
    vectors = [op for op in stores if any(kind_of(o) == "vector" for o in enclosing_loops(op))]
    dims: tuple[Sym, ...] = c.func.dims
    least = sym(c.r.randint(0, 3))
    condition = ge0(c.r.choice(dims) - least) if dims else sym(1)
    c.s.nontemporal(c.one_of(vectors if vectors and c.r.random() < 0.8 else stores, "store"), condition)


# Dims


def threshold(c: Chance, extra: int) -> tuple[Sym, int]:
    """An extent that dims decide, and a value that it may reach."""
    extents = [extent_of(o) for o in loops_in(c.func.body)]
    dims: tuple[Sym, ...] = c.func.dims
    extent = c.one_of([*(e for e in extents if e.vars and e.vars <= set(dims)), *dims], "dim")
    return extent, max(0, extent.evaluate(c.env) + c.r.randint(-3, extra))


def at_least(c: Chance) -> None:
    """Specialise for what is true of the dims' values."""
    extent, least = threshold(c, 0)
    tried = c.func.clone()
    specialize(tried, extent, least)
    if any(c.env[name] < low for name, low in kernel_info(tried).specialized_for.items()):
        raise ScheduleError("the dims have other values")
    c.s.may_specialize = True
    c.s.at_least(extent, least, of_few=True)


def two_kernels(c: Chance) -> None:
    """One kernel that is specialised for some dims and another for all others, in one."""
    if kernel_info(c.func).specialized_for:
        raise ScheduleError("the dims are narrowed already")
    other, dims = c.func.clone(), c.func.dims
    specialize(c.func, *threshold(c, 3))
    for_other_dims(c.func, other, dims)


Step = Callable[[Chance], object]

STEPS: dict[str, Step] = {
    "split": split,
    "split_evenly": split_evenly,
    "strided_split": strided_split,
    "reorder": reorder,
    "collapse": collapse,
    "fuse": fuse,
    "fission": fission,
    "unroll_and_jam": unroll_and_jam,
    "peel": peel,
    "split_range": split_range,
    "boustrophedon": boustrophedon,
    "choose_before": choose_before,
    "clamp": clamp,
    "unroll": lambda c: c.s.unroll(c.loop(*few_iterations(c))),
    "compute_at": compute_at,
    "cache": cache,
    "cache_write": lambda c: c.s.cache_write(
        c.buffer(*c.outputs(), *c.buffers()), c.r.choice(SPACES) if c.r.random() < 0.5 else "scratch"
    ),
    "compute_in": compute_in,
    "preload": preload,
    "pack": pack,
    "pack_argument": pack_argument,
    "merge_axes": merge_axes,
    "split_axis": split_axis,
    "pad_axis": pad_axis,
    "swap_axes": swap_axes,
    "rfactor": rfactor,
    "tree_reduce": tree_reduce,
    "factor_out": factor_out,
    "running_max": running_max,
    "vectorize_reduction": vectorize_reduction,
    "dot": dot,
    "guard_reduction": guard_reduction,
    "pad_reduction": pad_reduction,
    "vectorize": vectorize,
    "prefetch": prefetch,
    "prefetch_run": prefetch_run,
    "nontemporal": nontemporal,
    "serial": lambda c: c.s.serial(c.loop(*(o for o in loops_in(c.func.body) if kind_of(o) == "parallel"))),
    "simplify": lambda c: c.s.simplify(c.loop() if c.r.random() < 0.4 else None),
    "at_least": at_least,
    "two_kernels": two_kernels,
    **MACHINE_STEPS,
}

RARE = frozenset(
    {"unroll", "unroll_and_jam", "peel", "split_range", "parallel", "vectorize", "two_kernels", "serial"}
    | MACHINE_STEPS.keys()
)
"""After some of these most steps are refused, and others make the kernel larger."""

WEIGHTS = [0.35 if name in RARE else 1.0 for name in STEPS]
