"""Native code of kernels beside what their regions mean: a program of the same regions that gives the result of each is
run on the calls that passes were replayed on, and on more sizes, between guard zones."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_rest
from tilewright.graph.editing import set_outputs
from tilewright.ir.core import Block, Module, Op, Value
from tilewright.ir.diag import TilewrightError
from tilewright.ir.optional_steps import Part
from tilewright.ir.sym import Sym
from tilewright.ir.text import print_func
from tilewright.ops.define import OPERATORS
from tilewright.program.states import GROWING, STATES
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import BeyondBufferError, InputError
from tilewright.validation.cases import cases_of, dims_of_inputs, refuse_call
from tilewright.validation.closeness import Deviation, deviation, rounded_otherwise, tolerance
from tilewright.validation.extract import input_names, program_of
from tilewright.validation.findings import Fault
from tilewright.validation.guarded import between_zones, fault_of, with_room_for_zones
from tilewright.validation.passes import FusedReplay, regions_of
from tilewright.validation.races import races_of
from tilewright.validation.values import (
    EVALUATION,
    NudgedValues,
    ReplayedValues,
    TooLong,
    bytes_of_values,
    is_repeatable,
    largest_step,
    moved_everywhere,
    reads_floats,
)

if TYPE_CHECKING:
    from tilewright.validation.validate import Validation

MOST_BYTES = 1 << 30
"""Of all results of regions, which are held at once."""

RACE_SECONDS = 8.0
"""For the parallel loops of all kernels."""

UNWRITTEN = 0xFF
"""Each byte of memory that nothing was written to: no number as a float, which guard zones fill memory with, too."""

MOST_SIZES = 12
"""Further sizes of dims that a call chooses, near the numbers at which kernels take other loops."""

SIZES_SECONDS = 2.0
"""Of processor time from which on no further size begins, where compiling the kernels has taken less than half of
it."""

LARGEST = 80
"""Of these sizes."""

MOST_AT_A_SIZE = 1 << 27
"""Bytes of all values of a call at such a size: what is larger takes longer than all others together."""

PLANNING = ("inplace", "share-memory", "order", "concurrent-kernels")
"""Steps behind schedules that can be left out: what kernels may overwrite, where values lie, the order of calls."""


@dataclass
class KernelCheck:
    """The regions of one program, and the native code of each."""

    validation: Validation
    fused: FusedReplay
    setting: Setting
    regions: list[Op] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    blamed: set[str] = field(default_factory=set)

    def run(self, artifact: Artifact | None) -> None:
        """Compare kernel by kernel, and then the artefact itself with the program of its kernels."""
        module = self.fused.module
        self.regions = list(regions_of(module))
        values = [v for op in self.regions for v in op.results]
        if any(_bytes(v, self.fused.values[0].case.env) is None for v in values):
            return self._skip("a region gives something else than tensors")
        if sum(_bytes(v, self.fused.values[0].case.env) or 0 for v in values) > MOST_BYTES:
            return self._skip("its intermediate results need too much memory")
        copies: dict[Value, Value] = {}
        tapped = module.copy(copies)
        set_outputs(tapped, {f"tap{k}": copies[v] for k, v in enumerate(values)})
        for attribute in (STATES, GROWING):
            tapped.main.attrs.pop(attribute, None)  # what is kept is an input and an output like others
        _join_by_kernels(tapped)
        setting = replace(self.setting, numbers=count(), watch=None, progress=None, observe=None)
        compilation = Compilation(tapped, with_room_for_zones(setting))
        began = time.thread_time()
        model = between_zones(compile_rest(compilation))
        for_sizes = max(SIZES_SECONDS, 2 * (time.thread_time() - began))
        makers = _kernels_of(self.regions, compilation.module.main.returns)
        self._look_for_races(makers, compilation)
        self._tell()
        try:
            for known in self._calls(compilation.module, for_sizes):
                self._compare(known, model, values, makers, compilation)
                self._tell()
                if artifact is not None and all(map(is_repeatable, self.fused.module.main.body.ops)):
                    self._compare_whole(known, artifact, setting)
                self.validation.calls += 1
        except TooLong:
            self._skip("the interpreter takes too long for them")
        self.validation.kernels += len({*makers.values()})
        return None

    def _look_for_races(self, makers: Mapping[Op, str], compilation: Compilation) -> None:
        """In the kernels, before they run."""
        module, known = compilation.module, self.fused.values[0]
        deadline, seen = time.thread_time() + RACE_SECONDS, set[str]()
        regions = {kernel: op for op, kernel in makers.items()}
        for call in module.main.body.ops:
            name = call.attrs.get("kernel", "") if call.name == "call" else ""
            if not name or name in seen or time.thread_time() > deadline:
                continue
            seen.add(name)
            kernel = module.funcs[name]
            pairs = zip(kernel.dims, call.attrs["dims"], strict=True)
            dims = {d.name: int(n.evaluate(known.case.env)) for d, n in pairs}
            operands = [known.known.get(v) for v in regions[name].operands] if name in regions else []
            races = races_of(kernel, dims, [a for a in operands if a is not None])
            self.validation.note_races(races)
            if races.wrong and name in regions:
                self._blame(regions[name], name, races.wrong, known, compilation)

    def _tell(self) -> None:
        """Switch off how the kernels were made that are wrong, all of them at once: each attempt takes its time."""
        if self.faults:
            self.validation.fail(self.fused.compilation, *self.faults)

    def _skip(self, why: str) -> None:
        self.validation.skip(self.fused.compilation, f"its kernels are not compared: {why}")

    def _calls(self, module: Module, for_sizes: float) -> Iterator[ReplayedValues]:
        """Those on which passes were replayed, and then others of sizes that matter to the kernels, as many as begin
        within so many seconds."""
        yield from self.fused.values
        main, names = self.fused.module.main, dims_of_inputs(self.fused.module.main)
        done = {tuple(known.case.env.values()) for known in self.fused.values}
        sizes, began = _turning_sizes(module)[:MOST_SIZES] if names else [], time.thread_time()
        small = [n for n in sizes if bytes_of_values(main, dict.fromkeys(names, n)) <= MOST_AT_A_SIZE]
        for number, size in enumerate(small):
            if time.thread_time() - began > for_sizes:
                left = f"{len(small) - number} of {len(small)} further sizes"
                self.validation.skip(self.fused.compilation, f"its kernels are not compared at {left}, for time")
                return
            for case in cases_of(main, dict.fromkeys(names, size), ("random",)):
                if tuple(case.env.values()) in done:
                    continue
                deadline = time.thread_time() + self.validation.seconds / 8
                numerics, shared = self.fused.values[0].numerics, self.fused.values[0].shared
                known = ReplayedValues(self.fused.module, case, deadline, numerics, shared)
                try:
                    if all(known.compute(op) for op in main.body.ops[:-1]):
                        yield known
                except (TooLong, *EVALUATION):
                    continue

    def _compare(
        self, known: ReplayedValues, model: Model, values: Sequence[Value], makers: Mapping[Op, str],
        compilation: Compilation,
    ) -> None:  # fmt: skip
        results = [_unwritten(known.known[v]) for v in values]
        try:
            model(*known.case.arrays, out=results)
        except BeyondBufferError as error:
            return self._blame_beyond(error, known, makers, compilation)
        except TilewrightError as error:
            return self.validation.note_refused(known.case, error)
        self._compare_results(known, dict(zip(values, results, strict=True)), makers, compilation)

    def _blame_beyond(
        self, error: BeyondBufferError, known: ReplayedValues, makers: Mapping[Op, str], compilation: Compilation
    ) -> None:  # fmt: skip
        """Of kernels that run at the same time each may be the one that went beyond its buffers. One that gives no
        result of a region is of that of the next one that does."""
        regions = {kernel: op for op, kernel in makers.items()}
        order = [op.attrs["kernel"] for op in compilation.module.main.body.ops if op.name == "call"]
        for kernel in error.kernels or regions:
            following = order[order.index(kernel) :] if kernel in order else []
            known_by = next((name for name in following if name in regions), next(reversed(regions), ""))
            if known_by:
                self._blame(regions[known_by], kernel, error.what, known, compilation)

    def _compare_results(
        self, known: ReplayedValues, found: Mapping[Value, np.ndarray], makers: Mapping[Op, str],
        compilation: Compilation,
    ) -> None:  # fmt: skip
        """The results of all regions beside what these give of the same operands."""
        native = ReplayedValues(known.module, known.case, known.deadline, known.numerics, known.shared)
        for op in self.fused.module.main.body.ops[:-1]:
            if op.name != "fused":
                try:
                    native.compute(op)
                except EVALUATION:
                    return  # what rounding decided leaves it no result
                continue
            for number, value in enumerate(op.results if is_repeatable(op) else ()):
                if wrong := self._wrong(op, number, known.known[value], found[value], native):
                    self._blame(op, makers.get(op, ""), wrong, native, compilation)
            native.known.update((value, found[value]) for value in op.results)

    def _wrong(self, op: Op, number: int, expected: np.ndarray, found: np.ndarray, native: ReplayedValues) -> str:
        """How a kernel's result differs from what its region gives of the same operands."""
        if not _is_suspicious(expected, found):
            return ""
        try:
            results = native.results(op)
        except (TooLong, *EVALUATION):
            return ""
        if results is None:
            return ""
        wanted = results[number]
        found = written_of(op, wanted, found)
        moved = partial(self._moved, op, number, native)
        wrong: Deviation | None = deviation(wanted, found, moved=moved, of_floats=reads_floats(op))
        wrong = rounded_otherwise(wanted, found) if wrong is None else wrong
        return str(wrong) if wrong is not None else ""

    def _moved(self, op: Op, number: int, native: ReplayedValues) -> np.ndarray | None:
        arrays = [native.known[v] for v in op.operands]
        try:
            before, moved = native.of(op, arrays)[number], native.moved(arrays)
            ways = [NudgedValues(native, native.case, sign).of(op, moved)[number] for sign in (1, -1)]
            return largest_step(before, ways)
        except EVALUATION:
            return None

    def _blame(self, op: Op, kernel: str, wrong: str, native: ReplayedValues, compilation: Compilation) -> None:
        """Note that a kernel is wrong, and how it was made; once for each."""
        if kernel in self.blamed:
            return
        self.blamed.add(kernel)
        optional, module = self.setting.optional, self.fused.module
        parts = tuple(p for p in optional.taken.makers.get(kernel, ()) if p not in optional.off)
        constants = [v.op for v in op.operands if v.op is not None and v.op.name == "constant"]
        inputs = [v for v in dict.fromkeys(op.operands) if v.op not in constants]
        names = input_names(inputs)
        body = op.blocks[0]
        inner = dict(zip(body.args, op.operands, strict=True))
        before = _unfused(op, constants, inputs, names, inner, module)
        func = compilation.module.funcs.get(kernel)
        finding = Fault(
            "schedule", "", f"the kernel {kernel} of {op.loc}", wrong, str(native.case),
            parts or (Part("schedule", label=kernel),), before, "" if func is None else print_func(func),
            {names[v]: native.known[v] for v in inputs}, places=op.loc.sources,
        )  # fmt: skip
        self.faults.append(finding)

    def _compare_whole(self, known: ReplayedValues, artifact: Artifact, setting: Setting) -> None:
        """The artefact beside the program of its kernels: only the plan of memory and the order of calls differ."""
        wanted = [known.known[v] for v in self.fused.module.main.returns]
        wrong = self._wrong_whole(known, artifact, wanted)
        if not wrong:
            return
        for step in PLANNING:
            optional = replace(setting.optional, off=setting.optional.off | {Part(step)})
            copy = self.fused.module.copy()
            anew = replace(setting, optional=optional, numbers=count(), known=None)  # kernels say what is in place
            again = compile_rest(Compilation(copy, anew))
            if not self._wrong_whole(known, again, wanted):
                break
        else:
            step = "share-memory"
        names = self.fused.module.main.attrs["inputs"]
        part = Part(step, label=f"the step '{step}'")
        finding = Fault(
            step, "", "the program", wrong, str(known.case), (part,), self.fused.module, "",
            dict(zip(names, known.case.arrays, strict=True)),
        )  # fmt: skip
        self.validation.fail(self.fused.compilation, finding)

    def _wrong_whole(self, known: ReplayedValues, artifact: Artifact, wanted: Sequence[np.ndarray]) -> str:
        results = [_unwritten(a) for a in wanted]
        try:
            between_zones(artifact)(*known.case.arrays, out=results)
        except BeyondBufferError as error:
            return error.what
        except TilewrightError as error:
            self.validation.note_refused(known.case, error)
            return fault_of(error) or self._refused_wrongly(known, error)
        moves = cache(partial(moved_everywhere, known, wanted))
        for number, (expected, result) in enumerate(zip(wanted, results, strict=True)):
            wrong = deviation(expected, result, moved=partial(_taken, moves, number), of_floats=True)
            if wrong is not None:
                return f"result {number}: {wrong}"
        return ""

    def _refused_wrongly(self, known: ReplayedValues, error: TilewrightError) -> str:
        """How the code refuses a call that the graph takes for granted nothing against."""
        if not isinstance(error, InputError):
            return ""
        try:
            refuse_call(known.case, self.fused.compilation.assumed)
        except InputError:
            return ""
        return f"it refuses the call: {error.what}"


