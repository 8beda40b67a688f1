"""Choices among loads by conditions on indices, as concatenated tensors are read: trees of `select`, whose leaves are
loads that nobody else reads."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym, logical_not


class ChoiceTrees:
    """Finds the trees of a kernel; what was found stays right while the kernel is not changed."""

    def __init__(self) -> None:
        self._known: dict[Op, bool] = {}
        self._last: dict[Op, Op | None] = {}

    def last_of(self, op: Op) -> Op | None:
        """The root of the tree that `op`, a load or a choice, belongs to; None where there is none."""
        if op not in self._last:
            last = at = op
            while (user := _only_user(at)) is not None and self.is_choice(user):
                last = at = user
            self._last[op] = last if last is not op or self.is_choice(op) else None
        return self._last[op]

    def is_choice(self, op: Op) -> bool:
        """Whether an op chooses among loads, and choices among loads."""
        found, open_ = [], [op]
        while open_:
            at = open_.pop()
            if at in self._known:
                if not self._known[at]:
                    break
            elif not _chooses(at):
                break
            else:
                found.append(at)
                open_ += [v for v in map(defining, at.operands[1:]) if v.name != "load"]
        else:
            self._known.update(dict.fromkeys(found, True))
            return True
        self._known[op] = False
        return False


def parts_of(last: Op) -> Iterator[tuple[Op, tuple[Sym, ...]]]:
    """A choice, and the choices and loads that it chooses from, each with the conditions under which it is chosen;
    readers before what they read."""
    open_: list[tuple[Op, tuple[Sym, ...]]] = [(last, ())]
    while open_:
        op, chosen = open_.pop()
        yield op, chosen
        if op.name != "load":
            condition = condition_of(op)
            for value, holds in zip(op.operands[1:], (condition, logical_not(condition)), strict=True):
                open_.append((defining(value), (*chosen, holds)))


def _chooses(op: Op) -> bool:
    """Whether an op chooses, by a condition on indices, among loads and choices of its block that nobody else reads."""
    if op.name != "select" or op.operands[0].op is None or op.operands[0].op.name != "index":
        return False
    return all(
        v.op is not None and v.op.name in ("load", "select") and v.op.parent is op.parent and len(v.users) == 1
        for v in op.operands[1:]
    )


def condition_of(select: Op) -> Sym:
    """The condition on indices by which a choice is made."""
    condition = defining(select.operands[0]).attrs["expr"]
    assert isinstance(condition, Sym)
    return condition


def defining(value: Value) -> Op:
    """The op that a choice reads."""
    assert value.op is not None, "a choice is made among results"
    return value.op


def _only_user(op: Op) -> Op | None:
    users = op.result.users
    return users[0] if len(users) == 1 else None
