"""The strategies for an accelerator, in the order in which they are asked."""

from __future__ import annotations

from tilewright.cost.machine.ways import MatrixUnit, way
from tilewright.schedule.machine.facts import matrix_units
from tilewright.schedule.machine.lookups import MachineLookups
from tilewright.schedule.machine.products import MachineProducts
from tilewright.schedule.machine.scalar import ScalarLoops
from tilewright.schedule.machine.vectors import MachineVectors
from tilewright.schedule.strategy import Strategy
from tilewright.target.machine import GLOBAL, Accelerator


def strategies_for(machine: Accelerator) -> tuple[Strategy, ...]:
    """Those that its facts allow; the last takes what is left."""
    vectors = (MachineVectors(), MachineLookups()) if machine.units else ()
    units = matrix_units(machine)
    fuses = bool(vectors) and all(_meets(machine, u) for u in units)
    products = (MachineProducts(fuses=fuses),) if units or vectors else ()
    return (*products, *vectors, ScalarLoops())


def _meets(machine: Accelerator, unit: MatrixUnit) -> bool:
    """Whether a vector unit works in the memory of a unit's sums, or in the one on their way out."""
    out = way(machine, unit.memories[2], GLOBAL.name) or ()
    between = out[0].target if len(out) == 2 else unit.memories[2]
    return any(between in vector.memories for vector in machine.units)
