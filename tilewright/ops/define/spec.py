"""The Spec of the graph level: operators with the types that their definitions give, and the builtin ops."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Module, Op
from tilewright.ir.diag import TypeRuleError
from tilewright.ir.types import TensorType, Type, tensor
from tilewright.ir.verify import OpRule, Spec
from tilewright.ops.define.operator import OPERATORS, Operator
from tilewright.ops.define.staged import STAGED, staged_rule


def graph_spec(module: Module) -> Spec:
    """The rules of the graph level for functions of `module` (whose constants they may name)."""
    rules: dict[str, OpRule] = {name: _operator_rule(o) for name, o in OPERATORS.items()}
    rules["constant"] = lambda op: _constant_rule(op, module)
    rules["fused"] = _fused_rule
    rules |= dict.fromkeys(STAGED, staged_rule)
    rules["return"] = rules["yield"] = _terminator_rule
    return Spec("graph", rules)


MOST_CASES = 1000
"""Types and attributes of an operator whose results are remembered, so that a long process does not keep all."""


@lru_cache(maxsize=4096)
def _operator_rule(operator: Operator) -> OpRule:
    # Type rules trace the body of an operator; graphs have the same few cases again and again.
    known: dict[object, tuple[TensorType, ...]] = {}

    def rule(op: Op) -> str | None:
        types = [v.type for v in op.operands if isinstance(v.type, TensorType)]
        if len(types) != len(op.operands):
            return f"takes tensors, not ({_listed(v.type for v in op.operands)})"
        if op.blocks:
            return "has no blocks"
        try:
            key = (*types, *op.attrs.items())
            expected = known.get(key)
            if expected is None:
                if len(known) >= MOST_CASES:
                    known.clear()
                expected = known[key] = operator.result_types(types, op.attrs)
        except TypeRuleError as e:
            return e.what
        except TypeError as e:  # a missing or unknown attribute, or one of a type that cannot be compared
            return f"wrong attributes: {e}"
        found = tuple(v.type for v in op.results)
        return None if found == expected else f"results are ({_listed(expected)}), not ({_listed(found)})"

    return rule


def _constant_rule(op: Op, module: Module) -> str | None:
    name = op.attrs.get("name")
    if op.operands or op.blocks or len(op.results) != 1 or op.attrs.keys() != {"name"}:
        return "has the attribute 'name', no operands and one result"
    array = module.constants.get(name) if isinstance(name, str) else None
    if array is None:
        return f"the module has no constant @{name}"
    type = op.result.type
    stored = tensor(dt.from_numpy(array.dtype), array.shape)
    return None if type == stored else f"constant @{name} is {stored}, not {type}"


def _fused_rule(op: Op) -> str | None:
    if len(op.blocks) != 1:
        return "has one block"
    block = op.blocks[0]
    if [a.type for a in block.args] != [v.type for v in op.operands]:
        return f"the block takes ({_listed(a.type for a in block.args)}), not the types of the operands"
    if any(o.name == "fused" for o in block.ops):
        return "regions do not nest"
    if not isinstance(op.attrs.get("name"), str) or not isinstance(op.attrs.get("strategy"), str):
        return "has the attributes 'name' and 'strategy', both text"
    yielded = _yielded(block)
    if yielded is None:
        return "the block ends in a yield"
    if yielded != [v.type for v in op.results]:
        return f"the block yields ({_listed(yielded)}), not the types of the results"
    return None


def _yielded(block: Block) -> list[Type] | None:
    if not block.ops or block.ops[-1].name != "yield":
        return None
    return [v.type for v in block.ops[-1].operands]


def _terminator_rule(op: Op) -> str | None:
    return "has no results, attributes or blocks" if op.results or op.attrs or op.blocks else None


def _listed(types: Iterable[Type]) -> str:
    return ", ".join(map(str, types))
