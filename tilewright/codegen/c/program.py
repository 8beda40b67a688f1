"""A program of kernels as C: `model_tw_plan` computes sizes from shapes, `model_tw_run` calls the kernels.

`model_` stands for the name of what is exported. Both functions give 0 or the number (from 1) of an entry of the
program's error table; their arguments are those of the same functions as native code (`cpu/program/kernel_calls.py`).
"""

from __future__ import annotations

from tilewright.codegen.c.kernel import CKernel
from tilewright.codegen.c.sizes import PRODUCT, SizeTexts
from tilewright.codegen.c.spelling import CNames, c_symbol, c_type, comment
from tilewright.codegen.program import BufferRef, Dim, ErrorTable, InputAxis, KernelCall, Program
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym
from tilewright.loops.kernel_info import kernel_info


class ProgramOfKernels:
    """The functions of one program; `needs` are the scalar functions that they call."""

    def __init__(self, program: Program, errors: ErrorTable) -> None:
        self.program, self.errors = program, errors
        self.needs: dict[str, None] = {}

    def text(self) -> str:
        plan = "" if self.program.is_static else self._plan()
        return plan + self._run()

    # Sizes

    def _plan(self) -> str:
        names, lines = CNames(), list[str]()
        sizes = SizeTexts(lambda v: names.of(v.name, v.name), self.needs, saturates=True)
        for dim in self.program.dims:
            lines.append(f"const int64_t {names.of(dim.var.name, dim.var.name)} = {self._dim(dim, sizes)};")
            sizes.wide.add(dim.var.name)
        for condition in self.program.conditions:
            if condition.holds.is_const and condition.holds.value:
                continue
            number = self.errors.base((condition.check,)) + 1
            lines.append(
                f"if (!({sizes.text(condition.holds)})) return {number}; {comment(condition.check.message)}"
            )
        for k, dim in enumerate(self.program.dims):
            lines.append(f"dims[{k}] = {names.of(dim.var.name, dim.var.name)};")
        flat = [d for shape in self.program.outputs for d in shape]
        lines += [f"out_shapes[{k}] = {sizes.text(d)};" for k, d in enumerate(flat)]
        lines.append(f"sizes[0] = {sizes.text(self.program.arena)}; /* of the arena, in bytes */")
        lines.append(f"sizes[1] = {sizes.text(self.program.scratch)}; /* of scratch memory */")
        parameters = ("in_shapes", "in_data", "dims", "out_shapes")
        body = "\n".join(lines)
        lines = [f"(void){name};" for name in parameters if f"{name}[" not in body] + lines
        head = (
            f"static int32_t {c_symbol(f'tw_plan{self.program.suffix}')}(const int64_t *in_shapes, "
            "const word *in_data, int64_t *dims,\n    int64_t *out_shapes, int64_t *sizes) {"
        )
        return "\n".join([head, *(f"  {line}" for line in lines), "  return 0;", "}", "", ""])

    def _dim(self, dim: Dim, sizes: SizeTexts) -> str:
        source = dim.source
        if isinstance(source, Sym):
            return sizes.text(source)
        if isinstance(source, InputAxis):
            return f"in_shapes[{sum(self.program.ranks[: source.input]) + source.axis}]"
        return f"(int64_t)((const {c_type(source.dtype)} *)in_data[{source.input}].at)[{source.element}]"

    # Calls

    def _run(self) -> str:
        calls = _Calls(self.program, self.errors, self.needs)
        head = f"static int32_t {c_symbol(f'tw_run{self.program.suffix}')}(const word *call) {{"
        return "\n".join([head, *(f"  {line}" for line in calls.lines()), "  return 0;", "}", ""])


