"""All functions over operators that are declared, in the order of their files: for the page of operators, and tests."""

from __future__ import annotations

from tilewright.ops.composites import attention, complex, fourier, matrices, products, special
from tilewright.ops.composites.declared import COMPOSITES

FAMILIES = (attention, complex, fourier, matrices, products, special)
"""The files that declare some: importing them fills the table."""

__all__ = ["COMPOSITES", "FAMILIES"]
