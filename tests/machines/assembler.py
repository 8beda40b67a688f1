"""The toy's program text: JSON, a list of calls and for each kernel its instructions, with addresses in bytes.

Instructions are lists that begin with a word: `loop`, `if`, `load`, `store`, a scalar operation, and what the machine
has of its own: `copy` (one transfer, as numbers and steps of each dimension), `mma`, `wait` and `barrier`. Addresses
are expressions over the loops' variables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Self

from tilewright.codegen.program import ErrorTable, KernelText, Program, ProgramText
from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import Sym, affine_in
from tilewright.loops.edit import address_of, body_of, buffer_type, extent_of, loop_var
from tilewright.loops.machine.capacity import slots_of
from tilewright.loops.machine.copies import Copy, copy_in
from tilewright.loops.machine.match_intrinsic import IntrinsicMatch, match_intrinsic
from tilewright.target.machine import Machine


class Assembler:
    """The code of one artefact."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.programs: dict[str, Any] = {}
        self.kernels: dict[str, Any] = {}

    def kernel(self, func: Func) -> KernelText:
        return KernelText(func.name, json.dumps(_Kernel(func, self.machine).text(), indent=1))

    def program(self, program: Program) -> ProgramText:
        if program.dims:
            raise UnsupportedError("the toy runs programs of fixed shapes", hint="give the dims of inputs with shapes=")
        calls = [
            [step.kernel, [[b.base, b.index, b.offset.value] for b in step.buffers]] for step in program.steps
        ]
        return ProgramText(json.dumps(calls), ErrorTable(), program.suffix)

    def begin(self, text: KernelText | ProgramText) -> None:
        if isinstance(text, KernelText):
            self.kernels[text.symbol] = json.loads(text.text)
        else:
            self.programs[f"tw_run{text.suffix}"] = json.loads(text.text)

    submitted = 1

    def objects(self, step: Callable[[int, int], None] | None = None) -> Sequence[bytes]:
        return [json.dumps({"programs": self.programs, "kernels": self.kernels}).encode()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class _Kernel:
    """One kernel: names of its values and buffers."""

    def __init__(self, func: Func, machine: Machine) -> None:
        self.func = func
        self.machine = machine
        self.numbers: dict[Value, str] = {a: f"a{k}" for k, a in enumerate(func.args)}
        slots = slots_of(func, machine)
        assert isinstance(slots, dict), "the verifier has looked at that"
        self.slots = slots

    def text(self) -> list[Any]:
        return self.block(self.func.body)

    def block(self, block: Block) -> list[Any]:
        return [line for op in block.ops for line in [self.line(op)] if line is not None]

    def line(self, op: Op) -> list[Any] | None:
        match op.name:
            case "for":
                head = ["loop", loop_var(op).name, str(extent_of(op)), op.attrs.get("level", "")]
                return [*head, self.block(body_of(op))]
            case "if":
                return ["if", [str(c) for c in op.attrs["guard"]], self.block(body_of(op))]
            case "load":
                guard = [str(c) for c in op.attrs.get("guard", ())]
                return ["load", self.name(op.result), *self.place(op), guard, op.attrs.get("other", 0)]
            case "store":
                guard = [str(c) for c in op.attrs.get("guard", ())]
                return ["store", self.name(op.operands[0]), *self.place(op), guard]
            case "const":
                return ["const", self.name(op.result), str(op.result.type), op.attrs["value"]]
            case "run":
                return self.run(op)
            case "wait":
                return ["wait", [self.name(v) for v in op.operands]]
            case "barrier":
                return ["barrier", op.attrs["level"]]
            case "alloc" | "return":
                return None
        assert op.name in SCALAR_OPS, f"the toy has no {op.name}"
        return ["scalar", op.name, self.name(op.result), *map(self.name, op.operands)]

    def run(self, op: Op) -> list[Any]:
        after = [self.name(v) for v in op.operands]
        copy = copy_in(body_of(op).ops)
        if op.attrs["intrinsic"] == "copy":
            assert isinstance(copy, Copy)
            return ["copy", op.attrs["queue"], self.name(op.result), after, self.transfer(copy)]
        intrinsic = self.machine.intrinsic(op.attrs["intrinsic"])
        assert intrinsic is not None
        found = match_intrinsic(intrinsic, body_of(op))
        assert isinstance(found, IntrinsicMatch)
        strides = [str(found.dims[name]) for name in ("sa", "sb", "sc")]
        operands = [[*self.at(o.buffer, o.start), s] for o, s in zip(found.operands, strides, strict=True)]
        return ["mma", op.attrs["queue"], self.name(op.result), after, operands]

    def transfer(self, copy: Copy) -> list[Any]:
        """Target, source, and for each loop how often, and by how many elements both move."""
        ends = [address_of(copy.store), address_of(copy.load)]
        dims = []
        for loop in copy.loops:
            steps = []
            for k, end in enumerate(ends):
                found = affine_in(end, loop_var(loop))
                assert found is not None
                steps.append(str(found[0]))
                ends[k] = found[1]
            dims.append([str(extent_of(loop)), *steps])
        return [self.at(copy.target, ends[0]), self.at(copy.source, ends[1]), dims]

    def place(self, op: Op) -> list[str]:
        return self.at(op.operands[-1], address_of(op))

    def at(self, buffer: Value, element: Sym) -> list[str]:
        """Memory, dtype, and address in bytes; of arguments their number takes the place of the memory."""
        type = buffer_type(buffer)
        slot = self.slots.get(buffer.op) if buffer.op is not None else None
        memory, start = (self.name(buffer), 0) if slot is None else (type.space, slot.start)
        return [memory, type.dtype.name, str(element * type.dtype.bytes + start)]

    def name(self, value: Value) -> str:
        return self.numbers.setdefault(value, f"v{len(self.numbers)}")
