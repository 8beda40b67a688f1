"""What all front ends share: a program while it is made of a model, and what is asked of its values meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from tilewright.frontends.choices import MAX_ATTEMPTS, Choices
from tilewright.frontends.hints import constants_hint, dims_hint, in_words
from tilewright.frontends.inputs import Bounds, Declared, constants_of, types_of
from tilewright.frontends.knowledge import Knowledge
from tilewright.frontends.problems import ConstantNeededError, Problems, shown
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.diag import (
    InternalError,
    Loc,
    ModelError,
    TilewrightError,
    TypeRuleError,
    UnsupportedError,
)
from tilewright.ir.sym import Sym, eq, logical_not, var
from tilewright.ir.symbolic.reach import fits_64_bits
from tilewright.ir.types import HostType, TensorType, Type
from tilewright.ops.composites.text import literal
from tilewright.ops.define.broadcasting import OpenDims, fits, is_stretched, note, open_dims
from tilewright.ops.define.demands import Demand, hearing
from tilewright.ops.define.staged import FLOW, MEASURE, FlowNote, assume
from tilewright.ops.shape import UndecidedDimsError, broadcast

Assumed = tuple[Sym, str, str, str]
"""A condition over dims, what it says in words, and the name and operator of the node that relies on it."""

Results = Sequence[Value | None]
"""What a node gives; None for a result that is not wanted, or could not be translated."""


class BrokenInputError(Exception):
    """A value that is read could not be translated; the problem is already recorded."""


Way = Callable[[], Results]
"""Writes one of two ways through a part of a program."""


class DifferentRanksError(Exception):
    """Two ways give results of different ranks, and which is taken depends on a call: what comes after them must be
    written for each. `error` is for places where it cannot be. Where `symbol` says by which dims it is decided, the way
    `decided` is there for these places, which takes one way in all calls."""

    def __init__(
        self,
        condition: Value,
        ways: tuple[Way, Way],
        error: UnsupportedError,
        symbol: Sym | None = None,
        decided: Way | None = None,
    ) -> None:
        self.condition, self.ways, self.error, self.symbol, self.decided = condition, ways, error, symbol, decided

    def followed(self, after: Callable[[Way], Way]) -> DifferentRanksError:
        """The same of longer ways."""
        then, other = self.ways
        decided = None if self.decided is None else after(self.decided)
        return DifferentRanksError(self.condition, (after(then), after(other)), self.error, self.symbol, decided)


def type_of(value: Value) -> TensorType:
    """The type of a value that must be a tensor of a known rank; UnsupportedError for any other."""
    if isinstance(value.type, TensorType):
        return value.type
    if isinstance(value.type, HostType) and value.type.element is None:
        raise UnsupportedError(
            f"the rank of '{shown(value.name)}' is not known", hint="declare the shape of a sequence's elements"
        )
    raise UnsupportedError(f"'{shown(value.name)}' must be a tensor, it is {value.type}")


class Mark(NamedTuple):
    """A place in the program that is being written: how many ops there are, and what they assume."""

    ops: int
    assumed: Mapping[Sym, Assumed]


class Translation:
    """One attempt to make the main function. `given` names the inputs whose shapes or values the caller has chosen,
    `choices` decides on ranks; what cannot be translated is collected in `problems`."""

    def __init__(
        self, types: Mapping[str, Type], choices: Choices, given: Collection[str] = ()
    ) -> None:
        self._main = block = Block(list(types.values()), list(types))
        self.module = Module()
        self.builder = Builder(block, self.module)
        self.problems = Problems()
        self.contradictions: dict[str, str] = {}
        self.warnings: dict[str, str] = {}
        """What users should know before they rely on the program, by its subject."""
        self.quantised: dict[str, tuple[str, str]] = {}
        self.flow: dict[str, FlowNote] = {}
        """What branches and loops have become, by the names of their nodes."""
        self.complex_results: set[int] = set()
        """The places of results that are parts of complex numbers, along a last axis of 2."""
        self._choices = choices
        self._given = given
        self._assumed: dict[Sym, Assumed] = {}
        self._new_sizes = 0
        self._where: Mapping[Sym, bool] = {}
        self._knowledge = Knowledge(self.module, self.assume_exact)
        self.constant_of, self.symbols_of = self._knowledge.constant_of, self._knowledge.symbols_of
        self.measure = self._knowledge.measure

    @property
    def inputs(self) -> Sequence[Value]:
        """The inputs of the model that are not bound to constants."""
        return self._main.args

    # Conditions on dims

    def assume_exact(self, condition: Sym) -> None:
        """Take for granted what floats are exact for; calls with other dims are refused."""
        self._assume(condition, f"a size is computed from floats, and known where {self._worded(condition)}")

    def require(self, condition: Sym, message: str) -> None:
        """Refuse calls for which a condition does not hold."""
        loc = self.builder.loc
        self._assumed.setdefault(condition, (condition, message, loc.node, loc.op))

    def broadcast(self, *shapes: Sequence[Sym]) -> tuple[Sym, ...]:
        """The common shape of shapes that need not be those of operands: of what is taken for equal, calls with other
        dims are refused."""
        with open_dims() as found:
            shape = broadcast(*shapes)
        note(found)
        ends = [zip(own[::-1], shape[::-1], strict=False) for own in shapes]
        needed = [eq(dims.a, dims.b) for dims in found]
        needed += [fits(d, wanted) for end in ends for d, wanted in end if is_stretched(d, wanted)]
        listed = " and ".join(f"[{', '.join(map(str, own))}]" for own in shapes)
        for holds in needed:
            self.require(holds, f"the shapes {listed} are broadcast: it must be that {holds}")
        return shape

    def new_size(self) -> Sym:
        """A dim whose size only the host knows, when it has computed a value of that shape."""
        self._new_sizes += 1
        return var(f"size_{self._new_sizes}")

    def demand(self, demanded: Demand) -> None:
        """Refuse calls for which what an operator demands does not hold."""
        holds, wrong = demanded
        self.require(holds, f"{self.builder.loc.op}: {wrong}: it must be that {holds}")

    def _assume(self, condition: Sym, message: str) -> None:
        loc = self.builder.loc
        text = f"{message}; to compile the model for others, {self.fixing(condition)}"
        self._assumed.setdefault(condition, (condition, text, loc.node, loc.op))

    def _worded(self, condition: Sym) -> str:
        return in_words(condition, self.inputs)

    def choose(self, condition: Sym) -> bool:
        """Whether `condition`, on which the shape of what the node gives depends, is taken to hold whenever the node
        is run."""
        if condition.is_const:
            return bool(condition.value)
        what = f"the shape of what {self.builder.loc.op} gives depends on"
        holds = self._choices.decide(condition)
        assumed = condition if holds else logical_not(condition)
        self._assume(assumed, f"{what} dims, and is known where {self._worded(assumed)}")
        return holds

    @contextmanager
    def where(self, condition: Sym | None, holds: bool) -> Iterator[None]:
        """What is written now is run only where a condition holds, or does not."""
        outer = self._where
        if condition is not None:
            self._where = {**outer, condition: holds, logical_not(condition): not holds}
        try:
            yield
        finally:
            self._where = outer

    def is_where(self, condition: Sym) -> bool | None:
        """Whether a condition holds wherever is run what is written now; None where that is not known."""
        return self._where.get(condition)

    # Errors that say the way out

    def fixing(self, *dims: Sym) -> str:
        """A hint: how the dims in these expressions are fixed."""
        return dims_hint(dims, self.inputs)

    def must_be_known(self, value: Value, what: str) -> UnsupportedError:
        """The error that begins with `what`, and says how `value` becomes known."""
        names, dims = self._knowledge.origin(value)
        inputs = [v for v in self.inputs if v.name in names]
        if inputs:
            return ConstantNeededError(
                what, hint=f"it depends on graph inputs: {constants_hint(inputs)}", inputs=names
            )
        if dims:
            return UnsupportedError(what, hint=f"it depends on dims: {self.fixing(*dims)}")
        return UnsupportedError(f"{what}, but it has too many elements, or evaluating it fails")

    # Translating

    def node(self, loc: Loc, label: str, kind: str, translate: Callable[[], Results]) -> Results | None:
        """What `translate` gives for a node; None, and a problem noted under its `kind`, where that is not supported.
        Errors get the node's `label` as their place."""
        try:
            with self.builder.at(loc):
                return translate()
        except BrokenInputError:
            return None
        except DifferentRanksError:
            raise
        except UnsupportedError as e:
            if isinstance(e, UndecidedDimsError):
                e.hint = self.fixing(*e.dims)
            self.problems.add(kind, label, e)
            return None
        except TilewrightError as e:
            e.where = e.where or label
            if self._given and isinstance(e, TypeRuleError | ModelError):
                e.hint = f"do shapes= and constants= fit the model? given are: {', '.join(self._given)}"
            raise
        except RecursionError:
            raise
        except MemoryError as e:
            raise ModelError(
                f"{kind} asks for more memory than there is, to be compiled{f': {e}' if str(e) else ''}",
                where=label,
                hint="its sizes may be wrong",
            ) from e
        except Exception as e:
            raise InternalError(
                f"translating {kind} failed: {type(e).__name__}: {e}",
                where=label,
                hint="please report this with the model",
            ) from e

    def fit(self, operands: Results, write: Callable[[], Results]) -> Results:
        """What `write` gives; errors as operators raise them for operands that do not fit, with a rank or a number of
        elements that is too small among others, become an error that shows these."""
        try:
            return write()
        except (ValueError, ZeroDivisionError, OverflowError, IndexError) as e:
            listed = ", ".join("-" if v is None else str(v.type) for v in operands)
            reason = "an axis or element that it needs is not there" if isinstance(e, IndexError) else e
            raise TypeRuleError(
                f"{self.builder.loc.op}({listed}): {reason}", hint="the model contradicts itself; export it again"
            ) from e

    def attempt(self, translate: Callable[[], tuple[Value, ...]]) -> tuple[Value, ...] | TilewrightError:
        """What `translate` gives for a part that may not be needed: the reason where it cannot be translated."""
        problems, start = self.problems, self.mark()
        self.problems = Problems()
        try:
            return translate()
        except BrokenInputError:
            if self.problems.first is None:
                raise
            self.rewind(start)
            return self.problems.first
        except TilewrightError as e:
            self.rewind(start)
            return e
        finally:
            self.problems = problems

    def block(self, types: Sequence[Type], write: Callable[..., tuple[Value, ...]]) -> Block | TilewrightError:
        """A block with arguments of these types, which yields what `write` makes of them; the reason where that cannot
        be translated. What it assumes is assumed in it only."""
        block = Block(types)
        outer, self._assumed = self._assumed, {}
        try:
            with self.builder.inside(block):
                try:
                    results = self.attempt(lambda: write(*block.args))
                except DifferentRanksError:
                    self.discard(block)
                    raise
                if not isinstance(results, TilewrightError):
                    for made in self._assumed.values():
                        assume(*made)
                    self.builder.emit("yield", results)
        finally:
            self._assumed = outer
        if isinstance(results, TilewrightError):
            self.discard(block)
            return results
        return block

    def discard(self, *blocks: Block) -> None:
        """Forget blocks that are not used after all."""
        for block in blocks:
            measured = [op.operands[0] for op in block.walk() if op.name == MEASURE]
            for op in reversed(block.ops):
                op.drop()
            if measured:
                self._knowledge.forget(measured)

    def mark(self) -> Mark:
        return Mark(len(self.builder.block.ops), dict(self._assumed))

    def rewind(self, mark: Mark) -> None:
        """Take out what was written since, of which nothing is used, and what that assumes."""
        ops = self.builder.block.ops
        measured = [op.operands[0] for op in ops[mark.ops :] if op.name == MEASURE]
        for op in reversed(ops[mark.ops :]):
            op.drop()
        if measured:
            self._knowledge.forget(measured)
        del ops[mark.ops :]
        self._assumed = dict(mark.assumed)

    def _require_sizes_of_64_bits(self) -> None:
        """UnsupportedError where a size may leave the integers that it is computed in."""
        for op in self._main.walk():
            shapes = (d for v in op.results if isinstance(v.type, TensorType) for d in v.type.shape)
            for e in (*shapes, *(e for attr in op.attrs.values() for e in _expressions(attr))):
                if not fits_64_bits(e):
                    raise UnsupportedError(
                        f"the size {shown(str(e))} may need more than 64 bits",
                        where=str(op.loc) or op.name,
                        hint=self.fixing(e),
                    )

    def finish(
        self,
        results: Sequence[Value],
        outputs: Sequence[str],
        nodes: int,
        complex_inputs: Sequence[str] = (),
        open_dims: Iterable[OpenDims] = (),
    ) -> Module:
        """The module, its main function ended by the results. `open_dims` are those that its operators take for equal,
        or stretch."""
        self.builder.emit("return", list(results))
        self._require_sizes_of_64_bits()
        attrs = {"inputs": tuple(v.name for v in self.inputs), "outputs": tuple(outputs), "nodes": nodes}
        if complex_inputs:
            attrs["complex_inputs"] = tuple(complex_inputs)
        if self.complex_results:
            attrs["complex_outputs"] = tuple(outputs[k] for k in sorted(self.complex_results))
        if self._assumed:
            attrs["assumed"] = tuple(self._assumed.values())
        if found := dict.fromkeys((d.a, d.b) for d in open_dims if d.may_be_one and not d.stretched):
            attrs["open_dims"] = tuple(found)
        if self.contradictions:
            attrs["contradictions"] = tuple(self.contradictions.items())
        if self.quantised:
            attrs["quantised"] = tuple((name, *parameters) for name, parameters in self.quantised.items())
        if self.warnings:
            attrs["warnings"] = tuple(self.warnings.items())
        if self.flow:
            attrs[FLOW] = tuple(self.flow.values())
        self.module.add(Func("main", self.builder.block, "graph", attrs))
        return self.module


