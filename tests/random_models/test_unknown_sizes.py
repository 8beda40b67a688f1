"""Operators whose operands are of sizes that are not known: taken for what fits, or refused as not supported."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import onnx
import pytest
from onnx import helper

from tests.random_models.growth import DOMAINS, OPSETS
from tests.random_models.templates import Template, templates
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import TilewrightError, UnsupportedError

SAMPLE = 300


def with_unknown_sizes(template: Template, is_unknown: Callable[[], bool]) -> onnx.ModelProto:
    """A model of the node alone, with a dim of its own for each size of which that is said, and the other operands'
    sizes as the template has them."""
    names = [name if a is not None else "" for name, a in zip(template.node.input, template.arrays, strict=True)]
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(a.dtype),
            [f"{name}_{k}" if is_unknown() else d for k, d in enumerate(a.shape)],
        )
        for name, a in dict(zip(names, template.arrays, strict=True)).items()
        if a is not None
    ]
    node = onnx.NodeProto()
    node.CopyFrom(template.node)
    node.input[:] = names
    outputs = [onnx.ValueInfoProto(name=n) for n in node.output if n]
    imports = [helper.make_opsetid("", OPSETS[-1]), *(helper.make_opsetid(d, v) for d, v in DOMAINS.items())]
    return helper.make_model(helper.make_graph([node], "alone", inputs, outputs), opset_imports=imports, ir_version=10)


def every() -> Iterator[Template]:
    for of_operator in templates().values():
        yield from of_operator


def why_not(model: onnx.ModelProto) -> str:
    """Why a model is refused, though it is supported; "" where it is not."""
    try:
        load_onnx(model, constants={}, shapes={})
    except UnsupportedError:
        return ""
    except TilewrightError as e:
        return str(e)
    return ""


def found(template: Template, is_unknown: Callable[[], bool]) -> str:
    """Why sizes that are not known make the node wrong; "" where they do not, or it is wrong in any case."""
    reason = why_not(with_unknown_sizes(template, is_unknown))
    return "" if not reason or why_not(with_unknown_sizes(template, lambda: False)) else reason


def test_all_sizes_may_be_unknown() -> None:
    assert not [reason for t in every() if (reason := found(t, lambda: True))]


@pytest.mark.fresh_seeds(1)
def test_some_sizes_may_be_unknown(fresh_seed: int) -> None:
    chance = random.Random(fresh_seed)
    sample = chance.sample(list(every()), SAMPLE)
    assert not [reason for t in sample if (reason := found(t, lambda: chance.random() < 0.5))]