def _taken(moves: Callable[[], Sequence[np.ndarray | None]], number: int) -> np.ndarray | None:
    """One of what is computed when it is first asked for."""
    return moves()[number]


def _unwritten(like: np.ndarray) -> np.ndarray:
    """Memory for a result."""
    return np.full(like.nbytes, UNWRITTEN, np.uint8).view(like.dtype).reshape(like.shape)


def written_of(op: Op, wanted: np.ndarray, found: np.ndarray) -> np.ndarray:
    """A result of a region. An operator with loops of its own may leave elements as they are that nobody reads (boxes
    beyond those that are kept): zeros for the interpreter."""
    if not any(o.name in OPERATORS and OPERATORS[o.name].kind == "irregular" for o in op.blocks[0].ops):
        return found
    bytes = np.ascontiguousarray(found).view(np.uint8).reshape(*found.shape, found.dtype.itemsize)
    return np.where((bytes == UNWRITTEN).all(axis=-1) & (wanted == 0), wanted, found)


def _join_by_kernels(tapped: Module) -> None:
    """Let kernels join tensors again where they were to be written as parts of one: now each is a result, with memory
    of its own. What nothing reads is left out."""
    block = tapped.main.body
    for op in reversed(block.ops[:-1]):
        if op.name == "fused" or op.name == "constant":
            continue
        if not any(v.users for v in op.results):
            op.erase()
        elif len(op.operands) > 1:
            inner = Block([v.type for v in op.operands])
            joined = op.clone(dict(zip(op.operands, inner.args, strict=True)))
            inner.append(joined)
            inner.append(Op("yield", list(joined.results)))
            attrs = {"strategy": "elementwise", "name": op.name}
            region = Op("fused", op.operands, [v.type for v in op.results], attrs, [inner], op.loc)
            block.ops[block.ops.index(op)] = region
            region.parent = block
            op.result.replace_by(region.result)
            op.drop()


