"""Pattern rewriting: rules that replace one op, and the driver that applies them until none does.

A rule looks at one op (its root) and what defines its operands, writes replacement ops through a builder, and
returns the values that take the place of the root's results; or it returns (or raises) the reason why it does not
apply, which `explain` shows to the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.core import Block, Builder, Func, Module, Op, Value
from tilewright.ir.diag import InternalError, Remark, failure
from tilewright.ir.notes import Outcome, RewriteNotes
from tilewright.ir.optional_steps import EXPECTED, Part


class NoMatch(Exception):
    """A rule does not apply, and why: a sentence that a user can act on.

    A rule returns it, or raises it, as does a function that the rule calls; both are the same refusal.

    `change` is what would change it ("" where nothing that is known would), `blockers` are the operators that stand in
    the way, in words, and `again` how many times more the elements that it is about would be computed: inf where it
    cannot be done, or the cost model decided against it.
    """

    def __init__(self, reason: str, change: str = "", blockers: tuple[str, ...] = (), again: float = 0.0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.change = change
        self.blockers = blockers
        self.again = again


@dataclass(frozen=True, slots=True)
class RewriteContext:
    """What a rule may look at beside the op."""

    module: Module
    func: Func


Replacement = Value | Sequence[Value] | NoMatch | None
"""One value for each result of the root; None where the root is not of interest (no remark is made)."""

RuleFn = Callable[[Op, Builder, RewriteContext], Replacement]


@dataclass(frozen=True, eq=False)
class Rule:
    """A rewrite of ops called one of `ops` (of any op when empty).

    `fn` must not change existing ops: it emits new ones through the builder (which is also the current
    builder of the operator functions) and the driver removes what is no longer used. An op without results is
    replaced by returning `()`. Where it is `told`, a remark that says so is made of each replacement.
    """

    name: str
    ops: tuple[str, ...]
    fn: RuleFn
    told: str = ""


def rule(*ops: str) -> Callable[[RuleFn], Rule]:
    """Make a Rule of a function; its name is the function's."""
    return lambda fn: Rule(fn.__name__, ops, fn)


def rewrite(
    func: Func,
    rules: Sequence[Rule],
    module: Module,
    remarks: list[Remark] | None = None,
    *,
    stage: str = "rewrite",
    within: RewriteNotes | None = None,
) -> int:
    """Apply `rules`, earlier ones first, until none applies; return how many replacements were made.

    Replaced ops, and ops with results that nobody reads any more because of that, are erased. The reasons of
    rules that do not apply in the end are added to `remarks` under `stage`. InternalError when the rules
    never come to an end. A rule that fails, or replaces a value by one of another type, is an error; `within` a
    pass of a compilation that does without what fails, it does not apply there, and the remarks of that tell of it.
    """
    driver = _Driver(func, rules, module, stage, within or RewriteNotes())
    with driver.builder:
        while driver.sweep(func.body):
            pass
    if remarks is not None:
        outcomes = driver.outcomes()
        remarks.extend(outcome.remark() for outcome in outcomes)
        driver.within.outcomes.extend(outcomes)
    return driver.total


