"""How the accesses of a kernel move through memory: what default schedules decide by."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.cost.elementwise import ODD_TURNS
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.ir.symbolic.arith import factors_of
from tilewright.ir.symbolic.prove import affine_in
from tilewright.ir.types import product
from tilewright.loops.analysis.fields import field_of
from tilewright.loops.edit import address_of, body_of, buffer_type, extent_of, is_loop, loop_var


def stride_in(access: Op, v: Sym) -> Sym | None:
    """Elements by which the access moves when `v` grows by one; None when that is not constant in `v`."""
    return stride_of(address_of(access), v)


def stride_of(address: Sym, v: Sym) -> Sym | None:
    """By how much an address grows when `v` grows by one; None when that is not constant in `v`."""
    if v not in address.vars:
        return sym(0)
    found = affine_in(address, v)
    return None if found is None else found[0]


def takes_field_by(load: Op, v: Sym) -> bool:
    """Whether `v` says which half of the byte, or which field of the word, that a load reads is taken."""
    shifts = [field.shift.op for op in users_beyond(load, 3) for r in op.results if (field := field_of(r)) is not None]
    return any(o is not None and o.name == "index" and v in o.attrs["expr"].vars for o in shifts)


def users_beyond(op: Op, steps: int) -> set[Op]:
    """What reads results of an op, directly or by way of others, in so many steps."""
    users = {user for r in op.results for user in r.users}
    return users.union(*(users_beyond(user, steps - 1) for user in users)) if steps > 1 else users


def elements_read(load: Op, loops: Iterable[Op]) -> int | None:
    """Elements of its buffer that a load reads in all iterations of `loops`, or a few more; None where that is not
    known."""
    extents = {loop_var(o): extent_of(o) for o in loops}
    total = 1
    for i in load.attrs["idx"]:
        span = 1
        for v in i.vars & extents.keys():
            found = affine_in(i, v)
            if found is None or not found[0].is_const or not extents[v].is_const:
                return None
            span += abs(found[0].value) * (extents[v].value - 1)
        total *= span
    return total


def loads_in(root: Op) -> list[Op]:
    return [op for op in root.walk() if op.name == "load"]


def stores_in(root: Op) -> list[Op]:
    return [op for op in root.walk() if op.name == "store"]


def perfect_nest(loop: Op) -> list[Op]:
    """`loop` and the loops inside, as long as each holds nothing but the next."""
    loops = [loop]
    while len(body_of(loops[-1]).ops) == 1 and is_loop(body_of(loops[-1]).ops[0]):
        loops.append(body_of(loops[-1]).ops[0])
    return loops


def conditional_nest(loop: Op) -> list[Op]:
    """As `perfect_nest`, with conditions on indices between the loops."""
    loops = perfect_nest(loop)
    inner = body_of(loops[-1]).ops
    while len(inner) == 1 and inner[0].name == "if" and not inner[0].operands:
        inner = body_of(inner[0]).ops
        if len(inner) == 1 and is_loop(inner[0]):
            return [*loops, *conditional_nest(inner[0])]
    return loops


def variables(indices: Iterable[Sym]) -> frozenset[Sym]:
    return frozenset[Sym]().union(*(i.vars for i in indices))


def element_bytes(buffer: Value) -> int:
    return buffer_type(buffer).dtype.bytes


def bytes_of(buffer: Value) -> int:
    """Of a buffer of known size."""
    return int(product(buffer_type(buffer).shape).value) * element_bytes(buffer)


def known(extent: Sym) -> int | None:
    return extent.value if extent.is_const else None


def iterations_of(loops: Iterable[Op]) -> int | None:
    """Of all these loops together; None where that is not known."""
    return known(product(extent_of(o) for o in loops))


def turns_in(loop: Op) -> int:
    """Of how many lines the elements are that a load takes in turns while the loop goes on, where these are no power of
    two; else 1."""
    v = loop_var(loop)
    for load in loads_in(loop):
        address = address_of(load)
        if stride_of(address, v) is None:
            found = [n for n in ODD_TURNS if address.subs({v: v + n}) - address == 1]
            if found:
                return found[0]
    return 1


def divisors_in(nest: Op, loop: Op) -> set[int]:
    """The constants by which something in a nest divides the variable of a loop."""
    return {q for op in nest.walk() for attr in op.attrs.values() for q in _divisors(attr, loop_var(loop))}


def _divisors(attr: object, v: Sym) -> set[int]:
    """The constants by which `v` itself is divided in an attribute."""
    if isinstance(attr, tuple):
        return set().union(*(_divisors(a, v) for a in attr))
    if not isinstance(attr, Sym) or v not in attr.vars:
        return set()
    if attr.kind in ("var", "mul", "add"):
        atoms = [f for mono, _ in attr.terms for f in factors_of(mono) if f.kind != "var"]
        return set().union(*(_divisors(a, v) for a in atoms))
    own = (
        {attr.args[1].value}
        if attr.kind in ("floordiv", "mod") and attr.args[0] is v and attr.args[1].is_const
        else set()
    )
    return own.union(*(_divisors(a, v) for a in attr.args))
