"""What a program does between its parts without the host, as C: the blocks of its `native` ops.

They do on the same frame what the functions of `cpu/program/native_blocks.py` do; `runtime/steps.c` of exported
libraries has the memory of their values.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.c.spelling import c_symbol, c_type, comment
from tilewright.codegen.program import Program
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.types import ANY_DIM
from tilewright.ops.define.staged import BRANCH, LOOP
from tilewright.program.lifetimes import Frees, frees_in, makes
from tilewright.program.memory.places import OVERWRITES
from tilewright.program.native import native_ops
from tilewright.program.sizes import Extent, Sizes, sizes_of
from tilewright.program.split import part_functions
from tilewright.runtime.staged import frame


class BlocksOfSteps:
    """The functions of all `native` ops of a program that calls parts."""

    def __init__(self, program: Program, parts: Sequence[Program]) -> None:
        self.program, self.suffix = program, program.suffix
        self.natives = native_ops(program.module)
        self.sizes: Sizes = sizes_of(program.main)
        functions = part_functions(program.module)
        self.parts = {
            func.name: (k, part) for k, (func, part) in enumerate(zip(functions, parts, strict=True))
        }
        self.loops = [inner for op in self.natives for inner in op.walk() if inner.name == LOOP]
        self.frees: Frees = {}
        for op in self.natives:
            self.frees |= frees_in(op.blocks[0], self.sizes)

    def text(self) -> str:
        """The functions that run each op, let go of all values, and free all memory."""
        functions = [_Block(self).function(number, op.blocks[0]) for number, op in enumerate(self.natives)]
        slots = {word: value for value, word in self.program.slots.items()}
        clear = [f"  step_drop(frame + {word});" for word in slots]
        free = [f"  step_free(frame + {word});" for word in slots]
        free.append("  free(address_of(frame[FRAME_ARENA]));")
        for name, lines in (("clear", clear), ("free", free)):
            head = f"static void {c_symbol(f'tw_steps_{name}{self.suffix}')}(int64_t *frame) {{"
            functions.append("\n".join([head, *lines, "}", ""]))
        return "\n".join(functions)


class _Block:
    """The body of one function."""

    def __init__(self, own: BlocksOfSteps) -> None:
        self.own = own
        self.slots = own.program.slots
        self.lines: list[str] = []
        self.indent = "  "
        self.names = 0

    def function(self, number: int, block: Block) -> str:
        """The one that runs a block."""
        self.ops(block)
        head = f"static int32_t {c_symbol(f'tw_steps_{number}{self.own.suffix}')}(int64_t *frame) {{"
        used = any("frame" in line for line in self.lines)
        begin = [] if used else ["  (void)frame;"]
        if any("*stops" in line for line in self.lines):
            begin = [
                "  const _Atomic uint32_t *const stops = address_of(frame[FRAME_STOPS]);",
                "  const uint32_t began = *stops;",
            ]
        return "\n".join([head, *begin, *self.lines, "  return STEPS_DONE;", "}", ""])

    # Lines

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def enter(self, head: str) -> None:
        self.line(head)
        self.indent += "  "

    def leave(self, text: str = "}") -> None:
        self.indent = self.indent[2:]
        self.line(text)

    def name(self, hint: str) -> str:
        self.names += 1
        return f"{hint}{self.names}"

    # Slots

    def at(self, value: Value) -> str:
        return f"frame + {self.slots[value]}"

    def word(self, value: Value, word: int) -> str:
        return f"frame[{self.slots[value] + word}]"

    def dims(self, value: Value) -> list[str]:
        return [self.word(value, frame.DIMS + k) for k in range(value.tensor.rank)]

    def drop(self, value: Value) -> None:
        self.line(f"step_drop({self.at(value)});")

    def assign(self, targets: Sequence[Value], sources: Sequence[Value]) -> None:
        """The targets refer to what the sources refer to, all at once."""
        kept = []
        for value in sources:
            kept.append(self.name("kept"))
            rank = value.tensor.rank
            self.line(f"int64_t {kept[-1]}[{frame.DIMS + rank}];")
            self.line(f"step_keep({kept[-1]}, {self.at(value)}, {rank});")
        for value, name in zip(targets, kept, strict=True):
            self.line(f"step_put({self.at(value)}, {name}, {value.tensor.rank});")

    def element(self, value: Value, position: int = 0) -> str:
        """An element as an integer."""
        type = c_type(value.tensor.dtype)
        return f"(int64_t)((const {type} *)address_of({self.word(value, frame.DATA)}))[{position}]"

    def size(self, size: Extent) -> str:
        if isinstance(size, int):
            return str(size)
        if size.element:
            return self.element(size.value, size.position)
        return self.word(size.value, frame.DIMS + size.position)

    # Ops

    def ops(self, block: Block) -> None:
        for op in block.ops:
            if op.name == "call":
                self.call(op)
            elif op.name == BRANCH:
                self.branch(op)
            elif op.name == LOOP:
                self.loop(op)
            for value in self.own.frees.get(op, ()):
                self.drop(value)

    def branch(self, op: Op) -> None:
        self.enter(f"if ({self.element(op.operands[0])}) {{ {comment(str(op.loc))}")
        for k, block in enumerate(op.blocks):
            if k:
                self.leave("} else {")
                self.indent += "  "
            self.ops(block)
            self.assign(op.results, block.ops[-1].operands)
            self.drop_all(block)
        self.leave()

    def loop(self, op: Op) -> None:
        (block,) = op.blocks
        limit, condition, *states = op.operands
        trip_value, condition_value, *arguments = block.args
        goes_on, *results = block.ops[-1].operands
        rows = op.results[len(states) :]
        trip, trips, going = self.name("trip"), self.name("trips"), self.name("going")
        self.enter(f"{{ {comment(str(op.loc))}")
        self.line(f"const int64_t {trips} = {self.element(limit)};")
        self.line(f"int {going} = {self.element(condition)} != 0;")
        self.assign(arguments, states)
        sizes = iter(self.own.sizes.get(op, ()))
        for row in rows:
            self.drop(row)
            self.line(f"{self.word(row, frame.DATA)} = step_true();")
            for k in range(row.tensor.rank):
                self.line(f"{self.word(row, frame.DIMS + k)} = {self.size(next(sizes)) if k else '0'};")
        self.enter(f"for (int64_t {trip} = 0; {trip} < {trips} && {going}; {trip}++) {{")
        self.line("if (*stops != began) return CANCELLED;")
        self.line(f"if (!step_poll(frame, {self.own.loops.index(op)}, {trip})) return STEPS_STOPPED;")
        self.line(f"int64_t *const at_{trip} = step_take({self.at(trip_value)}, 8);")
        self.line(f"if (!at_{trip}) return STEPS_NO_MEMORY;")
        self.line(f"*at_{trip} = {trip};")
        self.drop(condition_value)
        self.line(f"{self.word(condition_value, frame.DATA)} = step_true();")
        self.ops(block)
        self.line(f"{going} = {self.element(goes_on)} != 0;")
        for collected, row in zip(rows, results[len(states) :], strict=True):
            self.append(collected, row, trip)
        self.assign(arguments, results[: len(states)])
        made = _made_in(block)
        for value in dict.fromkeys(results[: len(states)]):
            if value in made:
                self.drop(value)
        self.leave()
        self.assign(op.results[: len(states)], arguments)
        for value in block.args:
            self.drop(value)
        self.drop_all(block)
        self.leave()

    def drop_all(self, block: Block) -> None:
        for value in _made_in(block):
            self.drop(value)

    def append(self, rows: Value, row: Value, trip: str) -> None:
        code, rank = self.name("code"), row.tensor.rank
        bytes = self.bytes(self.dims(row), row.tensor.dtype.bytes)
        self.line(
            f"const int32_t {code} = step_append({self.at(rows)}, {self.at(row)}, {rank}, {trip}, {bytes});"
        )
        self.line(f"if ({code}) return {code};")

    # Parts

    def call(self, op: Op) -> None:
        number, part = self.own.parts[op.attrs["part"]]
        main = part.main
        self.enter("{ " + comment(str(op.loc)))
        self.line("if (*stops != began) return CANCELLED;")
        self.line(f"frame[FRAME_PART] = {number};")
        inputs, sized = self.inputs(op, part)
        self.line(
            f"const word in[{max(1, len(inputs))}] = {{{', '.join(f'{{{at}}}' for at in inputs) or '{0}'}}};"
        )
        shapes, arena, scratch = self.plan(part, sized)
        overwrites = main.attrs[OVERWRITES]
        homes = {o: op.operands[i] for i, o in overwrites if self.dies(op, op.operands[i])}
        outputs = []
        for k, value in enumerate(op.results):
            bytes = self.bytes(shapes[k], value.tensor.dtype.bytes)
            taken = (
                f"step_inherit({self.at(value)}, {self.at(homes[k])}, {bytes})"
                if k in homes
                else (f"step_take({self.at(value)}, {bytes})")
            )
            self.line(f"if (!{taken}) return STEPS_NO_MEMORY;")
            outputs.append(f"address_of({self.word(value, frame.DATA)})")
            for axis, d in enumerate(shapes[k]):
                self.line(f"{self.word(value, frame.DIMS + axis)} = {d};")
        self.line(f"if (!step_reserve(frame + FRAME_ARENA, step_sum({arena}, {scratch}))) return STEPS_NO_MEMORY;")
        out = ", ".join(f"{{{at}}}" for at in outputs) or "{0}"
        self.line(f"const word out[{max(1, len(outputs))}] = {{{out}}};")
        constants = (
            f"address_of(frame[{self.own.program.parts_at + frame.PART_WORDS * number + frame.CONSTANTS}])"
        )
        dims = "dims" if part.dims else "NULL"
        self.line(
            f"const word call[8] = {{{{NULL}}, {{(void *)(uintptr_t)in}}, {{(void *)(uintptr_t)out}}, {{{constants}}}, "
            f"{{address_of(frame[FRAME_ARENA])}}, {{address_of(frame[FRAME_ARENA] + {arena})}}, {{{dims}}}, "
            "{(void *)(uintptr_t)stops}};"
        )
        self.checked(f"{c_symbol(f'tw_run{part.suffix}')}(call)")
        self.leave()

    def dies(self, op: Op, value: Value) -> bool:
        """Does nothing need a value after an op, which reads it once?"""
        return value in self.own.frees[op] and op.operands.count(value) == 1

    def checked(self, call: str) -> None:
        self.line(f"frame[FRAME_CODE] = {call};")
        self.line("if (frame[FRAME_CODE]) return STEPS_PART_FAILED;")

    def inputs(self, op: Op, part: Program) -> tuple[list[str], bool]:
        """The addresses of the inputs, whose dims must fit the part's, and become words of the frame."""
        word = frame.SHAPES
        bound: dict[str, str] = {}
        fits: list[str] = []
        found = []
        for argument, value in zip(part.main.args, op.operands, strict=False):
            found.append(f"address_of({self.word(value, frame.DATA)})")
            for wanted, d in zip(_dims(argument), self.dims(value), strict=True):
                self.line(f"frame[{word}] = {d};")
                word += 1
                expected = bound.setdefault(wanted, d) if isinstance(wanted, str) else str(wanted)
                if expected != d:
                    fits.append(f"{d} == {expected}")
        if sizes := self.own.sizes.get(op, ()):
            self.line(f"int64_t sizes[{len(sizes)}] = {{{', '.join(map(self.size, sizes))}}};")
            found.append("sizes")
            self.line(f"frame[{word}] = {len(sizes)};")
        if fits:
            self.line(f"if (!({' && '.join(fits)})) return STEPS_MISFIT;")
        return found, bool(sizes)

    def plan(self, part: Program, sized: bool) -> tuple[list[list[str]], str, str]:
        """Fill the dims; gives those of the outputs, and the bytes of arena and scratch memory."""
        if part.is_static:
            shapes = [[str(d) for d in _dims(v)] for v in part.main.returns]
            return shapes, str(part.arena.value), str(part.scratch.value)
        count = sum(v.tensor.rank for v in part.main.returns)
        self.line(f"int64_t dims[{max(1, len(part.dims))}], shapes[{max(1, count)}], needs[2];")
        self.checked(f"{c_symbol(f'tw_plan{part.suffix}')}(frame + FRAME_SHAPES, in, dims, shapes, needs)")
        shapes, at = [], 0
        for value in part.main.returns:
            shapes.append([f"shapes[{at + axis}]" for axis in range(value.tensor.rank)])
            at += value.tensor.rank
        if count:
            self.line(f"for (int k = 0; k < {count}; k++)")
            self.line("  if (shapes[k] < 0) return STEPS_OUT_OF_RANGE;")
        return shapes, "needs[0]", "needs[1]"

    def bytes(self, dims: Sequence[str], element: int) -> str:
        """The product of dims and the bytes of an element."""
        if all(d.isdigit() for d in dims):
            total = element
            for d in dims:
                total *= int(d)
            return str(total)
        return f"step_bytes({element}, (const int64_t[]){{{', '.join(dims)}}}, {len(dims)})"


def _dims(value: Value) -> list[int | str]:
    return [d.value if d.is_const else "?" if d is ANY_DIM else str(d) for d in value.tensor.shape]


def _made_in(block: Block) -> dict[Value, None]:
    """All values that the ops of a block make, also for themselves."""
    return dict.fromkeys(value for op in block.ops for value in makes(op))
