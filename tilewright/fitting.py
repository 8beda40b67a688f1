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
from tilewright.program.memory.of_call import bytes_of_call, most_threads, room_for
from tilewright.program.memory.picture import dims_of
from tilewright.program.memory.scratch import scratch_of_calls
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


def refuse_parts(main: Func, max_memory: int | None) -> None:
    """UnsupportedError for a program that calls parts, where a limit must be held: each part has memory of its own, and
    what is handed on between them is known when it runs."""
    refuse_unknown_sizes(main, max_memory)
    if max_memory is not None:
        raise UnsupportedError(
            "max_memory= is for models that one piece of native code computes, and this one runs in parts: it has "
            "branches or loops that values decide, or tensors that are not numbers",
            hint="give the inputs that branches and loops depend on as constants, or compile without max_memory=",
        )


def threads_within(module: Module, most: int | None, threads: int) -> int:
    """How many threads a call of a planned program may have at most, within a limit where there is one; 0 for any
    number.

    UnsupportedError, OptionError where it takes more with `threads`: texts of late stages say what is computed by rows,
    and schedules of a user may take other scratch memory than was counted."""
    if most is None:
        return room_for(module.main)
    refuse_unknown_sizes(module.main, most)
    taken = bytes_of_call(module, threads).value
    if taken > most:
        raise OptionError(
            f"max_memory={most:,}: the program takes {taken:,} bytes",
            hint="give a limit from that on; a text of a stage is made with the limit that the model is compiled with",
        )
    return most_threads(module, most)


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
        fitted_to=most,
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
        main = self.whole.module.main
        stored, scratch = _stored_tiles(main), _of_convolutions(main, self._trial(Fit()).scratch, direct)
        found: dict[Op, OtherForm] = {}
        for op in ops:
            if locs := _convolutions(op, direct):
                cycles, size = (sum(of.get(loc, 0) for loc in locs) for of in (saved, stored))
                found[op] = OtherForm(cycles, int(size), max(scratch[loc] for loc in locs))
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
    for call, bytes in scratch_of_calls(module).items():
        found[call.loc] = max(found.get(call.loc, 0), bytes.value * threads)
    return found


def _types(module: Module) -> list[object]:
    return [v.type for op in module.main.body.ops for v in op.results]


def _convolutions(op: Op, among: frozenset[Loc]) -> list[Loc]:
    """The convolutions that a region computes, of some."""
    inside = op.blocks[0].ops[:-1] if op.name == FUSED else []
    products = (inner.loc for inner in inside if classify(inner).kind is OpClass.CONTRACTION)
    return [loc for loc in dict.fromkeys(products) if loc in among]


def _of_convolutions(main: Func, scratch: Mapping[Loc, int], among: frozenset[Loc]) -> Mapping[Loc, int]:
    """Bytes of scratch memory of the kernels that compute some convolutions, by the place of each of these: a kernel
    has that of the last layer in it."""
    found = dict.fromkeys(among, 0)
    for op in main.body.ops:
        for loc in _convolutions(op, among):
            found[loc] = max(found[loc], scratch.get(op.loc, 0))
    return found


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
