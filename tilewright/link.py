"""Linking: the scheduled module and its storage become a program, texts to compile, and the artefact."""

from __future__ import annotations

import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tilewright
from tilewright.accounts.flow import flow_of_parts
from tilewright.accounts.reports import report_of_parts, with_more_time
from tilewright.codegen.devices.program import plan_of
from tilewright.codegen.devices.sizes import encoded
from tilewright.codegen.program import (
    BufferRef,
    Check,
    Condition,
    Dim,
    ErrorTable,
    InputAxis,
    InputElement,
    KernelText,
    Program,
    ProgramText,
)
from tilewright.external.compiler import ExternalCompiler
from tilewright.graph.assumptions import Assumption, worded
from tilewright.ir.constants import Deferred
from tilewright.ir.core import Builder, Func, Module, Value
from tilewright.ir.diag import Loc, Remark, UnsupportedError, failure
from tilewright.ir.optional_steps import CHECKED, OptionalSteps
from tilewright.ir.sym import ZERO, Sym, eq, sym, unbounded
from tilewright.ir.types import ANY_DIM, HostType, TensorType, Type
from tilewright.loops.storage.packing import PackedArray
from tilewright.ops.define.binding import input_variables
from tilewright.ops.define.staged import MEASURE
from tilewright.ops.view import copy
from tilewright.program.memory.budget import check_room
from tilewright.program.memory.places import ARENA, OF_THREAD, ZONES, arena_of, is_planned, places_of
from tilewright.program.memory.storage import needs_copy
from tilewright.program.spec import READ
from tilewright.program.split import PLACE, part_functions
from tilewright.program.states import GROWING, STATES, states_of
from tilewright.program.steps import Staged
from tilewright.program.uses import dims_of
from tilewright.runtime.arena import ALIGNMENT, address_of, aligned_bytes, flat_bytes, release_free_memory
from tilewright.runtime.artifact import (
    EXTERNAL,
    Artifact,
    ConstantInfo,
    Failure,
    StateInfo,
    StaticPlan,
    TargetInfo,
    TensorInfo,
    Variant,
)
from tilewright.runtime.devices import external
from tilewright.runtime.errors import OptionError
from tilewright.runtime.guarded import GUARD_ZONES, PAGE
from tilewright.runtime.report.kept import KeptReport
from tilewright.runtime.report.records import ProgramReport
from tilewright.runtime.storage.files import LentArray, Ranges, joined
from tilewright.target.machine import GLOBAL, Machine


class Lent:
    """Memory of the caller in which constants may stay: that of these arrays, which are not held."""

    def __init__(self, arrays: Iterable[np.ndarray] = ()) -> None:
        held = (a for a in arrays if a.dtype != object and a.nbytes >= LEAST_LENT and a.flags.c_contiguous)
        self._parts = sorted((start, start + a.nbytes) for a in held for start in [address_of(a)])

    def holds(self, array: np.ndarray) -> bool:
        """Whether kernels can read an array there, as they read those of the weights."""
        start = address_of(array)
        if array.nbytes < LEAST_LENT or start % ALIGNMENT or not array.flags.c_contiguous:
            return False
        k = bisect_right(self._parts, (start, sys.maxsize)) - 1
        return k >= 0 and start + array.nbytes <= self._parts[k][1]


LEAST_LENT = 1 << 16
"""Bytes from which on a constant may stay where it is: each costs a slot of 64 bytes, and reading that in each call."""


_Alike = list[tuple[int, bool, np.ndarray | PackedArray]]
"""Constants that begin alike, with their places."""