def _bytes(value: Value, env: Mapping[str, int]) -> int | None:
    type = value.type
    shape = getattr(type, "shape", None)
    if shape is None:
        return None
    return prod(int(d.evaluate(env)) for d in shape) * value.tensor.dtype.storage.itemsize


def _is_suspicious(expected: np.ndarray, found: np.ndarray) -> bool:
    if np.array_equal(expected, found):
        return False
    if expected.dtype.kind != "f" or expected.dtype.itemsize < 4:
        return True
    with np.errstate(all="ignore"):
        size = np.abs(np.where(np.isfinite(expected), expected, 0))
        scale = float(np.sqrt((size.astype(np.float64) ** 2).mean())) if size.size else 0.0
        near = np.abs(found - expected) <= tolerance(expected.dtype) / 4 * (size + scale)
    return not bool((near | ~np.isfinite(expected)).all())


def _kernels_of(regions: Sequence[Op], returned: Sequence[Value]) -> dict[Op, str]:
    """The kernel that gives the results of each region, the last of several."""
    found: dict[Op, str] = {}
    values = iter(returned)
    for op in regions:
        for _ in op.results:
            value: Value | None = next(values)
            while value is not None and value.op is not None and value.op.name != "call":
                value = value.op.operands[0] if value.op.operands else None
            if value is not None and value.op is not None:
                found.setdefault(op, value.op.attrs["kernel"])
    return found


