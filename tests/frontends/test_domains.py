"""Adapters that most models do not need are imported when a model has a node of their domain."""

from __future__ import annotations

import subprocess
import sys

import pytest
from onnx import helper

from tests.frontends.helpers import info, model_of
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter, translated
from tilewright.ir.core import Value

PROGRAM = """
import sys
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.outside import outside_digest
package = "tilewright.frontends.onnx.adapters.{package}"
assert package not in sys.modules, "a domain is imported before a model needs it"
load_onnx(bytes.fromhex("{model}"))
assert package in sys.modules
assert outside_digest() == "", "the package's own adapters are taken for a user's"
"""


@pytest.mark.parametrize(
    ("op", "domain", "package"), [("Gelu", "com.microsoft", "microsoft"), ("Normalizer", "ai.onnx.ml", "ml")]
)
def test_a_domain_is_imported_when_a_model_needs_it(op: str, domain: str, package: str) -> None:
    node = helper.make_node(op, ["x"], ["y"], domain=domain)
    model = model_of([node], [info("x", [2, 3])], ["y"], domains=[domain])
    program = PROGRAM.format(package=package, model=model.SerializeToString().hex())
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_that_is_translated_is_listed_without_a_model() -> None:
    assert {("com.microsoft", "Gelu"), ("ai.onnx.ml", "Normalizer"), ("", "Relu")} <= translated()


def test_a_second_adapter_of_an_operator_is_refused_where_it_is_added() -> None:
    with pytest.raises(AssertionError, match="two adapters"):

        @adapter("BiasGelu", domain="com.microsoft")
        def again(node: Node) -> Value:
            return node.input(0)
