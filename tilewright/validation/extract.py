"""Small programs cut out of large ones: some values as functions of others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from tilewright.ir.core import Block, Func, Module, Op, Value

MOST_OPS = 24
"""Of a rule's surroundings that go into a reproducer."""


def cut_out(
    results: Sequence[Value],
    module: Module,
    stops: Container[Value],
    emitted: Iterable[Op] = (),
    most: int = MOST_OPS,
) -> tuple[list[Op], list[Value]]:
    """The ops, in order, that give values, back to `stops` and at most so many; and what they read from outside. All of
    the `emitted` ones that are needed are taken."""
    fresh = set(emitted)
    taken: dict[Op, None] = {}
    pending = [v for v in results if v not in stops or v.op in fresh]
    while pending:
        value = pending.pop(0)
        op = value.op
        if op is None or op in taken or (op not in fresh and (value in stops or len(taken) >= most)):
            continue
        taken[op] = None
        pending += [v for v in op.operands if v not in stops or v.op in fresh]
    inside = {v for op in taken for v in op.results}
    ordered: list[Op] = []
    seen: set[Op] = set()

    def visit(op: Op) -> None:
        stack: list[tuple[Op, int]] = [(op, 0)]
        while stack:
            current, at = stack.pop()
            if at == 0 and current in seen:
                continue
            seen.add(current)
            definers = [v.op for v in current.operands if v in inside and v.op is not None]
            if at < len(definers):
                stack.append((current, at + 1))
                if definers[at] not in seen:
                    stack.append((definers[at], 0))
            else:
                ordered.append(current)

    for op in taken:
        visit(op)
    reads = dict.fromkeys(v for op in ordered for v in op.operands if v not in inside)
    reads.update(dict.fromkeys(v for v in results if v not in inside))
    return ordered, list(reads)


def program_of(
    ops: Sequence[Op], inputs: Sequence[Value], results: Sequence[Value], module: Module,
    names: Mapping[Value, str] | None = None,
) -> Module:
    """A graph of these ops; constants that they read are shared."""  # fmt: skip
    given = names or input_names(inputs)
    block = Block([v.type for v in inputs], [given[v] for v in inputs])
    values: dict[Value, Value] = dict(zip(inputs, block.args, strict=True))
    for op in ops:
        block.append(op.clone(values))
    block.append(Op("return", [values[v] for v in results]))
    made = Module()
    outputs = tuple(f"y{k}" for k in range(len(results)))
    made.add(Func("main", block, attrs={"inputs": tuple(given[v] for v in inputs), "outputs": outputs}))
    for op in block.walk():
        if op.name == "constant":
            made.constants[op.attrs["name"]] = module.constants[op.attrs["name"]]
    return made


def input_names(values: Iterable[Value]) -> dict[Value, str]:
    """A name for each, no two the same."""
    found: dict[Value, str] = {}
    taken: set[str] = set()
    for number, value in enumerate(values):
        name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in value.name) or f"x{number}"
        name = name if name[0].isalpha() and name not in taken else f"x{number}_{name}"
        taken.add(name)
        found[value] = name
    return found