class Weights:
    """The constants of all programs of an artefact, one after the other, each content once; of those that are lent, the
    distance to where they are.

    They move here: a module loses each as soon as it has its place, so that weights are never in memory twice.
    """

    def __init__(
        self, lent: Lent | None = None, threads: int = 1, optional: OptionalSteps = CHECKED, swapped: bool = False,
        apart: bool = False, guarded: bool = False,
    ) -> None:  # fmt: skip
        """`swapped`: the machine that reads them has another byte order than this one. `apart`: constants of several
        dtypes share no bytes, as they are written as numbers. `guarded`: each ends with a page, and a page for a guard
        zone follows."""
        self.total = 0
        self._guarded = guarded
        self._swapped, self._apart = swapped, apart
        self.remarks: list[Remark] = []
        self._optional = optional
        self._threads = threads
        self._arrays: list[tuple[int, np.ndarray | PackedArray, str, int]] = []
        self._alike: dict[tuple[int, int | str, int], _Alike] = {}
        self._memory = Lent() if lent is None else lent
        self._lent: list[LentArray] = []
        self._placed: list[tuple[int, int]] = []

    def place(self, array: np.ndarray | PackedArray, name: str = "") -> tuple[int, bool]:
        """The offset of an array's bytes; or of the slot with their distance, and True, where they are lent. `name` is
        that of the constant."""
        unit = _swapped_bytes(array.dtype) if self._swapped else 1
        is_lent = unit == 1 and not isinstance(array, PackedArray) and self._memory.holds(array)
        data = array if isinstance(array, PackedArray) else flat_bytes(array)

        def alone(error: Exception) -> tuple[_Alike, None]:
            self.remarks.append(failure("share-constants", f"constant {name}", error, "it has memory of its own"))
            return [], None

        kind = array.dtype.name if self._apart else unit
        same, found = self._optional.survive(lambda: self._same(data, kind), alone)
        size = -(-(ALIGNMENT if is_lent else data.nbytes) // ALIGNMENT) * ALIGNMENT
        if found is not None:
            self._placed.append((found[0], found[0] + size))
            return found
        offset, self.total = self.total, self.total + size
        if self._guarded and size and not is_lent:
            offset = -(-offset // PAGE) * PAGE + -size % PAGE
            self.total = offset + size + PAGE
        self._placed.append((offset, offset + size))
        same.append((offset, is_lent, data))
        if is_lent and isinstance(data, np.ndarray):
            self._lent.append(LentArray(offset, data, zlib.crc32(data.data)))
        else:
            self._arrays.append((offset, data, name, unit))
        return offset, is_lent

    def placed(self) -> Ranges:
        """The bytes of all constants that have been given a place since this was asked for the last time."""
        found, self._placed = self._placed, []
        return joined(found)

    def _same(self, data: np.ndarray | PackedArray, kind: int | str) -> tuple[_Alike, tuple[int, bool] | None]:
        """Those that begin as an array does, and the place of one that is the same."""
        same = self._alike.setdefault((data.nbytes, kind, _sample(data)), [])
        return same, next(((offset, kind) for offset, kind, other in same if _are_alike(data, other)), None)

    def blocks(self) -> tuple[memoryview, tuple[LentArray, ...]]:
        """Concatenate all constants, with zeros up to their alignment, and free them: the block, and the borrowed
        arrays that it refers to by their distance."""
        self._alike.clear()
        release_free_memory()
        block = aligned_bytes(self.total)
        if self._guarded:  # what lies between constants is the same in every artefact
            block[:] = 0
        with ThreadPoolExecutor(self._threads) as pool:
            for moved in [pool.submit(self._move, block) for _ in range(self._threads)]:
                moved.result()
        distances = block[: self.total // 8 * 8].view(np.int64)
        for array in self._lent:
            block[array.slot : array.slot + ALIGNMENT] = 0
            distances[array.slot // 8] = address_of(array.data) - address_of(block)
        return block.data, tuple(self._lent)

    def _move(self, block: np.ndarray) -> None:
        """Write constants to their places until none is left, as several threads do."""
        moved = 0
        while (found := self._next()) is not None:
            offset, data, name, unit = found
            end = offset + data.nbytes
            try:
                if isinstance(data, PackedArray):
                    data.write(block[offset:end].view(data.dtype).reshape(data.shape))
                else:
                    block[offset:end] = data
                if unit > 1:
                    block[offset:end].view(f"u{unit}").byteswap(inplace=True)
            except Exception as error:
                self._optional.blame(name, error)
            block[end : end + -end % ALIGNMENT] = 0
            moved += data.nbytes
            if moved >= RELEASED:
                del found, data
                release_free_memory()
                moved = 0

    def _next(self) -> tuple[int, np.ndarray | PackedArray, str, int] | None:
        try:
            return self._arrays.pop()
        except IndexError:
            return None


RELEASED = 64 << 20
"""Bytes of constants that have moved when the C library, which keeps arrays of up to 32 MiB after they are freed, is
asked to give memory back."""
_SAMPLE = 4096
"""Bytes by whose checksum constants that may be alike are found."""
_PIECE = 1 << 20
"""Bytes that are compared at a time."""


def _swapped_bytes(dtype: np.dtype) -> int:
    """Bytes of the numbers that elements consist of."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _sample(data: np.ndarray | PackedArray) -> int:
    """A checksum of the first bytes."""
    first = data.first(_SAMPLE // data.dtype.itemsize) if isinstance(data, PackedArray) else data[:_SAMPLE]
    return zlib.crc32(first.tobytes())


def _are_alike(a: np.ndarray | PackedArray, b: np.ndarray | PackedArray) -> bool:
    """Whether two constants have the same bytes. Those that are packed in one way are compared as they are."""
    if isinstance(a, PackedArray) and isinstance(b, PackedArray) and a.form == b.form:
        return _are_equal(flat_bytes(a.array), flat_bytes(b.array))
    first, second = (flat_bytes(x.make()) if isinstance(x, PackedArray) else x for x in (a, b))
    return _are_equal(first, second)


def _are_equal(a: np.ndarray, b: np.ndarray) -> bool:
    return all(np.array_equal(a[k : k + _PIECE], b[k : k + _PIECE]) for k in range(0, a.size, _PIECE))


@dataclass(frozen=True)
class Constants:
    """Where the constants that a program reads lie in the weights."""

    table: tuple[ConstantInfo, ...]

    @property
    def starts(self) -> dict[str, BufferRef]:
        """As kernels find them."""
        return {info.name: _start_of(info) for info in self.table}


def _start_of(info: ConstantInfo) -> BufferRef:
    return BufferRef("lent", info.offset) if info.is_lent else BufferRef("constants", offset=sym(info.offset))


def copy_aliased_outputs(module: Module) -> None:
    """Give outputs that are inputs, constants or other outputs a copy of their own, so that a kernel writes them."""
    func = module.main
    final = func.body.ops[-1]
    returned = list(func.returns)
    names = func.attrs.get("outputs", [v.name for v in returned])
    func.body.ops.pop()
    with Builder(func.body, module) as builder:
        for k in needs_copy(func, returned):
            builder.loc = Loc(op="output", value=names[k])
            copied = copy(returned[k])
            copied.name = returned[k].name
            returned[k] = copied
    func.body.append(final)
    final.set_operands(returned)


def lay_out_constants(module: Module, weights: Weights) -> Constants:
    """Places for the constants that kernels still read, in order of use; takes them out of `module`."""
    table: dict[str, ConstantInfo] = {}
    for op in module.main.body.ops:
        name = op.attrs["name"] if op.name == "constant" and op.result.users else None
        if name is not None and name not in table:
            array = module.constants.take(name)
            if isinstance(array, Deferred) and not isinstance(array, PackedArray):
                array = array.make()
            table[name] = ConstantInfo(name, array.dtype.name, array.shape, *weights.place(array, name))
    return Constants(tuple(table.values()))


def make_program(
    module: Module,
    constants: Constants,
    kernels: dict[str, KernelText],
    assumed: Sequence[Assumption] = (),
    flush_denormals: bool = False,
    suffix: str = "",
    guarded: bool = False,
) -> Program:
    """The main function with the addresses of its constants; what is assumed is checked before. The suffix tells the
    program from others of the same artefact. One that is `guarded` leaves room for guard zones."""
    return Program(
        module, kernels, constants.starts, _dims(module.main, assumed),
        tuple(Condition(a.holds, Check("InputError", f"{a.message}{_place(a.loc)}")) for a in assumed),
        flush_denormals, suffix, guarded,
    )  # fmt: skip


def make_program_of_parts(
    module: Module, staged: Staged, parts: Sequence[Program], names: Sequence[str]
) -> Program:
    """The main function with the frame of its native code; `names` are those of the code of its parts."""
    suffix = staged.program.native_suffix(names)
    return Program(module, suffix=suffix, parts=tuple(parts), slots=staged.slots, parts_at=staged.program.parts)


def _place(loc: Loc) -> str:
    return f" (in {loc})" if loc.node or loc.op else ""


def _dims(main: Func, assumed: Sequence[Assumption]) -> tuple[Dim, ...]:
    """Where the variables get their values: axes of inputs, and elements of small integer inputs."""
    found: dict[Sym, Dim] = {}
    for k, arg in enumerate(main.args):
        for axis, d in enumerate(arg.tensor.shape):
            if d.kind == "var":
                found.setdefault(d, Dim(d, InputAxis(k, axis)))
    used = _variables_used(main).union(*(a.holds.vars for a in assumed))
    for k, arg in enumerate(main.args):
        symbols = input_variables(arg)
        for i, v in enumerate(symbols.flat if symbols is not None else ()):
            if v in used or unbounded(v) in used:
                found.setdefault(v, Dim(v, InputElement(k, i, arg.tensor.dtype)))
    numbers = {state.result: len(main.args) + k for k, (state, _) in enumerate(states_of(main))}
    for op in (op for op in main.body.ops if op.name == MEASURE):  # of a state
        (read,) = (v.op for v in op.operands)
        assert read is not None and read.name == READ
        for i, v in enumerate(op.attrs["variables"]):
            if v in used or unbounded(v) in used:
                found.setdefault(v, Dim(v, InputElement(numbers[read.operands[0]], i, read.result.tensor.dtype)))
    return tuple(found.values())


def _variables_used(main: Func) -> set[Sym]:
    """Variables in shapes of values and in the dims of calls."""
    used: set[Sym] = set()
    for op in main.body.ops:
        for d in op.attrs.get("dims", ()):
            used |= d.vars
        for v in op.results:
            used.update(dims_of(v))
    return used


def make_artifact(
    module: Module,
    constants: Constants,
    program: Program,
    text: ProgramText,
    target: TargetInfo,
    report: ProgramReport,
) -> Artifact:
    """A program of the compiled model, still without the code and the weights."""
    main = module.main
    names = [a.name for a in main.args]
    ins = main.attrs.get("inputs", tuple(names))
    outs = main.attrs.get("outputs", tuple(f"output{k}" for k in range(len(main.returns))))
    return Artifact(
        target=target,
        inputs=_infos(ins, main.args, main.attrs.get("complex_inputs", ())),
        outputs=_infos(outs, main.returns, main.attrs.get("complex_outputs", ())),
        constant_table=constants.table,
        static_plan=StaticPlan(program.arena.value, program.scratch.value) if program.is_static else None,
        variables=tuple(d.var.name for d in program.dims),
        dims_count=len(program.dims),
        plan_reads_data=any(isinstance(d.source, InputElement) for d in program.dims),
        errors=tuple(Failure(**entry) for entry in text.errors.metadata()),
        plan_symbol=f"tw_plan{text.suffix}",
        run_symbol=f"tw_run{text.suffix}",
        run_profiled_symbol=f"tw_run_profiled{text.suffix}",
        producer=f"tilewright {tilewright.__version__}",
        attached=_attached(program),
        kept_report=KeptReport(report),
        assumed=tuple(worded(c.holds) for c in program.conditions),
    )


def _attached(program: Program) -> Mapping[str, Any]:
    """What tools keep with a program, and of one with guard zones: the names of tensors between them, whether scratch
    memory is apart, and the kernels in which threads read the first one's."""
    attrs = program.main.attrs
    attached: Mapping[str, Any] = attrs.get("attached", {})
    if not program.guarded:
        return attached
    names = [name for name, _, _ in attrs.get(ZONES, ())]
    forking = sorted({step.kernel for step in program.steps if step.forks})
    return {**attached, GUARD_ZONES: {"arena": names, "scratch": OF_THREAD not in attrs, "forking": forking}}


def check_memory(module: Module, weights: int, machine: Machine) -> None:
    """UnsupportedError where a program with so many bytes of weights does not fit into a machine's large memory."""
    memory = machine.memory(GLOBAL.name)
    if memory is not None and memory.bytes is not None:
        check_room(module.main, arena_of(module.main), weights, memory.name, memory.bytes)


def make_states(module: Module, weights: Weights) -> tuple[StateInfo, ...]:
    """The states of a program, in order, whose first values go to the weights."""
    main = module.main
    places = places_of(main) if is_planned(main) else {}
    outputs = {name: output for name, output, _ in main.attrs.get(STATES, ())}
    grown = {name: growth for name, *growth in main.attrs.get(GROWING, ())}
    found = []
    for state, update in states_of(main):
        name = state.attrs["name"]
        initial = -1
        if "initial" in state.attrs:
            array = np.array(module.constants.take(state.attrs["initial"]))
            if array.tobytes().strip(b"\0"):
                initial, _ = weights.place(array, name)
        (info,) = _infos([name], [update.operands[1]], main.attrs.get("complex_inputs", ()))
        place = places.get(update.operands[1])
        way = "handed on" if place is None else "in place" if place.base == "state" else "swapped"
        axis, counter, window = grown.get(name, (-1, "", -1))
        found.append(StateInfo(info, outputs[name], way, initial, axis, counter, window))
    return tuple(found)


def make_staged(
    module: Module,
    staged: Staged,
    parts: Sequence[Artifact],
    target: TargetInfo,
    numerics: str,
    states: tuple[StateInfo, ...] = (),
) -> Artifact:
    """The artefact of a graph that was split into parts."""
    main, program = module.main, staged.program
    nodes = main.attrs.get("nodes", len(main.body.ops))
    report = report_of_parts([part.report for part in parts], nodes, numerics)
    names = [part.name for part in part_functions(module)]
    calls = {name: part.report.calls for name, part in zip(names, parts, strict=True)}
    report = replace(report, flow=flow_of_parts(module, calls))
    return Artifact(
        target=target,
        inputs=_infos(main.attrs["inputs"], main.args, main.attrs.get("complex_inputs", ())),
        outputs=_infos(main.attrs["outputs"], main.returns, main.attrs.get("complex_outputs", ())),
        program=program,
        parts=tuple(parts),
        states=states,
        producer=f"tilewright {tilewright.__version__}",
        attached=main.attrs.get("attached", {}),
        kept_report=KeptReport(report),
        assumed=_assumed_by(parts, [f.attrs.get(PLACE, "") for f in part_functions(module)]),
    )


def make_external(
    module: Module, assumed: Sequence[Assumption], suffix: str, compiler: ExternalCompiler, data: bytes,
    objects: list[bytes],
) -> Artifact:
    """The artefact of a part that the compiler of a plugin has made, which joins the `objects`."""
    main = module.main
    main.attrs[ARENA] = ZERO
    program = make_program(module, Constants(()), {}, assumed, suffix=suffix)
    text = ProgramText("", ErrorTable(), suffix)
    numbers = {dim.var.name: k for k, dim in enumerate(program.dims)}
    described = {
        "plan": plan_of(program, text.errors, numbers),
        "inputs": [_shaped(value, numbers) for value in main.args],
        "outputs": [_shaped(value, numbers) for value in main.returns],
    }
    objects.append(external.packed(described, data))
    report = ProgramReport(nodes=main.attrs["nodes"])
    target = TargetInfo("", f"{compiler.name} {compiler.version}", kind=EXTERNAL)
    made = make_artifact(module, Constants(()), program, text, target, report)
    about = {"compiler": compiler.name, "version": compiler.version, "object": len(objects) - 1}
    return replace(made, attached={**made.attached, EXTERNAL: about})


def _shaped(value: Value, numbers: Mapping[str, int]) -> list[Any]:
    """The dtype and the shape of a tensor, as what runs a part reads it."""
    return [value.tensor.dtype.storage.name, [encoded(n, numbers) for n in value.tensor.shape]]


def _assumed_by(parts: Sequence[Artifact], places: Sequence[str]) -> tuple[str, ...]:
    """What is assumed of all calls, and then what only parts assume that some calls do not run, with their places."""
    pairs = [(a, place) for part, place in zip(parts, places, strict=True) for a in part.assumed]
    always = dict.fromkeys(a for a, place in pairs if not place)
    sometimes = dict.fromkeys(f"{a}{_PLACED}{place}" for a, place in pairs if place and a not in always)
    return (*always, *sometimes)


_PLACED = ", in "
"""What stands between a condition and the place of what assumes it."""


def _infos(names: Sequence[str], values: Sequence[Value], complex_names: Sequence[str]) -> tuple[TensorInfo, ...]:
    """What callers see: complex numbers where the program has their parts."""
    infos = [_info_of_type(name, value.type) for name, value in zip(names, values, strict=True)]
    return tuple(info.of_parts if info.name in complex_names else info for info in infos)


def _info_of_type(name: str, type: Type) -> TensorInfo:
    dtype = getattr(type, "dtype", None)
    text = "object" if dtype is None else "string" if dtype.kind == "string" else dtype.storage.name
    if isinstance(type, HostType):
        kind = "unranked" if type.element is None else type.kind
        element = None if type.element is None else _info_of_type("", type.element)
        return TensorInfo(name, text, (), kind, element)
    assert isinstance(type, TensorType)
    shape = tuple(d.value if d.is_const else "?" if d is ANY_DIM else str(d) for d in type.shape)
    return TensorInfo(name, text, shape)


def make_variant(general: Artifact, sizes: Mapping[str, int], artifact: Artifact) -> Variant:
    """The variant of a program for some sizes; OptionError where its results are of other types."""
    for ours, other in zip(general.outputs, artifact.outputs, strict=True):
        if (ours.kind, ours.dtype, len(ours.shape)) != (other.kind, other.dtype, len(other.shape)):
            raise OptionError(
                f"with these sizes the model gives {other}, and {ours} with others",
                hint="leave them out, or compile a model of its own for these shapes",
            )
    return Variant(sizes, artifact)


def with_broadcasting(artifact: Artifact, general: Artifact, open_dims: Iterable[tuple[Sym, Sym]]) -> Artifact:
    """The artefact with a program that has both meanings of the dims that it takes for equal. UnsupportedError where
    the results of that have other ranks."""
    for ours, other in zip(artifact.outputs, general.outputs, strict=True):
        if (ours.kind, ours.dtype, len(ours.shape)) != (other.kind, other.dtype, len(other.shape)):
            raise UnsupportedError(f"{ours} would be {other}")
    both = {str(eq(a, b)) for a, b in open_dims}

    def with_both(assumed: str) -> str:
        condition, comma, place = assumed.partition(_PLACED)
        return f"{condition} or one of them is 1{comma}{place}" if condition in both else assumed

    return replace(artifact, broadcasting=general, assumed=tuple(map(with_both, artifact.assumed)))


def with_costs(artifact: Artifact, seconds: Mapping[str, float], added: Sequence[tuple[int, int]]) -> Artifact:
    """The artefact with seconds of stages in its report, and in those of the programs beside the general one the bytes
    of code and of constants that each `added`."""

    def costing(program: Artifact, number: int) -> Artifact:
        code, constants = added[number]
        return program.reporting(added_code_bytes=code, added_constant_bytes=constants)

    variants = tuple(replace(v, artifact=costing(v.artifact, k)) for k, v in enumerate(artifact.variants))
    general = artifact.broadcasting
    return replace(
        artifact,
        kept_report=KeptReport(with_more_time(artifact.report, seconds)),
        variants=variants,
        broadcasting=None if general is None else costing(general, len(variants)),
    )
