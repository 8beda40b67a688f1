"""What a program does between its parts without the host, as LLVM IR: the blocks of its `native` ops.

    i32 tw_steps_K(ptr frame)           run the block of op K
    void tw_steps_clear(ptr frame)      let go of all values
    void tw_steps_free(ptr frame)       free all memory but blocks that somebody refers to
    void tw_steps_release(ptr block)    give a block of memory back

The program's suffix ends their names. A frame is laid out as `runtime/staged/frame.py` says. A value of a loop that a
trip computes is written over the state that it is computed from, where the kernel allows that and nobody else needs it,
and else where the one before last was: such states are in two blocks in turn. Nothing is copied but references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tilewright.codegen.cpu.program.function import ProgramFunction
from tilewright.codegen.cpu.program.step_memory import HEADER, step_memory_ir
from tilewright.codegen.program import Program
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import ANY_DIM
from tilewright.ops.define.staged import LOOP
from tilewright.program.lifetimes import Frees, frees_in, makes
from tilewright.program.memory.places import OVERWRITES
from tilewright.program.native import native_ops
from tilewright.program.sizes import Extent, Sizes, sizes_of
from tilewright.program.split import part_functions
from tilewright.runtime.staged import frame
from tilewright.target.target import Target

Dims = tuple[int | str, ...]


@dataclass(frozen=True)
class _Part:
    """What is known of a part: its number, the shapes of inputs and outputs (numbers, or names), the bytes of an
    element of each output, how many dims its code has and, where all is fixed, the bytes of arena and scratch memory.
    `overwrites` are numbers of inputs and of the outputs that may take their memory."""

    number: int
    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    element_bytes: tuple[int, ...]
    dims_count: int
    memory: tuple[int, int] | None
    overwrites: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, number: int, program: Program) -> _Part:
        main = program.main
        memory = (program.arena.value, program.scratch.value) if program.is_static else None
        return cls(
            number, tuple(_dims(v) for v in main.args), tuple(_dims(v) for v in main.returns),
            tuple(_bits(v) // 8 for v in main.returns), len(program.dims), memory, main.attrs[OVERWRITES],
        )  # fmt: skip


def _dims(value: Value) -> Dims:
    def dim(d: Sym) -> int | str:
        return d.value if d.is_const else "?" if d is ANY_DIM else str(d)

    return tuple(map(dim, value.tensor.shape))


def _bits(value: Value) -> int:
    """Of an element, in memory."""
    return 8 * int(value.tensor.dtype.storage.itemsize)


def native_blocks_ir(program: Program, parts: Sequence[Program], target: Target) -> list[str]:
    """The functions of all `native` ops of a program that calls these parts."""
    own = _Own(program, parts)
    texts = ["@tw_true = internal constant i8 1", step_memory_ir(target.triple)]
    texts += [_Block(own).function(number, op.blocks[0]) for number, op in enumerate(own.natives)]
    tidying = {"release": _Block.release, "clear": _Block.clear, "free": _Block.free_all}
    return [*texts, *(_Block(own).tidying(name, write) for name, write in tidying.items())]


class _Own:
    """What is known of a program."""

    def __init__(self, program: Program, parts: Sequence[Program]) -> None:
        self.program = program
        self.natives = native_ops(program.module)
        self.sizes: Sizes = sizes_of(program.main)
        functions = part_functions(program.module)
        forms = (_Part.of(k, part) for k, part in enumerate(parts))
        self.parts = {func.name: form for func, form in zip(functions, forms, strict=True)}
        self.loops = [inner for op in self.natives for inner in op.walk() if inner.name == LOOP]
        self.frees: Frees = {}
        for op in self.natives:
            self.frees |= frees_in(op.blocks[0], self.sizes)


class _Block(ProgramFunction):
    """The body of one function."""

    def __init__(self, own: _Own) -> None:
        super().__init__()
        self.own = own
        self.slots = own.program.slots

    def function(self, number: int, block: Block) -> str:
        """The one that runs a block."""
        self.code.line(f"%stops = load ptr, ptr {self.at(frame.STOPS)}, align 8")
        self.began = self.stops()
        self.ops(block.ops)
        self.code.line(f"ret i32 {frame.DONE}")
        return self.text(f"i32 @tw_steps_{number}{self.own.program.suffix}(ptr %frame) nounwind")

    def tidying(self, name: str, write: Callable[[_Block], None]) -> str:
        """One that only gives memory back."""
        write(self)
        self.code.line("ret void")
        return self.text(f"void @tw_steps_{name}{self.own.program.suffix}(ptr %frame) nounwind")

    def each_slot(self, write: Callable[[Value], None]) -> None:
        for value in {word: value for value, word in self.slots.items()}.values():
            write(value)

    def release(self) -> None:
        self.code.line("call void @tw_release(ptr %frame)")

    def clear(self) -> None:
        self.each_slot(self.drop)

    def free_all(self) -> None:
        self.each_slot(self.free_list)
        self.code.line(f"call void @free(ptr {self.of_frame(frame.ARENA, 'ptr')})")

    # Words of the frame

    def at(self, word: int) -> str:
        return self.word("%frame", word)

    def of_frame(self, word: int, kind: str = "i64") -> str:
        return self.read("%frame", word, kind)

    def put(self, value: str, word: int, kind: str = "i64") -> None:
        self.write(value, "%frame", word, kind)

    def fail_unless(self, holds: str, code: int | str, before: Iterable[tuple[int, int | str]] = ()) -> None:
        """Return the code of an error where a condition does not hold, with words of the header that tell of it."""

        def told() -> int | str:
            for word, value in before:
                self.put(str(value), word)
            return code

        self.require(holds, told)

    # Slots

    def slot(self, value: Value, word: int) -> int:
        return self.slots[value] + word

    def dims(self, value: Value) -> list[str]:
        return [self.of_frame(self.slot(value, frame.DIMS + k)) for k in range(value.tensor.rank)]

    def drop(self, value: Value) -> None:
        word = self.slot(value, frame.BLOCK)
        self.code.line(f"call void @tw_release(ptr {self.of_frame(word, 'ptr')})")
        self.put("null", word, "ptr")

    def free_list(self, value: Value) -> None:
        word = self.slot(value, frame.FREE)
        look, free, done = (self.code.label(name) for name in ("look", "free", "done"))
        self.code.jump(look)
        self.code.start(look)
        first = self.of_frame(word, "ptr")
        self.code.branch(self.code.emit(f"icmp eq ptr {first}, null"), done, free)
        self.code.start(free)
        following = self.code.emit(f"getelementptr i64, ptr {first}, i64 3")
        self.put(self.code.emit(f"load ptr, ptr {following}"), word, "ptr")
        self.code.line(f"call void @free(ptr {first})")
        self.code.jump(look)
        self.code.start(done)

    def take(self, value: Value, bytes: str) -> str:
        """A block for a value, whose dims are there; gives the address of its memory."""
        self.drop(value)
        block = self.code.emit(f"call ptr @tw_take(ptr {self.at(self.slot(value, frame.FREE))}, i64 {bytes})")
        self.fail_unless(self.code.emit(f"icmp ne ptr {block}, null"), frame.NO_MEMORY)
        data = self.code.emit(f"getelementptr i8, ptr {block}, i64 {HEADER}")
        self.put(block, self.slot(value, frame.BLOCK), "ptr")
        self.put(data, self.slot(value, frame.DATA), "ptr")
        return data

    def inherit(self, value: Value, before: Value | None, bytes: str) -> None:
        """The block of a value `before`, which nobody needs any more, for another one that has as many bytes; a block
        of its own where somebody refers to that, or it is someone else's memory."""
        if before is None:
            self.take(value, bytes)
            return
        block = self.of_frame(self.slot(before, frame.BLOCK), "ptr")

        def move() -> None:
            self.drop(value)
            self.put(block, self.slot(value, frame.BLOCK), "ptr")
            self.put(self.of_frame(self.slot(before, frame.DATA), "ptr"), self.slot(value, frame.DATA), "ptr")
            self.put("null", self.slot(before, frame.BLOCK), "ptr")

        def take() -> None:
            self.take(value, bytes)

        self.when(self.code.emit(f"call i1 @tw_is_only(ptr {block})"), move, take)

    def assign(self, targets: Sequence[Value], sources: Sequence[Value]) -> None:
        """The targets refer to what the sources refer to, all at once."""
        found = []
        for value in sources:
            block = self.of_frame(self.slot(value, frame.BLOCK), "ptr")
            self.code.line(f"call void @tw_keep(ptr {block})")
            found.append((self.of_frame(self.slot(value, frame.DATA), "ptr"), block, self.dims(value)))
        for value, (data, block, dims) in zip(targets, found, strict=True):
            self.drop(value)
            self.put(data, self.slot(value, frame.DATA), "ptr")
            self.put(block, self.slot(value, frame.BLOCK), "ptr")
            for k, d in enumerate(dims):
                self.put(d, self.slot(value, frame.DIMS + k))

    def element(self, value: Value, position: int = 0) -> str:
        """An element as an i64."""
        bits, signed = _bits(value), value.tensor.dtype.storage.kind == "i"
        kind = f"i{bits}"
        data = self.of_frame(self.slot(value, frame.DATA), "ptr")
        at = self.code.emit(f"getelementptr {kind}, ptr {data}, i64 {position}")
        loaded = self.code.emit(f"load {kind}, ptr {at}")
        return loaded if bits == 64 else self.code.emit(f"{'sext' if signed else 'zext'} {kind} {loaded} to i64")

    def holds(self, value: Value) -> str:
        return self.code.emit(f"icmp ne i64 {self.element(value)}, 0")

    # Ops

    def op(self, op: Op) -> None:
        super().op(op)
        for value in self.own.frees.get(op, ()):
            self.drop(value)

    def branch(self, op: Op) -> None:
        def way(block: Block) -> None:
            self.ops(block.ops)
            self.assign(op.results, block.ops[-1].operands)
            self.drop_all(block)

        one, other = op.blocks
        self.when(self.holds(op.operands[0]), lambda: way(one), lambda: way(other))

    def loop(self, op: Op) -> None:
        t = self.code
        (block,) = op.blocks
        limit, condition, *states = op.operands
        trip_value, condition_value, *arguments = block.args
        goes_on, *results = block.ops[-1].operands
        rows = op.results[len(states) :]
        trips, counter, going = self.element(limit), self.array(1), self.array(1)
        t.line(f"store i64 0, ptr {counter}")
        t.line(f"store i64 {t.emit(f'zext i1 {self.holds(condition)} to i64')}, ptr {going}")
        self.assign(arguments, states)
        sizes = iter(self.own.sizes.get(op, ()))
        for row in rows:
            self.drop(row)
            self.put("@tw_true", self.slot(row, frame.DATA), "ptr")
            for k in range(row.tensor.rank):
                self.put(self.size(next(sizes)) if k else "0", self.slot(row, frame.DIMS + k))
        test, body, end = (t.label(name) for name in ("test", "trip", "end"))
        t.jump(test)
        t.start(test)
        trip = t.emit(f"load i64, ptr {counter}")
        more = t.emit(f"icmp slt i64 {trip}, {trips}")
        still = t.emit(f"icmp ne i64 {t.emit(f'load i64, ptr {going}')}, 0")
        t.branch(t.emit(f"and i1 {more}, {still}"), body, end)
        t.start(body)
        self.poll(self.own.loops.index(op), trip)
        t.line(f"store i64 {trip}, ptr {self.take(trip_value, '8')}")
        self.drop(condition_value)
        self.put("@tw_true", self.slot(condition_value, frame.DATA), "ptr")
        self.ops(block.ops)
        t.line(f"store i64 {t.emit(f'zext i1 {self.holds(goes_on)} to i64')}, ptr {going}")
        for collected, row in zip(rows, results[len(states) :], strict=True):
            self.append(collected, row, trip)
        self.assign(arguments, results[: len(states)])
        made = _made_in(block)
        for value in dict.fromkeys(results[: len(states)]):
            if value in made:
                self.drop(value)
        t.line(f"store i64 {t.emit(f'add i64 {trip}, 1')}, ptr {counter}")
        t.jump(test)
        t.start(end)
        self.assign(op.results[: len(states)], arguments)
        for value in block.args:
            self.drop(value)
        self.drop_all(block)

    def drop_all(self, block: Block) -> None:
        for value in _made_in(block):
            self.drop(value)

    def append(self, rows: Value, row: Value, trip: str) -> None:
        bytes = self.bytes(self.dims(row), _bits(row) // 8)
        slots = f"ptr {self.at(self.slot(rows, 0))}, ptr {self.at(self.slot(row, 0))}"
        numbers = f"i64 {row.tensor.rank}, i64 {trip}, i64 {bytes}"
        code = self.code.emit(f"call i32 @tw_append({slots}, {numbers})")
        self.fail_unless(self.code.emit(f"icmp eq i32 {code}, {frame.DONE}"), code)

    def poll(self, loop: int, trip: str) -> None:
        """End the run where somebody has asked for it, and ask the host from time to time whether to go on."""
        self.go_on()
        due = self.code.emit(f"icmp sge i64 {self.code.emit('call i64 @tw_now()')}, {self.of_frame(frame.NEXT_POLL)}")

        def ask() -> None:
            self.put(str(loop), frame.LOOP)
            self.put(trip, frame.TRIP)
            self.code.emit(f"call i32 {self.of_frame(frame.POLL, 'ptr')}(i64 0)")
            self.fail_unless(self.code.emit(f"icmp eq i64 {self.of_frame(frame.LOOP)}, {frame.GO_ON}"), frame.STOPPED)
            later = self.code.emit(f"add i64 {self.code.emit('call i64 @tw_now()')}, {self.of_frame(frame.INTERVAL)}")
            self.put(later, frame.NEXT_POLL)

        self.when(due, ask)

    def go_on(self) -> None:
        self.require(self.code.emit(f"icmp eq i32 {self.stops()}, {self.began}"), lambda: frame.CANCELLED)

    # Parts

    def call(self, op: Op) -> None:
        t, form = self.code, self.own.parts[op.attrs["part"]]
        self.go_on()
        self.put(str(form.number), frame.PART)
        inputs, outputs = self.array(len(form.inputs)), self.array(len(form.outputs))
        self.take_inputs(op, form, inputs)
        dims = self.array(form.dims_count)
        out_dims, arena, scratch = self.plan(form, inputs, dims)
        homes = {o: op.operands[i] for i, o in form.overwrites if self.dies(op, op.operands[i])}
        for k, (value, bytes) in enumerate(zip(op.results, form.element_bytes, strict=True)):
            self.inherit(value, homes.get(k), self.bytes(out_dims[k], bytes))
            self.write(self.of_frame(self.slot(value, frame.DATA), "ptr"), outputs, k, "ptr")
            for axis, d in enumerate(out_dims[k]):
                self.put(d, self.slot(value, frame.DIMS + axis))
        both = t.emit(f"call i64 @llvm.sadd.sat.i64(i64 {arena}, i64 {scratch})")
        self.fail_unless(t.emit(f"call i1 @tw_reserve(ptr {self.at(frame.ARENA)}, i64 {both})"), frame.NO_MEMORY)
        first = self.of_frame(frame.ARENA, "ptr")
        memory = (first, t.emit(f"getelementptr i8, ptr {first}, i64 {arena}"))
        call = self.array(8)
        pool, constants = self.of_frame(frame.POOL, "ptr"), self.of_part(form, frame.CONSTANTS)
        for k, pointer in enumerate((pool, inputs, outputs, constants, *memory, dims, "%stops")):
            self.write(pointer, call, k, "ptr")
        self.checked_call(t.emit(f"call i32 {self.of_part(form, frame.RUN)}(ptr {call})"))

    def dies(self, op: Op, value: Value) -> bool:
        """Does nothing need a value after an op, which reads it once?"""
        return value in self.own.frees[op] and op.operands.count(value) == 1

    def of_part(self, part: _Part, word: int) -> str:
        return self.of_frame(self.own.program.parts_at + frame.PART_WORDS * part.number + word, "ptr")

    def checked_call(self, code: str) -> None:
        wide = self.code.emit(f"zext i32 {code} to i64")
        self.fail_unless(self.code.emit(f"icmp eq i32 {code}, 0"), frame.PART_FAILED, [(frame.CODE, wide)])

    def take_inputs(self, op: Op, form: _Part, inputs: str) -> None:
        """The addresses of the inputs, and their dims, which must fit the part's."""
        t, word = self.code, frame.SHAPES
        bound: dict[str, str] = {}
        fits: list[str] = []
        for k, value in enumerate(op.operands):
            self.write(self.of_frame(self.slot(value, frame.DATA), "ptr"), inputs, k, "ptr")
            for wanted, d in zip(form.inputs[k], self.dims(value), strict=True):
                self.put(d, word)
                word += 1
                expected = bound.setdefault(wanted, d) if isinstance(wanted, str) else str(wanted)
                if expected != d:
                    fits.append(t.emit(f"icmp eq i64 {d}, {expected}"))
        if wanted_sizes := self.own.sizes.get(op, ()):
            sizes = self.array(len(wanted_sizes))
            for k, size in enumerate(wanted_sizes):
                self.write(self.size(size), sizes, k)
            self.write(sizes, inputs, len(op.operands), "ptr")
            self.put(str(len(wanted_sizes)), word)
        if fits:
            everything = fits[0]
            for one in fits[1:]:
                everything = t.emit(f"and i1 {everything}, {one}")
            self.fail_unless(everything, frame.MISFIT)

    def size(self, size: Extent) -> str:
        if isinstance(size, int):
            return str(size)
        if size.element:
            return self.element(size.value, size.position)
        return self.of_frame(self.slot(size.value, frame.DIMS + size.position))

    def plan(self, form: _Part, inputs: str, dims: str) -> tuple[list[list[str]], str, str]:
        """Fill the dims; gives those of the outputs, and the bytes of arena and scratch memory."""
        t, threads = self.code, self.of_frame(frame.THREADS)
        if form.memory is not None:
            fixed, each = map(str, form.memory)
            return [list(map(str, shape)) for shape in form.outputs], fixed, self.bytes([each], threads)
        out_dims, sizes = self.array(sum(map(len, form.outputs))), self.array(2)
        shapes = self.at(frame.SHAPES)
        arguments = ", ".join(f"ptr {p}" for p in (shapes, inputs, dims, out_dims, sizes))
        self.checked_call(t.emit(f"call i32 {self.of_part(form, frame.PLAN)}({arguments})"))
        found: list[list[str]] = []
        for shape in form.outputs:
            first = sum(map(len, found))
            found.append([self.read(out_dims, first + axis) for axis in range(len(shape))])
            for size in found[-1]:
                self.fail_unless(t.emit(f"icmp sge i64 {size}, 0"), frame.OUT_OF_RANGE)
        return found, self.read(sizes, 0), self.bytes([self.read(sizes, 1)], threads)

    def bytes(self, dims: Sequence[str], element: int | str) -> str:
        """The product of dims and the bytes of an element; more than there is where that is no number."""
        t, total = self.code, str(element)
        absurd = "false"
        for d in dims:
            product = t.emit(f"call {{ i64, i1 }} @llvm.umul.with.overflow.i64(i64 {total}, i64 {d})")
            total = t.emit(f"extractvalue {{ i64, i1 }} {product}, 0")
            absurd = t.emit(f"or i1 {absurd}, {t.emit(f'extractvalue {{ i64, i1 }} {product}, 1')}")
        return total if absurd == "false" else t.emit(f"select i1 {absurd}, i64 {1 << 62}, i64 {total}")


def _made_in(block: Block) -> dict[Value, None]:
    """All values that the ops of a block make, also for themselves."""
    return dict.fromkeys(value for op in block.ops for value in makes(op))
