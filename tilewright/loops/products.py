"""What a kernel multiplies and adds up: the products of its sums, by their dtypes, counted from its loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS, converted_from
from tilewright.ir.sym import Sym, logical_and, logical_not
from tilewright.loops.analysis.deps import accumulation_of
from tilewright.loops.analysis.fields import field_of
from tilewright.loops.counts import executions
from tilewright.loops.edit import buffer_type, enclosing, extent_of, is_loop, kind_of
from tilewright.loops.kernel_info import operands_of, results_of


@dataclass(frozen=True, slots=True, eq=False)
class AddedProduct:
    """A multiplication whose result is added to a sum: the dtypes of its factors where they are read, that of the
    product, and how often it is computed.

    `dot` is the loop of this kind around it (None: each product is added by itself), `lanes` the iterations of the
    vector loop (1: there is none), and `intrinsic` the machine's that does it ("": none).
    """

    op: Op
    left: DType
    right: DType
    dtype: DType
    count: Sym
    dot: Op | None
    lanes: int
    intrinsic: str


@dataclass(frozen=True, slots=True)
class KernelTypes:
    """The dtypes that a kernel reads from its operands, computes other scalars in than indices, and writes to its
    results, each once; `looks_up` where data says which elements it reads or writes."""

    reads: tuple[DType, ...]
    computes: tuple[DType, ...]
    stores: tuple[DType, ...]
    looks_up: bool


def added_products(func: Func) -> list[AddedProduct]:
    """All of a kernel, in program order. Work under a condition counts as if it always held; of versions for different
    sizes one counts, that for the others."""
    times = executions(func)
    unlike = _other_versions(func)
    found: dict[Op, AddedProduct] = {}
    for store in (op for op in func.body.walk() if op.name == "store" and not unlike.intersection(enclosing(op))):
        sum_ = accumulation_of(store)
        for op in [] if sum_ is None else sum_.products():
            if op not in found:
                left, right = map(_read_as, op.operands)
                found[op] = AddedProduct(op, left, right, op.result.scalar.dtype, times[op], *_around(op))
    return list(found.values())


def _other_versions(func: Func) -> set[Op]:
    """The first one of each two ops of which one runs in a call, as its dims decide."""
    found: set[Op] = set()
    blocks = [func.body, *(op.blocks[0] for op in func.body.walk() if op.name == "if")]
    for block in blocks:
        for op, following in pairwise(block.ops):
            if op.name == following.name == "if" and not op.operands and not following.operands:
                condition, other = (logical_and(*o.attrs["guard"]) for o in (op, following))
                if condition.vars <= set(func.dims) and other == logical_not(condition):
                    found.add(op)
    return found


def _read_as(value: Value) -> DType:
    """The dtype of a factor before conversions."""
    while (source := converted_from(value)) is not None and field_of(value) is None:
        value = source
    return value.scalar.dtype


def _around(op: Op) -> tuple[Op | None, int, str]:
    """The loop of kind `dot`, the iterations of the vector loop, and the intrinsic that an op is in."""
    around = enclosing(op)
    loops = {kind_of(o): o for o in around if is_loop(o)}
    lanes = extent_of(loops["vector"]).value if "vector" in loops else 1
    runs = [str(o.attrs["intrinsic"]) for o in around if o.name == "run"]
    return loops.get("dot"), lanes, runs[-1] if runs else ""


def types_of(func: Func) -> KernelTypes:
    """The dtypes of what a kernel reads, computes and stores."""
    by_name: Mapping[str, list[Op]] = {"load": [], "store": []}
    computed: dict[DType, None] = {}
    taken = {op: field for op in func.body.walk() for v in op.results if (field := field_of(v)) is not None}
    fields = {field.load.operands[0]: field.dtype for field in taken.values()}
    for op in func.body.walk():
        if op.name in by_name:
            by_name[op.name].append(op)
        elif op.name in SCALAR_OPS and taken.keys().isdisjoint(op.result.users):
            computed.setdefault(op.operands[-1].scalar.dtype)
    operands, results = set(operands_of(func)), set(results_of(func))
    read_from = _touched(by_name["load"], operands)
    reads = [fields.get(v, buffer_type(v).dtype) for v in operands_of(func) if v in read_from]
    stores = [buffer_type(v).dtype for v in results_of(func) if v in _touched(by_name["store"], results)]
    read, computes, stored = (tuple(dict.fromkeys(found)) for found in (reads, computed, stores))
    return KernelTypes(read, computes, stored, any(op.name == "bind" for op in func.body.walk()))


def _touched(ops: list[Op], arguments: set[Value]) -> set[Value]:
    return {op.operands[-1] for op in ops} & arguments
