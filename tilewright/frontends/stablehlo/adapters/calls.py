"""Calls of what stands outside of a program, composites, and ops that say nothing about values."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from tilewright.frontends.problems import shown
from tilewright.frontends.stablehlo.adapters.elementwise import UNARY
from tilewright.frontends.stablehlo.adapters.sort import greatest
from tilewright.frontends.stablehlo.node import CUSTOM_CALLS, ProgramOp, adapter, custom_call
from tilewright.frontends.stablehlo.values import Held, as_value
from tilewright.ir import sym as s
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops.source import full


@adapter("optimization_barrier", "sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier")
def _as_it_is(node: ProgramOp) -> Sequence[Held]:
    return list(node.operands)


@adapter("partition_id", "replica_id")
def _one_device(node: ProgramOp) -> Held:
    return full(value=0, dtype=node.result_type.dtype, shape=())


@adapter("create_token", "after_all")
def _token(node: ProgramOp) -> Sequence[Held]:
    raise UnsupportedError("effects on what stands outside of the model are not supported")


@adapter("rng", "rng_bit_generator")
def _random(node: ProgramOp) -> Sequence[Held]:
    raise UnsupportedError(
        "random numbers of the machine's own kind are not supported",
        hint="use JAX's default keys (threefry), whose numbers the program computes",
    )


@adapter("composite")
def _composite(node: ProgramOp) -> Sequence[Held]:
    """Operators that we have too, others by their decomposition."""
    translate = CUSTOM_CALLS.find(node.text("name"))
    if translate is not None:
        return _listed(translate(node))
    return node.importer.called(node.text("decomposition"), node.operands, node.frame)


@adapter("custom_call")
def _custom_call(node: ProgramOp) -> Sequence[Held]:
    translate = CUSTOM_CALLS.find(node.text("call_target_name"))
    assert translate is not None, "the importer has looked for it"
    return _listed(translate(node))


def _listed(found: Held | Sequence[Held] | None) -> list[Held]:
    return list(found) if isinstance(found, Sequence) else [found] if found is not None else []


custom_call(
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement", "LayoutConstraint",
    "xla.sdy.FuncResultSharding", "xla.sdy.Sharding",
)(lambda node: list(node.operands))  # fmt: skip


@custom_call("shape_assertion")
def _shape_assertion(node: ProgramOp) -> Sequence[Held]:
    """A condition over dims that calls must fulfil."""
    found = node.translation.symbols_of(node.x(0))
    if found is None:
        raise UnsupportedError("an assertion that is not about dims is not supported")
    condition = s.truth(found.reshape(-1)[0])
    message = node.text("error_message").partition("Using the following")[0].strip()
    message = shown(message, 300)
    if condition.is_const:
        if not condition.value:
            raise ModelError(message, hint=node.translation.fixing(condition))
        return []
    node.translation.require(condition, message)
    return []


def _unary_call(name: str) -> None:
    def translate(node: ProgramOp) -> Held:
        return UNARY[f"chlo.{name}"](node.x(0))

    custom_call(f"mhlo.{name}", f"chlo.{name}")(translate)


for _name in ("erf", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan"):
    _unary_call(_name)


def _attributes(node: ProgramOp) -> ir.DictAttr | None:
    for name in ("composite_attributes", "mhlo.attributes"):
        if node.has(name):
            return ir.DictAttr(node.attribute(name))
    return None


@custom_call("mhlo.topk", "chlo.top_k", "stablehlo.dynamic_top_k")
def _top_k(node: ProgramOp) -> Sequence[Held]:
    told = _attributes(node)
    largest = True
    if told is not None and "largest" in told:
        largest = bool(told["largest"].value)
    if len(node.operands) == 2:
        (count,) = node.symbols(1)
        if not count.is_const:
            raise node.translation.must_be_known(node.x(1), "the number of elements must be known")
        k = count.value
    elif told is not None and "k" in told:
        k = int(told["k"].value)
    else:
        raise ModelError("the number of elements is missing")
    return list(greatest(as_value(node.held(0)), k, [t.dtype for t in node.types], largest))


