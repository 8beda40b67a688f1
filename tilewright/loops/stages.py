"""What lowering hands to `schedule/`: a kernel of plain loops, and which of its nests are what."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.core import Func, Op, Value


@dataclass(eq=False)
class Stage:
    """One loop nest of a kernel: `axes` and `reduce` are its loops, outermost first, and `buffer` what it fills.

    `kind` is "map" (one store for each position) or "reduce" (an accumulation; `combine` says how).
    """

    name: str
    kind: str
    combine: str
    buffer: Value
    axes: list[Op] = field(default_factory=list)
    reduce: list[Op] = field(default_factory=list)
    init: Op | None = None  # store of the neutral element, inside of `axes`
    tiles: tuple[int, ...] = ()  # of a stage that fills whole tiles: their length along each axis
    replaced: list[Op] = field(default_factory=list)  # loops over the last axis in the nest that replaces some tiles


@dataclass(eq=False)
class Lowered:
    """A kernel fresh from lowering, with its stages in program order."""

    func: Func
    stages: list[Stage]

    def clone(self) -> Lowered:
        """A copy that can be scheduled while this one stays as it is."""
        func = self.func.clone()
        ops = dict(zip(self.func.body.walk(), func.body.walk(), strict=True))
        values = dict(zip(self.func.args, func.args, strict=True))
        for old, new in ops.items():
            values.update(zip(old.results, new.results, strict=True))
        stages = [
            Stage(
                st.name, st.kind, st.combine, values[st.buffer], [ops[o] for o in st.axes],
                [ops[o] for o in st.reduce], ops[st.init] if st.init is not None else None, st.tiles,
                [ops[o] for o in st.replaced],
            )
            for st in self.stages
        ]  # fmt: skip
        return Lowered(func, stages)