class _Driver:
    """The state of one `rewrite`."""

    def __init__(
        self, func: Func, rules: Sequence[Rule], module: Module, stage: str, within: RewriteNotes
    ) -> None:
        self.stage = stage
        self.within = within
        self.failed: set[tuple[Op, str]] = set()
        self.context = RewriteContext(module, func)
        self.scratch = Block()
        self.builder = Builder(self.scratch, module)
        off = self.within.optional.off
        self.rules = [r for r in rules if Part(stage, r.name) not in off] if off else rules
        self.by_name: dict[str, tuple[Rule, ...]] = {}  # of the ops that were met
        self.applied: Counter[str] = Counter()
        self.total = 0
        self.refused: dict[tuple[Op, str], str] = {}
        self.told: list[Outcome] = []
        self.limit = 1000 + 20 * sum(1 for _ in func.body.walk())

    def sweep(self, block: Block) -> bool:
        """Visit every op of `block` once, nested and new ones too; return whether anything changed."""
        changed = False
        visited: list[Op] = []
        pending = block.ops[::-1]
        while pending:
            op = pending.pop()
            for nested in op.blocks:
                changed |= self.sweep(nested)
            new = self.replace(op)
            if new is None:
                visited.append(op)
                continue
            changed = True
            for fresh in reversed(new):
                fresh.parent = block
                pending.append(fresh)
        block.ops = [op for op in visited if op.parent is not None]
        return changed

    def replace(self, op: Op) -> list[Op] | None:
        """Apply the first rule that matches `op`; the ops that take its place, or None when none does."""
        candidates = self.by_name.get(op.name)
        if candidates is None:
            candidates = self.by_name[op.name] = _rules_for(op.name, self.rules)
        if not candidates:
            return None
        builder, scratch, refused = self.builder, self.scratch, self.refused
        builder.block, builder.loc = scratch, op.loc
        for candidate in candidates:
            found = self.outcome(candidate, op)
            if found is None and not scratch.ops:  # nearly always
                if refused:
                    refused.pop((op, candidate.name), None)
                continue
            new, scratch.ops = scratch.ops, []
            if found is None or isinstance(found, NoMatch):
                for unused in reversed(new):
                    unused.drop()
                if found is None:
                    refused.pop((op, candidate.name), None)
                else:
                    refused[op, candidate.name] = found.reason
                continue
            return self.accept(op, candidate, (found,) if isinstance(found, Value) else tuple(found), new)
        return None

    def outcome(self, candidate: Rule, op: Op) -> Replacement:
        """What the rule gives for `op`; nothing where it fails as none should."""
        if self.failed and (op, candidate.name) in self.failed:
            return None
        try:
            found = candidate.fn(op, self.builder, self.context)
            if found is not None and not isinstance(found, NoMatch):
                _check_types(op, candidate, (found,) if isinstance(found, Value) else tuple(found))
            return found
        except NoMatch as refusal:
            return refusal
        except EXPECTED:
            raise
        except Exception as error:
            if self.within.optional.raises:
                raise
            self.failed.add((op, candidate.name))
            subject = Outcome(self.stage, candidate.name, "", op.name, op.loc).subject
            self.within.remarks.append(failure(self.stage, subject, error, "the rule is not applied there"))
            return None

    def accept(self, op: Op, candidate: Rule, values: tuple[Value, ...], emitted: list[Op]) -> list[Op]:
        """Put `values` in the place of the op's results; those of the `emitted` ops that are needed."""
        if self.within.watch is not None:
            self.within.watch.replaced(self.stage, candidate.name, op, values, emitted)
        if candidate.told:
            self.told.append(Outcome(self.stage, candidate.name, candidate.told, op.name, op.loc, is_applied=True))
        for old, new in zip(op.results, values, strict=True):
            old.replace_by(new)
        op.blocks = tuple([b for b in op.blocks if b.parent is op])  # the rule may have moved blocks to new ops
        needed = _drop_unused(emitted)  # first: they may be all that reads what defines the op's operands
        _drop_with_definers(op)
        self.applied[candidate.name] += 1
        self.total += 1
        if self.total > self.limit:
            (name, times), func = self.applied.most_common(1)[0], self.context.func.name
            raise InternalError(
                f"rewriting @{func} does not come to an end: rule '{name}' was applied {times} times",
                where=str(op.loc),
                hint="some rules undo one another; please report this with the model",
            )
        return needed

    def outcomes(self) -> list[Outcome]:
        """What was done that is told, and what was not done to ops that are still there."""
        refused = [
            Outcome(self.stage, name, reason, op.name, op.loc)
            for (op, name), reason in self.refused.items()
            if op.parent is not None
        ]
        return [*self.told, *refused]


def _rules_for(name: str, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    return tuple(r for r in rules if not r.ops or name in r.ops)


def _check_types(op: Op, candidate: Rule, values: tuple[Value, ...]) -> None:
    old, new = [v.type for v in op.results], [v.type for v in values]
    if old != new or any(v.owner is op for v in values):
        wanted, got = ", ".join(map(str, old)), ", ".join(map(str, new))
        raise InternalError(
            f"rule '{candidate.name}' replaced {op.name} -> ({wanted}) by ({got})",
            where=str(op.loc),
            hint="a replacement has the types of the results it replaces, and is not one of them",
        )


def _drop_unused(ops: list[Op]) -> list[Op]:
    """`ops` without those whose results nobody reads (a rule may have emitted more than it needed)."""
    for op in reversed(ops):
        if _is_dead(op):
            op.drop()
    return [op for op in ops if op.parent is not None]


def _drop_with_definers(op: Op) -> None:
    """Drop `op`, and all ops that are dead then; a dropped op has no parent (its block is filtered later)."""
    doomed = [op]
    while doomed:
        op = doomed.pop()
        if op.parent is None:
            continue
        reads = op.operands if not op.blocks else [v for nested in op.walk() for v in nested.operands]
        definers = {v.owner for v in reads if isinstance(v.owner, Op)}
        op.drop()
        doomed.extend(d for d in definers if _is_dead(d))


def _is_dead(op: Op) -> bool:
    return bool(op.results) and not any(v.users for v in op.results)


# Matching


def defining(value: Value, *names: str) -> Op | None:
    """The op that defines `value` if it is called one of `names`, else None."""
    op = value.op
    return op if op is not None and op.name in names else None


def has_one_use(value: Value) -> bool:
    """Whether exactly one operand slot holds `value`."""
    return len(value.users) == 1


def constant_array(value: Value, module: Module) -> np.ndarray | None:
    """The elements of `value` when a `constant`, or a `full` of static shape, defines it (read-only)."""
    op = defining(value, "constant", "full")
    if op is None:
        return None
    if op.name == "constant":
        return module.constants.get(op.attrs["name"])
    if not value.tensor.is_static:
        return None
    element = np.asarray(op.attrs["value"]).astype(value.tensor.dtype.storage)
    return np.broadcast_to(element, [d.value for d in value.tensor.shape])
