"""The LLVM IR text of one kernel of the loops level: loops and lanes as the program says, nothing decided
here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from tilewright.codegen.cpu.families import Families, Shared, parameter
from tilewright.codegen.cpu.kernel import scalars
from tilewright.codegen.cpu.kernel.checks import DIVISION_BY_ZERO, KernelChecks, report_where
from tilewright.codegen.cpu.kernel.choices import ChosenLoads
from tilewright.codegen.cpu.kernel.convert import clamped, convert, packed_as, reinterpret
from tilewright.codegen.cpu.kernel.dots import groups_of, instruction_for, joined, multiply_in_groups
from tilewright.codegen.cpu.kernel.functions import any_lane
from tilewright.codegen.cpu.kernel.indices import Indices, Iota, Number
from tilewright.codegen.cpu.kernel.integers import has_constant_divisor, safe_divisor
from tilewright.codegen.cpu.kernel.lanes import literal, memory_type, vector
from tilewright.codegen.cpu.kernel.memory import Buffer, Guard, MemoryAccess, from_memory, stored_as
from tilewright.codegen.cpu.kernel.scalars import apply_scalar, finite_quotient, horizontal
from tilewright.codegen.cpu.kernel.text import Reg, Text
from tilewright.codegen.cpu.program.parallel_tasks import fork, task_ir
from tilewright.codegen.program import Check, KernelText
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.diag import InternalError
from tilewright.ir.scalar import SCALAR_OPS, scalar_operation
from tilewright.ir.sym import Sym, affine_in, sym
from tilewright.ir.types import BufferType, product
from tilewright.loops.analysis.far import may_be_far
from tilewright.loops.analysis.whole_numbers import Limited, has_finite_quotient, limited_of
from tilewright.loops.edit import address_of, enclosing_loops, holds_parallel, loop_var, ranges_at
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.lanes.dot import products_of
from tilewright.loops.lanes.vectorizable import segments, why_serial
from tilewright.loops.spec import parallel_extent, versions_of
from tilewright.loops.storage.inplace import copied
from tilewright.program.memory.scratch import SCRATCH_ALIGNMENT, bytes_in_scratch
from tilewright.target.machine import REGISTERS
from tilewright.target.target import Target

_ALWAYS = Guard()


_SLICE = ("ptr %scratch", "i64 %begin", "i64 %end")


def kernel_ir(
    func: Func,
    target: Target,
    *,
    keeps_denormals: bool = False,
    has_floats: bool = True,
    families: Families | None = None,
) -> KernelText:
    """The text of kernel `func`; with `keeps_denormals` no instruction takes these as zero by itself, without
    `has_floats` none of integers computes with floats. Its parameters: state, buffers, dims, scratch, and the slice of
    the parallel loop; one that forks has the bytes of scratch of a worker and the thread pool instead. With `families`
    it may be code of an earlier kernel, which takes the numbers in which both differ after its dims."""
    return Kernel(func, target, keeps_denormals, has_floats).run(families)


class Kernel:
    """The state of one translation: registers of values, memory of buffers, and the lanes of the vector
    loop."""

    def __init__(self, func: Func, target: Target, keeps_denormals: bool, has_floats: bool) -> None:
        self.func = func
        self.target = target
        self.keeps_denormals = keeps_denormals
        self.has_pairs = bool(kernel_info(func).inplace)
        rounds = target.rounds_to_bf16 and not (keeps_denormals and target.arch == "x86_64")
        self.text = Text(target.scale, fuses=target.has_fma, rounds_to_bf16=rounds, has_floats=has_floats)
        self.indices = Indices(self.text, mask_registers=target.has_mask_registers)
        self.memory = MemoryAccess(self.text, self.indices, target)
        self.checks = KernelChecks()
        self.values: dict[Value, Reg] = {}
        self.buffers: dict[Value, Buffer] = {}
        self.addresses: dict[Op, Sym] = {}
        self.choices = ChosenLoads(self.indices, self.memory, self.buffers, self._address)
        self.vectorizable: dict[Op, bool] = {}
        self.lanes = 1
        self.mask: Reg | None = None
        self.scratch = sym(0)
        self.scratch_starts: dict[Op, Sym] = {}
        self.parallel = parallel_extent(func)
        self.forks = self.parallel is None and any(map(holds_parallel, func.body.ops))
        self.versions = versions_of(func.body)
        self.parts: list[str] = []
        self.dots: dict[tuple[Op, int], str] = {}

    def run(self, families: Families | None) -> KernelText:
        name, parameters = self.func.name, self._parameters()
        self._block(self.func.body)
        attributes = f"attributes #0 = {{ nounwind {self.target.function_attributes} }}\n"
        header = f'target triple = "{self.target.triple}"\n{self.text.module()}'
        shared = Shared("\n".join(self._lines()))
        little = kernel_info(self.func).little
        if self.forks:
            body = _function(name, [*parameters, "ptr %scratch", "i64 %stride", "ptr %pool"], shared.body)
            tasks = "".join(self.parts)
        else:
            if families is not None:
                rest = "".join((header, *parameters, attributes, "quickly" if little else ""))
                shared = families.shared(shared.body, rest)
            parameters += [f"i64 {parameter(k)}" for k in range(len(shared.numbers))]
            body = _function(name, [*parameters, *_SLICE], shared.body)
            tasks = task_ir(name, len(self.func.args), len(self._dims) + len(shared.numbers))
        text = header + body + tasks + attributes
        checks = tuple(self.checks.found)
        return KernelText(
            name, text, checks, self.scratch, self.parallel, self.forks, self.dots, shared.numbers, little
        )

    # Interface

    @property
    def _dims(self) -> tuple[Sym, ...]:
        return self.func.dims

    def _lines(self) -> list[str]:
        """What was emitted, as the lines of a function."""
        self.text.finish()
        return [*self.text.allocas, *self.text.lines, *self._fence(), "  ret void"]

    def _fence(self) -> list[str]:
        """What lets other threads see stores past the caches, which x86-64 does not order with others."""
        fenced = self.memory.streamed and self.target.arch == "x86_64"
        return ["  call void @llvm.x86.sse.sfence()"] if fenced else []

    def _parameters(self) -> list[str]:
        """State, buffers and dims, which get their values."""
        shared = {k for pair in kernel_info(self.func).inplace for k in pair}
        parameters = ["ptr %state"]
        for k, arg in enumerate(self.func.args):
            parameters.append(f"ptr {'' if k in shared else 'noalias '}%b{k}")
            fixed = k not in shared and k < len(self.func.args) - kernel_info(self.func).outputs
            self.buffers[arg] = Buffer(f"%b{k}", arg.buffer, fixed=fixed)
        for k, dim in enumerate(self._dims):
            parameters.append(f"i64 %d{k}")
            self.indices.bind(dim, self.indices.integer(f"%d{k}"))
        return parameters

    # Parts of a kernel that threads share

    def _fork(self, loop: Op) -> None:
        """Make a function of a parallel loop inside of others, and call it through the thread pool."""
        self.text.finish()
        symbol = f"{self.func.name}.part{len(self.parts) // 2}"
        around = [loop_var(o) for o in enclosing_loops(loop)]
        self.parts += self._part(symbol, loop, around)
        numbers = [self.indices.uniform(v) for v in (*self._dims, *around)]
        buffers = [f"%b{k}" for k in range(len(self.func.args))]
        extent = self.indices.uniform(loop.attrs["extent"])
        fork(self.text, symbol, buffers, numbers, extent, self._backwards(loop))

    def _part(self, symbol: str, loop: Op, around: Sequence[Sym]) -> list[str]:
        """The functions of a part: scratch memory from outside of the loop is the first worker's, whose kernel it is;
        what is allocated in the loop is each worker's own."""
        part = Kernel(self.func, self.target, self.keeps_denormals, self.text.has_floats)
        part.forks = False  # loops of other levels in it are this thread's own
        part.text.share(self.text)
        part.checks, part.dots = self.checks, self.dots
        part.scratch = self.scratch
        parameters = part._parameters()
        for k, v in enumerate(around):
            parameters.append(f"i64 %around{k}")
            part.indices.bind(v, part.indices.integer(f"%around{k}"))
        for op, start in self.scratch_starts.items():
            part.buffers[op.result] = replace(self.buffers[op.result], pointer=part._at("%first", start))
        part._loop(loop, "%begin", "%end", at_least_once=False)
        self.scratch = part.scratch
        task = task_ir(symbol, len(self.func.args), len(self._dims) + len(around), sees_first=True)
        return [_function(symbol, [*parameters, "ptr %first", *_SLICE], "\n".join(part._lines())), task]

    # Statements

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._operate(op)

    def _operate(self, op: Op) -> None:
        handler = _HANDLERS.get(op.name)
        if handler is not None:
            getattr(self, handler)(op)
        elif op.name in SCALAR_OPS:
            self._scalar(op)
        else:
            raise InternalError(f"'{op.name}' is not an op of the loops level", where=str(op.loc))

    def _return(self, op: Op) -> None:
        pass

    def _ordered(self, op: Op) -> None:
        """Nobody waits: a thread does its runs in order, and all of a loop of an inner level."""

    def _run(self, op: Op) -> None:
        self._block(op.blocks[0])

    def _for(self, op: Op) -> None:
        may_copy = self.has_pairs and self.lanes == 1 and not enclosing_loops(op)
        pair = copied(self.func, op) if may_copy else None
        if pair is None:
            self._iterate(op)
            return
        source, target = pair
        apart = self.text.emit(f"icmp ne ptr %b{source}, %b{target}")
        with self._only_where(Reg(apart, dt.bool_, 1, self.text)):
            self._iterate(op)

    def _iterate(self, op: Op) -> None:
        kind, extent = op.attrs["kind"], op.attrs["extent"]
        if kind == "parallel" and self.forks:
            self._fork(op)
        elif kind == "parallel" and self.parallel is not None and op.parent in self.versions:
            self._loop(op, "%begin", "%end", at_least_once=False)
        elif kind == "dot" and self._dot(op):
            pass
        elif kind in ("unroll", "dot") and extent.is_const:
            if kind == "dot":
                self.dots[op, self.lanes] = ""
            for k in range(extent.value):
                with self.indices.scope(is_block=False):
                    self.indices.bind(op.attrs["var"], k)
                    self._block(op.blocks[0])
        elif kind == "vector" and extent.is_const and self.lanes == 1 and self._in_lanes(op):
            self._vector_loop(op, extent.value)
        elif extent.is_const and extent.value <= 1:
            self._few(op, extent.value)
        else:
            self._loop(op, "0", self.indices.uniform(extent), at_least_once=extent.interval[0] >= 1)

    def _in_lanes(self, op: Op) -> bool:
        """Whether a vector loop runs in lanes; found out once for all its unrolled copies."""
        found = self.vectorizable.get(op)
        if found is None:
            found = self.vectorizable[op] = why_serial(op) is None
        return found

    def _dot(self, op: Op) -> bool:
        """Add the products of all iterations by the machine's instruction for it; False where there is none."""
        found, group = products_of(op), op.attrs["extent"].value
        if isinstance(found, str) or self.lanes == 1 or self.mask is not None:
            return False
        loads = (found.left, found.right)
        left, right = (self.buffers[load.operands[0]].type.dtype for load in loads)
        sums = self.buffers[found.store.operands[1]].type.dtype
        instruction = instruction_for(self.target, left, right, group, sums, self.lanes)
        if instruction is None or (self.keeps_denormals and sums.is_float):
            return False
        operands = []
        for load in loads:
            groups = self._groups(load, op.attrs["var"], group)
            if groups is None:
                return False
            operands.append(groups)
        with self.indices.scope(is_block=False):
            self.indices.bind(op.attrs["var"], 0)
            self._load(found.sums)
            before = self.values[found.sums.result].splat(self.lanes)
            self.values[found.store.operands[0]] = multiply_in_groups(instruction, before, *operands)
            self._store(found.store)
        self.dots.setdefault((op, self.lanes), instruction.name)
        return True

    def _groups(self, load: Op, v: Sym, group: int) -> Reg | None:
        """What each lane reads in the iterations of the loop of variable `v`: its groups in one register. None for
        accesses that are not served."""
        buffer, other = self.buffers[load.operands[0]], load.attrs.get("other", 0)
        address = self._address(load)
        step, _ = affine_in(address, v) or (None, None)
        if step is None or not step.is_const:
            return None
        if any(v in c.vars for c in load.attrs.get("guard", ())):
            return self._vectors(load, v, group) if step == self.lanes else None
        with self.indices.scope(is_block=False):
            self.indices.bind(v, 0)
            guard = self._guard(load)
            if guard.lanes is not None or guard.never:
                return None
            return self.memory.load_groups(buffer, address, group, step.value, self.lanes, guard, other)

    def _vectors(self, load: Op, v: Sym, group: int) -> Reg:
        """Groups of vectors, each of which is read where its own conditions hold."""
        found = []
        for k in range(group):
            with self.indices.scope(is_block=False):
                self.indices.bind(v, k)
                self._load(load)
                found.append(self.values[load.result].splat(self.lanes))
        return groups_of(joined(found), group)

    def _few(self, op: Op, extent: int) -> None:
        if extent == 1:
            with self.indices.scope(is_block=False):
                self.indices.bind(op.attrs["var"], 0)
                self._block(op.blocks[0])

    def _loop(self, op: Op, first: str, end: str, *, at_least_once: bool, step: str = "1") -> None:
        """A loop that tests at its end, after a test before its start where it may be empty."""
        text = self.text
        # LLVM's passes keep names of blocks, which tell of machine code what loop it is
        body, done = text.label(f"loop.{op.attrs['var']}."), text.label("done")
        if at_least_once:
            text.jump(body)
        else:
            text.branch(text.emit(f"icmp slt i64 {first}, {end}"), body, done)
        before = text.block
        text.start(body)
        counter, following = text.name(), text.name()
        hole = len(text.lines)
        text.lines.append("")
        with self.indices.scope(is_block=True):
            self.indices.bind(op.attrs["var"], self.indices.integer(self._in_turn(op, counter, first, end)))
            self._block(op.blocks[0])
        text.finish()
        text.line(f"{following} = add nuw nsw i64 {counter}, {step}")
        more = text.emit(f"icmp slt i64 {following}, {end}")
        text.lines[hole] = f"  {counter} = phi i64 [ {first}, %{before} ], [ {following}, %{text.block} ]"
        text.branch(more, body, done)
        text.start(done)

    def _in_turn(self, op: Op, counter: str, first: str, end: str) -> str:
        """The variable of a loop whose iterations so far are `counter` - `first`."""
        backwards = self._backwards(op)
        if backwards is None:
            return counter
        last = self.text.emit(f"add nsw i64 {first}, {end}")
        left = self.text.emit(f"sub nsw i64 {last}, {counter}")
        mirrored = self.text.emit(f"sub nsw i64 {left}, 1")
        return self.text.emit(f"select i1 {backwards}, i64 {mirrored}, i64 {counter}")

    def _backwards(self, op: Op) -> str | None:
        """Whether an alternating loop runs from its last iteration now; None for other loops."""
        if "boustrophedon" not in op.attrs:
            return None
        turn = self.indices.uniform(op.attrs["boustrophedon"])
        return self.text.emit(f"trunc i64 {turn} to i1")

    def _vector_loop(self, op: Op, extent: int) -> None:
        for base, lanes in segments(extent):
            with self.indices.scope(is_block=False):
                self.indices.bind(op.attrs["var"], base if lanes == 1 else Iota(base, lanes))
                self.lanes = lanes
                self._block(op.blocks[0])
        self.lanes = 1

    # Conditions

    def _if(self, op: Op) -> None:
        uniform, varying = self._conditions(op, [self.values[v] for v in op.operands])
        if uniform.known is False:
            return
        with self._only_where(uniform), self._masked(varying):
            self._block(op.blocks[0])

    def _conditions(self, op: Op, others: Sequence[Reg] = ()) -> tuple[Reg, list[Reg]]:
        """The guard of `op` and others: what is the same for all lanes, and what differs between them."""
        flags = [*(self.indices.condition(c) for c in op.attrs.get("guard", ())), *others]
        return self.indices.combined(f for f in flags if f.lanes == 1), [f for f in flags if f.lanes > 1]

    @contextmanager
    def _only_where(self, condition: Reg) -> Iterator[None]:
        """What is emitted inside runs only where a condition of one lane holds."""
        if condition.known:
            yield
            return
        then, after = self.text.label("then"), self.text.label("after")
        self.text.branch(condition.name, then, after)
        self.text.start(then)
        with self.indices.scope(is_block=True):
            yield
        self.text.jump(after)
        self.text.start(after)

    @contextmanager
    def _masked(self, flags: Sequence[Reg]) -> Iterator[None]:
        """What is emitted inside happens only in the lanes where the conditions hold, and not at all if in
        none."""
        if not flags:
            yield
            return
        outer = self.mask
        self.mask = self._lane_mask(flags)
        with self._only_where(any_lane(self.mask)):
            yield
        self.mask = outer

    def _lane_mask(self, flags: Sequence[Reg]) -> Reg:
        """The lanes in which the conditions, which differ between lanes, and the current mask hold."""
        return self.indices.combined([*([] if self.mask is None else [self.mask]), *flags])

    def _guard(self, op: Op) -> Guard:
        """When a load or store happens, from its own guard and the lanes that are on."""
        if "guard" not in op.attrs:
            return _ALWAYS if self.mask is None else Guard(None, self.mask)
        uniform, varying = self._conditions(op)
        mask = self._lane_mask(varying) if varying else self.mask
        return Guard(None if uniform.known else uniform, mask)

    # Memory

    def _alloc(self, op: Op) -> None:
        type = op.result.buffer
        if type.space != REGISTERS.name:  # memories of other machines are scratch memory here
            self.buffers[op.result] = Buffer(self._scratch(op, type), type)
            return
        if not type.size.is_const:
            raise InternalError(f"a register array needs a constant size, not {type}", where=str(op.loc))
        element = memory_type(type.dtype)
        pointer = self.text.alloca(f"[{type.size.value * self.lanes} x {element}]", SCRATCH_ALIGNMENT)
        self.buffers[op.result] = Buffer(pointer, type, self.lanes)

    def _scratch(self, op: Op, type: BufferType) -> str:
        """A pointer to the op's own part of the worker's scratch memory."""
        start = self.scratch_starts.get(op)
        if start is None:
            start = self.scratch_starts[op] = self.scratch
            self.scratch = start + bytes_in_scratch(type)
        return self._at("%scratch", start)

    def _at(self, base: str, start: Sym) -> str:
        return self.text.emit(f"getelementptr i8, ptr {base}, i64 {self.indices.uniform(start)}")

    def _address(self, op: Op) -> Sym:
        found = self.addresses.get(op)
        if found is None:
            found = self.addresses[op] = address_of(op)
        return found

    def _load(self, op: Op) -> None:
        if self.choices.begin(op, self.lanes, masked=self.mask is not None):
            return
        (source,) = op.operands
        buffer = self.buffers[source]
        guard = self._guard(op)
        if guard.never:
            skipped = literal(op.result.scalar.dtype, op.attrs.get("other", 0))
            self.values[op.result] = self.text.named(skipped, buffer.type.dtype)
            return
        if guard.lanes is not None and "guard" not in op.attrs and self._reads_one(op, buffer):
            guard = replace(
                guard, lanes=None
            )  # inside of a masked `if`, which is skipped where no lane is on
        guard = self._near(guard, op, buffer)
        other = op.attrs.get("other", 0)
        self.values[op.result] = self.memory.load(buffer, self._address(op), self.lanes, guard, other)

    def _near(self, guard: Guard, op: Op, buffer: Buffer) -> Guard:
        """The guard of a load that also says for all lanes whether any is on, where the address may be far from the
        buffer if none is; a masked `if` is skipped then."""
        if guard.lanes is None or "guard" not in op.attrs:
            return guard
        if not may_be_far(buffer.type, self._address(op), ranges_at(op)):
            return guard
        uniform = [] if guard.uniform is None else [guard.uniform]
        return replace(guard, uniform=self.indices.combined([*uniform, any_lane(guard.lanes)]))

    def _reads_one(self, op: Op, buffer: Buffer) -> bool:
        return buffer.private == 1 and self.indices.lanes_of(self._address(op)) == 1

    def _store(self, op: Op) -> None:
        value, target = op.operands
        buffer = self.buffers[target]
        guard = self._guard(op)
        if guard.never:
            return
        address = self._address(op)
        with nullcontext() if guard.uniform is None else self._only_where(guard.uniform):
            past = self.indices.condition(op.attrs["nontemporal"]) if "nontemporal" in op.attrs else None
            self.memory.store(buffer, address, self.values[value], self.lanes, guard, past)

    def _prefetch(self, op: Op) -> None:
        buffer = self.buffers[op.operands[0]]
        self.memory.prefetch(buffer, self._address(op), nearest="nearest" in op.attrs)

    # Scalars

    def _const(self, op: Op) -> None:
        if op.result not in self.values:  # which an unrolled loop asks for in each iteration
            dtype = op.result.scalar.dtype
            self.values[op.result] = self.text.named(literal(dtype, op.attrs["value"]), dtype)

    def _index(self, op: Op) -> None:
        number = self.indices.number(op.attrs["expr"])
        dtype = op.result.scalar.dtype
        if isinstance(number, int):
            self.values[op.result] = self.text.named(literal(dtype, number), dtype)
        else:
            self.values[op.result] = convert(number, dtype)

    def _cast(self, op: Op) -> None:
        if (limited := limited_of(op)) is not None:
            self._limited(op, limited)
            return
        found = packed_as(op, self.values, self.indices, self.target)
        self.values[op.result] = found or convert(self.values[op.operands[0]], op.result.scalar.dtype)

    def _limited(self, op: Op, limited: Limited) -> None:
        x = self.values[limited.value]
        self.values[op.result] = clamped(x, limited.low, limited.high, limited.nan)

    def _bitcast(self, op: Op) -> None:
        self.values[op.result] = reinterpret(self.values[op.operands[0]], op.result.scalar.dtype)

    def _bind(self, op: Op) -> None:
        data = self.values[op.operands[0]]
        if data.dtype is dt.u8:
            self.indices.bind_byte(op.attrs["var"], data)
        value = convert(data, dt.i64)
        number: Number = int(value.name) if value.is_literal and value.lanes == 1 else value
        self.indices.bind(op.attrs["var"], number)

    def _quotient(self, op: Op) -> None:
        if has_finite_quotient(op):
            self.values[op.result] = finite_quotient(*self._in_as_many_lanes(op.operands))
        else:
            self._scalar(op)

    def _add(self, op: Op) -> None:
        masks = self.mask is not None and op.result.scalar.dtype.is_float
        self._scalar(op, masked=masks and scalars.is_kept_in_registers(op))

    def _scalar(self, op: Op, *, masked: bool = False) -> None:
        """A scalar operation; `masked` gives the freedom of `scalars.masked_sum`."""
        if (limited := limited_of(op)) is not None:
            self._limited(op, limited)
            return
        operands = self._in_as_many_lanes(op.operands)
        dtype = op.result.scalar.dtype
        fuses = self.text.fuses or self.target.may_fuse
        if fuses and (product := scalars.product_in(op)) is not None:
            *factors, other = self._in_as_many_lanes([*product.op.operands, op.operands[1 - product.operand]])
            self.values[op.result] = scalars.fused(op, product.operand, factors, other, masked=masked)
            return
        if masked:
            self.values[op.result] = scalars.masked_sum(*operands)
            return
        divides = scalar_operation(op).divides and operands[0].dtype.is_int
        if not divides or (operands[1].is_literal and has_constant_divisor(op)):
            self.values[op.result] = apply_scalar(op.name, operands, dtype)
            return
        zero = operands[1].equals(0)
        operands[1] = safe_divisor(operands[1], zero)
        self._fail_where(zero, Check("ExecutionError", DIVISION_BY_ZERO))
        found = apply_scalar(op.name, operands, dtype)
        self.values[op.result] = zero.select(found.like(0), found)

    def _in_as_many_lanes(self, values: Sequence[Value]) -> list[Reg]:  # as the widest of them has
        found = [self.values[v] for v in values]
        lanes = max([x.lanes for x in found])
        return [x if x.lanes == lanes else self.indices.in_all_lanes(x, lanes) for x in found]

    def _select(self, op: Op) -> None:
        if self.choices.is_inner(op):
            return
        if (chosen := self.choices.chosen(op, self.lanes)) is not None:
            self.values[op.result] = chosen
        else:
            self._scalar(op)

    def _check(self, op: Op) -> None:
        self._fail_where(~self.values[op.operands[0]], Check(op.attrs["kind"], op.attrs["message"]))

    def _fail_where(self, failed: Reg, check: Check) -> None:
        """Report `check` if it failed in a lane that is on."""
        if failed.lanes > 1 and self.mask is not None:
            failed = failed & self.mask
        report_where(self.text, any_lane(failed).name, self.checks.number(check))

    def _lanes_reduce(self, op: Op) -> None:
        buffer = self.buffers[op.operands[0]]
        count = product(buffer.type.shape).value * buffer.private
        element = buffer.type.dtype
        stored = vector(memory_type(element), count)
        name = self.text.emit(f"load {stored}, ptr {buffer.pointer}, align {element.bytes}")
        lanes = from_memory(self.text.named(name, stored_as(element), count), element)
        self.values[op.result] = horizontal(op.attrs["combine"], lanes)


def _function(symbol: str, parameters: Sequence[str], body: str) -> str:
    return f"define void @{symbol}({', '.join(parameters)}) noinline #0 {{\nentry:\n{body}\n}}\n"


_HANDLERS = {
    **{
        name: f"_{name}"
        for name in ("return", "for", "if", "alloc", "load", "store", "const", "index", "cast", "bitcast", "bind",
                     "add", "quotient", "select", "check", "prefetch", "lanes_reduce", "run")
    },
    "level": "_cast",
    "wait": "_ordered",
    "barrier": "_ordered",
}  # fmt: skip
