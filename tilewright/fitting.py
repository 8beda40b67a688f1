"""A program that fits into the memory that was asked for, or the least that it takes.

The plan as it is comes first; then kernels store narrower values (`graph/cascades/narrow.py`), and chains of kernels
are computed by rows (`graph/cascades`), as cheaply as the limit allows. Convolutions that are computed by rows are
direct sums: the program is lowered once more for these. What a plan really takes (views, offsets, results in the place
of arguments, scratch memory of kernels) is known when its kernels are there, so each is tried on a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING

from tilewright.cost.conv.cascades import CLOSE
from tilewright.graph.cascades.choose import Fitted, FusedProgram, Kernels, Need, OtherForm, fitted, least
from tilewright.graph.cascades.fit import Cascades, is_static
from tilewright.graph.cascades.links import FUSED
from tilewright.graph.cascades.narrow import NarrowStores
from tilewright.graph.fusion.classify import OpClass, classify
from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.diag import Loc, UnsupportedError
from tilewright.passes import Pass
from tilewright.program.memory.of_call import bytes_of_call, scratch_of
from tilewright.program.memory.picture import dims_of
from tilewright.program.memory.views import bytes_of
from tilewright.runtime.errors import OptionError

if TYPE_CHECKING:
    from tilewright.compilation import Compilation, Setting

MOST_TRIES = 4
"""Plans that are tried: each takes as long as scheduling the program."""

MOST_NAMED = 4
"""Tensors that an error names."""

Remade = Callable[[Module, "Setting"], "Compilation"]
Lowered = Callable[["Setting", frozenset[Loc]], "Compilation"]
"""A copy of a program in the stage "fused", in which some convolutions are summed directly."""


@dataclass(frozen=True)
class Fit:
    """How a program fits: the convolutions that are summed directly, and passes on the fused program."""

    direct: frozenset[Loc] = frozenset()
    passes: tuple[Pass, ...] = ()


def refuse_unknown_sizes(main: Func, max_memory: int | None) -> None:
    """UnsupportedError where sizes are not known that a limit must be held for."""
    if max_memory is not None and not is_static(main):
        names = ", ".join(f"'{name}'" for name in sorted(dims_of(main))) or "some"
        raise UnsupportedError(
            f"max_memory= is for programs of known sizes, and the dims {names} are not known",
            hint="fix the shapes of the inputs: shapes=, or --shape NAME=DIMS",
        )


def fit(setting: Setting, lowered: Lowered, remade: Remade) -> Fit:
    """How a program takes no more memory than the options of its compilation allow. OptionError with the least that was
    found, where it does not."""
    most = setting.options.max_memory
    if most is None:
        return Fit()
    quiet = replace(
        setting,
        options=replace(setting.options, max_memory=None),
        progress=None,
        observe=None,
        dump=None,
        numbers=count(),
    )
    search = _Search(most, quiet, lowered, remade)
    best: int | None = None
    for found in search.candidates():
        taken = search.bytes_of(found)
        if taken <= most:
            return found
        best = min(best or taken, taken)
    raise OptionError(
        f"max_memory={most:,}: the least found is {best:,} bytes, {search.told()}",
        hint="this counts inputs, outputs, intermediate results and scratch memory, no weights and no code; other "
        "shapes of inputs, or smaller types (`tilewright quantize`), take less",
    )


class _Search:
    """The plans of a program, in the order in which they are tried."""

    def __init__(self, most: int, setting: Setting, lowered: Lowered, remade: Remade) -> None:
        self.most = most
        self.setting = setting
        self.lower = lowered
        self.remade = remade
        self.lowered: dict[frozenset[Loc], Compilation] = {}
        self.tried: dict[Fit, _Trial] = {}
        refuse_unknown_sizes(self.whole.module.main, most)

    @property
    def whole(self) -> Compilation:
        """The fused program as it is without a limit."""
        return self._lowered(frozenset())

    @property
    def given(self) -> int:
        """Bytes of inputs and outputs."""
        main = self.whole.module.main
        return sum(bytes_of(v).value for v in (*main.args, *main.returns))

    @cached_property
    def program(self) -> FusedProgram:
        """The program of which rows are computed: narrow stores, and all convolutions direct sums."""
        return self._program(self._every)

    def candidates(self) -> Iterator[Fit]:
        yield Fit()
        narrow: tuple[Pass, ...] = (NarrowStores(),)
        if self._narrows(frozenset()):
            yield Fit(passes=narrow)
        limit, seen = self.most - self.given, set[Fit]()
        while len(seen) < MOST_TRIES and (found := self._by_rows(limit)) is not None:
            if found not in seen:
                seen.add(found)
                yield found
            limit -= max(self.tried[found].bytes - self.most, limit // CLOSE)
        found = self._fit(self._every, least(self.program, max(limit, 0)))
        if found not in seen:
            yield found

    @property
    def _every(self) -> frozenset[Loc]:
        """The convolutions that are computed by another algorithm than the direct sum."""
        return frozenset(self.whole.context.saved)

    def _by_rows(self, limit: int) -> Fit | None:
        """The cheapest plan within a limit on what is no input and no output."""
        plan = fitted(self.program, limit) if limit > 0 else None
        if plan is None:
            return None
        direct = frozenset(loc for op in plan.plain for loc in _convolutions(op, self._every))
        if direct != self._every and (own := fitted(self._program(direct), limit)) is not None:
            return self._fit(direct, own)
        return self._fit(self._every, plan)

    def _fit(self, direct: frozenset[Loc], plan: Fitted) -> Fit:
        narrow = [NarrowStores()] if self._narrows(direct) else []
        return Fit(direct, (*narrow, Cascades(plan.cascades)))

    # Programs

    def _lowered(self, direct: frozenset[Loc]) -> Compilation:
        if direct not in self.lowered:
            self.lowered[direct] = self.lower(self.setting, direct)
        return self.lowered[direct]

    def _narrowed(self, direct: frozenset[Loc]) -> Module:
        return self.remade(self._lowered(direct).module.copy(), self.setting).apply([NarrowStores()]).module

    def _narrows(self, direct: frozenset[Loc]) -> bool:
        """Whether some kernel can store narrower values."""
        return _types(self._narrowed(direct)) != _types(self._lowered(direct).module)

    def _program(self, direct: frozenset[Loc]) -> FusedProgram:
        """A program with what is known of its kernels."""
        narrow = self._narrows(direct)
        module = self._narrowed(direct) if narrow else self._lowered(direct).module
        trial = self._trial(Fit(direct, (NarrowStores(),) if narrow else ()))
        ops = [op for op in module.main.body.ops if op.name == FUSED]
        scratch = {op: trial.scratch.get(op.loc, 0) for op in ops}
        weights = {op: _weights(op) for op in ops}
        kernels = Kernels(scratch, self._others(ops, direct), weights, self.setting.target)
        return FusedProgram(module.main, kernels)

    def _others(self, ops: list[Op], direct: frozenset[Loc]) -> Mapping[Op, OtherForm]:
        """Of the ops that compute convolutions which could have another algorithm, what it saves and takes."""
        saved = self.whole.context.saved
        if not direct:
            return {}
        scratch = self._trial(Fit()).scratch
        stored = _stored_tiles(self.whole.module.main)
        found: dict[Op, OtherForm] = {}
        for op in ops:
            if locs := _convolutions(op, direct):
                cycles, size = (sum(of.get(loc, 0) for loc in locs) for of in (saved, stored))
                found[op] = OtherForm(cycles, int(size), max(scratch.get(loc, 0) for loc in locs))
        return found

    # Trials

    def bytes_of(self, found: Fit) -> int:
        """What a call takes."""
        return self._trial(found).bytes

    def _trial(self, found: Fit) -> _Trial:
        if found not in self.tried:
            module = self._lowered(found.direct).module.copy()
            trial = self.remade(module, self.setting).with_views(found.passes).run("planned").module
            threads = self.setting.options.threads or 1
            self.tried[found] = _Trial(bytes_of_call(trial, threads).value, _scratch(trial, threads))
        return self.tried[found]

    def told(self) -> str:
        """For which tensors the least is needed."""
        need: Need = least(self.program, 0).need
        makers = dict.fromkeys(str(v.op.loc) for v in need.values if v.op is not None)
        named = ", ".join(list(makers)[:MOST_NAMED])
        more = f" and {len(makers) - MOST_NAMED} more" if len(makers) > MOST_NAMED else ""
        return f"{self.given:,} of them inputs and outputs, for the tensors of {named}{more} at {need.op.loc}"


@dataclass(frozen=True)
class _Trial:
    """What a planned program takes: bytes of a call, and of the threads' scratch memory by the place of a layer."""

    bytes: int
    scratch: Mapping[Loc, int]


