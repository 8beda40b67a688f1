"""The account of one compilation: notes on the way, and what they give for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.accounts.kernels import kernel_records, products_of_kernels, products_of_program
from tilewright.accounts.layers import SourceLayer, layer_records, layers_of_regions, source_layers
from tilewright.accounts.work import flops_of_region
from tilewright.codegen.program import KernelText
from tilewright.ir.core import Module, Op
from tilewright.ir.diag import Loc
from tilewright.ir.notes import Outcome
from tilewright.ir.optional_steps import OptionalSteps
from tilewright.ir.sym import Sym
from tilewright.runtime.report.records import ProductCount, TypesOfKernel, TypesOfLayer
from tilewright.target.machine import Machine


@dataclass(frozen=True)
class TypesOfProgram:
    """The products of a call of a program, and the types of its kernels and of the layers of the model."""

    products: tuple[ProductCount, ...] = ()
    kernels: tuple[TypesOfKernel, ...] = ()
    layers: tuple[TypesOfLayer, ...] = ()


class Account:
    """How a program is computed. Made of the graph as the model says it, and told of the later stages; a compilation
    never fails because of it."""

    def __init__(self, module: Module, machine: Machine, optional: OptionalSteps, *, counted: bool = False) -> None:
        """With `counted` operations are counted, too."""
        self._machine = machine
        self._optional = optional
        self._layers: dict[Loc, SourceLayer] = optional.attempt(_NAME, lambda: source_layers(module), dict)
        self._regions: list[tuple[Loc, ...]] = []
        self._kernels: list[str] = []
        self._counted = counted
        self._flops_of_regions: list[Sym | None] = []
        self.flops: dict[Op, Sym] = {}
        """Operations on floats of calls, where what they compute says it."""

    def note_regions(self, module: Module) -> None:
        """Of which layers each region is; to be called before these become kernels."""
        self._regions = self._optional.attempt(_NAME, lambda: layers_of_regions(module), list)
        if self._counted:
            fused = [op for op in module.main.body.ops if op.name == "fused"]
            self._flops_of_regions = self._optional.attempt(_NAME, lambda: [*map(flops_of_region, fused)], list)

    def note_kernels(self, module: Module, calls: Sequence[int]) -> None:
        """Which kernels each region became, in as many `calls`; to be called before these are put into another
        order."""
        self._regions = [layers for layers, n in zip(self._regions, calls, strict=False) for _ in range(n)]
        made = [op for op in module.main.body.ops if op.name == "call"]
        self._kernels = [op.attrs["kernel"] for op in made]
        flops = (f if n == 1 else None for f, n in zip(self._flops_of_regions, calls, strict=False) for _ in range(n))
        self.flops = {call: f for call, f in zip(made, flops, strict=False) if f is not None}

    def types(self, module: Module, texts: Mapping[str, KernelText], outcomes: Sequence[Outcome]) -> TypesOfProgram:
        """In which types all of it is computed; `outcomes` are what rules decided."""
        return self._optional.attempt(_NAME, lambda: self._types(module, texts, outcomes), TypesOfProgram)

    def _types(
        self, module: Module, texts: Mapping[str, KernelText], outcomes: Sequence[Outcome]
    ) -> TypesOfProgram:
        products = products_of_kernels(module, texts, self._machine)
        return TypesOfProgram(
            products_of_program(module, products),
            kernel_records(module, products),
            layer_records(self._layers, self._regions, self._kernels, products, outcomes),
        )


_NAME = "account"
