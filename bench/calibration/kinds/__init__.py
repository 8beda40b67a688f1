"""The kinds of decisions that are measured, each in one of these files."""

from __future__ import annotations

from bench.calibration.kind import Kind
from bench.calibration.kinds import convolutions, gemm, images, lines, sequences

KINDS: tuple[Kind, ...] = (
    *gemm.KINDS,
    *convolutions.KINDS,
    *images.KINDS,
    *lines.KINDS,
    *sequences.KINDS,
)
