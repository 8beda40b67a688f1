"""The strategies for an accelerator, in the order in which they are asked."""

from __future__ import annotations

from tilewright.schedule.machine.facts import matrix_units
from tilewright.schedule.machine.lookups import MachineLookups
from tilewright.schedule.machine.products import MachineProducts
from tilewright.schedule.machine.scalar import ScalarLoops
from tilewright.schedule.machine.vectors import MachineVectors
from tilewright.schedule.strategy import Strategy
from tilewright.target.machine import Accelerator


def strategies_for(machine: Accelerator) -> tuple[Strategy, ...]:
    """Those that its facts allow; the last takes what is left."""
    products = (MachineProducts(),) if matrix_units(machine) else ()
    vectors = (MachineVectors(), MachineLookups()) if machine.units else ()
    return (*products, *vectors, ScalarLoops())
