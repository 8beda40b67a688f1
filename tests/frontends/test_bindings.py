"""Operators of formats that are functions of ours: operands and attributes by the signature."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import helper

from tests.frontends.helpers import info, model_of
from tilewright.frontends.adapters import REQUIRED, AdapterTable, signature_of
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.core import Value
from tilewright.ir.outside import Definitions
from tilewright.ops import activation as act
from tilewright.runtime.errors import TilewrightError


def test_positional_parameters_are_operands_and_keyword_only_ones_attributes() -> None:
    def function(x: Value, y: Value | None = None, *, alpha: float, exact: bool = False) -> None: ...

    found = signature_of(function)
    assert (found.least, found.most) == (1, 2)
    assert found.attributes == {"alpha": ("float", REQUIRED), "exact": ("bool", False)}


def test_an_operator_has_the_signature_of_the_function_that_defines_it() -> None:
    found = signature_of(act.leaky_relu)
    assert (found.least, found.most, found.attributes) == (1, 1, {"alpha": ("float", 0.01)})


def test_defaults_tell_the_kind_where_nothing_else_does() -> None:
    found = signature_of(lambda *xs, alpha=1.0, times: None)
    assert (found.least, found.most) == (0, None)
    assert found.attributes == {"alpha": ("float", 1.0), "times": ("", REQUIRED)}


def loaded(op: str, inputs: list[str], **attributes: Any) -> None:
    node = helper.make_node(op, inputs, ["y"], **attributes)
    load_onnx(model_of([node], [info("x", [2, 3])], ["y"]).SerializeToString())


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        (["x"], {"alpha": 1.0}, "ScaledTanh needs the attribute 'beta'"),
        ([""], {"alpha": 1.0, "beta": 1.0}, "ScaledTanh needs an input 0"),
        ([], {"alpha": 1.0, "beta": 1.0}, "ScaledTanh needs an input 0"),
        (["x", "x"], {"alpha": 1.0, "beta": 1.0}, "input 1 of ScaledTanh is not supported"),
        (["x"], {"alpha": 1.0, "beta": 1.0, "gamma": 1.0}, "the attribute 'gamma' of ScaledTanh is not supported"),
    ],
)
def test_what_does_not_fit_the_signature_is_named(
    inputs: list[str], attributes: dict[str, float], message: str
) -> None:
    with pytest.raises(TilewrightError, match=message):
        loaded("ScaledTanh", inputs, **attributes)


def test_a_second_adapter_is_refused_and_a_binding_comes_after_adapters() -> None:
    table: AdapterTable[str, Any] = AdapterTable(Definitions())
    table.bind("Twice", "bound")
    assert table.find("Twice") == "bound"
    table.adds(["Twice"], versions=range(7, 9))(adapter := lambda node: node)
    assert table.find("Twice", version=7) is adapter
    assert table.find("Twice", version=9) == "bound"
    with pytest.raises(AssertionError, match="Twice has two adapters"):
        table.adds(["Twice"], versions=range(7, 10))(adapter)


def test_what_is_not_found_is_looked_for_again_when_the_rest_is_loaded() -> None:
    asked: list[str] = []
    table: AdapterTable[str, Any] = AdapterTable(Definitions(), load_rest=lambda key: asked.append(key))
    table.bind("Common", "bound")
    assert table.find("Common") == "bound" and asked == []
    assert table.find("Rare") is None and asked == ["Rare"]
