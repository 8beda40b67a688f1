"""Guards of exported programs: what PyTorch took for granted of sizes while it traced, as conditions of each call.

A guard is a line of Python about `L['x'].size()[2]`, with L the arguments of `forward` by name. It is read as text,
never evaluated: it may come from a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from tilewright.frontends.inputs import Bounds
from tilewright.frontends.torch.symbols.reading import UnreadableGuardError, WrittenGuard
from tilewright.frontends.torch.symbols.sizes import Sizes
from tilewright.frontends.torch.trees import tree_of_numbers
from tilewright.frontends.translation import Translation
from tilewright.ir import sym as s
from tilewright.ir.diag import Loc, ModelError, UnsupportedError
from tilewright.ir.sym import Sym
from tilewright.ir.symbolic.reach import fits_64_bits

_EXPORTED, _OTHERS = "the program was exported for", "; export it again for others"

Place = tuple[str, int | None]
"""An axis of an input, or an input that is a number itself."""


@dataclass(frozen=True)
class GivenSizes:
    """The inputs of a program: `size_of` gives the size at a place, None for what is none; `examples` are the places
    whose sizes a call decides on, and the sizes there that the program was exported with, where these are known."""

    size_of: Callable[[Place], Sym | None]
    examples: Mapping[Place, int | None]


@dataclass(frozen=True)
class Guards:
    """What a program takes for granted: `code` as lines of Python, of which `paths` gives the inputs by the text of the
    expressions for them; `ranges` of symbols, and of expressions that are the size of an axis, that are beyond what
    every size is; `traced` of symbols, found while the program was decomposed."""

    code: tuple[str, ...] = ()
    paths: tuple[tuple[str, str], ...] = ()
    ranges: tuple[tuple[str, int, int | None], ...] = ()
    traced: tuple[sympy.Basic, ...] = ()


# What a program takes for granted


def guards_of(program: ExportedProgram, minima: Mapping[str, int]) -> Guards:
    """Those that the program was exported with. `minima` are those of dims that the caller has declared, by symbol."""
    found = []
    for symbol, bounds in program.range_constraints.items():
        low, high = range_of(bounds)
        if low == USUAL_LEAST:
            low = minima.get(str(symbol), 0)
        if low or high is not None:
            found.append((str(symbol), low, high))
    return Guards(tuple(program._guards_code or ()), tuple(_paths(program).items()), tuple(found))


USUAL_LEAST = 2
"""The least size that torch.export takes for granted where nobody declares one, and that its programs do not check."""


def range_of(bounds: Any) -> Bounds:
    """The range that PyTorch knows of a symbol, as that of a size."""
    low, high = _finite(bounds.lower), _finite(bounds.upper)
    return max(low or 0, 0), high


def _finite(end: Any) -> int | None:
    try:
        value = int(end)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    return value if abs(value) < torch.iinfo(torch.int64).max else None


def _paths(program: ExportedProgram) -> dict[str, str]:
    """The names of inputs by the text of the expression that guards have for them."""
    inputs = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    found = {f"L[{name!r}]": name for name in inputs}
    spec = program.call_spec.in_spec
    signature = program.module_call_graph[0].signature if program.module_call_graph else None
    names = list(getattr(signature, "forward_arg_names", None) or [])
    if spec is None or spec.num_leaves != len(inputs):
        return found
    for path, leaf in pytree.tree_flatten_with_path(tree_of_numbers(spec))[0]:
        found.setdefault(f"L['flat_args'][{leaf}]", inputs[leaf])
        kind, place, *inner = path
        is_positional = getattr(kind, "idx", None) == 0
        place = getattr(place, "idx", getattr(place, "key", None))
        if is_positional and not (isinstance(place, int) and place < len(names)):
            continue
        name = names[place] if is_positional and isinstance(place, int) else str(place)
        rest = "".join(map(_step, inner))
        roots = [f"L[{name!r}]", f"L['kwargs'][{name!r}]"]
        if gathered := re.fullmatch(r"(.+)_(\d+)", name):
            roots.append(f"L[{gathered[1]!r}][{gathered[2]}]")
        for root in roots:
            found.setdefault(root + rest, inputs[leaf])
    return found


def _step(key: Any) -> str:
    if hasattr(key, "name"):
        return f".{key.name}"
    return f"[{getattr(key, 'idx', getattr(key, 'key', None))!r}]"


# Their conditions


def require_guards(guards: Guards, translation: Translation, sizes: Sizes, given: GivenSizes) -> None:
    """Refuse calls for which a guard does not hold. Where one cannot be read, the sizes that it names are those of the
    example, and a warning says so; UnsupportedError where these are not known.

    What guards ask of strides is asked of the example's, which an array need not have: elements are the same wherever
    they lie. A call is one with inputs that are parts of far larger tensors, where that satisfies the guard for the
    example's sizes as well."""
    for symbol, low, high in guards.ranges:
        known = sizes.named(symbol)
        if known is None:
            continue  # a number that depends on data: nodes of the graph assert its range
        if low:
            _require(translation, s.ge(known, low), f"{_EXPORTED} {known} from {low} on{_OTHERS}")
        if high is not None:
            _require(translation, s.le(known, high), f"{_EXPORTED} {known} up to {high}{_OTHERS}")
    for expression in guards.traced:
        if sizes.knows(expression):
            _require(translation, sizes.of(expression), f"PyTorch decomposed the program for sizes with {expression}")
    written = [WrittenGuard(code, dict(guards.paths), given.size_of, sizes) for code in guards.code]
    layouts = sorted(set().union(*(guard.layouts() for guard in written)))
    for guard in written:
        guard.lying_apart(layouts)
        try:
            condition = guard.condition(translation)
            if guard.layouts() and not _holds_for_examples(condition, given):
                raise UnreadableGuardError("it asks how inputs lie in memory")
        except UnreadableGuardError as error:
            _require_examples(guard.words, error, guard.places(), translation, given)
        else:
            _require(translation, condition, f"{_EXPORTED} sizes with {guard.words}{_OTHERS}")


