"""What a model of sequences costs as formulas of their length: one call behind so many positions, and all calls of a
generation, with what is kept from call to call and without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tilewright.checks.model import USUAL_SIZE, computed_operators
from tilewright.checks.polynomials import Polynomial, polynomial
from tilewright.checks.serial import SerialWork, serial_work
from tilewright.checks.traffic import CallTraffic, region_traffic, stored_bytes
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_with_fallbacks
from tilewright.graph.rewrites.dead import DropDead
from tilewright.ir.core import Func, Module, Op
from tilewright.ir.optional_steps import OptionalSteps
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import TensorType
from tilewright.ops.define.binding import input_variables
from tilewright.options import OnProgress, Options, Request, bits_of_rows
from tilewright.program.caches import caches_of
from tilewright.program.states import GROWING, STATES, VARIABLES
from tilewright.runtime.errors import OptionError
from tilewright.runtime.threads import available_cpus
from tilewright.schedule.gemm.rounded_bytes import share_of_region
from tilewright.schedule.work.operators import OperatorCounts, total
from tilewright.session import Session
from tilewright.target.hardware import measured_hertz
from tilewright.target.host import host_target
from tilewright.target.target import Target

LENGTH = var("n", 0)
"""The variable of formulas: positions that a call, or a generation, has in all."""

UNBOUNDED = 1 << 30
"""Room of caches in a model that does not say how long they may become. Nothing is ever put there."""


@dataclass(frozen=True)
class LengthCount:
    """A count that depends on the positions before a call (`past`) and on those of the call (`steps`)."""

    formula: Sym
    past: Sym | None
    steps: Sym

    def at(self, past: int, steps: int) -> int:
        """For a call of so many steps behind so many positions."""
        before = {} if self.past is None else {self.past.name: past}
        return self.formula.evaluate({**before, self.steps.name: steps})

    @cached_property
    def token(self) -> Polynomial | None:
        """Of one token as the n-th of a sequence, whose others are in the cache."""
        return polynomial(self._with(LENGTH - 1, sym(1)))

    @cached_property
    def whole(self) -> Polynomial | None:
        """Of a call with all n positions, behind none."""
        return polynomial(self._with(sym(0), LENGTH))

    @cached_property
    def cached(self) -> Polynomial | None:
        """Of all n tokens of a sequence, one after the other, with a cache."""
        return _sum_to(self.token, lambda n: self.at(n - 1, 1))

    @cached_property
    def recomputed(self) -> Polynomial | None:
        """Of all n tokens of a sequence, each with all before it computed again."""
        return _sum_to(self.whole, lambda n: self.at(0, n))

    def generation(self, prompt: int, new: int, *, cache: bool) -> int:
        """Of a prompt and so many new tokens, the last of which is not fed any more."""
        if not cache:
            return _range_sum(self.whole, lambda n: self.at(0, n), prompt, prompt + new)
        steps = _range_sum(self.token, lambda n: self.at(n - 1, 1), prompt + 1, prompt + new)
        return self.at(0, prompt) + steps

    def _with(self, past: Sym, steps: Sym) -> Sym:
        before = {} if self.past is None else {self.past: past}
        return self.formula.subs({**before, self.steps: steps})


def _sum_to(one: Polynomial | None, value: Callable[[int], int]) -> Polynomial | None:
    """The sum of what lengths from 1 to n have."""
    if one is None:
        return None
    below = one.sums(lambda k: value(k) if k else 0)
    first = Polynomial.of([0 if one.since else -one(0)])  # a sequence of no token has no call
    shifted = below.plus(one).plus(first)
    return Polynomial.of(shifted.coefficients, max(one.since, 1))


def _range_sum(one: Polynomial | None, value: Callable[[int], int], first: int, end: int) -> int:
    split = end if one is None else min(max(first, one.since), end)
    found = sum(value(n) for n in range(first, split))
    if one is None or split == end:
        return found
    sums = Polynomial.of(one.coefficients).sums(value)
    return found + int(sums(end) - sums(split))


@dataclass(frozen=True)
class SequenceCosts:
    """Costs of a model of sequences.

    flops, read, written: floating-point operations and bytes of one call. cache: bytes that states hold for a position;
    state: bytes of other states, however many positions there are. context: the most positions (None: not bounded).
    has_cache: whether calls can continue each other; otherwise only whole sequences are computed. dims: what other dims
    of the inputs are taken for. layers: how many pairs of caches there are, 1 where there are none.
    """

    model: str
    flops: LengthCount
    read: LengthCount
    written: LengthCount
    weights: int
    cache: int
    state: int
    context: int | None
    has_cache: bool
    target: str
    threads: int
    hertz: float | None
    dims: Mapping[str, Sym]
    layers: int
    _calls: tuple[CallTraffic, ...] = field(repr=False)
    _machine: Target | None = field(repr=False)
    _serial: Callable[[int], SerialWork] = field(repr=False)

    def cycles(self, past: int, steps: int) -> float | None:
        """An estimate for one call on all threads; None where the cost model knows nothing of the machine."""
        if self._machine is None:
            return None
        known = {self.flops.steps.name: steps}
        known |= {} if self.flops.past is None else {self.flops.past.name: past}

        known |= {name: size.evaluate(known) for name, size in self.dims.items()}

        def evaluate(formula: Sym) -> int | None:
            return formula.evaluate(known) if all(v.name in known for v in formula.vars) else None

        found = [call.cycles(self._machine, self.threads, evaluate) for call in self._calls]
        return None if None in found else sum(c for c in found if c is not None)

    def seconds(self, past: int, steps: int) -> float | None:
        """The same in seconds; None for other machines than this one."""
        cycles = self.cycles(past, steps)
        return None if cycles is None or self.hertz is None else cycles / self.hertz

    def serial(self, steps: int) -> SerialWork:
        """What of a call with so many positions waits for the position before it."""
        return self._serial(steps)


def sequence_costs(
    model: Any,
    *,
    options: Options | None = None,
    length: str | None = None,
    sizes: Mapping[str, int] | None = None,
    name: str = "",
    session: Session | None = None,
    progress: OnProgress | None = None,
    **fields: Any,
) -> SequenceCosts:
    """Count a model of sequences: a decoder whose past is in states or caches, or a model with a symbolic dim.

    The model and the fields are those of `tilewright.compile`; `length` is the name of the dim that counts positions of
    a call, which is found by itself where a cache grows by it or only one dim is symbolic; `sizes` are those of other
    dims (1 for others). Raises OptionError for a model that has no such dim, ModelError, UnsupportedError.
    """
    chosen = Options.of(options, **fields)
    session = Session.of(session)
    request = Request.of(model, None, None).with_states_of(replace(chosen, states=True))
    given = dict(sizes or {})

    def counted(module: Module, optional: OptionalSteps, told: OnProgress | None) -> SequenceCosts:
        own = replace(chosen, **_states_kept(module.main, chosen))
        setting = Setting.of(
            own, session.machine(chosen), session.loaded_plugins, optional=optional, progress=told
        )
        return _counted(Compilation(module, setting), length, given, name, bounded=own.capacity != UNBOUNDED)

    return compile_with_fallbacks(request, session, chosen, progress, counted)


def _states_kept(main: Func, options: Options) -> dict[str, Any]:
    """The options of a model that keeps all that it can, unless they say what it keeps."""
    if options.states and options.states is not True:
        return {}
    if caches_of(main):
        return {"states": True, "capacity": options.capacity or UNBOUNDED}
    return {"states": bool(main.attrs.get(VARIABLES)), "capacity": None}


def _counted(
    whole: Compilation, length: str | None, given: Mapping[str, int], name: str, *, bounded: bool
) -> SequenceCosts:
    machine, threads = whole.setting.machine, whole.setting.options.threads or available_cpus()
    before = _dims(whole.module.main)
    pieces = whole.run("parts").pieces
    kept = _Kept.of(whole.module.main)
    dims = _dims(whole.module.main) if kept.continues else before
    steps = _named_length(dims, length, given) if kept.steps is None else kept.steps
    known = _other_dims(dims, kept.past, steps, given, [a.holds for each in pieces for a in each.assumed])
    parts = [each.apply([DropDead()]).module for each in pieces]
    counts = OperatorCounts()
    operators = [op for part in parts for op in computed_operators(part)]
    flops = total(counts.of(op).flops for op in operators)
    numbers = {v.name: size for v, size in known.items()}
    serial = serial_work(operators, counts, numbers, steps, kept.past)
    calls = tuple(region_traffic(each.run("fused").module, counts, _rounded(each)) for each in pieces)

    def amount(formula: Sym) -> LengthCount:
        found = formula.subs(known)
        left = sorted(v.name for v in found.vars if v is not steps and v is not kept.past)
        if left:
            raise OptionError(
                f"the costs depend on more than a length: on {', '.join(left)}, which data decide",
                hint="such a model has no formulas of one length; `tilewright check` has what can be said",
            )
        return LengthCount(found, kept.past, steps)

    return SequenceCosts(
        name, amount(flops), amount(total(c.read for c in calls)), amount(total(c.written for c in calls)),
        total(c.weights for c in calls).value, kept.cache, kept.state, kept.context if bounded else None,
        kept.continues, machine.name, threads, measured_hertz() if machine == host_target() else None, numbers,
        max(1, kept.layers), calls, machine if isinstance(machine, Target) else None, serial,
    )  # fmt: skip


def _rounded(piece: Compilation) -> Callable[[Op], float | None]:
    """What products take of the time of floats where rows are rounded for them."""
    machine, options = piece.setting.machine, piece.setting.options
    bits = bits_of_rows(options, piece.module.main.attrs.get("activations"))
    return lambda region: share_of_region(region, bits, machine) if isinstance(machine, Target) else None


@dataclass(frozen=True)
class _Kept:
    """What a model keeps: bytes for each position and of any length, the dims that count positions, how many there may
    be, and how many caches grow in pairs."""

    past: Sym | None = None
    steps: Sym | None = None
    cache: int = 0
    state: int = 0
    context: int | None = None
    layers: int = 0
    continues: bool = False

    @classmethod
    def of(cls, main: Func) -> _Kept:
        names = [name for name, *_ in main.attrs.get(STATES, ())]
        if not names:
            return cls()
        if main.level != "graph":
            raise OptionError(
                "the model has states, and sizes that data decide: what it costs is no formula of its length",
                hint="give the inputs that sizes depend on as constants, and compile it without states",
            )
        held = dict(zip(names, main.args[-len(names) :], strict=True))
        becomes = dict(zip(names, main.returns[-len(names) :], strict=True))
        grows = {name: (axis, counter, window) for name, axis, counter, window in main.attrs.get(GROWING, ())}
        counters = {counter for _, counter, _ in grows.values()}
        state = sum(stored_bytes(v.type).value for n, v in held.items() if n not in grows and n not in counters)
        if len(counters) > 1:
            raise OptionError(
                f"the model's states grow with {' and '.join(sorted(counters))}: its costs have no single length",
                hint="`tilewright check` has its operations and bytes as formulas of both",
            )
        if not counters:
            return cls(state=state, continues=True)
        rows = cache = context = 0
        steps: Sym | None = None
        for name, (axis, _, window) in grows.items():
            put, room = becomes[name].op, held[name].tensor.shape[axis].value
            assert put is not None
            steps = put.operands[1].tensor.shape[axis]
            row = stored_bytes(held[name].type).value // max(room, 1)
            cache, state = (cache + row, state) if window < 0 else (cache, state + row * min(window, room))
            context = room if not context else min(context, room)
            rows += 1
        if steps is None or steps.kind != "var":
            raise OptionError(
                f"a call has always {steps} positions: there is no length that formulas could have",
                hint="export the model with a symbolic number of tokens",
            )
        symbols = input_variables(held[counters.pop()])
        past = None if symbols is None else symbols.item()
        return cls(past, steps, cache, state, context, (rows + 1) // 2, True)


def _dims(main: Func) -> dict[str, Sym]:
    """The symbolic dims of the inputs, by name."""
    shapes = [arg.type.shape for arg in main.args if isinstance(arg.type, TensorType)]
    return {v.name: v for shape in shapes for d in shape for v in sorted(d.vars, key=lambda v: v.name)}


def _named_length(dims: Mapping[str, Sym], length: str | None, given: Mapping[str, int]) -> Sym:
    """The dim that counts positions of a model which says nothing of it."""
    free = [name for name in dims if name not in given]
    listed = ", ".join(dims) or "none"
    if length is None and len(free) == 1:
        return dims[free[0]]
    if length is not None and length in dims:
        return dims[length]
    if length is not None:
        raise OptionError(f"the model has no symbolic dim '{length}'", hint=f"those of its inputs: {listed}")
    if not dims:
        raise OptionError(
            "the model has neither caches nor a symbolic dim: its costs depend on no length",
            hint="export it with a symbolic length; `tilewright check` has the costs of fixed shapes",
        )
    raise OptionError(
        f"which of the dims {listed} is the length of a sequence?",
        hint="name it with --length, or fix others with --dim",
    )


def _other_dims(
    dims: Mapping[str, Sym], past: Sym | None, steps: Sym, given: Mapping[str, int], assumed: Sequence[Sym]
) -> dict[Sym, Sym]:
    """What dims of inputs are that do not count the positions of a call: what is given, else what calls are checked for
    (a mask is as long as all positions), else 1."""
    for name in given:
        if name not in dims or dims[name] in (past, steps):
            listed = ", ".join(n for n, v in dims.items() if v is not past and v is not steps) or "none"
            raise OptionError(f"the model has no other symbolic dim '{name}'", hint=f"it has: {listed}")
    before = sym(0) if past is None else past
    found: dict[Sym, Sym] = {dims[name]: sym(size) for name, size in given.items()}
    for v in dims.values():
        if v not in found and v is not past and v is not steps:
            about = [holds for holds in assumed if v in holds.vars]
            tried = (before + steps, steps, before) if about else ()
            fitting = (size for size in tried if all(_may_hold(holds.subs({**found, v: size})) for holds in about))
            found[v] = next(fitting, sym(USUAL_SIZE))
    return found


def _may_hold(condition: Sym) -> bool:
    """Whether it holds for some usual sizes, those of all variables differing."""
    return bool(condition.evaluate({v.name: 3 + 2 * k for k, v in enumerate(sorted(condition.vars, key=str))}))
