"""Inputs and outputs that become states: what one call gives is what the next one gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.core import Func, Module, Op, Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType, Type, buffer, is_native
from tilewright.ops.define.binding import input_variables
from tilewright.ops.define.staged import HOST, MEASURE
from tilewright.program.aliasing import states_held
from tilewright.program.caches import Cache, caches_of, grow_caches
from tilewright.program.growing import growing
from tilewright.program.spec import READ, SPACE, STATE, UPDATE
from tilewright.program.uses import dims_of, variables_in
from tilewright.runtime.errors import OptionError

STATES = "states"
"""The attribute of a main function with its states: for each its name, that of the output, and that of the constant
that it holds at first ("" for zeros). These are the last inputs and the last outputs."""

VARIABLES = "variables"
"""The attribute with the variables that a model declares itself: for each the names of the input, of the output, of the
constant that it holds at first, and its own. Whether they become states is up to the caller, but for a model that has
no other meaning (`must_keep`)."""

MUST_KEEP = "must_keep"

GROWING = "growing"
"""The attribute with the states that grow (`growing.py`): name, axis and counter of each."""

KEEPS = "keeps"
"""The attribute of a model whose variables become states also where the caller does not ask for it: nobody hands the
caches of a decoder on."""


ROOM = "room"
"""The attribute of a model whose caches have a size of their own: the most positions that they have room for, whatever
the capacity is."""


def pair_states(module: Module, wanted: Sequence[tuple[str, str]] | bool, capacity: int | None = None) -> list[Cache]:
    """Put the inputs and outputs that are states behind the others, and note them. With True they are the variables
    that the model declares, and with a `capacity` its caches, too: those become states that grow, and are the result.
    OptionError for those that do not fit."""
    caches = [] if capacity is None or not wanted else caches_of(module.main, None if wanted is True else wanted)
    if capacity is not None:
        wanted = _with_caches(module.main, wanted, caches, capacity)
    _pair(module, wanted)
    return caches


def _with_caches(
    main: Func, wanted: Sequence[tuple[str, str]] | bool, caches: Sequence[Cache], capacity: int
) -> list[tuple[str, str]]:
    """The pairs with caches of that capacity among them."""
    if not caches:
        raise OptionError(
            f"capacity={capacity} is for caches, which grow from call to call, and the model has none among its states",
            hint="a cache is an input with one symbolic dim, and the output that joins it with what is new; other dims "
            "are fixed with shapes=",
        )
    variables = [entry[:2] for entry in main.attrs.get(VARIABLES, ())]
    others = variables if wanted is True else list(wanted or ())
    grown = grow_caches(main, caches, min(capacity, main.attrs.get(ROOM, capacity)))
    return [*(pair for pair in others if pair not in grown), *grown]


def _pair(module: Module, wanted: Sequence[tuple[str, str]] | bool) -> None:
    declared = {entry[0]: entry[1:] for entry in module.main.attrs.get(VARIABLES, ())}
    if not wanted and module.main.attrs.get(KEEPS):
        wanted = True
    if wanted is True and not declared:
        raise OptionError(
            "states=True keeps the variables that a model declares, and this one declares none",
            hint='name pairs of inputs and outputs: states={"h": "hn"}',
        )
    pairs = [(name, output) for name, (output, _, _) in declared.items()] if wanted is True else list(wanted or ())
    left = [name for name in declared if name not in dict(pairs)]
    if left and module.main.attrs.get(MUST_KEEP):
        written = ", ".join(f"'{declared[name][2]}'" for name in left)
        raise UnsupportedError(
            f"the module writes to its {written}",
            hint="states=True lets the model keep them from call to call; or return the new value, or call .eval() on "
            "the module",
        )
    if not pairs:
        return
    main = module.main
    for name, output in pairs:
        _check(main, name, output)
    inputs, outputs = ([pair[k] for pair in pairs] for k in (0, 1))
    for names, what in ((inputs, "input"), (outputs, "output")):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise OptionError(f"states= names the {what} '{twice}' twice: each belongs to one state")
    args = _moved(main.attrs["inputs"], main.args, inputs)
    returns = _moved(main.attrs["outputs"], main.returns, outputs)
    main.attrs["inputs"], main.body.args = args
    main.attrs["outputs"], operands = returns
    main.body.ops[-1].set_operands(operands)
    main.attrs[STATES] = tuple(
        (declared[name][2], output, declared[name][1]) if name in declared else (name, output, "")
        for name, output in pairs
    )
    kept = zip(main.attrs[STATES], main.args[-len(pairs) :], main.returns[-len(pairs) :], strict=True)
    found = growing(module, {name: (held, becomes) for (name, _, _), held, becomes in kept})
    main.attrs[GROWING] = tuple((name, *growth) for name, growth in found.items())


def _moved(
    names: Sequence[str], values: Sequence[Value], last: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Value, ...]]:
    """Names and values with those of `last` behind the others."""
    order = [k for k, name in enumerate(names) if name not in last] + [names.index(name) for name in last]
    return tuple(names[k] for k in order), tuple(values[k] for k in order)


def _check(main: Func, name: str, output: str) -> None:
    for what, wanted, names in (("input", name, main.attrs["inputs"]), ("output", output, main.attrs["outputs"])):
        if wanted not in names:
            raise OptionError(
                f"states={{'{name}': '{output}'}}: the model has no {what} '{wanted}'",
                hint=f"its {what}s are: {', '.join(names) or 'none'}{_GIVEN if what == 'input' else ''}",
            )
    held = main.args[main.attrs["inputs"].index(name)].type
    given = main.returns[main.attrs["outputs"].index(output)].type
    sides = f"state '{name}' is {held}, and the output '{output}' that it becomes is {given}"
    if not is_native(held) or not is_native(given):
        raise OptionError(f"{sides}: states are tensors of numbers")
    if not _is_fixed(held):
        raise OptionError(
            f"{sides}: memory that lives from call to call has fixed sizes",
            hint=f"fix them, such as shapes={{'{name}': {_fixed_example(held)}}}",
        )
    if held != given:
        raise OptionError(f"{sides}: both must be the same", hint=_way_out(held, given))


_GIVEN = "; inputs that constants= gives are none"


def _way_out(held: Type, given: Type) -> str:
    """What makes two types one that differ."""
    assert isinstance(held, TensorType) and isinstance(given, TensorType)
    if held.dtype is not given.dtype:
        return f"an output of a state has its dtype: cast it to {held.dtype.name} in the model"
    if not given.is_static:
        return "fix the symbolic dims of the output with shapes="
    return "a state keeps its shape from call to call: cut the output in the model, or pair another one"


def _is_fixed(type: Type) -> bool:
    return isinstance(type, TensorType) and type.is_static


def _fixed_example(type: Type) -> list[int]:
    return [d.value if d.is_const else 1 for d in type.shape] if isinstance(type, TensorType) else []


def introduce_states(main: Func) -> None:
    """Make states of the last inputs and outputs of a program: they are read where it begins, and updated where it
    ends."""
    pairs = main.attrs.get(STATES, ())
    if not pairs:
        return
    args, final = main.args, main.body.ops[-1]
    own, kept = args[: -len(pairs)], args[-len(pairs) :]
    used = set(_variables_used(main))
    before: list[Op] = []
    for arg, (name, _, initial) in zip(kept, pairs, strict=True):
        attrs = {"name": name} | ({"initial": initial} if initial else {})
        type = buffer(arg.tensor.dtype, arg.tensor.shape, SPACE)
        state = Op(STATE, (), [type], attrs)
        read = Op(READ, [state.result], [arg.type])
        state.result.name = name
        symbols = input_variables(arg)
        arg.replace_by(read.result)
        before += [state, read]
        if symbols is not None and not used.isdisjoint(symbols.flat):
            before.append(Op(MEASURE, [read.result], (), {"variables": tuple(symbols.flat)}))
    states = [op for op in before if op.name == STATE]
    main.body.args = own
    for op in before:
        op.parent = main.body
    main.body.ops[:0] = before
    held = states_held(main)
    main.body.ops.pop()
    outputs = [_copied(main, v) if held.get(v) else v for v in final.operands[: -len(pairs)]]
    updates = [(op.result, v) for op, v in zip(states, final.operands[-len(pairs) :], strict=True)]
    updates = [(state, _copied(main, v) if held.get(v, _NONE) - {state} else v) for state, v in updates]
    for held_in, value in updates:
        main.body.append(Op(UPDATE, [held_in, value]))
    final.set_operands(outputs)
    main.body.append(final)
    main.attrs["inputs"] = main.attrs["inputs"][: -len(pairs)]
    main.attrs["outputs"] = main.attrs["outputs"][: -len(pairs)]


_NONE: frozenset[Value] = frozenset()


def _copied(main: Func, value: Value) -> Value:
    """A copy of what may be the memory of a state, which an update writes. The host makes it: programs of kernels have
    none, as what kernels give is their own (`link.copy_aliased_outputs`)."""
    copy = main.body.append(Op(HOST, [value], [value.type], {"function": "copied"}))
    copy.result.name = value.name
    return copy.result


def states_of(main: Func) -> list[tuple[Op, Op]]:
    """The states of a program and their updates, in order."""
    updates = {op.operands[0]: op for op in main.body.ops if op.name == UPDATE}
    return [(op, updates[op.result]) for op in main.body.ops if op.name == STATE]


def _variables_used(main: Func) -> Iterator[Sym]:
    yield from variables_in(main.attrs.get("assumed", ()))
    for op in main.body.walk():
        if op.name != MEASURE:
            yield from variables_in(op.attrs.values())
        for value in op.results:
            yield from dims_of(value)
