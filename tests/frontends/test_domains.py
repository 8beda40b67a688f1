"""Adapters that most models do not need are imported when a model has a node that needs them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from onnx import helper

from tests.frontends.helpers import info, model_of
from tilewright.frontends.adapters import AdapterTable
from tilewright.frontends.onnx import registry
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
    ("op", "domain", "package"),
    [("QuickGelu", "com.microsoft", "microsoft"), ("Normalizer", "ai.onnx.ml", "ml"), ("Affine", "", "rare")],
)
def test_a_package_is_imported_when_a_model_needs_it(op: str, domain: str, package: str) -> None:
    node = helper.make_node(op, ["x"], ["y"], domain=domain)
    model = model_of([node], [info("x", [2, 3])], ["y"], domains=[domain] if domain else [])
    program = PROGRAM.format(package=package, model=model.SerializeToString().hex())
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_packages_of_other_domains_have_nothing_of_the_standard() -> None:
    """A model that has no node of theirs would not find it."""
    program = """
import tilewright.frontends.onnx.load
from tilewright.frontends.onnx import registry
def standard():
    return {key for table in (registry._ADAPTERS, registry._HOST_ADAPTERS) for key in table if key[0] == ""}
assert registry.find_adapter("", "no such operator", 1) is None
found = standard()
registry.load_all()
assert standard() == found, standard() - found
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_models_of_common_operators_import_nothing_that_is_late() -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    model = model_of([node], [info("x", [2, 3])], ["y"])
    program = (
        "import sys\nfrom tilewright.frontends.onnx.load import load_onnx\n"
        f'load_onnx(bytes.fromhex("{model.SerializeToString().hex()}"))\n'
        'assert "tilewright.frontends.onnx.adapters.rare" not in sys.modules'
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("table", [registry._ADAPTERS, registry._HOST_ADAPTERS], ids=["tensors", "host"])
def test_what_loads_late_translates_no_version_that_another_adapter_does(table: AdapterTable[Any, Any]) -> None:
    """Else it would depend on earlier models which one is found."""
    registry.load_all()
    packages = tuple(f"tilewright.frontends.onnx.adapters.{name}" for name in ("rare", "ml", "microsoft"))
    for key in table:
        entries = [(versions, fn.__module__.startswith(packages)) for versions, fn in table._adapters.get(key, ())]
        entries += [(versions, False) for versions, _ in table._bindings.get(key, ())]
        for late in [versions for versions, is_late in entries if is_late]:
            for always in [versions for versions, is_late in entries if not is_late]:
                assert late.stop <= always.start or always.stop <= late.start, key


def test_all_that_is_translated_is_listed_without_a_model() -> None:
    assert {("com.microsoft", "Gelu"), ("ai.onnx.ml", "Normalizer"), ("", "Relu")} <= translated()


def test_a_second_adapter_of_an_operator_is_refused_where_it_is_added() -> None:
    with pytest.raises(AssertionError, match="two adapters"):

        @adapter("BiasGelu", domain="com.microsoft")
        def again(node: Node) -> Value:
            return node.input(0)
