"""How many iterations of loops a thread of a shader goes through, as drivers count them."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.sym import ONE, ZERO, Sym


@dataclass(frozen=True)
class Iterations:
    """Those of some statements: at most `most` (None: data decide), and `idle` where no thread does anything.

    Threads of a driver's vector go through a loop together until the last one has left it. The iteration in which a
    loop ends counts, and the loops in it go on to their own ends with no thread.
    """

    most: Sym | None = ZERO
    idle: Sym = ZERO

    def after(self, other: Iterations) -> Iterations:
        """Of these statements and others."""
        both = None if self.most is None or other.most is None else self.most + other.most
        return Iterations(both, self.idle + other.idle)

    def repeated(self, trips: Sym | None) -> Iterations:
        """Of a loop with so many iterations (None: data decide) of these statements."""
        last = self.idle + ONE
        return Iterations(None if trips is None or self.most is None else trips * (self.most + ONE) + last, last)
