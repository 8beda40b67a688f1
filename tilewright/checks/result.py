"""What a check finds, as frozen data; `record` gives it as JSON data of a stable form (docs/check.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tilewright.ir.diag import Problem
from tilewright.runtime.artifact import TensorInfo

SCHEMA = 1
"""Version of the JSON data: fields may be added to one; whatever else changes makes the next."""

NoteKind = Literal["host", "assumed", "broadcast", "own_loops", "contradiction", "slow", "remark"]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as a formula of the symbolic dims, and its value for the dims of the check; None where it depends on
    sizes that only a call of the model finds out."""

    formula: str
    value: int | None

    def __repr__(self) -> str:
        known = self.value is None or self.formula == str(self.value)
        return f"<{self.formula}>" if known else f"<{self.formula} = {self.value}>"


@dataclass(frozen=True, slots=True)
class Note:
    """What makes a node slow, or restricts calls. `kind` is "host" for what runs in Python between parts of native
    code, "assumed" for a condition that calls must fulfil, "broadcast" for dims that are taken for equal but for calls
    in which one of them is 1, "own_loops" for an operator whose loops are its own, and may not be vectorised,
    "contradiction" for what the model declares and is not taken, "slow" for a kernel (its name stands for the node)
    that does less than a tenth of what the machine could, and "remark" for an optional step that failed."""

    kind: NoteKind
    operator: str
    node: str
    message: str


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """The nodes of one operator: their number, the dtypes of their results, floating-point operations, the bytes of
    operands and results if each were a kernel of its own, and the estimated cycles of the kernels in which they are the
    heaviest part."""

    operator: str
    nodes: int
    dtypes: tuple[str, ...]
    flops: Quantity
    bytes: Quantity
    cycles: float | None


@dataclass(frozen=True, slots=True)
class BlockUse:
    """A part of the model that repeats, `copies` times, of which the first `variants` have other sizes or a few
    operators more; what all of them compute, and the estimated cycles of their kernels (None where a dim is not
    known)."""

    block: str
    copies: int
    variants: int
    flops: Quantity
    cycles: float | None


@dataclass(frozen=True, slots=True)
class Parameters:
    """The constants of one dtype: how many elements, and their bytes."""

    dtype: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes. `weights` are the constants as kernels read them, `arena` the intermediate results of the fused graph as
    the memory planner lays them out, `peak` all four together. Scratch memory of threads is not in it."""

    inputs: Quantity
    outputs: Quantity
    weights: Quantity
    arena: Quantity
    peak: Quantity


@dataclass(frozen=True, slots=True)
class Time:
    """The estimated time of one call on a machine with so many threads. None where a dim is not known; `seconds` only
    for this machine, whose clock (`hertz`) is measured."""

    target: str
    threads: int
    cycles: float | None
    hertz: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Costs:
    """What a model that runs needs. `flops` are of the operators as the model has them, `moved_bytes` those that fused
    kernels read and write. `sizes` are the dims for which values and the time are given."""

    sizes: Mapping[str, int]
    kernels: int
    operators: tuple[OperatorUse, ...]
    parameters: tuple[Parameters, ...]
    flops: Quantity
    moved_bytes: Quantity
    memory: MemoryNeeds
    time: Time
    blocks: tuple[BlockUse, ...] = ()

    def __repr__(self) -> str:
        seconds = self.time.seconds
        time = "" if seconds is None else f", about {seconds * 1e3:.4g} ms on {self.time.target}"
        return f"<costs: {self.kernels} kernels, {self.flops.formula} flops{time}>"


@dataclass(frozen=True, slots=True)
class UnprovedAccess:
    """A load or a store of a kernel that is not proved to stay within its buffer: the `missing` condition along an
    axis. `leaves` are sizes and iterations, by name, for which it leaves the buffer: such an access is wrong, and one
    without may be right. `looked_at` is False where the search for a proof was ended by its budget."""

    kernel: str
    buffer: str
    type: str
    access: str
    index: str
    axis: int
    missing: str
    looked_at: bool
    leaves: Mapping[str, int]

    def __str__(self) -> str:
        text = f"{self.access} of '{self.buffer}' {self.type} at [{self.index}]: axis {self.axis} needs {self.missing}"
        if self.leaves:
            return f"{text}, which fails for {', '.join(f'{name}={n}' for name, n in self.leaves.items())}"
        return text if self.looked_at else f"{text}, not looked at to the end"


@dataclass(frozen=True, slots=True)
class AccessBounds:
    """How many loads and stores of all kernels are proved to stay within their buffers: by the ranges of their indices,
    or by a mask, a condition, a minimum or a clamp; for how many there is no proof, or none was looked for to the end;
    and these one by one."""

    by_range: int
    by_guard: int
    not_proved: int
    not_looked_at: int
    unproved: tuple[UnprovedAccess, ...] = ()

    def __add__(self, other: AccessBounds) -> AccessBounds:
        return AccessBounds(
            self.by_range + other.by_range, self.by_guard + other.by_guard, self.not_proved + other.not_proved,
            self.not_looked_at + other.not_looked_at, self.unproved + other.unproved,
        )  # fmt: skip

    @property
    def wrong(self) -> tuple[UnprovedAccess, ...]:
        """The accesses that leave their buffers."""
        return tuple(access for access in self.unproved if access.leaves)


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """What `tilewright.check` finds. A model with `problems`, which are all nodes that cannot be translated, does not
    run, and has no `costs`. `bounds` is None where it was not asked for."""

    model: str
    problems: tuple[Problem, ...] = ()
    notes: tuple[Note, ...] = ()
    nodes: int | None = None
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    costs: Costs | None = field(default=None)
    bounds: AccessBounds | None = None

    def __repr__(self) -> str:
        of = f" of {self.model}" if self.model else ""
        if self.problems:
            operators = ", ".join(dict.fromkeys(p.operator or p.reason for p in self.problems))
            return f"<check{of}: does not run, {len(self.problems)} problems ({operators:.200})>"
        costs = "" if self.costs is None else f", {repr(self.costs).removeprefix('<costs: ').removesuffix('>')}"
        return f"<check{of}: runs, {self.nodes} nodes, {len(self.notes)} notes{costs}>"

    @property
    def runs(self) -> bool:
        """Whether the model can be compiled."""
        return not self.problems

    def record(self) -> dict[str, Any]:
        """As JSON data, of the form that docs/check.md describes."""
        return {"schema": SCHEMA, "runs": self.runs, **asdict(self)}