def _scratch(module: Module, threads: int) -> Mapping[Loc, int]:
    found: dict[Loc, int] = {}
    for call in module.main.body.ops:
        if call.name == "call":
            own = scratch_of(module.funcs[call.attrs["kernel"]]).value * threads
            found[call.loc] = max(found.get(call.loc, 0), own)
    return found


def _types(module: Module) -> list[object]:
    return [v.type for op in module.main.body.ops for v in op.results]


def _convolutions(op: Op, among: frozenset[Loc]) -> list[Loc]:
    """The convolutions that a region computes, of some."""
    inside = op.blocks[0].ops[:-1] if op.name == FUSED else []
    products = (inner.loc for inner in inside if classify(inner).kind is OpClass.CONTRACTION)
    return [loc for loc in dict.fromkeys(products) if loc in among]


def _stored_tiles(main: Func) -> Mapping[Loc, int]:
    """Bytes of the transformed data of convolutions that lie between two kernels."""
    found: dict[Loc, int] = {}
    for op in main.body.ops:
        inside = op.blocks[0].ops[:-1] if op.name == FUSED else []
        if inside and all(classify(inner).is_tiled for inner in inside):
            found[op.loc] = bytes_of(op.results[0]).value
    return found


def _weights(op: Op) -> int:
    """Bytes of the constants that a region reads."""
    constants: list[Value] = [v for v in op.operands if v.op is not None and v.op.name == "constant"]
    return sum(bytes_of(v).value for v in constants)
