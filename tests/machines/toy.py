"""The toy: a machine of two cores of four threads, with a scratchpad and a matrix unit in each core.

All that the compiler must know of it stands here: facts, an intrinsic described by what it computes, and how kernels
are scheduled for it. `assembler` writes its programs, `simulator` runs them. No file of the package knows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.machines.assembler import Assembler
from tests.machines.simulator import executor
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.expand import Expand
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir.core import Module, Op
from tilewright.ir.diag import Remark, ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.verify import Spec
from tilewright.loops.edit import body_of, extent_of
from tilewright.loops.machine.rules import machine_spec
from tilewright.loops.stages import Lowered
from tilewright.options import Options
from tilewright.passes import Pass
from tilewright.plugins import Plugin
from tilewright.runtime.artifact import Artifact, TargetInfo
from tilewright.runtime.executor import Executor
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.machine import GLOBAL, Intrinsic, Level, Machine, Memory, Route

# Facts

MMA = Intrinsic(
    "mma",
    """
    kernel @mma(a: pad f32[4, 4] strides(sa, 1), b: pad f32[4, 4] strides(sb, 1), c: acc f32[4, 4] strides(sc, 1))
        dims(sa, sb, sc) with {outputs=1} {
      for i in 0..4 {
        for j in 0..4 {
          for l in 0..4 {
            c[i, j] += a[i, l] * b[l, j]
          }
        }
      }
      return
    }
    """,
    queue="tensor",
    limits=("sa % 4 == 0", "sb % 4 == 0"),
    cycles="4",
)
LOAD = Route("global", "pad", "load", unit=16, cycles=8)
STORE = Route("pad", "global", "store", unit=16, cycles=8)
THREADS, ROWS, SIDE = 4, 16, 4


@dataclass(frozen=True)
class Toy(Machine):
    """The kind of machine; there could be larger ones."""

    kind: ClassVar[str] = "toy"


TOY = Toy(
    "toy",
    memories=(GLOBAL, Memory("pad", 2048, 64, "core"), Memory("acc", 1024, 64, "core")),
    levels=(Level("core", 2), Level("thread", THREADS)),
    intrinsics=(MMA,),
    routes=(LOAD, STORE),
)

# Strategies


@dataclass(frozen=True)
class Products(Strategy):
    """Matrix products with elementwise work on the result: a core makes 16 rows, each of its threads 4 of them.

    The operands of the next step are copied while the matrix unit multiplies those of this one. `without` names a step
    that is left out, and `depth` says how much of the sums is one step, for tests of what the verifier then says.
    """

    name: ClassVar[str] = "toy_products"
    label: ClassVar[str] = "matmul"
    without: str = ""
    depth: int = SIDE

    def claims(self, op: Op, info: OpInfo) -> bool:
        return op.name == "matmul"

    def join(self, join: Join) -> Match | NoMatch | None:
        if not isinstance(join.producer.strategy, Products) or join.info.kind is not OpClass.ELEMENTWISE:
            return None
        return Match(join.consumer.domain) if join.is_only_reader() else NoMatch("the product is needed elsewhere too")

    def schedule(self, s: Schedule, lowered: Lowered, target: Any) -> None:
        product, *rest = lowered.stages
        if len(rest) > 1 or len(product.axes) != 2 or len(product.reduce) != 1 or product.init is None:
            raise ScheduleError("it is no product of two matrices with one elementwise result")
        sizes = [extent_of(o) for o in (*product.axes, *product.reduce)]
        if any(n % k != 0 for n, k in zip(sizes, (ROWS, SIDE, self.depth), strict=True)):
            raise ScheduleError(f"{sizes} are no multiples of the tile {[ROWS, SIDE, self.depth]}")
        if rest:
            (i, j), sums = rest[0].axes, product.buffer
        else:
            made = s.cache_write(product.buffer, space="acc")
            (i, j), sums = made.drain, made.buffer
        core = s.split(i, ROWS)
        thread = s.split(core.inner, ROWS // THREADS)
        tile = s.split(j, SIDE)
        s.reorder(core.outer, tile.outer, thread.outer, thread.inner, tile.inner)
        fused = s.compute_at(sums, tile.outer, space="acc")
        self.multiply(s, fused.nests[0])
        result = s.cache(s.func.args[-1], thread.outer, space="pad")
        s.parallel(thread.outer, "thread")
        s.barrier(thread.outer, "thread")
        store = s.async_copy(result.drain[0], STORE)
        s.wait(store, store, "after")
        s.parallel(core.outer, "core")

    def multiply(self, s: Schedule, rows: Op) -> None:
        """The sums of a core's tile, by its threads: the nest sets them to zero, and adds all products."""
        columns = body_of(rows).ops[0]
        parts = s.fission(body_of(columns).ops[1], 2)
        zeros, sums = parts.before, parts.after
        s.parallel(s.split(zeros[0], ROWS // THREADS).outer, "thread")
        step = s.split(body_of(sums[1]).ops[0], self.depth)
        four = s.split(step.inner, SIDE)
        thread = s.split(sums[0], ROWS // THREADS)
        s.reorder(step.outer, thread.outer, four.outer, thread.inner, sums[1], four.inner)
        loads = [op for op in body_of(four.inner).ops if op.name == "load"]
        left, right = (op.operands[0] for op in loads if op.operands[0].op is None)
        copies = [s.async_copy(s.cache(v, thread.outer, space="pad").fill[0], LOAD) for v in (left, right)]
        s.parallel(thread.outer, "thread")
        mma = s.tensorize(thread.inner, MMA)
        s.wait(mma, mma, "after")
        if self.without != "wait":
            s.wait(copies[1], thread.outer)
        if self.without != "barrier":
            s.barrier(thread.outer, "thread", "before")
            s.barrier(thread.outer, "thread", "after")
        if self.without != "wait":
            s.pipeline(step.outer)


class Elements(Strategy):
    """All else: one nest with an iteration for each core and thread, or a kernel that one thread does in order."""

    name = "toy_elements"

    def claims(self, op: Op, info: OpInfo) -> bool:
        return True

    def match(self, region: FusedRegion) -> Match:
        return Match()

    def schedule(self, s: Schedule, lowered: Lowered, target: Any) -> None:
        for buffer in [op.result for op in s.func.body.walk() if op.name == "alloc"]:
            s.set_space(buffer, "pad")
        nests = [op for op in s.func.body.ops if op.name == "for"]
        if len(nests) == len(lowered.stages) == 1:
            inner = [op for op in body_of(nests[0]).ops if op.name == "for"]
            if len(inner) == len(body_of(nests[0]).ops) == 1 and lowered.stages[0].kind == "map":
                s.parallel(inner[0], "thread")
            s.parallel(nests[0], "core")


# The back end


@dataclass(frozen=True)
class ToyBackEnd:
    """Strategies, text and what runs it."""

    products: Products = Products()
    name: str = "toy"

    def check(self, machine: Toy, options: Options) -> None:
        """There is nothing that it cannot do."""

    def passes(self, machine: Toy, options: Options) -> list[Pass]:
        return [Canonicalize(), Fold(), Canonicalize(), Expand(), Canonicalize(), Fold()]

    def strategies(self, machine: Toy) -> Sequence[Strategy]:
        return (self.products, Elements())

    def spec(self, machine: Toy) -> Spec:
        return machine_spec(machine)

    def arrange(self, module: Module, machine: Toy, remarks: list[Remark]) -> None:
        """Kernels run one after the other."""

    def code(self, machine: Toy, options: Options) -> Assembler:
        return Assembler(machine)

    def target(self, machine: Toy) -> TargetInfo:
        return TargetInfo("", machine.name, kind=self.name)

    def executor(self, artifact: Artifact) -> Executor:
        return executor(artifact)


PLUGIN = Plugin("toy machine", machines=(TOY,), back_ends=(ToyBackEnd(),))