def _expressions(attr: object) -> Iterator[Sym]:
    """The symbolic integers in an attribute."""
    if isinstance(attr, Sym):
        yield attr
    elif isinstance(attr, tuple):
        for part in attr:
            yield from _expressions(part)


Translate = Callable[[Translation, dict[str, Value | None]], Results]
"""Writes the program of a model whose inputs have the values given by name, and gives its results."""


def translated(
    inputs: Mapping[str, Declared],
    outputs: Sequence[str],
    nodes: int,
    translate: Translate,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
    bounds: Mapping[str, Bounds] | None = None,
) -> Module:
    """The module that `translate` makes of a model of so many `nodes`, with the inputs and outputs of these names, and
    `bounds` of dims by the names that inputs declare: calls with other sizes are refused.

    It is called again with other decisions where ranks follow from dims; of the modules that these lead to, the one
    that contradicts the least of what the model declares is taken, or the first error raised where there is none.
    """
    types = types_of(inputs, shapes or {}, bounds or {})
    fixed = constants_of(types, constants or {})
    given = tuple(map(shown, dict.fromkeys((*(shapes or {}), *fixed))))
    free = {name: type for name, type in types.items() if name not in fixed}
    complex_inputs = tuple(name for name in free if inputs[name].is_complex)

    def attempt(choices: Choices) -> Module:
        translation = Translation(free, choices, given)
        values: dict[str, Value | None] = dict(zip(free, translation.inputs, strict=True))
        with translation.builder, hearing(translation.demand), open_dims() as found:
            values |= {name: literal(array, name) for name, array in fixed.items()}
            try:
                results = translate(translation, values)
            except RecursionError as e:
                raise ModelError(
                    "the model is nested too deeply", hint="export it without so many subgraphs"
                ) from e
            translation.problems.raise_if_any()
            return translation.finish([v for v in results if v is not None], outputs, nodes, complex_inputs, found)

    return _best(attempt)


def _best(attempt: Callable[[Choices], Module]) -> Module:
    plan: tuple[bool, ...] | None = ()
    found: Module | None = None
    error: TilewrightError | None = None
    for _ in range(MAX_ATTEMPTS):
        if plan is None:
            break
        choices = Choices(plan)
        try:
            module = attempt(choices)
            if not choices.are_any or not _contradictions(module):
                return module
            found = module if found is None else min(found, module, key=_contradictions)
        except TilewrightError as e:
            if not choices.are_any:
                raise
            error = error or e
        plan = choices.other_plan()
    if found is not None:
        return found
    assert error is not None
    raise error


def _contradictions(module: Module) -> int:
    return len(module.main.attrs.get("contradictions", ()))