class _Calls:
    """The body of the function that calls the kernels, each with the layers that it computes beside it."""

    def __init__(self, program: Program, errors: ErrorTable, needs: dict[str, None]) -> None:
        self.program, self.errors = program, errors
        self.names = CNames()
        self.sizes = SizeTexts(lambda v: self.names.of(("dim", v.name), v.name), needs)
        self.buffers: dict[Value, str] = {}
        self.bases: dict[str, str] = {}
        self.body: list[str] = []

    def lines(self) -> list[str]:
        for k, dim in enumerate(self.program.dims):
            name = self.names.of(("dim", dim.var.name), dim.var.name)
            self.bases[name] = f"const ptrdiff_t {name} = (ptrdiff_t)((const int64_t *)call[6].at)[{k}];"
        calls = [op for op in self.program.main.body.ops if op.name == "call"]
        has_errors = any(self.program.kernels[op.attrs["kernel"]].checks for op in calls)
        for k, op in enumerate(calls):
            if k == 1:
                self._base("stops", "const _Atomic uint32_t *const stops = call[7].at;")
                self._base("began", "const uint32_t began = *stops;")
            if k:
                self.body.append("if (*stops != began) return CANCELLED;")
            self._call(op)
        text = "\n".join(self.body)
        head = [line for name, line in self.bases.items() if _is_word_in(name, text)]
        if has_errors:
            head.append("int32_t error = 0;")
        return [*head, *self.body] if head or self.body else ["(void)call;"]

    def _call(self, op: Op) -> None:
        kernel = self.program.kernels[op.attrs["kernel"]]
        step = self.program.step(op)
        func = self.program.module.funcs[op.attrs["kernel"]]
        assert isinstance(kernel, CKernel)
        arguments = [
            self._argument(v, ref) for v, ref in zip((*op.operands, *op.results), step.buffers, strict=True)
        ]
        arguments += [self.sizes.text(d) for d in step.dims]
        if kernel.scratch.kind != "const" or kernel.scratch.value:
            arguments.append(self._scratch(step))
        if kernel.checks:
            arguments.append("&error")
        origin = ", ".join(kernel_info(func).origin)
        if origin:
            self.body.append(comment(origin[:_LONGEST]))
        self.body += _call_lines(kernel.symbol, arguments)
        if kernel.checks:
            base = self.errors.base(step.checks)
            self.body.append(f"if (error) return {f'{base} + ' if base else ''}error;")

    def _argument(self, value: Value, ref: BufferRef) -> str:
        """The name of a buffer, which is declared where it is met first."""
        if value in self.buffers:
            return self.buffers[value]
        dtype = c_type(value.tensor.dtype)
        is_read = ref.base in ("input", "constants", "lent")
        const = "const " if is_read and not self._is_written(value, ref) else ""
        name = self.names.of(value, value.name or "v")
        offset = self.sizes.text(ref.offset, PRODUCT)
        base = self._start(ref)
        at = base if ref.offset == 0 else f"({base} + {offset})"
        if ref.base in ("input", "output") and ref.offset == 0:
            text = f"{const}{dtype} *const {name} = {base};"
        else:
            text = f"{const}{dtype} *const {name} = ({const}{dtype} *){at};"
        self.body.append(text)
        self.buffers[value] = name
        return name

    def _is_written(self, value: Value, ref: BufferRef) -> bool:
        """Whether a value is what a kernel gives, in memory of a state that it was given."""
        return value.op is not None and value.op.name == "call" and ref.base == "input"

    def _scratch(self, step: KernelCall) -> str:
        """Where the scratch memory of a call begins."""
        if step.scratch_at is None:
            return self._base("scratch", "unsigned char *const scratch = call[5].at;")
        arena = self._start(BufferRef("arena"))
        return arena if step.scratch_at == 0 else f"{arena} + {self.sizes.text(step.scratch_at, PRODUCT)}"

    def _start(self, ref: BufferRef) -> str:
        """The memory in which a buffer lies, as an expression of bytes (or of any pointer where it begins there)."""
        if ref.base == "arena":
            return self._base("arena", "unsigned char *const arena = call[4].at;")
        if ref.base == "constants":
            return self._base("weights", "const unsigned char *const weights = call[3].at;")
        if ref.base == "lent":
            weights = self._base("weights", "const unsigned char *const weights = call[3].at;")
            return f"({weights} + *(const int64_t *)({weights} + {ref.index}))"
        which = self._base(
            f"{ref.base}s", f"const word *const {ref.base}s = call[{1 if ref.base == 'input' else 2}].at;"
        )
        at = f"{which}[{ref.index}].at"
        return at if ref.offset == 0 else f"(unsigned char *){at}"

    def _base(self, name: str, text: str) -> str:
        self.bases.setdefault(name, text)
        return name


def _is_word_in(name: str, text: str) -> bool:
    at = text.find(name)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(name) : at + len(name) + 1]
        if not (before.isalnum() or before == "_" or after.isalnum() or after == "_"):
            return True
        at = text.find(name, at + 1)
    return False


def _call_lines(symbol: str, arguments: list[str]) -> list[str]:
    line, lines = f"{symbol}(", list[str]()
    for k, argument in enumerate(arguments):
        piece = argument + (", " if k < len(arguments) - 1 else ");")
        if len(line) + len(piece) > _WIDTH:
            lines.append(line.rstrip())
            line = "    "
        line += piece
    return [*lines, line if arguments else f"{line});"]


_WIDTH = 116
_LONGEST = 110
"""Characters of the names of layers beside a call."""
