"""The account of one compilation: notes on the way, and what they give for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.accounts.kernels import kernel_records, products_of_kernels, products_of_program
from tilewright.accounts.layers import SourceLayer, layer_records, layers_of_regions, source_layers
from tilewright.codegen.program import KernelText
from tilewright.ir.core import Module
from tilewright.ir.diag import Loc
from tilewright.ir.notes import Outcome
from tilewright.ir.optional_steps import OptionalSteps
from tilewright.target.machine import Machine


class Account:
    """How a program is computed. Made of the graph as the model says it, and told of the later stages; a compilation
    never fails because of it."""

    def __init__(self, module: Module, machine: Machine, optional: OptionalSteps) -> None:
        self._machine = machine
        self._optional = optional
        self._layers: dict[Loc, SourceLayer] = optional.attempt(_NAME, lambda: source_layers(module), dict)
        self._regions: list[tuple[Loc, ...]] = []
        self._kernels: list[str] = []

    def note_regions(self, module: Module) -> None:
        """Of which layers each region is; to be called before these become kernels."""
        self._regions = self._optional.attempt(_NAME, lambda: layers_of_regions(module), list)

    def note_kernels(self, module: Module, calls: Sequence[int]) -> None:
        """Which kernels each region became, in as many `calls`; to be called before these are put into another
        order."""
        self._regions = [layers for layers, n in zip(self._regions, calls, strict=False) for _ in range(n)]
        self._kernels = [op.attrs["kernel"] for op in module.main.body.ops if op.name == "call"]

    def add_to(
        self,
        report: dict[str, Any],
        module: Module,
        texts: Mapping[str, KernelText],
        outcomes: Sequence[Outcome],
    ) -> None:
        """What was computed how, by kernels and by layers."""
        self._optional.run(_NAME, lambda: self._add(report, module, texts, outcomes))

    def _add(
        self,
        report: dict[str, Any],
        module: Module,
        texts: Mapping[str, KernelText],
        outcomes: Sequence[Outcome],
    ) -> None:
        told = report.pop("remarks", [])
        products = products_of_kernels(module, texts, self._machine)
        report["products"] = products_of_program(module, products)
        report["types"] = kernel_records(module, products)
        report["layers"] = layer_records(self._layers, self._regions, self._kernels, products, outcomes)
        report["remarks"] = told


_NAME = "account"


def merged_accounts(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """That of a program in parts, of the reports of these."""
    products: dict[str, str] = {}
    for report in reports:
        for form, count in report.get("products", {}).items():
            products[form] = _sum(products.get(form, "0"), count)
    return {"products": products} | {
        name: [record for report in reports for record in report.get(name, ())]
        for name in ("types", "layers")
    }


def _sum(a: str, b: str) -> str:
    if a.isdigit() and b.isdigit():
        return str(int(a) + int(b))
    return b if a == "0" else f"{a} + {b}"
