"""The Spec of the loops level: which ops may stand in a kernel, and what each must obey."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.scalar import LEVELS, SCALAR_OPS
from tilewright.ir.sym import ZERO, Sym, logical_and, logical_not, select
from tilewright.ir.text.notation import is_events
from tilewright.ir.types import BufferType, ScalarType, TokenType
from tilewright.ir.verify import OpRule, Spec, scalar_op_rule
from tilewright.loops.edit import (
    ORDERED_KINDS,
    block_of,
    body_of,
    bound_in,
    enclosing,
    enclosing_loops,
    is_loop,
    kind_of,
    loop_var,
    vars_read,
)
from tilewright.loops.kernel_info import KernelInfo
from tilewright.target.machine import GLOBAL, REGISTERS, Memory
from tilewright.target.target import MEMORIES

LOOP_KINDS = ("serial", "parallel", "vector", "unroll", "dot")
MAX_LANES = 64
NOT_IN_LANES = ("alloc", "lanes_reduce", "run", "wait", "barrier")


def _attributes(op: Op, required: Iterable[str], optional: Iterable[str] = ()) -> str | None:
    """What is wrong with the names of the attributes."""
    missing = set(required) - op.attrs.keys()
    unknown = op.attrs.keys() - set(required) - set(optional)
    if missing:
        return f"lacks the attribute {', '.join(sorted(missing))}"
    return f"has no attribute {', '.join(sorted(unknown))}" if unknown else None


def _form(op: Op, operands: int | None, results: int | None, blocks: int) -> str | None:
    """What is wrong with the numbers of operands, results (None: any) and blocks, whose blocks take no arguments."""
    found = (len(op.operands), len(op.results), len(op.blocks))
    wanted = (found[0] if operands is None else operands, found[1] if results is None else results, blocks)
    if found != wanted:
        return f"has {wanted[0]} operands, {wanted[1]} results and {blocks} blocks, not {found}"
    return "its block takes no arguments" if any(b.args for b in op.blocks) else None


def _rule(
    form: tuple[int | None, int | None, int],
    required: Iterable[str] = (),
    optional: Iterable[str] = (),
    *more: OpRule,
) -> OpRule:
    """The rule of an op of this form, with these attributes, that obeys `more` rules too, in this order."""

    def rule(op: Op) -> str | None:
        wrong = _attributes(op, required, optional) or _form(op, *form)
        return wrong or next(filter(None, (other(op) for other in more)), None)

    return rule


def _is_guard(attr: object) -> bool:
    return isinstance(attr, tuple) and all(isinstance(c, Sym) for c in attr)


def _scalar(value: Value) -> ScalarType | None:
    return value.type if isinstance(value.type, ScalarType) else None


# Control


def _for_rule(op: Op) -> str | None:
    if op.attrs.get("overlap", True) is not True:
        return f"'overlap' is true where it is given, not {op.attrs['overlap']!r}"
    extent, kind, turn = op.attrs["extent"], op.attrs["kind"], op.attrs.get("boustrophedon", ZERO)
    if not isinstance(turn, Sym):
        return f"'boustrophedon' is an expression, not {turn!r}"
    if "boustrophedon" in op.attrs and kind not in ORDERED_KINDS:
        return f"a loop of kind {kind} has no order to alternate"
    if not isinstance(extent, Sym):
        return f"the extent is an expression, not {extent!r}"
    if "level" in op.attrs and kind != "parallel":
        return f"a loop of kind {kind} has no level of parallelism"
    if kind not in LOOP_KINDS:
        return f"kind '{kind}' is none of {', '.join(LOOP_KINDS)}"
    if kind in ("vector", "unroll", "dot") and not extent.is_const:
        return f"a loop of kind {kind} has a constant extent, not {extent}"
    if kind == "vector":
        return _vector_rule(op, extent.value)
    return why_not_shared(op, op.attrs.get("level", "")) if kind == "parallel" else None


def _vector_rule(op: Op, lanes: int) -> str | None:
    if not 1 <= lanes <= MAX_LANES:
        return f"a vector loop has 1 to {MAX_LANES} lanes, not {lanes}"
    for inner in body_of(op).walk():
        if is_loop(inner) and kind_of(inner) not in ("unroll", "dot"):
            return f"a vector loop holds no loops but unrolled ones and dots, not '{inner.attrs['var']}'"
        if inner.name in NOT_IN_LANES:
            return f"a vector loop holds no {inner.name}"
    return None


def kernel_of(op: Op) -> Func:
    """The kernel that `op` is in."""
    around = enclosing(op)
    func = block_of(around[0] if around else op).parent
    assert isinstance(func, Func), f"{op.name} is in no kernel"
    return func


def why_not_shared(loop: Op, level: str = "") -> str | None:
    """Why threads cannot share a loop; None if they can.

    Inside of other loops they share it again in each of their iterations. The variables of these loops, arguments and
    scratch memory are all that threads may see of what is outside. A loop of a `level` of the machine may be in loops
    of other levels.
    """
    for o in enclosing(loop):
        if is_loop(o) and kind_of(o) != "serial" and not _is_of_other_level(o, level):
            return f"it is in the {kind_of(o)} loop '{loop_var(o)}'; around a parallel loop all are serial"
        if o.name == "run":
            return "it is in a run, which one thread starts"
    return why_not_apart(loop, REGISTERS.name)


def _is_of_other_level(outer: Op, level: str) -> bool:
    return bool(level) and outer.attrs.get("level", level) != level


def why_not_apart(op: Op, registers: str = "", *, is_run: bool = False) -> str | None:
    """Why what is in `op` cannot be done by others than the thread around it: scalars that only this thread has, and
    buffers in `registers`. A run is started with the positions that the thread knows, those that data say included."""
    ops = list(op.walk())
    inside = set(ops)
    for value in (v for o in ops for v in o.operands if v.op is not None and v.op not in inside):
        if isinstance(value.type, ScalarType):
            return f"it uses a {value.type} from outside, which other threads do not have"
        if isinstance(value.type, BufferType) and value.type.space == registers:
            return f"it uses registers from outside, '{value.name}', which other threads do not have"
    if is_run:
        return None
    given = bound_in(kernel_of(op).body.ops) - bound_in([op])
    used = sorted(v.name for v in given & vars_read([op]))
    return f"it uses '{used[0]}' from outside, which other threads do not have" if used else None


def _if_rule(op: Op) -> str | None:
    if not _is_guard(op.attrs["guard"]):
        return "the guard is a tuple of conditions"
    if any((type := _scalar(v)) is None or type.dtype.kind != "bool" for v in op.operands):
        return "operands are bool scalars"
    rarely = op.attrs.get("rarely", True)
    if rarely is not True:
        return f"'rarely' is true where it is given, not {rarely!r}"
    return None if op.operands or "rarely" not in op.attrs else "'rarely' is said of conditions on data"


# What runs beside the threads


def _run_rule(op: Op) -> str | None:
    queue = op.attrs.get("queue")
    wrong = _form(op, None, 1 if queue else 0, 1)
    if wrong:
        return wrong
    if not isinstance(queue, str) or not isinstance(op.attrs["intrinsic"], str):
        return "the names of its intrinsic and its queue are texts"
    if any(not isinstance(v.type, TokenType) for v in (*op.operands, *op.results)):
        return "waits for tokens and gives one"
    if "events" in op.attrs and not (queue and is_events(op.attrs["events"])):
        return f"its events are numbers by the queues that wait for them, not {op.attrs['events']!r}"
    for inner in body_of(op).walk():
        if inner.name in ("run", "wait", "barrier"):
            return f"holds no {inner.name}"
    return why_not_apart(op, is_run=True)


def _wait_rule(op: Op) -> str | None:
    tokens = [v for v in op.operands if isinstance(v.type, TokenType)]
    return None if tokens and len(tokens) == len(op.operands) else "waits for one or more tokens"


def _barrier_rule(op: Op) -> str | None:
    level = op.attrs["level"]
    for o in enclosing(op):
        if o.name == "if" and o.operands:
            return "it is under a condition that is computed from data, by which threads may differ"
        if is_loop(o) and o.attrs.get("level") == level:
            return f"it is in the loop '{loop_var(o)}', of which it joins the iterations; it stands beside such loops"
    return None


# Memory


def alloc_rule(memories: Iterable[Memory]) -> OpRule:
    """The rule of `alloc` on a machine with these memories."""
    local = {m.name: m for m in memories if m.name != GLOBAL.name}

    def rule(op: Op) -> str | None:
        type = op.result.type
        if not isinstance(type, BufferType) or type.space not in local:
            known = f"a buffer in one of {', '.join(local)}" if local else "none, as the machine has no memory for it"
            return f"gives {known}, not {type}"
        moving = {o.attrs["var"] for o in enclosing_loops(op)}
        if any(d.vars & moving for d in type.shape):
            return f"the size of {type} depends on a loop"
        if local[type.space].constant_sizes and not all(d.is_const for d in type.shape):
            return f"buffers in '{type.space}' have a constant size, not {type}"
        return None

    return _rule((0, 1, 0), (), (), rule)


def _buffer_rule(op: Op) -> str | None:
    type = op.operands[-1].type
    if not isinstance(type, BufferType):
        return f"the last operand is a buffer, not {type}"
    idx = op.attrs["idx"]
    if not _is_guard(idx) or len(idx) != type.rank:
        return f"needs {type.rank} index expressions for {type}"
    return None if _is_guard(op.attrs.get("guard", ())) else "the guard is a tuple of conditions"


def _load_rule(op: Op) -> str | None:
    type = op.operands[0].buffer
    if not isinstance(op.attrs.get("other", 0), int | float):
        return "the 'other' of a guarded load is a number, or absent where any value will do"
    return None if op.result.type == ScalarType(type.dtype) else f"gives {type.dtype}, not {op.result.type}"


def _store_rule(op: Op) -> str | None:
    if not isinstance(op.attrs.get("nontemporal", ZERO), Sym):
        return f"'nontemporal' is a condition, not {op.attrs['nontemporal']!r}"
    type = op.operands[1].buffer
    stored = op.operands[0].type
    return None if stored == ScalarType(type.dtype) else f"stores {stored} into {type}"


def _prefetch_rule(op: Op) -> str | None:
    nearest = op.attrs.get("nearest", True)
    return None if nearest is True else f"'nearest' is true where it is given, not {nearest!r}"


def _lanes_reduce_rule(op: Op) -> str | None:
    type, combine = op.operands[0].type, op.attrs["combine"]
    if not isinstance(type, BufferType) or type.space != "reg" or type.rank != 1:
        return f"takes a one-dimensional register buffer, not {type}"
    if combine not in SCALAR_OPS or not SCALAR_OPS[combine].reduces:
        return f"'{combine}' is not an associative operation"
    return None if op.result.type == ScalarType(type.dtype) else f"gives {type.dtype}, not {op.result.type}"


# Scalars


def _const_rule(op: Op) -> str | None:
    if not isinstance(op.attrs["value"], int | float):
        return f"the value is a number, not {op.attrs['value']!r}"
    return None if _scalar(op.result) else f"gives a scalar, not {op.result.type}"


def _index_rule(op: Op) -> str | None:
    type = _scalar(op.result)
    if not isinstance(op.attrs["expr"], Sym):
        return "'expr' is an index expression"
    is_whole = type is not None and (type.dtype.is_int or type.dtype is dt.bool_)
    return None if is_whole else f"gives an integer or a bool, not {op.result.type}"


def _cast_rule(op: Op) -> str | None:
    types = (op.operands[0].type, op.result.type)
    return None if all(isinstance(t, ScalarType) for t in types) else "converts a scalar to a scalar"


def _level_rule(op: Op) -> str | None:
    source, target, levels = _scalar(op.operands[0]), _scalar(op.result), op.attrs["levels"]
    if source is None or target is None or source.dtype is not dt.u4:
        return "takes a code of 4 bits without a sign, and gives a scalar"
    return None if isinstance(levels, tuple) and len(levels) == LEVELS else f"a code has {LEVELS} levels, not {levels}"


def _bitcast_rule(op: Op) -> str | None:
    source, target = _scalar(op.operands[0]), _scalar(op.result)
    if source is None or target is None or source.dtype.bits != target.dtype.bits:
        return "reinterprets a scalar as one of equally many bits"
    return None


def _bind_rule(op: Op) -> str | None:
    type = _scalar(op.operands[0])
    return None if type and type.dtype.is_int else f"takes an integer, not {op.operands[0].type}"


def _check_rule(op: Op) -> str | None:
    type = _scalar(op.operands[0])
    return None if type and type.dtype.kind == "bool" else f"takes a bool, not {op.operands[0].type}"


# Kernels


def _kernel_rule(func: Func) -> str | None:
    """Arguments are global buffers; with a parallel loop all memory of the kernel is inside of it."""
    for value in func.args:
        if not isinstance(value.type, BufferType) or value.type.space != GLOBAL.name:
            return f"argument '{value.name}' is a global buffer, not {value.type}"
    if not isinstance(func.info, KernelInfo) or func.attrs:
        return "what is known of a kernel is in its KernelInfo"
    return _info_rule(func, func.info)


def _info_rule(func: Func, info: KernelInfo) -> str | None:
    """Positions are those of arguments of their kind, and names those of dims."""
    count = len(func.args)
    if not isinstance(info.outputs, int) or not 0 <= info.outputs <= count:
        return f"'outputs' is how many of the {count} arguments are results, not {info.outputs!r}"
    operands, results = range(count - info.outputs), range(count - info.outputs, count)
    if not set(info.constants) <= set(operands):
        return f"'constants' are positions of operands, of which there are {len(operands)}, not {info.constants}"
    if not info.packed.keys() <= set(operands):
        return f"'packed' are positions of operands, of which there are {len(operands)}, not {list(info.packed)}"
    if any(i not in operands or o not in results for i, o in info.inplace):
        return f"'inplace' are pairs of operand and result, not {info.inplace}"
    if unknown := sorted(info.specialized_for.keys() - {d.name for d in func.dims}):
        return f"'specialized_for' names {unknown[0]}, which is no dim"
    return None


_RULES: dict[str, OpRule] = {
    "for": _rule((0, 0, 1), ("var", "extent", "kind"), ("overlap", "boustrophedon", "level"), _for_rule),
    "if": _rule((None, 0, 1), ("guard",), ("rarely",), _if_rule),
    "return": _rule((0, 0, 0)),
    "alloc": alloc_rule(MEMORIES),
    "load": _rule((1, 1, 0), ("idx",), ("guard", "other"), _buffer_rule, _load_rule),
    "store": _rule((2, 0, 0), ("idx",), ("guard", "nontemporal"), _buffer_rule, _store_rule),
    "prefetch": _rule((1, 0, 0), ("idx",), ("nearest",), _buffer_rule, _prefetch_rule),
    "lanes_reduce": _rule((1, 1, 0), ("combine",), (), _lanes_reduce_rule),
    "const": _rule((0, 1, 0), ("value",), (), _const_rule),
    "index": _rule((0, 1, 0), ("expr",), (), _index_rule),
    "cast": _rule((1, 1, 0), (), (), _cast_rule),
    "bitcast": _rule((1, 1, 0), (), (), _bitcast_rule),
    "level": _rule((1, 1, 0), ("levels",), (), _level_rule),
    "bind": _rule((1, 0, 0), ("var",), (), _bind_rule),
    "check": _rule((1, 0, 0), ("kind", "message"), (), _check_rule),
    "run": _rule((None, None, 1), ("intrinsic", "queue"), ("events",), _run_rule),
    "wait": _rule((None, 0, 0), (), (), _wait_rule),
    "barrier": _rule((0, 0, 0), ("level",), (), _barrier_rule),
}


def is_shared_whole(func: Func) -> bool:
    """Whether the kernel, or each of its versions, is one parallel loop and nothing beside it."""
    bodies = ([o for o in body.ops if o.name != "return"] for body in versions_of(func.body))
    return all(len(ops) == 1 and is_loop(ops[0]) and kind_of(ops[0]) == "parallel" for ops in bodies)


def parallel_extent(func: Func) -> Sym | None:
    """The extent of the loop that is all of the kernel and parallel, or of the one whose condition holds; None for a
    kernel that runs on one thread, or forks."""
    return _parallel_extent(func.body) if is_shared_whole(func) else None


def _parallel_extent(body: Block) -> Sym:
    if len(versions_of(body)) == 1:
        (extent,) = (o.attrs["extent"] for o in body.ops if o.name == "for")
        assert isinstance(extent, Sym)
        return extent
    first, second = (op for op in body.ops if op.name == "if")
    extents = (_parallel_extent(op.blocks[0]) for op in (first, second))
    return select(logical_and(*first.attrs["guard"]), *extents)


def versions_of(body: Block) -> list[Block]:
    """The bodies of a kernel that is made for some dims in one way and for all others in another; one of them runs."""
    branches = [o for o in body.ops if o.name != "return"]
    if len(branches) != 2 or any(o.name != "if" or o.operands for o in branches):
        return [body]
    if not _exclude_each_other(*(o.attrs["guard"] for o in branches)):
        return [body]
    return [b for op in branches for b in versions_of(op.blocks[0])]


def _exclude_each_other(first: tuple[Sym, ...], second: tuple[Sym, ...]) -> bool:
    """Whether just one of two lists of conditions holds. Of a dim that had two values when they were made, they are
    differences."""
    if len(first) == len(second) == 1 and first[0] + second[0] == 1:
        return True
    return logical_and(*second) == logical_not(logical_and(*first))


LOOPS_SPEC = Spec(
    "loops", {**_RULES, **dict.fromkeys(SCALAR_OPS, scalar_op_rule)}, _kernel_rule, declared_dims=True
)  # fmt: skip
"""Kernels for CPUs; `loops/machine/rules.py` has those for other machines."""
