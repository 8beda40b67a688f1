"""Steps of a staged program as LLVM IR: parts, branches and loops one after the other, without the host.

    i32 tw_steps_K(ptr frame)           run the steps of function K
    void tw_steps_clear(ptr frame)      let go of all values
    void tw_steps_free(ptr frame)       free all memory but blocks that somebody refers to
    void tw_steps_release(ptr block)    give a block back

Their names have a suffix, which tells of the program.
A frame is laid out as `runtime/staged/frame.py` says. A value of a loop that a trip computes is written over the state
that it is computed from, where the kernel allows that and nobody else needs it, and else where the one before last was:
such states are in two blocks in turn. Nothing is copied but references.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.codegen.cpu.kernel.text import Text
from tilewright.codegen.cpu.program.step_memory import HEADER, step_memory_ir
from tilewright.runtime.staged import frame
from tilewright.runtime.staged.program import (
    RunLoop,
    RunNative,
    RunPart,
    Size,
    StagedProgram,
    Step,
    TakeBranch,
    makes,
    steps_within,
)
from tilewright.target.target import Target

Dims = tuple[int | str, ...]


@dataclass(frozen=True)
class PartForm:
    """What is known of a part: the name of its code, the shapes of inputs and outputs (numbers, or names), the bytes of
    an element of each output, how many dims its code has and, where all is fixed, these dims and the bytes of arena and
    scratch memory. `overwrites` are numbers of inputs and of the outputs that may take their memory."""

    name: str
    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    element_bytes: tuple[int, ...]
    dims_count: int
    dims: tuple[int, ...] = ()
    memory: tuple[int, int] | None = None
    overwrites: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ValueForm:
    """The rank and the bits of an element of a value, and whether its integers have a sign."""

    rank: int
    bits: int
    signed: bool


def steps_ir(
    program: StagedProgram, values: Mapping[int, ValueForm], parts: Sequence[PartForm], target: Target
) -> str:
    """The functions of all native steps of a program, whose values in slots have these forms."""
    names = [part.name for part in parts]
    functions = [s for s in steps_within(program.steps) if isinstance(s, RunNative)]
    loops = [s for s in steps_within(program.steps) if isinstance(s, RunLoop)]
    texts = [f'target triple = "{target.triple}"', "@tw_true = internal constant i8 1", step_memory_ir(target.triple)]
    for function in functions:
        emitted = _Steps(program, values, parts, loops)
        emitted.steps(function.steps)
        symbol = program.native_symbol(str(function.function), names)
        texts.append(emitted.function(f"i32 @{symbol}", f"ret i32 {frame.DONE}"))
    release = "call void @tw_release(ptr %frame)\n  ret void"
    symbol = program.native_symbol("release", names)
    texts.append(_Steps(program, values, parts, loops).function(f"void @{symbol}", release))
    for name, call in (("clear", _Steps.drop), ("free", _Steps.free_list)):
        emitted = _Steps(program, values, parts, loops)
        for number, _ in program.slots:
            call(emitted, number)
        if name == "free":
            for word in (frame.ARENA, frame.SCRATCH):
                emitted.t.line(f"call void @free(ptr {emitted.read(word, 'ptr')})")
        texts.append(emitted.function(f"void @{program.native_symbol(name, names)}", "ret void"))
    return "\n".join(texts)


class _Steps:
    """The body of one function."""

    def __init__(
        self,
        program: StagedProgram,
        values: Mapping[int, ValueForm],
        parts: Sequence[PartForm],
        loops: Sequence[RunLoop],
    ) -> None:
        self.t = Text()
        self.program, self.values, self.parts, self.loops = program, values, parts, loops
        self.slots = dict(program.slots)

    def function(self, head: str, end: str) -> str:
        lines = [*self.t.allocas, *self.t.lines]
        return "\n".join([f"define {head}(ptr %frame) nounwind {{", "entry:", *lines, f"  {end}", "}", ""])

    # Words of the frame

    def at(self, word: int) -> str:
        return self.t.emit(f"getelementptr i64, ptr %frame, i64 {word}")

    def read(self, word: int, kind: str = "i64") -> str:
        return self.t.emit(f"load {kind}, ptr {self.at(word)}")

    def write(self, value: str, word: int, kind: str = "i64") -> None:
        self.t.line(f"store {kind} {value}, ptr {self.at(word)}")

    def array(self, count: int) -> str:
        return self.t.alloca(f"[{max(count, 1)} x i64]", 8)

    def put(self, array: str, index: int, value: str, kind: str = "i64") -> None:
        self.t.line(f"store {kind} {value}, ptr {self.t.emit(f'getelementptr i64, ptr {array}, i64 {index}')}")

    def get(self, array: str, index: int) -> str:
        return self.t.emit(f"load i64, ptr {self.t.emit(f'getelementptr i64, ptr {array}, i64 {index}')}")

    # Ends

    def require(self, holds: str, code: int | str, before: Iterable[tuple[int, int | str]] = ()) -> None:
        """Return the code of an error where a condition does not hold, with words of the header that tell of it."""
        good, bad = self.t.label("good"), self.t.label("bad")
        self.t.branch(holds, good, bad)
        self.t.start(bad)
        for word, value in before:
            self.write(str(value), word)
        self.t.line(f"ret i32 {code}")
        self.t.start(good)

    def when(self, condition: str, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        first, second, after = (self.t.label(name) for name in ("then", "else", "after"))
        self.t.branch(condition, first, second)
        for label, write in ((first, then), (second, otherwise)):
            self.t.start(label)
            if write is not None:
                write()
            self.t.jump(after)
        self.t.start(after)

    # Slots

    def slot(self, number: int, word: int) -> int:
        return self.slots[number] + word

    def dims(self, number: int) -> list[str]:
        return [self.read(self.slot(number, frame.DIMS + k)) for k in range(self.values[number].rank)]

    def drop(self, number: int) -> None:
        word = self.slot(number, frame.BLOCK)
        self.t.line(f"call void @tw_release(ptr {self.read(word, 'ptr')})")
        self.write("null", word, "ptr")

    def free_list(self, number: int) -> None:
        word = self.slot(number, frame.FREE)
        look, free, done = (self.t.label(name) for name in ("look", "free", "done"))
        self.t.jump(look)
        self.t.start(look)
        first = self.read(word, "ptr")
        self.t.branch(self.t.emit(f"icmp eq ptr {first}, null"), done, free)
        self.t.start(free)
        following = self.t.emit(f"getelementptr i64, ptr {first}, i64 3")
        self.write(self.t.emit(f"load ptr, ptr {following}"), word, "ptr")
        self.t.line(f"call void @free(ptr {first})")
        self.t.jump(look)
        self.t.start(done)

    def take(self, number: int, bytes: str) -> str:
        """A block for a value, whose dims are there; gives the address of its memory."""
        self.drop(number)
        block = self.t.emit(f"call ptr @tw_take(ptr {self.at(self.slot(number, frame.FREE))}, i64 {bytes})")
        self.require(self.t.emit(f"icmp ne ptr {block}, null"), frame.NO_MEMORY)
        data = self.t.emit(f"getelementptr i8, ptr {block}, i64 {HEADER}")
        self.write(block, self.slot(number, frame.BLOCK), "ptr")
        self.write(data, self.slot(number, frame.DATA), "ptr")
        return data

    def inherit(self, number: int, before: int | None, bytes: str) -> None:
        """The block of a value `before`, which nobody needs any more, for another one that has as many bytes; a block
        of its own where somebody refers to that, or it is someone else's memory."""
        if before is None:
            self.take(number, bytes)
            return
        block = self.read(self.slot(before, frame.BLOCK), "ptr")

        def move() -> None:
            self.drop(number)
            self.write(block, self.slot(number, frame.BLOCK), "ptr")
            self.write(self.read(self.slot(before, frame.DATA), "ptr"), self.slot(number, frame.DATA), "ptr")
            self.write("null", self.slot(before, frame.BLOCK), "ptr")

        def take() -> None:
            self.take(number, bytes)

        self.when(self.t.emit(f"call i1 @tw_is_only(ptr {block})"), move, take)

    def assign(self, targets: Sequence[int], sources: Sequence[int]) -> None:
        """The targets refer to what the sources refer to, all at once."""
        found = []
        for number in sources:
            block = self.read(self.slot(number, frame.BLOCK), "ptr")
            self.t.line(f"call void @tw_keep(ptr {block})")
            found.append((self.read(self.slot(number, frame.DATA), "ptr"), block, self.dims(number)))
        for number, (data, block, dims) in zip(targets, found, strict=True):
            self.drop(number)
            self.write(data, self.slot(number, frame.DATA), "ptr")
            self.write(block, self.slot(number, frame.BLOCK), "ptr")
            for k, d in enumerate(dims):
                self.write(d, self.slot(number, frame.DIMS + k))

    def element(self, number: int, position: int = 0) -> str:
        """An element as an i64."""
        form = self.values[number]
        kind = f"i{form.bits}"
        data = self.read(self.slot(number, frame.DATA), "ptr")
        loaded = self.t.emit(f"load {kind}, ptr {self.t.emit(f'getelementptr {kind}, ptr {data}, i64 {position}')}")
        return loaded if form.bits == 64 else self.t.emit(f"{'sext' if form.signed else 'zext'} {kind} {loaded} to i64")

    def holds(self, number: int) -> str:
        return self.t.emit(f"icmp ne i64 {self.element(number)}, 0")

    # Steps

    def steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, RunPart):
                self.part(step)
            elif isinstance(step, TakeBranch):
                self.branch(step)
            elif isinstance(step, RunLoop):
                self.loop(step)
            for number in step.frees:
                self.drop(number)

    def branch(self, step: TakeBranch) -> None:
        def way(k: int) -> None:
            self.steps(step.ways[k])
            self.assign(step.outputs, step.results[k])
            self.drop_all(step.ways[k])

        self.when(self.holds(step.condition), lambda: way(0), lambda: way(1))

    def loop(self, step: RunLoop) -> None:
        t = self.t
        limit, condition, *states = step.inputs
        trip_value, condition_value, *arguments = step.arguments
        goes_on, *results = step.results
        rows = step.outputs[len(states) :]
        trips, counter, going = self.element(limit), self.array(1), self.array(1)
        t.line(f"store i64 0, ptr {counter}")
        t.line(f"store i64 {t.emit(f'zext i1 {self.holds(condition)} to i64')}, ptr {going}")
        self.assign(arguments, states)
        for number, type in zip(rows, step.row_types, strict=True):
            self.drop(number)
            self.write("@tw_true", self.slot(number, frame.DATA), "ptr")
            for k, d in enumerate((0, *type.shape)):
                self.write(self.size(d), self.slot(number, frame.DIMS + k))
        test, body, end = (t.label(name) for name in ("test", "trip", "end"))
        t.jump(test)
        t.start(test)
        trip = t.emit(f"load i64, ptr {counter}")
        more = t.emit(f"icmp slt i64 {trip}, {trips}")
        still = t.emit(f"icmp ne i64 {t.emit(f'load i64, ptr {going}')}, 0")
        t.branch(t.emit(f"and i1 {more}, {still}"), body, end)
        t.start(body)
        self.poll(self.loops.index(step), trip)
        t.line(f"store i64 {trip}, ptr {self.take(trip_value, '8')}")
        self.drop(condition_value)
        self.write("@tw_true", self.slot(condition_value, frame.DATA), "ptr")
        self.steps(step.body)
        t.line(f"store i64 {t.emit(f'zext i1 {self.holds(goes_on)} to i64')}, ptr {going}")
        for number, row in zip(rows, results[len(states) :], strict=True):
            self.append(number, row, trip)
        self.assign(arguments, results[: len(states)])
        made = {v for inner in step.body for v in makes(inner)}
        for number in made.intersection(results[: len(states)]):
            self.drop(number)
        t.line(f"store i64 {t.emit(f'add i64 {trip}, 1')}, ptr {counter}")
        t.jump(test)
        t.start(end)
        self.assign(step.outputs[: len(states)], arguments)
        for number in step.arguments:
            self.drop(number)
        self.drop_all(step.body)

    def drop_all(self, steps: Iterable[Step]) -> None:
        for number in dict.fromkeys(v for step in steps for v in makes(step)):
            self.drop(number)

    def append(self, rows: int, row: int, trip: str) -> None:
        bytes = self.bytes(self.dims(row), (self.values[row].bits + 7) // 8)
        slots = f"ptr {self.at(self.slot(rows, 0))}, ptr {self.at(self.slot(row, 0))}"
        numbers = f"i64 {self.values[row].rank}, i64 {trip}, i64 {bytes}"
        code = self.t.emit(f"call i32 @tw_append({slots}, {numbers})")
        self.require(self.t.emit(f"icmp eq i32 {code}, {frame.DONE}"), code)

    def poll(self, loop: int, trip: str) -> None:
        """Ask the host from time to time whether to go on."""
        due = self.t.emit(f"icmp sge i64 {self.t.emit('call i64 @tw_now()')}, {self.read(frame.NEXT_POLL)}")

        def ask() -> None:
            self.write(str(loop), frame.LOOP)
            self.write(trip, frame.TRIP)
            self.t.emit(f"call i32 {self.read(frame.POLL, 'ptr')}(i64 0)")
            self.require(self.t.emit(f"icmp eq i64 {self.read(frame.LOOP)}, {frame.GO_ON}"), frame.STOPPED)
            later = self.t.emit(f"add i64 {self.t.emit('call i64 @tw_now()')}, {self.read(frame.INTERVAL)}")
            self.write(later, frame.NEXT_POLL)

        self.when(due, ask)

    # Parts

    def part(self, step: RunPart) -> None:
        t, form = self.t, self.parts[step.part]
        self.write(str(step.part), frame.PART)
        inputs, outputs = self.array(len(form.inputs)), self.array(len(form.outputs))
        self.take_inputs(step, form, inputs)
        dims = self.array(max(form.dims_count, len(form.dims)))
        out_dims, arena, scratch = self.plan(step.part, form, inputs, dims)
        homes = {o: step.inputs[i] for i, o in form.overwrites if _dies(step, step.inputs[i])}
        for k, (number, bytes) in enumerate(zip(step.outputs, form.element_bytes, strict=True)):
            self.inherit(number, homes.get(k), self.bytes(out_dims[k], bytes))
            self.put(outputs, k, self.read(self.slot(number, frame.DATA), "ptr"), "ptr")
            for axis, d in enumerate(out_dims[k]):
                self.write(d, self.slot(number, frame.DIMS + axis))
        for word, needed in ((frame.ARENA, arena), (frame.SCRATCH, scratch)):
            self.require(t.emit(f"call i1 @tw_reserve(ptr {self.at(word)}, i64 {needed})"), frame.NO_MEMORY)
        memory = (self.read(frame.ARENA, "ptr"), self.read(frame.SCRATCH, "ptr"))
        call = self.array(7)
        pool, constants = self.read(frame.POOL, "ptr"), self.of_part(step.part, frame.CONSTANTS)
        for k, pointer in enumerate((pool, inputs, outputs, constants, *memory, dims)):
            self.put(call, k, pointer, "ptr")
        self.checked_call(t.emit(f"call i32 {self.of_part(step.part, frame.RUN)}(ptr {call})"))

    def of_part(self, part: int, word: int) -> str:
        return self.read(self.program.parts + frame.PART_WORDS * part + word, "ptr")

    def checked_call(self, code: str) -> None:
        wide = self.t.emit(f"zext i32 {code} to i64")
        self.require(self.t.emit(f"icmp eq i32 {code}, 0"), frame.PART_FAILED, [(frame.CODE, wide)])

    def take_inputs(self, step: RunPart, form: PartForm, inputs: str) -> None:
        """The addresses of the inputs, and their dims, which must fit the part's."""
        t, word = self.t, frame.SHAPES
        bound: dict[str, str] = {}
        fits: list[str] = []
        for k, number in enumerate(step.inputs):
            self.put(inputs, k, self.read(self.slot(number, frame.DATA), "ptr"), "ptr")
            for wanted, d in zip(form.inputs[k], self.dims(number), strict=True):
                self.write(d, word)
                word += 1
                expected = bound.setdefault(wanted, d) if isinstance(wanted, str) else str(wanted)
                if expected != d:
                    fits.append(t.emit(f"icmp eq i64 {d}, {expected}"))
        if step.sizes:
            sizes = self.array(len(step.sizes))
            for k, size in enumerate(step.sizes):
                self.put(sizes, k, self.size(size))
            self.put(inputs, len(step.inputs), sizes, "ptr")
            self.write(str(len(step.sizes)), word)
        if fits:
            everything = fits[0]
            for one in fits[1:]:
                everything = t.emit(f"and i1 {everything}, {one}")
            self.require(everything, frame.MISFIT)

    def size(self, size: Size | int) -> str:
        if isinstance(size, int):
            return str(size)
        if size.element:
            return self.element(size.value, size.position)
        return self.read(self.slot(size.value, frame.DIMS + size.position))

    def plan(self, part: int, form: PartForm, inputs: str, dims: str) -> tuple[list[list[str]], str, str]:
        """Fill the dims; gives those of the outputs, and the bytes of arena and scratch memory."""
        t, threads = self.t, self.read(frame.THREADS)
        if form.memory is not None:
            for k, d in enumerate(form.dims):
                self.put(dims, k, str(d))
            fixed, each = map(str, form.memory)
            return [list(map(str, shape)) for shape in form.outputs], fixed, self.bytes([each], threads)
        out_dims, sizes = self.array(sum(map(len, form.outputs))), self.array(2)
        shapes = self.at(frame.SHAPES)
        arguments = ", ".join(f"ptr {p}" for p in (shapes, inputs, dims, out_dims, sizes))
        self.checked_call(t.emit(f"call i32 {self.of_part(part, frame.PLAN)}({arguments})"))
        found: list[list[str]] = []
        for shape in form.outputs:
            first = sum(map(len, found))
            found.append([self.get(out_dims, first + axis) for axis in range(len(shape))])
            for size in found[-1]:
                self.require(t.emit(f"icmp sge i64 {size}, 0"), frame.OUT_OF_RANGE)
        return found, self.get(sizes, 0), self.bytes([self.get(sizes, 1)], threads)

    def bytes(self, dims: Sequence[str], element: int | str) -> str:
        """The product of dims and the bytes of an element; more than there is where that is no number."""
        t, total = self.t, str(element)
        absurd = "false"
        for d in dims:
            product = t.emit(f"call {{ i64, i1 }} @llvm.umul.with.overflow.i64(i64 {total}, i64 {d})")
            total = t.emit(f"extractvalue {{ i64, i1 }} {product}, 0")
            absurd = t.emit(f"or i1 {absurd}, {t.emit(f'extractvalue {{ i64, i1 }} {product}, 1')}")
        return total if absurd == "false" else t.emit(f"select i1 {absurd}, i64 {1 << 62}, i64 {total}")


def _dies(step: RunPart, number: int) -> bool:
    """Does nothing need a value after a step, which reads it once?"""
    return number in step.frees and step.inputs.count(number) == 1