def _turning_sizes(module: Module) -> list[int]:
    """One and none, and sizes on both sides of the numbers that stand in the conditions and the ends of loops of
    kernels over dims."""
    numbers: dict[int, None] = {}
    for func in module.funcs.values():
        dims = {d.name for d in func.dims}
        for op in func.body.walk() if func.level == "loops" and dims else ():
            held = [*op.attrs.get("guard", ()), *([op.attrs["extent"]] if op.name == "for" else [])]
            for e in held:
                if any(v.name in dims for v in e.vars):
                    numbers.update(dict.fromkeys(_constants(e)))
    near = sorted({n + k for n in numbers for k in (-1, 0, 1) if 0 < n + k <= LARGEST})
    from_both_ends = [n for pair in zip(reversed(near), near, strict=True) for n in pair]  # time may end for the others
    return [*dict.fromkeys((1, *from_both_ends[:2], 0, *from_both_ends))]


def _constants(e: Sym) -> list[int]:
    return [int(n) for n in re.findall(r"(?<!\w)\d+(?!\w)", str(e)) if int(n) > 1]


def _unfused(
    op: Op, constants: Sequence[Op | None], inputs: Sequence[Value], names: Mapping[Value, str],
    inner: Mapping[Value, Value], module: Module,
) -> Module:  # fmt: skip
    """The operators of a region as a graph of its own."""
    ops = [o for o in dict.fromkeys(constants) if o is not None]
    made = program_of(ops, inputs, [], module, names)
    body = made.main.body
    outside = dict(zip(inputs, body.args, strict=True))
    outside |= {old.result: new.result for old, new in zip(ops, body.ops, strict=False)}
    values = {argument: outside[operand] for argument, operand in inner.items()}
    final = body.ops.pop()
    final.drop()
    region = op.blocks[0]
    for o in region.ops[:-1]:
        body.append(o.clone(values))
    results = [values[v] for v in region.ops[-1].operands]
    body.append(Op("return", results))
    made.main.attrs["outputs"] = tuple(f"y{k}" for k in range(len(results)))
    return made
