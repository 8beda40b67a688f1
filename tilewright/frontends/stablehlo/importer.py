"""Walks the ops of a program and calls their adapters; functions are inlined."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from jaxlib.mlir import ir

from tilewright.frontends.problems import shown
from tilewright.frontends.stablehlo.node import ADAPTERS, BY_ELEMENT, CUSTOM_CALLS, ProgramOp
from tilewright.frontends.stablehlo.types import (
    SourcePlace,
    TensorLike,
    constant_of,
    place_of,
    tensor_type,
    text_of,
)
from tilewright.frontends.stablehlo.values import ComplexPair, Held, LoopRows, as_value, flat, rank_of
from tilewright.frontends.translation import BrokenInputError, Results, Translation, type_of
from tilewright.ir.core import Value
from tilewright.ir.diag import Loc, ModelError, UnsupportedError
from tilewright.ir.sym import sym
from tilewright.ops.composites.complex import apart, joined
from tilewright.ops.composites.text import literal
from tilewright.ops.shape import surely_different
from tilewright.ops.source import full

MAX_DEPTH = 100
MAX_NODES = 500_000

_ENDS = frozenset({"func.return", "stablehlo.return", "chlo.return", "mhlo.return"})
_CONSTANTS = frozenset({"stablehlo.constant", "mhlo.constant"})


@dataclass
class Frame:
    """What is known inside of a function or region: results by the values of MLIR, None for what could not be
    translated. `path` is the scope that it was called from."""

    held: dict[ir.Value, Held | None] = field(default_factory=dict)
    outer: Frame | None = None
    path: str = ""
    depth: int = 0
    is_lifted: bool = False
    """Whether scalars of a body are whole tensors."""

    def find(self, value: ir.Value) -> Held | None:
        frame: Frame | None = self
        while frame is not None:
            if value in frame.held:
                return frame.held[value]
            frame = frame.outer
        raise ModelError("a value is read that nothing defines")


class Inliner:
    """Writes the program of a module's function; what cannot be translated is left to the translation's problems."""

    def __init__(self, translation: Translation, functions: Mapping[str, ir.Operation]) -> None:
        self.translation = translation
        self._functions = functions
        self._budget = MAX_NODES
        self._names: dict[str, int] = {}
        self._places: dict[ir.Location, SourcePlace] = {}
        self._rows: dict[int, Value] = {}

    def main(self, function: ir.Operation, inputs: Sequence[Value | None]) -> Results:
        """The results of the function."""
        try:
            given = _arguments(function, [v for v in inputs if v is not None])
            found = self.function(function, given, "", 0)
        except BrokenInputError:
            self.translation.problems.raise_if_any()
            raise
        self.translation.problems.raise_if_any()
        self.translation.complex_results = {k for k, held in enumerate(found) if isinstance(held, ComplexPair)}
        return [joined(held) if isinstance(held, ComplexPair) else as_value(held) for held in found]

    def function(self, function: ir.Operation, arguments: Sequence[Held], path: str, depth: int) -> list[Held]:
        if depth > MAX_DEPTH:
            raise ModelError(f"functions are nested more than {MAX_DEPTH} deep")
        if len(function.regions) != 1 or len(function.regions[0].blocks) != 1:
            raise UnsupportedError("functions of several blocks are not supported")
        block = function.regions[0].blocks[0]
        return self._walk(block, arguments, Frame(path=path, depth=depth))

    def called(self, name: str, arguments: Sequence[Held], frame: Frame) -> list[Held]:
        """What a function of the module gives."""
        if name not in self._functions:
            raise ModelError(f"the function '{shown(name)}' does not exist")
        return self.function(self._functions[name], arguments, self.translation.builder.loc.node, frame.depth + 1)

    def function_named(self, name: str) -> ir.Block:
        """The block of a function of the module."""
        if name not in self._functions or len(self._functions[name].regions[0].blocks) != 1:
            raise ModelError(f"the function '{shown(name)}' does not exist")
        return self._functions[name].regions[0].blocks[0]

    def block(self, block: ir.Block, arguments: Sequence[Held], frame: Frame) -> list[Held]:
        """What a region gives, which may read values around it. Scalars of a body may be whole tensors."""
        if frame.depth >= MAX_DEPTH:
            raise ModelError(f"regions are nested more than {MAX_DEPTH} deep")
        is_lifted = frame.is_lifted or any(
            rank_of(held) != len(tensor_type(a.type).shape)
            for a, held in zip(block.arguments, arguments, strict=False)
            if not isinstance(held, LoopRows)
        )
        inner = Frame(outer=frame, path=frame.path, depth=frame.depth + 1, is_lifted=is_lifted)
        return self._walk(block, arguments, inner)

    # Rows that loops make

    @contextmanager
    def rows_of(self) -> Iterator[dict[int, Value]]:
        """Where the rows are put that a trip makes, by the states that they are of."""
        outer, self._rows = self._rows, {}
        try:
            yield self._rows
        finally:
            self._rows = outer

    def note_row(self, state: int, place: Value) -> None:
        self._rows[state] = place

    # The walk

    def _walk(self, block: ir.Block, arguments: Sequence[Held], frame: Frame) -> list[Held]:
        if len(block.arguments) != len(arguments):
            raise ModelError(f"a block takes {len(block.arguments)} arguments, not {len(arguments)}")
        frame.held.update(zip(block.arguments, arguments, strict=True))
        for view in block.operations:
            op = view.operation
            if op.name in _ENDS:
                found = [frame.find(v) for v in op.operands]
                if any(held is None for held in found):
                    raise BrokenInputError
                return [held for held in found if held is not None]
            self._translate(op, frame)
        raise ModelError("a block does not end in a return")

    def _translate(self, op: ir.Operation, frame: Frame) -> None:
        self._budget -= 1
        if self._budget < 0:
            raise ModelError(f"the program unfolds to more than {MAX_NODES} ops")
        kind = op.name.removeprefix("stablehlo.")
        place = self._place(op)
        path = place.path
        if op.name in _CONSTANTS:
            path = ""
        elif frame.path and not path.startswith(frame.path):
            path = f"{frame.path}/{path}" if path else frame.path
        loc = Loc(shown(path, 200), shown(kind), shown(place.file, 200), place.line)
        label = shown(path or kind) + (f" ({shown(place.file)}:{place.line})" if place.file else "")
        held: list[Held] = []

        def results() -> Results:
            held.extend(self._results(op, frame))
            return ()

        if self.translation.node(loc, label, shown(kind), results) is None:
            held = []
        if held and len(held) != len(op.results):
            raise ModelError(f"{op.name} has {len(op.results)} results, not {len(held)}")
        for k, result in enumerate(op.results):
            frame.held[result] = held[k] if held else None
        for value in (v for h in held if not isinstance(h, LoopRows) for v in flat(h)):
            if not value.name:
                value.name = self._free(path or kind)

    def _place(self, op: ir.Operation) -> SourcePlace:
        location = op.location
        if location not in self._places:
            self._places[location] = place_of(location)
        return self._places[location]

    def _free(self, path: str) -> str:
        """A name for a value that tells its scope."""
        name = re.sub(r"[^A-Za-z0-9_.]+", "_", path.replace("/", ".")).strip("_.") or "value"
        count = self._names[name] = self._names.get(name, -1) + 1
        return f"{name}_{count}" if count else name

    def _results(self, op: ir.Operation, frame: Frame) -> list[Held]:
        types = [tensor_type(r.type) for r in op.results if not _is_token(r)]
        if op.name in _CONSTANTS:
            return [self._constant(op, types[0])]
        adapter = ADAPTERS.find(op.name)
        if adapter is None:
            raise UnsupportedError("the operator is not supported")
        if op.name == "stablehlo.custom_call":
            target = text_of(op.attributes["call_target_name"])
            if target not in CUSTOM_CALLS:
                raise UnsupportedError(f"the call of '{shown(target)}' is not supported")
        if frame.is_lifted and op.name not in BY_ELEMENT:
            raise UnsupportedError("it is not supported in the body of a reduction")
        operands = [frame.find(v) for v in op.operands]
        if any(held is None for held in operands):
            raise BrokenInputError
        given = [held for held in operands if held is not None]
        found = self.translation.fit(
            [v for h in given if not isinstance(h, LoopRows) for v in flat(h)],
            lambda: _Written(adapter(ProgramOp(op, given, self, frame))),
        )
        assert isinstance(found, _Written)
        for held, type in zip(found.held, types, strict=True):
            _check(op, held, type, frame.is_lifted)
        return found.held

    def _constant(self, op: ir.Operation, type: TensorLike) -> Held:
        array, is_splat = constant_of(op)
        if type.is_complex:
            real, imaginary = (part.astype(type.dtype.storage) for part in (array.real, array.imag))
            return ComplexPair(literal(real, "constant"), literal(imaginary, "constant"))
        if is_splat and type.shape:
            return full(value=array.item(), dtype=type.dtype, shape=tuple(sym(d or 0) for d in type.shape))
        return literal(array, "constant")


def _arguments(function: ir.Operation, inputs: Sequence[Value]) -> list[Held]:
    """The inputs of the program, which have the parts of complex numbers along a last axis."""
    if len(function.regions) != 1 or len(function.regions[0].blocks) != 1:
        return list(inputs)
    declared = function.regions[0].blocks[0].arguments
    return [
        apart(v) if tensor_type(a.type).is_complex else v for a, v in zip(declared, inputs, strict=True)
    ]


class _Written(tuple):  # type: ignore[type-arg]
    """The results of an adapter, as a sequence."""

    held: list[Held]

    def __new__(cls, results: Held | Sequence[Held] | None) -> _Written:
        made = super().__new__(cls, ())
        if results is None:
            made.held = []
        elif isinstance(results, Value | ComplexPair | LoopRows):
            made.held = [results]
        else:
            made.held = list(results)
        return made


def _is_token(value: ir.Value) -> bool:
    return str(value.type) == "!stablehlo.token"


def _check(op: ir.Operation, held: Held, type: TensorLike, is_lifted: bool) -> None:
    """ModelError for a result that is not what the program declares."""
    if isinstance(held, LoopRows):
        return
    for value in flat(held):
        found = type_of(value)
        fits = found.dtype == type.dtype and (is_lifted or found.rank == len(type.shape))
        fits = fits and isinstance(held, ComplexPair) == type.is_complex
        dims = () if is_lifted else zip(type.shape, found.shape, strict=False)
        if not fits or any(d is not None and surely_different(sym(d), e) for d, e in dims):
            declared = f"{type.dtype}[{', '.join('?' if d is None else str(d) for d in type.shape)}]"
            raise ModelError(f"{op.name} gives {found}, but the program declares {declared}")


def walk(block: ir.Block) -> Iterator[ir.Operation]:
    """All ops of a block and of the regions in it."""
    for view in block.operations:
        yield view.operation
        for region in view.operation.regions:
            for inner in region.blocks:
                yield from walk(inner)

