"""The records that reports are made of. Amounts that depend on the dims of the inputs are texts, such as "128*batch".

JSON data has a record as an object of its fields by name, and a tuple as an array. What changes that (a field that is
renamed, or needed) makes a new `VERSION`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tilewright.runtime.errors import ArtifactError, Remark
from tilewright.runtime.storage.records import plain, record

VERSION = 1


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call of a kernel: the node that its work came from, the types of its results, and the bytes of all operands and
    results. With `profile=True` also the operations on floats, the bytes of arguments that are touched, and those of
    constants among them. `nodes` are all nodes that it computes, the one that gave it its name first. `external` is the
    kernel of a plugin whose code it is."""

    kernel: str
    node: str
    results: tuple[str, ...]
    bytes: str
    flops: str | None = None
    touched_bytes: str | None = None
    constant_bytes: str | None = None
    nodes: tuple[str, ...] = ()
    external: str | None = None


@dataclass(frozen=True, slots=True)
class ProductForm:
    """In which types products are computed: those of the factors as they are read, that in which they are added up,
    and what computes them ("": no instruction of its own is known)."""

    left: str
    right: str
    sums: str
    instruction: str = ""

    @property
    def adds_integers(self) -> bool:
        """Whether sums are of integers."""
        return self.sums.startswith(("i", "u"))

    def __str__(self) -> str:
        """Such as "u8 x i8 in i32 by vpdpbusd"."""
        sums = "" if self.left == self.right == self.sums else f" in {self.sums}"
        by = f" by {self.instruction}" if self.instruction else ""
        return f"{self.left} x {self.right}{sums}{by}"


@dataclass(frozen=True, slots=True)
class ProductCount:
    """How many products are computed in a form."""

    form: ProductForm
    count: str

    def __str__(self) -> str:
        return f"{self.count} {self.form}"


@dataclass(frozen=True, slots=True)
class TypesOfKernel:
    """The types of a kernel: what it reads, its products in all of its calls, its other scalars ("lookups": positions
    are data), and what it stores."""

    kernel: str
    calls: int
    reads: tuple[str, ...]
    products: tuple[ProductCount, ...]
    computes: tuple[str, ...]
    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChannelCount:
    """How many output channels of a layer are computed in a form: a number, an expression, "some" or "all"."""

    form: ProductForm
    channels: str

    def __str__(self) -> str:
        return f"{self.channels} {self.form}"


@dataclass(frozen=True, slots=True)
class TypesOfLayer:
    """In which forms a layer of the model is computed, why, and by which kernels."""

    layer: str
    operator: str
    channels: tuple[ChannelCount, ...]
    why: str
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EdgeRecord:
    """Whether the value that one operator gives to another stays within a kernel, and why.

    Of values that go through memory, `suggestion` says what would change that ("": nothing that is known), `others` are
    the operators that stand in the way, `cycles` what one kernel would save one core, for usual sizes: memory
    traffic without what would be computed again (None: nothing); `source` and `target` are the kernels.
    """

    producer: str
    consumer: str
    value: str
    type: str
    is_fused: bool
    reason: str
    suggestion: str = ""
    others: tuple[str, ...] = ()
    cycles: float | None = None
    source: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True)