def _holds_for_examples(condition: Sym, given: GivenSizes) -> bool:
    """Whether a condition is known to hold for the sizes that the program was exported with, and to be computed in 64
    bits for all."""
    known = {}
    for place, example in given.examples.items():
        size = given.size_of(place)
        if size is not None and size.vars == {size} and example is not None:
            known[size.name] = example
    if not fits_64_bits(condition) or any(v.name not in known for v in condition.vars):
        return False
    try:
        return bool(condition.evaluate(known))
    except ZeroDivisionError:
        return False


def _require_examples(
    words: str, reason: Exception, places: Iterable[Place], translation: Translation, given: GivenSizes
) -> None:
    """The sizes that a guard names are taken to be those that the program was exported with: all, where it names
    none."""
    fixed = [place for place in dict.fromkeys(places) if place in given.examples] or list(given.examples)
    told = []
    for place in fixed:
        example, size = given.examples[place], given.size_of(place)
        if example is None or size is None:
            raise UnsupportedError(
                f"{_EXPORTED} sizes with {words}, which is not followed: {reason}",
                hint="export the model with these sizes fixed, or without the condition",
            ) from reason
        name, axis = place
        told.append(f"{name}.shape[{axis}] == {example}" if axis is not None else f"{name} == {example}")
        alone = f"{_EXPORTED} sizes with {words}, which is known for {told[-1]} alone{_OTHERS}"
        _require(translation, s.eq(size, example), alone)
    if told:
        translation.warnings[f"guard of torch.export {words}"] = (
            f"it is not followed ({reason}): the model takes {' and '.join(told)} alone, as in the example; "
            "export the model without the condition for others"
        )


def _require(translation: Translation, condition: Sym, words: str) -> None:
    if condition.is_const and not condition.value:
        raise ModelError(words, hint="the sizes that are given contradict that: export the model for these")
    if not condition.is_const:
        with translation.builder.at(Loc(node="forward", op="guard of torch.export")):
            translation.require(condition, words)
