"""Windows that slide over spatial axes: what convolutions and pooling have in common."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import sym as s
from tilewright.ir.sym import Sym, sym
from tilewright.ops.shape import Dim, require_length, window_count


class Window:
    """How the spatial axes of a result of a convolution or pooling follow from those of its operand.

    Result position i and kernel position k read `i * stride + k * dilation - before`.
    """

    def __init__(
        self,
        sizes: Sequence[Sym],
        kernel: Sequence[Dim],
        strides: Sequence[int],
        before: Sequence[Dim],
        after: Sequence[Dim],
        dilations: Sequence[int],
    ) -> None:
        rank = len(sizes)
        self.sizes = tuple(sizes)
        self.kernel = tuple(sym(k) for k in kernel)
        self.strides = tuple(strides) or (1,) * rank
        self.before = tuple(map(sym, before)) or (sym(0),) * rank
        self.after = tuple(map(sym, after)) or (sym(0),) * rank
        self.dilations = tuple(dilations) or (1,) * rank
        for values, what in (
            (self.kernel, "kernel"), (self.strides, "strides"), (self.before, "pads_begin"),
            (self.after, "pads_end"), (self.dilations, "dilations"),
        ):  # fmt: skip
            require_length(values, rank, what)
        if any(v < 1 for v in (*self.strides, *self.dilations)):
            raise ValueError(f"strides {self.strides} and dilations {self.dilations} must be positive")

    @property
    def extents(self) -> tuple[Sym, ...]:
        """Kernel positions that an element of the result visits: where the kernel is longer than the operand, no more
        than can lie inside of it, wherever the window begins."""
        return tuple(
            most if self._is_longer(axis) else k
            for axis, (k, most) in enumerate(zip(self.kernel, self._most_inside, strict=True))
        )

    @property
    def _most_inside(self) -> tuple[Sym, ...]:
        """How many of a kernel's positions can lie inside of the operand at once."""
        return tuple(s.ceildiv(size, dilation) for size, dilation in zip(self.sizes, self.dilations, strict=True))

    def _is_longer(self, axis: int) -> bool:
        """Whether a kernel has surely more positions than can lie inside."""
        k, most = self.kernel[axis], self._most_inside[axis]
        return k.is_const and most.is_const and k.value > max(most.value, 1)

    def visited(self, out: Sequence[Sym], visit: Sequence[Sym]) -> tuple[tuple[Sym, ...], list[Sym]]:
        """The operand's position that result position `out` reads at the visit numbered `visit`, of `extents`, and the
        conditions under which it reads anything."""
        k = [
            s.maximum(s.ceildiv(before - i * stride, dilation), 0) + v if self._is_longer(axis) else v
            for axis, (i, stride, dilation, before, v) in enumerate(
                zip(out, self.strides, self.dilations, self.before, visit, strict=True)
            )
        ]
        at = self.positions(out, k)
        beyond = [s.lt(kk, whole) for axis, (kk, whole) in enumerate(zip(k, self.kernel, strict=True))
                  if self._is_longer(axis)]  # fmt: skip
        return at, [*self.guard(at), *beyond]

    @property
    def counts(self) -> tuple[Sym, ...]:
        """The spatial dims of the result."""
        rows = zip(
            self.sizes, self.kernel, self.strides, self.before, self.after, self.dilations, strict=True
        )
        return tuple(window_count(*row) for row in rows)

    def positions(self, out: Sequence[Sym], k: Sequence[Sym]) -> tuple[Sym, ...]:
        """The operand's position that result position `out` reads at kernel position `k`."""
        rows = zip(out, self.strides, k, self.dilations, self.before, strict=True)
        return tuple(i * stride + kk * dilation - before for i, stride, kk, dilation, before in rows)

    def guard(self, positions: Sequence[Sym]) -> list[Sym]:
        """The conditions under which padded positions lie inside of the operand."""
        conditions = []
        for p, size, before, after in zip(positions, self.sizes, self.before, self.after, strict=True):
            conditions += [s.ge0(p)] if before != 0 else []
            conditions += [s.lt(p, size)] if after != 0 else []
        return conditions