class LoopRecord:
    """How a loop of a kernel is run, at which depth, and why: whether threads share its iterations, and whether these
    are lanes of vectors. `count` loops of the kernel have this form. What would change the one and the other is
    `threads_change` and `lanes_change` ("": nothing that is known)."""

    kernel: str
    loop: str
    extent: str
    kind: str
    depth: int
    is_shared: bool
    threads: str
    is_vector: bool
    lanes: str
    count: int = 1
    threads_change: str = ""
    lanes_change: str = ""


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """A part of the model that repeats, `copies` times, of which the first `variants` have other sizes or a few
    operators more; `operators` are those of the last copy, `kernels` the positions among the calls of the kernels of
    each."""

    block: str
    copies: int
    variants: int
    operators: int
    kernels: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class WayRecord:
    """A way of a branch ("then", "else") or the body of a loop ("body"), and the kernels that compute it."""

    way: str
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """What a branch or loop of the model, the `node`, has become, and why: "branch" and "loop" stay what they are, of a
    "select" both ways are computed, a "decided" one has one way in all calls, an "unrolled" loop is written out.
    `suggestion` is what would change that ("": nothing that is known)."""

    node: str
    operator: str
    outcome: str
    reason: str
    suggestion: str
    ways: tuple[WayRecord, ...]


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """The steps that made a kernel's loops of those that were lowered, for its largest sizes where it has versions."""

    kernel: str
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelCycles:
    """The `calls` of a kernel on a simulated machine: cycles of one call, the unit or queue that is busy in most of
    them (`bound`), in how many of them each is busy, the bytes that move along each route (as "global -> l1"), and the
    events that are in use between two queues (as "load -> array"), where the machine has a number of them."""

    kernel: str
    node: str
    calls: int
    cycles: float
    bound: str
    busy: Mapping[str, float]
    bytes: Mapping[str, int]
    events: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A part of a model that runs on a device and the CPU beside it: where it runs, its kernels, the bytes that it
    takes and gives (each is copied where the part runs on the device), and why it runs there."""

    part: str
    machine: str
    kernels: tuple[str, ...]
    takes: str
    gives: str
    why: str


@dataclass(frozen=True, slots=True)
class IntegerMeaning:
    """What the integers of an input or output of a program without floats stand for: (integer - zero_point) * scale.
    `tensor` is "input" or "output"."""

    tensor: str
    name: str
    dtype: str
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A value that the model keeps from call to call: what it becomes at the end of one, what it is at first ("zeros",
    or "as the model says"), how it is updated ("in place", "swapped", "handed on"), and of one that grows from call to
    call the axis and the counter ("" of others)."""

    state: str
    type: str
    becomes: str
    first: str
    update: str
    grows: str = ""


@dataclass(frozen=True, slots=True)
class AddedProgram:
    """A program beside the general one: for calls with these `sizes`, or of dims that are 1 where others are not. Its
    bytes are what it adds to the file; `arena_bytes` are None where they depend on shapes."""

    sizes: Mapping[str, int]
    kernels: int
    arena_bytes: int | None
    code_bytes: int
    constant_bytes: int


@dataclass(frozen=True)
class ProgramReport:
    """What a compilation tells of a program.

    `nodes` are the operators of the model, `kernels` the calls of kernels, of which `distinct_kernels` are different.
    `arena` is the formula of the bytes of intermediate results, `arena_without_sharing` what these would take if none
    shared memory. `compile_ms` are milliseconds by stages, where it was compiled in this process: files have none, so
    that the same model, options and compiler give the same bytes. `products` are those of a call of the program,
    `types` are of kernels, `layers` of the model, `integers` of a program without floats, `blocks` of repeated parts,
    `simulated` of kernels for a machine that is simulated, `placed` of parts on a device and its CPU, `edges` of
    values between operators, `flow` of branches and loops of the model; `loops` and `schedules` are of kernels that
    were compiled with `profile=True`. A program beside another one says how many bytes it added to the file. A program
    of several `parts` tells of all of them.
    """

    version: int = VERSION
    nodes: int | None = None
    numerics: str = ""
    parts: int | None = None
    kernels: int = 0
    distinct_kernels: int = 0
    arena: str = "0"
    arena_without_sharing: str = "0"
    compile_ms: Mapping[str, float] = field(default_factory=dict)
    calls: tuple[CallRecord, ...] = ()
    products: tuple[ProductCount, ...] = ()
    types: tuple[TypesOfKernel, ...] = ()
    layers: tuple[TypesOfLayer, ...] = ()
    integers: tuple[IntegerMeaning, ...] = ()
    added_code_bytes: int | None = None
    added_constant_bytes: int | None = None
    blocks: tuple[BlockRecord, ...] = ()
    simulated: tuple[KernelCycles, ...] = ()
    placed: tuple[PlacedPart, ...] = ()
    edges: tuple[EdgeRecord, ...] = field(default=(), repr=False)
    flow: tuple[FlowRecord, ...] = field(default=(), repr=False)
    loops: tuple[LoopRecord, ...] = field(default=(), repr=False)
    schedules: tuple[ScheduleRecord, ...] = field(default=(), repr=False)
    remarks: tuple[Remark, ...] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON data: records are dicts of their fields, tuples lists."""
        found: dict[str, Any] = plain(self)
        return found

    def to_json(self) -> str:
        """The text of `as_dict`."""
        return json.dumps(self.as_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave; ArtifactError for another text, or one of another version."""
        try:
            data = json.loads(text)
            version = data.get("version") if isinstance(data, dict) else None
            if version != VERSION:
                raise ValueError(f"it is of version {version!r:.40}, and {VERSION} is known")
            return record(cls, data)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"the report cannot be read: {error}", hint="compile the model again") from error
